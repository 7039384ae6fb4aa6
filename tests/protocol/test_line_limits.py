"""Limits of the reader of lines: the longest line, and the time that lines take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from line_outcomes import MIB, Outcome, by_topic, fed, outcomes
from measuring import seconds, takes_linear_time

from omq.protocol.omq.events import TooLong
from omq.protocol.omq.lines import LineReader
from omq.protocol.omq.types import Publish, Topics


def publish_of(length: int) -> bytes:
    """Return a line of N (`length`) octets, its line feed not counted."""
    return b"(Publish a " + b"x" * (length - 12) + b")"


TOO_LONG = TooLong(b"Publish a: the line has more than 40 octets")
SHORT = b"(Publish b 1)\n"
ONE = [Publish(b"b", b"1")]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("before", [b"", SHORT], ids=["first", "later"])
@pytest.mark.parametrize("step", [1, 13, 1000])
def test_a_line_may_be_as_long_as_allowed_and_no_longer(ending: bytes, before: bytes, step: int) -> None:
    def feed(line: bytes) -> list[Outcome]:
        octets = before + line + ending + SHORT
        return fed(*(octets[start : start + step] for start in range(0, len(octets), step)), max_line=40)

    first: list[Outcome] = [*ONE] if before else []
    # A carriage return before the line feed is one of the line's octets.
    longest = 40 - ending.count(b"\r")
    assert feed(publish_of(longest)) == by_topic([*first, Publish(b"a", b"x" * (longest - 12)), *ONE])
    assert feed(publish_of(longest + 1)) == [*first, TOO_LONG]


@pytest.mark.parametrize("line", [b" " * 41, b";" * 41, b"\r" * 41, b"(" * 41, b"\0" * 41])
def test_any_line_too_long_is_refused_even_one_that_says_nothing(line: bytes) -> None:
    too_long = TooLong(b"Line too long: the line has more than 40 octets")
    assert fed(SHORT + line + b"\n" + SHORT, max_line=40) == [*ONE, too_long]
    assert fed(SHORT + line, max_line=40) == [*ONE, too_long]


def test_an_unfinished_line_is_refused_as_soon_as_it_is_too_long() -> None:
    reader = LineReader(40)
    assert reader.feed(b"(Publish a " + b"x" * 29) == []
    assert reader.buffered == 40
    assert reader.feed(b"x") == [TOO_LONG]
    assert reader.buffered == 0


def test_a_line_too_long_is_refused_with_the_same_sentence_however_it_comes() -> None:
    line = b"(Publish " + b"t" * 40 + b" x)\n"
    for step in (1, 7, 1000):
        said = fed(*(line[start : start + step] for start in range(0, len(line), step)), max_line=40)
        assert said == [TooLong(b"Publish: the line has more than 40 octets")]


def test_a_too_long_line_keeps_earlier_events_and_ends_the_reader() -> None:
    for rest in (b"", b"\n", b"\n" + SHORT, b"\n" + SHORT * 10 + b"(Publish"):
        reader = LineReader(40)
        found = outcomes(reader.feed(SHORT * 3 + b"Topics\n" + publish_of(41) + rest))
        assert found == [*ONE * 3, Topics(), TOO_LONG]
        assert reader.buffered == 0
        for more in (b"", b"x", b"\n", SHORT, b"x" * 100):
            assert reader.feed(more) == []
            assert reader.buffered == 0


def test_the_first_of_several_lines_too_long_counts() -> None:
    other = b"(Publish other " + b"y" * 40 + b")\n"
    assert fed(SHORT + publish_of(41) + b"\n" + other, max_line=40) == [*ONE, TOO_LONG]


def test_many_short_lines_may_be_longer_together() -> None:
    assert fed(SHORT * 1000, max_line=len(SHORT) - 1) == ONE * 1000
    assert fed(b"\n" * 1000, max_line=0) == []


@pytest.mark.parametrize(
    ("head", "answers"),
    [
        (b"(Publish prices ", b"Publish prices"),
        (b'(publish prices "', b"Publish prices"),
        (b'(Publish prices"', b"Publish prices"),
        (b'(Publish "prices" ', b"Publish prices"),
        (b'(Publish "a b" "', b'Publish "a b"'),
        (b" ( Publish  prices ", b"Publish prices"),
        (b'("Publish" prices ', b"Publish prices"),
        (b'("Publish""a b" ', b'Publish "a b"'),
        (b"(Publish ", b"Publish"),
        (b"(Subscribe prices ", b"Line too long"),
        (b"(Publisher prices ", b"Line too long"),
        (b"", b"Line too long"),
    ],
)
def test_a_line_too_long_is_answered_with_its_topic_where_that_can_be_told(
    head: bytes, answers: bytes
) -> None:
    error = answers + b": the line has more than 1000 octets"
    assert LineReader(1000).feed(head + b"x" * 1001) == [TooLong(error)]


@pytest.mark.parametrize("head", [b'(Publish"a b"', b'(Publish"a b""', b'(Publish "a b"'])
def test_a_line_too_long_as_we_print_it_is_answered_with_its_topic(head: bytes) -> None:
    error = b'Publish "a b": the line has more than 1000 octets'
    assert LineReader(1000).feed(head + b"x" * 1001) == [TooLong(error)]


@given(st.binary(max_size=60))
def test_a_line_too_long_is_answered_with_one_printable_line(head: bytes) -> None:
    for line in (head.replace(b"\n", b""), b"(Publish " + head.replace(b"\n", b"")):
        match LineReader(100).feed(line + b"x" * 101):
            case [TooLong(error)]:
                assert error.endswith(b": the line has more than 100 octets")
                assert all(0x20 <= octet < 0x7F for octet in error)
            case events:
                raise AssertionError(events)


def test_buffered_is_the_length_of_the_unfinished_line() -> None:
    reader = LineReader(100)
    for data, held in [
        (b"", 0),
        (b"(Pub", 4),
        (b"", 4),
        (b"lish a b)", 13),
        (b"\nTop", 3),
        (b"ics\n", 0),
        (b"\n\n ", 1),
    ]:
        reader.feed(data)
        assert reader.buffered == held


# -- time ---------------------------------------------------------------------------------------------------


HEADS = [b"(Publish a ", b'(Publish a "', b'(Publish"a b"', b"(Publish ", b'(Publish "', b"("]


@pytest.mark.parametrize(
    "head", HEADS, ids=["bare", "quoted", "bare_behind_quoted", "topic", "quoted_topic", "list"]
)
@pytest.mark.parametrize(
    "piece",
    [
        b"a", b" ", b"#", b"|", b"#a", b"|a", b"a ", b'"', b'"a', b'\\"', b"\\\\", b"\\120", b"\\x41",
        b"\\", b")", b"(",
        b'")', b"\r", b";", b"#;", b"#|", b'a "b" ', b")\r",
    ],
)  # fmt: skip
def test_time_grows_as_the_line_does(head: bytes, piece: bytes) -> None:
    def feed(length: int) -> object:
        return LineReader(2 * MIB).feed(head + piece * (length // len(piece)) + b"\n")

    assert takes_linear_time(feed, MIB // 128)
    assert seconds(lambda: feed(MIB)) < 3.0


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"\r\n", b"(\n", b"(Publish a b)\n", b"(Publish a )\n", b'(Publish a ")\n',
        b'(Publish a "b\\")\n',
        b'(Publish a "\\"")\n', b"(Publish a b#|)\n", b"(Publish a b)\r\n", b'(Publish "\n',
    ],
    ids=repr,
)  # fmt: skip
def test_time_grows_as_the_number_of_lines_does(line: bytes) -> None:
    def feed(length: int) -> object:
        return LineReader(MIB).feed(line * (length // len(line)))

    assert takes_linear_time(feed, MIB // 128)


@pytest.mark.parametrize("step", [1, 1000])
def test_a_long_line_in_small_reads_is_not_searched_again_and_again(step: int) -> None:
    def feed(length: int) -> None:
        line = publish_of(length) + b"\n"
        reads = [line[start : start + step] for start in range(0, len(line), step)]
        assert fed(*reads) == [Publish(b"a", b"x" * (length - 12))]

    assert takes_linear_time(feed, MIB // 32)
