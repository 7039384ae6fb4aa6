"""The end of consumers of a connection, in slices: there may be thousands, and other connections have their
turns between.

First all of them retire, so that none gets the messages of another one that is closed before. Then they are
closed. If they are few, all of this happens at once.

Thousands of clients may go away together. The tasks of all of them can run in the same round of the
scheduler, in which no other client has a turn. So they are closed in turns: in a round those of one
connection, or of as many as a slice allows. The consumers of a connection retire before it waits for that.
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


class EndTurns:
    """The turns of the connections of a server that end."""

    __slots__ = ("_is_taken", "_slices", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._slices = Slices()
        self._waiting = trio.lowlevel.ParkingLot()

    async def wait(self) -> None:
        """Wait for the turn of a connection. Await `leave` after it."""
        if self._is_taken:
            await self._waiting.park()
            self._slices = Slices()
        else:
            self._is_taken = True
            if self._slices.is_over:
                self._slices = Slices()

    async def leave(self) -> None:
        """Give the turn to the next connection, which has it in another round."""
        if not self._waiting and self._slices.is_over:
            await trio.lowlevel.checkpoint()  # others may come in this round
        if self._waiting:
            self._waiting.unpark()
        else:
            self._is_taken = False


class _Work:
    """The work that is left. Most connections have nothing to end, and three empty deques take 2 KiB."""

    __slots__ = ("closing", "ended", "freeing", "retiring")

    def __init__(self) -> None:
        self.ended: deque[EndedPart] = deque()
        self.retiring: Iterator[Ending] | None = None
        self.closing: deque[Ending] = deque()
        self.freeing: deque[Iterator[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self.ended or self.retiring or self.closing or self.freeing)

    @property
    def is_retiring(self) -> bool:
        """Whether consumers must retire before the next one is closed."""
        return self.retiring is not None or bool(self.ended)

    def step(self) -> None:
        """Let one consumer retire, or close one, or free some memory."""
        if self.retiring is not None:
            ending = next(self.retiring, None)
            if ending is None:
                self.retiring = None
            else:
                self.closing.append(ending)
                ending.retire()
        elif self.ended:
            ended = self.ended.popleft()
            self.retiring = ended.ending()
            self.freeing.append(ended.free())
        elif self.closing:
            self.closing.popleft().close()
        elif self.freeing and next(self.freeing[0], self) is self:
            self.freeing.popleft()


class Endings:
    """The consumers of one connection that are ending. Await `finish` at the end of the connection."""

    __slots__ = ("_then", "_turns", "_work")

    def __init__(self, turns: EndTurns) -> None:
        """Create the endings of a connection that has nothing to end. `turns`: those of its server."""
        self._turns = turns
        self._work: _Work | None = None
        self._then: tuple[Callable[[], None], ...] = ()

    def __bool__(self) -> bool:
        """Return whether something is left to do."""
        return self._work is not None

    def add(self, ended: EndedPart) -> None:
        """End the consumers of a part of the connection. Call `begin` or `finish` then."""
        if self._work is None:
            self._work = _Work()
        self._work.ended.append(ended)

    def begin(self, nursery: trio.Nursery, then: Callable[[], None] | None = None) -> None:
        """End the added consumers: as many as a slice allows at once, and the others in a task of
        the nursery; when that has ended, in `finish`. Call `then` when all of them are closed.
        """
        if then is not None:
            self._then = (*self._then, then)
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
            slices = Slices()
            while self._work is not None and self._work.is_retiring:
                self._step()
                await slices.step()
            if self._work is None or not self._work.closing:
                await self._end()
                return
            await self._turns.wait()
            try:
                await self._end()
            finally:
                await self._turns.leave()

    async def _end(self) -> None:
        slices = Slices()
        while self._step():
            await slices.step()
        self._done()

    def _step(self) -> bool:
        """Do some of the work. Return whether more is left to do."""
        work = self._work
        if work is None:
            return False
        work.step()  # what ends may add more, or begin this
        if not work and self._work is work:
            self._work = None
        return self._work is not None

    def _done(self) -> None:
        then, self._then = self._then, ()
        for act in then:
            act()
