"""A topic whose subscribers compete for its messages: which messages wait, which are assigned, and which are
done.

A message is *outstanding* from the time it is assigned to a subscriber until it is done: for a plain
subscriber when it is written to the socket, for one with credit when it is settled
(omq.drivers.round_robin_channel has the states between). When a subscriber leaves, its outstanding messages
wait again. The topic's position is the next id to assign and the ids below it that are not done, with how
often each was delivered.
"""

import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import assert_never

from omq.drivers.driver import Driver, InitialState
from omq.drivers.holdings import Holdings
from omq.drivers.pieces import Pieces
from omq.drivers.publisher_queue import RoomAnswer
from omq.drivers.reasons import Reason, Refused
from omq.drivers.retirement import Retirement
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import EndReason, Subscriber
from omq.drivers.settling import Settling
from omq.drivers.shared_window import SharedWindow
from omq.drivers.signal import Signal
from omq.drivers.slices import Slices, let_go
from omq.drivers.takers import Takers
from omq.drivers.undone import UndoneMessages
from omq.drivers.unsettled import number_of, ranges
from omq.drivers.wait_graph import Room
from omq.logs import LogThrottle, quoted
from omq.model import Delivery, FromBeginning, FromCurrent, FromMessage, Replay
from omq_storage.blocks import Block
from omq_storage.environment import Position
from omq_storage.runs import ReturnedIds, Run

FREE_OCTETS = 16 << 10
"""The octets that an empty transient topic accepts even if the memory for waiting messages is used up."""

_NO_REPLAY = "a round-robin topic cannot be replayed"

log = logging.getLogger("omq.round_robin")


class CompetingDriver(Driver):
    """One topic, without the task that assigns messages to subscribers: `_signal` wakes it."""

    delivery = Delivery.ROUND_ROBIN

    def __init__(self, opening: InitialState) -> None:
        super().__init__(opening)
        position = opening.position
        if position is None:
            position = Position(self.extent.oldest(self.next_id), ())
        self.saved_position = opening.position
        self.saved_lowest = 0 if opening.position is None else opening.position.lowest
        """All messages below this id are done according to the saved position."""
        self._moves = 0
        """A number that grows when messages are assigned, settled or returned."""
        self.assigned = 0
        """The number of messages that the channels have, and that are not done."""
        self.deleted_below = 0
        """The id up to which housekeeping has deleted messages that are done."""
        self._note_move()
        self._passing: list[RoundRobinChannel] = []
        """The channels to whose connections the codec gives new messages, in turn: see
        `omq.drivers.routed_queue`. Nothing else assigns any meanwhile.
        """
        self._cursor = min(position.cursor, self.next_id)
        self._returned = ReturnedIds()
        # Set aside: undeliverable to every subscriber that has room.
        self._aside = ReturnedIds()
        self._retirement = Retirement()
        self._counted = 0  # octets of the share for the ids that these hold
        self._searches: list[UndoneMessages] = []
        in_order = sorted(position.undone)  # so that many become one run
        self._return(below for run in in_order if (below := run.below(self._cursor)) is not None)
        self._undealt = max(0, self.extent.messages - opening.stored_before_cursor)
        # Thousands of them may leave together.
        self._channels: OrderedDict[RoundRobinChannel, None] = OrderedDict()
        self._finishing: set[RoundRobinChannel] = set()
        self._cancelled: set[RoundRobinChannel] = set()  # some of those
        self._draining: set[RoundRobinChannel] = set()
        self._selective: set[RoundRobinChannel] = set()  # those to which some messages are undeliverable
        self._ordered: set[RoundRobinChannel] = set()  # those that give messages in an order with others
        # As for the objects that each topic owns: see `Driver.__init__`.
        this = weakref.proxy(self)
        self._takers = Takers(self.resources.memory.unconfirmed, lambda window: this.window_freed(window))
        self._signal = Signal()
        self._holdings = Holdings()
        self._settling = Settling()
        self._held = 0
        self._rejected = LogThrottle(log, logging.WARNING, "rejections", topic=self.topic.topic)

    @property
    def _cursor(self) -> int:
        """The id from which on no message is assigned. It follows the codec while that assigns new messages,
        until somebody sets it: this ends the routing.
        """
        return self.route.next_id if self._passing else self._assigned_below

    @_cursor.setter
    def _cursor(self, cursor: int) -> None:
        self._assigned_below = cursor
        if self._passing:
            self._passing = []
            self.route.close()

    # -- channels ------------------------------------------------------------------------------------------

    def _open(self, subscriber: Subscriber, replay: Replay, priority: int) -> RoundRobinChannel:
        """Open a channel. Raises Refused for any replay: messages that are done are gone."""
        match replay:
            case FromBeginning() | FromMessage():
                raise Refused(Reason.NO_REPLAY, _NO_REPLAY)
            case FromCurrent():
                channel = self._channel(subscriber)
            case _:
                assert_never(replay)
        self._channels[channel] = None
        self._takers.add(channel, priority)
        self._signal.set()
        self.publisher_queue.look()
        return channel

    def _channel(self, subscriber: Subscriber) -> RoundRobinChannel:
        share = self.resources.memory.unconfirmed
        return RoundRobinChannel(self, subscriber, share, is_stored=self.is_persistent)

    def pieces(self, message: int) -> Pieces:
        """Return the reader of a message that is not in memory."""
        return Pieces(self, message)

    def check_replay(self, first: int) -> None:
        raise Refused(Reason.NO_REPLAY, _NO_REPLAY)

    def subscribers(self) -> Iterable[tuple[RoundRobinChannel, Subscriber]]:
        return ((channel, channel.subscriber) for channel in self._channels)

    def channels(self) -> list[RoundRobinChannel]:
        # In the order of the table, which is the same: an iterator of an OrderedDict looks up each next key.
        return [*dict.keys(self._channels), *self._finishing]

    def subscriber_count(self) -> int:
        return len(self._channels) + len(self._finishing) - len(self._cancelled)

    def has_taker(self) -> bool:
        return bool(self._ask(1)) or self._has_unasked()

    def _ask(self, most: int) -> list[RoundRobinChannel]:
        """Return the first N (`most`) subscribers with room that get the next messages. If there is none
        among those that it asked, `_has_unasked` tells whether there may be others.
        """
        return self._takers.able(most)

    def _has_unasked(self) -> bool:
        return self._takers.has_unasked()

    def follows(self, channel: RoundRobinChannel) -> None:
        """Note whether a channel gives its messages in an order together with others."""
        if channel.is_following:
            self._ordered.add(channel)
        else:
            self._ordered.discard(channel)

    def finishing(self, channel: RoundRobinChannel) -> None:
        """Assign nothing more to a channel; it keeps its messages."""
        if channel in self._channels:
            self._remove(channel)
            self._finishing.add(channel)

    def retiring(self, channel: RoundRobinChannel) -> None:
        """Assign nothing more to a channel that will be closed soon, as others at the same time. It keeps its
        messages, and still counts as a consumer.
        """
        if channel in self._channels:
            self._remove(channel)
            self._finishing.add(channel)
        self._retirement.channels.add(channel)

    def _remove(self, channel: RoundRobinChannel) -> None:
        if channel in self._channels:
            del self._channels[channel]
            self._takers.remove(channel)
        if not self._channels:
            self._channels.clear()  # it keeps the memory of all that it had otherwise

    def has_consumers(self) -> bool:
        return bool(self._channels) or len(self._finishing) > len(self._cancelled)

    def cancelled(self, channel: RoundRobinChannel) -> None:
        """Deal nothing more to a channel that was cancelled; it keeps its unsettled messages."""
        self.finishing(channel)
        if channel in self._finishing:  # not if it was closed before
            self._cancelled.add(channel)
        self._left(channel)

    def closed(self, channel: RoundRobinChannel, outstanding: Iterable[Run]) -> None:
        """Assign the outstanding messages of a channel that ended to others, as `gave_back` does."""
        self._remove(channel)
        for others in (self._finishing, self._cancelled, self._draining, self._selective, self._ordered):
            others.discard(channel)
        self.gave_back(channel, outstanding)
        self._left(channel)

    def suspending(self, channel: RoundRobinChannel) -> bool:
        """Note that a channel gives messages back soon, as others do. Return False if it retired."""
        if channel in self._retirement.channels:
            return False
        self._retirement.channels.add(channel)
        return True

    def gave_back(self, channel: RoundRobinChannel, messages: Iterable[Run]) -> None:
        """Assign the messages of a channel to others: if it retired, or was suspended, when all such channels
        are closed, or have given theirs back.
        """
        retirement = self._retirement
        if channel not in retirement.channels:
            self.returned(messages)
        elif retirement.gave_back(channel, messages):
            self.returned(retirement.take())
        else:
            self._note_move()
            self._count()

    def gave_part_back(self, messages: Iterable[Run]) -> None:
        """Take some messages of a channel that is suspended. The others follow by `gave_back`."""
        self._retirement.add(messages)
        self._note_move()
        self._count()

    # -- messages that wait again, or are done -------------------------------------------------------------

    def returned(self, messages: Iterable[Run]) -> None:
        """Assign these messages again."""
        self._note_move()
        if not self.deleted:
            self._return(messages)
        self._signal.set()

    def _return(self, messages: Iterable[Run]) -> None:
        if self._searches:
            messages = list(messages)
            for search in self._searches:
                search.add_moved(messages)
        self._returned.add(messages)
        self._count()

    def _count(self) -> None:
        """Count the memory of the ids that will be assigned again."""
        more = self._returned.octets + self._aside.octets + self._retirement.octets - self._counted
        self._counted += more
        self.resources.memory.unconfirmed.change(more)

    def can_take(self, channel: RoundRobinChannel | None = None) -> None:
        """Deal messages to a subscriber that has room again, or has settled messages. Without one, to some
        of those that share a window.
        """
        if channel is not None and not channel.is_asked and channel in self._channels:
            self._takers.come_back(channel)
        self._note_move()
        is_undealt = self._is_undealt()
        if is_undealt or self._aside or self._draining:
            self._signal.set()
        if not is_undealt:
            self.publisher_queue.look()

    def cannot_take(self, channel: RoundRobinChannel) -> None:
        """Deal nothing to a subscriber until it has room again."""
        self._takers.leave(channel)

    def window_freed(self, window: SharedWindow) -> None:
        """Deal messages to subscribers that share a window with room."""
        self._takers.window_freed(window)
        self.can_take()

    def may_have(self, channel: RoundRobinChannel) -> bool:
        """Return whether there is a message now for a subscriber with room."""
        if channel in self._finishing:
            return False
        return self._is_undealt() or channel.undealt < len(self._aside)

    def done(self, ids: range) -> None:
        """Free messages of one block that are done."""
        for channel in self._selective:
            channel.forget(ids)
        if self.writer is None and not self.deleted:
            self.free(self._holdings.done(ids.start, len(ids)))

    def settled(self, messages: Sequence[Run]) -> None:
        """Settle messages that are done. If they are many, the dealer settles most of them."""
        self._note_move()
        if len(messages) > 1 or self._settling or self._settles_by_range:
            self._settling.add(messages)
        else:
            for run in messages:
                self._settle(run)
        self._release()

    def _settle(self, run: Run) -> None:
        """Note messages of any blocks as done. `_release` must follow."""
        if self._selective:
            for ids in ranges(run):
                for channel in self._selective:
                    channel.forget(ids)
        if not self.is_persistent and not self.deleted:
            self._holdings.settle(run)

    @property
    def _settles_by_range(self) -> bool:
        """Whether `_settle` looks at each range of a run."""
        return bool(self._selective)

    def _release(self) -> None:
        """Free some of the memory of messages that are done. The dealer frees the rest."""
        if self._settling:
            for run in self._settling.take(self._settles_by_range):
                self._settle(run)
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

    # -- room for posts ------------------------------------------------------------------------------------

    @property
    def room(self) -> Room | None:
        return None if self.is_persistent else self

    @property
    def is_wanted(self) -> bool:
        return self.publisher_queue.is_wanted

    @property
    def are_all_assigned(self) -> bool:
        are_settled = not self._is_releasing() and self._unsettled() == self.assigned
        return are_settled and not self.ready and not self.publisher_queue.admitted

    @property
    def wants_memory(self) -> bool:
        return self.resources.memory.publisher_queues.has(self.publisher_queue)

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
        if not self._held and octets <= FREE_OCTETS:
            # Every topic may have a few octets, however much others hold.
            waiting.force(octets)
            memory.waits.holders[self] = None
            self._held = octets
            return RoomAnswer.TAKEN
        # Outstanding messages of busy workers do not keep new messages from idle workers.
        is_undealt = self._is_undealt() or self.publisher_queue.admitted > 0
        is_wanted = not is_undealt and self.has_taker()
        too_much = not is_wanted and self._held + octets > self._most_held()
        if not self._held and is_wanted and waiting.used < 2 * waiting.limit:
            waiting.force(octets)  # within limits, a batch for a worker
        elif self._held and too_much:
            return RoomAnswer.TOPIC_FULL
        elif (memory.publisher_queues and not in_turn) or not waiting.try_take(octets):
            return RoomAnswer.ALL_FULL if is_wanted and not self._held else RoomAnswer.MEMORY_FULL
        if not self._held:
            memory.waits.holders[self] = None
        self._held += octets
        return RoomAnswer.TAKEN

    def _most_held(self) -> int:
        """Return the octets of the share that the topic may have while no worker is idle."""
        return self.resources.memory.waiting_octets

    def _is_undealt(self) -> bool:
        return self._cursor < self.route.next_id or bool(self._returned)

    def _invite(self) -> None:
        """Admit a waiting publisher when all messages are assigned."""
        if not self._is_undealt():
            self.publisher_queue.look()

    def free(self, octets: int) -> None:
        if octets:
            self._held -= octets
            if not self._held:
                self.resources.memory.waits.holders.pop(self, None)
            self.resources.memory.waiting.give(octets)
            if octets > 0:
                self.publisher_queue.freed()

    def _force(self, octets: int) -> None:
        """Count octets even if there is no room for them."""
        self.resources.memory.waiting.force(octets)
        self.resources.memory.waits.holders[self] = None
        self._held += octets

    def _hold(self, block: Block) -> None:
        """Keep the newest block of a transient topic."""
        self._holdings.append(block)

    # -- the rest ------------------------------------------------------------------------------------------

    def position_without_undone(self) -> Position | None:
        """Return the position if all messages below the cursor are done; None if it must be searched for."""
        if self._returned or self._unsettled() or self._aside or self._settling:
            return None
        return Position(self._cursor, ())

    async def position(self) -> Position:
        """Return the position, with the messages that are not done: housekeeping writes it to the store now
        and then. See `UndoneMessages` for what happens while this waits between its slices.
        """
        slices = Slices()
        cursor, undone = self._cursor, UndoneMessages(self._cursor, self._returned.runs())
        self._searches.append(undone)
        try:
            for channel in let_go(self.channels()):
                undone.add_outstanding(channel.outstanding())
                await slices.step()
        finally:
            self._searches.remove(undone)
        undone.add_moved(self._between_channels())
        return Position(cursor, await undone.in_slices(slices) if slices.turns else undone.at_once())

    async def _lowest_outstanding(self, slices: Slices) -> int | None:
        """Return the lowest id of the messages that channels have or had meanwhile; None if there is none."""
        moved = UndoneMessages(self._cursor, ())
        self._searches.append(moved)
        lowest: int | None = None
        try:
            for channel in let_go(self.channels()):
                lowest = _lowest(channel.outstanding(), lowest)
                await slices.step()
        finally:
            self._searches.remove(moved)
        return _lowest(chain(self._retirement.runs(), moved.at_once()), lowest)

    def _between_channels(self) -> Iterable[Run]:
        """Return the messages that are not done, that no channel has, and that are not assigned next."""
        return chain(self._aside.runs(), self._retirement.runs())

    def lowest_undone(self) -> int:
        """Return the lowest id that is not done, or the cursor."""
        waiting = chain(self._returned.runs(), self._between_channels())
        runs = chain(waiting, *(channel.outstanding() for channel in self.channels()))
        return min((run.lowest for run in runs), default=self._cursor)

    @property
    def ready(self) -> int:
        """The number of messages that are stored and not assigned to a subscriber."""
        return self._undealt + len(self._returned) + len(self._aside)

    def mark(self) -> tuple[int, ...]:
        """See `Driver.mark`."""
        return (*super().mark(), self.ready, self._moves)

    def _unsettled(self) -> int:
        return self.assigned + len(self._retirement)

    def _note_move(self) -> None:
        """Note that messages were assigned, settled or returned: housekeeping saves the position."""
        self._moves += 1
        if self.writer is not None and self not in self.writer.changed_positions.drivers:
            self.writer.changed_positions.add(self)

    def _kept(self) -> tuple[int, int, int, int]:
        last = self.next_id - 1
        if not self.is_persistent:
            held = self._holdings
            oldest = self.next_id if held.first is None else held.first
            undone = 0 if self.deleted else held.messages - self._settling.messages
            return undone, held.octets + held.spooled + held.spilled, oldest if last else 0, last
        undone = self.ready + self._unsettled()
        _, octets, first, _ = super()._kept()
        if not undone:  # the rest of done work is about to be deleted
            return 0, 0, self.next_id if last else 0, last
        return undone, octets, first, last

    def end(self) -> Iterator[None]:
        yield from super().end()
        while self._finishing:
            channel = next(iter(self._finishing))
            channel.close()
            channel.subscriber.ended(EndReason.DELETED)
            yield
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


def _lowest(messages: Iterable[Run], known: int | None) -> int | None:
    """Return the lowest id of these messages and of the one that is known, if there is any."""
    lowest = min((run.lowest for run in messages), default=known)
    return lowest if known is None or lowest is None else min(lowest, known)
