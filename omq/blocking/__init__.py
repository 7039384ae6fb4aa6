"""The synchronous client, for scripts, notebooks and programs with threads:
`with omq.blocking.connect("omq://host:port") as client: ...`.

Its types and its exceptions are those of `omq.client`; docs/CLIENTS.md describes it.
"""

from omq.blocking.blocks import Blocks
from omq.blocking.client import Client, connect
from omq.blocking.opened import BodyPieces, OpenMessage
from omq.blocking.receiving import Feed, Subscription
from omq.blocking.sink import Sink
from omq.blocking.watching import Rounds

__all__ = [
    "Blocks",
    "BodyPieces",
    "Client",
    "Feed",
    "OpenMessage",
    "Rounds",
    "Sink",
    "Subscription",
    "connect",
]
