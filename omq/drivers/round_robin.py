"""Round-robin: every message goes to exactly one subscriber, in turn (docs/PROTOCOL.md, "Round-robin").

A message is *outstanding* from the time it is assigned to a subscriber until it is done: for a plain
subscriber when it is written to the socket, for one with credit when it is settled
(omq.drivers.round_robin_channel has the states between). When a subscriber leaves, its outstanding messages
are assigned to others. The topic's position is the next id to assign and the ids below it that are not done,
with how often each was delivered.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import assert_never

import trio

from omq.drivers.driver import READ_OCTETS, Driver, InitialState
from omq.drivers.entrance import RoomAnswer
from omq.drivers.holdings import Holdings
from omq.drivers.pieces import Pieces
from omq.drivers.reasons import Reason, Refused
from omq.drivers.round_robin_channel import RoundRobinChannel, mean_octets
from omq.drivers.seam import EndReason, Gone, Subscriber
from omq.drivers.settling import Settling
from omq.drivers.signal import Signal
from omq.drivers.unsettled import number_of
from omq.drivers.waits import Room
from omq.logs import LogThrottle, quoted
from omq.model import Delivery, FromBeginning, FromCurrent, FromMessage, Replay
from omq_storage.blocks import Block
from omq_storage.environment import Position
from omq_storage.errors import DamagedBlock, StoreError
from omq_storage.fragments import Fragmented
from omq_storage.lookup import LargeBlock
from omq_storage.runs import Returned, Run

RETRY_SECONDS = 1.0
"""How long the dealer waits before it tries again to read the store after a failure."""

FREE_OCTETS = 16 << 10
"""The octets that an empty transient topic accepts even if the memory for waiting messages is used up."""

MOST_AT_ONCE = 64
"""The most subscribers to which a new block is assigned at once: more are work for the dealer, in turn with
other tasks.
"""

_NO_REPLAY = "a round-robin topic cannot be replayed"

log = logging.getLogger("omq.round_robin")


class RoundRobinDriver(Driver):
    """A round-robin topic. `run` is its task, the dealer, which assigns messages to subscribers."""

    delivery = Delivery.ROUND_ROBIN

    def __init__(self, opening: InitialState) -> None:
        super().__init__(opening)
        position = opening.position
        if position is None:
            position = Position(self.extent.first if self.extent.messages else self.next_id, ())
        self.saved_position = opening.position
        self.deleted_below = 0
        """The id up to which housekeeping has deleted messages that are done."""
        self._note_move()
        self._cursor = min(position.cursor, self.next_id)
        self._returned = Returned()
        # Set aside: undeliverable to every subscriber that has room.
        self._aside = Returned()
        self._counted = 0  # octets of the share for the ids that both hold
        self._return(below for run in position.undone if (below := run.below(self._cursor)) is not None)
        self._undealt = max(0, self.extent.messages - opening.stored_before_cursor)
        self._channels: deque[RoundRobinChannel] = deque()  # in turn, the next one first
        self._finishing: set[RoundRobinChannel] = set()
        self._cancelled: set[RoundRobinChannel] = set()  # some of those
        self._draining: set[RoundRobinChannel] = set()
        self._selective: set[RoundRobinChannel] = set()  # those to which some messages are undeliverable
        self._signal = Signal()
        self._holdings = Holdings()
        self._settling = Settling()
        self._held = 0
        self._dealing: Block | Fragmented | None = None
        self._read_ahead: deque[Block] = deque()
        self._rejected = LogThrottle(log, logging.WARNING, "rejections", topic=self.topic.topic)
        self._gone = LogThrottle.of_problem(
            log, f"{quoted(self.topic.topic)}: not delivered", topic=self.topic.topic
        )

    # -- channels ------------------------------------------------------------------------------------------

    def _open(self, subscriber: Subscriber, replay: Replay, priority: int) -> RoundRobinChannel:
        """Open a channel. Raises Refused for any replay: messages that are done are gone."""
        match replay:
            case FromBeginning() | FromMessage():
                raise Refused(Reason.NO_REPLAY, _NO_REPLAY)
            case FromCurrent():
                pieces = partial(Pieces, self) if self.is_persistent else None
                share = self.resources.memory.unconfirmed
                channel = RoundRobinChannel(self, subscriber, share, pieces)
            case _:
                assert_never(replay)
        self._channels.append(channel)
        self._signal.set()
        self.entrance.look()
        return channel

    def check_replay(self, first: int) -> None:
        raise Refused(Reason.NO_REPLAY, _NO_REPLAY)

    def subscribers(self) -> Iterable[tuple[RoundRobinChannel, Subscriber]]:
        return ((channel, channel.subscriber) for channel in self._channels)

    def channels(self) -> list[RoundRobinChannel]:
        return [*self._channels, *self._finishing]

    def subscriber_count(self) -> int:
        return len(self._channels) + sum(not channel.is_cancelled for channel in self._finishing)

    def has_taker(self) -> bool:
        return any(channel.room(1) for channel in self._channels)

    def shares(self, channel: RoundRobinChannel) -> None:
        """Note whether a channel has a window that others share."""

    def finishing(self, channel: RoundRobinChannel) -> None:
        """Assign nothing more to a channel; it keeps its messages."""
        if channel in self._channels:
            self._channels.remove(channel)
            self._finishing.add(channel)

    def has_consumers(self) -> bool:
        return bool(self._channels) or not self._finishing <= self._cancelled

    def cancelled(self, channel: RoundRobinChannel) -> None:
        """Deal nothing more to a channel that was cancelled; what is unsettled is still its own."""
        self.finishing(channel)
        self._cancelled.add(channel)
        self._left(channel)

    def closed(self, channel: RoundRobinChannel, outstanding: Iterable[Run]) -> None:
        """Assign the outstanding messages of a channel that ended to others."""
        if channel in self._channels:
            self._channels.remove(channel)
        for others in (self._finishing, self._cancelled, self._draining, self._selective):
            others.discard(channel)
        self.returned(outstanding)
        self._left(channel)

    def returned(self, messages: Iterable[Run]) -> None:
        """Assign these messages again."""
        self._note_move()
        if not self.deleted:
            self._return(messages)
        self._signal.set()

    def _return(self, messages: Iterable[Run]) -> None:
        self._returned.add(messages)
        self._count()

    def _count(self) -> None:
        """Count the memory of the ids that will be assigned again."""
        more = self._returned.octets + self._aside.octets - self._counted
        self._counted += more
        self.resources.memory.unconfirmed.change(more)

    def can_take(self) -> None:
        """Deal messages to a subscriber that has room again, or has settled messages."""
        self._note_move()
        if self._is_undealt() or self._aside or self._draining:
            self._signal.set()
        self._invite()

    def may_have(self, channel: RoundRobinChannel) -> bool:
        """Return whether there is a message now for a subscriber with room."""
        if channel in self._finishing:
            return False
        return self._is_undealt() or channel.undealt < len(self._aside)

    def done(self, ids: range) -> None:
        """Free messages of one block that are done."""
        for channel in self._selective:
            channel.forget(ids)
        if not self.is_persistent and not self.deleted:
            self.free(self._holdings.done(ids.start, len(ids)))

    def settled(self, messages: Sequence[Run]) -> None:
        """Settle messages that are done. If they are many, the dealer settles most of them."""
        self._settling.add(messages)
        self._release()

    def _settle(self, ids: range) -> None:
        """Note messages of any blocks as done. `_release` must follow."""
        for channel in self._selective:
            channel.forget(ids)
        if not self.is_persistent and not self.deleted:
            self._holdings.settle(ids)

    def _release(self) -> None:
        """Free some of the memory of messages that are done. The dealer frees the rest."""
        for ids in self._settling.take():
            self._settle(ids)
        self.free(self._holdings.release())
        if self._is_releasing():
            self._signal.set()

    def _is_releasing(self) -> bool:
        """Return whether `_release` has something to do."""
        return bool(self._settling) or self._holdings.is_settling

    def rejected(self, messages: Sequence[Run]) -> None:
        """Settle and log messages that a subscriber could not process.

        All rejected messages pass here, while the topic still holds them.
        """
        count = number_of(messages)
        self.rejections += count
        lowest = min(run.lowest for run in messages)
        what = f"message {lowest} was" if count == 1 else f"{count} messages from {lowest} on were"
        self._rejected.add(f"{quoted(self.topic.topic)}: {what} rejected by a subscriber")
        self.settled(messages)

    def undeliverable(self, channel: RoundRobinChannel) -> None:
        """Record that some messages are undeliverable to this subscriber."""
        self._selective.add(channel)

    def draining(self, channel: RoundRobinChannel) -> None:
        """Notify this subscriber when it has all messages that there are now."""
        self._draining.add(channel)
        self._signal.set()

    # -- in ------------------------------------------------------------------------------------------------

    @property
    def room(self) -> Room | None:
        return None if self.is_persistent else self

    @property
    def is_wanted(self) -> bool:
        return self.entrance.is_wanted

    @property
    def wants_memory(self) -> bool:
        return self.resources.memory.entrances.has(self.entrance)

    def _take_room(self, octets: int, in_turn: bool) -> RoomAnswer:
        """Count the octets of a post if there is room for them.

        A worker is idle when it has room for messages and all messages are dealt. The share is the memory
        that the waiting messages of all topics have together.

        | topic holds | worker idle | octets of the post               | answer                              |
        |-------------|-------------|----------------------------------|-------------------------------------|
        | nothing     | yes or no   | up to FREE_OCTETS                | TAKEN, even beyond the share        |
        | nothing     | yes         | more, twice the share not spent  | TAKEN, even beyond the share        |
        | nothing     | yes         | more, twice the share spent      | ALL_FULL                            |
        | nothing     | no          | more than FREE_OCTETS            | TAKEN within the share*, MEMORY_FULL|
        | something   | yes         | any                              | TAKEN within the share*, MEMORY_FULL|
        | something   | no          | within the topic's part of it    | TAKEN within the share*, MEMORY_FULL|
        | something   | no          | beyond the topic's part of it    | TOPIC_FULL                          |

        * If the share has room for them, and it is the topic's turn or no other topic waits for the share.
        """
        memory = self.resources.memory
        waiting = memory.waiting
        # Outstanding messages of busy workers do not keep new messages from idle workers.
        is_undealt = self._is_undealt() or self.entrance.admitted > 0
        is_little = not self._held and octets <= FREE_OCTETS
        is_wanted = not is_little and not is_undealt and self.has_taker()
        too_much = not is_wanted and self._held + octets > self._most_held()
        if is_little or (not self._held and is_wanted and waiting.used < 2 * waiting.limit):
            # Every topic may have a few octets, however much others hold; and, within limits, a batch for a
            # worker.
            waiting.force(octets)
        elif self._held and too_much:
            return RoomAnswer.TOPIC_FULL
        elif (memory.entrances and not in_turn) or not waiting.try_take(octets):
            return RoomAnswer.ALL_FULL if is_wanted and not self._held else RoomAnswer.MEMORY_FULL
        if not self._held:
            memory.waits.holders[self] = None
        self._held += octets
        return RoomAnswer.TAKEN

    def _most_held(self) -> int:
        """Return how much of the share the topic may have while no worker is idle."""
        return self.resources.memory.waiting_octets

    def _is_undealt(self) -> bool:
        return self._cursor < self.next_id or bool(self._returned)

    def _invite(self) -> None:
        """Admit a waiting publisher when all messages are assigned."""
        if not self._is_undealt():
            self.entrance.look()

    def free(self, octets: int) -> None:
        if octets:
            self._held -= octets
            if not self._held:
                self.resources.memory.waits.holders.pop(self, None)
            self.resources.memory.waiting.give(octets)
            if octets > 0:
                self.entrance.freed()

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
                self.tail.forget_below(self._cursor)
                return
        self._signal.set()

    def _hold(self, block: Block) -> None:
        """Keep the newest block of a transient topic."""
        self._holdings.append(block)

    def _keep_large(self, message: Fragmented) -> None:
        self._undealt += 1
        self._signal.set()

    # -- out -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Assign messages to subscribers that can take them, until cancelled."""
        while True:
            await self._signal.wait()
            self._look_aside()
            while (is_dealing := self._is_undealt() and self.has_taker()) or self._is_releasing():
                self._release()
                try:
                    if not is_dealing:
                        pass
                    elif self._returned:
                        await self._deal_returned()
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
        self._signal.set()  # for what else it was set meanwhile

    def _able(self) -> list[RoundRobinChannel]:
        return [channel for channel in self._channels if channel.room(1)]

    def _takers(self, message: int) -> list[RoundRobinChannel]:
        """Return the subscribers that have room and may get this message."""
        return [
            channel for channel in self._channels if channel.room(1) and not channel.is_undeliverable(message)
        ]

    def _look_aside(self) -> None:
        """Assign the messages that were set aside when a subscriber may get some of them."""
        aside = len(self._aside)
        if aside and any(channel.undealt < aside and channel.room(1) for channel in self._channels):
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

    async def _deal_returned(self, taker: RoundRobinChannel | None = None) -> bool:
        """Assign the lowest returned message: to `taker` if there is one, else to a subscriber with room.
        Return whether it was assigned.
        """
        message = self._returned.lowest
        if taker is None and self._selective and not self._takers(message):
            self._set_aside()
            return False
        block: Block | Fragmented | None = None
        damage: str | None = None
        try:
            block = await self._find(message)
        except DamagedBlock as damaged:
            damage = f"the store is damaged there ({damaged.why})"
            self._report(Gone(message, message, damage))
        takers = self._takers(message) if taker is None else [taker]
        if not takers or not self._returned or self._returned.lowest != message:
            return False  # the state changed during the read: try again
        deliveries = self._returned.deliveries
        self._pop_returned()
        if block is not None and block.first <= message:
            if self.is_perishable and self._is_expired(block, message):
                self._expire([Run(message, 1, 1, deliveries)])
                return False
            self._deal_to(takers[0], block, range(message, message + 1), deliveries)
            if taker is None:
                self._turn_after(takers[0])
            return True
        if damage is None:
            self._report(Gone(message, message, "it is no longer kept"))
        for channel in self._selective:
            channel.forget(range(message, message + 1))
        return False

    def _pop_returned(self) -> int:
        """Remove the lowest returned message from those that wait to be dealt, and return its id."""
        message = self._returned.pop()
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
            last = damaged.first if damaged.last is None else damaged.last
            last = min(last, known - 1)  # a damaged key may contain an id that was never assigned
            self._report(Gone(self._cursor, last, f"the store is damaged there ({damaged.why})"))
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
        """Drop what is needed no more when all of a block is assigned."""
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
        while index < end and (able := self._able()):
            count = end - index
            if count > len(able):  # otherwise one for each is enough, and all of these have room for one
                count = min(count, len(able) * min(channel.room(octets) for channel in able))
            for turn, channel in enumerate(able[:count]):
                first = block.first + index
                self._deal_to(channel, block, range(first + turn, first + count, len(able)))
            self._turn_after(able[(count - 1) % len(able)])
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
        """Deal messages to a channel. Leave large ones that come from the store there until they are sent:
        however many subscribers there are, they are not all in memory.
        """
        if isinstance(block, Fragmented):
            channel.deal_large(block, block.first, deliveries)
            return
        if not self.is_persistent or block.held <= READ_OCTETS or self.tail.covers(block.first):
            channel.deal(block, ids, deliveries)
            return
        for message in ids:
            channel.deal_large(block, message, deliveries)

    def _turn_after(self, channel: RoundRobinChannel) -> None:
        self._channels.rotate(-1 - self._channels.index(channel))

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
                # Stored, and not seen yet: as what `read` leaves out.
                return None if found is None or found.first >= self.next_id else found
            self._read_ahead = deque(found.block for found in stored)
        return self._read_ahead[0] if self._read_ahead else None

    def _report(self, gone: Gone) -> None:
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

    # -- the rest ------------------------------------------------------------------------------------------

    def position(self) -> Position:
        """Return what is done and what is not: housekeeping writes it to the store now and then."""
        undone = [*self._returned.runs(), *self._aside.runs()]
        for channel in (*self._channels, *self._finishing):
            undone += channel.outstanding()
        return Position(self._cursor, tuple(sorted(undone)))

    @property
    def ready(self) -> int:
        """The number of messages that are stored and not assigned to a subscriber."""
        return self._undealt + len(self._returned) + len(self._aside)

    def mark(self) -> tuple[int, ...]:
        """See `Driver.mark`."""
        return (*super().mark(), self.ready, self._unsettled())

    def _unsettled(self) -> int:
        return sum(channel.outstanding_count() for channel in (*self._channels, *self._finishing))

    def _note_move(self) -> None:
        """Ask housekeeping to save the position, which may have changed."""
        if self.writer is not None:
            self.writer.moved(self)

    def _kept(self) -> tuple[int, int, int, int]:
        last = self.next_id - 1
        if not self.is_persistent:
            held = self._holdings
            oldest = self.next_id if held.first is None else held.first
            undone = 0 if self.deleted else held.messages - self._settling.messages
            return undone, held.octets, oldest if last else 0, last
        undone = self.ready + self._unsettled()
        _, octets, first, _ = super()._kept()
        if not undone:  # what is left of done work is about to be deleted
            return 0, 0, self.next_id if last else 0, last
        return undone, octets, first, last

    def end(self) -> None:
        finishing = list(self._finishing)
        super().end()
        for channel in finishing:
            channel.close()
            channel.subscriber.ended(EndReason.DELETED)
        self._settling.add(self._returned.runs())
        self._settling.add(self._aside.runs())
        self._returned.clear()
        self._aside.clear()
        self._count()
        self.resources.memory.unconfirmed.forget(self._signal)
        self.free(self._holdings.clear())

    def free_some(self) -> bool:
        """Free some of the messages that the topic had at its end. Return whether there are more."""
        self._settling.drop()
        return self._holdings.free_some() or bool(self._settling)
