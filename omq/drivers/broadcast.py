"""Broadcast: every subscriber gets every message; each is a cursor over the topic's log.

See docs/PROTOCOL.md, "Broadcast".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import assert_never

import trio

from omq.drivers.backpressure import Backpressure
from omq.drivers.broadcast_channel import BroadcastChannel
from omq.drivers.driver import InitialState
from omq.drivers.memory import Memory
from omq.drivers.posts import StoredValue
from omq.drivers.publisher_queue import PublisherQueues, RoomAnswer, WaitingPublisher
from omq.drivers.push import MOST_FOLLOWERS, MOST_STORED_WORK, PushedRun, Pushes, PushLine
from omq.drivers.reasons import NOT_REPLAYED, Reason, Refused
from omq.drivers.seam import LITTLE_OCTETS, TAKE_OCTETS, EndReason, Outlet, Subscriber
from omq.drivers.slices import let_go
from omq.drivers.spooling import SpoolingDriver
from omq.model import Delivery, FromBeginning, FromCurrent, FromMessage, Replay
from omq_storage.batches import Batch
from omq_storage.blocks import FRAMES_LIMIT, Block
from omq_storage.fragments import Fragmented

WOKEN_IN_STEP = 16
"""The number of subscribers of a crowded topic that are woken in one step; each takes 2 microseconds."""

ASKED_IN_STEP = 256
"""The number of subscribers that are asked in one step for the oldest message that they need."""

TRIM_BLOCKS = 64
"""The number of small blocks in a tail at which it drops the blocks that all subscribers have received."""


class BroadcastDriver(SpoolingDriver):
    delivery = Delivery.BROADCAST

    def __init__(self, opening: InitialState) -> None:
        super().__init__(opening)
        self._behind: dict[BroadcastChannel, None] = {}
        """Its channels that do not follow (see `BroadcastChannel.follows`) and were not left behind. While
        there are any, messages that are pushed to the others are kept in the tail, too.
        """
        self._unwoken: dict[BroadcastChannel, None] = {}
        """The channels of a crowded topic that an errand wakes: those first that wait longest."""
        self._is_waking = False
        self.is_crowded = False
        self._written = 0
        """The number of writes since blocks that no subscriber needs were looked for."""
        self._oldest_needed = -1
        """While an errand looks for the oldest message that a subscriber needs: the oldest one so far;
        otherwise -1.
        """
        self._backpressure = Backpressure(self, self._channels)
        self.route.owner = self
        self._aim()

    def _open(self, subscriber: Subscriber, replay: Replay, priority: int) -> BroadcastChannel:
        """Open a channel for a subscriber. Raise Refused when the topic cannot be replayed from there."""
        channel = BroadcastChannel(self, subscriber, self._start(replay))
        self._channels[channel] = None
        self._look_crowded()
        self.fell_behind(channel)
        self._backpressure.advanced(channel)
        return channel

    def _start(self, replay: Replay) -> int:
        match replay:
            case FromCurrent():
                return self.next_id
            case FromBeginning():
                self._refuse_transient()
                kept = self.extent.oldest(self.next_id)
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
            raise Refused.of(NOT_REPLAYED)

    def subscribers(self) -> Iterable[tuple[BroadcastChannel, Subscriber]]:
        return ((channel, channel.subscriber) for channel in self._channels)

    def channels(self) -> list[BroadcastChannel]:
        return list(self._channels)

    def subscriber_count(self) -> int:
        return len(self._channels)

    def has_taker(self) -> bool:
        """Return whether a subscriber follows: it is at the end of the topic, or no further behind than
        memory reaches.
        """
        return any(
            channel.can_have_more()
            and (channel.position >= self.next_id or self.tail.covers(channel.position))
            for channel in self._channels
        )

    def has_consumers(self) -> bool:
        return bool(self._channels)

    def closed(self, channel: BroadcastChannel) -> None:
        self._cancelled.discard(channel)
        self._leave(channel)

    def cancelled(self, channel: BroadcastChannel) -> None:
        if channel in self._channels:
            self._cancelled.add(channel)
            self._leave(channel)

    def _leave(self, channel: BroadcastChannel) -> None:
        if channel in self._channels:
            del self._channels[channel]
            self._backpressure.left(channel)
            if channel.follows:
                channel.stop_following(self.next_id)
            elif channel.is_left:
                self._absent -= 1
            else:
                self._behind.pop(channel, None)
            self._unwoken.pop(channel, None)
            self._look_crowded()
            self._aim()
        if not self._channels:
            self.tail.clear()  # as in `_keep`: no subscriber will need it from memory
            self._channels.clear()  # as in `caught_up`
            self._behind.clear()
        self.moved()
        self._left(channel)

    def moved(self, channel: BroadcastChannel | None = None) -> None:
        if self._backpressure.is_watching:
            if channel is not None:
                self._backpressure.moved(channel)
            self.publisher_queue.look()

    def _keep(self, block: Block) -> None:
        if len(self._channels) == self._absent:
            # No subscriber can need it from memory: a later one starts after it, or in the store.
            self.tail.clear()
            return
        self.remember(block)
        self._wake_all(block.first)

    def _keep_large(self, message: Fragmented) -> None:
        self._left_to_store(message.first)

    def _left_to_store(self, first: int) -> None:
        """Wake the subscribers: the newest messages, from this id on, are in the store only."""
        self.tail.clear()  # a subscriber that has not got what is in it reads on in the store
        self._wake_all(first)

    def _wake_all(self, first: int) -> None:
        # Thousands of keys are copied fast; each look at a channel would take much longer.
        channels = dict.fromkeys(self._active()) if self._absent else self._channels.copy()
        if self.is_crowded:
            if not self._is_waking:
                self._is_waking = True
                self.resources.errands.begin(self._wake_crowd())
            if not self._unwoken:
                self._unwoken = channels.copy()
            elif len(self._unwoken) < len(channels):
                self._unwoken.update(channels)  # those that wait already stay in front
        else:
            for channel in channels:
                if channel.follows:
                    channel.stop_following(first)
                channel.subscriber.wake()
        self._behind = channels
        if self.writer is None:
            self.route.close()

    def _wake_crowd(self) -> Iterator[None]:
        """Wake the channels that wait for it, some in each step. To wake one that has nothing new changes
        nothing.
        """
        try:
            while self._unwoken:
                for channel in list(islice(self._unwoken, WOKEN_IN_STEP)):
                    del self._unwoken[channel]
                    channel.subscriber.wake()
                yield
        finally:
            self._is_waking = False

    def _look_crowded(self) -> None:
        """Set `is_crowded`, because the number of channels has changed. Of a crowd none follows."""
        is_crowded = len(self._channels) - self._absent > MOST_FOLLOWERS
        if is_crowded is self.is_crowded:
            return
        self.is_crowded = is_crowded
        if is_crowded:
            for channel in self._channels:
                if channel.follows:
                    channel.stop_following(self.next_id)
            return
        even = [channel for channel in self._active() if channel not in self._behind]
        self._behind.update(dict.fromkeys(even))
        for channel in even:  # a held one, for example, may not follow, and is behind from now on
            channel.follow_if_even()

    def routed(self, first: int, values: Sequence[StoredValue], pushes: Pushes) -> None:
        """Make messages that were routed to the store available to subscribers. Without `values` they are in
        the store only, from this id on: there was no subscriber when their commit began.
        """
        for begin, count, time, frames, offsets in values:
            run = PushedRun(self, begin, count, frames, offsets, time)
            if len(values) > 1 or not self._push_run(run, pushes):
                self._keep(run.block)
        if not values:
            self._left_to_store(first)

    def _push_stored(self, block: Block, pushes: Pushes) -> bool:
        return self._push_run(PushedRun.of(self, block), pushes)

    def _push_run(self, run: PushedRun, pushes: Pushes) -> bool:
        """Do as `_push_stored`."""
        channels = self._active() if self._absent else self._channels
        count = len(channels)
        octets = pushes.octets + len(run.frames) * count
        if pushes.work + count > MOST_STORED_WORK or octets > TAKE_OCTETS or self.is_crowded:
            return False  # it would take long
        taking, others = self._lines(channels, pushes)
        if not taking:
            return False
        pushes.octets = octets
        self._push(run, taking, others, pushes)
        return True

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
        if following > self.reserved or self.writer is not None or self.deleted:
            return False
        if batch.octets > LITTLE_OCTETS or not batch.count:
            return False
        if self.is_crowded:
            return False
        channels = self._active() if self._absent else self._channels
        run = None
        if channels:
            taking, others = self._lines(channels, pushes)
            if not taking:
                return False
            is_kept = len(taking) < len(channels)
            if is_kept and not self.publisher_queue.try_enter(batch.octets):
                return False
            run = PushedRun(self, first, batch.count, *batch.stamped(self.topic.id, first))
        self.next_id = following
        self.traffic.messages_in += batch.count
        self.traffic.octets_in += batch.octets
        if run is not None:
            self._push(run, taking, others, pushes)
        return True

    def _push(
        self,
        run: PushedRun,
        taking: Sequence[tuple[BroadcastChannel, PushLine]],
        others: Sequence[BroadcastChannel],
        pushes: Pushes,
    ) -> None:
        """Push messages that have their ids to these followers; the others do not follow any more."""
        for channel in others:
            channel.stop_following(run.first)
            self.fell_behind(channel)
        pushes.work += len(self._channels)
        for channel, line in taking:
            line.add(run, channel)
        self.traffic.messages_out += len(taking) * run.count
        self.traffic.octets_out += len(taking) * len(run.frames)
        if self._behind:
            run.keep()
            self._wake_behind()

    def _lines(
        self, channels: Iterable[BroadcastChannel], pushes: Pushes
    ) -> tuple[list[tuple[BroadcastChannel, PushLine]], list[BroadcastChannel]]:
        """Return the followers among these channels to whose connections messages may be pushed now, with
        what is pushed there, and the other followers.
        """
        taking, others = [], []
        for channel in channels:
            if channel.follows:
                assert channel.outlet is not None
                line = pushes.line(channel.outlet)
                if line is None:
                    others.append(channel)
                else:
                    taking.append((channel, line))
        return taking, others

    def routed_past(self, block: Block) -> None:
        """Keep messages that were routed to those subscribers that have everything for the others."""
        self.remember(block)
        self._wake_behind()

    def _wake_behind(self) -> None:
        for channel in self._behind:
            channel.subscriber.wake()

    def caught_up(self, channel: BroadcastChannel) -> None:
        if channel not in self._behind:
            return
        del self._behind[channel]
        if self._backpressure.is_watching and not channel.is_left:
            self._backpressure.advanced(channel)
        if not self._behind:
            self._behind.clear()  # an empty dict keeps its table, as large as it ever was
        self._aim()

    def fell_behind(self, channel: BroadcastChannel) -> None:
        self._behind[channel] = None
        self._oldest_needed = min(self._oldest_needed, channel.unwritten)
        self._aim()

    def _aim(self) -> None:
        """Open the route: to the store of a persistent topic, or to the followers of a transient one. These
        may change often, so `aim` opens it when the next message comes.
        """
        count = len(self._channels) - self._absent
        if not self._behind and self.tail.octets:
            self.tail.clear()  # nobody reads it again
        if self.writer is not None:
            self.route.is_watched = count > 0
            lane = self.writer.routed.lane
            if lane is None or self.deleted or not self._may_route:
                self.route.close()
            else:
                self.route.open_store(lane)
            return
        if self.deleted or self.is_crowded:
            self.route.close()
        elif not count:
            self.route.open(None)
        elif len(self._behind) < count:
            self.route.open_later()
        else:
            self.route.close()

    def aim(self) -> None:
        """Open the route of a transient topic to its followers. Those to whose connections nothing can be
        pushed now fall behind, unless it is so with all of them.
        """
        channels = self._active() if self._absent else self._channels
        followers = [channel for channel in channels if channel.follows]
        outlets = {channel.outlet for channel in followers if channel.outlet is not None}
        slower = {outlet for outlet in outlets if not outlet.has_room()}
        if len(slower) < len(outlets):
            for channel in followers:
                if channel.outlet in slower:
                    channel.stop_following(self.next_id)
                    self.fell_behind(channel)
            outlets -= slower
        attached = [channel.outlet for channel in channels if channel.outlet is not None]
        if not outlets or len(set(attached)) < len(attached):
            # If a connection has two channels, `try_push` knows how often to send.
            self.route.close()
        else:
            self.route.open(self.resources.lanes.to(outlets), is_kept=bool(self._behind))

    def fall_behind(self, outlet: Outlet, position: int) -> None:
        for channel in self._channels:
            if channel.outlet is outlet:
                channel.fall_behind(position)
                return

    def most(self) -> int:
        return min(self.resources.memory.tails.share(), FRAMES_LIMIT)

    def written(self) -> None:
        """Free blocks that no subscriber needs, once a quarter of the memory of all tails is used, as
        messages are on their way. A little of it in each of many topics would push out what others wait for.
        """
        tails = self.resources.memory.tails
        if tails.used > tails.limit // 4:
            # After about one write of each subscriber: there may be thousands, which are all asked.
            self._written += 1
            if self._written >= len(self._behind):
                self._forget_written()

    def _forget_written(self) -> None:
        self._written = 0
        if len(self._behind) <= ASKED_IN_STEP:
            self.tail.forget_below(min((channel.unwritten for channel in self._behind), default=self.next_id))
        elif self._oldest_needed < 0:
            self._oldest_needed = self.next_id  # a subscriber that comes later needs nothing older
            self.resources.errands.begin(self._forget_unneeded())

    def _forget_unneeded(self) -> Iterator[None]:
        """Do as `_forget_written`, in steps. Meanwhile no subscriber goes back unless it falls behind."""
        try:
            channels = let_go(list(self._behind))
            while some := list(islice(channels, ASKED_IN_STEP)):
                for channel in some:
                    if channel in self._behind and channel.unwritten < self._oldest_needed:
                        self._oldest_needed = channel.unwritten
                some.clear()
                yield
            self.tail.forget_below(self._oldest_needed)
        finally:
            self._oldest_needed = -1

    # -- publishers that wait: see omq.drivers.backpressure ------------------------------------------------

    def _publisher_queues(self, memory: Memory) -> PublisherQueues:
        return memory.spooled_publisher_queues

    def _take_room(self, octets: int, in_turn: bool) -> RoomAnswer:
        if self.publisher_queue.admitted or self._backpressure.is_due():
            return RoomAnswer.TOPIC_FULL
        relief, is_behind = self.resources.memory.tails.relief, self.tail.octets > 0
        if relief is not None and relief.must_wait(octets, is_behind=is_behind, again=in_turn):
            return RoomAnswer.MEMORY_FULL
        return RoomAnswer.TAKEN

    async def room_to_keep(self, octets: int) -> None:
        """Wait in turn with other publishers until the topic takes a post of N `octets`."""
        admitted = trio.Event()
        waiting_publisher = self.enqueue(octets, admitted.set)
        try:
            if not waiting_publisher.is_admitted:
                await admitted.wait()
        finally:
            self.publisher_queue.leave(waiting_publisher)

    def free(self, octets: int) -> None:
        self.publisher_queue.look()

    def enqueue(self, octets: int, admitted: Callable[[], None]) -> WaitingPublisher:
        was_wanted = self.publisher_queue.is_wanted
        waiting_publisher = super().enqueue(octets, admitted)
        if self.publisher_queue.is_wanted and not was_wanted:
            self._backpressure.watch()
        return waiting_publisher

    def end(self) -> Iterator[None]:
        self._unwoken.clear()
        yield from super().end()
        for channel in list(self._cancelled):
            channel.close()
            channel.subscriber.ended(EndReason.DELETED)
