"""The topics that are replayed, and the heads of their messages."""

from made_stores import Topic
from serving_stores import Serving

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import LongString, Table
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties

KEYED = stored_head.encode(Head(b"", b"a key", Properties(content_type=b"text/plain")))
TABLED = stored_head.encode(Head(b"ex", b"", Properties(headers=Table(((b"n", LongString(b"7")),)))))
NUMBERED = stored_head.encode(Head(b"", b"", Properties(app_id=b"meter", message_id=b"3")))
KEYED_AND_NUMBERED = stored_head.encode(Head(b"", b"k", Properties(app_id=b"meter", message_id=b"4")))

TOPICS = {
    "plain": Topic((1, 1000, 1499)),
    "headed": Topic((10, 5), heads={2: KEYED, 3: TABLED, 9: KEYED}),
    "empty": Topic(()),
    "trimmed": Topic((100, 100), deleted=101),
}


def way(source: Serving, name: str) -> tuple[str, str]:
    return ("--server", f"omq://{source.address}") if name == "servers" else ("--path", str(source.store))
