"""The memory for long lines and envelopes that connections have begun and not completed.

A connection that needs more than is free waits, in the order in which the connections came. The first of
those that wait may exceed the limit, one at a time: so one line at a time can always be completed, however
many connections hold a part of theirs.

While a connection waits, those that do not go on give way: the ones whose client, although the server reads
it, sends almost nothing, or has not completed its line for long. They lose their connection, as there is
nowhere else to keep what they have sent. While nobody waits, a client may take as long as it likes.
"""

import math
from collections import deque

import trio

IDLE_SECONDS = 2.0
"""For how long a client may send less than IDLE_OCTETS while others wait."""

IDLE_OCTETS = 16 << 10

LASTING_SECONDS = 10.0
"""How long a client may take for one line or envelope while others wait, however much it sends."""


class Holding:
    """What one connection holds of the memory, and how its client goes on.

    Only the time counts in which the server waits for the client: neither the time in which the server acts
    on what came, nor that for which it does not read, as memory or a rate limit demands.
    """

    __slots__ = ("_awaited_since", "_idle", "_lasted", "_received", "_scope", "exceeds", "gave_way", "octets")

    def __init__(self, scope: trio.CancelScope) -> None:
        """`scope` is what the connection reads within: it is cancelled when the holding was taken back."""
        self._scope = scope
        self.gave_way = False
        """Whether the holding was taken back."""
        self.octets = 0
        self.exceeds = False
        """Whether it may hold as much as it needs, beyond the limit."""
        self._awaited_since: float | None = None
        self._received = 0
        self._idle = 0.0
        self._lasted = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing."""
        return not self.octets and not self.exceeds

    def clear(self) -> None:
        """Hold nothing."""
        self.octets = self._received = 0
        self.exceeds = False
        self._idle = self._lasted = 0.0

    def give_way(self) -> None:
        """The holding was taken back, because its client does not go on: read nothing more from it."""
        self.gave_way = True
        self._scope.cancel()

    def begin_wait(self) -> None:
        """The server begins to wait for octets of the client."""
        self._awaited_since = trio.current_time()

    def end_wait(self, octets: int) -> None:
        """So many octets came."""
        assert self._awaited_since is not None
        seconds = trio.current_time() - self._awaited_since
        self._awaited_since = None
        self._lasted += seconds
        self._idle += seconds
        self._received += octets
        if self._received >= IDLE_OCTETS:
            self._received = 0
            self._idle = 0.0

    def gives_way_at(self) -> float:
        """When it has to give way, unless more comes."""
        if self._awaited_since is None or self.is_empty:
            return math.inf
        return self._awaited_since + min(IDLE_SECONDS - self._idle, LASTING_SECONDS - self._lasted)


class _Waiter:
    __slots__ = ("granted", "holding", "more", "woken")

    def __init__(self, holding: Holding, more: int) -> None:
        self.holding = holding
        self.more = more
        self.granted = False
        self.woken = trio.Event()


class Unfinished:
    """The memory of all connections of a server."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._holdings: dict[Holding, None] = {}
        self._exceeding: Holding | None = None
        self._waiting: deque[_Waiter] = deque()

    @property
    def holders(self) -> int:
        """How many connections hold some of it, or may exceed it."""
        return len(self._holdings)

    @property
    def waiting(self) -> int:
        """How many connections wait."""
        return len(self._waiting)

    async def hold(self, holding: Holding, octets: int) -> None:
        """Hold so many octets altogether; wait until they are free, or until this connection may exceed the
        limit.
        """
        more = octets - holding.octets
        if more <= 0 or holding.exceeds:
            return
        if not self._waiting and self._fits(more):
            self._take(holding, more)
            return
        waiter = _Waiter(holding, more)
        self._waiting.append(waiter)
        try:
            while not waiter.granted:
                waiter.woken = trio.Event()
                # Only the first makes room; whoever becomes the first is woken.
                until = self._make_room() if self._waiting[0] is waiter else math.inf
                with trio.move_on_at(until):
                    await waiter.woken.wait()
        finally:
            if not waiter.granted:
                self._waiting.remove(waiter)
                self._grant()

    def release(self, holding: Holding) -> None:
        """Give back all that a connection holds."""
        if holding.is_empty:
            return
        self.used -= holding.octets
        del self._holdings[holding]
        if holding.exceeds:
            self._exceeding = None
        holding.clear()
        self._grant()

    def _fits(self, octets: int) -> bool:
        # One connection may exceed the limit when nobody holds anything: else it could never go on.
        return not self.used or self.used + octets <= self.limit

    def _take(self, holding: Holding, octets: int) -> None:
        self.used += octets
        holding.octets += octets
        self._holdings[holding] = None

    def _grant(self) -> None:
        """Let those go on that can, in the order in which they came."""
        while self._waiting:
            first = self._waiting[0]
            if self._fits(first.more):
                self._take(first.holding, first.more)
            elif self._exceeding is None:
                self._exceeding = first.holding
                first.holding.exceeds = True
                self._holdings[first.holding] = None
            else:
                break
            self._waiting.popleft()
            first.granted = True
            first.woken.set()
        if self._waiting:
            self._waiting[0].woken.set()

    def _make_room(self) -> float:
        """Have those give way that do not go on, as far as the first of those that wait needs it.

        Returns when the next one would have to.
        """
        first = self._waiting[0]
        self._grant()
        # The one that exceeds the limit keeps the others from their turn: it comes before those as slow.
        slowest = sorted(self._holdings, key=lambda each: (each.gives_way_at(), not each.exceeds))
        for holding in slowest:
            if first.granted:
                break
            at = holding.gives_way_at()
            if at > trio.current_time():
                return at
            self.release(holding)
            holding.give_way()
        return math.inf
