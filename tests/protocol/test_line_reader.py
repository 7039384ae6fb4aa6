"""From octets as they arrive to commands and runs of messages.

Quick ways serve the common forms of Publish; whatever is fed, and however it is cut, the outcome must be that
of parsing each line by itself.
"""

from collections.abc import Iterable
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from measuring import seconds
from test_commands import GENERATED, OF_ONE_LINE, commands, recorded_of

from omq.protocol.omq.commands import CommandError, parse, publish_sexp, sexp_of_command
from omq.protocol.omq.lines import BadLine, Event, LineReader, Parsed, PublishRun, ReceivedRun, TooLong
from omq.protocol.omq.types import Command, Confirm, Publish, Received, Topics
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER

MIB = 1 << 20

Outcome = Command | BadLine | TooLong
T = TypeVar("T")


def outcomes(events: Iterable[Event]) -> list[Outcome]:
    """Return the events with each run taken apart into its commands."""
    found: list[Outcome] = []
    for event in events:
        match event:
            case PublishRun(topic, batch):
                bodies = batch.bodies()
                assert batch.count == len(bodies) > 0
                assert batch.octets == sum(map(len, bodies)) + FRAME_HEADER * len(bodies)
                assert batch.longest == max(map(len, bodies))
                found += [Publish(topic, body) for body in bodies]
            case ReceivedRun(topic, ids):
                assert ids
                found += [Received(topic, id) for id in ids]
            case Parsed(command):
                assert not isinstance(command, Publish)
                found.append(command)
            case BadLine() | TooLong():
                found.append(event)
    return found


def by_topic(found: Iterable[T]) -> list[T]:
    """Return the same, with Publish commands that follow one another sorted by topic: their order means
    nothing but within a topic.
    """
    ordered: list[T] = []
    for is_publish, stretch in groupby(found, key=lambda each: isinstance(each, Publish)):
        several = list(stretch)
        ordered += sorted(several, key=attrgetter("topic")) if is_publish else several
    return ordered


def run(topic: bytes, bodies: list[bytes]) -> PublishRun:
    return PublishRun(topic, Bodies(bodies))


def fed(*reads: bytes, max_line: int = MIB) -> list[Outcome]:
    """Return the outcomes of several reads one after the other, after which no octet is left over."""
    reader = LineReader(max_line)
    found = [outcome for data in reads for outcome in outcomes(reader.feed(data))]
    assert reader.buffered == 0
    return by_topic(found)


def each_parsed(lines: Iterable[bytes]) -> list[Command | bytes]:
    """Return what the parser of commands makes of each line alone: commands, and the sentences of
    refusals.
    """
    found: list[Command | bytes] = []
    for line in lines:
        try:
            command = parse(line)
        except CommandError as error:
            found.append(error.sentence)
        else:
            if command is not None:
                found.append(command)
    return found


def told(found: list[Outcome]) -> list[Command | bytes]:
    return [outcome.error if isinstance(outcome, BadLine | TooLong) else outcome for outcome in found]


# -- the recorded lines -------------------------------------------------------------------------------------

RECORDED = [(bytes.fromhex(row["line"]), recorded_of(row)) for row in GENERATED + OF_ONE_LINE]
GOOD = [(line, command) for line, command in RECORDED if not isinstance(command, str)]


def test_every_recorded_line_by_itself_is_read_or_refused_as_by_ocaml() -> None:
    reader = LineReader(MIB)
    for line, decided in RECORDED:
        match outcomes(reader.feed(line + b"\n")):
            case []:
                assert decided is None, line[:200]
            case [BadLine()]:
                assert decided == "refused", line[:200]
            case [command]:
                assert command == decided, line[:200]
            case several:
                raise AssertionError((line[:200], several))


def test_all_good_recorded_lines_in_one_read() -> None:
    read = b"".join(line + b"\n" for line, _ in GOOD)
    assert fed(read) == by_topic(command for _, command in GOOD if command is not None)


def test_all_recorded_lines_in_one_read_in_their_order() -> None:
    found = fed(b"".join(line + b"\n" for line, _ in RECORDED))
    expected = [decided for _, decided in RECORDED if decided is not None]
    assert ["refused" if isinstance(outcome, BadLine) else outcome for outcome in found] == by_topic(expected)


def test_all_recorded_publish_lines_in_one_read() -> None:
    publishes = [(line, command) for line, command in GOOD if isinstance(command, Publish)]
    assert len(publishes) > 200
    for again in (1, 3):
        read = b"".join((line + b"\n") * again for line, _ in publishes)
        assert fed(read) == by_topic(command for _, command in publishes for _ in range(again))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_recorded_lines_in_small_reads(step: int) -> None:
    sample = [(line, decided) for line, decided in RECORDED[::5] if len(line) < 2000]
    octets = b"".join(line + b"\n" for line, _ in sample)
    found = fed(*(octets[start : start + step] for start in range(0, len(octets), step)))
    expected = [decided for _, decided in sample if decided is not None]
    assert ["refused" if isinstance(outcome, BadLine) else outcome for outcome in found] == by_topic(expected)


# -- any lines ----------------------------------------------------------------------------------------------

BARE = [
    b"a",
    b"b",
    b"prices",
    b"#",
    b"|",
    b"a#b",
    b"x|",
    b"\\",
    b"\\n",
    b"'",
    b"\0",
    b"\v",
    b"\xff",
    b"7",
    b"~",
]
CONTENT = [
    b"a", b"b", b" ", b"\\\"", b"\\\\", b"\\n", b"\\t", b"\\r", b"\\b", b"\\'", b"\\065", b"\\255",
    b"\\256", b"\\26",
    b"\\300", b"\\x41", b"\\x4", b"\\q", b"\\", b"#|", b"|#", b"(", b")", b";", b"\r", b"\0", b"\xff",
    b"\t", b'"',
    b")", b'\\")', b'")', b"\\\\\\", b"(Publish ",
]  # fmt: skip
ODD = [
    b" ", b"\t", b"\f", b"\v", b"\r", b"\0", b"(", b")", b'"', b";", b"#", b"|", b"#|", b"|#", b"#;",
    b"\\", b"a",
    b"P", b"p", b"#||#", b"#;a", b"\xff",
]  # fmt: skip

bares = st.lists(st.sampled_from(BARE), min_size=1, max_size=3).map(b"".join)
contents = st.lists(st.sampled_from(CONTENT), max_size=4).map(b"".join)
# Escapes that sexplib prints, among other octets: most of these are good.
tame = st.lists(st.sampled_from(CONTENT[:12]), max_size=4).map(b"".join)
quoted = st.one_of(tame, tame, contents).map(lambda content: b'"' + content + b'"')
written = st.one_of(bares, quoted)
topics = st.one_of(st.sampled_from([b"a", b'"a"', b'"\\097"', b'""', b"b", b'"a b"']), written)
keywords = st.sampled_from(
    [b"Publish"] * 6 + [b"publish"] * 2 + [b"PUBLISH", b"Publis", b'"Publish"', b"Publish2"]
)
gaps = st.sampled_from([b" "] * 8 + [b""] * 4 + [b"  ", b"\t", b"\r", b"\v", b" #||# "])
ends = st.sampled_from(
    [b")"] * 10 + [b")\r"] * 3 + [b") ", b" )", b"", b"))", b")\r\r", b") ;", b"\r)", b")a"]
)
forms = st.tuples(st.just(b"("), keywords, gaps, topics, gaps, written, ends).map(b"".join)
printed = st.builds(publish_sexp, st.sampled_from([b"a", b"b", b"a b"]), st.binary(max_size=12))


def with_odd_octets(line: bytes, position: int, taken: int, put: bytes) -> bytes:
    position = position % (len(line) + 1)
    return line[:position] + put + line[position + taken :]


near = st.builds(
    with_odd_octets,
    st.one_of(forms, printed),
    st.integers(0, 200),
    st.integers(0, 2),
    st.one_of(st.sampled_from(ODD), st.just(b"")),
)
lines = st.one_of(
    forms,
    printed,
    near,
    st.builds(sexp_of_command, commands),
    st.sampled_from([b"", b" ", b"\r", b"; a", b"#|a|#", b"Topics", b"(Confirm 7)"]),
    st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")),
)
# Lines that differ in their bodies only, now and then with one of another kind among them.
uniform = st.builds(
    lambda head, bodies, tail: [head + body + tail for body in bodies],
    st.sampled_from(
        [
            b"(Publish a ",
            b"(Publish a",
            b'(Publish"a b"',
            b'(publish "a" ',
            b'(Publish a "',
            b'(Publish a"',
            b'(Publish"a""',
        ]
    ),
    st.lists(st.one_of(bares, tame, contents, quoted), min_size=1, max_size=6),
    st.sampled_from([b")", b'")', b")\r", b'")\r']),
)
receipts = st.sampled_from(
    [
        b"(Received a 1)", b"(Received a 2)\r", b"(received a 3)", b"(Received b 4)", b"(Received a 007)",
        b"(Received a 999999999999999999)", b"(Received a 9223372036854775807)", b"(Received a -1)",
        b'(Received "a" 5)', b"(Received a#| 6)", b"(Received  a 7)", b"(Received a 8) ", b"(Received a)",
    ]
)  # fmt: skip
sequences = st.one_of(
    st.lists(lines, max_size=8),
    st.lists(st.one_of(receipts, receipts, receipts, lines), max_size=12),
    uniform,
    st.builds(lambda several, others: [*several, *others, *several], uniform, st.lists(lines, max_size=2)),
)


def same(found: list[bytes], reads: list[bytes]) -> None:
    """Check that the reads give what the lines give one by one, and hold the octets of an unfinished line."""
    expected = each_parsed(found[:-1])
    reader = LineReader(MIB)
    outcome = [outcome for data in reads for outcome in outcomes(reader.feed(data))]
    assert by_topic(told(outcome)) == by_topic(expected)
    assert reader.buffered == len(found[-1])
    for one in outcome:
        if isinstance(one, BadLine) and one.error.startswith((b"Publish ", b"Publish:")):
            assert one.publish


@settings(max_examples=800)
@given(sequences)
@example([b'(Publish a "x\\")', b'(Publish a "y")', b'(Publish a "z")'])
@example([b'(Publish a "x\\")', b'(Publish a "\\"y")'])
@example([b"(Publish a b)", b'(Publish a ")', b"(Publish a c)"])
@example([b"(Publish a b#)", b"(Publish a |c)"])
@example([b"(Publish a b#|)"])
@example([b"(Publish a b)", b"(Publish a )", b"(Publish a c)"])
@example([b'(Publish a ")'])
@example([b'(publish"a"")', b"Topics"])
@example([b'(Publish a"b")', b'(Publish a "b")', b'(Publish "a" "b")', b'(Publish"a"b)'])
def test_lines_in_one_read_give_the_events_of_each_line(sequence: list[bytes]) -> None:
    read = b"".join(line + b"\n" for line in sequence)
    same([*sequence, b""], [read])


@settings(max_examples=500)
@given(sequences, st.lists(st.integers(0, 400), max_size=6), st.sampled_from([b"", b"(Publish a b", b"\r"]))
def test_lines_cut_anywhere_give_the_events_of_each_line(
    sequence: list[bytes], cuts: list[int], unfinished: bytes
) -> None:
    octets = b"".join(line + b"\n" for line in sequence) + unfinished
    places = [0, *sorted(min(cut, len(octets)) for cut in cuts), len(octets)]
    reads = [octets[start:end] for start, end in pairwise(places)]
    same([*sequence, unfinished], reads)


@given(st.binary(max_size=300))
@example(b"\n\n\r\n\n")
def test_random_octets(octets: bytes) -> None:
    same(octets.split(b"\n"), [octets])


@given(
    st.lists(st.builds(Publish, st.sampled_from([b"a", b"b", b"a b"]), st.binary(max_size=20)), max_size=12)
)
def test_printed_commands_are_parsed_back(published: list[Publish]) -> None:
    read = b"".join(publish_sexp(one.topic, one.body) + b"\n" for one in published)
    assert fed(read) == by_topic(published)


@pytest.mark.parametrize(
    ("lines", "events"),
    [
        (b"(Publish a 1)\n(Publish a 22)\n(Publish a 3)\n", [run(b"a", [b"1", b"22", b"3"])]),
        (
            b'(Publish a 1)\n\n(publish "a""\\0502")\n; c\n(Publish"a"3)\r\n',
            [run(b"a", [b"1", b"22", b"3"])],
        ),
        (
            b'(Publish a 1)\n(Publish b 2)\n(Publish a 3)\n(Publish "a" 4)\n(Publish "\\097" 5)\n',
            [run(b"a", [b"1", b"3", b"4", b"5"]), run(b"b", [b"2"])],
        ),
        (
            b'(Publish a "")\nTopics\n(Publish a 1)\n',
            [run(b"a", [b""]), Parsed(Topics()), run(b"a", [b"1"])],
        ),
        (b"(Publish a 1)\n(Confirm 1)\n", [run(b"a", [b"1"]), Parsed(Confirm(1))]),
        (b'(Publish "" 1)\n(Publish "" 2)\n', [run(b"", [b"1", b"2"])]),
        (
            b"(Received a 3)\n(received a 1)\r\n(Received a 3)\n(Received b 1)\n"
            b"(Publish a 1)\n(Received a 2)\n",
            [
                ReceivedRun(b"a", [3, 1, 3]),
                ReceivedRun(b"b", [1]),
                run(b"a", [b"1"]),
                ReceivedRun(b"a", [2]),
            ],
        ),
        (b"\n \n\r\n; a\r\n#|b|#\n#;c\n", []),
    ],
)
def test_commands_for_a_topic_are_one_run_up_to_another_command(lines: bytes, events: list[Event]) -> None:
    assert LineReader(100).feed(lines) == events


@pytest.mark.parametrize(
    ("line", "publish"),
    [
        (b"(Publish a)", True),
        (b"(publish)", True),
        (b"Publish", True),
        (b"(Publish a (b))", True),
        (b'("\\080ublish" a)', True),
        (b"(Publish a b", True),
        (b'(Publish a "b)', True),
        (b'(Publish a "\\256")', True),
        (b"(Publish a b) c", True),
        (b" ( Publish a b))", True),
        (b'("Publish" a "b)', True),
        (b"(Publisher a b", False),
        (b"(PUBLISH a b)", False),
        (b"(Subscribe a Publish", False),
        (b"(Confirm x)", False),
        (b"#;(Publish a b) (", False),
        (b"(", False),
        (b")", False),
    ],
)
def test_a_refusal_says_whether_the_line_meant_to_publish(line: bytes, publish: bool) -> None:
    match LineReader(100).feed(line + b"\n"):
        case [BadLine(error, meant)]:
            assert error == each_parsed([line])[0]
            assert meant is publish
        case events:
            raise AssertionError(events)


# -- limits -------------------------------------------------------------------------------------------------


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

    short, long = (seconds(lambda length=length: feed(length), 3) for length in (MIB // 128, MIB // 32))
    assert long < 10 * short + 0.002
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

    short, long = (seconds(lambda length=length: feed(length), 3) for length in (MIB // 128, MIB // 32))
    assert long < 10 * short + 0.002


@pytest.mark.parametrize("step", [1, 1000])
def test_a_long_line_in_small_reads_is_not_searched_again_and_again(step: int) -> None:
    def feed(length: int) -> None:
        line = publish_of(length) + b"\n"
        reads = [line[start : start + step] for start in range(0, len(line), step)]
        assert fed(*reads) == [Publish(b"a", b"x" * (length - 12))]

    short, long = (seconds(lambda length=length: feed(length), 3) for length in (MIB // 32, MIB // 8))
    assert long < 10 * short + 0.002
