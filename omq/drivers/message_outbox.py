"""The outbox of one subscriber of a round-robin topic: the messages that are assigned to it and not written.

They are queued, taken or begun; omq.drivers.round_robin_channel has the states of a message. Where several
channels give the messages of a queue in an order together, each gives only what is next in this order.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.pieces import Pieces
from omq.drivers.piecewise import Large, PiecewiseMessage
from omq.drivers.seam import MOST_SELECTIONS, TAKE_OCTETS, Selection, Subscriber, TakenMessages
from omq_storage.blocks import Block
from omq_storage.fragments import Fragmented

OUTBOX_OCTETS = 256 << 10
"""The limit of the octets that wait to be written to one subscriber."""

MOST_QUEUED = 2 * MOST_SELECTIONS
"""The number of queued selections from which on a subscriber gets no more: some steps look at all of them."""

LEAVING_IN_STEP = 16
"""The number of queued selections that leave in one step: up to 20 microseconds for each."""


class MessageOutbox:
    """Messages on their way to one subscriber, in the order in which it gets them."""

    __slots__ = ("_queued", "_subscriber", "_taken", "begun", "is_suspended", "octets", "order", "unsent")

    def __init__(self, subscriber: Subscriber) -> None:
        """Create an empty outbox. The subscriber is woken when it is the turn of its messages."""
        self._subscriber = subscriber
        self.order: DeliveryOrder | None = None
        """The order in which it gives its messages together with others: see `follow`."""
        self._queued: deque[Selection | Large] = deque()
        self._taken: list[Selection] = []
        self.begun: PiecewiseMessage | None = None
        """The message that is sent by itself, while a part of it is, or is about to be, on the socket."""
        self.unsent = 0
        """The number of all its messages."""
        self.octets = 0
        """The octets of these, by the mean of each block."""
        self.is_suspended = False
        """Whether it keeps what is queued, and gives nothing of it to its subscriber."""

    # -- its messages --------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Return whether `take` would return something that is queued."""
        if not self._queued or self.is_suspended:
            return False
        return self.order is None or self.order.is_next(self)

    @property
    def is_long(self) -> bool:
        """True with MOST_QUEUED selections or more."""
        return len(self._queued) >= MOST_QUEUED

    def queued(self) -> Iterable[Selection | Large]:
        """Return the messages that its subscriber has not taken."""
        return self._queued

    def given(self) -> Sequence[Selection | PiecewiseMessage]:
        """Return the messages that its subscriber has taken and not reported as written."""
        return self._taken if self.begun is None else [self.begun]

    def each(self) -> Iterator[Selection | Large | PiecewiseMessage]:
        """Yield all its messages."""
        yield from self.given()
        yield from self._queued

    # -- from the driver -----------------------------------------------------------------------------------

    def add(self, messages: Selection | Large, count: int, octets: int) -> None:
        """Queue N (`count`) messages with these octets behind the others."""
        self._queued.append(messages)
        self.unsent += count
        self.octets += octets
        if self.order is not None:
            self.order.add(self)

    def unqueue(self, keep: int) -> list[tuple[range, int]]:
        """Remove the queued messages behind the first N (`keep`). Return their ids, with the number of
        earlier deliveries of each range.
        """
        kept: deque[Selection | Large] = deque()
        leaving: list[tuple[range, int]] = []
        for each in self._queued:
            stays = min(keep, len(each.ids))
            keep -= stays
            if stays == len(each.ids):
                kept.append(each)
                continue
            if isinstance(each, Large):
                octets = each.octets
            else:
                octets = mean_octets(each.block)
                if stays:
                    kept.append(msgspec.structs.replace(each, ids=each.ids[:stays]))
            ids = each.ids[stays:]
            self.unsent -= len(ids)
            self.octets -= len(ids) * octets
            leaving.append((ids, each.deliveries))
        self._queued = kept
        if self.order is not None:
            self.order.keep(self, len(kept))
        return leaving

    def unqueue_last(self) -> list[tuple[range, int]]:
        """Remove the last queued messages, as many as one step has time for. Return them like `unqueue`."""
        leaving: list[tuple[range, int]] = []
        while self._queued and len(leaving) < LEAVING_IN_STEP:
            each = self._queued.pop()
            octets = each.octets if isinstance(each, Large) else mean_octets(each.block)
            self.unsent -= len(each.ids)
            self.octets -= len(each.ids) * octets
            leaving.append((each.ids, each.deliveries))
        leaving.reverse()  # ranges are added to a set of ids fast in their order only
        return leaving

    def leave_order(self) -> None:
        """Leave the order with everything that is queued."""
        if self.order is not None:
            self.order.keep(self, 0)

    def clear(self) -> None:
        """Remove all messages."""
        self._queued.clear()
        self.leave_order()
        self._taken.clear()
        self.begun = None
        self.unsent = self.octets = 0

    # -- to the subscriber ---------------------------------------------------------------------------------

    def take(self) -> TakenMessages | Large | None:
        """Return the next messages. A large one comes alone: `begin` or `put_back` must follow."""
        order = self.order
        octets = 0
        while self._queued and octets < TAKE_OCTETS and len(self._taken) < MOST_SELECTIONS:
            if self.is_suspended or (order is not None and not order.is_next(self)):
                break
            selection = self._queued[0]
            if isinstance(selection, Large) and self._taken:
                break
            self._queued.popleft()
            if order is not None:
                order.take()
            if isinstance(selection, Large):
                return selection
            self._taken.append(selection)
            octets += len(selection.ids) * mean_octets(selection.block)
        return TakenMessages(tuple(self._taken)) if self._taken else None

    def take_at_once(self, octets: int, most: int) -> Sequence[Selection]:
        """Take all messages, if they have N `octets` in M selections (`most`) at most, and none of them is
        sent by itself.
        """
        if (
            self.begun is not None
            or self.octets > octets
            or len(self._queued) > most
            or self.is_suspended
            or self.order is not None
        ):
            return ()
        selections = [selection for selection in self._queued if isinstance(selection, Selection)]
        if len(selections) < len(self._queued):
            return ()
        self._queued.clear()
        self._taken += selections
        return selections

    def written(self, count: int) -> list[Selection]:
        """Remove the first N (`count`) messages that were taken, because they are written, and return them.
        Queue the others again.
        """
        taken, self._taken = self._taken, []
        if count == self.unsent:  # it is empty now, as after most messages
            self.unsent = self.octets = 0
            return taken
        done: list[Selection] = []
        back: list[Selection | Large] = []
        for selection in taken:
            whole = min(count, len(selection.ids))
            if whole < len(selection.ids):
                rest = msgspec.structs.replace(selection, ids=selection.ids[whole:]) if whole else selection
                back.append(rest)
                if not whole:
                    continue
                selection = msgspec.structs.replace(selection, ids=selection.ids[:whole])
            count -= whole
            self.unsent -= whole
            self.octets -= whole * mean_octets(selection.block)
            done.append(selection)
        if back:
            self._put_back(back)
        return done

    def _put_back(self, messages: Sequence[Selection | Large]) -> None:
        """Queue again what was taken, in its order before the others."""
        self._queued.extendleft(reversed(messages))
        if self.order is not None:
            self.order.give_back(self, len(messages))

    # -- a message that is sent by itself ------------------------------------------------------------------

    def begin(self, large: Large, pieces: Pieces) -> PiecewiseMessage:
        """Begin the large message that `take` returned."""
        self.begun = PiecewiseMessage(large.message, large.octets, large.deliveries, pieces, slow=False)
        return self.begun

    def begin_next(self) -> PiecewiseMessage | None:
        """Begin the next message, a part of which is written: `written` has queued it again. Return None if
        there is none, because the channel was closed meanwhile.
        """
        if not self._queued:
            return None
        first = self._queued[0]
        assert isinstance(first, Selection)
        if len(first.ids) > 1:
            self._queued[0] = msgspec.structs.replace(first, ids=first.ids[1:])
        else:
            self._queued.popleft()
            if self.order is not None:
                self.order.take()
        octets = mean_octets(first.block)
        self.begun = PiecewiseMessage(first.ids[0], octets, first.deliveries, None, slow=True)
        return self.begun

    def end_begun(self) -> None:
        """Remove the message that is begun: all of it is written, or the rest is not available."""
        assert self.begun is not None
        self.unsent -= 1
        self.octets -= self.begun.octets
        self.begun = None

    def put_back_begun(self) -> None:
        """Queue the message that is begun again, before the others: nothing of it is written."""
        begun, self.begun = self.begun, None
        assert begun is not None
        self._put_back([Large(begun.message, begun.octets, begun.deliveries)])

    # -- the order that it shares --------------------------------------------------------------------------

    def follow(self, order: DeliveryOrder | None) -> None:
        """Give messages in this order together with others; None: no longer."""
        self.leave_order()
        self.order = order
        if order is not None:
            order.add(self, len(self._queued))

    def in_turn(self) -> None:
        """See `omq.drivers.delivery_order.OrderedChannel`."""
        self._subscriber.wake()

    def pass_on(self) -> None:
        """Wake the one whose turn it is now, after messages have left."""
        if self.order is not None:
            self.order.pass_on(self)


def mean_octets(block: Block | Fragmented) -> int:
    """Return the average size of a message of the block on the wire."""
    return block.size // block.count
