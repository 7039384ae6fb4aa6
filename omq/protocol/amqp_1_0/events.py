"""The events that a connection of AMQP 1.0 reports to the server, in the order of the frames."""

import msgspec

from omq.protocol.amqp_1_0.conditions import ConditionRaised
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.performatives import DeliveryState, Error, Open
from omq.protocol.amqp_1_0.runs import TransferRun
from omq.protocol.amqp_1_0.unsettled import Sent


class Authenticating(msgspec.Struct, frozen=True):
    """The client chose a SASL mechanism: answer with `AmqpConnection.authenticated`."""

    mechanism: str
    response: bytes
    """Its initial response; empty if there is none."""


class Opening(msgspec.Struct, frozen=True):
    """The client opens the connection: answer with `AmqpConnection.open`."""

    open: Open


class Attaching(msgspec.Struct, frozen=True):
    """The client attaches a link: answer with its `accept` or `refuse`."""

    link: SendingLink | ReceivingLink


class Credit(msgspec.Struct, frozen=True):
    """The client stated the credit of a link on which the server sends: see its `credit` and `drain`."""

    link: SendingLink


class Part(msgspec.Struct, frozen=True):
    """A message, or a part of one that takes several frames: its sections."""

    link: ReceivingLink
    delivery: int
    settled: bool
    octets: bytes
    begins: bool
    ends: bool

    @property
    def is_whole(self) -> bool:
        """Whether it is a message of one frame."""
        return self.begins and self.ends


class StoredRun(msgspec.Struct, frozen=True):
    """Whole messages, in the form in which they are stored."""

    link: ReceivingLink
    run: TransferRun


class Aborted(msgspec.Struct, frozen=True):
    """The client aborted a message. It has used credit."""

    link: ReceivingLink


class CreditUsed(msgspec.Struct, frozen=True):
    """The client used up credit of a link on which it sends without a message: it may have more."""

    link: ReceivingLink


class SettledByPeer(msgspec.Struct, frozen=True):
    """The client told the outcome of messages that were sent to it; they are settled."""

    sent: tuple[Sent[SendingLink], ...]
    state: DeliveryState | None
    """None where it settled them without a state: it does not tell their outcome."""
    told: bytes
    """The octets of the state; empty for None."""


class Detached(msgspec.Struct, frozen=True):
    """A link is over, and its session is not."""

    link: SendingLink | ReceivingLink
    error: Error | None


class SessionEnded(msgspec.Struct, frozen=True):
    """A session is over, and all its links with it. The client is told after this event."""

    links: tuple[SendingLink | ReceivingLink, ...]
    error: Error | None


class ConnectionEnded(msgspec.Struct, frozen=True):
    """All sessions are over, and all links with them. The client is told after this event, and `Closed`
    follows.
    """


class WindowOpened(msgspec.Struct, frozen=True):
    """The client takes transfers again in a session whose window was closed."""

    links: tuple[SendingLink, ...]


class Closed(msgspec.Struct, frozen=True):
    """The client or a problem ends the connection, after the waiting octets are sent."""

    error: Error | None
    problem: ConditionRaised | None = None
    """The problem that the server found; None if the client ended the connection."""


class Pause(msgspec.Struct, frozen=True):
    """Much was read that means nothing to the server: the other connections should have their turn."""


Event = (
    Authenticating
    | Opening
    | Attaching
    | Credit
    | Part
    | StoredRun
    | Aborted
    | CreditUsed
    | SettledByPeer
    | Detached
    | SessionEnded
    | ConnectionEnded
    | WindowOpened
    | Closed
    | Pause
)
