"""Messages of a round-robin topic that are sent by themselves: large ones, and those that are half sent."""

from dataclasses import dataclass

import msgspec
import trio
from msgspec import Struct

from omq.drivers.pieces import Pieces
from omq.drivers.seam import SLOW_SECONDS, Outcome, Piece
from omq.drivers.unsettled import again
from omq_storage.runs import Run


class Large(Struct, frozen=True):
    """An assigned message that stays in the store until it is sent."""

    message: int
    octets: int
    deliveries: int

    @property
    def ids(self) -> range:
        return range(self.message, self.message + 1)


@dataclass(slots=True)
class PiecewiseMessage:
    """The message that is sent by itself: a part of it is, or is about to be, on the socket."""

    message: int
    octets: int
    deliveries: int
    pieces: Pieces | None
    """None if its topic has it in memory: then its sender has the rest of it."""
    slow: bool
    outcome: Outcome | None = None
    """The outcome from its subscriber, before the last octet of the message is known to be on the socket.
    None if the subscriber has not settled it.
    """
    _taken_at: float = 0.0

    @property
    def ids(self) -> range:
        return range(self.message, self.message + 1)

    @property
    def is_done(self) -> bool:
        """Whether its subscriber has settled it, so that it is not assigned again."""
        return self.outcome is not None and not again(self.run, self.outcome)

    @property
    def run(self) -> Run:
        return Run(self.message, 1, 1, self.deliveries)

    async def take(self) -> Piece:
        """Return the next piece. Raises MessageTruncated."""
        assert self.pieces is not None
        piece = await self.pieces.take(slow=self.slow)
        self._taken_at = trio.current_time()
        return msgspec.structs.replace(piece, deliveries=self.deliveries) if self.deliveries else piece

    def written(self, octets: int) -> None:
        """Note that N `octets` of its body are on the socket, and free the memory of the last piece."""
        if self.pieces is not None:
            self.pieces.give_back()
            self.slow = trio.current_time() - self._taken_at >= SLOW_SECONDS
            self.pieces.begin = octets

    def give_back(self) -> None:
        """Free the memory of the last piece."""
        if self.pieces is not None:
            self.pieces.give_back()
