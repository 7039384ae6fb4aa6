"""The Trio client library: `async with omq.client.connect("omq://host:port") as client: ...`."""

from omq.client.bulk import Blocks
from omq.client.client import Client
from omq.client.connecting import Connecting, connect, warn_of_gap
from omq.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    FeedFailed,
    Gap,
    HandshakeRefused,
    OmqError,
    ProtocolError,
    PublishRefused,
    ReplyBlocked,
    ServerError,
    SinkFailed,
)
from omq.client.feed import Feed, FeedRuns
from omq.client.sink import Sink
from omq.client.subscription import Runs, Subscription
from omq.protocol.blocks import Block
from omq.protocol.dmp_envelopes import Envelope, EnvelopeRun
from omq.protocol.dmp_head import Head
from omq.protocol.dmp_responses import Response
from omq.protocol.frames import MessageRun
from omq.protocol.properties import Properties
from omq.protocol.types import (
    BlockInfo,
    Delivery,
    FromBeginning,
    FromCurrent,
    FromMessage,
    Message,
    Persistence,
    Persistent,
    Replay,
    Sync,
    Topic,
    TopicInfo,
    Transient,
)

__all__ = [
    "Block",
    "BlockInfo",
    "Blocks",
    "Client",
    "Connecting",
    "ConnectionFailed",
    "ConnectionLost",
    "Delivery",
    "Envelope",
    "EnvelopeRun",
    "Feed",
    "FeedFailed",
    "FeedRuns",
    "FromBeginning",
    "FromCurrent",
    "FromMessage",
    "Gap",
    "HandshakeRefused",
    "Head",
    "Message",
    "MessageRun",
    "OmqError",
    "Persistence",
    "Persistent",
    "Properties",
    "ProtocolError",
    "PublishRefused",
    "Replay",
    "ReplyBlocked",
    "Response",
    "Runs",
    "ServerError",
    "Sink",
    "SinkFailed",
    "Subscription",
    "Sync",
    "Topic",
    "TopicInfo",
    "Transient",
    "connect",
    "warn_of_gap",
]
