"""Exchanges and bindings as values (AMQP 0-9-1 specification, sections 2.1.2 and 3.1).

An exchange has a name in a space of its own, and holds no messages. A binding routes messages of one
exchange, its source, to a queue or to another exchange. Every topic can be the queue of a binding.
"""

from enum import Enum

from msgspec import Struct

from omq.drivers.reasons import IN_VIRTUAL_HOST, Reason, Refused
from omq.logs import quoted
from omq.protocol.amqp.fields import LongString, Table, Value

DEFAULT = b""
"""The name of the default exchange, which routes each message to the topic whose name is the routing key.
Clients can neither declare nor delete nor bind it.
"""

RESERVED = b"amq."
"""The names that begin so are the server's: clients cannot make or delete them."""

ALTERNATE = b"alternate-exchange"


def refusal_of_reserved(kind: str, name: bytes) -> Refused:
    """Return the refusal of a reserved name of a `kind`: queue or exchange."""
    return Refused(Reason.FORBIDDEN, _reserved(kind, name))


def refusal_to_delete(name: bytes) -> Refused:
    """Return the refusal to delete an exchange with a reserved name."""
    amqp = f"deletion of system exchange {quoted(name)} {IN_VIRTUAL_HOST} not allowed"
    return Refused(Reason.FORBIDDEN, _reserved("exchange", name), amqp)


def _reserved(kind: str, name: bytes) -> str:
    return f"{kind} name {quoted(name)} contains reserved prefix 'amq.*'"


def refusal_of_internal(name: bytes) -> Refused:
    """Return the refusal of a message that was published to an internal exchange."""
    text = f"cannot publish to internal exchange {quoted(name)}"
    return Refused(Reason.FORBIDDEN, text, f"{text} {IN_VIRTUAL_HOST}")


class ExchangeType(Enum):
    """The type of an exchange: the bindings by which it routes messages. The values are the names in AMQP."""

    DIRECT = "direct"
    """Bindings with the routing key of the message."""
    FANOUT = "fanout"
    """All bindings."""
    TOPIC = "topic"
    """Bindings whose pattern the routing key matches."""
    HEADERS = "headers"
    """Bindings whose arguments the headers of the message match."""


class Exchange(Struct, frozen=True):
    """A declared exchange."""

    name: bytes
    type: ExchangeType
    durable: bool = False
    auto_delete: bool = False
    """Whether it is deleted with its last binding. It needs at least one binding for that."""
    internal: bool = False
    """Whether only other exchanges route to it, and clients cannot publish to it."""
    alternate: bytes | None = None
    """The exchange that gets messages without a matching binding here."""


class DestinationKind(Enum):
    """The kind of the destination of a binding."""

    QUEUE = "queue"
    EXCHANGE = "exchange"

    __hash__ = object.__hash__  # that of Enum is in Python, and routes hash many destinations


class Destination(Struct, frozen=True):
    """The destination of a binding."""

    kind: DestinationKind
    name: bytes


class Binding(Struct, frozen=True):
    """A binding. Two bindings with the same values are one. See `binding`."""

    source: bytes
    destination: Destination
    key: bytes
    arguments: Table
    """The arguments in the order of their names, so that tables in another order are equal."""


PREDECLARED = tuple(
    Exchange(name, kind, durable=True)
    for name, kind in (
        (b"amq.direct", ExchangeType.DIRECT),
        (b"amq.fanout", ExchangeType.FANOUT),
        (b"amq.topic", ExchangeType.TOPIC),
        (b"amq.headers", ExchangeType.HEADERS),
        (b"amq.match", ExchangeType.HEADERS),
    )
)
"""The exchanges that every server has. The store has no records of them."""


def binding(source: bytes, destination: Destination, key: bytes, arguments: Table) -> Binding:
    """Return the binding with these values."""
    entries = tuple(sorted(arguments.entries, key=lambda entry: entry[0]))
    return Binding(source, destination, key, Table(entries))


def exchange_type(name: bytes) -> ExchangeType:
    """Return the type of this name. Raises Refused."""
    for kind in ExchangeType:
        if kind.value.encode() == name:
            return kind
    raise Refused(Reason.INVALID, f"unknown exchange type {quoted(name)}")


def alternate_exchange(name: bytes, arguments: Table) -> bytes | None:
    """Return the alternate exchange that the arguments of a declaration name. Raises Refused.

    The other arguments are not known, and have no effect.
    """
    value = argument(arguments, ALTERNATE)
    if value is None:
        return None
    if not isinstance(value, LongString):
        raise Refused(
            Reason.INVALID, f"invalid arg 'alternate-exchange' for exchange {quoted(name)}: not a string"
        )
    return text(value)


def argument(arguments: Table, name: bytes) -> Value | None:
    """Return the first argument of this name, or None."""
    return next((value for known, value in arguments.entries if known == name), None)


def text(value: LongString) -> bytes:
    """Return a string without the octet 0 that OpenAMQ's clients end it with."""
    return value.octets.removesuffix(b"\0")
