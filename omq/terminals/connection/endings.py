"""The end of consumers of a connection, in slices: there may be thousands, and other connections have their
turns between.

First all of them retire, so that none gets the messages of another one that is closed before. Then they are
closed. If they are few, all of this happens at once.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import trio

from omq.drivers.slices import Slices
from omq.terminals.connection.late_tasks import start_unless_over


class Ending(Protocol):
    """A consumer that ends: the terminal's side of a channel of the seam."""

    def retire(self) -> None:
        """See `omq.drivers.seam.Channel.retire`."""

    def close(self) -> None:
        """End it."""


class EndedPart(Protocol):
    """A part of a connection that is over, and has consumers."""

    def ending(self) -> Iterator[Ending]:
        """Yield its consumers, which must end."""

    def free(self) -> Iterator[None]:
        """Free the rest of its memory, in steps, after they have ended."""


class Endings:
    """The consumers of one connection that are ending. Await `finish` at the end of the connection."""

    __slots__ = ("_closing", "_ended", "_freeing", "_retiring", "_then")

    def __init__(self) -> None:
        self._ended: deque[EndedPart] = deque()
        self._retiring: Iterator[Ending] | None = None
        self._closing: deque[Ending] = deque()
        self._freeing: deque[Iterator[None]] = deque()
        self._then: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Return whether something is left to do."""
        return bool(self._ended or self._retiring or self._closing or self._freeing)

    def add(self, ended: EndedPart) -> None:
        """End the consumers of a part of the connection. Call `begin` or `finish` then."""
        self._ended.append(ended)

    def begin(self, nursery: trio.Nursery | None, then: Callable[[], None] | None = None) -> None:
        """End the added consumers: as many as a slice allows at once, and the others in a task of
        the nursery; without a nursery, in `finish`. Call `then` when all of them are closed.
        """
        if then is not None:
            self._then.append(then)
        slices = Slices()
        while self._step() and not slices.is_over:
            pass
        if not self:
            self._done()
        else:
            start_unless_over(nursery, self._end)  # otherwise `finish` follows

    async def finish(self) -> None:
        """Wait until all consumers are closed. A cancellation has no effect before."""
        with trio.CancelScope(shield=True):
            await self._end()

    async def _end(self) -> None:
        slices = Slices()
        while self._step():
            await slices.step()
        self._done()

    def _step(self) -> bool:
        """Let one consumer retire, or close one, or free some memory. Return whether more is left to do."""
        if self._retiring is not None:
            ending = next(self._retiring, None)
            if ending is None:
                self._retiring = None
            else:
                self._closing.append(ending)
                ending.retire()
        elif self._ended:
            ended = self._ended.popleft()
            self._retiring = ended.ending()
            self._freeing.append(ended.free())
        elif self._closing:
            self._closing.popleft().close()
        elif self._freeing and next(self._freeing[0], self) is self:
            self._freeing.popleft()
        return bool(self)

    def _done(self) -> None:
        then, self._then = self._then, []
        for act in then:
            act()
