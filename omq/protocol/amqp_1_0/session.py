"""One session: its links, the deliveries that pass through them, and the window of what the client sends.

Source: AMQP 1.0, part 2, section 2.5, "Sessions", and section 2.6, "Links".
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Protocol, assert_never

from omq.protocol.amqp_1_0 import frames, link, performatives, serials, types
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem, SessionProblem
from omq.protocol.amqp_1_0.events import (
    Aborted,
    Attaching,
    Credit,
    CreditUsed,
    Detached,
    Event,
    Part,
    Pause,
    SessionEnded,
    SettledByPeer,
    StoredRun,
    WindowOpened,
)
from omq.protocol.amqp_1_0.link import LinkCredit, ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.outgoing_window import OutgoingWindow, TransferPeer
from omq.protocol.amqp_1_0.performatives import (
    Accepted,
    Attach,
    Begin,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Frame,
    Modified,
    Received,
    Rejected,
    Released,
    Transfer,
)
from omq.protocol.amqp_1_0.runs import TransferRun
from omq.protocol.amqp_1_0.types import NULL
from omq.protocol.amqp_1_0.unsettled import RUNS_A_STEP, Sent, UnsettledDeliveries, in_order

WINDOW = 64
"""The transfers that the client may send before the server says that it takes more."""

MOST_LINKS = 16_384
"""The links that a connection may have at a time; one that is refused counts until the client detaches it."""

MOST_HANDLES = 1024
"""The links that a session may have at a time."""

LINKS_IN_TURN = 256
"""The number of links that end with their session after which other connections have their turn."""


class Peer(TransferPeer, Protocol):
    """The methods that a session needs of its connection."""

    def frame_room(self) -> int:
        """Return the octets of the longest frame that the client takes."""

    def put(self, octets: bytes) -> None:
        """Add octets that the connection sends."""

    def put_flow(self, write: Callable[[], bytes], told: SendingLink | ReceivingLink | None = None) -> None:
        """Add a flow, which is written when it leaves. It takes the place of an earlier one of the link that
        it tells about.
        """

    def told_window(self, session: "Session") -> None:
        """Call `window_left` of this session when the sender takes the octets that were put so far."""

    def attached(self, link: SendingLink | ReceivingLink) -> SendingLink | ReceivingLink | None:
        """Add a link that was attached. Return the one of the same name and direction, which it steals."""

    def detached(self, link: SendingLink | ReceivingLink) -> None:
        """Remove a link that is over."""

    @property
    def handles(self) -> int:
        """The number of handles of the client that are in use in all sessions."""

    def use_handles(self, count: int) -> None:
        """Count handles that are in use from now on; a negative number for some that are free."""


class Session:
    """One session, after its begin."""

    def __init__(self, peer: Peer, channel: int, remote_channel: int, begin: Begin) -> None:
        self._peer = peer
        self.channel = channel
        """The channel of the frames that the server sends."""
        self._next_in = begin.next_outgoing_id
        self._window = WINDOW
        self._end_in = serials.add(begin.next_outgoing_id, WINDOW)
        """The first transfer-id after the window that the client can know."""
        self._links: dict[int, SendingLink | ReceivingLink] = {}
        self.outgoing = OutgoingWindow(peer, begin.incoming_window, self._links)
        """The transfers that the server sends."""
        self._free_handles: list[int] = []
        """Handles below the number of links that no link has: a heap."""
        self._handle_max = min(begin.handle_max, MOST_HANDLES - 1)
        self._deliveries: UnsettledDeliveries[SendingLink] = UnsettledDeliveries(0)
        self._last_delivery: int | None = None
        self.is_over = False
        self.send(Begin(remote_channel, 0, WINDOW, link.LARGEST_CREDIT, MOST_HANDLES - 1))

    # -- out -----------------------------------------------------------------------------------------------

    def send(self, frame: Frame, payload: bytes = b"") -> None:
        """Send a frame."""
        self._peer.put(frames.write(self.channel, performatives.write(frame), payload))

    def window_left(self) -> None:
        """Note that the client may know the window."""
        self._end_in = serials.add(self._next_in, self._window)

    def tell_windows(self) -> None:
        """Send a flow with the state of the session."""
        self._peer.put_flow(lambda: frames.write(self.channel, performatives.write(Flow(*self._windows()))))

    def tell_credit(self, teller: SendingLink | ReceivingLink, credit_of: Callable[[], LinkCredit]) -> None:
        """Send a flow with the state of the session and that of a link."""

        def write() -> bytes:
            told = credit_of()
            flow = performatives.write_credit(
                self._windows(),
                told.handle,
                told.delivery_count,
                told.credit,
                told.available,
                drain=told.drain,
            )
            return frames.write(self.channel, flow)

        self._peer.put_flow(write, teller)

    def _windows(self) -> tuple[int, int, int, int]:
        """Return the state of the session that every flow has."""
        return self._next_in, self._window, self.outgoing.next_id, link.LARGEST_CREDIT

    @property
    def next_delivery(self) -> int:
        """The delivery-id of the next delivery."""
        return self._deliveries.next_id

    def frame_room(self) -> int:
        """Return the octets of the longest frame that the client takes."""
        return self._peer.frame_room()

    @property
    def unsettled(self) -> int:
        """The number of messages that were sent and are not settled."""
        return len(self._deliveries)

    def begin(self, sender: SendingLink, ids: range, *, settled: bool) -> int:
        """Count messages that are about to be sent; return the delivery-id of the first one."""
        sender.sent(len(ids))
        return self._deliveries.add(sender, ids, settled=settled)

    def take_back(self, sender: SendingLink, count: int) -> None:
        """Take back the last deliveries that began, all of this link, which were not sent: their delivery-ids
        are used again.

        Some clients take a gap between the delivery-ids of a session for an error.
        """
        sender.sent(-count)
        self._deliveries.take_back(count)

    def given_up(self, delivery: int) -> None:
        """Forget a delivery that is begun and will be aborted: that settles it."""
        self._deliveries.settle(delivery, delivery)

    def settle(self, first: int, last: int, state: bytes) -> None:
        """Tell the client the outcome of messages that it sent, and settle them."""
        self._peer.put(frames.write(self.channel, performatives.write_outcome(first, last, state)))

    def end(self, problem: SessionProblem | None = None) -> Iterator[Event]:
        """End the session, and tell the client when its links have ended."""
        yield from self._over(None)
        self.send(End(NULL if problem is None else problem.error()))

    def _over(self, error: Error | None) -> Iterator[Event]:
        self.outgoing.drop_all()
        self._peer.use_handles(-len(self._links))
        ended = tuple(each for each in self._links.values() if each.is_attached)
        self.is_over = True  # before another task may send on one of the links
        for number, each in enumerate(ended, 1):
            self._peer.detached(each)
            if not number % LINKS_IN_TURN:
                yield Pause()
        for _ in self.free():
            yield Pause()
        if ended:
            yield SessionEnded(ended, error)

    def free(self) -> Iterator[None]:
        """Free the memory of a session that is over, in steps."""
        self.outgoing.free()
        self._links.clear()
        yield from self._deliveries.clear()

    # -- in ------------------------------------------------------------------------------------------------

    def take(self, frame: Frame, payload: bytes) -> Iterable[Event]:
        """Take a frame of the session; the caller goes through the events that it means. Raises
        `SessionProblem` and `ConnectionProblem`, also between two events.
        """
        match frame:
            case Disposition():
                return self._disposition(frame)
            case Transfer():
                return self._transfer(frame, payload)
            case Flow():
                return self._flow(frame)
            case Attach():
                return self._attach(frame)
            case Detach():
                return self._detach(frame)
            case End(error):
                return self._end(_error(error))
            case _:
                raise AssertionError("the connection takes the other performatives")

    def _end(self, error: Error | None) -> Iterator[Event]:
        yield from self._over(error)
        self.send(End())

    def _attach(self, attach: Attach) -> Iterator[Event]:
        if attach.handle in self._links:
            raise SessionProblem(Condition.HANDLE_IN_USE, f"the handle {attach.handle} is attached already")
        if attach.handle >= MOST_HANDLES:
            # Clients that ignore the handle-max get this error (section 2.7.2, handle-max).
            raise SessionProblem(
                Condition.NOT_ALLOWED, f"handles are at most {MOST_HANDLES - 1}, not {attach.handle}"
            )
        handles = self._peer.handles
        if handles >= MOST_LINKS + MOST_HANDLES:
            text = f"more than {MOST_LINKS} links were attached, and those that were refused not detached"
            raise SessionProblem(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        handle = heappop(self._free_handles) if self._free_handles else len(self._links)
        made = link.make(self, handle, attach)
        stolen = self._peer.attached(made)
        if stolen is not None and stolen.is_attached:
            stolen.detach(LinkProblem(Condition.STOLEN, "the link was attached again"))
            yield Detached(stolen, None)
        self._links[attach.handle] = made
        self._peer.use_handles(1)
        if made.problem is not None:
            made.refuse(made.problem)
        elif handles >= MOST_LINKS:
            text = f"a connection has at most {MOST_LINKS} links"
            made.refuse(LinkProblem(Condition.RESOURCE_LIMIT_EXCEEDED, text))
        elif handle > self._handle_max:
            made.refuse(LinkProblem(Condition.RESOURCE_LIMIT_EXCEEDED, "the client has no handle left"))
        else:
            yield Attaching(made)

    def _detach(self, detach: Detach) -> Iterator[Event]:
        found = self._links.pop(detach.handle, None)
        if found is None:
            raise SessionProblem(
                Condition.UNATTACHED_HANDLE, f"a detach of the handle {detach.handle}, which is not attached"
            )
        self._peer.use_handles(-1)
        heappush(self._free_handles, found.handle)
        if found.is_attached:
            # A link that is detached without being closed could be resumed; here it is over (section 2.6.5).
            found.detach()
            yield Detached(found, _error(detach.error))

    def detached(self, gone: SendingLink | ReceivingLink) -> None:
        """Remove a link that the server detached. Its handles are in use until the client detaches
        it, too.
        """
        if isinstance(gone, SendingLink):
            self._deliveries.drop(gone)
            self.outgoing.drop(gone)
        self._peer.detached(gone)

    def _link(self, handle: int) -> SendingLink | ReceivingLink:
        found = self._links.get(handle)
        if found is None:
            raise SessionProblem(Condition.UNATTACHED_HANDLE, f"the handle {handle} is not attached")
        return found

    def _flow(self, flow: Flow) -> Iterator[Event]:
        was_closed = not self.outgoing.may_transfer
        self.outgoing.flowed(flow)
        if flow.handle is None:
            if flow.echo:
                self.tell_windows()
        else:
            yield from self._link_flow(self._link(flow.handle), flow)
        self.outgoing.look_flushable()
        if was_closed and self.outgoing.may_transfer:
            yield WindowOpened(self.outgoing.senders())

    def _link_flow(self, found: SendingLink | ReceivingLink, flow: Flow) -> Iterator[Event]:
        if not found.is_attached:
            return
        match found:
            case SendingLink():
                found.flowed(flow)
                yield Credit(found)
                if flow.echo and found.is_attached and not found.drain:
                    found.tell()
            case ReceivingLink():
                if found.flowed(flow):
                    yield CreditUsed(found)
                if flow.echo and found.is_attached:
                    found.tell()
            case _:
                assert_never(found)

    def run(self, run: TransferRun) -> StoredRun | None:
        """Take whole messages of one link. None if something is wrong with one of them, or may be: then they
        must be taken frame by frame.
        """
        found, count, last = self._links.get(run.handle), run.batch.count, self._last_delivery
        if (
            not isinstance(found, ReceivingLink)
            or not found.takes(count, run.longest)
            or (run.is_timed and found.keeps_lifetimes)
            or count > self._window
            or serials.difference(serials.add(self._next_in, count), self._end_in) > 0
            or (last is not None and serials.difference(run.delivery, last) <= 0)
        ):
            return None
        self._next_in = serials.add(self._next_in, count)
        self._window -= count
        self._last_delivery = run.last
        found.received(count)
        self._renew()
        return StoredRun(found, run)

    def _transfer(self, transfer: Transfer, payload: bytes) -> Iterator[Event]:
        if serials.difference(self._next_in, self._end_in) >= 0:
            text = "more transfers came than the window of the session allows"
            raise SessionProblem(Condition.WINDOW_VIOLATION, text)
        self._next_in = serials.add(self._next_in, 1)
        self._window -= 1
        found = self._link(transfer.handle)
        if not isinstance(found, ReceivingLink):
            raise SessionProblem(
                Condition.NOT_ALLOWED, "a transfer came on a link whose client is the receiver"
            )
        if found.is_attached:
            try:
                yield from self._message(found, transfer, payload)
            except LinkProblem as problem:
                found.detach(problem)
                yield Detached(found, None)
        elif transfer.delivery_id is not None:
            self._last_delivery = transfer.delivery_id
        self._renew()

    def _message(self, found: ReceivingLink, transfer: Transfer, payload: bytes) -> Iterator[Event]:
        begins = found.delivery is None
        if begins:
            delivery = self._begun(transfer)
            found.received()
        else:
            delivery = found.delivery if found.delivery is not None else 0
            if transfer.delivery_id not in (None, delivery):
                raise SessionProblem(
                    Condition.NOT_ALLOWED, f"the delivery {transfer.delivery_id} began within another one"
                )
        # Any transfer of a delivery may settle it, and then all are settled (section 2.7.5, `settled`).
        settled = bool(transfer.settled) or (not begins and found.delivery_settled)
        more = transfer.more and not transfer.aborted
        found.delivery, found.delivery_settled = (delivery, settled) if more else (None, False)
        if transfer.aborted:
            yield Aborted(found)
        else:
            yield Part(found, delivery, settled, payload, begins, not more)

    def _begun(self, transfer: Transfer) -> int:
        """Return the delivery-id of a transfer that begins a delivery."""
        delivery, last = transfer.delivery_id, self._last_delivery
        if delivery is None:
            raise SessionProblem(
                Condition.INVALID_FIELD, "the first transfer of a delivery has a delivery-id"
            )
        if last is not None and serials.difference(delivery, last) <= 0:
            raise SessionProblem(
                Condition.NOT_ALLOWED, f"the delivery-id {delivery} does not come after {last}"
            )
        self._last_delivery = delivery
        return delivery

    def _renew(self) -> None:
        if self._window <= WINDOW // 2 and not self.is_over:
            self._window = WINDOW
            self.tell_windows()
            self._peer.told_window(self)

    def _disposition(self, told: Disposition) -> Iterable[SettledByPeer]:
        if not told.role:
            return ()  # the sender settles what the server has settled
        state = None if told.state == NULL else performatives.read_state(told.state)
        match state:
            case Received():
                outcome: DeliveryState | None = None  # not an outcome yet
            case Accepted() | Rejected() | Released() | Modified() | None:
                outcome = state
            case _:
                raise SessionProblem(Condition.INVALID_FIELD, "the state of a delivery was expected")
        if outcome is None and not told.settled:
            return ()
        last = told.first if told.last is None else told.last
        if not 0 <= last - told.first < RUNS_A_STEP:
            return self._settled_in_parts(told, last, outcome)
        sent = self._deliveries.settle(told.first, last)
        if not sent:
            return ()
        if not told.settled:
            # The client told the outcome and waits for the sender to settle (section 2.6.12).
            self.send(Disposition(False, told.first, told.last, True, told.state))
        if len(sent) > 1 and _returns(outcome):
            sent.sort(key=_first_id)
        return (SettledByPeer(tuple(sent), outcome, b"" if outcome is None else told.state),)

    def _settled_in_parts(
        self, told: Disposition, last: int, outcome: DeliveryState | None
    ) -> Iterator[SettledByPeer]:
        """Settle many deliveries as the client told, in parts, so that others have their turns."""
        is_answered = told.settled
        parts = self._deliveries.settle_in_parts(told.first, last)
        for sent in in_order(parts) if _returns(outcome) else parts:
            if not is_answered:
                self.send(Disposition(False, told.first, told.last, True, told.state))
                is_answered = True
            yield SettledByPeer(tuple(sent), outcome, b"" if outcome is None else told.state)


def _returns(outcome: DeliveryState | None) -> bool:
    """Return whether messages with this outcome may return to their queue."""
    return not isinstance(outcome, Accepted | Rejected)


def _first_id(sent: Sent[SendingLink]) -> int:
    return sent.ids.start


def _error(octets: bytes) -> Error | None:
    if octets == NULL:
        return None
    error = performatives.read_all(octets)
    if isinstance(error, Error):
        return error
    raise types.DecodeError("an error was expected")
