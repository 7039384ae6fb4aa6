"""Messages of AMQP 1.0, as consumers of DMP and AMQP 0-9-1 see them."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp import fields, head
from omq.protocol.amqp.fields import NumberType as Field
from omq.protocol.amqp.fields import Table
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp_0_9 import delivery
from omq.protocol.amqp_1_0 import encoding, sections, stored
from omq.protocol.amqp_1_0.expansion import expanded
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import (
    Array,
    Binary,
    Described,
    List,
    Map,
    Number,
    NumberType,
    Opaque,
    OpaqueType,
    Symbol,
    Value,
)

ID = UUID("12345678-1234-5678-1234-567812345678")


def section(section: Section, value: Value) -> bytes:
    return b"\x00\x53%c%s" % (section, encoding.write(value))


def stored_head(*parts: bytes) -> bytes:
    """Return the stored head of a message with these sections before its body."""
    return stored.store(b"".join(parts) + section(Section.DATA, Binary(b"body"))).head


def seen(octets: bytes, topic: bytes = b"topic") -> tuple[Head, dict[bytes, fields.Value]]:
    """Return the expanded head without its headers, and the headers without `amqp-1.0`."""
    shown = head.decode(expanded(octets, topic, Portion()))
    assert shown.properties.headers is not None
    kept = head.decode(octets).properties.headers
    assert kept is not None
    assert shown.properties.headers.entries[-1:] == kept.entries
    return shown, dict(shown.properties.headers.entries[:-1])


def test_all_properties() -> None:
    octets = stored_head(
        section(
            Section.HEADER, List((True, Number(NumberType.UBYTE, 4), Number(NumberType.UINT, 60_000)))
        ),
        section(
            Section.PROPERTIES,
            List(
                (
                    "m", Binary(b"u"), "to", "subject", "r", Opaque(OpaqueType.UUID, ID.bytes),
                    Symbol("text/plain"), Symbol("gzip"), None, Number(NumberType.TIMESTAMP, 5999), "group",
                )
            ),
        ),
        section(Section.APPLICATION_PROPERTIES, Map((("n", Number(NumberType.INT, -7)),))),
    )  # fmt: skip
    shown, headers = seen(octets)
    assert headers == {b"n": fields.Number(Field.INT32, -7)}
    assert (shown.exchange, shown.routing_key) == (b"", b"subject")
    assert shown.properties == Properties(
        content_type=b"text/plain",
        content_encoding=b"gzip",
        headers=shown.properties.headers,
        delivery_mode=2,
        priority=4,
        correlation_id=str(ID).encode(),
        reply_to=b"r",
        expiration=b"60000",
        message_id=b"m",
        timestamp=5,
        user_id=b"u",
    )


def test_absent_fields_are_left_out() -> None:
    shown, headers = seen(stored_head(section(Section.PROPERTIES, List())))
    assert (shown.routing_key, headers) == (b"topic", {})
    assert shown.properties == Properties(headers=shown.properties.headers)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, fields.Void()),
        (True, fields.Boolean(True)),
        (Number(NumberType.ULONG, 2**64 - 1), fields.LongString(b"18446744073709551615")),
        (Number(NumberType.LONG, -(2**63)), fields.Number(Field.INT64, -(2**63))),
        (Number(NumberType.DOUBLE, 1.5), fields.Number(Field.FLOAT64, 1.5)),
        (Number(NumberType.TIMESTAMP, 1999), fields.Number(Field.TIMESTAMP, 1)),
        (Number(NumberType.TIMESTAMP, -1), fields.LongString(b"-1")),
        ("ü", fields.LongString("ü".encode())),
        (Symbol("s"), fields.LongString(b"s")),
        (Binary(b"\xff"), fields.ByteArray(b"\xff")),
        (Opaque(OpaqueType.UUID, ID.bytes), fields.LongString(str(ID).encode())),
        (Opaque(OpaqueType.CHAR, b"\0\0\0a"), fields.ByteArray(b"\0\0\0a")),
        (List((True, "x")), fields.Array((fields.Boolean(True), fields.LongString(b"x")))),
        (Array((True, False)), fields.Array((fields.Boolean(True), fields.Boolean(False)))),
        (Map((("a", None),)), Table(((b"a", fields.Void()),))),
        (Described(Symbol("d"), "x"), fields.LongString(b"x")),
    ],
)
def test_headers_have_the_types_of_application_properties(value: Value, field: fields.Value) -> None:
    _, headers = seen(stored_head(section(Section.APPLICATION_PROPERTIES, Map((("k", value),)))))
    assert headers == {b"k": field}


def test_names_that_no_table_has_and_the_reserved_one_are_left_out() -> None:
    entries: tuple[tuple[Value, Value], ...] = (("x" * 256, 1 == 1), (List(), True), ("amqp-1.0", True))
    _, headers = seen(stored_head(section(Section.APPLICATION_PROPERTIES, Map(entries))))
    assert headers == {}


@pytest.mark.parametrize("id", ["x" * 256, List()])
def test_an_id_that_no_property_has_is_left_out(id: Value) -> None:
    shown, _ = seen(stored_head(section(Section.PROPERTIES, List((id,)))))
    assert shown.properties.message_id is None


def test_a_dead_letter_keeps_its_names() -> None:
    octets = stored_head(section(Section.PROPERTIES, List(("m", None, None, "subject"))))
    for exchange, key in ((b"exchange", b"key"), (b"exchange", b""), (b"", b"key")):
        shown, _ = seen(head.encode(replace(head.decode(octets), exchange=exchange, routing_key=key)))
        assert (shown.exchange, shown.routing_key, shown.properties.message_id) == (exchange, key, b"m")


def test_heads_that_stay_as_they_are() -> None:
    other = head.encode(Head(b"exchange", b"key", Properties(content_type=b"text/plain")))
    long = stored_head(section(Section.APPLICATION_PROPERTIES, Map((("k", "x" * 50_000),))))
    forged = stored.store_sections(b"", [sections.SectionPlace(Section.HEADER, 0, 0, 0)]).head
    forged = forged.replace(b"\x03\x00\x00\x00\x00", b"\x03\x00\x00\x00\x01\xff") if forged else b"x"
    cut = b"\xff" + stored_head(section(Section.HEADER, List()))
    named = head.encode(Head(routing_key=b"\x08amqp-1.0x", properties=Properties(headers=Table())))
    for octets in (other, long, forged, cut, named, b""):
        assert expanded(octets, b"topic", Portion()) == octets


@given(st.binary(max_size=200))
def test_any_sections_are_a_head_or_stay(before: bytes) -> None:
    octets = stored.stored_as(stored.BodyKind.TEXT, before, b"").head
    head.decode(expanded(octets, b"topic", Portion()))


@pytest.mark.parametrize("deliveries", [0, 2])
def test_consumers_of_amqp_0_9_get_the_expanded_head(deliveries: int) -> None:
    octets = stored_head(section(Section.PROPERTIES, List(("m", None, None, "subject"))))
    own_head = head.encode(Head(routing_key=b"queue"))
    consumer = delivery.ConsumerFraming(1, b"tag", 4096, own_head, is_quorum=True)
    shown = expanded(octets, b"queue", Portion())
    properties = shown[head.names_end(shown) :]
    if deliveries:
        properties = delivery.with_number(properties, delivery.DELIVERY_COUNT, deliveries)
    for opening in (
        delivery.opening(consumer, 1, 1, octets, 4, Portion(), deliveries),
        delivery.get_opening(consumer, 1, 0, octets, 4, deliveries),
    ):
        assert b"\x00\x07subject" in opening
        assert properties in opening
