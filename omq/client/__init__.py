"""The Trio client library: `async with omq.client.connect("omq://host:port") as client: ...`."""

from omq.client.client import Client, Connecting, connect, warn_of_gap
from omq.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    Gap,
    HandshakeRefused,
    OmqError,
    ProtocolError,
    PublishRefused,
    ReplyBlocked,
    ServerError,
)
from omq.client.subscription import Runs, Subscription
from omq.protocol.frames import MessageRun
from omq.protocol.types import (
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
    "Client",
    "Connecting",
    "ConnectionFailed",
    "ConnectionLost",
    "Delivery",
    "FromBeginning",
    "FromCurrent",
    "FromMessage",
    "Gap",
    "HandshakeRefused",
    "Message",
    "MessageRun",
    "OmqError",
    "Persistence",
    "Persistent",
    "ProtocolError",
    "PublishRefused",
    "Replay",
    "ReplyBlocked",
    "Runs",
    "ServerError",
    "Subscription",
    "Sync",
    "Topic",
    "TopicInfo",
    "Transient",
    "connect",
    "warn_of_gap",
]
