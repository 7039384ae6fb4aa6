"""One subscriber of a broadcast topic: a cursor over the topic's log."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import trio

from omq.drivers.cursor_limit import CursorLimit
from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.driver import Driver
from omq.drivers.excerpts import beginning_of, piece_of
from omq.drivers.pieces import Pieces
from omq.drivers.replaying import Replaying
from omq.drivers.seam import (
    LITTLE_OCTETS,
    MOST_SELECTIONS,
    SLOW_SECONDS,
    TAKE_OCTETS,
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
    Unavailable,
)
from omq.drivers.shared_window import SharedWindow
from omq.drivers.statistics import ChannelStatistics
from omq.drivers.tail import unbroken
from omq.gap_reasons import TOO_SLOW
from omq_storage.blocks import Block
from omq_storage.lookup import LargeBlock, VerifiedBlock


class CursorDriver(Driver):
    """A driver as its cursors see it."""

    is_crowded: bool
    """Whether it has too many subscribers to push messages to them: then no channel follows."""

    @abstractmethod
    def caught_up(self, channel: "BroadcastChannel") -> None:
        """Note that a channel has caught up with the topic. It may have been noted before."""

    @abstractmethod
    def fell_behind(self, channel: "BroadcastChannel") -> None:
        """Count a channel that has fallen behind among those that do not follow."""

    @abstractmethod
    def left_behind(self, channel: "BroadcastChannel") -> None:
        """Count a channel as one that was left behind."""

    @abstractmethod
    def came_back(self, channel: "BroadcastChannel") -> None:
        """Count a channel that was left behind as one that catches up."""

    @abstractmethod
    def moved(self, channel: "BroadcastChannel | None" = None) -> None:
        """Note that a channel has moved: there may be room for a publisher that waits for the fastest
        subscriber.
        """

    @property
    @abstractmethod
    def has_spooled(self) -> bool:
        """Whether messages are on the spool."""

    @abstractmethod
    def is_spooled(self, position: int) -> bool:
        """Return whether the message `position` is on the spool."""

    @abstractmethod
    def has_long_from(self, position: int) -> bool:
        """Return whether a long message is on the spool whose id is `position` or above."""

    @abstractmethod
    def spooled_at_hand(self, position: int) -> Sequence[Block]:
        """Return messages from the spool, the message `position` among them, if they are few and the page
        cache has them.
        """

    @abstractmethod
    def first_after(self, position: int) -> int:
        """Return the id of the first message of a transient topic above `position` that a channel can take,
        or of the next message.
        """

    @abstractmethod
    def written(self) -> None:
        """Note that messages are on their way to the subscriber of a channel."""

    @abstractmethod
    def cancelled(self, channel: "BroadcastChannel") -> None:
        """Keep nothing for a channel that was cancelled and delivers nothing more."""

    @abstractmethod
    def closed(self, channel: "BroadcastChannel") -> None:
        """Remove a channel that was closed."""


class BroadcastChannel:
    """A cursor: `position` is the id of the next message of its subscriber, or of the message it has begun.

    Credit, and an end of the channel, are one limit of the cursor (`CursorLimit`).
    """

    competes = False

    __slots__ = (
        "__weakref__",
        "_begun",
        "_limit",
        "_position",
        "_replaying",
        "_slow",
        "_stalled_at",
        "_start",
        "_taken_at",
        "_unwritten",
        "after",
        "driver",
        "follows",
        "is_held",
        "is_left",
        "outlet",
        "rest",
        "settles",
        "subscriber",
        "traffic",
    )

    def __init__(self, driver: CursorDriver, subscriber: Subscriber, position: int) -> None:
        self.driver = driver
        self.subscriber = subscriber
        self._position = position
        self._unwritten = position
        self._start = position
        """The id from which on it gets messages. Earlier ones may still be on their way to its connection,
        for a channel of the same topic that the client has closed.
        """
        self.is_held = False
        self.outlet: Outlet | None = None
        self.after = 0
        self.follows = False
        """Whether its subscriber has everything, and the next messages may be pushed to its outlet. Then its
        position is that of the topic, and nothing of it changes when messages are pushed.
        """
        self.is_left = False
        """Whether it was left behind, and has lost messages: nothing is kept for it until it takes again."""
        self.traffic = driver.traffic
        self.rest = RemainderHolder.GIVEN_AGAIN if driver.is_persistent else RemainderHolder.HELD
        self._begun: Pieces | None = None
        self.settles = False
        self._limit: CursorLimit | None = None
        """None while neither credit nor an end limits the cursor."""
        self._replaying: Replaying | None = None
        """None until the first read of the store."""
        self._slow = False
        self._stalled_at: int | None = None
        self._taken_at = 0.0

    @property
    def position(self) -> int:
        return self.driver.next_id if self.follows else self._position

    @property
    def unwritten(self) -> int:
        """As `position`, but before the messages that were taken and may be taken again."""
        return self.driver.next_id if self.follows else self._unwritten

    @property
    def begun(self) -> int | None:
        """The message of which its subscriber may have a part, and gets the rest from where it was read."""
        is_begun = self._begun is not None or self._unwritten < self._position
        return self._unwritten if is_begun and self.rest is RemainderHolder.GIVEN_AGAIN else None

    def ready(self) -> bool:
        end = self.driver.next_id
        if self._limit is not None:
            end = min(end, self._limit.bound)
        return self.position < end

    def can_have_more(self) -> bool:
        """Return whether a connection takes from it, and it has credit."""
        return not self.is_held and (self._limit is None or self.position < self._limit.bound)

    async def take(self) -> Taken | None:
        """Take from the tail if it reaches back far enough, else from the store or the spool, else return a
        gap.
        """
        self._come_back()
        if self._begun is not None:
            return await self._go_on(self._begun)
        if not self.ready():
            return None
        driver = self.driver
        if driver.tail.covers(self.position):
            if not driver.is_persistent:
                self.rest = RemainderHolder.HELD
            recent = driver.tail.from_position(self.position, 1 if self._slow else TAKE_OCTETS)
            return self._forward_little(recent[0]) if self._slow else self._forward(recent)
        if not driver.is_persistent:
            if not driver.is_spooled(self.position):
                return self._skip(driver.first_after(self.position), TOO_SLOW)
            self.rest = RemainderHolder.GIVEN_AGAIN
        if self._replaying is None:
            self._replaying = Replaying(driver)
        replaying = self._replaying
        found: list[VerifiedBlock] | Piece | Unavailable | None
        found = await replaying.read(self.position, slow=self._slow)
        if found is None:
            found = await self._begin()
        if isinstance(found, Piece):
            return found
        if isinstance(found, Unavailable):
            return self._skip(found.last + 1, found.reason)
        if not self.ready():  # credit was withdrawn during the read
            self._give_back()
            return None
        blocks = [stored.block for stored in found]
        if not replaying.octets:
            return self._forward_little(blocks[0])
        if sum(block.held for block in blocks) <= LITTLE_OCTETS:
            self._give_back()
        return self._forward(unbroken(blocks))  # the next take reports the gap

    def take_at_once(self, octets: int, most: int = MOST_SELECTIONS) -> Sequence[Selection]:
        return ()  # its flow and its pushes are the quick ways of a broadcast topic

    async def _begin(self) -> list[VerifiedBlock] | Piece | Unavailable:
        """Return the first piece of the message at the cursor, whose block is too large for the memory. If
        the message was deleted meanwhile, return the blocks or the gap at its position instead.
        """
        begun = Pieces(self.driver, self.position)
        if self._limit is not None:
            self._limit.give(range(begun.message, begun.message + 1))
        try:
            return await self._go_on(begun)
        except MessageTruncated as torn:
            self._give_back()
            self._begun = None
            if self._limit is not None:
                self._limit.take_back(range(begun.message, begun.message + 1))
            try:
                return await self.driver.replay(self.position, 1)  # the missing messages and the reason
            except LargeBlock:
                return Unavailable(begun.message, begun.message, str(torn))  # it is there, and cannot be read

    async def _go_on(self, begun: Pieces) -> Piece:
        """Return the next piece of a message. Raises MessageTruncated."""
        self._begun = begun
        tail = self.driver.tail
        if tail.covers(begun.message):
            piece = piece_of(tail.from_position(begun.message, 1)[0], begun)
        else:
            piece = await begun.take(slow=self._slow)
        self._taken_at = trio.current_time()
        return piece

    def _forward(self, blocks: list[Block], end: int | None = None) -> TakenMessages:
        """Return the messages of these blocks from the cursor on, up to `end`."""
        if end is None:
            end = self.driver.next_id
        if self._limit is not None:
            end = min(end, self._limit.bound)
        shares = (range(max(self.position, block.first), min(block.next, end)) for block in blocks)
        selections = tuple(Selection(block, ids) for block, ids in zip(blocks, shares, strict=True) if ids)
        if self._limit is not None:
            self._limit.give(range(self.position, selections[-1].ids.stop))
        self._position = selections[-1].ids.stop
        self._taken_at = trio.current_time()
        self.driver.moved(self)
        return TakenMessages(selections)

    def _forward_little(self, block: Block) -> TakenMessages:
        """Return a few messages in a copy, so that the block can be freed; or one large message of
        the block.
        """
        if block.count == 1 or len(block.frame(self.position)) > LITTLE_OCTETS:
            return self._forward([block], self.position + 1)
        return self._forward([beginning_of(block, self.position)])

    def _skip(self, position: int, reason: str) -> Unavailable:
        gone = Unavailable(self.position, position - 1, reason)
        self._position = self._unwritten = position
        if self._limit is not None:
            self._bind(self._limit)
        self.driver.moved(self)
        if self._limit is not None:
            self._look_drained(self._limit)
        return gone

    def begun_at_once(self, count: int, begun: int) -> None:
        self.written(count + 1)

    def written(self, count: int, begun: int | None = None) -> None:
        """Move the cursor to where the subscriber is, and free the memory of the blocks that were taken:
        `take` had moved it past them. A slow subscriber gets little at a time until it takes that in time.
        """
        given = self._given()
        self._unwritten += count
        self.traffic.messages_out += count
        self._slow = trio.current_time() - self._taken_at >= SLOW_SECONDS
        self._position = self._unwritten
        self._give_back()
        if begun is not None:
            self._begun = self._begun or Pieces(self.driver, self.position)
            self._begun.begin = begun
        elif self._begun is not None:
            self._begun = None
            self.driver.moved(self)  # publishers wait for the fastest subscriber of a long message
        limit = self._limit
        if limit is not None:
            limit.credit.use(count)
            limit.take_back(range(self.unwritten + (begun is not None), given))
            self._bind(limit)
            self._look_drained(limit)
        self.driver.written()
        self._follow()

    def _give_back(self) -> None:
        if self._replaying is not None:
            self._replaying.give_back()
        if self._begun is not None:
            self._begun.give_back()

    # -- its flow: see omq.drivers.seam.CursorChannel --------------------------------------------------------

    @property
    def flow(self) -> "BroadcastChannel":
        return self

    def attach(self, outlet: Outlet) -> None:
        # Messages of an earlier channel of the same topic may wait in the backlog. The frame Subscribed is
        # sent after them, and before all messages of this channel. So `after` may stay 0.
        self.outlet = outlet
        self._follow()

    def at_hand(self, octets: int) -> Sequence[Block]:
        if self._begun is not None or self._slow or self._limit is not None:
            return ()
        tail = self.driver.tail
        if not tail.covers(self.position):
            return self.driver.spooled_at_hand(self.position)
        blocks = tail.from_position(self.position, octets)
        # A message that is begun is completed from memory of its own: so only little ones go this way.
        return blocks if all(block.held <= LITTLE_OCTETS for block in blocks) else ()

    def passed(self, position: int, octets: int) -> None:
        self.traffic.messages_out += position - self.unwritten
        self.traffic.octets_out += octets
        limit = self._limit
        if limit is not None:  # it was set while they were on their way
            limit.credit.use(position - self.unwritten)
            limit.give(range(self.unwritten, position))
        self._position = self._unwritten = position
        if limit is not None:
            self._bind(limit)
            self._look_drained(limit)
        self.driver.moved(self)
        self.driver.written()
        self._follow()

    def follow_if_even(self) -> None:
        """Let it follow if its subscriber has everything: its topic is not crowded any more."""
        self._follow()

    def _follow(self) -> None:
        """See whether its subscriber has everything now."""
        if (
            not self.follows
            and self._unwritten == self._position == self.driver.next_id
            and self._may_follow()
        ):
            self._come_back()
            self.follows = not self.driver.is_crowded
            self.driver.caught_up(self)

    def leave_behind(self) -> None:
        """Keep nothing for its subscriber until that takes something: others need not wait for it then."""
        self.is_left = True
        self.driver.left_behind(self)
        self.subscriber.wake()  # it is told of the gap when its connection takes something again

    def _come_back(self) -> None:
        if self.is_left:
            self.is_left = False
            self.driver.came_back(self)

    def _may_follow(self) -> bool:
        return not (self.outlet is None or self.is_held or self._begun is not None or self._limit is not None)

    def stop_following(self, position: int) -> None:
        """Keep its own position from now on, which is this one."""
        self.follows = False
        if self.outlet is not None:
            self.after = self.outlet.pushed
        self._position = self._unwritten = position

    def _fall_behind(self, position: int) -> None:
        if self.follows:
            self.stop_following(position)
            self.driver.fell_behind(self)

    def fall_behind(self, position: int) -> None:
        """Move back to `position`: later messages were pushed, but the subscriber has not received them."""
        position = max(position, self._start)
        if position >= self.unwritten:
            return
        self._fall_behind(position)
        self._position = self._unwritten = position
        if not self.is_left:
            self.driver.fell_behind(self)  # in a crowded topic it did not follow, and had everything
        if self._limit is not None:
            self._bind(self._limit)
        self.subscriber.wake()

    # -- whether it sets the pace of publishers ------------------------------------------------------------

    def progress(self) -> int:
        """Return a number that grows when its subscriber moves, in this topic or on its connection."""
        return self._place(self.position) if self.outlet is None else self.outlet.sent

    def _place(self, position: int) -> int:
        """Return a number that grows with this position, and with the octets of the message there that have
        left: it may be a long one.
        """
        return position << 32 if self._begun is None else position << 32 | self._begun.begin

    def mark_stalled(self) -> None:
        """Mark the subscriber as stalled: it has not moved for a while."""
        if self.outlet is None:
            self._stalled_at = self.progress()
        else:
            self.outlet.stalled_at = self.outlet.sent

    def is_stalled(self) -> bool:
        """Return whether the subscriber was marked as stalled, and has not moved since."""
        outlet = self.outlet
        return self._stalled_at == self.progress() if outlet is None else outlet.stalled_at == outlet.sent

    def pace(self) -> tuple[object, int]:
        """Return the object that shows the progress of the subscriber, and its position: the connection and
        the octets that it has sent. A channel without credit, or without a known connection, is that object
        itself.
        """
        if self.outlet is None or not self.ready():
            return self, self._place(self.unwritten)
        return self.outlet, self.outlet.sent

    # -- stalls, and the end -------------------------------------------------------------------------------

    def hold(self) -> None:
        self.is_held = True
        self._fall_behind(self.driver.next_id)

    def suspend(self) -> None:
        self.hold()

    def give_back(self) -> bool:
        """Do nothing: what it does not take does not go to others."""
        return False

    def release(self) -> None:
        self.is_held = False
        self._follow()
        if self._limit is not None:
            self._look_drained(self._limit)

    def finish(self) -> None:
        self._end_at(self.driver.next_id)
        self._wake()  # in a crowded topic the wake-up for its last messages may not have come yet

    def retire(self) -> None:
        """Do nothing: what it does not take does not go to others."""

    def cancel(self) -> None:
        self._end_at(self.unwritten)
        self.driver.cancelled(self)

    def _end_at(self, end: int) -> None:
        limit = self._limited()
        limit.end = end if limit.end is None else min(limit.end, end)
        self._bind(limit)
        self._look_drained(limit)

    def wait_for(self, message: int) -> None:
        self._position = self._unwritten = self._start = max(self._position, message)

    # -- credit --------------------------------------------------------------------------------------------

    def grant(self, n: int, kind: CreditKind) -> None:
        self.settles = self.settles or kind is CreditKind.WINDOW
        limit = self._limited()
        limit.grant(n, kind, range(self.unwritten, self._given()))
        self._bind(limit)
        self._wake()
        self._look_drained(limit)  # with a small window there may be nothing left that it may give

    def share(self, window: SharedWindow | None) -> None:
        """Ignore the window: each subscriber gets all messages, and has its own window only."""

    def follow(self, order: DeliveryOrder | None) -> None:
        """Ignore the order: each subscriber gets all messages, in their order."""

    def granted(self) -> Granted:
        return Granted() if self._limit is None else self._limit.credit.granted()

    def settle(self, ids: range, outcome: Outcome) -> int:
        """Settle messages. The outcome does not matter, because other subscribers have the messages, too."""
        limit = self._limit
        if limit is None:
            return 0
        settled = limit.settle(ids)
        if settled:
            self._bind(limit)
            self._wake()
        return settled

    def drain(self, drained: Callable[[int], None], most: int | None = None) -> None:
        limit = self._limited()
        if most is not None or limit.credit.count is None:
            self.grant(most or 0, CreditKind.COUNT)
        limit.credit.drain(drained)
        self._look_drained(limit)

    def _look_drained(self, limit: CursorLimit) -> None:
        if not limit.credit.is_draining or self.is_held or self._given() > self.unwritten or self.ready():
            return
        drained, unused = limit.credit.end_drain()
        self._bind(limit)
        drained(unused)

    def _limited(self) -> CursorLimit:
        """Return its limit. A new one must be bound before the cursor moves."""
        if self._limit is None:
            self._limit = CursorLimit(self.driver.resources.memory.unconfirmed)
        return self._limit

    def _bind(self, limit: CursorLimit) -> None:
        limit.bind(self.unwritten, self._given())
        self._fall_behind(self.driver.next_id)

    def _given(self) -> int:
        """Return the id after the last message that its subscriber has, or has a part of."""
        return self.position if self._begun is None else self.position + 1

    def _wake(self) -> None:
        if self.ready():
            self.subscriber.wake()

    # -- the rest ------------------------------------------------------------------------------------------

    def statistics(self) -> ChannelStatistics:
        limit = self._limit
        end = self.driver.next_id if limit is None or limit.end is None else limit.end
        granted = self.granted()
        return ChannelStatistics(
            position=self.unwritten,
            behind=max(0, end - self.unwritten),
            credit=granted.window,
            count=granted.count,
            unsettled=0 if limit is None else limit.unsettled,
            octets=0 if self._replaying is None else self._replaying.octets,
            is_held=self.is_held,
        )

    def close(self) -> None:
        self.rest = RemainderHolder.HELD
        self.outlet = None
        if self._limit is not None:
            self._limit.close()
        self._give_back()
        self.driver.closed(self)
