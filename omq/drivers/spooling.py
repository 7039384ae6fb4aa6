"""A broadcast topic that spools if it is transient: blocks for which the memory has no room move to the spool
(see `omq.drivers.spooler`), and long messages go there as they arrive (see `omq.drivers.spooled_uploads`).
"""

import weakref
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

import trio

from omq.drivers.broadcast_channel import BroadcastChannel, CursorDriver
from omq.drivers.driver import InitialState
from omq.drivers.producers import PostProducers
from omq.drivers.publisher_queue import WaitingPublisher
from omq.drivers.reasons import Refused
from omq.drivers.seam import Unavailable
from omq.drivers.sequences import Origin
from omq.drivers.slices import Slices, let_go
from omq.drivers.spoolable import SpoolExtent, StallWatch
from omq.drivers.spooled import Spooled
from omq.drivers.spooled_bodies import SpooledBody
from omq.drivers.spooled_topics import SpooledTopic
from omq.gap_reasons import TOO_SLOW
from omq_storage.blocks import Block
from omq_storage.fragments import Uploaded
from omq_storage.lookup import VerifiedBlock
from omq_storage.pieces import LargeMessage


class SpoolingDriver(SpooledTopic, CursorDriver):
    """One topic."""

    def __init__(self, opening: InitialState) -> None:
        super().__init__(opening)
        self._channels: dict[BroadcastChannel, None] = {}
        self._cancelled: set[BroadcastChannel] = set()
        self._absent = 0
        """The number of its channels that were left behind: see `BroadcastChannel.is_left`."""
        self._spooled: Spooled | None = None
        """None until something is spooled."""
        if not self.is_persistent:
            self.tail.topic = weakref.ref(self)

    # -- for its channels ----------------------------------------------------------------------------------

    @property
    def has_spooled(self) -> bool:
        return bool(self._spooled)

    def is_spooled(self, position: int) -> bool:
        return self._spooled is not None and self._spooled.covers(position)

    def has_long_from(self, position: int) -> bool:
        return self._spooled is not None and self._spooled.has_long_from(position)

    def spooled_at_hand(self, position: int) -> Sequence[Block]:
        return () if self._spooled is None else self._spooled.at_hand(position)

    def first_after(self, position: int) -> int:
        found = [self.tail.first_after(position)]
        if self._spooled is not None:
            found.append(self._spooled.first_after(position))
        return min((first for first in found if first is not None), default=self.next_id)

    def left_behind(self, channel: BroadcastChannel) -> None:
        self._absent += 1
        self._look_crowded()
        self.caught_up(channel)

    def came_back(self, channel: BroadcastChannel) -> None:
        self._absent -= 1
        self._look_crowded()
        self.fell_behind(channel)

    @abstractmethod
    def _look_crowded(self) -> None:
        """Set `is_crowded`, because the number of channels has changed."""

    def _active(self) -> Collection[BroadcastChannel]:
        """Return the channels that were not left behind."""
        return [channel for channel in self._channels if not channel.is_left]

    # -- for the spooler -----------------------------------------------------------------------------------

    def to_spool(self, octets: int, excess: int, watch: StallWatch, *, whole: bool) -> Sequence[Block]:
        needed = self._needed(watch)
        paces = (each.position for each in self._active() if not each.is_stalled())
        end = self.next_id if whole else max(paces, default=self.next_id)
        if needed < end:
            self.tail.forget_below(needed)
            return self.tail.before(end, octets)
        unneeded = self.tail.before(needed, excess)
        if unneeded:
            self.tail.forget_below(unneeded[-1].next)
        return ()

    async def leave_behind(self, watch: StallWatch) -> None:
        slices = Slices()
        for channel in let_go(list(self._active())):
            await slices.step()
            if channel.is_left or channel not in self._channels:
                continue  # meanwhile
            if channel.position < self.next_id and not watch.moves(channel):
                channel.leave_behind()

    def is_waited_for(self, watch: StallWatch) -> bool:
        return any(
            channel.unwritten < self.next_id and not channel.is_stalled() and watch.moves(channel)
            for channel in self._active()
        )

    def last_spooled(self) -> SpoolExtent | None:
        return None if self._spooled is None else self._spooled.last

    def spooled(self, extents: Sequence[SpoolExtent], before: SpoolExtent | None) -> bool:
        end = extents[-1].next
        if self.deleted or all(channel.unwritten >= end for channel in self._active()):
            return False
        self._own_spooled().add(extents, before)
        self.tail.forget_below(end)
        return True

    def _own_spooled(self) -> Spooled:
        """Return its messages on the spool."""
        if self._spooled is None:
            self._spooled = Spooled(self.resources.spool, self.topic.id)
        return self._spooled

    def forget_spooled(self, watch: StallWatch, *, is_full: bool) -> bool:
        if self._spooled is None:
            return False
        begun: set[int] = set()
        if not is_full:
            channels = chain(self._channels, self._cancelled)
            begun.update(channel.begun for channel in channels if channel.begun is not None)
        self._spooled.forget_below(self._needed(watch), begun)
        return bool(self._spooled)

    def _needed(self, watch: StallWatch) -> int:
        """Return the id from which on subscribers that move need messages: the next one when none moves."""
        # There may be thousands, and to see whether one moves takes long: nearly always the first one does.
        for channel in sorted(chain(self._active(), self._cancelled), key=_unwritten):
            if channel.unwritten >= self.next_id:
                break
            if watch.moves(channel):
                return channel.unwritten
        return self.next_id

    # -- long messages: see omq.drivers.spooled_uploads ----------------------------------------------------

    @property
    def keeps_long(self) -> bool:
        return self.subscriber_count() > 0

    @property
    def waits_for_workers(self) -> bool:
        return False

    async def post_spooled(
        self,
        uploaded: Uploaded,
        body: SpooledBody | None,
        head: bytes,
        origin: Origin | None,
        producers: PostProducers,
    ) -> None:
        """See `SpooledTopic.post_spooled`. Wait until the fastest subscriber has the messages before it. None
        of these fails while the topic exists, so the producers do not matter.
        """
        await self._reserve_id()
        waiting_publisher = await self._admitted()
        try:
            await self._reserve_id()  # others may have used the ids up
        except BaseException:
            self.publisher_queue.leave(waiting_publisher)
            raise
        self.publisher_queue.go_on(waiting_publisher)
        try:
            self._take_long(uploaded, body, head, origin)
        finally:
            self.free(0)  # the next publisher is admitted

    async def _admitted(self) -> WaitingPublisher:
        """Wait in turn with other publishers. Raise Refused."""
        admitted = trio.Event()
        waiting_publisher = self.enqueue(0, admitted.set)
        try:
            if not waiting_publisher.is_admitted:
                await admitted.wait()
            if self.deleted:
                raise Refused.of(self.gone)
        except BaseException:
            self.publisher_queue.leave(waiting_publisher)
            raise
        return waiting_publisher

    def _take_long(
        self, uploaded: Uploaded, body: SpooledBody | None, head: bytes, origin: Origin | None
    ) -> None:
        if origin is not None and not self._is_new(origin):
            if body is not None:
                body.drop()
            return
        message = uploaded.message(self.topic.id, self.next_id, self.now(), head)
        self._count_in(message)
        if body is None and self._channels:
            return  # they came after its beginning, so they get nothing of it: it takes no id
        self.next_id = message.next
        if body is None or len(self._channels) == self._absent:
            self.tail.clear()
            if body is not None:
                body.drop()
            return
        self.tail.leave_out(message.first)
        self._own_spooled().add_long(message, body)
        self.resources.spool.keeps(self)
        self._wake_all(message.first)

    @abstractmethod
    def _wake_all(self, first: int) -> None:
        """Wake the subscribers: there is a new message with this id, which was not pushed to any of them."""

    # -- reading: see omq.drivers.driver -------------------------------------------------------------------

    async def replay(
        self, position: int, octets: int, largest: int | None = None
    ) -> list[VerifiedBlock] | Unavailable:
        if self._spooled is None:
            return await super().replay(position, octets, largest)
        if not self._spooled.covers(position):  # it was dropped meanwhile
            return Unavailable(position, self.first_after(position) - 1, TOO_SLOW)
        return await self._spooled.replay(position, largest)

    async def look_at(self, message: int) -> LargeMessage | None:
        if self._spooled is None:
            return await super().look_at(message)
        return await self._spooled.look_at(message)

    async def read_piece(self, message: LargeMessage, begin: int, octets: int) -> bytes | None:
        if self._spooled is None:
            return await super().read_piece(message, begin, octets)
        return await self._spooled.read_piece(message, begin, octets)

    def _kept(self) -> tuple[int, int, int, int]:
        messages, octets, first, last = super()._kept()
        if self._spooled is None or self._spooled.first is None:
            return messages, octets, first, last
        first = min(first, self._spooled.first)
        return last + 1 - first, octets + self._spooled.octets, first, last

    def end(self) -> Iterator[None]:
        yield from super().end()
        self.tail.topic = None
        if self._spooled is not None:
            self._spooled.clear()


def _unwritten(channel: BroadcastChannel) -> int:
    return channel.unwritten
