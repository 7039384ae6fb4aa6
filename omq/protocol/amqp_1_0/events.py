"""What a connection of AMQP 1.0 tells the server, in the order in which the peer said it."""

from dataclasses import dataclass

from omq.protocol.amqp_1_0.conditions import ConditionRaised
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.performatives import Error, Open, State
from omq.protocol.amqp_1_0.runs import TransferRun
from omq.protocol.amqp_1_0.unsettled import Sent


@dataclass(frozen=True, slots=True)
class Authenticating:
    """The client chose a SASL mechanism: answer with `AmqpConnection.authenticated`."""

    mechanism: str
    response: bytes
    """Its initial response; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The client opens the connection: answer with `AmqpConnection.open`."""

    open: Open


@dataclass(frozen=True, slots=True)
class Attaching:
    """The client attaches a link: answer with its `accept` or `refuse`."""

    link: SendingLink | ReceivingLink


@dataclass(frozen=True, slots=True)
class Credit:
    """The client stated the credit of a link on which the server sends: see its `credit` and `drain`."""

    link: SendingLink


@dataclass(frozen=True, slots=True)
class Part:
    """A message, or a part of one that takes several frames: its sections."""

    link: ReceivingLink
    delivery: int
    settled: bool
    octets: bytes
    begins: bool
    ends: bool


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Whole messages, in the form in which they are stored."""

    link: ReceivingLink
    run: TransferRun


@dataclass(frozen=True, slots=True)
class Aborted:
    """The client aborted a message. It has used credit."""

    link: ReceivingLink


@dataclass(frozen=True, slots=True)
class Outcome:
    """The client told the outcome of messages that were sent to it; they are settled."""

    sent: tuple[Sent[SendingLink], ...]
    state: State | None
    """None where it settled them without a state: it does not say what became of them."""
    told: bytes
    """The octets of the state; empty for None."""


@dataclass(frozen=True, slots=True)
class Detached:
    """A link is over: the client detached it, or ended its session, or closed the connection."""

    link: SendingLink | ReceivingLink
    error: Error | None


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The client takes transfers again in a session whose window was closed."""

    links: tuple[SendingLink, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is over, after what is still to be sent: by the client, or because of a problem."""

    error: Error | None
    problem: ConditionRaised | None = None
    """What the server found wrong."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Much was read that means nothing to the server: the other connections should have their turn."""


Event = (
    Authenticating
    | Opening
    | Attaching
    | Credit
    | Part
    | StoredRun
    | Aborted
    | Outcome
    | Detached
    | WindowOpened
    | Closed
    | Pause
)
