"""The links of a session: one direction, one terminus each, and the credit of its receiver.

Source: AMQP 1.0, part 2, section 2.6, "Links".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from omq.protocol.amqp_1_0 import performatives, serials
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem, SessionProblem
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Coordinator,
    Detach,
    Flow,
    Frame,
    Source,
    Target,
)
from omq.protocol.amqp_1_0.types import NULL, DecodeError

LARGEST_CREDIT = 2**31 - 1

MOST_NAME_OCTETS = 1024
"""The length of the name of a link: the server keeps it as long as the link is attached."""

T = TypeVar("T")


class LinkWindow(Protocol):
    """The transfers of a session to the client, as `outgoing_window.OutgoingWindow` is."""

    @property
    def room(self) -> int:
        """The number of transfers that may leave now; 0 while others wait."""

    @property
    def may_transfer(self) -> bool:
        """Whether transfers may be sent now."""

    def transferred(self, count: int) -> None:
        """Count transfer frames that are about to be sent; a negative number for some that were not."""

    def may_begin(self, frames: int) -> bool:
        """Return whether a message of N `frames` may begin; frames that the window does not allow wait."""

    def unblocked(self) -> "tuple[SendingLink, ...]":
        """Return the links of all sessions that may send now because nothing waits any more."""

    def wait(self, sender: "SendingLink", octets: bytes, ends: int | None = None) -> None:
        """Send a transfer of a message that is begun when the client takes it: its window is closed now.
        `ends`: the settled message whose last transfer it is, if it is one.
        """

    def forget(self, sender: "SendingLink", count: int) -> None:
        """Drop the last transfers that wait, all of this link; those of a detached link are gone already."""

    def tell(self, sender: "SendingLink") -> None:
        """Let a link state its credit after its transfers that wait."""

    def begin_send(self) -> None:
        """Begin a send of a link: transfers that wait for the window stay until `end_send`."""

    def end_send(self) -> "tuple[SendingLink, ...]":
        """End the send. Return the links that may send now, and could not before it."""


@dataclass(frozen=True, slots=True)
class LinkCredit:
    """The state of a link that a flow tells."""

    handle: int
    delivery_count: int
    credit: int
    available: int | None = None
    drain: bool = False


class LinkSession(Protocol):
    """The session of a link, as `session.Session` is."""

    channel: int
    """The channel of its frames."""

    is_over: bool
    """Whether it has ended, and all its links with it."""

    @property
    def outgoing(self) -> LinkWindow:
        """The transfers that the server sends in it."""

    @property
    def next_delivery(self) -> int:
        """The delivery-id of the next delivery."""

    def frame_room(self) -> int:
        """Return the octets of the longest frame that the client takes."""

    @property
    def unsettled(self) -> int:
        """The number of messages that were sent and are not settled."""

    def send(self, frame: Frame, payload: bytes = b"") -> None:
        """Send a frame of the session."""

    def tell_credit(self, teller: "SendingLink | ReceivingLink", credit_of: Callable[[], LinkCredit]) -> None:
        """Send a flow with the state of the session and that of a link, as they are when it leaves."""

    def detached(self, gone: "SendingLink | ReceivingLink") -> None:
        """Remove a link that the server detached. Its handles are in use until the client detaches
        it, too.
        """

    def begin(self, sender: "SendingLink", ids: range, *, settled: bool) -> int:
        """Count messages that are about to be sent; return the delivery-id of the first one."""

    def take_back(self, sender: "SendingLink", count: int) -> None:
        """Take back the last deliveries that began, which were not sent: their delivery-ids are used
        again.
        """

    def given_up(self, delivery: int) -> None:
        """Forget a delivery that is begun and will be aborted: that settles it."""

    def settle(self, first: int, last: int, state: bytes) -> None:
        """Tell the client the outcome of messages that it sent, and settle them."""


class Link(ABC):
    """The common part of links in both directions."""

    is_sender: bool
    """Whether the server is the sender of its messages."""

    def __init__(self, session: LinkSession, handle: int, attach: Attach) -> None:
        self.session = session
        self.handle = handle
        """The handle in the server's frames."""
        self.attach = replace(attach, unsettled=NULL, properties=NULL)
        """The client's attach, without the fields that the server does not use; after the answer, without
        termini.
        """
        self.problem: LinkProblem | None = None
        """The problem of its name or its termini, because of which it must be refused; None if there is none.
        """
        self.source = self._terminus(attach.source, Source)
        self.target = self._terminus(attach.target, Target, Coordinator)
        if len(attach.name.encode()) > MOST_NAME_OCTETS:
            text = f"the name of a link has at most {MOST_NAME_OCTETS} octets"
            self.problem = LinkProblem(Condition.INVALID_FIELD, text)
        self._is_detached = False

    @property
    def is_attached(self) -> bool:
        """Whether neither side has detached it, and its session is not over."""
        return not (self._is_detached or self.session.is_over)

    @property
    def name(self) -> str:
        """The name, which identifies it between the two containers."""
        return self.attach.name

    def _terminus(self, octets: bytes, *kinds: type[T]) -> T | None:
        if octets == NULL:
            return None
        try:
            terminus = performatives.read_all(octets)
        except DecodeError as malformed:
            self.problem = LinkProblem(Condition.DECODE_ERROR, str(malformed))
            return None
        if isinstance(terminus, kinds):
            return terminus
        self.problem = LinkProblem(Condition.INVALID_FIELD, f"a {kinds[0].__name__.lower()} was expected")
        return None

    def _answer(self, **fields: Any) -> None:
        if not self.is_attached:
            return  # its connection ended before it was answered
        said = {**_ANSWERED, "handle": self.handle, "role": not self.is_sender, **fields}
        self.session.send(replace(self.attach, **said))
        self.attach = replace(
            self.attach, source=NULL, target=NULL, offered_capabilities=(), desired_capabilities=()
        )
        self.source = self.target = None

    def detach(self, problem: LinkProblem | None = None) -> None:
        """Detach the link, unless it is detached."""
        if self.is_attached:
            self._is_detached = True
            error = NULL if problem is None else problem.error()
            self.session.send(Detach(self.handle, closed=True, error=error))
            self._detached()
            # The client may keep the handle as long as it likes, so nothing that it said is kept with it.
            self.attach, self.source, self.target = _FORGOTTEN, None, None

    @abstractmethod
    def _detached(self) -> None:
        """Tell the session."""

    def refuse(self, problem: LinkProblem) -> None:
        """Refuse the attach: answer it without the terminus that the client wants, and detach (section
        2.6.3, "Establishing Or Resuming A Link").
        """
        if self.is_sender:
            self._answer(source=NULL, initial_delivery_count=0)
        else:
            self._answer(target=NULL)
        self.detach(problem)


_FORGOTTEN = Attach("", 0, False)
"""The rest of the attach of a link that is detached."""

_ANSWERED: dict[str, Any] = {
    "unsettled": NULL,
    "incomplete_unsettled": False,
    "initial_delivery_count": None,
    "max_message_size": None,
    "offered_capabilities": (),
    "desired_capabilities": (),
    "properties": NULL,
}
"""The fields of an attach that the answer does not repeat."""


class SendingLink(Link):
    """A link on which the server sends."""

    is_sender = True

    def __init__(self, session: LinkSession, handle: int, attach: Attach) -> None:
        super().__init__(session, handle, attach)
        self.delivery_count = 0
        self._credit = 0
        """Below 0 if the client lowered it below the number of messages sent meanwhile. Some of these may be
        taken back.
        """
        self.drain = False
        """Whether the client wants the messages that are ready now, and its credit back (drain)."""
        self.settles = attach.snd_settle_mode == 1
        """Whether messages are settled when they are sent (snd-settle-mode `settled`)."""

    @property
    def credit(self) -> int:
        """The number of messages that the client still takes."""
        return max(self._credit, 0)

    def accept(self, source: bytes, *, settles: bool, offered: tuple[str, ...] = ()) -> None:
        """Accept the attach with this source, which may differ from what the client asked for, and with the
        capabilities `offered`.
        """
        self.settles = settles
        mode = 1 if settles else self.attach.snd_settle_mode if self.attach.snd_settle_mode != 1 else 0
        self._answer(
            source=source,
            snd_settle_mode=mode,
            rcv_settle_mode=0,
            initial_delivery_count=0,
            offered_capabilities=offered,
        )

    def flowed(self, flow: Flow) -> None:
        """Take the credit that the client states (section 2.6.7, "Flow Control")."""
        told = flow.delivery_count if flow.delivery_count is not None else 0
        ahead = serials.difference(self.delivery_count, told)
        self._credit = min((flow.link_credit or 0) - ahead, LARGEST_CREDIT)
        self.drain = flow.drain

    def _detached(self) -> None:
        self.session.detached(self)

    def sent(self, count: int) -> None:
        """Count messages that are sent, no more than the credit; a negative number for some that were not."""
        self.delivery_count = serials.add(self.delivery_count, count)
        self._credit -= count

    def drained(self) -> None:
        """Give the rest of the credit back: there is nothing more to send now."""
        self.sent(self.credit)
        self.session.outgoing.tell(self)

    def tell(self) -> None:
        """State the link's own view of its credit."""
        self.session.tell_credit(
            self, lambda: LinkCredit(self.handle, self.delivery_count, self.credit, 0, self.drain)
        )


class ReceivingLink(Link):
    """A link on which the client sends."""

    is_sender = False

    def __init__(self, session: LinkSession, handle: int, attach: Attach) -> None:
        super().__init__(session, handle, attach)
        if attach.initial_delivery_count is None:
            raise SessionProblem(
                Condition.INVALID_FIELD, "the attach of a sender has an initial-delivery-count"
            )
        self.delivery_count = attach.initial_delivery_count
        self.credit = 0
        """The number of messages that the client may still send."""
        self.delivery: int | None = None
        """The delivery-id of the incomplete message; None if there is none."""
        self.delivery_settled = False
        self.keeps_lifetimes = True
        """Whether the target observes the lifetimes of messages. Set it before the attach is accepted."""
        self._max_message_size = 0

    def accept(self, target: bytes, max_message_size: int) -> None:
        """Accept the attach with this target, which may differ from what the client asked for."""
        mode = self.attach.snd_settle_mode
        self._max_message_size = max_message_size
        self._answer(
            target=target,
            snd_settle_mode=mode,
            rcv_settle_mode=0,
            max_message_size=max_message_size or None,
        )

    def _detached(self) -> None:
        self.session.detached(self)

    def grant(self, credit: int) -> None:
        """Let the client send this many messages from now on."""
        self.credit = min(credit, LARGEST_CREDIT)
        self.tell()

    def tell(self) -> None:
        """State the credit."""
        self.session.tell_credit(self, lambda: LinkCredit(self.handle, self.delivery_count, self.credit))

    def flowed(self, flow: Flow) -> bool:
        """Take the delivery-count that the client states. Return whether it has used up credit without a
        message: only the sender of a link may change its count (section 2.6.7).
        """
        if flow.delivery_count is None:
            return False
        ahead = serials.difference(flow.delivery_count, self.delivery_count)
        if not 0 < ahead <= self.credit:
            return False
        self.delivery_count = flow.delivery_count
        self.credit -= ahead
        return True

    def takes(self, count: int, longest: int) -> bool:
        """Return whether the client may send `count` whole messages now, of up to `longest` octets each."""
        return (
            self.is_attached
            and self.delivery is None
            and count <= self.credit
            and longest <= self._max_message_size
        )

    def received(self, count: int = 1) -> None:
        """Count messages that begin. Raises `LinkProblem` when the client had no credit for them."""
        if self.credit < count:
            raise LinkProblem(
                Condition.TRANSFER_LIMIT_EXCEEDED, "the link sent more messages than it has credit for"
            )
        self.credit -= count
        self.delivery_count = serials.add(self.delivery_count, count)


def make(session: LinkSession, handle: int, attach: Attach) -> SendingLink | ReceivingLink:
    """Make the link that an attach asks for; the client's role is the other one.

    Raises `SessionProblem` for an attach that says too little.
    """
    return (SendingLink if attach.role else ReceivingLink)(session, handle, attach)
