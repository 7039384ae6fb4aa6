"""The OCaml types of the protocol (docs/PROTOCOL.md, "Types"), as frozen records and enums.

Strings are octets: a topic, an id and a body are `bytes` and need not be UTF-8.
Every variant is a class, and a union names the OCaml type; `match` on them with `assert_never`.
"""

from msgspec import Struct

from omq import management, watching
from omq.model import BlockInfo, Delivery, Persistence, Replay, Topic, TopicInfo


class Message(Struct, frozen=True):
    """`Message.t`: its id within the topic, the topic's id, and the body."""

    id: int
    topic: int
    body: bytes


# -- Client.t: the commands -------------------------------------------------------------------------------


class Connect(Struct, frozen=True):
    """The first command of a connection: the version agreed in the handshake, and the client's id."""

    version: int
    id: bytes


class Subscribe(Struct, frozen=True):
    topic: bytes
    replay: Replay


class Unsubscribe(Struct, frozen=True):
    topic: bytes


class Ack(Struct, frozen=True):
    """A sign of life. `time` is the client's clock, in microseconds since the epoch."""

    time: int


class Publish(Struct, frozen=True):
    topic: bytes
    body: bytes


class Declare(Struct, frozen=True):
    topic: bytes
    delivery: Delivery
    persistence: Persistence


class Confirm(Struct, frozen=True):
    n: int


class Delete(Struct, frozen=True):
    topic: bytes


class Topics(Struct, frozen=True):
    pass


class Request(Struct, frozen=True):
    """Credit: at most `n` unconfirmed messages of this round-robin topic at a time."""

    topic: bytes
    n: int


class Received(Struct, frozen=True):
    topic: bytes
    id: int


class Put(Struct, frozen=True):
    sink: bytes


class Get(Struct, frozen=True):
    feed: bytes
    replay: Replay


class Fetch(Struct, frozen=True):
    """The stored blocks that hold any of `count` messages from `first` on."""

    topic: bytes
    first: int
    count: int


class Blocks(Struct, frozen=True):
    """The list of the blocks that `Fetch` would send."""

    topic: bytes
    first: int
    count: int


class Manage(Struct, frozen=True):
    """List and change queues, exchanges and bindings."""

    request: management.Request


class Watch(Struct, frozen=True):
    """Statistics of the server and its topics in every `period` milliseconds; 0 ends them."""

    period: int


class Connections(Struct, frozen=True):
    """List connections, from this id on."""

    first: int


class Subscribers(Struct, frozen=True):
    """List the subscribers of a topic that are the furthest behind."""

    topic: bytes


class Disconnect(Struct, frozen=True):
    """End a connection."""

    id: int


class Purge(Struct, frozen=True):
    """Delete the messages of a topic."""

    topic: bytes


class Retain(Struct, frozen=True):
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


class Error(Struct, frozen=True):
    """One sentence, which begins with the constructor and argument of the answered command."""

    text: bytes


class Ping(Struct, frozen=True):
    """The server's clock, seconds since the epoch."""

    time: int


class Subscribed(Struct, frozen=True):
    topic: Topic


class Unsubscribed(Struct, frozen=True):
    topic: Topic


class Declared(Struct, frozen=True):
    topic: Topic


class Confirmed(Struct, frozen=True):
    n: int


class Leased(Struct, frozen=True):
    """The answer to `Put` and `Get`: a lease for a DMP connection, 1 to 255 printable octets."""

    lease: bytes


class TopicList(Struct, frozen=True):
    """The answer to `Topics`: frame 9."""

    topics: tuple[TopicInfo, ...]


class Deleted(Struct, frozen=True):
    topic: Topic


class StoredBlock(Struct, frozen=True):
    """Frame 8: a stored block, as `omq_storage.blocks` has it. One without messages ends the answer to a
    `Fetch`.
    """

    value: bytes | memoryview


class BlockList(Struct, frozen=True):
    """The answer to `Blocks`: frame 11."""

    blocks: tuple[BlockInfo, ...]


class Managed(Struct, frozen=True):
    """The answer to `Manage`: frame 12."""

    answer: management.Answer


class Watched(Struct, frozen=True):
    """A part of the answer to `Watch`: frame 13."""

    statistics: watching.Statistics


class ConnectionList(Struct, frozen=True):
    """The answer to `Connections`: frame 14."""

    connections: tuple[watching.ConnectionInfo, ...]


class SubscriberList(Struct, frozen=True):
    """The answer to `Subscribers`: frame 15."""

    subscribers: tuple[watching.SubscriberInfo, ...]


class Done(Struct, frozen=True):
    """The answer to `Disconnect`, `Purge` and `Retain`: frame 16. `count`: the number of connections that
    were ended, of messages that were deleted, or of topics that were changed.
    """

    count: int


Frame = (
    Error | Ping | Message | Subscribed | Unsubscribed
    | Declared | Confirmed | Leased | StoredBlock | TopicList | Deleted | BlockList | Managed
    | Watched | ConnectionList | SubscriberList | Done
)  # fmt: skip
