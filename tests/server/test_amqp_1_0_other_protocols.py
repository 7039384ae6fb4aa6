"""Messages of AMQP 1.0 on a DMP feed."""

from pathlib import Path

from omq.protocol.amqp.fields import LongString
from omq.protocol.amqp_1_0 import encoding
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import List, Map

from .amqp_1_0_peer import data, opened
from .conversation import serving
from .dmp_conversation import feed


async def test_a_feed_has_properties_and_headers(store: Path) -> None:
    sections = (
        (Section.PROPERTIES, List(("id", None, None, "subject"))),
        (Section.APPLICATION_PROPERTIES, Map((("color", "red"),))),
    )
    before = b"".join(b"\x00\x53%c%s" % (code, encoding.write(value)) for code, value in sections)
    async with serving(store) as host, opened(host.port) as client:
        principal = await host.connect()
        consumer = await feed(host, principal, b"(Get t From_current)")
        await client.sender("t")
        for size in (4, 200_000):  # in an envelope with others, and in one that leaves in pieces
            await client.publish_long(before + data(bytes(size)))
            (envelope,) = await consumer.take(1)
            assert envelope.body == bytes(size)
            assert (envelope.head.exchange, envelope.head.routing_key) == (b"", b"subject")
            assert envelope.head.properties.message_id == b"id"
            headers = envelope.head.properties.headers
            assert headers is not None
            assert headers.entries[0] == (b"color", LongString(b"red"))
            assert [name for name, _ in headers.entries] == [b"color", b"amqp-1.0"]
        await client.publish(data(b"plain"))
        (envelope,) = await consumer.take(1)
        assert (envelope.body, envelope.head.routing_key) == (b"plain", b"t")
