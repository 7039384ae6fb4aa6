"""Requests and answers of the command Manage: queues, exchanges, bindings. No protocol owns these types."""

from msgspec import Struct

# -- values -------------------------------------------------------------------------------------------------


class Queue(Struct, frozen=True):
    """The destination of a binding: a topic."""

    name: bytes


class Exchange(Struct, frozen=True):
    """The destination of a binding: an exchange."""

    name: bytes


Destination = Queue | Exchange


class String(Struct, frozen=True):
    """The value of an argument of a binding."""

    value: bytes


class Int(Struct, frozen=True):
    """The value of an argument of a binding: an integer of 64 bits."""

    value: int


class Bool(Struct, frozen=True):
    """The value of an argument of a binding."""

    value: bool


class Void(Struct, frozen=True):
    """The value of an argument of a binding: the header must be present."""


class Other(Struct, frozen=True):
    """The value of an argument of another AMQP type, as text. It cannot be sent to the server."""

    text: bytes


Value = String | Int | Bool | Void | Other


class Argument(Struct, frozen=True):
    """An argument of a binding."""

    name: bytes
    value: Value


class Change(Struct, frozen=True):
    """A new value of an option of a queue; None removes it."""

    option: bytes
    value: bytes | None


NUMBERS = ("ttl_ms", "expires_ms", "max_length", "max_octets", "delivery_limit")
"""The options of a queue that are numbers."""

NAMES = ("dead_letter_exchange", "dead_letter_key")
"""The options of a queue that are names."""

OPTIONS = (*NUMBERS[:4], "overflow", *NAMES, *NUMBERS[4:])
"""The options of a queue that may be set with a `Change`."""

OVERFLOWS = (b"drop-head", b"reject-publish", b"reject-publish-dlx")

LONGEST_NAME = 255


def problem_of(change: Change) -> str | None:
    """Return the problem of a change; None if there is none."""
    name, value = change.option.decode("ascii", "backslashreplace"), change.value
    if name not in OPTIONS:
        return f"{name!r} is none of {', '.join(OPTIONS)}"
    if name == "overflow":
        *others, last = map(bytes.decode, OVERFLOWS)
        return None if value in OVERFLOWS else f"overflow must be {', '.join(others)} or {last}"
    if value is None:
        return None
    if name in NAMES:
        return f"{name} is longer than {LONGEST_NAME} octets" if len(value) > LONGEST_NAME else None
    if not value.isdigit() or len(value) > 15 or (name == "expires_ms" and not int(value)):
        return f"{name} must be a number {'above 0' if name == 'expires_ms' else 'that is not negative'}"
    return None


class ExchangeFields(Struct, frozen=True):
    """The values of an exchange, in requests and answers."""

    name: bytes
    type: bytes
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: bytes | None


class BindingFields(Struct, frozen=True):
    """The values of a binding, in requests and answers."""

    source: bytes
    destination: Destination
    key: bytes
    arguments: tuple[Argument, ...]


# -- requests -----------------------------------------------------------------------------------------------


class ListQueues(Struct, frozen=True):
    """The queues from this index on."""

    first: int


class ListExchanges(Struct, frozen=True):
    """The exchanges from this index on."""

    first: int


class ListBindings(Struct, frozen=True):
    """The bindings from this index on."""

    first: int


class DeclareExchange(ExchangeFields, frozen=True):
    """Make an exchange, or check the values of the one that exists."""


class DeleteExchange(Struct, frozen=True):
    name: bytes


class Bind(BindingFields, frozen=True):
    """Make a binding unless there is one with these values."""


class Unbind(BindingFields, frozen=True):
    """Delete the binding with these values."""


class Purge(Struct, frozen=True):
    """Delete the messages of a queue that are ready."""

    queue: bytes


class Peek(Struct, frozen=True):
    """Show messages of a queue from an id on, without taking them."""

    queue: bytes
    first: int
    count: int


class ChangeQueue(Struct, frozen=True):
    """Change options of a queue that is in use."""

    queue: bytes
    changes: tuple[Change, ...]


class Move(Struct, frozen=True):
    """Move ready messages to another queue; None: each to the queue in which it became a dead letter."""

    queue: bytes
    to: bytes | None
    count: int


class DeclareQueue(Struct, frozen=True):
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


class QueueInfo(Struct, frozen=True):
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
    """The milliseconds since the oldest unacknowledged message was given to a consumer; None if there is
    none.
    """
    options: tuple[Change, ...]
    """The options that are set, by name."""


class ExchangeInfo(ExchangeFields, frozen=True):
    """One exchange."""


class BindingInfo(BindingFields, frozen=True):
    """One binding."""


class MessageInfo(Struct, frozen=True):
    """One message of a queue."""

    id: int
    size: int
    """The octets of the whole body."""
    body: bytes
    """The beginning of the body."""
    exchange: bytes
    key: bytes


class Queues(Struct, frozen=True):
    list: tuple[QueueInfo, ...]


class Exchanges(Struct, frozen=True):
    list: tuple[ExchangeInfo, ...]


class Bindings(Struct, frozen=True):
    list: tuple[BindingInfo, ...]


class Messages(Struct, frozen=True):
    list: tuple[MessageInfo, ...]


class Done(Struct, frozen=True):
    """The request is done. `count`: the number of messages, queues or other objects that it changed."""

    count: int


Answer = Queues | Exchanges | Bindings | Messages | Done
