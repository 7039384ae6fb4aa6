"""What the command Manage asks for and answers: queues, exchanges, bindings. No protocol owns these types."""

from dataclasses import dataclass

# -- values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queue:
    """The destination of a binding: a topic."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """The destination of a binding: an exchange."""

    name: bytes


Destination = Queue | Exchange


@dataclass(frozen=True, slots=True)
class String:
    """The value of an argument of a binding."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Int:
    """The value of an argument of a binding: an integer of 64 bits."""

    value: int


@dataclass(frozen=True, slots=True)
class Bool:
    """The value of an argument of a binding."""

    value: bool


@dataclass(frozen=True, slots=True)
class Void:
    """The value of an argument of a binding: the header must be present."""


@dataclass(frozen=True, slots=True)
class Other:
    """The value of an argument of another AMQP type, as text. It cannot be sent to the server."""

    text: bytes


Value = String | Int | Bool | Void | Other


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a binding."""

    name: bytes
    value: Value


@dataclass(frozen=True, slots=True)
class Change:
    """A new value of an option of a queue; None removes it."""

    option: bytes
    value: bytes | None


NUMBERS = ("ttl_ms", "expires_ms", "max_length", "max_octets", "delivery_limit")
"""The options of a queue that are numbers."""

NAMES = ("dead_letter_exchange", "dead_letter_key")
"""The options of a queue that are names."""

OPTIONS = (*NUMBERS[:4], "overflow", *NAMES, *NUMBERS[4:])
"""The options of a queue that may be set with a `Change`."""

OVERFLOWS = (b"drop-head", b"reject-publish")

LONGEST_NAME = 255


def problem_of(change: Change) -> str | None:
    """Return what is wrong with a change, if anything."""
    name, value = change.option.decode("ascii", "backslashreplace"), change.value
    if name not in OPTIONS:
        return f"{name!r} is none of {', '.join(OPTIONS)}"
    if name == "overflow":
        return None if value in OVERFLOWS else f"overflow must be {b' or '.join(OVERFLOWS).decode()}"
    if value is None:
        return None
    if name in NAMES:
        return f"{name} is longer than {LONGEST_NAME} octets" if len(value) > LONGEST_NAME else None
    if not value.isdigit() or len(value) > 15 or (name == "expires_ms" and not int(value)):
        return f"{name} must be a number {'above 0' if name == 'expires_ms' else 'that is not negative'}"
    return None


# -- requests -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListQueues:
    """The queues from this index on."""

    first: int


@dataclass(frozen=True, slots=True)
class ListExchanges:
    """The exchanges from this index on."""

    first: int


@dataclass(frozen=True, slots=True)
class ListBindings:
    """The bindings from this index on."""

    first: int


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    name: bytes
    type: bytes
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: bytes | None


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    name: bytes


@dataclass(frozen=True, slots=True)
class Bind:
    source: bytes
    destination: Destination
    key: bytes
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Unbind:
    source: bytes
    destination: Destination
    key: bytes
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Purge:
    """Delete the messages of a queue that are ready."""

    queue: bytes


@dataclass(frozen=True, slots=True)
class Peek:
    """Show messages of a queue from an id on, without taking them."""

    queue: bytes
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ChangeQueue:
    """Change options of a queue that is in use."""

    queue: bytes
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Move ready messages to another queue; None: each to the queue in which it became a dead letter."""

    queue: bytes
    to: bytes | None
    count: int


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Create a queue with options; if it exists, check that it has this persistence and these options."""

    queue: bytes
    persistence: bytes
    """A key of `omq.model.PERSISTENCES`."""
    options: tuple[Change, ...]


Request = (
    ListQueues | ListExchanges | ListBindings | DeclareExchange | DeleteExchange
    | Bind | Unbind | Purge | Peek | ChangeQueue | Move | DeclareQueue
)  # fmt: skip


def subject(request: Request) -> bytes | None:
    """Return the name that a request is about; None for a list."""
    match request:
        case ListQueues() | ListExchanges() | ListBindings():
            return None
        case DeclareExchange() | DeleteExchange():
            return request.name
        case Bind() | Unbind():
            return request.source
        case Purge() | Peek() | ChangeQueue() | Move() | DeclareQueue():
            return request.queue


# -- answers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue."""

    id: int
    name: bytes
    durable: bool
    exclusive: bool
    auto_delete: bool
    ready: int
    unacknowledged: int
    consumers: int
    oldest_ms: int | None
    """How long the oldest unacknowledged message has been with a consumer; None if there is none."""
    options: tuple[Change, ...]
    """The options that are set, by name."""


@dataclass(frozen=True, slots=True)
class ExchangeInfo:
    """One exchange."""

    name: bytes
    type: bytes
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: bytes | None


@dataclass(frozen=True, slots=True)
class BindingInfo:
    """One binding."""

    source: bytes
    destination: Destination
    key: bytes
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """One message of a queue."""

    id: int
    size: int
    """The octets of the whole body."""
    body: bytes
    """The beginning of the body."""
    exchange: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Queues:
    list: tuple[QueueInfo, ...]


@dataclass(frozen=True, slots=True)
class Exchanges:
    list: tuple[ExchangeInfo, ...]


@dataclass(frozen=True, slots=True)
class Bindings:
    list: tuple[BindingInfo, ...]


@dataclass(frozen=True, slots=True)
class Messages:
    list: tuple[MessageInfo, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The request is done, for N things."""

    count: int


Answer = Queues | Exchanges | Bindings | Messages | Done
