"""The memory for incomplete long lines and envelopes.

A connection that needs more than is free waits, in the order of arrival. The first waiting connection may
exceed the limit, one at a time. Without that, many connections that each hold a part of a line could wait
for one another, and no line would ever be completed.

While a connection waits, slow ones are evicted: connections whose client sends almost nothing although the
server reads, or has not completed its line for a long time. The server closes them, because it has no other
place for their input, unless their protocol can refuse an incomplete message. While no connection waits, a
client may take any time.
"""

import math
from collections import deque
from collections.abc import Callable

import trio

IDLE_SECONDS = 2.0
"""The number of seconds in which a client may send less than IDLE_OCTETS while others wait."""

IDLE_OCTETS = 16 << 10

LASTING_SECONDS = 10.0
"""The greatest number of seconds for one line or envelope while others wait, at any rate."""

DropIncomplete = Callable[[], bool]
"""Drops the incomplete messages of a connection, and returns whether there were any: then the connection goes
on.
"""


class Holding:
    """The octets of one connection, and the progress of its client.

    Only the time in which the server waits for input of the client counts. Time in which the server processes
    input, or does not read because of memory or a rate limit, does not count.
    """

    __slots__ = (
        "_awaited_since",
        "_idle",
        "_lasted",
        "_received",
        "_scope",
        "exceeds",
        "is_evicted",
        "octets",
    )

    def __init__(self, scope: trio.CancelScope) -> None:
        """Create the record of a connection that holds nothing. It reads within `scope`, which is cancelled
        when the connection is evicted.
        """
        self._scope = scope
        self.is_evicted = False
        """Whether the connection was ended because others needed its memory."""
        self.octets = 0
        self.exceeds = False
        """Whether it may exceed the limit."""
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

    def evict(self) -> None:
        """Stop reading from the client: it made no progress, and its octets were given to others."""
        self.is_evicted = True
        self._scope.cancel()

    def begin_wait(self) -> None:
        """Record that the server begins to wait for input of the client."""
        self._awaited_since = trio.current_time()

    def end_wait(self, octets: int) -> None:
        """Record that `octets` arrived."""
        assert self._awaited_since is not None
        seconds = trio.current_time() - self._awaited_since
        self._awaited_since = None
        self._lasted += seconds
        self._idle += seconds
        self._received += octets
        if self._received >= IDLE_OCTETS:
            self._received = 0
            self._idle = 0.0

    def evicted_at(self) -> float:
        """Return the time at which it is evicted unless more input arrives."""
        if self._awaited_since is None or self.is_empty:
            return math.inf
        return self._awaited_since + min(IDLE_SECONDS - self._idle, LASTING_SECONDS - self._lasted)


class _Waiter:
    __slots__ = ("granted", "holding", "more", "refuse", "woken")

    def __init__(self, holding: Holding, more: int, refuse: DropIncomplete | None) -> None:
        self.holding = holding
        self.more = more
        self.refuse = refuse
        self.granted = False
        self.woken = trio.Event()


class UnfinishedMemory:
    """The memory of all connections of a server."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._holdings: dict[Holding, DropIncomplete | None] = {}
        self._exceeding: Holding | None = None
        self._waiting: deque[_Waiter] = deque()

    @property
    def holders(self) -> int:
        """The number of connections that hold octets, or may exceed the limit."""
        return len(self._holdings)

    @property
    def waiting(self) -> int:
        """The number of waiting connections."""
        return len(self._waiting)

    async def hold(self, holding: Holding, octets: int, refuse: DropIncomplete | None = None) -> None:
        """Hold `octets` in total. Wait until they are free, or until this connection may exceed the limit.

        `refuse` is called when others need the octets; None if the protocol has no refusal for incomplete
        messages. Nothing keeps it longer than the octets are held, so it may refer to the connection.
        """
        more = octets - holding.octets
        if more <= 0 or holding.exceeds:
            return
        if not self._waiting and self._fits(more):
            self._take(holding, more, refuse)
            return
        waiter = _Waiter(holding, more, refuse)
        self._waiting.append(waiter)
        try:
            while not waiter.granted:
                waiter.woken = trio.Event()
                # Only the first in the queue makes room. A connection that becomes the first is woken.
                until = self._make_room() if self._waiting[0] is waiter else math.inf
                with trio.move_on_at(until):
                    await waiter.woken.wait()
        finally:
            if not waiter.granted:
                self._waiting.remove(waiter)
                self._grant()

    def release(self, holding: Holding) -> None:
        """Free all octets of a connection."""
        if holding.is_empty:
            return
        self.used -= holding.octets
        del self._holdings[holding]
        if holding.exceeds:
            self._exceeding = None
        holding.clear()
        self._grant()

    def _fits(self, octets: int) -> bool:
        # One connection may exceed the limit when nothing is held: otherwise it would wait for ever.
        return not self.used or self.used + octets <= self.limit

    def _take(self, holding: Holding, octets: int, refuse: DropIncomplete | None) -> None:
        self.used += octets
        holding.octets += octets
        self._holdings[holding] = refuse

    def _grant(self) -> None:
        """Grant the requests that fit, in the order of arrival, and wake the first of the others."""
        self._grant_fitting()
        self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].woken.set()

    def _grant_fitting(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if self._fits(first.more):
                self._take(first.holding, first.more, first.refuse)
            elif self._exceeding is None:
                self._exceeding = first.holding
                first.holding.exceeds = True
                self._holdings[first.holding] = first.refuse
            else:
                break
            self._waiting.popleft()
            first.granted = True
            first.woken.set()

    def _make_room(self) -> float:
        """Close slow connections until the first waiting one has room.

        Return the time at which the next one would be evicted.
        """
        first = self._waiting[0]
        self._grant_fitting()
        if first.granted:  # else it would wake itself, and make room again without a pause
            self._wake_first()
        # Among equally slow connections, the one that exceeds the limit is evicted first: it blocks the
        # others.
        slowest = sorted(self._holdings, key=lambda each: (each.evicted_at(), not each.exceeds))
        for holding in slowest:
            if first.granted:
                break
            at = holding.evicted_at()
            if at > trio.current_time():
                return at
            refuse = self._holdings[holding]
            self.release(holding)
            if refuse is None or not refuse():
                holding.evict()
        return math.inf
