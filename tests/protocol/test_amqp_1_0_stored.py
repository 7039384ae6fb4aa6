"""Messages of AMQP 1.0 as they are stored, and as they come out again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.bulk.headers import TYPES, Header, headers_of
from omq.protocol.amqp import head
from omq.protocol.amqp.fields import ByteArray
from omq.protocol.amqp_1_0 import decoding, encoding, sections, stored
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.stored import BodyKind
from omq.protocol.amqp_1_0.types import Binary, DecodeError, List, Map, Number, NumberType, Symbol, Value


def section(code: Section, value: Value) -> bytes:
    return b"\x00\x53%c%s" % (code, encoding.write(value))


HEADER = section(Section.HEADER, List((True,)))
DELIVERY = section(Section.DELIVERY_ANNOTATIONS, Map(((Symbol("hop"), True),)))
ANNOTATIONS = section(Section.MESSAGE_ANNOTATIONS, Map(((Symbol("x"), True),)))
PROPERTIES = section(Section.PROPERTIES, List((None, None, "to")))
FOOTER = section(Section.FOOTER, Map(((Symbol("crc"), Number(NumberType.UINT, 7)),)))
DATA = section(Section.DATA, Binary(b"hello"))
TEXT = section(Section.AMQP_VALUE, "hello")


@pytest.mark.parametrize(
    ("message", "form", "body"),
    [
        (DATA, None, b"hello"),
        (b"\x00\x53\x75\xb0\x00\x00\x00\x05hello", BodyKind.DATA + stored.WIDE, b"hello"),
        (section(Section.DATA, Binary(b"x" * 300)), None, b"x" * 300),
        (HEADER + DATA, BodyKind.DATA, b"hello"),
        (DATA + FOOTER, BodyKind.DATA, b"hello"),
        (TEXT, BodyKind.TEXT, b"hello"),
        (section(Section.AMQP_VALUE, "é" * 300), BodyKind.TEXT, ("é" * 300).encode()),
        (HEADER + ANNOTATIONS + PROPERTIES + TEXT + FOOTER, BodyKind.TEXT, b"hello"),
        (section(Section.AMQP_VALUE, Binary(b"\xff")), BodyKind.BINARY, b"\xff"),
        (section(Section.AMQP_VALUE, None), BodyKind.SECTIONS, b"\x00\x53\x77\x40"),
        # The constructor of a uint, 0x70, is also the code of a section.
        (
            section(Section.AMQP_VALUE, Number(NumberType.UINT, 1000)),
            BodyKind.SECTIONS,
            b"\x00\x53\x77\x70\x00\x00\x03\xe8",
        ),
        (DATA + DATA, BodyKind.SECTIONS, DATA + DATA),
        (section(Section.AMQP_SEQUENCE, List((True,))), BodyKind.SECTIONS, b"\x00\x53\x76\xc0\x02\x01\x41"),
        (
            b"\x00\xa3\x10amqp:data:binary\xa0\x01x",
            BodyKind.SECTIONS,
            b"\x00\xa3\x10amqp:data:binary\xa0\x01x",
        ),
        (HEADER, BodyKind.SECTIONS, b""),
        (b"", BodyKind.SECTIONS, b""),
    ],
)
def test_a_message_is_stored_by_its_body(message: bytes, form: int | None, body: bytes) -> None:
    made = stored.store(message)
    assert made.body == body
    if form is None:
        assert made.head == b""
        assert stored.message(stored.PLAIN, body) == message
        return
    around = stored.around(made.head)
    assert around is not None
    assert around.form == form
    assert stored.message(around, body) == message


def test_the_head_is_one_that_every_protocol_reads() -> None:
    made = stored.store(HEADER + TEXT)
    parsed = head.decode(made.head)
    assert parsed.properties.headers is not None
    assert parsed.properties.headers.entries == (
        (b"amqp-1.0", ByteArray(b"\x01" + len(HEADER).to_bytes(4, "big") + HEADER)),
    )
    assert stored.around(head.encode(head.Head(b"x"))) is None
    assert stored.around(b"") is None


def test_spark_has_the_sections_in_one_header() -> None:
    """It reads what is stored, without a change: the body is the column value."""
    made = stored.store(HEADER + PROPERTIES + TEXT)
    found = head.decode(made.head)
    header, types = headers_of(found)
    assert (made.body, found.routing_key, header.key) == (b"hello", b"", "amqp-1.0")
    assert header.value is not None
    assert header.value.endswith(HEADER + PROPERTIES)
    assert types == Header(TYPES, b'{"amqp-1.0":"x"}')


def test_a_head_with_further_properties_is_of_another_protocol() -> None:
    made = head.decode(stored.store(HEADER + TEXT).head)
    assert stored.is_head(head.encode(made))
    assert stored.is_head(head.encode(replace(made, exchange=b"e", routing_key=b"k")))
    further = replace(made, properties=replace(made.properties, content_type=b"text/plain"))
    assert not stored.is_head(head.encode(further))


@pytest.mark.parametrize(
    ("ttl", "left", "expected"),
    [(5000, None, b"5000"), (None, 60_000, b"60000"), (5000, 60_000, b"5000"), (90_000, 60_000, b"60000"),
     (0, None, b"0"), (None, -1, b"0"), (2**32 - 1, None, b"4294967295"), (None, None, None)],
)  # fmt: skip
@pytest.mark.parametrize("after", [b"", FOOTER])
@pytest.mark.parametrize("much", [False, True])
def test_a_message_that_may_wait_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
    ttl: int | None,
    left: int | None,
    expected: bytes | None,
    after: bytes,
    much: bool,
) -> None:
    """The property expiration stands beside its sections, also where a message is stored as a whole."""
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    limit = None if ttl is None else Number(NumberType.UINT, ttl)
    moment = None if left is None else Number(NumberType.TIMESTAMP, 10**12 + left)
    size = stored.MOST_AROUND if much else 3
    message = b"".join(
        (
            section(Section.HEADER, List((True, None, limit, True))),
            section(Section.PROPERTIES, List(("id", *(None,) * 7, moment, None))),
            section(Section.APPLICATION_PROPERTIES, Map((("x", "y" * size),))),
            TEXT,
            after,
        )
    )
    made = stored.store(message)
    assert head.decode(made.head).properties.expiration == expected
    assert stored.is_head(made.head)
    around = stored.around(made.head)
    assert around is not None
    assert around == stored.around_in(head.decode(made.head))
    assert (around.form == BodyKind.MESSAGE) is much
    assert stored.message(around, made.body) == message


def test_delivery_annotations_are_for_the_next_peer_only() -> None:
    made = stored.store(HEADER + DELIVERY + TEXT)
    around = stored.around(made.head)
    assert around is not None
    assert stored.message(around, made.body) == HEADER + TEXT


def test_a_message_with_much_before_its_body_is_stored_as_a_whole() -> None:
    large = section(Section.APPLICATION_PROPERTIES, Map((("x", "y" * stored.MOST_AROUND),)))
    made = stored.store(DELIVERY + large + TEXT)
    around = stored.around(made.head)
    assert around is not None
    assert around.form == BodyKind.MESSAGE
    assert stored.message(around, made.body) == large + TEXT
    assert stored.redelivered(around, 3) is around


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (b"", [None, None, None, False, Number(NumberType.UINT, 2)]),
        (section(Section.HEADER, List((True, None, Number(NumberType.UINT, 9)))) + PROPERTIES,
         [True, None, Number(NumberType.UINT, 9), False, Number(NumberType.UINT, 2)]),
        (section(Section.HEADER, List((None, None, None, True, Number(NumberType.UINT, 1)))),
         [None, None, None, False, Number(NumberType.UINT, 2)]),
    ],
)  # fmt: skip
def test_a_message_that_was_delivered_before_says_so(before: bytes, expected: list[Value]) -> None:
    made = stored.store(before + TEXT)
    around = stored.around(made.head)
    assert around is not None
    message = stored.message(stored.redelivered(around, 2), made.body)
    first, *rest = sections.find(message)
    assert first.section is Section.HEADER
    assert decoding.read(message, first.value)[0] == List(tuple(expected))
    kept = PROPERTIES if before.endswith(PROPERTIES) else b""
    assert b"".join(message[place.begin : place.end] for place in rest) == kept + TEXT


def test_sections_that_make_no_sense_stay_as_they_are() -> None:
    for before in (b"\xff", b"\x00\x53", HEADER[:-1]):
        around = stored.BodyFraming(BodyKind.TEXT, before, b"")
        assert stored.redelivered(around, 2) is around


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\x41", "section was expected"), (b"\x00\x53\x79\x45", "no section"),
        # An ulong of eight octets, the first of which is the code of a section.
        (b"\x00\x80\x77" + bytes(7) + b"\x40", "no section with the descriptor 80 77 00"),
        (DATA + HEADER, "cannot follow"),
        (HEADER + HEADER, "cannot follow"), (TEXT + TEXT, "cannot follow"), (DATA + TEXT, "cannot follow"),
        (FOOTER + DATA, "cannot follow"), (DATA[:-1], "of its"), (b"\x00", "missing"),
        (DATA * (sections.MOST_SECTIONS + 1), "at most"),
    ],
)  # fmt: skip
def test_malformed_messages(message: bytes, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        stored.store(message)


BODIES = st.one_of(
    st.binary(max_size=400).map(lambda octets: section(Section.DATA, Binary(octets))),
    st.text(max_size=400).map(lambda text: section(Section.AMQP_VALUE, text)),
    st.sampled_from([DATA + DATA, b""]),
)
AROUND = [st.sampled_from([b"", octets]) for octets in (HEADER, ANNOTATIONS, PROPERTIES, FOOTER)]


@given(st.tuples(*AROUND[:3], BODIES, AROUND[3]))
def test_all_octets_come_out_again(parts: tuple[bytes, ...]) -> None:
    message = b"".join(parts)
    made = stored.store(message)
    around = stored.around(made.head) if made.head else stored.PLAIN
    assert around is not None
    assert stored.message(around, made.body) == message


@given(st.binary(max_size=80))
def test_any_octets_are_stored_or_refused(octets: bytes) -> None:
    try:
        made = stored.store(octets)
    except DecodeError:
        return
    around = stored.around(made.head) if made.head else stored.PLAIN
    assert around is not None
    places = sections.find(octets)
    kept = [place for place in places if place.section is not Section.DELIVERY_ANNOTATIONS]
    assert stored.message(around, made.body) == b"".join(octets[place.begin : place.end] for place in kept)


def test_the_beginning_of_a_message_tells_where_its_body_begins() -> None:
    before = HEADER + DELIVERY + ANNOTATIONS + PROPERTIES
    assert sections.body_at(before + DATA[:5]) == len(before)
    assert sections.body_at(before) == -1
    for wrong in (PROPERTIES + HEADER, HEADER + HEADER, FOOTER + DATA, FOOTER + FOOTER):
        with pytest.raises(DecodeError, match="cannot follow"):
            sections.body_at(wrong + TEXT)
