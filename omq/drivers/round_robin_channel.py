"""One subscriber of a round-robin topic: the messages assigned to it, and which of them are not done.

A message is in one of these states; its `MessageOutbox` has those that are queued, taken or begun:

                  deal            take            written          settle
    the topic's ------> queued  ------> taken   ---------> sent ------------> done
        ^                | ^              |  |             | ^  accepted,
        |   hold, cancel,| |    written   |  | stalled     | |  rejected
        |   lower count  | +--------------+  | in its      | |
        +----------------+   of fewer        | middle      | |
        |                                    +--> begun ---+-+
        |                                           |      |
        +-------------------------------------------+------+
                  settle (released, modified), close

Without credit, a message is done when it is written. With credit, its `ChannelLimit` has every message from
its assignment (`deal`) until it is settled, in whichever state it is, so that a window limits all of them. A
client may settle a message before it is known to be sent. The outcome counts at once, although the message
may still be written. Only a message that is begun keeps its outcome until its last octet is written, because
its topic holds it until then.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from omq.drivers.channel_limit import ChannelLimit
from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.message_outbox import OUTBOX_OCTETS, MessageOutbox, mean_octets
from omq.drivers.pieces import Pieces
from omq.drivers.piecewise import Large, PiecewiseMessage
from omq.drivers.seam import (
    MOST_SELECTIONS,
    Accepted,
    CreditKind,
    Granted,
    MessageTruncated,
    Modified,
    Outcome,
    Outlet,
    Piece,
    Rejected,
    Released,
    RemainderHolder,
    Selection,
    Subscriber,
    Taken,
    Unavailable,
)
from omq.drivers.shared_window import SharedWindow
from omq.drivers.statistics import ChannelStatistics, Traffic
from omq.drivers.unconfirmed import Unconfirmed
from omq.drivers.unsettled import DeliveredIds, Unsettled, again, delivered, number_of, ranges
from omq_storage.blocks import Block
from omq_storage.fragments import Fragmented
from omq_storage.runs import Run

MOST_UNDELIVERABLE = 1_000
"""The number of waiting undeliverable messages with which a channel gets nothing until others take some."""


class Dealer(Protocol):
    """The calls from a channel to its driver."""

    traffic: Traffic
    deleted: bool
    """Whether the topic is deleted, so that nobody gets its messages."""
    assigned: int
    """The number of outstanding messages of all channels: each channel adds its own."""

    def pieces(self, message: int) -> Pieces: ...

    def can_take(self, channel: "RoundRobinChannel") -> None: ...

    def cannot_take(self, channel: "RoundRobinChannel") -> None: ...

    def may_have(self, channel: "RoundRobinChannel") -> bool: ...

    def done(self, ids: range) -> None: ...

    def settled(self, messages: Sequence[Run]) -> None: ...

    def rejected(self, messages: Sequence[Run]) -> None: ...

    def returned(self, messages: Sequence[Run]) -> None: ...

    def undeliverable(self, channel: "RoundRobinChannel") -> None: ...

    def draining(self, channel: "RoundRobinChannel") -> None: ...

    def follows(self, channel: "RoundRobinChannel") -> None: ...

    def finishing(self, channel: "RoundRobinChannel") -> None: ...

    def retiring(self, channel: "RoundRobinChannel") -> None: ...

    def cancelled(self, channel: "RoundRobinChannel") -> None: ...

    def closed(self, channel: "RoundRobinChannel", outstanding: Sequence[Run]) -> None: ...

    def suspending(self, channel: "RoundRobinChannel") -> bool: ...

    def gave_part_back(self, messages: Sequence[Run]) -> None: ...

    def gave_back(self, channel: "RoundRobinChannel", messages: Sequence[Run]) -> None: ...


class RoundRobinChannel:
    """The messages of one subscriber. Their number has no limit until the first `grant`."""

    competes = True
    flow = None

    def __init__(
        self,
        dealer: Dealer,
        subscriber: Subscriber,
        share: Unconfirmed,
        *,
        is_stored: bool,
    ) -> None:
        """Create a channel. The topic has its messages in a store (`is_stored`), or in memory until they are
        done, except for large ones.
        """
        self.subscriber = subscriber
        self._direct = subscriber.direct
        self.rest = RemainderHolder.GIVEN_AGAIN if is_stored else RemainderHolder.COUNTED
        self.traffic = dealer.traffic
        self.settles = False
        self._is_limited = False
        """Whether `_limit` limits what it gets: it settles, shares a window, or has a count for its last
        messages.
        """
        self.undealt = 0
        """The number of messages that the driver has set aside because they are undeliverable here."""
        self.is_asked = False
        """Whether the driver asks it for room in its turn: see `omq.drivers.takers`."""
        self.outlet: Outlet | None = None
        """The connection of its subscriber, where the codec may give messages to it."""
        self.after = 0
        self._dealer = dealer
        self._outbox = MessageOutbox(subscriber)
        self._limit = ChannelLimit(share)
        self._share = share
        # These two exist only when they are needed: there may be many idle channels.
        self._undeliverable: Unsettled | None = None
        self._news: deque[Unavailable] | None = None
        self._held = False
        self._is_giving_back = False
        """Whether it has given a part of its messages back since it was suspended."""
        self._cancelled = False
        self._is_completing = False
        """Whether the connection sends the rest of a message before anything else: see `begun_at_once`."""
        self._is_closing = False
        """Whether it is closed when that has ended."""

    # -- the driver's side ---------------------------------------------------------------------------------

    def room(self, frame_octets: int) -> int:
        """Return the number of messages of about this size that it can take now."""
        left = OUTBOX_OCTETS - self._outbox.octets
        if left <= 0 or self._held or self._cancelled or self._outbox.is_long:
            return 0
        room = left // frame_octets or 1
        if not self._is_limited:
            return room
        if self._undeliverable is not None and len(self._undeliverable) >= MOST_UNDELIVERABLE:
            return 0
        return self._limit.room(room, self._outbox.unsent)

    @property
    def is_even(self) -> bool:
        """Whether the codec may give messages to its connection: it has everything that it was assigned, and
        nothing limits it.
        """
        if self.outlet is None or self._is_limited or self._outbox.unsent or self._news:
            return False
        return not self._held and not self._cancelled

    def give_later(
        self, block: Block, ids: range, octets: int, begun: int | None
    ) -> Callable[[bool], None] | None:
        """Assign messages that were counted as sent to it, and were not: see `omq.drivers.push.Worker`."""
        self.traffic.messages_out -= len(ids)
        self.traffic.octets_out -= octets
        self.deal(block, ids)
        return None if begun is None else self.begun_at_once(0, begun)

    def stop_following(self) -> None:
        """Send the messages that are assigned from now on behind those that the codec has sent."""
        if self.outlet is not None:
            self.after = self.outlet.pushed

    def may_pass_on(self) -> bool:
        """Return whether `pass_on` may be called: its subscriber has written all messages, and needs to
        settle none.
        """
        if self._direct is None or self._is_limited or self._outbox.unsent or self._news:
            return False
        return not self._held and not self._cancelled and self._direct.may_send_now()

    def pass_on(self, block: Block) -> bool:
        """Let the subscriber send the only message of a block. Return False if it did not: see
        `DirectSender.send_now`.
        """
        assert self._direct is not None
        if not self._direct.send_now(block):
            return False
        self.traffic.messages_out += 1
        return True

    def deal(self, block: Block, ids: range, deliveries: int = 0) -> None:
        """Assign messages of a block, with a common step and the same number of earlier deliveries."""
        count = len(ids)
        self._outbox.add(Selection(block, ids, deliveries), count, count * mean_octets(block))
        self._dealer.assigned += count
        if self.settles:
            self._limit.add(ids, deliveries)
        self.subscriber.wake()

    def deal_large(self, block: Block | Fragmented, message: int, deliveries: int = 0) -> None:
        """Assign a large message, which is not held in memory until it is sent."""
        large = Large(message, mean_octets(block), deliveries)
        self._outbox.add(large, 1, large.octets)
        self._dealer.assigned += 1
        if self.settles:
            self._limit.add(large.ids, deliveries)
        self.subscriber.wake()

    def tell(self, gone: Unavailable) -> None:
        if self._news is None:
            self._news = deque()
        self._news.append(gone)
        self.subscriber.wake()

    def outstanding(self) -> list[Run]:
        """Return its outstanding messages as they are assigned again when the subscriber is lost: with one
        delivery more for messages that were sent, or may have been.
        """
        if not self._outbox.unsent:  # nearly all of thousands
            unsettled = self._limit.unsettled
            return delivered(unsettled.runs()) if unsettled else []
        queued = DeliveredIds()
        queued.add_all((waiting.ids, waiting.deliveries) for waiting in self._outbox.queued())
        if self.settles:
            runs, sent = self._limit.unsettled.divided(queued.runs())
        else:
            taken = DeliveredIds()
            taken.add_all((given.ids, given.deliveries) for given in self._outbox.given())
            runs, sent = queued.runs(), taken.runs()
        runs += delivered(sent)
        begun = self._outbox.begun
        if begun is not None and begun.outcome is not None:
            runs += again(begun.run, begun.outcome)
        return runs

    def outstanding_count(self) -> int:
        """Return the number of its outstanding messages."""
        if not self.settles:
            return self._outbox.unsent
        begun = self._outbox.begun
        kept = begun is not None and begun.outcome is not None and not begun.is_done
        return len(self._limit.unsettled) + kept

    def is_undeliverable(self, message: int) -> bool:
        """Return whether its subscriber declared this message undeliverable here."""
        return self._undeliverable is not None and message in self._undeliverable

    def _add_undeliverable(self, ids: range) -> None:
        if self._undeliverable is None:
            self._undeliverable = Unsettled(self._share)
        self._undeliverable.add(ids)

    def forget(self, ids: range) -> None:
        """Forget that messages were undeliverable here: they are done somewhere."""
        if self._undeliverable and self._undeliverable.take(ids):
            self._dealer.can_take(self)

    # -- the terminal's side: messages ---------------------------------------------------------------------

    def attach(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self._dealer.can_take(self)

    def ready(self) -> bool:
        return (bool(self._outbox.unsent) and self._outbox.is_ready()) or bool(self._news)

    async def take(self) -> Taken | None:
        begun = self._outbox.begun
        if begun is not None:
            return await begun.take()
        if self._news:
            news = self._news.popleft()
            self._news = self._news or None
            return news
        taken = self._outbox.take()
        return await self._take_large(taken) if isinstance(taken, Large) else taken

    def take_at_once(self, octets: int, most: int = MOST_SELECTIONS) -> Sequence[Selection]:
        return () if self._news else self._outbox.take_at_once(octets, most)

    async def _take_large(self, large: Large) -> Piece | Unavailable:
        begun = self._outbox.begin(large, self._dealer.pieces(large.message))
        try:
            return await begun.take()
        except MessageTruncated as torn:
            if self._outbox.begun is begun:  # otherwise it was closed meanwhile, and the message waits again
                self._limit.take((begun.ids,))
                self._dealer.assigned -= not begun.is_done
                self._outbox.end_begun()
                self._dealer.done(begun.ids)
                self._outbox.pass_on()
                self._freed()  # it counted in the window, and no outcome of it will come
                self._look_drained()
            return Unavailable(begun.message, begun.message, str(torn))
        except BaseException:  # cancelled, too: nothing of it was sent
            if self._outbox.begun is begun and begun.outcome is None:
                self._outbox.put_back_begun()  # it waits, and does not count as delivered once more
            raise

    def written(self, count: int, begun: int | None = None) -> None:
        """Count `count` messages of the last take as written to the socket; without credit, they are done."""
        outbox = self._outbox
        if outbox.begun is not None:
            self._written_of(outbox.begun, count, begun)
            return
        before = outbox.unsent
        written = outbox.written(count)
        self.traffic.messages_out += before - outbox.unsent
        self._limit.credit.use(before - outbox.unsent)
        if begun is not None:
            rest = outbox.begin_next()
            if rest is not None and self.rest is RemainderHolder.GIVEN_AGAIN:
                rest.pieces = self._dealer.pieces(rest.message)
                rest.pieces.begin = begun
        if not self.settles:
            for selection in written:
                self._dealer.assigned -= len(selection.ids)
                self._dealer.done(selection.ids)
        self._after_write()

    def begun_at_once(self, count: int, begun: int) -> Callable[[bool], None]:
        self._is_completing = True
        self.written(count, begun)
        return self._completed

    def _completed(self, has_left: bool) -> None:
        """Note that the rest of the message that is begun has left, or never will."""
        if not self._is_completing:
            return  # it was closed meanwhile
        self._is_completing = False
        if has_left:
            self.written(1)
        if self._is_closing:
            self.close()

    def _written_of(self, begun: PiecewiseMessage, count: int, octets: int | None) -> None:
        """Do as `written` for a message that is sent by itself."""
        begun.written(octets or 0)
        if not count and octets is not None:
            return
        if not count and begun.outcome is None:
            self._outbox.put_back_begun()
        else:
            self._outbox.end_begun()
            self.traffic.messages_out += 1
            self._limit.credit.use(1)
            if begun.outcome is not None:
                self._dealer.assigned -= not begun.is_done
                self._conclude([begun.run], begun.outcome)
            elif not self.settles:
                self._dealer.assigned -= 1
                self._dealer.done(begun.ids)
        self._after_write()

    def _after_write(self) -> None:
        """Return messages that may not wait here after a write, and ask for more if there is room."""
        self._give_up()
        if self._outbox.order is not None:
            self._outbox.pass_on()
        self._dealer.can_take(self)
        self._look_drained()

    def _give_up(self) -> None:
        """Return queued messages that may not wait here: all of them while no connection takes, else those
        that the count does not allow any more.
        """
        count = self._limit.credit.count
        if self._outbox.is_suspended:
            return  # until `give_back`
        if self._held or self._cancelled:
            keep = 0
        elif count is not None and self._outbox.unsent > count:
            keep = max(0, count - sum(len(each.ids) for each in self._outbox.given()))
        else:
            return
        if returned := self._unqueue(keep):
            self._dealer.returned(returned)
        if self._limit.window is not None:
            self._limit.window.freed()

    def _unqueue(self, keep: int) -> list[Run]:
        """Remove the queued messages behind the first N (`keep`), and return those that must be assigned
        again. `SharedWindow.freed` must follow.
        """
        return self._unqueued(self._outbox.unqueue(keep))

    def _unqueued(self, leaving: Sequence[tuple[range, int]]) -> list[Run]:
        """Return the messages that have left the queue and must be assigned again."""
        if self.settles:  # without messages that are settled already
            returned = self._limit.take(ids for ids, _ in leaving)
        else:
            unsent = DeliveredIds()
            unsent.add_all(leaving)
            returned = unsent.runs()
        self._dealer.assigned -= number_of(returned)
        return returned

    # -- the terminal's side: credit -----------------------------------------------------------------------

    def grant(self, n: int, kind: CreditKind) -> None:
        if not self.settles:
            self.settles = self._is_limited = True
            for each in self._outbox.each():
                self._limit.add(each.ids, each.deliveries)
        self._limit.credit.grant(n, kind)
        if kind is CreditKind.COUNT:
            self._give_up()
        self._dealer.can_take(self)

    def share(self, window: SharedWindow | None) -> None:
        self._dealer.cannot_take(self)  # it waits for the room of the other window no more
        self._limit.share(window)
        if not self.settles:
            self._is_limited = window is not None or self._limit.credit.count is not None
        self._dealer.can_take(self)

    def follow(self, order: DeliveryOrder | None) -> None:
        self._outbox.follow(order)
        self._dealer.follows(self)

    @property
    def is_following(self) -> bool:
        """Whether it gives messages in an order together with others."""
        return self._outbox.order is not None

    def wait_for(self, message: int) -> None:
        """Ignore the message: the driver chooses the messages of each subscriber."""

    @property
    def window(self) -> SharedWindow | None:
        """The window that it shares with others."""
        return self._limit.window

    @property
    def is_sharing(self) -> bool:
        """Whether a shared window limits it."""
        return self._limit.window is not None

    def has_memory(self) -> bool:
        """Return whether the memory that all channels share has room for more of its ids."""
        return not self.settles or self._limit.unsettled.may_grow()

    def granted(self) -> Granted:
        return self._limit.credit.granted()

    def drain(self, drained: Callable[[int], None], most: int | None = None) -> None:
        if most is not None:
            self._is_limited = True
            self._limit.credit.grant(self._outbox.unsent + most, CreditKind.COUNT)
        elif self._limit.credit.count is None:
            self.grant(0, CreditKind.COUNT)
        self._limit.credit.drain(drained)
        self._dealer.draining(self)
        self._look_drained()

    def look_drained(self) -> bool:
        """Notify the subscriber if the drain is complete. Return whether it is not."""
        self._look_drained()
        return self._limit.credit.is_draining

    def _look_drained(self) -> None:
        if not self._limit.credit.is_draining or self._outbox.unsent or self._news or self._held:
            return
        if self.room(1) and self._dealer.may_have(self):
            return
        drained, unused = self._limit.credit.end_drain()
        drained(unused)

    # -- the terminal's side: outcomes ---------------------------------------------------------------------

    def settle(self, ids: range, outcome: Outcome) -> int:
        begun = self._outbox.begun
        is_one = begun is None and len(ids) == 1 and isinstance(outcome, Accepted)
        if is_one and self._limit.take_first(ids.start):
            # Without a run for each message: omq clients confirm messages one by one.
            self._dealer.assigned -= 1
            self._dealer.done(ids)
            self._freed()
            return 1
        settled = 0
        if begun is not None and begun.message in ids and self._limit.take((begun.ids,)):
            begun.outcome = outcome
            self._dealer.assigned -= begun.is_done
            settled = 1
        runs = self._limit.take((ids,))
        if runs:
            count = number_of(runs)
            settled += count
            self._dealer.assigned -= count
            self._conclude(runs, outcome)
        if settled:
            self._freed()
        return settled

    def _freed(self) -> None:
        """Ask for more messages, because some are settled or cannot be sent."""
        self._dealer.can_take(self)
        if self._limit.window is not None:
            self._limit.window.freed()

    def _conclude(self, messages: list[Run], outcome: Outcome) -> None:
        """Apply an outcome to messages that are no longer unsettled."""
        match outcome:
            case Accepted():
                self._dealer.settled(messages)
            case Rejected():
                self._dealer.rejected(messages)
            case Released() | Modified():
                if isinstance(outcome, Modified) and outcome.undeliverable_here:
                    for run in messages:
                        for ids in ranges(run):
                            self._add_undeliverable(ids)
                    self._dealer.undeliverable(self)
                self._dealer.returned([kept for run in messages for kept in again(run, outcome)])
            case _:
                assert_never(outcome)

    # -- the terminal's side: pauses and ends --------------------------------------------------------------

    def hold(self) -> None:
        """Return messages that are not taken, now and until the channel is released: they go to others."""
        self._held = True
        self._dealer.cannot_take(self)
        self._give_up()

    def suspend(self) -> None:
        self._held = True
        self._dealer.cannot_take(self)
        self._outbox.is_suspended = self._outbox.is_suspended or self._dealer.suspending(self)

    def give_back(self) -> bool:
        if not self._outbox.is_suspended:
            return False
        self._outbox.leave_order()
        returned = self._unqueued(self._outbox.unqueue_last())
        self._is_giving_back = bool(self._outbox.queued())
        if self._is_giving_back:
            self._dealer.gave_part_back(returned)
        else:
            self._outbox.is_suspended = False
            self._dealer.gave_back(self, returned)
        if self._limit.window is not None:
            self._limit.window.freed()
        return self._is_giving_back

    def _give_all_back(self) -> None:
        while self.give_back():
            pass

    def release(self) -> None:
        if self._is_giving_back:
            self._give_all_back()  # it has left the order of its messages
        self._held = False
        if self._outbox.is_suspended:
            self._outbox.is_suspended = False
            self._dealer.gave_back(self, ())
            self._give_up()
            self.subscriber.wake()
        self._dealer.can_take(self)
        self._look_drained()

    def finish(self) -> None:
        self._dealer.finishing(self)
        self._look_drained()

    def retire(self) -> None:
        self._outbox.is_suspended = False
        self.follow(None)
        self._dealer.retiring(self)

    def cancel(self) -> None:
        self._cancelled = True
        self._give_all_back()
        self._give_up()
        self._look_drained()
        self._dealer.cancelled(self)

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            position=None,
            behind=self._outbox.unsent,
            credit=self._limit.credit.window,
            count=self._limit.credit.count,
            unsettled=self.outstanding_count(),
            octets=self._outbox.octets,
            is_held=self._held,
        )

    def close(self) -> None:
        may_wait = not (self._is_closing or self.settles or self._dealer.deleted)
        if self._is_completing and may_wait:
            self._is_closing = True  # nobody else must get the message of which the client gets the rest
            self.cancel()
            return
        self._is_completing = self._is_closing = False
        self.rest = RemainderHolder.HELD
        self._outbox.is_suspended = False
        self._dealer.assigned -= self.outstanding_count()
        self._dealer.closed(self, self.outstanding())
        begun = self._outbox.begun
        self._outbox.clear()
        if begun is not None:
            begun.give_back()
            if begun.outcome is not None and begun.is_done:
                self._conclude([begun.run], begun.outcome)
        if self._undeliverable is not None:
            self._undeliverable.clear()
        self._limit.close()
