"""Runs of transfers, and dispositions: the compiled codec and plain Python agree, and so do single frames."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from counted_steps import counted_calls
from hypothesis import example, given
from hypothesis import strategies as st
from twins import compiled, needs_codec, using

from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_1_0 import decoding, encoding, frames, performatives, runs, stored, transfers, types
from omq.protocol.amqp_1_0.frames import FrameReader
from omq.protocol.amqp_1_0.performatives import Transfer
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.transfers import Framing
from omq.protocol.amqp_1_0.types import Binary, Described, Map, Number, NumberType, Symbol
from omq_storage import codec
from omq_storage.batches import Bodies

MAX_FRAME = 65536

pytestmark = needs_codec


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    """Use the compiled codec, also with OMQ_PLAIN=1."""
    with compiled():
        yield


def section(code: int, value: types.Value) -> bytes:
    return b"\x00\x53%c%s" % (code, encoding.write(value))


def header(ttl: int) -> bytes:
    return section(Section.HEADER, types.List((True, None, Number(NumberType.UINT, ttl))))


def until(value: types.Value) -> bytes:
    """Return properties with this absolute-expiry-time."""
    return section(Section.PROPERTIES, types.List(("id", *(None,) * 7, value, None)))


DOUBTFUL_HEADERS = (
    b"\x00\x53\x70\xc0\x05\x03\x40\x40\x50\x05",  # a ttl of another type
    b"\x00\x53\x70\xc0\x05\x03\x56\x01\x40\x43",
    b"\x00\x53\x70\xc0\x08\x03\x00\x53\x01\x40\x40\x52\x09",  # a field with a descriptor
    b"\x00\x53\x70\xc0\x08\x03\x40\x40\x00\x53\x01\x52\x09",
    b"\x00\x53\x70\xc0\x06\x03\x00\x53\x01\x40\x40",  # a descriptor without a value follows
    b"\x00\x53\x70\xc0\x06\x03\x40\x40\x00\x53\x01",
    b"\x00\x53\x70\xc0\x05\x03\x40\x40\x00\x00",
    b"\x00\x53\x70\xc0\x62\x03\x40" + b"\x00\x53\x01" * 31 + b"\x40\x43\x40",
    b"\x00\x53\x70\xc0\x65\x03\x40" + b"\x00\x53\x01" * 32 + b"\x40\x43\x40",
    b"\x00\x53\x70\xc0\x03\x03\x40\x40",
    b"\x00\x53\x70\xc0\x05\x03\x40\x40\x70\x01",
    b"\x00\x53\x70\xc0\x04\x09\x40\x40\x43",
    b"\x00\x53\x70\xc0\x00",
    b"\x00\x53\x70\xd0\x00\x00\x00\x02\x00\x00",
    b"\x00\x53\x70\xd0\x00\x00\x00\x08\x00\x00\x00\x03\x40\x40\x52\x09",
)
DOUBTFUL_PROPERTIES = (
    b"\x00\x53\x73\xc0\x09\x09" + b"\x40" * 8,
    b"\x00\x53\x73\xc0\x0b\x09" + b"\x40" * 8 + b"\x52\x01",
    b"\x00\x53\x73\xc0\x0c\x09\xa1\xff" + b"\x40" * 9,
    b"\x00\x53\x73\xc0\x0d\x09" + b"\x40" * 7 + b"\x00\x53\x01\x40\x40",
    b"\x00\x53\x73\xc0\x0e\x09" + b"\x40" * 8 + b"\x00\x53\x01\x52\x01",
    b"\x00\x53\x73\xd0\x00\x00\x00\x0e\x00\x00\x00\x0a" + b"\x40" * 10,
)
"""Headers and properties that tell times of expiry in other forms, or make no sense."""

properties = st.one_of(
    st.text(max_size=9).map(lambda id: section(Section.PROPERTIES, types.List((id,)))),
    st.sampled_from([until(None), until(Number(NumberType.TIMESTAMP, 0))]),
    st.sampled_from(DOUBTFUL_PROPERTIES),
)
annotations = st.just(section(Section.MESSAGE_ANNOTATIONS, Map(((Symbol("x"), "y"),))))
headers = st.one_of(
    st.sampled_from([b"", b"\x00\x53\x70\x45", section(Section.HEADER, types.List((True,)))]),
    st.sampled_from([0, 9, 10, 255, 256, 2**32 - 1]).map(header),
    st.sampled_from(DOUBTFUL_HEADERS),
)
befores = st.tuples(headers, st.just(b"") | annotations, st.just(b"") | properties).map(b"".join)
contents = st.binary(max_size=20) | st.sampled_from([b"a" * 255, b"b" * 256, b"c" * 3000])
bodies = st.one_of(
    contents.map(lambda octets: section(Section.DATA, Binary(octets))),
    contents.map(lambda octets: section(Section.AMQP_VALUE, Binary(octets))),
    st.text(max_size=9).map(lambda text: section(Section.AMQP_VALUE, text)),
    st.just(b"\x00\x53\x75\xb0\x00\x00\x00\x01x"),
    st.sampled_from(
        [None, True, Map((("sequence", Number(NumberType.INT, 7)),)), Described(Symbol("d"), "v")]
    ).map(lambda value: section(Section.AMQP_VALUE, value)),
    st.just(section(Section.DATA, Binary(b"x")) * 2),
    st.just(section(Section.DATA, Binary(b"x")) + section(Section.FOOTER, Map(()))),
    st.just(b""),
)
messages = st.tuples(befores, bodies).map(b"".join)
malformed = st.binary(max_size=3).map(lambda octets: b"\x00\x53\x77" + octets)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Return transfers of a link or two, mostly in order, in the forms in which clients write them."""
    delivery = draw(st.sampled_from([0, 200, 2**32 - 3]))
    sent = []
    for _ in range(draw(st.integers(1, 8))):
        transfer = Transfer(
            draw(st.sampled_from([0, 0, 0, 0, 7])),
            delivery,
            draw(st.sampled_from([b"tag", b"", b"x" * 32])),
            draw(st.sampled_from([None, 0, 0, 1])),
            draw(st.sampled_from([None, False, True])),
            draw(st.sampled_from([False] * 6 + [True])),
            batchable=draw(st.booleans()),
        )
        octets = performatives.write(transfer)
        if draw(st.booleans()):  # lists of four octets each, as rhea writes them
            values, _ = decoding.fields(octets, 3, len(octets))
            values += [types.NULL] * draw(st.integers(0, 11 - len(values)))
            fields = b"".join(values)
            sizes = (len(fields) + 4).to_bytes(4) + len(values).to_bytes(4)
            octets = b"\x00\x53\x14\xd0" + sizes + fields
        sent.append(frames.write(draw(st.sampled_from([0, 0, 0, 5])), octets, draw(messages | malformed)))
        delivery = (delivery + draw(st.sampled_from([1, 1, 1, 1, 2]))) % 2**32
    stream = b"".join(sent)
    if draw(st.booleans()):
        return stream
    at = draw(st.integers(0, len(stream) - 1))
    return stream[:at] + draw(st.binary(max_size=3)) + stream[at + draw(st.integers(0, 3)) :]


@pytest.mark.parametrize("before", [*DOUBTFUL_HEADERS, *DOUBTFUL_PROPERTIES])
def test_twins_agree_about_doubtful_times(before: bytes) -> None:
    octets = frames.write(0, performatives.write(Transfer(0, 0, b"tag")), before + b"\x00\x53\x75\xa0\x01x")
    assert runs.take_transfers(octets, 0, MAX_FRAME) == runs.take_transfers_plain(octets, 0, MAX_FRAME)


@given(streams(), st.sampled_from([MAX_FRAME, 200]))
def test_twins_take_the_same_transfers(octets: bytes, max_frame: int) -> None:
    at = 0
    while at < len(octets):
        found, end = runs.take_transfers(octets, at, max_frame)
        assert (found, end) == runs.take_transfers_plain(octets, at, max_frame)
        if found is None:
            return
        at = end


@given(streams())
def test_a_run_equals_its_frames(octets: bytes) -> None:
    run, end = runs.take_transfers(octets, 0, MAX_FRAME)
    if run is None:
        return
    reader = FrameReader()
    reader.max_frame = MAX_FRAME
    reader.add(octets[:end])
    told = zip(run.batch.bodies(), run.heads or [b""] * run.batch.count, reader.frames(), strict=True)
    for number, (body, head, frame) in enumerate(told):
        transfer, payload_at = performatives.read(frame.octets, frame.begin, frame.end)
        assert isinstance(transfer, Transfer)
        assert (frame.channel, transfer.handle) == (run.channel, run.handle)
        assert transfer.delivery_id == (run.delivery + number) % 2**32
        assert (bool(transfer.settled), transfer.more, transfer.aborted) == (run.settled, False, False)
        payload = frame.octets[payload_at : frame.end]
        assert len(payload) <= run.longest
        if run.is_timed:
            assert run.batch.count == 1
            around = stored.around(head)
            assert around is not None
            assert stored.message(around, body) == payload
            assert stored.store(payload).body == body
        else:
            assert stored.store(payload) == stored.Stored(head, body)
    assert run.last == (run.delivery + run.batch.count - 1) % 2**32


def test_a_message_with_an_absolute_time_is_a_run_of_its_own() -> None:
    """Its time is not read, because that depends on the clock: a link to a queue takes it by itself."""
    timed = until(Number(NumberType.TIMESTAMP, 9)) + b"\x00\x53\x75\xa0\x01x"
    sent = [
        frames.write(0, performatives.write(Transfer(0, number, b"tag")), message)
        for number, message in enumerate((b"\x00\x53\x75\xa0\x01x", timed, timed, timed[-6:]))
    ]
    found: list[tuple[int, bool]] = []
    at = 0
    while at < len(b"".join(sent)):
        run, at = runs.take_transfers(b"".join(sent), at, MAX_FRAME)
        assert run is not None
        found.append((run.batch.count, run.is_timed))
    assert found == [(1, False), (1, True), (1, True), (1, False)]


@given(st.binary(max_size=60))
def test_any_octets_are_a_run_or_none(octets: bytes) -> None:
    octets = b"\x00\x00\x00%c\x02\x00\x00\x00\x00\x53\x14" % (len(octets) + 11) + octets
    assert runs.take_transfers(octets, 0, MAX_FRAME) == runs.take_transfers_plain(octets, 0, MAX_FRAME)


FOREIGN = b"\x01e\x01k\x00\x00"
"""The head of a message of AMQP 0-9-1."""
FORGED = b"\x00\x00\x20\x00\x00\x00\x00\x0f\x08amqp-1.0x\x00\x00\x00\x05\x02\x00\x00\x00\x09"
"""A head whose length leads outside."""
CUT = tuple(
    b"\x00\x00\x21\x00\x00\x00\x00%c\x08amqp-1.0x\x00\x00\x00%c\x02\x00\x00\x00\x00%s" % each
    for each in (
        (19, 5, b""), (19, 5, b"\x021"), (19, 5, b"\x0112"), (20, 5, b"\x011"), (19, 6, b"\x011"),
        (9, 5, b"\x011"), (255, 5, b"\x011"), (19, 5, b"\x011"), (19, 5, b"\x00"),
    )
)  # fmt: skip
"""Heads with the property expiration. Only the last two are complete."""


@st.composite
def stored_blocks(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    made = []
    for message in draw(st.lists(messages, min_size=1, max_size=9)):
        kept = stored.store(message)
        head = draw(st.sampled_from([kept.head] * 12 + [FOREIGN, FORGED, b"", *CUT]))
        made.append((kept.body, head))
    heads = [head for _, head in made]
    return [body for body, _ in made], heads if any(heads) else []


@given(
    stored_blocks(), st.integers(1, 3), st.sampled_from([0, 9, 2**32 - 2]), st.sampled_from([512, 65536]),
    st.booleans(), st.sampled_from([0, 77, 1000]), st.sampled_from([0, 10_000]),
)  # fmt: skip
def test_twins_write_the_same_transfers(
    made: tuple[list[bytes], list[bytes]],
    step: int,
    delivery: int,
    max_frame: int,
    settled: bool,
    handle: int,
    spent: int,
) -> None:
    bodies, heads = made
    block = Bodies(bodies).encode(5, 98, 0, heads)
    ids = range(98, 98 + len(bodies), step)
    framing = Framing(3, handle, max_frame)
    first, second = Portion(), Portion()
    for portion in (first, second):
        portion.spend(bytes(spent))
    written = framing.run(block, ids, delivery, first, settled=settled)
    assert written == framing.run_plain(block, ids, delivery, second, settled=settled)
    octets, count = written
    reader = FrameReader()
    reader.max_frame = max_frame
    reader.add(octets)
    said = list(reader.frames())
    assert len(said) == count
    for number, (frame, message) in enumerate(zip(said, ids[:count], strict=True)):
        transfer, payload_at = performatives.read(frame.octets, frame.begin, frame.end)
        expected = Transfer(handle, (delivery + number) % 2**32, b"%d" % message, 0, settled, False)
        assert transfer == expected
        around = transfers.head_around(bytes(block.head(message)), Portion())
        assert frame.octets[payload_at : frame.end] == stored.message(around, bodies[message - 98])
    for cut in range(len(octets) + 1):
        whole, within = framing.messages_within(octets, cut)
        assert within <= cut
        assert whole == sum(frame.end <= cut for frame in said)
        with using(compiled=False):
            assert framing.messages_within(octets, cut) == (whole, within)


async def test_very_many_messages_that_were_sent_are_counted_with_little_work() -> None:
    count = 4096
    block = Bodies([b"x"] * count).encode(5, 1, 0)
    framing = Framing(3, 0, 4096)
    octets, framed = framing.run(block, range(1, count + 1), 0, Portion(), settled=True)
    assert framed == count
    with counted_calls() as calls:
        whole, within = framing.messages_within(octets, len(octets) - 1)
    assert whole == count - 1
    assert len(octets) - within < 100
    assert calls.total < 10


booleans = st.sampled_from([b"\x40", b"\x41", b"\x42", b"\x56\x01"])
uints = (
    st.integers(0, 2**32 - 1).map(encoding.uint) | st.integers(0, 300).map(encoding.uint) | st.just(b"\x40")
)
states = st.sampled_from(
    [
        b"\x40", b"\x00\x53\x24\x45", b"\x00\x53\x26\xc0\x01\x00",
        b"\x00\x53\x24\xd0\x00\x00\x00\x04\x00\x00\x00\x00",
        b"\x00\x53\x24\xd0\x00\x00\x00\x05\x00\x00\x00\x00",
        b"\x00\x53\x27\xc0\x02\x01\x41", b"\x00\xa3\x13amqp:accepted:list\x45", b"\x00\x53\x24", b"\x00\x53",
    ]
)  # fmt: skip


@st.composite
def performatives_as_sent(
    draw: st.DrawFn, code: int, kinds: Sequence[st.SearchStrategy[bytes]], counts: Sequence[int]
) -> bytes:
    """Return performatives with this descriptor, most of them as clients send them."""
    fields = [draw(kind) for kind in kinds][: draw(st.sampled_from(counts))]
    body, count = b"".join(fields), len(fields) + draw(st.sampled_from([0, 0, 0, -1, 1]))
    if draw(st.booleans()):
        size = len(body) + 1 + draw(st.sampled_from([0, 0, 0, -1, 1]))
        octets = b"\x00\x53%c\xc0%c%c%s" % (code, size, count, body)
    else:
        octets = b"\x00\x53%c\xd0%s%s%s" % (code, (len(body) + 4).to_bytes(4), count.to_bytes(4), body)
    if draw(st.integers(0, 3)):
        return octets
    at = draw(st.integers(0, len(octets) - 1))
    return octets[:at] + draw(st.binary(max_size=2)) + octets[at + draw(st.integers(0, 2)) :]


dispositions = performatives_as_sent(0x15, (booleans, uints, uints, booleans, states, booleans), [6, 5, 5, 4])
flows = performatives_as_sent(
    0x13,
    (*[uints] * 8, booleans, booleans, st.sampled_from([b"\x40", b"\xc1\x01\x00"])),
    [11, 10, 9, 7, 7, 4, 3],
)


@given(dispositions | flows, st.binary(max_size=3), st.integers(0, 3))
@example(b"\x00\x53\x15\xc0\x09\x05\x41\x43\x40\x41\x00\x53\x24\x45", b"", 0)
@example(b"\x00\x53\x15\xc0\x0a\x05\x41\x43\x40\x41\x00\x53\x24\x45", b"\x40", 0)  # a field too many
@example(b"\x00\x53\x15\xc0\x09\x06\x41\x43\x40\x41\x00\x53\x24\x45", b"\x40", 0)  # one is missing
@example(b"\x00\x53\x13\xc0\x05\x04\x40\x43\x40\x43", b"", 0)  # without next-outgoing-id
def test_twins_read_the_same_dispositions_and_flows(octets: bytes, around: bytes, short: int) -> None:
    data, at = around + octets + around, len(around)
    end = len(data) - min(short, len(octets))
    found: list[object] = []
    for read in (performatives.read, performatives.read_plain):
        try:
            found.append(read(data, at, end))
        except types.DecodeError as problem:
            found.append(str(problem))
    assert found[0] == found[1]


def test_the_common_disposition_is_read_by_the_compiled_codec() -> None:
    native: Any = codec.native
    accepted = b"\x00\x53\x24\x45"
    octets = performatives.write_outcome(3, 700, accepted)
    assert native.take_disposition(octets, 0, len(octets)) == (
        True,
        3,
        700,
        True,
        accepted,
        False,
        len(octets),
    )
    octets = performatives.write_outcome(3, 3, accepted)
    assert native.take_disposition(octets, 0, len(octets)) == (
        True, 3, None, True, accepted, False, len(octets),
    )  # fmt: skip
    for at, end in ((-1, 1), (2, 1), (0, len(octets) + 1)):
        with pytest.raises(ValueError, match="is not within"):
            native.take_disposition(octets, at, end)


def test_the_common_flow_is_read_by_the_compiled_codec() -> None:
    native: Any = codec.native
    of_link = performatives.Flow(7, 64, 0, 2**31 - 1, 300, 5, 100, 0, drain=True)
    octets = performatives.write(of_link)
    assert native.take_flow(octets, 0, len(octets)) == (
        7, 64, 0, 2**31 - 1, 300, 5, 100, 0, True, False, len(octets),
    )  # fmt: skip
    octets = performatives.write(performatives.Flow(None, 64, 0, 1, echo=True))
    assert native.take_flow(octets, 0, len(octets)) == (
        None, 64, 0, 1, None, None, None, None, False, True, len(octets),
    )  # fmt: skip
    for at, end in ((-1, 1), (2, 1), (0, len(octets) + 1)):
        with pytest.raises(ValueError, match="is not within"):
            native.take_flow(octets, at, end)


def test_blocks_that_lead_outside_are_not_written() -> None:
    native: Any = codec.native
    block = Bodies([b"one", b"two"]).encode(5, 1, 0, ())
    around = partial(transfers.head_around, portion=Portion())
    for begin, end, step, room, handle in (
        (0, 3, 1, 99, b"\x43"), (2, 1, 1, 99, b"\x43"), (0, 2, 0, 99, b"\x43"), (0, 2, 1, -1, b"\x43"),
        (0, 2, 1, 99, b"\x43" * 6),
    ):  # fmt: skip
        assert native.transfers(
            block.frames, block.offsets, None, None, begin, end, step, 0, handle, 0, 1, False, room, around
        ) is None  # fmt: skip
    assert native.transfers(
        block.frames[:-1], block.offsets, None, None, 0, 2, 1, 0, b"\x43", 0, 1, False, 99, around
    ) is None  # fmt: skip
    with pytest.raises(ValueError, match="is not within"):
        native.take_transfers(b"", 1, 99, 1)
