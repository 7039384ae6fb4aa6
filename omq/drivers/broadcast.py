"""Broadcast: every subscriber gets every message; each is a cursor over the topic's log.

See docs/PROTOCOL.md, "Broadcast".
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import assert_never

import trio

from omq.drivers.driver import READ_OCTETS, Driver, Opening
from omq.drivers.entrance import Answer, Entrant
from omq.drivers.pieces import Pieces
from omq.drivers.push import MOST_FOLLOWERS, Pushes, Run
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import (
    LITTLE_OCTETS,
    SLOW_SECONDS,
    Credit,
    Cut,
    End,
    Gone,
    Granted,
    Messages,
    Outcome,
    Outlet,
    Piece,
    Rest,
    Subscriber,
    Taken,
    Torn,
)
from omq.drivers.statistics import ChannelStatistics
from omq.drivers.unsettled import Unsettled, number_of
from omq.model import Delivery, FromBeginning, FromCurrent, FromMessage, Replay
from omq_storage.batches import Batch
from omq_storage.blocks import FRAME_HEADER, FRAMES_LIMIT, Block, encode
from omq_storage.lookup import LargeBlock, StoredBlock

TAKE_OCTETS = 256 << 10
"""What a live channel gives at once: then the connection's other subscriptions have their turn."""

TRIM_BLOCKS = 64
"""The number of small blocks in a tail at which it drops the blocks that all subscribers have received."""

STALL_SECONDS = 0.25
"""How long publishers wait for the fastest subscriber while its connection takes nothing."""


class BroadcastDriver(Driver):
    delivery = Delivery.BROADCAST

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        self._channels: dict[BroadcastChannel, None] = {}
        self._cancelled: set[BroadcastChannel] = set()
        self.behind = 0
        """How many of its channels do not follow: see `BroadcastChannel.follows`."""
        # While publishers wait: how far each channel was, and since when.
        self._is_watched = False
        self._watched: dict[BroadcastChannel, tuple[int, float]] = {}

    def _open(self, subscriber: Subscriber, replay: Replay) -> "BroadcastChannel":
        """Raises Refused when the topic cannot be replayed from there."""
        channel = BroadcastChannel(self, subscriber, self._start(replay))
        self._channels[channel] = None
        self.behind += 1
        return channel

    def _start(self, replay: Replay) -> int:
        match replay:
            case FromCurrent():
                return self.next_id
            case FromBeginning():
                self._refuse_transient()
                kept = self.extent.first if self.extent.messages else self.next_id
                # A loss directly before the stored messages is reported, too.
                return self.lost.start if kept == self.lost.stop else kept
            case FromMessage(first):
                self.check_replay(first)
                return first
            case _:
                assert_never(replay)

    def check_replay(self, first: int) -> None:
        self._refuse_transient()
        if first < 1:
            raise Refused(Reason.INVALID, "message ids begin with 1")
        if first > self.next_id:
            raise Refused(
                Reason.NO_REPLAY, f"there is no message {first} yet, the next one is {self.next_id}"
            )

    def _refuse_transient(self) -> None:
        if not self.is_persistent:
            raise Refused(Reason.NO_REPLAY, "a transient topic cannot be replayed")

    def subscribers(self) -> Iterable[tuple["BroadcastChannel", Subscriber]]:
        return ((channel, channel.subscriber) for channel in self._channels)

    def subscriber_count(self) -> int:
        return len(self._channels)

    def has_taker(self) -> bool:
        """Somebody who follows what comes: at its end, or no further behind than memory reaches."""
        return any(
            channel.can_have_more()
            and (channel.position >= self.next_id or self.tail.covers(channel.position))
            for channel in self._channels
        )

    def has_consumers(self) -> bool:
        return bool(self._channels)

    def closed(self, channel: "BroadcastChannel") -> None:
        self._cancelled.discard(channel)
        self._leave(channel)

    def cancelled(self, channel: "BroadcastChannel") -> None:
        """A channel gives no more: nothing is kept for it."""
        if channel in self._channels:
            self._cancelled.add(channel)
            self._leave(channel)

    def _leave(self, channel: "BroadcastChannel") -> None:
        if channel in self._channels:
            del self._channels[channel]
            if not channel.follows:
                self.behind -= 1
            channel.follows = False
        if not self._channels:
            self.tail.clear()  # as in `_keep`: no subscriber will need it from memory
            self._channels.clear()  # an empty dict keeps its table, as large as it ever was
        self.moved()
        self._left(channel)

    def moved(self, channel: "BroadcastChannel | None" = None) -> None:
        """A channel has moved: there may be room for a publisher that waits for the fastest subscriber."""
        if self.entrance.is_wanted:
            if channel is not None:
                self._watched[channel] = (channel.progress(), trio.current_time())
            self.entrance.look()

    def _keep(self, block: Block) -> None:
        if not self._channels:
            # Nobody can come to want it from memory: a later subscriber starts after it, or in the store.
            self.tail.clear()
            return
        self.remember(block)
        for channel in self._channels:
            channel.follows = False
            channel.subscriber.wake()
        self.behind = len(self._channels)

    def remember(self, block: Block) -> None:
        """Take the newest block into the tail."""
        if (
            self.tail.octets >= min(TAKE_OCTETS, self.resources.memory.tails.share())
            or len(self.tail) >= TRIM_BLOCKS
        ):
            self._forget_written()
        self.tail.append(block)

    def try_push(self, batch: Batch, pushes: Pushes) -> bool:
        first = self.next_id
        following = first + batch.count
        if self.behind or following > self.reserved or self.writer is not None or self.deleted:
            return False
        if batch.octets > LITTLE_OCTETS or not batch.count:
            return False
        channels = self._channels
        if len(channels) > MOST_FOLLOWERS:
            return False
        if channels:
            lines = []
            for channel in channels:
                assert channel.outlet is not None  # it follows
                line = pushes.line(channel.outlet)
                if line is None:
                    return False
                lines.append(line)
            pushes.work += len(channels)
            frames, offsets = batch.stamped(self.topic.id, first)
            run = Run(self, first, batch.count, frames, offsets)
            for channel, line in zip(channels, lines, strict=True):
                line.add(run, channel)
                channel.position = channel.unwritten = following
            self.traffic.messages_out += len(lines) * batch.count
            self.traffic.octets_out += len(lines) * batch.octets
        if self.tail.octets:
            self.tail.clear()  # from before its subscribers had everything: nobody reads it again
        self.next_id = following
        self.traffic.messages_in += batch.count
        self.traffic.octets_in += batch.octets
        return True

    def unsent(self, octets: int) -> None:
        self.traffic.octets_out -= octets

    def most(self) -> int:
        return min(self.resources.memory.tails.share(), FRAMES_LIMIT)

    def written(self) -> None:
        """Messages are on their way. When a quarter of the memory of all tails is used, blocks that nobody
        wants any more go at once: a little of it in each of many topics would push out what others wait for.
        """
        tails = self.resources.memory.tails
        if tails.used > tails.limit // 4:
            self._forget_written()

    def _forget_written(self) -> None:
        self.tail.forget_below(min((channel.unwritten for channel in self._channels), default=self.next_id))

    # -- pace ----------------------------------------------------------------------------------------------
    #
    # A publisher of a transient topic has no room while even the fastest subscriber is far behind. So a
    # subscriber that keeps up with the others loses nothing, and one that is slower than they are slows
    # nobody: the fastest sets the pace.
    #
    # A subscriber that stands still sets none. That is a property of its connection, not of its place in this
    # topic: a client that reads as fast as it can has not got to this topic yet when it has much of others to
    # read. So it stands still when its connection takes nothing at all for STALL_SECONDS. Then it does so for
    # all topics, which need not find out one by one, and until the connection takes something again.
    #
    # Publishers are admitted one at a time, each when what the one before it handed over is counted too.

    def _take_room(self, octets: int, in_turn: bool) -> Answer:
        if self.entrance.admitted or self._is_ahead():
            return Answer.TOPIC_FULL
        return Answer.TAKEN

    def free(self, octets: int) -> None:
        self.entrance.look()

    def _is_ahead(self) -> bool:
        """Whether the fastest subscriber is too far behind.

        That is more than a share of the memory of all tails, or anything at all while a quarter of it
        is used. So all topics together never push out what subscribers that move still need: besides the
        quarter there is at most one post of a share for each.
        """
        tails = self.resources.memory.tails
        most = 0 if tails.used > tails.limit // 4 else tails.share()
        if self.tail.octets <= most:
            return False
        fastest = max((each.position for each in self._channels if not each.stands_still()), default=None)
        return fastest is not None and self.tail.octets_after(fastest, most + 1) > most

    def line_up(self, octets: int, admitted: Callable[[], None]) -> Entrant:
        was_wanted = self.entrance.is_wanted
        entrant = super().line_up(octets, admitted)
        if self.entrance.is_wanted and not was_wanted:
            now = trio.current_time()
            self._watched = {channel: (channel.progress(), now) for channel in self._channels}
            if not self._is_watched:
                self._watch(now)
        return entrant

    def _watch(self, now: float) -> None:
        """See who moves, when the first subscriber must have moved."""
        since = [since for channel, (_, since) in self._watched.items() if not channel.stands_still()]
        self._is_watched = True
        self.resources.alarms.at(min(since, default=now) + STALL_SECONDS, self._look_who_moves)

    def _look_who_moves(self) -> None:
        """Let publishers go on that wait for subscribers which stand still."""
        watched, self._watched = self._watched, {}
        self._is_watched = False
        if not self.entrance.is_wanted:
            return
        now = trio.current_time()
        for channel in self._channels:
            progress = channel.progress()
            before, since = watched.get(channel, (None, now))
            self._watched[channel] = (progress, since if progress == before else now)
            if progress == before and now >= since + STALL_SECONDS:
                channel.found_still()
        self.entrance.look()
        self._watch(now)

    def end(self) -> None:
        cancelled = list(self._cancelled)
        super().end()
        for channel in cancelled:
            channel.close()
            channel.subscriber.ended(End.DELETED)


class BroadcastChannel:
    """A cursor: `position` is the id of the next message of its subscriber, or of the message it has begun.

    Credit is a limit for the cursor, `_bound`: the id of the first message that the subscriber may not have
    yet. It stays while the cursor moves, and moves when messages are settled.
    """

    competes = False

    __slots__ = (
        "_begun",
        "_bound",
        "_count",
        "_drained",
        "_end",
        "_replayed",
        "_slow",
        "_still_at",
        "_taken_at",
        "_unsettled",
        "_window",
        "driver",
        "follows",
        "is_held",
        "outlet",
        "position",
        "rest",
        "settles",
        "subscriber",
        "traffic",
        "unwritten",
    )

    def __init__(self, driver: BroadcastDriver, subscriber: Subscriber, position: int) -> None:
        self.driver = driver
        self.subscriber = subscriber
        self.position = position
        self.unwritten = position
        """As `position`, but before the messages that were taken and may be taken again."""
        self.is_held = False
        self.outlet: Outlet | None = None
        self.follows = False
        """Whether its subscriber has everything, and what comes next may be pushed to its outlet."""
        self.traffic = driver.traffic
        self.rest = Rest.GIVEN_AGAIN if driver.is_persistent else Rest.HELD
        self._begun: Pieces | None = None
        self.settles = False
        self._end: int | None = None
        self._window: int | None = None
        self._count: int | None = None
        self._unsettled: Unsettled | None = None
        """With a window: the messages that were taken and are not settled."""
        self._bound: int | None = None
        """The lowest limit of its end and its credit."""
        self._drained: Callable[[int], None] | None = None
        self._replayed = 0  # octets taken from the memory for replays
        self._slow = False
        self._still_at: int | None = None
        self._taken_at = 0.0

    def ready(self) -> bool:
        end = self.driver.next_id
        if self._bound is not None:
            end = min(end, self._bound)
        return self.position < end

    def can_have_more(self) -> bool:
        """Return whether a connection takes from it, and it has credit."""
        return not self.is_held and (self._bound is None or self.position < self._bound)

    async def take(self) -> Taken | None:
        """Take from the tail if it reaches back far enough, else from the store, else return a gap."""
        if self._begun is not None:
            return await self._go_on(self._begun)
        if not self.ready():
            return None
        driver = self.driver
        if driver.tail.covers(self.position):
            recent = driver.tail.from_position(self.position, 1 if self._slow else TAKE_OCTETS)
            return self._forward_little(recent[0]) if self._slow else self._forward(recent)
        if not driver.is_persistent:
            oldest = driver.tail.first
            return self._skip(driver.next_id if oldest is None else oldest, "the subscriber was too slow")
        found = await self._read()
        if isinstance(found, Piece):
            return found
        if isinstance(found, Gone):
            return self._skip(found.last + 1, found.reason)
        if not self.ready():  # credit was withdrawn during the read
            self._give_back()
            return None
        blocks = [stored.block for stored in found]
        if not self._replayed:
            return self._forward_little(blocks[0])
        if sum(block.held for block in blocks) <= LITTLE_OCTETS:
            self._give_back()
        return self._forward(_unbroken(blocks))

    async def _read(self) -> list[StoredBlock] | Piece | Gone:
        """Read from the store. Read a large block whole if the memory suffices, otherwise its message
        piece by piece.
        """
        replayed = self.driver.resources.memory.replayed
        if not (self._slow or self._replayed) and replayed.try_take(READ_OCTETS):
            self._replayed = READ_OCTETS
        largest = READ_OCTETS
        while True:
            try:
                return await self.driver.replay(self.position, self._replayed or 1, largest)
            except LargeBlock as large:
                largest = large.octets
            if not self._replayed or largest > replayed.limit:
                break
            self._give_back()
            if not replayed.try_take(largest):
                break
            self._replayed = largest
        self._give_back()
        begun = Pieces(self.driver, self.position)
        if self._unsettled is not None:
            self._unsettled.add(range(begun.message, begun.message + 1))
        try:
            return await self._go_on(begun)
        except Torn:
            self._give_back()
            self._begun = None
            self._take_back(begun.message, begun.message + 1)
            return await self.driver.replay(self.position, 1)  # returns what is gone, and why

    async def _go_on(self, begun: Pieces) -> Piece:
        """Return the next piece of a message. Raises Torn."""
        self._begun = begun
        tail = self.driver.tail
        if tail.covers(begun.message):
            piece = _piece(tail.from_position(begun.message, 1)[0], begun)
        else:
            piece = await begun.take(slow=self._slow)
        self._taken_at = trio.current_time()
        return piece

    def _forward(self, blocks: list[Block], end: int | None = None) -> Messages:
        """Return the messages of these blocks from the cursor on, up to `end`."""
        if end is None:
            end = self.driver.next_id
        if self._bound is not None:
            end = min(end, self._bound)
        shares = (range(max(self.position, block.first), min(block.next, end)) for block in blocks)
        cuts = tuple(Cut(block, ids) for block, ids in zip(blocks, shares, strict=True) if ids)
        if self._unsettled is not None:
            self._unsettled.add(range(self.position, cuts[-1].ids.stop))
        self.position = cuts[-1].ids.stop
        self._taken_at = trio.current_time()
        self.driver.moved(self)
        return Messages(cuts)

    def _forward_little(self, block: Block) -> Messages:
        """Return a few messages in a copy, so that the block can be freed; or one large message of
        the block.
        """
        if block.count == 1 or len(block.frame(self.position)) > LITTLE_OCTETS:
            return self._forward([block], self.position + 1)
        return self._forward([_beginning(block, self.position)])

    def _skip(self, position: int, reason: str) -> Gone:
        gone = Gone(self.position, position - 1, reason)
        self.position = self.unwritten = position
        self._bind()
        self.driver.moved(self)
        self._look_drained()
        return gone

    def written(self, count: int, begun: int | None = None) -> None:
        """The cursor moved when the blocks were taken; move it to where the subscriber is, and free their
        memory. A slow subscriber gets little at a time until it takes that in time.
        """
        given = self._given()
        self.unwritten += count
        self.traffic.messages_out += count
        self._slow = trio.current_time() - self._taken_at >= SLOW_SECONDS
        self.position = self.unwritten
        self._give_back()
        if begun is not None:
            self._begun = self._begun or Pieces(self.driver, self.position)
            self._begun.begin = begun
        else:
            self._begun = None
        if self._bound is not None:
            if self._count is not None:
                self._count = max(0, self._count - count)
            self._take_back(self.unwritten + (begun is not None), given)
            self._bind()
            self._look_drained()
        self.driver.written()
        self._follow()

    def _take_back(self, first: int, end: int) -> None:
        """Take back messages that were not sent, or that are sent again."""
        if self._unsettled is not None and first < end:
            self._unsettled.take(range(first, end))

    def _give_back(self) -> None:
        if self._replayed:
            self.driver.resources.memory.replayed.give(self._replayed)
        self._replayed = 0
        if self._begun is not None:
            self._begun.give_back()

    # -- its flow: see omq.drivers.seam.Flow ---------------------------------------------------------------

    @property
    def flow(self) -> "BroadcastChannel":
        return self

    def attach(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self._follow()

    def at_hand(self, octets: int) -> Sequence[Block]:
        if self._begun is not None or self._slow or self._bound is not None:
            return ()
        tail = self.driver.tail
        if not tail.covers(self.position):
            return ()
        blocks = tail.from_position(self.position, octets)
        # A message that is begun is completed from memory of its own: so only little ones go this way.
        return blocks if all(block.held <= LITTLE_OCTETS for block in blocks) else ()

    def passed(self, position: int, octets: int) -> None:
        self.traffic.messages_out += position - self.unwritten
        self.traffic.octets_out += octets
        if self._bound is not None:  # credit was granted while they were on their way
            if self._count is not None:
                self._count = max(0, self._count - (position - self.unwritten))
            if self._unsettled is not None and position > self.unwritten:
                self._unsettled.add(range(self.unwritten, position))
        self.position = self.unwritten = position
        if self._bound is not None:
            self._bind()
            self._look_drained()
        self.driver.moved(self)
        self.driver.written()
        self._follow()

    def _follow(self) -> None:
        """See whether its subscriber has everything now."""
        if not self.follows and self.unwritten == self.position == self.driver.next_id and self._may_follow():
            self.follows = True
            self.driver.behind -= 1

    def _may_follow(self) -> bool:
        return not (self.outlet is None or self.is_held or self._begun is not None or self._bound is not None)

    def _stop_following(self) -> None:
        if self.follows:
            self.follows = False
            self.driver.behind += 1

    def fall_behind(self, position: int) -> None:
        self.traffic.messages_out -= self.unwritten - position
        self.position = self.unwritten = position
        if self._bound is not None:
            self._bind()
        if position < self.driver.next_id:
            self._stop_following()
            self.subscriber.wake()

    # -- whether it sets the pace of publishers ------------------------------------------------------------

    def progress(self) -> int:
        """A number that grows when its subscriber moves: in this topic, or on its connection at all."""
        return self.position if self.outlet is None else self.outlet.sent

    def found_still(self) -> None:
        """It has not moved for a while."""
        if self.outlet is None:
            self._still_at = self.position
        else:
            self.outlet.still_at = self.outlet.sent

    def stands_still(self) -> bool:
        """Whether it was found still, and has not moved since."""
        outlet = self.outlet
        return self._still_at == self.position if outlet is None else outlet.still_at == outlet.sent

    # -- stalls, and the end -------------------------------------------------------------------------------

    def hold(self) -> None:
        self.is_held = True
        self._stop_following()

    def release(self) -> None:
        self.is_held = False
        self._follow()
        self._look_drained()

    def finish(self) -> None:
        self._end_at(self.driver.next_id)

    def cancel(self) -> None:
        self._end_at(self.unwritten)
        self.driver.cancelled(self)

    def _end_at(self, end: int) -> None:
        self._end = end if self._end is None else min(self._end, end)
        self._bind()
        self._look_drained()

    # -- credit --------------------------------------------------------------------------------------------

    def grant(self, n: int, kind: Credit) -> None:
        match kind:
            case Credit.WINDOW:
                self._window = max(0, n)
                self.settles = True
                if self._unsettled is None:
                    self._unsettled = Unsettled(self.driver.resources.memory.unconfirmed)
                    if self.position > self.unwritten or self._begun is not None:
                        self._unsettled.add(range(self.unwritten, self._given()))
            case Credit.COUNT:
                self._count = max(0, n)
                self._drained = None
            case _:
                assert_never(kind)
        self._bind()
        self._wake()

    def granted(self) -> Granted:
        return Granted(self._window, self._count)

    def settle(self, ids: range, outcome: Outcome) -> int:
        """Settle messages. The outcome does not matter, because other subscribers have the messages, too."""
        settled = 0 if self._unsettled is None else number_of(self._unsettled.take(ids))
        if settled:
            self._bind()
            self._wake()
        return settled

    def drain(self, drained: Callable[[int], None]) -> None:
        if self._count is None:
            self.grant(0, Credit.COUNT)
        self._drained = drained
        self._look_drained()

    def _look_drained(self) -> None:
        if self._drained is None or self.is_held or self._given() > self.unwritten or self.ready():
            return
        drained, self._drained = self._drained, None
        unused, self._count = self._count or 0, 0
        self._bind()
        drained(unused)

    def _given(self) -> int:
        """Return the id after the last message that its subscriber has, or has a part of."""
        return self.position if self._begun is None else self.position + 1

    def _bind(self) -> None:
        bounds = [] if self._end is None else [self._end]
        if self._count is not None:
            bounds.append(self.unwritten + self._count)
        if self._window is not None and self._unsettled is not None:
            bounds.append(self._given() + self._window - len(self._unsettled))
        self._bound = min(bounds, default=None)
        if self._bound is not None:
            self._stop_following()

    def _wake(self) -> None:
        if self.ready():
            self.subscriber.wake()

    # -- the rest ------------------------------------------------------------------------------------------

    def statistics(self) -> ChannelStatistics:
        end = self.driver.next_id if self._end is None else self._end
        return ChannelStatistics(
            position=self.unwritten,
            behind=max(0, end - self.unwritten),
            credit=self._window,
            count=self._count,
            unsettled=0 if self._unsettled is None else len(self._unsettled),
            octets=self._replayed,
            is_held=self.is_held,
        )

    def close(self) -> None:
        self.rest = Rest.HELD
        self.outlet = None
        self._drained = None
        if self._unsettled is not None:
            self._unsettled.clear()
        self._give_back()
        self.driver.closed(self)


def _piece(block: Block, begun: Pieces) -> Piece:
    """Return a copy of a small part of a message in memory, because the memory may be freed meanwhile."""
    body = block.frame(begun.message)[FRAME_HEADER:]
    octets = bytes(body[begun.begin : begun.begin + LITTLE_OCTETS])
    return Piece(block.topic, begun.message, block.head(begun.message), len(body), begun.begin, octets)


def _beginning(block: Block, position: int) -> Block:
    """Return a copy of about LITTLE_OCTETS of the messages of a block from `position` on."""
    left = block.after(position)
    count = max(1, block.messages_within(position, min(len(left), LITTLE_OCTETS)))
    ids = range(position, position + count)
    bodies = [bytes(block.frame(message)[FRAME_HEADER:]) for message in ids]
    heads = block.heads_from(position)[:count] if block.has_heads else ()
    return encode(block.topic, position, bodies, block.time, heads)


def _unbroken(blocks: list[Block]) -> list[Block]:
    """Return the blocks up to the first gap of ids; the next take reports the gap."""
    for index, (block, following) in enumerate(pairwise(blocks), 1):
        if block.next != following.first:
            return blocks[:index]
    return blocks
