"""Long messages of AMQP 1.0 in parts are stored as they would be if they came in one."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp_1_0 import encoding, long_messages, sections, stored
from omq.protocol.amqp_1_0.long_messages import LongMessage, read_beginning
from omq.protocol.amqp_1_0.types import DecodeError, Map, Symbol

LONG = 300
"""From this size of a body on, messages are long in these tests."""


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as limit:
        limit.setattr(long_messages, "LONG_OCTETS", LONG)
        yield


HEADER = b"\x00\x53\x70\x45"
ANNOTATIONS = b"\x00\x53\x71" + encoding.write(Map(((Symbol("for"), "the next peer"),)))
PROPERTIES = b"\x00\x53\x73\xc0\x04\x01\xa1\x01i"
FOOTER = b"\x00\x53\x78\xc1\x01\x00"


def section(code: int, constructor: int, size: int) -> bytes:
    contents = (bytes(range(256)) * 2)[:size]
    return b"\x00\x53%c%c%s%s" % (code, constructor, size.to_bytes(4, "big"), contents)


BODIES = st.one_of(
    st.builds(
        section, st.sampled_from([0x75, 0x77]), st.sampled_from([0xB0, 0xB1, 0xD0]), st.integers(0, 500)
    ),
    st.just(section(0x75, 0xB0, 400) + section(0x75, 0xB0, 9)),
    st.just(b"\x00\x80" + (0x75).to_bytes(8, "big") + section(0x75, 0xB0, 400)[3:]),
    st.just(b""),
)

MESSAGES = st.builds(
    lambda before, body, after: b"".join(before) + body + after,
    st.lists(st.sampled_from([HEADER, ANNOTATIONS, PROPERTIES])),
    BODIES,
    st.sampled_from([b"", FOOTER, FOOTER[:-1], HEADER, b"x", section(0x75, 0xB0, 9) + FOOTER, bytes(300)]),
)


def outcome(octets: bytes) -> tuple[bytes, bytes] | None:
    """Return the head and the body of a message that comes in one part; None if it is malformed."""
    try:
        made = stored.store(octets)
    except DecodeError:
        return None
    return made.head, made.body


@given(MESSAGES, st.lists(st.integers(1, 600), min_size=1))
def test_parts_are_stored_as_the_whole(octets: bytes, sizes: list[int]) -> None:
    beginning = read_beginning(octets[: sizes[0]])
    if beginning is None:
        return
    assert beginning.size >= LONG
    message = LongMessage(beginning, octets[: sizes[0]])
    at = sizes[0]
    for size in [*sizes[1:], len(octets)]:
        message.add(octets[at : at + size])
        at += size
    expected = outcome(octets)
    if expected is None:
        with pytest.raises(DecodeError):
            message.stored()
        return
    assert message.octets == len(octets)
    made = message.stored()
    assert (made.head, list(made.batch.bodies())) == (expected[0], [expected[1]])


@pytest.mark.parametrize("around", [b"", HEADER + ANNOTATIONS + PROPERTIES])
@pytest.mark.parametrize("code", [0x75, 0x77])
def test_the_beginning_of_a_long_message(around: bytes, code: int) -> None:
    octets = around + section(code, 0xB0, LONG)
    beginning = read_beginning(octets[: len(around) + 8])
    assert beginning is not None
    assert (beginning.content, beginning.size) == (len(around) + 8, LONG)
    assert beginning.octets == len(octets)
    message = LongMessage(beginning, octets[:100])
    message.add(octets[100:])
    (body,) = message.stored().batch.bodies()
    assert octets.endswith(body)
    assert len(body) == LONG
    assert message.to() == sections.to(octets, sections.find(octets))


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        section(0x75, 0xB0, LONG)[:7],
        section(0x75, 0xB0, LONG - 1),
        section(0x76, 0xD0, LONG),
        PROPERTIES + HEADER + section(0x75, 0xB0, LONG),
        b"\x41",
    ],
)
def test_beginnings_that_show_no_long_message(octets: bytes) -> None:
    assert read_beginning(octets) is None


def test_a_message_that_ends_within_its_body_is_malformed() -> None:
    octets = section(0x75, 0xB0, LONG)
    beginning = read_beginning(octets[:50])
    assert beginning is not None
    message = LongMessage(beginning, octets[:-1])
    with pytest.raises(DecodeError, match="the last 1 octets of a body of 300 are missing"):
        message.stored()
