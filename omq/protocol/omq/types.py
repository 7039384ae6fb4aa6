"""The OCaml types of the protocol (docs/PROTOCOL.md, "Types"), as frozen dataclasses and enums.

Strings are octets: a topic, an id and a body are `bytes` and need not be UTF-8.
Every variant is a class, and a union names the OCaml type; `match` on them with `assert_never`.
"""

from dataclasses import dataclass

from omq import management, watching
from omq.model import BlockInfo, Delivery, Persistence, Replay, Topic, TopicInfo


@dataclass(frozen=True, slots=True)
class Message:
    """`Message.t`: its id within the topic, the topic's id, and the body."""

    id: int
    topic: int
    body: bytes


# -- Client.t: the commands -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """The first command of a connection: the version agreed in the handshake, and the client's id."""

    version: int
    id: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    topic: bytes
    replay: Replay


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    topic: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """A sign of life. `time` is the client's clock, in microseconds since the epoch."""

    time: int


@dataclass(frozen=True, slots=True)
class Publish:
    topic: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Declare:
    topic: bytes
    delivery: Delivery
    persistence: Persistence


@dataclass(frozen=True, slots=True)
class Confirm:
    n: int


@dataclass(frozen=True, slots=True)
class Delete:
    topic: bytes


@dataclass(frozen=True, slots=True)
class Topics:
    pass


@dataclass(frozen=True, slots=True)
class Request:
    """Credit: at most `n` unconfirmed messages of this round-robin topic at a time."""

    topic: bytes
    n: int


@dataclass(frozen=True, slots=True)
class Received:
    topic: bytes
    id: int


@dataclass(frozen=True, slots=True)
class Put:
    sink: bytes


@dataclass(frozen=True, slots=True)
class Get:
    feed: bytes
    replay: Replay


@dataclass(frozen=True, slots=True)
class Fetch:
    """The stored blocks that hold any of `count` messages from `first` on."""

    topic: bytes
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """The list of the blocks that `Fetch` would send."""

    topic: bytes
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Manage:
    """List and change queues, exchanges and bindings."""

    request: management.Request


@dataclass(frozen=True, slots=True)
class Watch:
    """Statistics of the server and its topics in every `period` milliseconds; 0 ends them."""

    period: int


@dataclass(frozen=True, slots=True)
class Connections:
    """List connections, from this id on."""

    first: int


@dataclass(frozen=True, slots=True)
class Subscribers:
    """List the subscribers of a topic that are the furthest behind."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class Disconnect:
    """End a connection."""

    id: int


@dataclass(frozen=True, slots=True)
class Purge:
    """Delete the messages of a topic."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class Retain:
    """Change the retention of a topic."""

    topic: bytes
    retention: watching.Retention


Command = (
    Connect | Subscribe | Unsubscribe | Ack
    | Publish | Declare | Confirm | Delete | Topics
    | Request | Received | Put | Get | Fetch | Blocks | Manage
    | Watch | Connections | Subscribers | Disconnect | Purge | Retain
)  # fmt: skip


# -- Server.t: the frames ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Error:
    """One sentence, which begins with the constructor and argument of the answered command."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """The server's clock, seconds since the epoch."""

    time: int


@dataclass(frozen=True, slots=True)
class Subscribed:
    topic: Topic


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    topic: Topic


@dataclass(frozen=True, slots=True)
class Declared:
    topic: Topic


@dataclass(frozen=True, slots=True)
class Confirmed:
    n: int


@dataclass(frozen=True, slots=True)
class Leased:
    """The answer to `Put` and `Get`: a lease for a DMP connection, 1 to 255 printable octets."""

    lease: bytes


@dataclass(frozen=True, slots=True)
class TopicList:
    """The answer to `Topics`: frame 9."""

    topics: tuple[TopicInfo, ...]


@dataclass(frozen=True, slots=True)
class Deleted:
    topic: Topic


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Frame 8: a stored block, as `omq_storage.blocks` has it. One without messages ends the answer to a
    `Fetch`.
    """

    value: bytes | memoryview


@dataclass(frozen=True, slots=True)
class BlockList:
    """The answer to `Blocks`: frame 11."""

    blocks: tuple[BlockInfo, ...]


@dataclass(frozen=True, slots=True)
class Managed:
    """The answer to `Manage`: frame 12."""

    answer: management.Answer


@dataclass(frozen=True, slots=True)
class Watched:
    """A part of the answer to `Watch`: frame 13."""

    statistics: watching.Statistics


@dataclass(frozen=True, slots=True)
class ConnectionList:
    """The answer to `Connections`: frame 14."""

    connections: tuple[watching.ConnectionInfo, ...]


@dataclass(frozen=True, slots=True)
class SubscriberList:
    """The answer to `Subscribers`: frame 15."""

    subscribers: tuple[watching.SubscriberInfo, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to `Disconnect`, `Purge` and `Retain`: frame 16. How many things were changed."""

    count: int


Frame = (
    Error | Ping | Message | Subscribed | Unsubscribed
    | Declared | Confirmed | Leased | StoredBlock | TopicList | Deleted | BlockList | Managed
    | Watched | ConnectionList | SubscriberList | Done
)  # fmt: skip
