"""Read admission: the octets that a connection may read at once, and hold incomplete (docs/ARCHITECTURE.md,
"Memory").

Every connection may read a little at any time. To read more at once, and to hold more of a line or an
envelope that is not complete, it needs a share of the memory for that. So no number of connections can fill
the memory. A client with a rate limit is read no faster than the limit allows.
"""

from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext

import trio

from omq.access.limits import RateLimit
from omq.drivers.memory import Memory
from omq.drivers.unfinished import DropIncomplete, Holding
from omq.terminals.connection.transport import FIRST_OCTETS, MOST_OCTETS, Transport

FREE_OCTETS = 64 << 10
"""The octets of unfinished input that a connection may hold before it needs a share of the memory."""


class ReadAdmission:
    """The reading side of one connection. Always call `close` at the end."""

    __slots__ = (
        "_excused",
        "_holding",
        "_is_streaming",
        "_limit",
        "_may_hold",
        "_memory",
        "_most",
        "_reading",
        "_scope",
        "_transport",
    )

    def __init__(
        self,
        transport: Transport,
        memory: Memory,
        scope: trio.CancelScope,
        excused: AbstractContextManager[None] | None = None,
        most: int = MOST_OCTETS,
    ) -> None:
        """Create the admission of a connection that reads within `scope`. It is cancelled if others wait for
        memory that the connection holds, and the connection does not go on; `is_evicted` says so then. Within
        `excused` it waits for the rate limit of its client, who is then not silent. One read gives about
        N octets (`most`).
        """
        self._transport = transport
        self._memory = memory
        self._most = most
        self._reading = 0
        self._is_streaming = False
        self._scope = scope
        self._holding: Holding | None = None  # most connections never need one
        self._may_hold = False
        """Whether `_holding` may hold something: without it nothing is unfinished, as most of the time."""
        self._limit: RateLimit | None = None
        self._excused = nullcontext() if excused is None else excused

    @property
    def is_evicted(self) -> bool:
        """Whether it ended because others needed its memory."""
        return self._holding is not None and self._holding.is_evicted

    @property
    def reading(self) -> int:
        """The octets of the memory for reading that it holds."""
        return self._reading

    @property
    def unfinished(self) -> int:
        """The octets of the memory for unfinished input that it holds."""
        return 0 if self._holding is None else self._holding.octets

    async def limit(self, rate: RateLimit | None, received: int = 0) -> None:
        """Keep to this rate limit from now on. The `received` octets that were read before count in it, and
        wait for it here: so a client that connects again for each burst is no faster.
        """
        self._limit = rate
        if rate is not None:
            await self._wait(rate)
            rate.spend(received)

    async def _wait(self, rate: RateLimit) -> None:
        with self._excused:
            await rate.wait()

    def receive(self) -> Awaitable[bytes]:
        """Read the socket: what has arrived, as far as there is memory for it and the rate limit allows, and
        otherwise a little. Pass the result to `completed`.

        Return nothing when the other side has finished sending. Raises trio.BrokenResourceError.
        """
        # Most connections wait here most of the time. Each coroutine in which they wait takes some 230 octets
        # of memory, and time when octets arrive.
        if self._limit is not None or self._may_hold:
            return self._receive_bounded()
        return self._receive_streaming() if self._is_streaming else self._transport.receive()

    def completed(self, received: bytes) -> bytes:
        """Return these octets, which `receive` has returned, with those that have arrived behind them."""
        if self._limit is None and not self._is_streaming and len(received) == FIRST_OCTETS:
            self._is_streaming = True
            octets = self._take_arrived()
            if octets:
                received += self._transport.receive_arrived(octets)
        return received

    async def _receive_bounded(self) -> bytes:
        if self._limit is not None:
            await self._wait(self._limit)
        holding = self._holding
        if holding is None or not self._may_hold:
            return await self._receive()
        received = b""
        holding.begin_wait()
        try:
            received = self.completed(await self._receive())
        finally:
            holding.end_wait(len(received))
        return received

    async def _receive(self) -> bytes:
        if self._limit is not None:
            received = await self._transport.receive(self._limit.piece)
            self._limit.spend(len(received))
            return received
        if self._is_streaming:
            return await self._receive_streaming()
        return await self._transport.receive()

    async def _receive_streaming(self) -> bytes:
        """Read after a full read. If much has arrived again, read all of it at once."""
        octets = self._take_arrived()
        if octets:
            await trio.lowlevel.checkpoint()  # the others have their turn between two reads
            if received := self._transport.receive_arrived(octets):
                return received
        self._is_streaming = False
        self.done()
        return await self._transport.receive()

    def _take_arrived(self) -> int:
        """Return the number of further octets that can be read at once, as far as there is memory for it, and
        hold that much.
        """
        arrived = min(self._transport.arrived(), self._most)
        if not self._memory.reading.try_take(arrived):
            return 0
        self._reading += arrived  # after a refusal nobody has called `done` for the last read
        return arrived

    def done(self) -> None:
        """Release the memory of received octets, which are processed and no longer held."""
        if self._reading:
            self._memory.reading.give(self._reading)
            self._reading = 0

    def finished(self) -> None:
        """Give back the share of a line or an envelope that is complete."""
        if self._may_hold and self._holding is not None:
            self._may_hold = False
            self._memory.unfinished.release(self._holding)

    def must_hold(self, octets: int) -> bool:
        """Return whether `hold` changes anything."""
        return octets > FREE_OCTETS or self._may_hold

    async def hold(self, octets: int, refuse: DropIncomplete | None = None) -> None:
        """Hold the share for N `octets` of something unfinished, or wait for a turn without one. `refuse` as
        in `UnfinishedMemory.hold`.

        If it is known how long the line or envelope will be, ask for all of it at once.
        """
        if octets <= FREE_OCTETS:
            self.finished()
            return
        if self._holding is None:
            self._holding = Holding(self._scope)
        self._may_hold = True
        await self._memory.unfinished.hold(self._holding, -(-octets // FREE_OCTETS) * FREE_OCTETS, refuse)

    def close(self) -> None:
        """Give everything back."""
        self.done()
        self.finished()
