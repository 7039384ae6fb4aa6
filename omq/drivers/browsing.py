"""Browsing: copies of the messages of a queue for one subscriber, without taking them.

A browser gets the messages that are not done, in the order of their ids, each once: those that wait, and
those that consumers have and may return. It does not compete, and its messages need no outcome. It holds a
short list of ids, so a message that is done after it was listed may still be given.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import chain, islice
from typing import Protocol

from omq.drivers.budget import Budget
from omq.drivers.credit import ChannelCredit
from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.pieces import Pieces
from omq.drivers.piecewise import PiecewiseMessage
from omq.drivers.seam import (
    LITTLE_OCTETS,
    MOST_SELECTIONS,
    CreditKind,
    Granted,
    MessageTruncated,
    Outcome,
    Outlet,
    Piece,
    RemainderHolder,
    Selection,
    Subscriber,
    Taken,
    TakenMessages,
)
from omq.drivers.shared_window import SharedWindow
from omq.drivers.slices import Slices
from omq.drivers.statistics import ChannelStatistics, Traffic
from omq.drivers.stored_reads import READ_OCTETS
from omq_storage.blocks import Block
from omq_storage.environment import Position
from omq_storage.errors import DamagedBlock
from omq_storage.lookup import LargeBlock

MOST_LISTED = 100
"""The most messages that are listed at once."""


class BrowsedQueue(Protocol):
    """The calls from a channel to its queue."""

    traffic: Traffic
    deleted: bool

    @property
    def next_id(self) -> int: ...

    @property
    def is_persistent(self) -> bool: ...

    async def position(self) -> Position: ...

    async def copied(self, message: int, largest: int) -> Block | None: ...

    def pieces(self, message: int) -> Pieces: ...

    def browser_left(self, channel: "BrowsingChannel") -> None: ...


async def undone_from(queue: BrowsedQueue, first: int) -> list[tuple[int, int]]:
    """Return the ids from `first` on that are not done, in order: the first MOST_LISTED of them. Return with
    each the number of times that its message was delivered.
    """
    position = await queue.position()
    slices = Slices()
    lowest: dict[int, int] = {}
    for run in position.undone:
        await slices.step()
        if run.last < first:
            continue
        # Take no more of each run than can be listed: all runs together may have very many ids.
        for id in islice((id for id in run.ids() if id >= first), MOST_LISTED):
            lowest[id] = run.deliveries
        if len(lowest) > 2 * MOST_LISTED:
            lowest = {id: lowest[id] for id in nsmallest(MOST_LISTED, lowest)}
    listed = nsmallest(MOST_LISTED, lowest)
    undealt: Iterator[int] = iter(range(max(first, position.cursor), queue.next_id))
    return [(id, lowest.get(id, 0)) for id in islice(chain(listed, undealt), MOST_LISTED)]


class BrowsingChannel:
    """The copies for one subscriber. It gets nothing before the first `grant`."""

    competes = False
    settles = False
    flow = None
    after = 0

    def __init__(self, queue: BrowsedQueue, subscriber: Subscriber, read: Budget) -> None:
        """Create a channel at the first message. `read` is the memory for what is read from stores."""
        self.subscriber = subscriber
        self.traffic = queue.traffic
        self._queue = queue
        self._read = read
        self._counted = 0
        """The octets of `read` that it has taken."""
        self._credit = ChannelCredit()
        self._credit.grant(0, CreditKind.COUNT)
        self._listed: deque[tuple[int, int]] = deque()
        """The next messages, as `undone_from` returns them."""
        self._position = 0
        """The id behind the last message that is listed."""
        self._taken = 0
        """The number of listed messages that the subscriber has taken."""
        self._is_at_end = False
        self._is_held = False
        self._is_over = False
        self._begun: PiecewiseMessage | None
        """The first listed message, while it is sent by itself."""
        self.rest: RemainderHolder
        self._begin(None)

    def _begin(self, begun: PiecewiseMessage | None) -> None:
        """Note which message is sent by itself. Others of a transient queue may be done while they are
        sent.
        """
        self._begun = begun
        is_given = begun is not None or (self._queue.is_persistent and not self._is_over)
        self.rest = RemainderHolder.GIVEN_AGAIN if is_given else RemainderHolder.HELD

    def look(self) -> None:
        """Wake the subscriber if it has had all messages that there were: there may be others."""
        if self._is_at_end:
            self._is_at_end = False
            self.subscriber.wake()

    # -- messages ------------------------------------------------------------------------------------------

    def attach(self, outlet: Outlet) -> None:
        pass  # a queue does not push to it

    def ready(self) -> bool:
        """See `Channel.ready`."""
        if self._is_held or self._begun is not None:
            return not self._is_held
        return bool(self._credit.count) and not self._is_at_end and not self._is_over

    async def take(self) -> Taken | None:
        """See `Channel.take`."""
        if self._begun is not None:
            return await self._begun.take()
        slices = Slices()
        while self.ready():
            await slices.step()
            if not self._listed and not await self._list():
                break
            if (taken := await self._take_first()) is not None:
                return taken
            # It is done, or cannot be read, as a consumer reports; or the channel was closed.
            if self._listed:
                self._listed.popleft()
        return None

    async def _list(self) -> bool:
        """List the next messages. Return whether there are any."""
        listed = await undone_from(self._queue, self._position)
        if self._is_over:
            return False
        self._listed.extend(listed)
        self._is_at_end = not listed
        self._position = listed[-1][0] + 1 if listed else self._queue.next_id
        self._look_drained()
        return bool(listed)

    async def _take_first(self) -> Taken | None:
        """Return the first listed message, and those that follow it in its block; None if it cannot be
        had.
        """
        message, deliveries = self._listed[0]
        if not self._counted and self._read.try_take(READ_OCTETS):
            self._counted = READ_OCTETS
        try:
            block = await self._queue.copied(message, self._counted or LITTLE_OCTETS)
        except DamagedBlock:
            return None
        except LargeBlock as large:
            self._give_back()  # each piece takes its own
            return await self._take_large(message, large.octets, deliveries)
        if block is None or self._is_over:
            return None
        most = min(len(self._listed), self._credit.count or 0, block.next - message)
        count = 1
        while count < most and self._listed[count] == (message + count, deliveries):
            count += 1
        self._taken = count
        return TakenMessages((Selection(block, range(message, message + count), deliveries),))

    async def _take_large(self, message: int, octets: int, deliveries: int) -> Piece | None:
        begun = PiecewiseMessage(message, octets, deliveries, self._queue.pieces(message), slow=False)
        self._begin(begun)
        try:
            return await begun.take()
        except BaseException as problem:  # cancelled, too: nothing of it was sent
            self._begin(None)
            if isinstance(problem, MessageTruncated):
                return None
            raise

    def take_at_once(self, octets: int, most: int = MOST_SELECTIONS) -> tuple[()]:
        """Return nothing: `take` must be used."""
        return ()

    def begun_at_once(self, count: int, begun: int) -> None:
        self.written(count + 1)

    def written(self, count: int, begun: int | None = None) -> None:
        """See `Channel.written`."""
        first = self._begun
        if first is not None:
            first.written(begun or 0)
            if not count and begun is not None:
                return
            self._begin(None)
        self._taken = 0
        for _ in range(min(count, len(self._listed))):
            self._listed.popleft()
        self.traffic.messages_out += count
        self._credit.use(count)
        if begun is not None and first is None and self._queue.is_persistent and self._listed:
            message, deliveries = self._listed[0]
            pieces = self._queue.pieces(message)
            pieces.begin = begun
            self._begin(PiecewiseMessage(message, 0, deliveries, pieces, slow=True))
        self._give_back()
        self._look_drained()

    def _give_back(self) -> None:
        self._read.give(self._counted)
        self._counted = 0

    # -- credit --------------------------------------------------------------------------------------------

    def grant(self, n: int, kind: CreditKind) -> None:
        """See `Channel.grant`. A window limits nothing: no message is unsettled here."""
        if kind is CreditKind.COUNT:
            self._credit.grant(n, kind)
            self._is_at_end = self._is_at_end and self._position >= self._queue.next_id

    def granted(self) -> Granted:
        """See `Channel.granted`."""
        return self._credit.granted()

    def drain(self, drained: Callable[[int], None], most: int | None = None) -> None:
        """See `Channel.drain`."""
        if most is not None:
            self.grant(most, CreditKind.COUNT)
        self._credit.drain(drained)
        self._look_drained()

    def _look_drained(self) -> None:
        if not self._credit.is_draining or self._is_held or self._begun is not None or self._taken:
            return
        if self._credit.count and not self._is_at_end:
            return
        drained, unused = self._credit.end_drain()
        drained(unused)

    def share(self, window: SharedWindow | None) -> None:
        """Do nothing: it does not compete."""

    def follow(self, order: DeliveryOrder | None) -> None:
        """Do nothing: it does not compete."""

    def wait_for(self, message: int) -> None:
        """Do nothing: it begins with the first message that there is."""

    def settle(self, ids: range, outcome: Outcome) -> int:
        """Return 0: an outcome has no effect on a copy."""
        return 0

    # -- pauses and ends -----------------------------------------------------------------------------------

    def hold(self) -> None:
        """See `Channel.hold`."""
        self._is_held = True

    def suspend(self) -> None:
        """Do as `hold`: it has no messages of others."""
        self._is_held = True

    def give_back(self) -> bool:
        """Return False: it has no messages of others."""
        return False

    def release(self) -> None:
        """See `Channel.release`."""
        self._is_held = False
        self._look_drained()
        self.subscriber.wake()

    def finish(self) -> None:
        """Do nothing: the terminal takes what there is."""

    def cancel(self) -> None:
        """Deliver nothing more."""
        self._is_over = True

    def retire(self) -> None:
        """Do nothing: it has no messages of others."""

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        return ChannelStatistics(
            position=None,
            behind=len(self._listed),
            credit=None,
            count=self._credit.count,
            unsettled=0,
            octets=0,
            is_held=self._is_held,
        )

    def close(self) -> None:
        """End the channel."""
        self._is_over = True
        if self._begun is not None:
            self._begun.give_back()
        self._begin(None)
        self._listed.clear()
        self._give_back()
        self._credit.forget_drain()
        self._queue.browser_left(self)
