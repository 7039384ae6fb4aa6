"""Tables in OpenAMQ's dialect, whose times have four octets, and the way back, with either codec."""

import pytest

from omq.protocol.amqp import openamq
from omq.protocol.amqp.fields import LongString, Table, Void
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.steps import finished

pytestmark = pytest.mark.usefixtures("each_codec")


def table(contents: bytes) -> bytes:
    return len(contents).to_bytes(4, "big") + contents


def time(size: int, seconds: int = 7) -> bytes:
    return b"T" + seconds.to_bytes(size, "big")


FIXED = b"".join(
    b"\x01n%c%s" % (kind, bytes(size))
    for kinds, size in ((b"tbB", 1), (b"sUu", 2), (b"Iif", 4), (b"D", 5), (b"lLd", 8), (b"V", 0))
    for kind in kinds
)
"""Values of all other types of fixed size."""


def contents(size: int) -> bytes:
    """Return entries of all types, with times of this many octets."""
    moment = time(size)
    return b"".join(
        (
            FIXED,
            b"\0", moment,
            b"\x03abcS", table(b"T" * 9), b"\x01xx", table(b"T"),
            b"\x01aA", table(b"V" + moment + b"F" + table(b"\x01t" + moment) + b"A" + table(b"") + moment),
            b"\x01fF", table(b"\x01t" + moment + b"\x01vV"),
            b"\x01z", moment,
        )
    )  # fmt: skip


def test_times_of_all_tables_are_translated() -> None:
    narrow, wide = table(contents(4)), table(contents(8))
    assert openamq.widened_table(b"?" + narrow + b"?", 1, 1 + len(narrow)) == (wide, 1 + len(narrow))
    every = 0x8000 | 0x4000 | 0x2000 | 0x0800 | 0x0080
    for flags, before, after in ((0x2000, b"", b""), (every, b"\x01t\x01g", b"\x07\x01m")):
        ours, theirs = (flags.to_bytes(2, "big") + before + each + after for each in (wide, narrow))
        assert openamq.narrowed_properties(ours) == theirs
        assert openamq.widened_properties(theirs) == ours
        names = b"\x01e\x02kk"
        assert openamq.narrowed_head(names + ours) == names + theirs
        assert finished(openamq.widening_head(names + theirs)) == names + ours


@pytest.mark.parametrize(
    ("seconds", "narrow"), [(0, 0), (2**32 - 1, 2**32 - 1), (2**32, 2**32 - 1), (2**64 - 1, 2**32 - 1)]
)
def test_times_after_2106_are_the_last_one(seconds: int, narrow: int) -> None:
    octets = b"\x20\0" + table(b"\x01t" + time(8, seconds))
    assert openamq.narrowed_properties(octets) == b"\x20\0" + table(b"\x01t" + time(4, narrow))


def test_properties_without_headers_stay_as_they_are() -> None:
    for octets in (b"\0\0", b"\x80\0\x01T", b"\x20\0" + table(b"")):
        assert openamq.narrowed_properties(octets) == openamq.widened_properties(octets) == octets
    assert openamq.may_have_times(b"\x80\0\x01T")
    assert not openamq.may_have_times(b"\x80\0\x01t")


@pytest.mark.parametrize(
    ("octets", "problem"),
    [
        (b"\0\0\0", "a length in a table has 3 of its 4 octets"),
        (b"\0\0\0\1", "a value exceeds its table"),
        (table(b"\x01t"), "a value in a table is missing"),
        (table(b"\x05t"), "a value in a table is missing"),
        (table(b"\x01tT\0\0\0"), "a time in a table has 3 of its 4 octets"),
        (table(b"\x01tI\0\0\0"), "a value exceeds its table"),
        (table(b"\x01tS\0\0\0\1"), "a value exceeds its table"),
        (table(b"\x01tS\0\0\0"), "a length in a table has 3 of its 4 octets"),
        (table(b"\x01tA" + table(b"?")), "a value in a table has the type 0x3f, which is not known here"),
    ],
)
def test_what_is_no_table_is_refused(octets: bytes, problem: str) -> None:
    with pytest.raises(FieldError, match=rf"^{problem}$"):
        openamq.widened_table(octets, 0, len(octets))


def test_tables_are_nested_32_deep() -> None:
    octets = table(b"\x01t" + time(4))
    for _ in range(31):
        octets = table(b"\x01fF" + octets)
    assert openamq.widened_table(octets, 0, len(octets))[1] == len(octets)
    octets = table(b"\x01fF" + octets)
    with pytest.raises(FieldError, match=r"^tables are nested more than 32 deep$"):
        openamq.widened_table(octets, 0, len(octets))


@pytest.mark.parametrize("nested", [False, True])
def test_a_table_with_512_values_is_refused(nested: bool) -> None:
    for count in (511, 512):
        octets = table(b"\x01aA" + table(b"V" * (count - 1))) if nested else table(b"\x01vV" * count)
        if count == 511:
            assert openamq.widened_table(octets, 0, len(octets)) == (octets, len(octets))
        else:
            with pytest.raises(FieldError, match=r"^the table has 512 values or more$"):
                openamq.widened_table(octets, 0, len(octets))


@pytest.mark.parametrize(("different", "pauses"), [(63, 0), (64, 1), (128, 2)])
def test_heads_that_differ_are_translated_in_steps(different: int, pauses: int) -> None:
    heads = [
        b"\0\0\x20\0" + table(b"\x01t" + time(4, number)) for number in range(different) for _ in range(3)
    ]
    steps = openamq.widening_heads(heads)
    seen = 0
    while True:
        try:
            next(steps)
            seen += 1
        except StopIteration as stop:
            wide = stop.value
            break
    assert seen == pauses
    assert wide == [
        b"\0\0\x20\0" + table(b"\x01t" + time(8, number)) for number in range(different) for _ in range(3)
    ]


@pytest.mark.parametrize(
    ("entries", "is_openamq"),
    [
        (((b"product", LongString(b"OpenAMQ Kernel Client\0")),), True),
        (((b"x", Void()), (b"product", LongString(b"OpenAMQ"))), True),
        (((b"product", LongString(b"Open")),), False),
        (((b"product", Void()),), False),
        (((b"platform", LongString(b"OpenAMQ")),), False),
        ((), False),
    ],
)
def test_the_client_library_names_itself(
    entries: tuple[tuple[bytes, LongString | Void], ...], is_openamq: bool
) -> None:
    assert openamq.is_openamq(Table(entries)) is is_openamq
