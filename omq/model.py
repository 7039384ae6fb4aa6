"""The domain types: topics, what they promise, and where reading begins. No protocol owns them.

The OCaml types of the protocol have the same names (docs/PROTOCOL.md, "Types"); `omq.protocol.omq` reads and
writes them as sexps. A topic's name is octets, and need not be UTF-8.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Literal, assert_never

from msgspec import Struct

MAX_TOPIC_OCTETS = 255
"""The longest topic name. The shortest has one octet."""

DEFAULT_MAX_BODY = 64 * 2**20
"""The default for the longest body of a message, in octets."""

LONGEST_BODY = (1 << 32) - 1 - 13
"""Octets: the longest body that any configuration may allow, because the length of a Message frame counts 13
octets more."""

LONGEST_HELD_BODY = (1 << 30) - 1 - 17
"""Octets: the longest body of a message in a block. Its frame has 17 octets more, and a block has less than
1 GiB of frames."""

LONGEST_RETENTION = 1 << 53
"""The highest limits of retention, octets or milliseconds."""


class Delivery(Enum):
    """`Delivery.t`: who gets a message. The values are the OCaml constructors."""

    BROADCAST = "Broadcast"
    ROUND_ROBIN = "Round_robin"


class Sync(Enum):
    """`Sync.t`: how safe a persistent message is before it is sent on."""

    STRONG = "Strong"
    WEAK = "Weak"
    ASYNC = "Async"


class Persistent(Struct, frozen=True):
    """`Persistence.Persistent`: kept on disk, with a sync level."""

    sync: Sync


class Transient(Struct, frozen=True):
    """`Persistence.Transient`: kept in memory only."""


Persistence = Persistent | Transient


# -- names of types -----------------------------------------------------------------------------------------

DeliveryName = Literal["broadcast", "round-robin"]
PersistenceName = Literal["transient", "strong", "weak", "async"]

DELIVERIES: Mapping[DeliveryName, Delivery] = {
    "broadcast": Delivery.BROADCAST,
    "round-robin": Delivery.ROUND_ROBIN,
}
PERSISTENCES: Mapping[PersistenceName, Persistence] = {
    "transient": Transient(),
    "strong": Persistent(Sync.STRONG),
    "weak": Persistent(Sync.WEAK),
    "async": Persistent(Sync.ASYNC),
}
"""The types of topics by the names that command lines and configurations use."""

_NAMES_OF_DELIVERIES = {delivery: name for name, delivery in DELIVERIES.items()}
_NAMES_OF_PERSISTENCES = {persistence: name for name, persistence in PERSISTENCES.items()}


def delivery_name(delivery: Delivery) -> DeliveryName:
    """Return the key of DELIVERIES."""
    return _NAMES_OF_DELIVERIES[delivery]


def persistence_name(persistence: Persistence) -> PersistenceName:
    """Return the key of PERSISTENCES."""
    return _NAMES_OF_PERSISTENCES[persistence]


def stored_persistence(persistence: Persistence) -> str:
    """Return the text that the catalogue of a store has for it: `Transient`, or the name of its sync."""
    return persistence_name(persistence).capitalize()


def read_stored_persistence(text: str) -> Persistence:
    """Return the persistence in a text of `stored_persistence`. Raises ValueError for any other text."""
    for persistence in PERSISTENCES.values():
        if stored_persistence(persistence) == text:
            return persistence
    raise ValueError(f"{text!r} is not a persistence")


def declaration(delivery: Delivery, persistence: Persistence) -> str:
    """Return the types as a Declare command has them: `Broadcast (Persistent Weak)`."""
    match persistence:
        case Transient():
            return f"{delivery.value} Transient"
        case Persistent(sync):
            return f"{delivery.value} (Persistent {sync.value})"
        case _:
            assert_never(persistence)


# -- starts of reading, and lists of topics -----------------------------------------------------------------


class FromBeginning(Struct, frozen=True):
    """`Replay.From_beginning`: every message kept, then live."""


class FromMessage(Struct, frozen=True):
    """`Replay.From_message`: from this message id on, itself included, then live."""

    id: int


class FromCurrent(Struct, frozen=True):
    """`Replay.From_current`: live messages only."""


Replay = FromBeginning | FromMessage | FromCurrent


class Topic(Struct, frozen=True):
    """`Topic.t`: a topic's id (0..2^31-1) and its name."""

    id: int
    topic: bytes


class TopicInfo(Struct, frozen=True):
    """One record of the Topics frame. `first` and `last` are 0 while the topic has never had a message."""

    id: int
    topic: bytes
    delivery: Delivery
    persistence: Persistence
    messages: int
    bytes: int
    first: int
    last: int
    subscribers: int

    @property
    def next(self) -> int:
        """The id of the next message."""
        return self.last + 1

    @property
    def oldest(self) -> int:
        """The id of the oldest message that is kept; `next` if none is."""
        return self.first if self.messages else self.next


class BlockInfo(Struct, frozen=True):
    """One record of the Blocks frame."""

    first: int
    count: int
    time: int
    """Microseconds since the epoch, of the first message."""
    bytes: int
    """Octets of the stored value: the payload of its Block frame."""

    @property
    def next(self) -> int:
        """The id after that of the last message."""
        return self.first + self.count


def check_topic(name: bytes) -> str | None:
    """Return the reason why `name` cannot name a topic, or None if it can: a topic's name has 1 to 255
    octets.
    """
    if not name:
        return "the topic's name is empty"
    if len(name) > MAX_TOPIC_OCTETS:
        return f"the topic's name has {len(name)} octets, more than {MAX_TOPIC_OCTETS}"
    return None
