"""Envelopes parsed and written: single, in runs, in pieces, malformed, and mutated at random."""

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import dmp_recordings as recorded
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from measuring import untraced

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import openamq
from omq.protocol.amqp.fields import VALUES_A_STEP, LongString, Table
from omq.protocol.amqp.head import MAX_HEAD, PLAIN_HEAD, Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.client import ClientDialogue, DialogueError, Purpose
from omq.protocol.dmp.envelopes import NULL_MESSAGE, Envelope, EnvelopeError, EnvelopeRun
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.dmp.server import LeaseReceived, ServerDialogue, SinkReady
from omq.protocol.steps import finished

NAMED = Head(b"x", b"key")
NAMED_OCTETS = b"\x01x\x03key\x00\x00"
NUMBERED = Head(b"x", b"key", Properties(message_id=b"7", app_id=b"me"))

heads = st.sampled_from(
    [
        Head(),
        Head(),
        NAMED,
        NAMED,
        NUMBERED,
        Head(b"x" * 255, b"", Properties(timestamp=1)),
        Head(properties=Properties(headers=Table(((b"colour", LongString(b"red\x00")),)))),
    ]
)
envelopes = st.builds(Envelope, st.binary(max_size=20), heads, st.booleans(), st.booleans())
calm_envelopes = st.builds(Envelope, st.binary(max_size=20), heads)
runs = st.lists(calm_envelopes | envelopes, max_size=20) | st.lists(calm_envelopes, max_size=20)


def sized(contents: bytes) -> bytes:
    return len(contents).to_bytes(4, "big") + contents


def flat(found: list[EnvelopeRun]) -> list[Envelope]:
    return [envelope for run in found for envelope in run.envelopes()]


def read_in_pieces(octets: bytes, cuts: list[int]) -> tuple[list[Envelope], str | None, int]:
    """Return the envelopes, the error at their end if there is one, and the number of remaining octets."""
    reader = EnvelopeReader(100)
    found = []
    bounds = [0, *sorted(min(cut, len(octets)) for cut in cuts), len(octets)]
    for start, end in pairwise(bounds):
        try:
            found.append(reader.feed(octets[start:end]))
        except EnvelopeError as error:
            found.append(error.before)
            return flat(found), str(error), 0
    return flat(found), None, reader.unfinished


@pytest.mark.parametrize(
    ("envelope", "octets"),
    [
        (Envelope(b""), b"\x00\x00\x00\x08" + bytes(8)),
        (Envelope(b"body"), b"\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x04body"),
        (Envelope(b"b", NAMED), b"\x00\x00\x00\x0d" + NAMED_OCTETS + b"\x00\x00\x00\x01b"),
        (Envelope(b"b", mandatory=True), b"\x00\x00\x00\x09\x00\x00\x00\x00\x02\x00\x00\x01b"),
        (Envelope(b"b", immediate=True), b"\x00\x00\x00\x09\x00\x00\x00\x00\x01\x00\x00\x01b"),
        (
            Envelope(b"b", NUMBERED, mandatory=True, immediate=True),
            b"\x00\x00\x00\x12\x01x\x03key\x00\x88\x017\x02me\x03\x00\x00\x01b",
        ),
    ],
)
def test_envelopes_octet_by_octet(envelope: Envelope, octets: bytes) -> None:
    assert dmp_writer.encode(envelope) == octets
    assert list(EnvelopeReader().feed(octets).envelopes()) == [envelope]


@given(runs, st.lists(st.integers(0, 2000), max_size=5), st.data())
def test_any_envelopes_in_any_pieces_come_back_in_order(
    sent: list[Envelope], cuts: list[int], data: st.DataObject
) -> None:
    nulls = data.draw(st.lists(st.integers(0, 2), min_size=len(sent) + 1, max_size=len(sent) + 1))
    wire = NULL_MESSAGE * nulls[0]
    for envelope, after in zip(sent, nulls[1:], strict=True):
        wire += dmp_writer.encode(envelope) + NULL_MESSAGE * after
    assert read_in_pieces(wire, cuts) == (sent, None, 0)
    assert read_in_pieces(wire, list(range(len(wire)))) == (sent, None, 0)


@given(runs)
def test_a_run_is_written_as_its_envelopes_are(sent: list[Envelope]) -> None:
    wire = b"".join(map(dmp_writer.encode, sent))
    run = EnvelopeReader().feed(wire)
    assert dmp_writer.for_sink(run.bodies, run.heads, run.options) == wire


@given(st.lists(calm_envelopes, max_size=20))
def test_feeds_say_the_same_in_envelopes_that_are_large_enough(sent: list[Envelope]) -> None:
    run = EnvelopeReader().feed(b"".join(map(dmp_writer.encode, sent)))
    wire = dmp_writer.for_feed(run.bodies, run.heads)
    found = list(EnvelopeReader().feed(wire).envelopes())
    assert [envelope.body for envelope in found] == [envelope.body for envelope in sent]
    for ours, theirs in zip(found, sent, strict=True):
        padded = len(stored_head.encode(theirs.head)) + len(theirs.body) + 4 < 12
        assert len(stored_head.encode(ours.head)) + len(ours.body) + 4 >= 12
        if padded:
            assert ours.head == Head(
                theirs.head.exchange, theirs.head.routing_key, Properties(headers=Table())
            )
        else:
            assert ours == theirs


@pytest.mark.parametrize("length", range(6))
def test_the_smallest_messages_of_a_feed(length: int) -> None:
    octets = dmp_writer.for_feed([b"b" * length])
    if length < 4:
        head = b"\x00\x00\x20\x00\x00\x00\x00\x00"
        assert octets == sized(head + length.to_bytes(4, "big") + b"b" * length)
    else:
        assert octets == sized(PLAIN_HEAD + length.to_bytes(4, "big") + b"b" * length)
    assert dmp_writer.for_sink([b"b" * length]) == sized(
        PLAIN_HEAD + length.to_bytes(4, "big") + b"b" * length
    )


@pytest.mark.parametrize("length", [0, 1, 3, 4, 100, 1 << 24, (1 << 24) - 1, (1 << 24) + 1])
@pytest.mark.parametrize("head", [PLAIN_HEAD, NAMED_OCTETS])
def test_the_beginning_of_an_envelope_is_that_of_the_whole(length: int, head: bytes) -> None:
    """For a message that is sent piece by piece."""
    body = bytes(length)
    assert dmp_writer.opening(length, head) + body == dmp_writer.for_feed([body], [head])


def test_a_body_that_fits_into_no_envelope_is_not_begun() -> None:
    longest = 2**32 - 1 - len(NAMED_OCTETS) - 4
    begun = dmp_writer.opening(longest, NAMED_OCTETS)
    assert begun == b"\xff\xff\xff\xff" + NAMED_OCTETS + longest.to_bytes(4, "big")
    with pytest.raises(ValueError, match=rf"^a body of {longest + 1} octets does not fit into an envelope$"):
        dmp_writer.opening(longest + 1, NAMED_OCTETS)


def test_a_short_head_keeps_its_properties_when_it_grows() -> None:
    short = Head(properties=Properties(priority=3))
    octets = dmp_writer.for_feed([b"", b"long enough"], [stored_head.encode(short)] * 2)
    first, second = EnvelopeReader().feed(octets).envelopes()
    assert first == Envelope(b"", Head(properties=Properties(priority=3, headers=Table())))
    assert second == Envelope(b"long enough", short)


def test_views_can_be_written() -> None:
    frames = memoryview(b"first second")
    octets = dmp_writer.for_feed([frames[:5], frames[6:]])
    assert EnvelopeReader().feed(octets).bodies == [b"first", b"second"]


def test_lists_that_do_not_match_are_not_written() -> None:
    for bodies, heads, options in (([b"a"], [PLAIN_HEAD] * 2, []), ([b"a"], [], [0, 0]), ([], [], [1])):
        with pytest.raises(ValueError, match="do not match"):
            dmp_writer.for_sink(bodies, heads, options)
    assert dmp_writer.for_sink([]) == dmp_writer.for_feed([], []) == b""


# -- runs ----------------------------------------------------------------------------------------------------


def test_absent_options_take_no_list() -> None:
    plain = EnvelopeReader().feed(dmp_writer.for_sink([b"a", b"b"]))
    assert plain == EnvelopeRun([b"a", b"b"], [], [])
    assert len(plain) == 2
    assert EnvelopeReader().feed(b"") == EnvelopeReader().feed(NULL_MESSAGE) == EnvelopeRun([], [], [])


def test_lists_cover_all_envelopes_if_one_has_a_value() -> None:
    wire = dmp_writer.for_sink([b"a", b"b"]) + dmp_writer.encode(Envelope(b"c", NAMED))
    wire += dmp_writer.encode(Envelope(b"d", NAMED)) + dmp_writer.encode(Envelope(b"e", mandatory=True))
    wire += dmp_writer.encode(Envelope(b"f"))
    run = EnvelopeReader().feed(wire)
    assert run.bodies == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert run.heads == [PLAIN_HEAD] * 2 + [NAMED_OCTETS] * 2 + [PLAIN_HEAD] * 2
    assert run.options == [0, 0, 0, 0, 2, 0]


def test_equal_heads_that_follow_one_another_are_one_object() -> None:
    run = EnvelopeReader().feed(dmp_writer.for_sink([b"a", b"", b"ccc"], [NAMED_OCTETS] * 3))
    assert run.heads == [NAMED_OCTETS] * 3
    assert len(set(map(id, run.heads))) == 1


# -- sizes ---------------------------------------------------------------------------------------------------


def test_a_4_dmp_body_of_16_mib_is_read_as_its_sizes_say() -> None:
    body = bytes(2**24)
    four = sized(PLAIN_HEAD + (2**24).to_bytes(4, "big") + body)
    assert dmp_writer.for_sink([body]) == four
    run = EnvelopeReader().feed(four * 2 + dmp_writer.for_sink([b"b"]))
    assert list(map(len, run.bodies)) == [2**24, 2**24, 1]
    assert run.options == []
    with pytest.raises(EnvelopeError, match="its body of 16777216 octets is above the limit of 16777215"):
        EnvelopeReader(2**24 - 1).feed(four)
    # The same number with no such body is options of 1 and an empty one.
    six = EnvelopeReader().feed(sized(PLAIN_HEAD + (2**24).to_bytes(4, "big")))
    assert (six.bodies, six.options) == ([b""], [1])
    with pytest.raises(ValueError, match="leaves no room for options"):
        dmp_writer.for_sink([body], options=[1])


@pytest.mark.parametrize("before", [[], [b"first"]])
def test_a_body_may_be_as_long_as_the_limit_and_no_longer(before: list[bytes]) -> None:
    assert EnvelopeReader(10).feed(dmp_writer.for_sink([*before, bytes(10)])).bodies == [*before, bytes(10)]
    with pytest.raises(EnvelopeError) as caught:
        EnvelopeReader(10).feed(dmp_writer.for_sink([*before, bytes(11)]))
    assert str(caught.value) == f"envelope {len(before) + 1}: its body of 11 octets is above the limit of 10"
    assert caught.value.before.bodies == before


def test_a_size_above_the_limit_is_refused_before_its_octets_come() -> None:
    with pytest.raises(EnvelopeError, match="its size is 65551, and no message may take more than 65550"):
        EnvelopeReader(10).feed((10 + MAX_HEAD + 5).to_bytes(4, "big"))
    assert EnvelopeReader(10).feed((10 + MAX_HEAD + 4).to_bytes(4, "big")).bodies == []


def head_of(length: int) -> bytes:
    """Return a head of N (`length`) octets: no names, and a table with one long string."""
    head = Head(properties=Properties(headers=Table(((b"", LongString(bytes(length - 14))),))))
    assert len(stored_head.encode(head)) == length
    return stored_head.encode(head)


def test_a_head_may_be_as_long_as_the_limit_and_no_longer() -> None:
    longest = dmp_writer.for_sink([b""], [head_of(MAX_HEAD)])
    assert EnvelopeReader(10).feed(longest).heads == [head_of(MAX_HEAD)]
    with pytest.raises(EnvelopeError, match="names and properties take 65537 octets, more than 65536"):
        EnvelopeReader(10).feed(dmp_writer.for_sink([b""], [head_of(MAX_HEAD + 1)]))


def test_a_length_that_is_only_claimed_takes_no_memory() -> None:
    reader = EnvelopeReader(2**31)
    tracemalloc.start()
    reader.feed(b"\x7f\xff\xff\xff" + PLAIN_HEAD + b"\x7f\xff\xff\xf7" + b"some")
    reader.feed(b"more")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert reader.unfinished == 20


@untraced()
def test_a_large_envelope_in_many_small_pieces_is_linear() -> None:
    body = bytes(range(256)) * 8192
    octets = dmp_writer.for_sink([body])
    reader = EnvelopeReader()
    found = [run for at in range(0, len(octets), 5) if (run := reader.feed(octets[at : at + 5]))]
    assert [run.bodies for run in found] == [[body]]


# -- malformed -----------------------------------------------------------------------------------------------

EMPTY_BODY = bytes(4)


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (b"\x00\x00\x00\x01", "its size is 1, and even an empty message takes 8"),
        (sized(bytes(7)), "its size is 7, and even an empty message takes 8"),
        (b"\xff\xff\xff\xff", "its size is 4294967295, and no message may take more than 65640"),
        (sized(b"\x05\x00\x00\x00" + EMPTY_BODY), "the exchange has 3 of its 5 octets"),
        (sized(b"\x03abc" + EMPTY_BODY), "the routing key is missing"),
        (sized(b"\x00\xff\x00\x00" + EMPTY_BODY), "the routing key has 2 of its 255 octets"),
        (sized(b"\x00\x03abc" + EMPTY_BODY), "the property flags have 0 of their 2 octets"),
        (sized(b"\x00\x02ab\x00" + EMPTY_BODY), "the property flags have 1 of their 2 octets"),
        (
            sized(b"\x00\x00\x00\x01" + EMPTY_BODY),
            "the property flags 0x0001 have bits set that stand for no property",
        ),
        (sized(b"\x00\x00\x00\x80" + EMPTY_BODY), "the property message-id is missing"),
        (sized(b"\x00\x00\x00\x80\x09ab" + EMPTY_BODY), "the property message-id has 2 of its 9 octets"),
        (sized(b"\x00\x00\x20\x00\x00\x00" + EMPTY_BODY), "the property headers has 2 of its 4 octets"),
        (
            sized(b"\x00\x00\x20\x00\x00\x00\x00\x09\x01k" + EMPTY_BODY),
            "the property headers has 2 of its 9 octets",
        ),
        (
            sized(b"\x00\x00\x20\x00\x00\x00\x00\x03\x01kI" + EMPTY_BODY),
            "'k' in the property headers has 0 of its 4 octets",
        ),
        (
            sized(PLAIN_HEAD + b"\x00\x00\x00\x05body"),
            "its body's length is 5, but its size leaves 4 octets for the body",
        ),
        (
            sized(PLAIN_HEAD + b"\x00\x00\x00\x03body"),
            "its body's length is 3, but its size leaves 4 octets for the body",
        ),
        (
            sized(PLAIN_HEAD + b"\x03\xff\xff\xffbody"),
            "its body's length is 16777215, but its size leaves 4 octets for the body",
        ),
        (
            sized(PLAIN_HEAD + b"\x04\x00\x00\x04body"),
            "its options 0x04 have bits set that stand for nothing",
        ),
        (
            sized(PLAIN_HEAD + b"\x83\x00\x00\x04body"),
            "its options 0x83 have bits set that stand for nothing",
        ),
        (
            sized(PLAIN_HEAD + b"\x00\x00\x00\x65" + bytes(101)),
            "its body of 101 octets is above the limit of 100",
        ),
        (
            sized(PLAIN_HEAD + b"\x02\x00\x00\x65" + bytes(101)),
            "its body of 101 octets is above the limit of 100",
        ),
    ],
)
@pytest.mark.parametrize("before", [[], [Envelope(b"a")], [Envelope(b"a", NAMED, mandatory=True)] * 2])
def test_malformed_envelopes_are_named_and_those_before_them_given(
    octets: bytes, text: str, before: list[Envelope]
) -> None:
    wire = b"".join(map(dmp_writer.encode, before)) + octets
    whole = read_in_pieces(wire + dmp_writer.encode(Envelope(b"after")), [])
    assert whole == (before, f"envelope {len(before) + 1}: {text}", 0)
    assert read_in_pieces(wire, list(range(len(wire)))) == whole


def test_an_error_counts_the_envelopes_of_earlier_pieces() -> None:
    reader = EnvelopeReader()
    reader.feed(dmp_writer.for_sink([b"a"] * 3))
    with pytest.raises(EnvelopeError, match=r"^envelope 5: its size is 2") as caught:
        reader.feed(dmp_writer.for_sink([b"d"]) + b"\x00\x00\x00\x02")
    assert caught.value.before.bodies == [b"d"]


# -- mutations -----------------------------------------------------------------------------------------------

STREAMS = [recorded.sent(name, side) for name in recorded.DMP for side in "CS"]
MESSAGES = [
    octets
    for name in recorded.DMP
    for side in "CS"
    if (octets := b"".join(octets for said, octets in recorded.described(name, side) if "MESSAGE" in said))
] + [dmp_writer.for_sink([b"abc", b"", b"a longer one"] * 2)]


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    octets = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(octets)))
        match draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change":
                octets[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del octets[at : at + draw(st.integers(1, 8))]
            case "insert":
                octets[at:at] = draw(st.binary(max_size=8))
            case _:
                octets[at:at] = octets[max(0, at - draw(st.integers(1, 50))) : at]
    return bytes(octets)


def one_by_one(octets: bytes) -> tuple[list[Envelope], str | None, int]:
    """Return the result of `read_in_pieces`, from a reader of its own for each envelope: no run, no state."""
    found: list[Envelope] = []
    while len(octets) >= 4:
        size = int.from_bytes(octets[:4], "big")
        if len(octets) < 4 + size and 8 <= size <= 100 + MAX_HEAD + 4:
            break
        alone, octets = octets[: 4 + size], octets[4 + size :]
        try:
            found += EnvelopeReader(100).feed(alone).envelopes()
        except EnvelopeError as error:
            return found, str(error).replace("envelope 1:", f"envelope {len(found) + 1}:"), 0
    return found, None, len(octets)


@given(mutated(MESSAGES), st.lists(st.integers(0, 1000), max_size=4))
@example(b"", [])
def test_mutated_envelopes_read_alike_alone_and_in_runs_and_in_pieces(octets: bytes, cuts: list[int]) -> None:
    found = one_by_one(octets)
    assert read_in_pieces(octets, []) == found
    assert read_in_pieces(octets, cuts) == found


@given(mutated(STREAMS) | st.binary(max_size=60))
def test_mutated_dialogues_raise_nothing_else(octets: bytes) -> None:
    server = ServerDialogue()
    for event in server.feed(octets):
        if isinstance(event, LeaseReceived):
            server.decide(SinkReady(event.lease))
    for purpose in Purpose:
        with suppress(DialogueError):
            ClientDialogue(b"l", purpose).feed(octets)


# -- OpenAMQ ------------------------------------------------------------------------------------------------

TIMES = b"\x20\0\0\0\0\x13\x01tT\0\0\0\x05\x01aA\0\0\0\x05T\0\0\0\x07"
"""Properties with times as OpenAMQ writes them."""


def head_of_times(count: int, octets: int) -> bytes:
    """Return a head with an array of N (`count`) times, each of N `octets`."""
    array = (b"T" + bytes(octets)) * count
    table = b"\0A" + sized(array)
    return b"\0\0\x20\0" + sized(table)


@pytest.mark.usefixtures("each_codec")
def test_heads_of_openamq_are_checked_as_such() -> None:
    octets = dmp_writer.for_sink([b"a", b"b", b"c"], [b"\0\0" + TIMES, b"\0\0" + TIMES, NAMED_OCTETS])
    batch = EnvelopeReader(from_openamq=True).feed_batch(octets)
    assert batch.batch.bodies() == [b"a", b"b", b"c"]
    assert batch.heads == [b"\0\0" + TIMES, b"\0\0" + TIMES, NAMED_OCTETS]
    with pytest.raises(EnvelopeError):
        EnvelopeReader().feed_batch(octets)
    for malformed in (TIMES[:-4] + b"\0", TIMES.replace(b"T", b"?")):
        with pytest.raises(EnvelopeError) as raised:
            EnvelopeReader(from_openamq=True).feed_batch(
                dmp_writer.for_sink([b"", b""], [NAMED_OCTETS, b"\0\0" + malformed])
            )
        assert raised.value.batch is not None
        assert raised.value.batch.batch.bodies() == [b""]


@pytest.mark.usefixtures("each_codec")
def test_a_head_of_openamq_may_not_grow_too_long() -> None:
    most = (MAX_HEAD - len(head_of_times(0, 8))) // 9
    longest = head_of_times(most, 4)
    for heads in ([longest], [head_of_times(most // 2, 4), longest]):
        octets = dmp_writer.for_sink([b""] * len(heads), heads)
        assert EnvelopeReader(from_openamq=True).feed_batch(octets).heads == heads
    octets = dmp_writer.for_sink([b""], [head_of_times(most + 1, 4)])
    with pytest.raises(EnvelopeError, match="names and properties take"):
        EnvelopeReader(from_openamq=True).feed_batch(octets)


def test_heads_are_translated_in_steps() -> None:
    narrow = [head_of_times(5_000, 4), *(b"\0\x01%c" % octet + TIMES for octet in range(200)), NAMED_OCTETS]
    steps = openamq.widening_heads(narrow)
    assert len(list(steps)) >= 5_000 // VALUES_A_STEP + 200 // 64
    wide = finished(openamq.widening_heads(narrow))
    assert wide[0] == head_of_times(5_000, 8)
    assert wide[-1] == NAMED_OCTETS
    assert list(map(openamq.narrowed_head, wide)) == narrow


@pytest.mark.parametrize("head", [PLAIN_HEAD, b"\x01e\x00\x00\x00"])
@pytest.mark.parametrize("opening", [dmp_writer.opening, dmp_writer.opening_for_sink])
def test_the_size_of_an_envelope_has_32_bits(opening: Callable[[int, bytes], bytes], head: bytes) -> None:
    longest = 2**32 - 1 - len(head) - 4
    assert opening(longest, head) == b"\xff\xff\xff\xff" + head + longest.to_bytes(4, "big")
    with pytest.raises(ValueError, match=rf"^a body of {longest + 1} octets does not fit into an envelope$"):
        opening(longest + 1, head)
