"""What a consumer of AMQP 1.0 sees of messages of other protocols."""

import pytest

from omq.drivers.reasons import Failure, Reason
from omq.protocol.amqp import fields, head
from omq.protocol.amqp.fields import NumberType as Field
from omq.protocol.amqp.fields import Table
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp_1_0 import performatives, sections, stored, translation, types
from omq.protocol.amqp_1_0.sections import Section
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
    """The sections before the body of the message with this head."""
    around = translation.from_head(octets)
    message = stored.message(around, b"body")
    places = sections.find(message)
    assert message[places[-1].begin :] == b"\x00\x53\x75\xa0\x04body"
    return {place.section: types.read(message, place.value)[0] for place in places[:-1]}


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


def test_what_is_absent_has_no_section() -> None:
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


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_condition(reason: Reason) -> None:
    condition = condition_of(reason)
    problem = problem_of(Failure(reason, "a sentence"))
    error = performatives.read_all(problem.error())
    assert error == performatives.Error(condition.value, "a sentence")
