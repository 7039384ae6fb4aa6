"""The options of a queue: the arguments of AMQP's queue.declare, typed."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from enum import Enum

import msgspec

from omq.drivers.reasons import Inequivalent
from omq.model import Sync


class QueueKind(Enum):
    """The queue types of RabbitMQ that are round-robin topics. They differ in name only: every queue counts
    deliveries, and the sync level decides how safe a message is.
    """

    CLASSIC = "classic"
    QUORUM = "quorum"


class Overflow(Enum):
    """The behaviour at the length limit."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"
    """The refused messages are dead letters, too."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options of a queue. The default ones are those of a topic that a Declare command makes."""

    durable: bool = False
    exclusive: bool = False
    """Whether the queue belongs to the connection that declared it, and ends with it. It is not durable."""
    auto_delete: bool = False
    """Whether the queue is deleted when its last consumer has gone."""
    kind: QueueKind = QueueKind.CLASSIC
    sync: Sync | None = None
    """The sync level of a durable queue; None leaves it to the configuration."""
    ttl_ms: int | None = None
    """The greatest number of milliseconds that a message may wait; None for no limit."""
    expires_ms: int | None = None
    """The number of milliseconds without use after which the queue is deleted; None for never."""
    max_length: int | None = None
    """The greatest number of messages that are ready."""
    max_octets: int | None = None
    """The greatest number of octets that the bodies of the messages that are ready have together."""
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: bytes | None = None
    dead_letter_key: bytes | None = None
    """The routing key of dead letters; None keeps that of the message."""
    max_priority: int | None = None
    delivery_limit: int | None = None
    """The number of times that a message may be delivered again; then it is a dead letter. None for no limit.
    """
    single_active: bool = False
    """Whether one consumer gets all messages, and the next one only after it has gone."""

    def __post_init__(self) -> None:
        if self.exclusive and self.durable:
            raise ValueError("an exclusive queue ends with its connection, and cannot be durable")

    @property
    def are_plain(self) -> bool:
        """Whether each message waits for any consumer, in turn: no option limits the queue or its messages,
        or chooses the consumer.
        """
        limits = (self.ttl_ms, self.max_length, self.max_octets, self.max_priority, self.delivery_limit)
        return not self.single_active and all(limit is None for limit in limits)

    def changed(self, wanted: "QueueOptions") -> "QueueOptions":
        """Return these options with those of the wanted ones that may change while the queue exists."""
        return replace(self, **{name: getattr(wanted, name) for name in CHANGEABLE})

    def encode(self) -> bytes:
        """Return the octets that the catalogue stores."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(octets: bytes) -> "QueueOptions":
        """Return the options that were stored. Raises msgspec.DecodeError."""
        return msgspec.msgpack.decode(octets, type=QueueOptions)


CHANGEABLE = (
    "ttl_ms",
    "expires_ms",
    "max_length",
    "max_octets",
    "overflow",
    "dead_letter_exchange",
    "dead_letter_key",
    "delivery_limit",
)
"""The options that may change while the queue exists."""

DEFAULT = QueueOptions()
PERSISTENT = QueueOptions(durable=True)
"""The options of a persistent topic that a Declare command makes."""

_ARGUMENTS = {
    "durable": "durable",
    "exclusive": "exclusive",
    "auto_delete": "auto_delete",
    "kind": "x-queue-type",
    "sync": "x-omq-sync",
    "ttl_ms": "x-message-ttl",
    "expires_ms": "x-expires",
    "max_length": "x-max-length",
    "max_octets": "x-max-length-bytes",
    "overflow": "x-overflow",
    "dead_letter_exchange": "x-dead-letter-exchange",
    "dead_letter_key": "x-dead-letter-routing-key",
    "max_priority": "x-max-priority",
    "delivery_limit": "x-delivery-limit",
    "single_active": "x-single-active-consumer",
}
"""The names that AMQP clients know the options by."""


def difference(queue: bytes, received: QueueOptions, current: QueueOptions) -> Inequivalent | None:
    """Return the refusal for the first option in which a declaration differs from the queue that exists;
    None where they agree. A declaration without a sync level agrees with each.
    """
    for field in fields(QueueOptions):
        wanted, known = getattr(received, field.name), getattr(current, field.name)
        if wanted == known or (field.name == "sync" and None in (wanted, known)):
            continue
        what = f"queue '{queue.decode(errors='replace')}'"
        return Inequivalent(what, _ARGUMENTS[field.name], _text(wanted), _text(known))
    return None


def change_needed(named: Collection[str], wanted: QueueOptions, current: QueueOptions) -> str | None:
    """Return the sentence about those of the named options in which a queue that exists differs from what is
    wanted; None where they agree.
    """
    differing = [name for name in CHANGEABLE if name in named]
    differing = [name for name in differing if getattr(wanted, name) != getattr(current, name)]
    if not differing:
        return None
    has = ", ".join(_assignment(name, getattr(current, name)) for name in differing)
    return f"the queue exists with {has}; change it with `omq queues change`"


def _assignment(name: str, value: object) -> str:
    return f"no {name}" if value is None else f"{name}={_text(value)}"


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return f"'{str(value).lower()}'"
        case Enum():
            return f"'{str(value.value).lower()}'"
        case bytes():
            return f"'{value.decode(errors='replace')}'"
        case _:
            return str(value)
