"""A server of AMQP 0-9-1 reads the same however the octets are cut, and with either codec."""

from itertools import pairwise

import pytest
from amqp_0_9_helpers import (
    GET,
    NO_PROPERTIES,
    PERSISTENT,
    WIDE,
    body,
    call,
    feed,
    merged,
    one,
    opened,
    publish,
)
from hypothesis import given
from hypothesis import strategies as st
from twins import using

from omq.protocol.amqp_0_9 import runs
from omq.protocol.amqp_0_9.events import (
    AckRun,
    Event,
    LongPart,
    MethodCalled,
    PublishRun,
)
from omq.protocol.amqp_0_9.frames import HEARTBEAT, header_frame
from omq.protocol.amqp_0_9.methods import (
    BasicAck,
    BasicPublish,
    ChannelClose,
    ChannelOpen,
)
from omq.protocol.amqp_0_9.runs import RunLimits
from omq.protocol.amqp_0_9.server import MOST_HELD
from omq_storage import codec
from omq_storage.batches import Bodies, Framed

CONVERSATION = b"".join(
    (
        publish(1, b"a", b"1"), publish(1, b"a", b"2", properties=PERSISTENT), publish(1, b"a", b""),
        call(1, GET), publish(2, b"b", b"3" * 5000, b"e", frame_max=4096), HEARTBEAT,
        call(1, BasicAck(1)), call(1, BasicAck(2)), call(2, BasicAck(9, True)),
        call(1, BasicPublish(b"", b"a")), header_frame(1, NO_PROPERTIES, 3), publish(2, b"c", b"4"),
        body(1, b"12"), body(1, b""), body(1, b"3"), call(1, ChannelClose(0, b"", 0, 0)),
        call(1, ChannelOpen()),
        publish(1, b"a", b"5") * 3, call(7, GET),
    )
)  # fmt: skip


def flat(events: list[Event]) -> list[object]:
    found: list[object] = []
    for event in merged(events):
        match event:
            case AckRun(channel, ranges):
                found += [(channel, tag) for tag in ranges]
            case LongPart(channel, octets):
                found += [(channel, octet) for octet in octets]
            case _:
                found.append(event)
    return found


def acks_apart(found: list[object]) -> list[object]:
    """Return the events with ranges taken apart into single tags: ranges depend on the cuts."""
    apart: list[object] = []
    for item in found:
        match item:
            case (int() as channel, (int() as first, int() as last)) if first:
                apart += [(channel, tag) for tag in range(first, last + 1)]
            case _:
                apart.append(item)
    return apart


WHOLE = acks_apart(flat(feed(opened(1, 2), CONVERSATION)))


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=8))
def test_any_cuts_give_the_same_events(cuts: list[int]) -> None:
    connection = opened(1, 2)
    found: list[Event] = []
    for begin, end in pairwise([0, *sorted(cuts), len(CONVERSATION)]):
        found += feed(connection, CONVERSATION[begin:end])
    assert acks_apart(flat(found)) == WHOLE


def test_octet_by_octet() -> None:
    connection = opened(1, 2)
    found: list[Event] = []
    for octet in CONVERSATION:
        found += feed(connection, bytes((octet,)))
    assert acks_apart(flat(found)) == WHOLE


@given(st.binary(max_size=300), st.integers(0, len(CONVERSATION)))
def test_any_octets_are_events(octets: bytes, at: int) -> None:
    """Nothing is raised, whatever stands in the middle of a conversation."""
    connection = opened(1, 2)
    feed(connection, CONVERSATION[:at] + octets + CONVERSATION[at:])
    assert connection.unfinished <= MOST_HELD + connection.frame_max


names = st.sampled_from([b"", b"q", b"e" * 255])

properties = st.sampled_from(
    [NO_PROPERTIES, PERSISTENT, b"\x80\0\x01t", WIDE, b"\x20\0\0\0\0\x03\x01a?", b"\0\x01"]
)

sent = st.one_of(
    st.builds(
        publish, st.integers(1, 2), names, st.binary(max_size=20), names, properties, mandatory=st.booleans()
    ),
    st.builds(lambda octets, count: octets * count, st.just(publish(1, b"q", b"abc")), st.integers(1, 5)),
    st.builds(call, st.integers(1, 2), st.builds(BasicAck, st.integers(0, 4), st.booleans())),
    st.sampled_from([
        HEARTBEAT, call(1, GET), call(1, BasicPublish(b"", b"", True, True)), body(1, b"x"),
        call(2, ChannelClose(0, b"", 0, 0)) + call(2, ChannelOpen()), header_frame(1, NO_PROPERTIES, 0),
        publish(1, b"q", bytes(200)), publish(1, b"q", bytes(80), frame_max=50),
    ]),
)  # fmt: skip


@given(st.lists(sent, max_size=12), st.lists(st.integers(0, 600), max_size=5), st.data())
def test_both_codecs_read_the_same(frames: list[bytes], cuts: list[int], data: st.DataObject) -> None:
    octets = b"".join(frames)
    if octets and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(octets) - 1))
        octets = octets[:at] + data.draw(st.binary(max_size=2)) + octets[at + 1 :]
    bounds = [0, *sorted(min(cut, len(octets)) for cut in cuts), len(octets)]
    outcomes = []
    for compiled in (codec.COMPILED, False):
        connection = opened(1, 2, max_message=150)
        found: list[Event] = []
        with using(compiled=compiled):
            for begin, end in pairwise(bounds):
                found += feed(connection, octets[begin:end])
        outcomes.append((flat(found), [event.properties for event in found if isinstance(event, PublishRun)]))
    assert outcomes[0] == outcomes[1]


@pytest.mark.skipif(not codec.COMPILED, reason="no compiled codec here")
def test_the_compiled_codec_takes_every_form_of_a_message() -> None:
    """A message that it leaves to the plain code costs a hundred times as much."""
    limits = RunLimits(1 << 16, 1 << 16)
    for octets in (
        publish(1, b"k", b"", b"e"), publish(1, b"", b"x"), publish(1, b"k", b"x", properties=WIDE),
        publish(1, b"k" * 255, bytes(1 << 16), b"e" * 255, PERSISTENT, mandatory=True),
    ):  # fmt: skip
        run, end = runs.take_publishes(octets * 3, 0, 1, limits)
        assert end == 3 * len(octets)
        assert run is not None
        plain, _ = runs.take_publishes_plain(octets * 3, 0, 1, limits)
        assert run == plain
        assert isinstance(run.batch, Framed)


def test_runs_end_before_a_limit_is_exceeded() -> None:
    """The code for single messages refuses it, and says why."""
    limits = RunLimits(10, 1 << 16)
    assert runs.take_publishes_plain(publish(1, b"k", bytes(10)), 0, 1, limits)[0] is not None
    assert runs.take_publishes_plain(publish(1, b"k", bytes(11)), 0, 1, limits) == (None, 0)


def test_octets_of_bodies_may_be_those_that_end_frames() -> None:
    for size in range(1, 65):
        octets = publish(1, b"k", b"\xce" * size) * 4
        run, end = runs.take_publishes_plain(octets, 0, 1, RunLimits(1 << 16, 1 << 16))
        assert run is not None
        assert (run.batch, end) == (Bodies([b"\xce" * size] * 4), len(octets))


@pytest.mark.skipif(not codec.COMPILED, reason="no compiled codec here")
def test_positions_outside_of_the_octets() -> None:
    for position in (-1, 2):
        with pytest.raises(ValueError, match="not within"):
            codec.native.take_publishes(b"x", position, 1, 1, 1, 1, 1)
        with pytest.raises(ValueError, match="not within"):
            codec.native.take_acks(b"x", position, 1, 1)


@pytest.mark.parametrize("compiled", [codec.COMPILED, False])
def test_a_run_has_the_property_flags_of_all_its_messages(compiled: bool) -> None:
    octets = b"".join(
        publish(1, b"q", b"x", properties=each) for each in (b"\x80\0\x01t", PERSISTENT, NO_PROPERTIES)
    )
    with using(compiled=compiled):
        run = one(feed(opened(1), octets))
    assert (run.batch.count, run.properties) == (3, 0x9000)


@pytest.mark.parametrize("compiled", [codec.COMPILED, False])
@pytest.mark.parametrize("bits", [2, 3, 0xFF])
def test_flags_without_a_meaning_are_ignored(bits: int, compiled: bool) -> None:
    octets = call(1, BasicAck(5))[:-2] + bytes((bits,)) + b"\xce"
    with using(compiled=compiled):
        assert feed(opened(1), octets) == [MethodCalled(1, BasicAck(5, bool(bits & 1)))]


def test_runs_are_limited() -> None:
    octets = publish(1, b"q", b"")
    many = octets * (runs.COMPILED_MESSAGES_A_STEP + 1)
    counts = [run.batch.count for run in feed(opened(1), many) if isinstance(run, PublishRun)]
    assert sum(counts) == runs.COMPILED_MESSAGES_A_STEP + 1
    assert max(counts) <= runs.COMPILED_MESSAGES_A_STEP
    acks = call(1, BasicAck(7)) * (runs.ACKS_A_STEP + 1)
    assert [len(run.ranges) for run in feed(opened(1), acks) if isinstance(run, AckRun)] == [
        runs.ACKS_A_STEP,
        1,
    ]
