"""The client library for asyncio and Trio: `async with omq.client.connect("omq://host:port") as client:`."""

from omq.client.bulk import Blocks
from omq.client.client import Client
from omq.client.connecting import Connecting, connect, warn_of_gap
from omq.client.errors import (
    BodyTooLong,
    ConnectionFailed,
    ConnectionLost,
    FeedFailed,
    Gap,
    HandshakeRefused,
    MessageTooLong,
    OmqError,
    ProtocolError,
    PublishRefused,
    ReplyBlocked,
    ServerError,
    SinkClosed,
    SinkFailed,
)
from omq.client.feed import Feed, FeedRuns, OpenMessages
from omq.client.opened import BodyPieces, OpenMessage
from omq.client.sink import Sink
from omq.client.subscription import Runs, Subscription
from omq.client.watching import Numbers, Round, Rounds
from omq.model import (
    BlockInfo,
    Delivery,
    FromBeginning,
    FromCurrent,
    FromMessage,
    Persistence,
    Persistent,
    Replay,
    Sync,
    Topic,
    TopicInfo,
    Transient,
)
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp.envelopes import Envelope, EnvelopeRun
from omq.protocol.dmp.responses import Response
from omq.protocol.omq.blocks import Block
from omq.protocol.omq.frames import MessageRun
from omq.protocol.omq.types import Message

__all__ = [
    "Block",
    "BlockInfo",
    "Blocks",
    "BodyPieces",
    "BodyTooLong",
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
    "MessageTooLong",
    "Numbers",
    "OmqError",
    "OpenMessage",
    "OpenMessages",
    "Persistence",
    "Persistent",
    "Properties",
    "ProtocolError",
    "PublishRefused",
    "Replay",
    "ReplyBlocked",
    "Response",
    "Round",
    "Rounds",
    "Runs",
    "ServerError",
    "Sink",
    "SinkClosed",
    "SinkFailed",
    "Subscription",
    "Sync",
    "Topic",
    "TopicInfo",
    "Transient",
    "connect",
    "warn_of_gap",
]
