"""A queue: a round-robin topic with what AMQP asks of a queue. Every round-robin topic is one.

A topic that a Declare command makes has the default options; then nothing here does anything.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from time import monotonic

import trio

from omq.drivers.alarms import Alarm
from omq.drivers.confirmation import Confirmation
from omq.drivers.consumers import Consumers
from omq.drivers.dead_letters import DeadLetters, Death
from omq.drivers.dealt_times import DealtTimes
from omq.drivers.driver import Opening
from omq.drivers.lifetime import Ephemeral
from omq.drivers.offer import Offered
from omq.drivers.overflow import followed_by
from omq.drivers.perishing import EXPIRATION, expiry, flags, now
from omq.drivers.pieces import Pieces
from omq.drivers.queue_options import Overflow, QueueOptions
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.round_robin import RETRY_SECONDS, RoundRobinDriver
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import Channel, Gone, Subscriber
from omq.drivers.sequences import Origins, producers_of, without_repeated
from omq.drivers.sizes import Sizes, body_octets
from omq.drivers.spill import Spill
from omq.drivers.unsettled import number_of, ranges
from omq.model import Replay
from omq_storage.batches import Batch
from omq_storage.blocks import FRAME_HEADER, Block, body_octets_at_most
from omq_storage.environment import Environment, Extent, Position
from omq_storage.errors import DamagedBlock, StoreError
from omq_storage.fragments import Fragmented
from omq_storage.lookup import LargeBlock
from omq_storage.runs import Ids, Run

_LOOKED_AHEAD = 64
"""How many messages with an expiration of their own are looked at before the first of them is dealt."""


class QueueDriver(RoundRobinDriver):
    """One queue."""

    def __init__(self, opening: Opening) -> None:
        self.options = opening.options
        self._dead: DeadLetters | None = None
        self._sizes: Sizes | None = None
        self._spill: Spill | None = None
        self._is_spilling = False
        self._dealt = DealtTimes()
        super().__init__(opening)
        self._getters: set[RoundRobinChannel] = set()
        self._dealt.note(self._cursor, monotonic())
        self._consumers = Consumers(single_active=self.options.single_active)
        self._posting = 0  # messages that are accepted and not stored yet, where publishes may be rejected
        self._scanned: tuple[Block | Fragmented, int] | None = None
        self._alarm: Alarm | None = None  # to look at the head again
        self._disuse: Alarm | None = None  # to delete the queue
        self._aside_due: tuple[int, int | None, int | None] | None = None
        """The first message that was set aside, the time to live of the queue, and when it expires."""
        self._used_at = trio.current_time()
        # Whether stored messages have an expiration is known only when they are read.
        self.is_perishable = self.extent.messages > 0
        self._ttl: int | None = None
        self.change(self.options)

    def change(self, options: QueueOptions) -> None:
        """Give the queue options that differ in those of `CHANGEABLE` only."""
        self.options = options
        self._ttl = None if options.ttl_ms is None else options.ttl_ms * 1000
        self.is_perishable |= self._ttl is not None
        if options.max_octets is None:
            self._sizes = None
        elif self._sizes is None:
            self._sizes = self._stored_sizes()
        if self._ttl is not None:
            self._signal.set()
        if self._is_too_long():
            self._shorten()
        if self._disuse is not None:
            self.resources.alarms.cancel(self._disuse)
        self._time_out()

    @property
    def ready(self) -> int:
        """The number of messages that are stored and not assigned to a consumer."""
        return self._undealt + len(self._returned) + len(self._aside)

    @property
    def unacknowledged(self) -> int:
        """The number of messages that are assigned to consumers and not settled."""
        return super()._unsettled()

    def oldest_ms(self) -> int | None:
        """Return how long ago the oldest unacknowledged message was first assigned to a consumer, since the
        start of the server at most; None if there is none.
        """
        channels = (*self._channels, *self._finishing)
        lowest = min((run.lowest for channel in channels for run in channel.outstanding()), default=None)
        if lowest is None:
            return None
        self._dealt.forget_below(lowest)
        since = self._dealt.since(lowest)
        return 0 if since is None else round(1000 * (monotonic() - since))

    def used(self) -> None:
        """A client declared the queue, or asked it for a message."""
        self._used_at = trio.current_time()
        if self._disuse is None:
            self._time_out()

    def _disused_at(self) -> float | None:
        """Return when the queue is deleted unless it is used until then; None if it is not."""
        expires = self.options.expires_ms
        if expires is None or self.deleted or self.has_consumers():
            return None
        return self._used_at + expires / 1000

    def _is_disused(self) -> bool:
        due = self._disused_at()
        return due is not None and due <= trio.current_time()

    def _time_out(self) -> None:
        """Delete the queue when it has not been used for a while, if it is to be."""
        due = self._disused_at()
        if due is None:
            self._disuse = None
        elif due <= trio.current_time():
            self._disuse = None
            self.resources.unused(self, self._is_disused)
        else:
            self._disuse = self.resources.alarms.at(due, self._time_out)

    # -- in ------------------------------------------------------------------------------------------------

    def offer(self, batch: Batch, heads: Sequence[bytes] = (), origins: Origins = ()) -> Offered:
        """See `Driver.offer`. A queue may refuse the messages that exceed its length."""
        if self.options.overflow is not Overflow.REJECT_PUBLISH or not self._has_limits():
            return self._offer(batch, heads, origins)
        room = self._room_for(batch)
        if room >= batch.count:
            return self._counting(self._offer(batch, heads, origins), batch.count)
        full = Failure(Reason.OVERFLOW, "the queue has the length that it may have")
        if not room:
            raise Refused.of(full)
        part = self._offer(batch.part(0, room), heads[:room], origins[:room])
        return followed_by(self._counting(part, room), room, batch.count - room, full)

    def _offer(self, batch: Batch, heads: Sequence[bytes], origins: Origins) -> Offered:
        if self._spill is not None and self._spill.on_the_way and not self.deleted:
            return self._without_room(batch, heads, origins, batch.octets + sum(map(len, heads)))
        return super().offer(batch, heads, origins)

    def _without_room(self, batch: Batch, heads: Sequence[bytes], origins: Origins, octets: int) -> Offered:
        """See `Driver._without_room`. Queues of AMQP spill: their publishers must not wait for consumers."""
        if origins or not isinstance(self.lifetime, Ephemeral):
            return super()._without_room(batch, heads, origins, octets)
        return self.spill(batch, heads)

    def spill(self, batch: Batch, heads: Sequence[bytes] = ()) -> Offered:
        """Take messages of a transient topic over that have no room in its memory, as `offer` does, but onto
        the disk. So nothing waits for its consumers.
        """
        assert not self.is_persistent
        if self._spill is None:
            self._spill = Spill(self, self.resources.spills, self.resources.memory.posted)
        return self._spill.offer(batch, heads, batch.octets + sum(map(len, heads)))

    def hand_over(self, batch: Batch, heads: Sequence[bytes], origins: Origins, octets: int) -> None:
        """See `Driver.hand_over`. What others have on its way to the disk comes first."""
        if self._spill is None or not self._spill.on_the_way:
            super().hand_over(batch, heads, origins, octets)
            return
        self.free(octets)
        if origins:
            last = self.resources.memory.sequences.last(self.topic.id, producers_of(origins))
            batch, heads = without_repeated(batch, heads, origins, last)
            self.resources.memory.sequences.keep(self.topic.id, last)
        if batch.count:
            self._spill.force(batch, heads, octets)

    @property
    def has_spilled(self) -> bool:
        """Whether messages of a transient topic are on the disk, or were."""
        return self._spill is not None

    @property
    def environment(self) -> Environment:
        """See `Driver.environment`."""
        return super().environment if self._spill is None else self._spill.environment

    def stored(self, blocks: Sequence[Block | Fragmented], extent: Extent) -> None:
        """See `Driver.stored`. Called for a transient topic, too, when messages were spilled."""
        if self._spill is None:
            super().stored(blocks, extent)
            return
        self._is_spilling = True
        try:
            for block in blocks:
                assert isinstance(block, Block), "only a persistent topic takes fragments"
                self.next_id = block.next
                self._count_in(block)
                self._keep(block)
        finally:
            self._is_spilling = False
        self._spill.keep_deleting(self.resources.dead_letters.start)

    def _hold(self, block: Block) -> None:
        if self._is_spilling:
            self._holdings.append_on_disk(block.first, block.next, block.held)
        else:
            super()._hold(block)

    def first_on_disk(self) -> int:
        """Return an id below which no message is needed from the disk."""
        first = self._holdings.first_on_disk()
        return self.next_id if first is None else first

    def _counting(self, offered: Offered, count: int) -> Offered:
        """Count messages on their way into the queue, until they are there."""
        if isinstance(offered, Confirmation) and not offered.settled:
            self._posting += count
            offered.listen(partial(self._posted, count))
        return offered

    def _posted(self, count: int) -> None:
        self._posting -= count

    def _room_for(self, batch: Batch) -> int:
        """Return how many messages of a post the queue may still have. Those that consumers have room for do
        not count.
        """
        waiting = self.ready + self._posting
        taken = 0 if waiting else sum(channel.room(1) for channel in self._able())
        room = batch.count
        if self.options.max_length is not None:
            room = min(room, self.options.max_length - waiting + taken)
        if self._sizes is not None and self.options.max_octets is not None:
            mean = max(1, (batch.octets - FRAME_HEADER * batch.count) // batch.count)
            left = self.options.max_octets - self._sizes.octets - self._posting * mean
            # A message is taken as long as the queue is not full, as RabbitMQ does.
            room = min(room, -(-left // mean) + taken)
        return max(0, room)

    def _keep(self, block: Block) -> None:
        if block.heads is not None and not self.is_perishable:
            self.is_perishable = bool(self._flags(block) & EXPIRATION)
        if self._sizes is not None:
            self._sizes.arrived(block.first, block.count, body_octets(block))
            if self._sizes.have_grown:
                self._sizes.forget_below(self.position().lowest)
        super()._keep(block)
        if self._is_too_long():
            self._shorten()

    def _keep_large(self, message: Fragmented) -> None:
        if message.own_head and not self.is_perishable:
            self.is_perishable = bool(self._flags(message) & EXPIRATION)
        super()._keep_large(message)

    @property
    def takes_fragments(self) -> bool:
        # What the limits, the dead letters and the priorities of a queue need is in memory.
        options = self.options
        is_plain = options.dead_letter_exchange is None and options.max_priority is None
        return super().takes_fragments and is_plain and not self._has_limits()

    # -- the length ----------------------------------------------------------------------------------------

    def _has_limits(self) -> bool:
        return self.options.max_length is not None or self.options.max_octets is not None

    def _is_too_long(self) -> bool:
        length, octets = self.options.max_length, self.options.max_octets
        if self.options.overflow is not Overflow.DROP_HEAD:
            return False  # only what comes back can be too much
        if length is not None and self.ready > length:
            return True
        if octets is None or self._sizes is None or self._sizes.octets <= octets:
            return False
        return self.ready > 0

    def _shorten(self) -> None:
        """Drop the oldest messages that are ready until the queue has the length that it may have."""
        while self._is_too_long():
            if self._aside:
                self._take_from_aside()
            if self._returned:
                deliveries = self._returned.deliveries
                self._dispose(Death.MAXLEN, [Run(self._pop_returned(), 1, 1, deliveries)])
            elif self._cursor + self._undealt < self.next_id:
                # Some ids have no message: the dealer reads which.
                self.is_perishable = True
                self._signal.set()
                return
            elif self._cursor >= self.next_id:
                return  # what still counts as ready was damaged
            else:
                length = self.options.max_length
                count = 1 if length is None else max(1, self.ready - length)
                self._pass_over(self._cursor + count, Death.MAXLEN)

    def _stored_sizes(self) -> Sizes:
        """Return the sizes of the messages; those of stored ones are as the index of the store has them."""
        blocks = {block.first: (block.count, body_octets(block)) for block in self._holdings}
        first = self.extent.first if self.writer is not None else self.first_on_disk()
        while first < self.next_id:
            infos = self.environment.blocks(self.topic.id, first)
            if not infos:
                break
            for info in infos:
                if info.first < self.next_id:  # else it is stored, and arrives later
                    blocks[info.first] = (info.count, body_octets_at_most(info.count, info.bytes))
            first = infos[-1].next
        sizes = Sizes()
        for first, (count, octets) in sorted(blocks.items()):
            sizes.arrived(first, count, octets)
        sizes.octets = 0
        sizes.add(range(self._cursor, self.next_id))
        sizes.add_runs(self._returned.runs())
        sizes.add_runs(self._aside.runs())
        return sizes

    def _advance(self, cursor: int) -> None:
        if self._sizes is not None:
            self._sizes.take(range(self._cursor, cursor))
        super()._advance(cursor)
        self._dealt.note(cursor, monotonic())

    def _pop_returned(self) -> int:
        message = super()._pop_returned()
        if self._sizes is not None:
            self._sizes.take(range(message, message + 1))
        return message

    # -- messages that expire ------------------------------------------------------------------------------

    def _flags(self, block: Block | Fragmented) -> int:
        """Return the property flags of a block. It is looked at again and again while it is dealt."""
        if self._scanned is None or self._scanned[0] is not block:
            self._scanned = block, flags(block)
        return self._scanned[1]

    def _drop_expired(self, block: Block | Fragmented) -> int:
        """See `RoundRobinDriver._drop_expired`. Messages expire at the head of the queue only."""
        has_own = bool(self._flags(block) & EXPIRATION)
        if self._ttl is None and not has_own:
            return block.next
        moment = now()
        first = message = self._cursor
        if not has_own:
            assert self._ttl is not None
            expired = moment - self._ttl
            message = bisect_right(range(block.next), expired, lo=first, key=block.message_time)
        else:
            while message < block.next and self._is_expired(block, message, moment):
                message += 1
        if message > first:
            self._pass_over(message, Death.EXPIRED)
        if not has_own:
            return block.next
        stop = message
        while stop < min(block.next, message + _LOOKED_AHEAD) and not self._is_expired(block, stop, moment):
            stop += 1
        return stop

    def _is_expired(self, block: Block | Fragmented, message: int, moment: int | None = None) -> bool:
        due = expiry(block, message, self._ttl)
        return due is not None and due <= (now() if moment is None else moment)

    def _expire(self, messages: Sequence[Run]) -> None:
        self._dispose(Death.EXPIRED, messages)

    def _head(self) -> int | None:
        """Return the id of the message that is to be dealt next."""
        if self._returned:
            return self._returned.lowest
        return self._cursor if self._cursor < self.next_id else None

    async def _watch_head(self) -> None:
        """Expire messages, and drop those that are too many, as long as there are any at the head."""
        await self._watch_aside()
        while (message := self._head()) is not None and not self.deleted:
            known = self.next_id  # as in `_deal_next`
            try:
                block = await self._find(message)
            except DamagedBlock:
                return  # reported when it is dealt
            except StoreError:
                self._wake_at(trio.current_time() + RETRY_SECONDS)
                return
            if self._head() != message or not self._drop_head(block, message, known):
                break
            await trio.lowlevel.checkpoint()
        if self._ttl is None and not self.ready and not self._unsettled():
            self.is_perishable = False
        if not self.has_taker():
            self._read_ahead.clear()  # a queue that waits holds no memory

    async def _watch_aside(self) -> None:
        """Expire the first messages that were set aside: they may never be at the head again."""
        while self._aside and not self.deleted:
            message = self._aside.lowest
            if self._aside_due is None or self._aside_due[:2] != (message, self._ttl):
                ttl = self._ttl
                try:
                    block = await self.peek(message)
                except StoreError:
                    self._wake_at(trio.current_time() + RETRY_SECONDS)
                    return
                self._aside_due = message, ttl, None if block is None else expiry(block, message, ttl)
                continue  # the state may have changed during the read
            due = self._aside_due[2]
            if due is None or due > now():
                self._wake_when(due)
                return
            deliveries = self._aside.deliveries
            for channel in self._choosy:
                channel.undealt -= channel.is_undeliverable(message)
            self._aside.pop()
            self._count()
            self._note_move()
            if self._sizes is not None:
                self._sizes.take(range(message, message + 1))
            self._expire([Run(message, 1, 1, deliveries)])
            await trio.lowlevel.checkpoint()

    def _drop_head(self, block: Block | Fragmented | None, message: int, known: int) -> bool:
        """Drop the first message, or several, if it is time. Return whether to look at the next one. `known`
        was the next id before the block was read.
        """
        if block is None or block.first > message:
            if self._returned:
                self._pop_returned()  # it is not kept any more
            elif block is None:
                self._pass_lost(known)
            else:
                self._cursor = block.first
            return True
        due = expiry(block, message, self._ttl)
        is_expired = due is not None and due <= now()
        if self._returned:
            if is_expired:
                deliveries = self._returned.deliveries
                self._expire([Run(self._pop_returned(), 1, 1, deliveries)])
            return is_expired or self._wake_when(due)
        if is_expired:
            self._drop_expired(block)
        elif self._is_too_long():
            self._pass_over(message + 1, Death.MAXLEN)
        else:
            return self._wake_when(due)
        self._leave_behind(block)
        return True

    def _wake_when(self, due: int | None) -> bool:
        """Look again at this time. Return False."""
        if due is not None:
            self._wake_at(trio.current_time() + (due - now()) / 1_000_000)
        return False

    def _wake_at(self, time: float) -> None:
        if self._alarm is not None:
            if self._alarm.time <= time:
                return
            self.resources.alarms.cancel(self._alarm)
        self._alarm = self.resources.alarms.at(time, self._woken)

    def _woken(self) -> None:
        self._alarm = None
        self._signal.set()

    # -- messages on demand --------------------------------------------------------------------------------

    def open_getter(self, subscriber: Subscriber) -> RoundRobinChannel:
        """Return a channel that gets messages by `deal_one` only, and is no consumer."""
        pieces = partial(Pieces, self) if self.is_persistent else None
        getter = RoundRobinChannel(self, subscriber, self.resources.memory.unconfirmed, pieces)
        self._getters.add(getter)
        self._finishing.add(getter)
        self._cancelled.add(getter)
        return getter

    async def deal_one(self, getter: RoundRobinChannel) -> bool:
        """Assign the oldest message that is ready to a getter, whatever its credit. Return False if there is
        none. Raises omq_storage.errors.StoreError.
        """
        self.used()
        while not self.deleted and self.ready:
            if self._aside:
                self._take_from_aside()
            if self._returned:
                is_dealt = await self._deal_returned(self._returned.lowest, getter)
            else:
                is_dealt = await self._deal_next(getter)
            if is_dealt:
                if self.is_perishable:
                    self._signal.set()  # another message is at the head
                return True
        return False

    def purge(self) -> int:
        """Delete the messages that are ready. Return how many there were."""
        count = self.ready
        runs = [*self._returned.runs(), *self._aside.runs()]
        self._returned.clear()
        self._aside.clear()
        self._count()
        if runs:
            self.settled(runs)
        self._pass_over(self.next_id)
        if self._sizes is not None:
            self._sizes.octets = 0
        return count

    def _pass_over(self, cursor: int, death: Death | None = None) -> None:
        """The messages from the cursor to this id are done without having been assigned. They die, or are
        deleted.
        """
        passed = range(self._cursor, cursor)
        if not passed:
            return
        self._move_cursor(cursor)
        if self._dealing is not None and self._dealing.next <= cursor:
            self._dealing = None
        self.tail.forget_below(cursor)
        ids = Ids()
        ids.add(passed)
        if death is None:
            self.settled(ids.runs())
        else:
            self._dispose(death, ids.runs())

    # -- dead letters --------------------------------------------------------------------------------------

    def rejected(self, messages: Sequence[Run]) -> None:
        """See `RoundRobinDriver.rejected`. They become dead letters if there is an exchange for them."""
        if self.options.dead_letter_exchange is None:
            super().rejected(messages)
            return
        self.rejections += number_of(messages)
        self._dispose(Death.REJECTED, messages)

    def returned(self, messages: Iterable[Run]) -> None:
        """See `RoundRobinDriver.returned`. Messages that were returned too often are dead letters."""
        limit = self.options.delivery_limit
        if limit is not None and not self.deleted:
            runs = list(messages)
            messages = [run for run in runs if run.deliveries <= limit]
            if len(messages) < len(runs):
                self._dispose(Death.DELIVERY_LIMIT, [run for run in runs if run.deliveries > limit])
        if self._sizes is not None and not self.deleted:
            messages = list(messages)
            self._sizes.add_runs(messages)
        super().returned(messages)
        if self._sizes is not None and self._sizes.have_grown:
            self._sizes.forget_below(self.position().lowest)
        if self._is_too_long():
            self._shorten()

    def _dispose(self, death: Death, messages: Sequence[Run]) -> None:
        """These messages are done without having been accepted."""
        if self.options.dead_letter_exchange is None:
            self.settled(messages)
            return
        for ids in chain.from_iterable(map(ranges, messages)):
            for channel in self._choosy:
                channel.forget(ids)
        if self._dead is None:
            self._dead = DeadLetters(self, self.resources.dead_letters)
        self._dead.add(death, messages)

    async def block_of(self, message: int) -> Block | None:
        """Return the block with a dead letter, or None if it is not kept any more. Raises StoreError."""
        try:
            return await self._block_of(message)
        except DamagedBlock as damaged:
            self._report(Gone(message, message, f"the store is damaged there ({damaged.why})"))
            return None
        except LargeBlock as large:  # from before the queue had a dead letter exchange
            self._report(Gone(message, message, f"it has {large.octets} octets, too many for a dead letter"))
            return None

    async def peek(self, message: int) -> Block | None:
        """Return the block with a message, or None if it is not kept any more, damaged, or too large to be
        held. Raises StoreError.
        """
        try:
            return await self._block_of(message)
        except (DamagedBlock, LargeBlock):
            return None

    async def _block_of(self, message: int) -> Block | None:
        """Raises DamagedBlock, LargeBlock and StoreError."""
        if not self.is_persistent:
            held = self._holdings.find(message)
            if held is not None or self._spill is None:
                return held
        if self.tail.covers(message):
            return self.tail.from_position(message, 1)[0]
        stored = await self.read(message, 1)
        found = stored[0].block if stored else None
        return found if found is not None and found.first <= message else None

    def buried(self, messages: Sequence[Run]) -> None:
        """These messages are in their new queues, and done."""
        self.settled(messages)
        self._note_move()

    def position(self) -> Position:
        """See `RoundRobinDriver.position`. Dead letters are not done until they are in their new queues."""
        position = super().position()
        if not self._dead:
            return position
        return replace(position, undone=tuple(sorted([*position.undone, *self._dead.runs()])))

    def _unsettled(self) -> int:
        return super()._unsettled() + (0 if self._dead is None else len(self._dead))

    def end(self) -> None:
        """See `Driver.end`."""
        super().end()
        for alarm in (self._alarm, self._disuse):
            if alarm is not None:
                self.resources.alarms.cancel(alarm)
        if self._dead is not None:
            self._dead.clear()

    # -- channels ------------------------------------------------------------------------------------------

    def open(
        self, subscriber: Subscriber, replay: Replay, *, exclusive: bool = False, priority: int = 0
    ) -> Channel:
        """Open a channel for a consumer, as `Driver.open` does. Raises Refused.

        A consumer gets messages only while none with a higher priority has room for them.
        """
        channel = super().open(subscriber, replay, exclusive=exclusive)
        assert isinstance(channel, RoundRobinChannel)
        self._consumers.add(channel, priority)
        return channel

    def shares(self, channel: RoundRobinChannel) -> None:
        """See `RoundRobinDriver.shares`."""
        self._consumers.shares(channel)

    def finishing(self, channel: RoundRobinChannel) -> None:
        """See `RoundRobinDriver.finishing`."""
        super().finishing(channel)
        if self._consumers.remove(channel):
            self._signal.set()

    def may_have(self, channel: RoundRobinChannel) -> bool:
        """See `RoundRobinDriver.may_have`."""
        return self._consumers.may_have(channel) and super().may_have(channel)

    def has_taker(self) -> bool:
        """See `Driver.has_taker`."""
        return super().has_taker() if self._consumers.is_plain else bool(self._able())

    def _able(self) -> list[RoundRobinChannel]:
        able = super()._able()
        return able if self._consumers.is_plain else self._consumers.preferred(able)

    def _takers(self, message: int) -> list[RoundRobinChannel]:
        takers = super()._takers(message)
        return takers if self._consumers.is_plain else self._consumers.preferred(takers)

    def subscriber_count(self) -> int:
        return super().subscriber_count() - len(self._getters)

    def closed(self, channel: RoundRobinChannel, outstanding: Iterable[Run]) -> None:
        """See `RoundRobinDriver.closed`."""
        if self._consumers.remove(channel):
            self._signal.set()
        super().closed(channel, outstanding)
        self._getters.discard(channel)

    def _left(self, channel: Channel) -> None:
        if channel not in self._getters:  # which is no consumer
            self.used()
            super()._left(channel)
