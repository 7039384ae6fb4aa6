"""A round-robin topic whose messages expire: at its head, or when they would be dealt."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import trio

from omq.drivers.alarms import Alarm
from omq.drivers.dead_lettering import DeadLetteringDriver
from omq.drivers.dead_letters import Death
from omq.drivers.driver import InitialState
from omq.drivers.message_expiry import EXPIRATION, expiry, flags, now
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin import RETRY_SECONDS
from omq_storage.blocks import Block
from omq_storage.errors import DamagedBlock, StoreError
from omq_storage.fragments import Fragmented
from omq_storage.runs import Run

_LOOKED_AHEAD = 64
"""The number of messages with an expiration of their own that are examined in a step, before the first of
them is dealt or expires.
"""


class ExpiringDriver(DeadLetteringDriver):
    """One topic, with a time to live if its options have one."""

    def __init__(self, opening: InitialState) -> None:
        super().__init__(opening)
        self._ttl: int | None = None
        self._scanned: tuple[Block | Fragmented, int] | None = None
        self._alarm: Alarm | None = None  # to look at the head again
        self._aside_due: tuple[int, int | None, int | None] | None = None
        """The first message that was set aside, the time to live of the queue, and when it expires."""
        # Whether stored messages have an expiration is known only when they are read.
        self.is_perishable = self.extent.messages > 0

    def change(self, options: QueueOptions) -> None:
        """Give the queue options that differ in those of `CHANGEABLE` only."""
        self.options = options
        self._ttl = None if options.ttl_ms is None else options.ttl_ms * 1000
        if self._ttl is not None:
            self.is_perishable = True
            self._signal.set()

    def _keep(self, block: Block) -> None:
        if block.heads is not None and not self.is_perishable:
            self.is_perishable = bool(self._flags(block) & EXPIRATION)
        super()._keep(block)

    def _keep_large(self, message: Fragmented) -> None:
        if message.own_head and not self.is_perishable:
            self.is_perishable = bool(self._flags(message) & EXPIRATION)
        super()._keep_large(message)

    def _excess(self) -> int:
        """Return the number of the first messages that must be dropped."""
        return 0

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
        end = min(block.next, first + _LOOKED_AHEAD)
        if has_own:
            while message < end and self._is_expired(block, message, moment):
                message += 1
        if message > first:
            self._pass_over(message, Death.EXPIRED)
        if not has_own:
            return block.next
        stop = message
        while stop < end and not self._is_expired(block, stop, moment):
            stop += 1
        return stop

    def _is_expired(self, block: Block | Fragmented, message: int, moment: int | None = None) -> bool:
        due = expiry(block, message, self._ttl)
        return due is not None and due <= (now() if moment is None else moment)

    def _expire(self, messages: Sequence[Run]) -> None:
        self._dispose(Death.EXPIRED, messages)

    def _head(self) -> int | None:
        """Return the id of the message that is dealt next."""
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
            for channel in self._selective:
                channel.undealt -= channel.is_undeliverable(message)
            self._pop_aside()
            self._expire([Run(message, 1, 1, deliveries)])
            await trio.lowlevel.checkpoint()

    def _pop_aside(self) -> int:
        """Remove the lowest message that was set aside, and return its id."""
        message = self._aside.pop()
        self._count()
        self._note_move()
        return message

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
        elif excess := self._excess():
            self._pass_over(min(message + excess, block.next), Death.MAXLEN)
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

    def end(self) -> Iterator[None]:
        """See `Driver.end`."""
        yield from super().end()
        if self._alarm is not None:
            self.resources.alarms.cancel(self._alarm)
