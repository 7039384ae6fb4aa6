"""From octets as they arrive to commands and runs of messages.

Quick ways serve the common forms of Publish; whatever is fed, and however it is cut, the outcome must be that
of parsing each line by itself.
"""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from line_outcomes import MIB, by_topic, each_parsed, fed, outcomes, run, told
from test_commands import GENERATED, OF_ONE_LINE, commands, recorded_of

from omq.protocol.omq.commands import publish_sexp, sexp_of_command
from omq.protocol.omq.events import BadLine, Event, Parsed, ReceivedRun
from omq.protocol.omq.lines import LineReader
from omq.protocol.omq.types import Confirm, Publish, Topics

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


CONFIRMS = [
    b"(Confirm 5)", b"(confirm 007)\r", b"(Confirm 0)", b"(Confirm 999999999999999999)", b"(Confirm 5) ",
    b"(Confirm 9223372036854775807)", b"(Confirm 9223372036854775808)", b"(Confirm -1)", b"(Confirm +5)",
    b"(Confirm 5)\r\r", b"(Confirm 0x1f)", b"(Confirm \"5\")", b"(Confirm 5)(Confirm 6)", b"(Confirm 1_000)",
    b"(CONFIRM 5)", b"(Confirm 5 6)", b"(Confirm  5)", b"(Confirm 5)x", b"(Confirm)",
]  # fmt: skip


@pytest.mark.parametrize("line", CONFIRMS)
def test_the_quick_form_of_confirm_is_read_as_any_other_line(line: bytes) -> None:
    for before in (b"", b"Topics", b"(Publish a 1)", b"(Received a 1)"):
        lines = [before, line, line]
        assert told(fed(b"".join(each + b"\n" for each in lines))) == each_parsed(lines)


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
