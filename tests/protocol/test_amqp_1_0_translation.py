"""Messages of other protocols, as a consumer of AMQP 1.0 sees them."""

from dataclasses import replace
from typing import Any

import pytest

from omq.drivers.reasons import Failure, Reason
from omq.protocol.amqp import fields, head
from omq.protocol.amqp.fields import NumberType as Field
from omq.protocol.amqp.fields import Table
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp_1_0 import decoding, encoding, performatives, sections, stored, transfers, translation
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.stored import BodyKind
from omq.protocol.amqp_1_0.types import Binary, List, Map, Number, NumberType, Symbol, Value
from omq.terminals.amqp_1_0.refusals import condition_of, problem_of

ALL = head.Head(
    b"exchange",
    b"key",
    Properties(
        content_type=b"text/plain",
        content_encoding=b"gzip",
        headers=Table(
            (
                (b"n", fields.Number(Field.INT32, -7)),
                (b"when", fields.Number(Field.TIMESTAMP, 5)),
                (b"yes", fields.Boolean(True)),
                (b"price", fields.Decimal(2, 150)),
                (b"text", fields.LongString(b"hello")),
                (b"octets", fields.LongString(b"\xff")),
                (b"raw", fields.ByteArray(b"raw")),
                (b"none", fields.Void()),
                (b"list", fields.Array((fields.Number(Field.FLOAT64, 1.5),))),
                (b"table", Table(((b"a", fields.Number(Field.UINT8, 1)),))),
            )
        ),
        delivery_mode=2,
        priority=9,
        correlation_id=b"c",
        reply_to=b"r",
        expiration=b"60000",
        message_id=b"m",
        timestamp=1000,
        type=b"t",
        user_id=b"u",
        app_id=b"a",
        sender_id=b"s",
    ),
)


def found(octets: bytes) -> dict[Section, Value]:
    """Return the sections before the body of the message with this head."""
    around = translation.from_head(octets, Portion())
    message = stored.message(around, b"body")
    places = sections.find(message)
    assert message[places[-1].begin :] == b"\x00\x53\x75\xa0\x04body"
    return {place.section: decoding.read(message, place.value)[0] for place in places[:-1]}


def test_all_properties() -> None:
    seen = found(head.encode(ALL))
    assert seen[Section.HEADER] == List((True, Number(NumberType.UBYTE, 9), Number(NumberType.UINT, 60000)))
    assert seen[Section.MESSAGE_ANNOTATIONS] == Map(
        (
            (Symbol("x-exchange"), "exchange"),
            (Symbol("x-routing-key"), "key"),
            (Symbol("x-basic-type"), "t"),
            (Symbol("x-opt-app-id"), "a"),
            (Symbol("x-opt-sender-id"), "s"),
            (
                Symbol("x-opt-headers"),
                Map(
                    (
                        ("list", List((Number(NumberType.DOUBLE, 1.5),))),
                        ("table", Map((("a", Number(NumberType.UBYTE, 1)),))),
                    )
                ),
            ),
        )
    )
    assert seen[Section.PROPERTIES] == List(
        (
            "m", Binary(b"u"), None, "key", "r", "c", Symbol("text/plain"), Symbol("gzip"), None,
            Number(NumberType.TIMESTAMP, 1_000_000),
        )
    )  # fmt: skip
    assert seen[Section.APPLICATION_PROPERTIES] == Map(
        (
            ("n", Number(NumberType.INT, -7)),
            ("when", Number(NumberType.TIMESTAMP, 5000)),
            ("yes", True),
            ("price", Number(NumberType.DOUBLE, 1.5)),
            ("text", "hello"),
            ("octets", Binary(b"\xff")),
            ("raw", Binary(b"raw")),
            ("none", None),
        )
    )


def test_absent_properties_have_no_section() -> None:
    assert found(head.encode(head.Head())) == {}
    assert found(b"no head") == {}
    some = head.Head(properties=Properties(content_type=b"\xff", expiration=b"soon", message_id=b"\xff"))
    assert found(head.encode(some)) == {Section.PROPERTIES: List((Binary(b"\xff"),))}


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        (1, 1000),
        ((2**63 - 1) // 1000, (2**63 - 1) // 1000 * 1000),
        ((2**63 - 1) // 1000 + 1, 2**63 - 1),  # the greatest timestamp of AMQP 1.0
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_a_time_far_in_the_future_is_the_greatest_one(seconds: int, milliseconds: int) -> None:
    headers = Table(((b"when", fields.Number(Field.TIMESTAMP, seconds)),))
    seen = found(head.encode(head.Head(properties=Properties(timestamp=seconds, headers=headers))))
    time = Number(NumberType.TIMESTAMP, milliseconds)
    assert seen[Section.PROPERTIES] == List((*[None] * 9, time))
    assert seen[Section.APPLICATION_PROPERTIES] == Map((("when", time),))


def test_a_long_head_is_not_kept() -> None:
    headers = Table(((b"long", fields.LongString(b"x" * 5000)),))
    octets = head.encode(head.Head(properties=Properties(headers=headers)))
    assert found(octets) == {Section.APPLICATION_PROPERTIES: Map((("long", "x" * 5000),))}


@pytest.mark.parametrize("nested", [False, True])
def test_many_headers_are_not_translated(nested: bool) -> None:
    """They come as they were published: to translate all that a head can have takes 50 ms."""
    for count in (fields.VALUES_A_STEP - 2, fields.VALUES_A_STEP + 1):
        voids = fields.Array((fields.Void(),) * count)
        entries = [(b"array", voids)] if nested else [(b"v", fields.Void())] * count
        headers = Table(tuple(entries))
        seen = found(head.encode(head.Head(properties=Properties(message_id=b"id", headers=headers))))
        annotations = seen.get(Section.MESSAGE_ANNOTATIONS)
        if count < fields.VALUES_A_STEP:
            lists = Map((("array", List((None,) * count)),))
            assert annotations == (Map(((Symbol("x-opt-headers"), lists),)) if nested else None)
            assert (Section.APPLICATION_PROPERTIES in seen) is not nested
        else:
            table = Binary(fields.table_octets(headers))
            assert annotations == Map(((Symbol("x-opt-headers"), table),))
            assert Section.APPLICATION_PROPERTIES not in seen
        assert seen[Section.PROPERTIES] == List(("id",))


def test_a_dead_letter_with_many_headers_has_its_sections() -> None:
    once = head.decode(dead_letter(HEADER + TEXT))
    assert once.properties.headers is not None
    own, *_ = once.properties.headers.entries
    deaths = ((b"x-death", fields.Array((Table(),) * fields.VALUES_A_STEP)),)
    many = replace(once, properties=Properties(headers=Table((own, *deaths))))
    around = transfers.head_around(head.encode(many), Portion())
    added = (*ADDED[:2], (Symbol("x-opt-headers"), Binary(fields.table_octets(Table(deaths)))))
    assert stored.message(around, b"body") == HEADER + section(Section.MESSAGE_ANNOTATIONS, Map(added)) + TEXT


def dead_letter(message: bytes, **properties: Any) -> bytes:
    """Return the stored head of this message of AMQP 1.0 as a dead letter."""
    table = head.decode(stored.store(message).head).properties.headers
    assert table is not None
    deaths = Table((*table.entries, (b"x-death", fields.Array((Table(),)))))
    return head.encode(head.Head(b"exchange", b"key", Properties(headers=deaths, **properties)))


def section(code: Section, value: Value) -> bytes:
    return b"\x00\x53%c%s" % (code, encoding.write(value))


HEADER = section(Section.HEADER, List((True,)))
TEXT = section(Section.AMQP_VALUE, "body")
ADDED = (
    (Symbol("x-exchange"), "exchange"),
    (Symbol("x-routing-key"), "key"),
    (Symbol("x-opt-headers"), Map((("x-death", List((Map(()),))),))),
)


@pytest.mark.parametrize("before", [b"", HEADER])
@pytest.mark.parametrize("after", [b"", section(Section.PROPERTIES, List(("id",)))])
def test_a_dead_letter_has_its_sections_and_more_annotations(before: bytes, after: bytes) -> None:
    annotations = section(
        Section.MESSAGE_ANNOTATIONS, Map(((Symbol("x-exchange"), "another"), (Symbol("own"), True)))
    )
    for own, kept in ((b"", ()), (annotations, ((Symbol("own"), True),))):
        around = transfers.head_around(dead_letter(before + own + after + TEXT), Portion())
        expected = before + section(Section.MESSAGE_ANNOTATIONS, Map((*kept, *ADDED))) + after + TEXT
        assert stored.message(around, b"body") == expected


def test_dead_letters_that_get_no_annotations() -> None:
    large = section(Section.APPLICATION_PROPERTIES, Map((("x", "y" * stored.MOST_AROUND),))) + TEXT
    assert stored.message(transfers.head_around(dead_letter(large), Portion()), large) == large
    malformed = stored.BodyFraming(BodyKind.TEXT, b"\x00\x53", b"")
    assert stored.annotated(malformed, ADDED) is malformed


def test_a_message_that_was_published_again_is_that_of_its_publisher() -> None:
    """With other properties beside the sections it has them as a message of another protocol."""
    around = transfers.head_around(dead_letter(HEADER + TEXT, message_id=b"new"), Portion())
    seen = stored.message(around, b"body")
    places = {place.section: decoding.read(seen, place.value)[0] for place in sections.find(seen)}
    assert places[Section.PROPERTIES] == List(("new", None, None, "key"))
    assert places[Section.DATA] == Binary(b"body")


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_condition(reason: Reason) -> None:
    condition = condition_of(reason)
    problem = problem_of(Failure(reason, "a sentence"))
    error = performatives.read_all(problem.error())
    assert error == performatives.Error(condition.value, "a sentence")
