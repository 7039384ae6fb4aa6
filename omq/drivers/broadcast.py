"""Broadcast: every subscriber gets every message; each is a cursor over the topic's log.

See docs/PROTOCOL.md, "Broadcast".
"""

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from omq.drivers.backpressure import Backpressure
from omq.drivers.broadcast_channel import BroadcastChannel
from omq.drivers.driver import InitialState
from omq.drivers.memory import Memory
from omq.drivers.publisher_queue import PublisherQueues, RoomAnswer, WaitingPublisher
from omq.drivers.push import MOST_FOLLOWERS, PushedRun, Pushes
from omq.drivers.reasons import NOT_REPLAYED, Reason, Refused
from omq.drivers.seam import LITTLE_OCTETS, TAKE_OCTETS, EndReason, Outlet, Subscriber
from omq.drivers.spooling import SpoolingDriver
from omq.model import Delivery, FromBeginning, FromCurrent, FromMessage, Replay
from omq_storage.batches import Batch
from omq_storage.blocks import FRAMES_LIMIT, Block
from omq_storage.fragments import Fragmented

TRIM_BLOCKS = 64
"""The number of small blocks in a tail at which it drops the blocks that all subscribers have received."""


class BroadcastDriver(SpoolingDriver):
    delivery = Delivery.BROADCAST

    def __init__(self, opening: InitialState) -> None:
        super().__init__(opening)
        self._behind = 0
        """The number of its channels that do not follow (see `BroadcastChannel.follows`) and were not left
        behind.
        """
        self._backpressure = Backpressure(self, self._channels)
        self.route.owner = self
        self._aim()

    def _open(self, subscriber: Subscriber, replay: Replay, priority: int) -> BroadcastChannel:
        """Open a channel for a subscriber. Raise Refused when the topic cannot be replayed from there."""
        channel = BroadcastChannel(self, subscriber, self._start(replay))
        self._channels[channel] = None
        self.fell_behind()
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
            if channel.follows:
                channel.stop_following(self.next_id)
            elif channel.is_left:
                self._absent -= 1
            else:
                self._behind -= 1
            self._aim()
        if not self._channels:
            self.tail.clear()  # as in `_keep`: no subscriber will need it from memory
            self._channels.clear()  # an empty dict keeps its table, as large as it ever was
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
        channels = self._active() if self._absent else self._channels
        for channel in channels:
            if channel.follows:
                channel.stop_following(first)
            channel.subscriber.wake()
        self._behind = len(channels)
        if self.writer is None:
            self.route.close()

    def routed(self, first: int, blocks: Sequence[Block]) -> None:
        """Make messages that were routed to the store available to subscribers. Without `blocks` they are in
        the store only, from this id on: there was no subscriber when their commit began.
        """
        for block in blocks:
            self._keep(block)
        if not blocks:
            self._left_to_store(first)

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
        if self._behind or following > self.reserved or self.writer is not None or self.deleted:
            return False
        if batch.octets > LITTLE_OCTETS or not batch.count:
            return False
        channels = self._active() if self._absent else self._channels
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
            run = PushedRun(self, first, batch.count, frames, offsets)
            for channel, line in zip(channels, lines, strict=True):
                line.add(run, channel)
            self.traffic.messages_out += len(lines) * batch.count
            self.traffic.octets_out += len(lines) * batch.octets
        self.next_id = following
        self.traffic.messages_in += batch.count
        self.traffic.octets_in += batch.octets
        return True

    def caught_up(self) -> None:
        self._behind -= 1
        self._aim()

    def fell_behind(self) -> None:
        self._behind += 1
        self._aim()

    def _aim(self) -> None:
        """Open the route, for the compiled codec and for `try_push`: to the subscribers of a transient topic
        when all of them have everything, and always to the store of a persistent one.
        """
        channels = self._active() if self._absent else self._channels
        if self.writer is not None:
            self.route.is_watched = bool(channels)
            lane = self.writer.routed.lane
            if lane is None or self.deleted or not self._may_route:
                self.route.close()
            else:
                self.route.open_store(lane)
            return
        if self._behind or self.deleted or len(channels) > MOST_FOLLOWERS:
            self.route.close()
            return
        if self.tail.octets:
            self.tail.clear()  # nobody reads it again
        outlets = {channel.outlet for channel in channels if channel.outlet is not None}
        if len(outlets) < len(channels):  # a connection has two channels: `try_push` knows how often to send
            self.route.close()
            return
        self.route.open(self.resources.lanes.to(outlets) if outlets else None)

    def fall_behind(self, outlet: Outlet, position: int) -> None:
        for channel in self._channels:
            if channel.outlet is outlet:
                channel.fall_behind(position)
                return

    def unsent(self, messages: int, octets: int) -> None:
        self.traffic.messages_out -= messages
        self.traffic.octets_out -= octets

    def most(self) -> int:
        return min(self.resources.memory.tails.share(), FRAMES_LIMIT)

    def written(self) -> None:
        """Free blocks that no subscriber needs, once a quarter of the memory of all tails is used, as
        messages are on their way. A little of it in each of many topics would push out what others wait for.
        """
        tails = self.resources.memory.tails
        if tails.used > tails.limit // 4:
            self._forget_written()

    def _forget_written(self) -> None:
        channels = self._active() if self._absent else self._channels
        self.tail.forget_below(min((channel.unwritten for channel in channels), default=self.next_id))

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

    def free(self, octets: int) -> None:
        self.publisher_queue.look()

    def enqueue(self, octets: int, admitted: Callable[[], None]) -> WaitingPublisher:
        was_wanted = self.publisher_queue.is_wanted
        waiting_publisher = super().enqueue(octets, admitted)
        if self.publisher_queue.is_wanted and not was_wanted:
            self._backpressure.watch()
        return waiting_publisher

    def end(self) -> None:
        cancelled = list(self._cancelled)
        super().end()
        for channel in cancelled:
            channel.close()
            channel.subscriber.ended(EndReason.DELETED)
