"""The compiled codec parses and writes exactly as its plain twin, for valid and invalid octets."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import twins
from fuzz_codec_cases import all_events
from hypothesis import example, given
from hypothesis import strategies as st
from measuring import untraced
from test_dmp_envelopes import MESSAGES, NAMED_OCTETS, NUMBERED, envelopes, mutated, sized
from test_dmp_fields import nested, values
from test_frames import frames as any_frames
from twins import needs_codec, outcome, using

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import openamq
from omq.protocol.amqp.fields import (
    Array,
    Boolean,
    Number,
    NumberType,
    Table,
    Value,
    checking,
    read_table,
    table_octets,
)
from omq.protocol.amqp.head import PLAIN_HEAD, Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp import reader as dmp_reader
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.envelopes import EnvelopeBatch, EnvelopeError, EnvelopeRun
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.omq import atoms, compiled_lines, frames, line_steps, plain_lines, sexp
from omq.protocol.omq.events import PublishRun
from omq.protocol.omq.lines import LineReader
from omq.protocol.steps import finished
from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, encode

pytestmark = needs_codec


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    """Use the compiled codec, also with OMQ_PLAIN=1."""
    with twins.compiled():
        yield


# -- envelopes -----------------------------------------------------------------------------------------------

streams = st.one_of(
    mutated(MESSAGES),
    st.lists(envelopes, max_size=12).map(lambda sent: b"".join(map(dmp_writer.encode, sent))),
    st.binary(max_size=80),
)


@st.composite
def mutated_streams(draw: st.DrawFn) -> bytes:
    octets = draw(streams)
    return draw(mutated([octets])) if draw(st.booleans()) else octets


@given(mutated_streams(), st.sampled_from([0, 5, 100, 1 << 26, 1 << 34]), st.booleans())
@example(b"\xff\xff\xff\xff", 1 << 34, False)
@example(b"\xff\xff\xff\xff", 100, False)
@example(b"\x00\x00\x00\x08\xff\xff\xff\xff\xff\xff\xff\xff", 100, True)
def test_scanning_envelopes(octets: bytes, longest: int, filled: bool) -> None:
    found = []
    for scan in (dmp_reader.scan, dmp_reader.scan_plain):
        start = ([b"a"], [NAMED_OCTETS], [2]) if filled else ([], [], [])
        run: tuple[list[bytes], list[bytes], list[int]] = tuple(map(list, start))  # type: ignore[assignment]  # a tuple of unknown length
        found.append((outcome(lambda scan=scan, run=run: scan(octets, longest, *run)), run))  # type: ignore[misc]  # a lambda with a default has no type
    assert found[0] == found[1]


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Return octets of a table that are good, nearly good, or cut."""
    table = Table(tuple(draw(st.lists(st.tuples(st.binary(max_size=3), values), max_size=5))))
    octets = table_octets(table)
    return draw(mutated([octets])) if draw(st.booleans()) else octets


@given(tables())
@example(nested(32))
@example(nested(33))
def test_envelopes_with_tables(octets: bytes) -> None:
    """The compiled codec, the skipping and the decoding of a table accept and refuse the same octets."""
    expected = outcome(lambda: read_table(octets, 0, len(octets), "the property headers")[1])
    assert outcome(lambda: finished(checking(octets, 0, len(octets), "the property headers"))) == expected
    spans = codec.native.Spans(sized(b"\0\0\x20\0" + octets + bytes(4)))
    _, needed = spans.take_envelopes(0, 1 << 20, 1 << 20, 100)
    assert (needed == 4) == (expected == len(octets))
    assert spans.count == (needed == 4)
    found = codec.native.properties_end(b"\x20\0" + octets, 0)
    assert found == (expected + 2 if isinstance(expected, int) else -1)


TIMES = [0, 5, 2**32 - 1, 2**32, 2**64 - 1]


@given(tables(), st.lists(st.sampled_from(TIMES), max_size=3))
@example(nested(32), TIMES)
@example(nested(33), [])
@example(table_octets(Table(((b"", Array((Table(), Array(())))),))), TIMES)
def test_tables_for_openamq(octets: bytes, times: list[int]) -> None:
    some = b"".join(b"\x01t" + b"T" + time.to_bytes(8, "big") for time in times)
    array = b"A" + len(octets + some).to_bytes(4, "big") + b"F" + octets
    for table in (octets, (len(some) + len(array) + 1).to_bytes(4, "big") + some + b"\0" + array):
        narrowed = partial(openamq.narrowed_head, b"\0\0\x20\0" + table)
        written = outcome(narrowed)
        with using(compiled=False):
            assert written == outcome(narrowed)


@given(values, st.sampled_from(TIMES))
def test_the_compiled_codec_writes_times_for_openamq(value: Value, time: int) -> None:
    moment = Number(NumberType.TIMESTAMP, time)
    table = table_octets(
        Table(((b"a", moment), (b"b", value), (b"c", Array((value, Table(((b"", moment),)))))))
    )
    found = codec.native.narrowed_table(b"x" + table + b"y", 1)
    assert found is not None
    narrowed, end = found
    assert end == len(table) + 1
    assert openamq.widened_table(narrowed, 0, len(narrowed))[1] == len(narrowed)
    with using(compiled=False):
        assert openamq.narrowed_head(b"\0\0\x20\0" + table) == b"\0\0\x20\0" + narrowed


@pytest.mark.parametrize("compiled", [codec.COMPILED, False])
def test_a_property_with_the_octets_of_a_time_is_no_header(compiled: bool) -> None:
    like_a_table = b"\x01tT" + bytes(8)
    head = stored_head.encode(
        Head(properties=Properties(delivery_mode=0, priority=0, correlation_id=b"", reply_to=like_a_table))
    )
    with using(compiled=compiled):
        assert openamq.narrowed_head(head) == head


def test_the_compiled_codec_takes_every_property() -> None:
    """An envelope that it leaves to the plain code costs a hundred times as much."""
    full = Properties(
        content_type=b"a", content_encoding=b"b", headers=Table(((b"k", Boolean(True)),)), delivery_mode=2,
        priority=3, correlation_id=b"c", reply_to=b"d", expiration=b"e", message_id=b"f", timestamp=1 << 63,
        type=b"g", user_id=b"h", app_id=b"i", sender_id=b"j",
    )  # fmt: skip
    for properties in (full, Properties(timestamp=5), Properties(timestamp=5, type=b"t" * 255)):
        octets = dmp_writer.for_sink([b"body"], [stored_head.encode(Head(properties=properties))])
        spans = codec.native.Spans(octets)
        assert spans.take_envelopes(0, 100, 1 << 16, 10) == (len(octets), 4)
        assert spans.bodies() == [b"body"]
        assert spans.heads() == [stored_head.encode(Head(properties=properties))]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_envelopes_are_read_in_steps(compiled: bool) -> None:
    many = dmp_writer.for_sink([b""] * 40_000)
    nulls = bytes(512 << 10)
    odd = dmp_writer.for_sink([b"", b""] * 5000, [PLAIN_HEAD, NAMED_OCTETS] * 5000)
    large = Head(properties=Properties(headers=Table(((b"", Boolean(True)),) * 20_000)))
    with using(compiled=compiled):
        tables = dmp_writer.for_sink([b""], [stored_head.encode(large)]) * 8
        for octets, fewest, fewest_plain in ((many, 4, 80), (nulls, 12, 200), (odd, 1, 150), (tables, 0, 30)):
            reader = EnvelopeReader()
            steps = sum(1 for _ in reader.reading(octets))
            assert steps >= (fewest if compiled else fewest_plain)
            assert not reader.unfinished


@given(mutated_streams(), st.lists(st.integers(0, 400), max_size=4))
def test_envelopes_as_batches(octets: bytes, cuts: list[int]) -> None:
    """In any pieces, the batches have the messages of the runs, and end with the same error."""
    bounds = [0, *sorted(min(cut, len(octets)) for cut in cuts), len(octets)]
    pieces = [octets[begin:end] for begin, end in pairwise(bounds)]
    expected: list[Any] = []
    reader = EnvelopeReader(100)
    try:
        for piece in pieces:
            expected.append(reader.feed(piece))  # noqa: PERF401 - those before an error count
    except EnvelopeError as error:
        expected += [error.before, str(error)]
    for compiled in (True, False):
        reader = EnvelopeReader(100)
        found: list[Any] = []
        with using(compiled=compiled):
            try:
                for piece in pieces:
                    found.append(reader.feed_batch(piece))  # noqa: PERF401 - those before an error count
            except EnvelopeError as error:
                found += [error.batch, str(error)]
        runs = [
            EnvelopeRun(list(one.batch.bodies()), one.heads, one.options)
            if isinstance(one, EnvelopeBatch)
            else one
            for one in found
        ]
        assert runs == expected


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=20),
            st.sampled_from([PLAIN_HEAD, PLAIN_HEAD, NAMED_OCTETS, stored_head.encode(NUMBERED), b""]),
        ),
        max_size=8,
    ),
    st.booleans(),
    st.booleans(),
)
def test_writing_envelopes(sent: list[tuple[bytes, bytes]], views: bool, plain: bool) -> None:
    bodies = [memoryview(body) if views else body for body, _ in sent]
    heads = () if plain else [head for _, head in sent]
    for write, smallest in ((dmp_writer.for_feed, dmp_writer.SMALLEST_ON_FEEDS), (dmp_writer.for_sink, 0)):
        expected = outcome(lambda s=smallest: dmp_writer.run_plain(bodies, heads, (), s)) if sent else b""  # type: ignore[misc]  # a lambda with a default has no type
        assert outcome(lambda write=write: write(bodies, heads)) == expected  # type: ignore[misc]  # a lambda with a default has no type


@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=8),
    st.builds(range, st.integers(4, 15), st.integers(4, 15), st.sampled_from([1, 1, 2, 3, 1 << 70, -1])),
    st.sampled_from([PLAIN_HEAD, NAMED_OCTETS, stored_head.encode(NUMBERED), b""]),
)
def test_blocks_as_envelopes(bodies: list[bytes], messages: range, head: bytes) -> None:
    block = encode(3, 5, bodies, 0)
    with using(compiled=False):
        expected = outcome(lambda: dmp_writer.of_block(block, messages, head))
    assert outcome(lambda: dmp_writer.of_block(block, messages, head)) == expected
    if not messages:
        assert expected == b""
    elif messages.step > 0 and all(5 <= message < block.next for message in messages):
        chosen = [bodies[message - 5] for message in messages]
        assert expected == outcome(lambda: dmp_writer.for_feed(chosen, [head] * len(chosen)))
    else:
        assert expected[0] is ValueError


# -- frames --------------------------------------------------------------------------------------------------


@st.composite
def frame_streams(draw: st.DrawFn) -> bytes:
    octets = b"".join(map(frames.encode, draw(st.lists(any_frames, max_size=8))))
    return draw(mutated([octets])) if draw(st.booleans()) else octets


@given(frame_streams(), st.integers(0, 20), st.sampled_from([0, 12, 13, 30, 1 << 32, 1 << 70]))
@example(encode(1, (1 << 64) - 2, [b"a", b""], 0).frames, 0, 1 << 20)
def test_runs_of_messages(octets: bytes, position: int, largest: int) -> None:
    position = min(position, len(octets))
    compiled: list[Any] = []
    plain: list[Any] = []
    end = frames.take_messages(octets, position, largest, compiled)
    assert (end, compiled) == (frames.take_messages_plain(octets, position, largest, plain), plain)
    assert end <= len(octets)


def test_frames_lie_within_their_octets() -> None:
    octets = b"\xff\xff\xff\xff\x02" + bytes(12 + FRAME_HEADER)
    assert frames.take_messages(octets, 0, 1 << 40, []) == 0


# -- lines ---------------------------------------------------------------------------------------------------

PIECES = [
    b"(Publish ", b"(publish", b" ", b'"', b"a", b"bc", b")", b"\n", b")\n", b'")\n', b"\\", b'\\"', b"\\n",
    b"\\065", b"\\255", b"\\256", b"\\300", b"\\x41", b"\\'", b"\\q", b"#", b"|", b"#|", b"|#", b"#;", b";",
    b"\r", b"\t", b"\f", b"\xff", b"\0", b"(", b"Topics\n", b"(Publish a b)\n", b'(Publish a "b")\n',
    b'(Publish "a"b)\n', b'(Publish"a""b")\n', b'(Publish "a" b)\r\n', b'(Publish a "\\"x\\"")\n',
    b'(Publish "a b" 12345678901234567890)\n',
    b'(Publish a "{\\"k\\": \\"0123456789abcdef\\", \\"l\\": 1}")\n',
]  # fmt: skip
line_streams = st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join) | mutated(
    [b"(Publish a b)\n" * 3, b'(Publish a "some body")\n' * 2, b'(Publish a "\\"x\\" \\010\\\'")\n' * 2]
)


@given(line_streams)
@example(b'(Publish a ")\n')
@example(b'(Publish "")\n')
@example(b'(Publish "a"b)\n(Publish "a" c)\n(Publish "a""d")\n')
@example(b'(Publish "a\\\n')
@example(b'(Publish a "\\25\n')
@example(b"(Publish a b)c)\n")
@example(b"(Publish a b)\r\r\n(Publish a b\r)\n")
@example(b'(Publish a 1)\n(Publish b 2)\n(Publish "a" 3)\n(Publish "\\097" 4)\n(Publish a 5)\n')
@example(b'(Publish "a\\\\b" 1)\n(Publish a\\\\b 2)\n(Publish "a\\\\b" 3)\n')
def test_lines_of_all_kinds(octets: bytes) -> None:
    whole = octets + b"\n"
    assert all_events(compiled_lines.events_compiled, whole) == all_events(plain_lines.events_plain, whole)


SEXP_PIECES = [
    b"a", b"bc", b"#", b"|", b"#|", b"|#", b"#;", b"#; ", b";", b"; c\n", b" ", b"\t", b"\f", b"\n", b"\r",
    b"\r\n", b"(", b"(", b")", b")", b'"', b'""', b'"a b"', b"\\", b"\\\"", b"\\n", b"\\065", b"\\256",
    b"\\x41", b"\\x4", b"\\z", b"\\\n  ", b"\\\r\n \t", b"\\\r", b"\0", b"\xff", b"\x0b", b"x" * 70,
    b"#" * 40, b"(" * 20, b"#;" * 30, b" " * 50,
]  # fmt: skip
sexps = st.lists(st.sampled_from(SEXP_PIECES), max_size=24).map(b"".join)


def read_in_steps(text: bytes, compiled: bool, octets: int, max_tokens: int | None, max_depth: int) -> Any:
    """Return the value of a sexp, or its error, when a step has at most N `octets`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "COMPILED", compiled)
        for module in (atoms, sexp):
            patch.setattr(module, "STEP", octets)
            patch.setattr(module, "CHUNK", octets)
        patch.setattr(sexp, "TOKENS_CHUNK", octets)
        return outcome(lambda: sexp.read(text, max_depth, max_tokens))


@given(sexps, st.sampled_from([8, 9, 16, 33]), st.sampled_from([None, 3, 100]), st.sampled_from([2, 100]))
@example(b"#||#" * 20 + b"a", 8, None, 100)
@example(b"#|" + b'"|#"' * 9 + b"|#a", 8, None, 100)
@example(b'#|"' + b"a" * 20 + b'"|#b', 8, None, 100)
@example(b"a" * 7 + b"#|b", 8, None, 100)
@example(b"a" * 7 + b"|#b", 8, None, 100)
@example(b'"' + b"\\x41" * 20 + b'"', 9, None, 100)
@example(b"#;(" * 40 + b")" * 40, 8, 100, 100)
@example(b"#;" * 600 + b"(a)" + b"b " * 599 + b"c", 16, 100, 100)
@example(b"(" + b"#;" * 600 + b"((a)" + b"b " * 599 + b"c)", 16, 100, 100)
def test_sexps_in_steps(text: bytes, octets: int, max_tokens: int | None, max_depth: int) -> None:
    """Both parsers give the same result in steps of any size as in one step."""
    expected = read_in_steps(text, False, 1 << 20, max_tokens, max_depth)
    for compiled in (False, True):
        assert read_in_steps(text, compiled, octets, max_tokens, max_depth) == expected
    assert read_in_steps(text, True, 1 << 20, max_tokens, max_depth) == expected


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    "line",
    [
        b"(", b"#;(", b"#;()", b"#;", b"#;a", b" ", b";", b"#||#", b'#|""', b"#|", b'"" ', b"a", b"#",
        b'(Publish t "\\n', b'(Publish t "\\x41', b'(Publish t "\\z', b"\n", b"\r\n", b";\n",
    ],
)  # fmt: skip
@untraced()
def test_no_step_reads_much(line: bytes, compiled: bool) -> None:
    """Steps are counted and not timed: lines with one kind of input are parsed in many steps."""
    head, piece = (line[:12], line[12:]) if line.startswith(b"(P") else (b"", line)
    size = 1 << 20 if compiled else 1 << 18
    octets = head + piece * (size // len(piece)) + b"\n"
    with using(compiled=compiled):
        steps = sum(1 for _ in LineReader(2 << 20).reads(octets))
    assert steps >= (12 if compiled else 15)


def test_odd_lines_are_read_in_turns() -> None:
    """However many of them one read has, other tasks run in between."""
    whole = b"(Publish a b) ; odd\n" * 1000
    reader = LineReader(1000)
    turns = list(reader.reads(whole))
    assert len(turns) >= 4
    assert max(sum(event.batch.count for event in events) for events in turns) < 300  # type: ignore[union-attr]  # every event is a batch here
    assert all_events(compiled_lines.events_compiled, whole) == all_events(plain_lines.events_plain, whole)


@pytest.mark.skipif(not codec.COMPILED, reason="the plain reader reads few octets in a step")
def test_lines_of_many_topics_are_read_in_turns() -> None:
    """However many topics one read has, the events of one step are those of some, and no message is lost."""
    whole = b"".join(b"(Publish topic-%05d x)\n" % (number % 5000) for number in range(10_000))
    turns = list(LineReader(100).reads(whole))
    assert max(map(len, turns)) == codec.native.DEALT_TOPICS
    assert sum(not turn for turn in turns) >= 9  # a pause before the events of each full step
    topics = [event.topic for events in turns for event in events if isinstance(event, PublishRun)]
    assert topics == [b"topic-%05d" % (number % 5000) for number in range(10_000)]
    assert all_events(compiled_lines.events_compiled, whole) == all_events(plain_lines.events_plain, whole)


def test_the_plain_reader_pauses_between_commands_of_several_kinds() -> None:
    assert list(plain_lines.reading_plain(b"(Topics)\n" * line_steps.SLOW_LINES, 0)) == [None]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=6), st.binary(min_size=1, max_size=4))
def test_every_escape_there_is(bodies: list[bytes], topic: bytes) -> None:
    whole = b"".join(
        b'(Publish "%s" "%s")\n'
        % (b"".join(b"\\%03d" % o for o in topic), b"".join(b"\\%03d" % o for o in body))
        for body in bodies
    )
    (run,) = all_events(compiled_lines.events_compiled, whole)
    assert isinstance(run, PublishRun)
    assert (run.topic, run.batch.bodies()) == (topic, bodies)
    assert all_events(plain_lines.events_plain, whole) == [run]
