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


Request = (
    ListQueues | ListExchanges | ListBindings | DeclareExchange | DeleteExchange
    | Bind | Unbind | Purge | Peek | ChangeQueue | Move
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
        case Purge() | Peek() | ChangeQueue() | Move():
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
    """The request is done, for so many things."""

    count: int


Answer = Queues | Exchanges | Bindings | Messages | Done
