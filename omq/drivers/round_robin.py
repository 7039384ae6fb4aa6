"""Round-robin: every message goes to exactly one subscriber, in turn (docs/PROTOCOL.md, "Round-robin").

omq.drivers.competing has which messages wait and which are done. Here is the dealer, which assigns those that
wait.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence

import trio

from omq.drivers.browsing import BrowsingChannel
from omq.drivers.competing import CompetingDriver
from omq.drivers.driver import InitialState
from omq.drivers.message_outbox import mean_octets
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import Unavailable
from omq.drivers.slices import Slices
from omq.drivers.stored_reads import READ_OCTETS
from omq.gap_reasons import ONE_NOT_KEPT, damage
from omq.logs import LogThrottle, quoted
from omq_storage.blocks import Block
from omq_storage.errors import DamagedBlock, StoreError
from omq_storage.fragments import Fragmented
from omq_storage.lookup import LargeBlock
from omq_storage.runs import Run

MOST_IN_ROUND = 256
"""The number of subscribers to which messages are assigned in one round, the next ones in another."""

MOST_DEALT = 64
"""The number of subscribers to which messages are assigned in one step, if each gets one. It takes ten
microseconds for each.
"""

MOST_IN_ORDER = 64
"""The number of messages that are assigned in one step where subscribers give them in an order together: each
is a selection of its own.
"""

MOST_RETURNED = 64
"""The number of messages of a range that are assigned again in one step."""

RETRY_SECONDS = 1.0
"""The number of seconds that the dealer waits after a failure to read the store, before it tries again."""

MOST_AT_ONCE = 64
"""The most subscribers to which a new block is assigned at once: more are work for the dealer, in turn with
other tasks.
"""

log = logging.getLogger("omq.round_robin")


class RoundRobinDriver(CompetingDriver):
    """A round-robin topic. `run` is its task, the dealer, which assigns messages to subscribers."""

    def __init__(self, opening: InitialState) -> None:
        super().__init__(opening)
        self._dealing: Block | Fragmented | None = None
        self._read_ahead: deque[Block] = deque()
        self._browsers: dict[BrowsingChannel, None] = {}
        self._gone = LogThrottle.of_problem(
            log, f"{quoted(self.topic.topic)}: not delivered", topic=self.topic.topic
        )

    def _keep(self, block: Block) -> None:
        self._undealt += block.count
        if not self.is_persistent:
            self._hold(block)
        elif self.tail.next == block.first:
            # Never drop the oldest blocks: they are assigned next. The store has the ones that do not fit.
            if self.tail.octets + block.held <= self.resources.memory.tail_octets:
                self.tail.append(block)
        elif self._cursor == block.first:
            self.tail.append(block)
        if self._cursor == block.first and not self._returned and len(self._channels) <= MOST_AT_ONCE:
            # By this task, without the wake-up of another one.
            self._deal_block(block, block.next)
            if self._cursor == block.next:
                if self.writer is not None:  # otherwise the tail is empty
                    self.tail.forget_below(self._cursor)
                if self._browsers:
                    self._signal.set()
                return
        self._signal.set()

    def _keep_large(self, message: Fragmented) -> None:
        self._undealt += 1
        self._signal.set()

    async def run(self) -> None:
        """Assign messages to subscribers that can take them, until cancelled."""
        while True:
            await self._signal.wait()
            if self._browsers:
                await self._tell_browsers()
            self._look_aside()
            while (is_dealing := self._is_undealt() and self.has_taker()) or self._is_releasing():
                self._release()
                try:
                    if not is_dealing:
                        pass
                    elif self._returned:
                        await self._deal_some_returned()
                    else:
                        await self._deal_next()
                except StoreError:
                    await self._wait_to_retry()
                await trio.lowlevel.checkpoint()
            if self.is_perishable:
                await self._watch_head()
            draining, self._draining = self._draining, set()
            self._draining |= {channel for channel in draining if channel.look_drained()}
            self.resources.memory.unconfirmed.call_when_free(self._signal)

    async def _tell_browsers(self) -> None:
        """Let browsers that are at the end look for new messages."""
        slices = Slices()
        for browser in list(self._browsers):
            browser.look()
            await slices.step()

    async def _wait_to_retry(self) -> None:
        """Wait before the store is read again after a failure. Settle meanwhile what is done: that does not
        need the store.
        """
        with trio.move_on_after(RETRY_SECONDS):
            while True:
                while self._is_releasing():
                    self._release()
                    await trio.lowlevel.checkpoint()
                await self._signal.wait()
        self._signal.set()  # for other causes that set it meanwhile

    def _are_all(self, able: list[RoundRobinChannel]) -> bool:
        """Return whether no others have room, as `_ask` returned these."""
        return self._takers.are_all(able)

    def _each_able(self) -> Iterator[RoundRobinChannel]:
        """Yield the subscribers with room, in the order in which they get messages."""
        return self._takers.each()

    def _taker(self, message: int) -> RoundRobinChannel | None:
        """Return the subscriber that gets this message next; None if none has room for it."""
        return next((each for each in self._each_able() if not each.is_undeliverable(message)), None)

    def _look_aside(self) -> None:
        """Assign the messages that were set aside when a subscriber may get some of them."""
        aside = len(self._aside)
        if aside and any(channel.undealt < aside for channel in self._takers.each()):
            self._take_from_aside()

    def _take_from_aside(self) -> None:
        for channel in self._selective:
            channel.undealt = 0
        runs = list(self._aside.runs())
        self._aside.clear()
        self._return(runs)

    def _set_aside(self) -> None:
        """Set the next message aside because no subscriber with room may get it, and continue with the
        others.
        """
        deliveries = self._returned.deliveries
        message = self._returned.pop()
        for channel in self._selective:
            channel.undealt += channel.is_undeliverable(message)
        self._aside.add([Run(message, 1, 1, deliveries)])
        self._count()

    async def _deal_some_returned(self) -> None:
        """Assign returned messages in one step while they are in memory, so that a subscriber that leaves
        after its next write has them together.
        """
        slices = Slices()
        for _ in range(MOST_DEALT):
            is_dealt = await self._deal_returned()
            if not is_dealt or not self._returned or not self._is_at_hand(self._returned.lowest):
                return
            if slices.is_over:
                return

    def _is_at_hand(self, message: int) -> bool:
        """Return whether `_find` finds this message without a read."""
        if not self.is_persistent:
            return self._holdings.find(message) is not None
        dealing = self._dealing
        if (dealing is not None and dealing.first <= message < dealing.next) or self.tail.covers(message):
            return True
        ahead = next((block for block in self._read_ahead if message < block.next), None)
        return ahead is not None and ahead.first <= message

    async def _deal_returned(self, taker: RoundRobinChannel | None = None) -> bool:
        """Assign the lowest returned message: to `taker` if there is one; else to a subscriber with room, and
        those that follow it at once, too. Return whether it was assigned.
        """
        message = self._returned.lowest
        if taker is None and not self._ask(1):
            return False
        if taker is None and self._selective and self._taker(message) is None:
            self._set_aside()
            return False
        block: Block | Fragmented | None = None
        is_damaged = False
        try:
            block = await self._find(message)
        except DamagedBlock as damaged:
            is_damaged = True
            self._report(Unavailable(message, message, damage(damaged)))
        receiver = self._taker(message) if taker is None else taker
        if receiver is None or not self._returned or self._returned.lowest != message:
            return False  # the state changed during the read: try again
        deliveries = self._returned.deliveries
        if taker is None and isinstance(block, Block) and block.first <= message and self._may_deal_ranges():
            self._deal_range_returned(receiver, block, message, deliveries)
            return True
        self._pop_returned()
        if block is not None and block.first <= message:
            if self.is_perishable and self._is_expired(block, message):
                self._expire([Run(message, 1, 1, deliveries)])
                return False
            self._deal_to(receiver, block, range(message, message + 1), deliveries)
            if taker is None:
                self._takers.turn_after(receiver)
            return True
        if not is_damaged:
            self._report(Unavailable(message, message, ONE_NOT_KEPT))
        for channel in self._selective:
            channel.forget(range(message, message + 1))
        return False

    def _may_deal_ranges(self) -> bool:
        """Return whether any subscriber may get any message, whatever the one before it was."""
        return not (self._selective or self._ordered or self.is_perishable)

    def _deal_range_returned(
        self, receiver: RoundRobinChannel, block: Block, first: int, deliveries: int
    ) -> None:
        """Assign the lowest returned message, `first`, of a block to `receiver` or to all with room, with
        those that follow it up to the first gap.
        """
        most = min(MOST_RETURNED, self._returned.together(block.next))
        able = self._ask(min(MOST_DEALT, most)) or [receiver]
        count = most
        if not self._are_all(able):  # the others are next
            count = min(count, len(able))
        if count > len(able):  # otherwise one for each is enough, and all of these have room for one
            octets = mean_octets(block)
            count = min(count, len(able) * min(channel.room(octets) for channel in able))
        self._pop_returned(count)
        for turn, channel in enumerate(able[:count]):
            self._deal_to(channel, block, range(first + turn, first + count, len(able)), deliveries)
        self._takers.turn_after(able[(count - 1) % len(able)])

    def _pop_returned(self, count: int = 1) -> int:
        """Remove the lowest N (`count`) returned messages, between which is no gap, from those that wait.
        Return the id of the first one.
        """
        message = self._returned.pop(count)
        self._count()
        self._note_move()
        return message

    async def _deal_next(self, taker: RoundRobinChannel | None = None) -> bool:
        """Assign messages from the cursor on: one to `taker` if there is one, else as many as the subscribers
        have room for. Return whether any was assigned.
        """
        # Every message below this id is either stored or lost: the store is written before the id increases.
        known = self.next_id
        cursor = self._cursor
        try:
            block = await self._find(cursor)
        except DamagedBlock as damaged:
            if self._cursor != cursor:
                return False
            # A damaged key may contain an id that was never assigned.
            last = min(damaged.last_known, known - 1)
            self._report(Unavailable(self._cursor, last, damage(damaged)))
            self._advance(max(self._cursor, last) + 1)
            return False
        if self._cursor != cursor:
            return False  # others were assigned these messages during the read
        if block is None:
            self._pass_lost(known)
            return False
        if block.first > self._cursor:
            self._cursor = block.first
        self._dealing = block
        stop = self._drop_expired(block) if self.is_perishable else block.next
        begin = self._cursor
        if taker is None:
            self._deal_block(block, stop)
        elif begin < stop:
            self._deal_to(taker, block, range(begin, begin + 1))
            self._move_cursor(begin + 1)
        self._leave_behind(block)
        return self._cursor > begin

    def _pass_lost(self, known: int) -> None:
        """Move the cursor over ids that were lost before they were durable. `known` was the next id before
        the store was read: messages from there on may have been stored during the read.
        """
        self._advance(known)
        self._undealt = self.next_id - known

    def _leave_behind(self, block: Block | Fragmented) -> None:
        """Drop the data of a block that is not needed after all of it is assigned."""
        if self._cursor == block.next:
            self._dealing = None
            self.tail.forget_below(self._cursor)
            while self._read_ahead and self._read_ahead[0].next <= self._cursor:
                self._read_ahead.popleft()

    def _advance(self, cursor: int) -> None:
        """Move the cursor over messages that are stored, or were until they were damaged."""
        self._undealt = max(0, self._undealt - (cursor - self._cursor))
        self._cursor = cursor

    def _deal_block(self, block: Block | Fragmented, stop: int) -> None:
        """Deal from the cursor up to the id `stop`, in rounds in which every subscriber that can take gets
        equally many.
        """
        index = self._cursor - block.first
        end = stop - block.first
        octets = mean_octets(block)
        dealt = 0
        # After MOST_DEALT messages other tasks have their turn, and then the dealer goes on.
        while index < end and dealt < MOST_DEALT and (able := self._ask(min(MOST_IN_ROUND, end - index))):
            count = end - index
            if not self._are_all(able):  # the others are next
                count = min(count, len(able))
            if count > len(able):  # otherwise one for each is enough, and all of these have room for one
                count = min(count, len(able) * min(channel.room(octets) for channel in able))
            if count <= len(able):
                count = min(count, MOST_DEALT)
            dealt += min(count, len(able))
            first = block.first + index
            if self._ordered and not self._ordered.isdisjoint(able):
                count = min(count, MOST_IN_ORDER)
                dealt = MOST_DEALT  # which is the last one of this step
                for turn in range(count):
                    self._deal_to(able[turn % len(able)], block, range(first + turn, first + turn + 1))
            else:
                for turn, channel in enumerate(able[:count]):
                    self._deal_to(channel, block, range(first + turn, first + count, len(able)))
            self._takers.turn_after(able[(count - 1) % len(able)])
            index += count
        self._move_cursor(block.first + index)

    def _move_cursor(self, cursor: int) -> None:
        """Move the cursor: the messages below it are assigned."""
        self._advance(cursor)
        self._note_move()
        self._invite()

    def _deal_to(
        self, channel: RoundRobinChannel, block: Block | Fragmented, ids: range, deliveries: int = 0
    ) -> None:
        """Deal messages to a channel. Leave large ones that come from a disk there until they are sent:
        however many subscribers there are, they are not all in memory.
        """
        if isinstance(block, Fragmented):
            channel.deal_large(block, block.first, deliveries)
            return
        if block.held <= READ_OCTETS or self._is_in_memory(block):
            channel.deal(block, ids, deliveries)
            return
        for message in ids:
            channel.deal_large(block, message, deliveries)

    def _is_in_memory(self, block: Block) -> bool:
        if self.is_persistent:
            return self.tail.covers(block.first)
        return self._holdings.find(block.first) is block

    async def _find(self, message: int) -> Block | Fragmented | None:
        """Return the block with a message, or the next one after it; None when the store has neither. A
        message in fragments stands for a block.
        """
        if not self.is_persistent and (held := self._holdings.find(message)) is not None:
            return held
        if self._dealing is not None and self._dealing.first <= message < self._dealing.next:
            return self._dealing
        if self.tail.covers(message):
            return self.tail.from_position(message, 1)[0]
        while self._read_ahead and self._read_ahead[0].next <= message:
            self._read_ahead.popleft()
        if not self._read_ahead or self._read_ahead[0].first > message:
            try:
                stored = await self.read(message, READ_OCTETS)
            except LargeBlock as large:
                found = large.message
                # Stored, and not known to the driver yet: `read` leaves out such messages, too.
                return None if found is None or found.first >= self.next_id else found
            self._read_ahead = deque(found.block for found in stored)
        return self._read_ahead[0] if self._read_ahead else None

    def _report(self, gone: Unavailable) -> None:
        self._gone.add(f"messages {gone.first} to {gone.last}: {gone.reason}")
        for channel in self._channels:
            channel.tell(gone)

    # -- messages that expire ------------------------------------------------------------------------------

    is_perishable = False
    """Whether messages may expire. Then the methods below are called."""

    async def _watch_head(self) -> None:
        """Expire the first messages when it is time, while no more messages can be dealt."""

    def _drop_expired(self, block: Block | Fragmented) -> int:
        """Move the cursor over messages of this block that are expired. Return up to which id the following
        ones are not, which is the cursor if none is left.
        """
        return block.next

    def _is_expired(self, block: Block | Fragmented, message: int) -> bool:
        """Return whether a message of this block is expired."""
        return False

    def _expire(self, messages: Sequence[Run]) -> None:
        """Expire messages that no longer wait to be dealt."""
