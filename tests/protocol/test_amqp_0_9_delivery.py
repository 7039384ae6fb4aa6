"""Messages of blocks as deliveries: pamqp reads them as what was stored, and the octets come back."""

import struct

import msgspec
import pamqp.body
import pamqp.frame
import pamqp.header
import pytest
from amqp_0_9_helpers import NO_PROPERTIES, PERSISTENT
from counted_steps import counted_calls
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from twins import each_codec as each_codec
from twins import using

from omq.protocol.amqp import fields, properties
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import LongString, Number, NumberType, Table
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp_0_9 import delivery
from omq.protocol.amqp_0_9.delivery import (
    ConsumerFraming,
    complete,
    get_opening,
    opening,
    returned,
    with_number,
)
from omq.protocol.amqp_0_9.frames import CONTENT, FRAME, FrameType, body_frames
from omq.protocol.amqp_1_0 import encoding, stored
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import Map
from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, Block, encode

DEFAULT = b"\0\x05topic\0\0"
CONSUMER = ConsumerFraming(3, b"ctag", 131072, DEFAULT)
HEADS = (
    b"",
    b"\x01e\x01k" + NO_PROPERTIES,
    b"\x01e\x01k" + PERSISTENT,
    stored_head.encode(
        Head(
            b"ex", b"key",
            Properties(
                b"text/plain", b"gzip",
                Table(((b"a", LongString(b"b")), (b"a", Number(NumberType.INT64, 5)))),
                2, 0, b"c", b"r", b"60", b"m", 1 << 40, b"t", b"u", b"a", b"cluster",
            ),
        )
    ),
    stored_head.encode(
        Head(b"", b"k" * 255, Properties(headers=Table(((b"x" * 200, LongString(b"y" * 400)),))))
    ),
)  # fmt: skip


def deliveries(consumer: ConsumerFraming, tag: int, block: Block, ids: range, before: int = 0) -> bytes:
    """Return the frames of all these messages, for which one portion is enough."""
    octets, count = delivery.deliveries(consumer, tag, block, ids, Portion(), before)
    assert count == len(ids)
    return octets


def read(octets: bytes) -> list[tuple[int, object, bytes, bytes]]:
    """Return the contents as pamqp reads them: channel, method, octets of the properties, and body."""
    found: list[tuple[int, object, bytes, bytes]] = []
    while octets:
        size, channel, method = pamqp.frame.unmarshal(octets)
        octets = octets[size:]
        kind, _, length = FRAME.unpack_from(octets)
        assert kind == FrameType.HEADER
        _, header_channel, header = pamqp.frame.unmarshal(octets)
        assert header_channel == channel
        assert isinstance(header, pamqp.header.ContentHeader)
        own = octets[FRAME.size + CONTENT.size : FRAME.size + length]
        octets = octets[FRAME.size + length + 1 :]
        body = b""
        while len(body) < header.body_size:
            size, body_channel, part = pamqp.frame.unmarshal(octets)
            assert isinstance(part, pamqp.body.ContentBody)
            assert body_channel == channel
            body += part.value
            octets = octets[size:]
        found.append((channel, method, own, body))
    return found


@pytest.mark.usefixtures("each_codec")
def test_deliveries() -> None:
    bodies = [b"%d" % number * number for number in range(5)]
    block = encode(7, 10, bodies, 0, HEADS)
    found = read(deliveries(CONSUMER, 41, block, range(10, 15)))
    assert [body for *_, body in found] == bodies
    for number, (channel, method, own, _) in enumerate(found):
        exchange, key = stored_head.names(HEADS[number] or DEFAULT)
        assert channel == 3
        assert isinstance(method, commands.Basic.Deliver)
        assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("ctag", 41 + number, False)
        assert (method.exchange, method.routing_key) == (exchange.decode(), key.decode())
        assert own == delivery.properties(HEADS[number] or DEFAULT)


@pytest.mark.usefixtures("each_codec")
@pytest.mark.parametrize("kind", [NumberType.INT32, NumberType.INT64])
def test_some_messages_of_a_block_that_were_delivered_before(kind: NumberType) -> None:
    block = encode(7, 10, [b"a", b"b", b"c", b"d"], 0)
    consumer = msgspec.structs.replace(CONSUMER, is_quorum=kind is NumberType.INT64)
    found = read(deliveries(consumer, 1, block, range(11, 14, 2), 3))
    assert [body for *_, body in found] == [b"b", b"d"]
    for _, method, own, _ in found:
        assert isinstance(method, commands.Basic.Deliver)
        assert method.redelivered
        expected = Properties(headers=Table(((b"x-delivery-count", Number(kind, 3)),)))
        assert properties.decode(own) == expected
    assert deliveries(CONSUMER, 1, block, range(11, 11)) == b""


@pytest.mark.usefixtures("each_codec")
def test_streams_add_the_id_of_each_message() -> None:
    bodies = [b"x"] * 5
    block = encode(7, 10, bodies, 0, HEADS)
    consumer = ConsumerFraming(1, b"", 131072, DEFAULT, is_stream=True)
    for number, (_, _, own, _) in enumerate(read(deliveries(consumer, 1, block, range(10, 15)))):
        stored = properties.decode(delivery.properties(HEADS[number] or DEFAULT))
        headers = () if stored.headers is None else stored.headers.entries
        added = (b"x-stream-offset", Number(NumberType.INT64, 10 + number))
        assert properties.decode(own).headers == Table((*headers, added))
    strided = read(deliveries(consumer, 1, block, range(10, 15, 2)))
    ids = []
    for _, _, own, _ in strided:
        found = properties.decode(own).headers
        assert found is not None
        ids.append(found.entries[-1][1])
    assert ids == [Number(NumberType.INT64, message) for message in (10, 12, 14)]


@pytest.mark.usefixtures("each_codec")
@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 10_000])
def test_bodies_are_divided_at_frame_max(size: int) -> None:
    consumer = ConsumerFraming(1, b"c", 4096, DEFAULT)
    octets = deliveries(consumer, 1, encode(7, 1, [bytes(size)], 0), range(1, 2))
    assert [body for *_, body in read(octets)] == [bytes(size)]
    sizes = []
    while octets:
        kind, _, length = FRAME.unpack_from(octets)
        sizes += [length] * (kind == FrameType.BODY)
        octets = octets[length + 8 :]
    assert sizes == [4088] * (size // 4088) + [size % 4088] * (size % 4088 > 0)


@pytest.mark.usefixtures("each_codec")
def test_openamq_gets_its_own_tables_back() -> None:
    short = b"\x20\0\0\0\0\x07\x01tT\0\0\0\x05"
    stored = b"\x20\0\0\0\0\x0b\x01tT\0\0\0\0\0\0\0\x05"
    block = encode(7, 1, [b"x"], 0, [b"\0\x01q" + stored])
    consumer = ConsumerFraming(1, b"c", 131072, DEFAULT, is_openamq=True)
    octets = deliveries(consumer, 1, block, range(1, 2))
    assert short + b"\xce" in octets
    assert short + b"\xce" in get_ok(consumer, 1, 0, b"\0\x01q" + stored, b"x")
    back = returned(1, 4096, 312, b"NO_ROUTE", b"\0\x01q" + stored, b"x", to_openamq=True)
    assert short + b"\xce" in bytes(back[0])
    late = stored[:9] + b"\xff" * 8
    assert b"T\xff\xff\xff\xff\xce" in get_ok(consumer, 1, 0, b"\0\x01q" + late, b"x")


@pytest.mark.usefixtures("each_codec")
@pytest.mark.parametrize("has_times", [False, True])
def test_heads_with_times_count_in_the_portion_of_openamq(has_times: bool) -> None:
    value = b"T\0\0\0\0\0\0\0\x05" if has_times else b"l\0\0\0\0\0\0\0\x05"
    heads = [b"\0\x01%c\x20\0\0\0\0\x0b\x01t%s" % (number, value) for number in range(100)]
    block = encode(7, 1, [b"x"] * 100, 0, heads)
    consumer = ConsumerFraming(1, b"c", 131072, DEFAULT, is_openamq=True)
    _, count = delivery.deliveries(consumer, 1, block, range(1, 101), Portion())
    assert 0 < count < 100 if has_times else count == 100
    _, count = delivery.deliveries(CONSUMER, 1, block, range(1, 101), Portion())
    assert count == 100


def test_messages_in_pieces() -> None:
    consumer = ConsumerFraming(1, b"c", 4096, DEFAULT)
    body = bytes(range(256)) * 100
    whole = deliveries(consumer, 9, encode(7, 5, [body], 0, [HEADS[3]]), range(5, 6), 2)
    pieces = [opening(consumer, 9, 5, HEADS[3], len(body), Portion(), 2)]
    for begin in range(0, len(body), 4088 * 3):
        pieces += map(bytes, body_frames(1, body[begin : begin + 4088 * 3], 4096))
    assert b"".join(pieces) == whole


def get_ok(
    consumer: ConsumerFraming,
    delivery_tag: int,
    message_count: int,
    head: bytes,
    body: bytes,
    deliveries: int = 0,
) -> bytes:
    """Return Basic.Get-Ok with its message."""
    beginning = get_opening(consumer, delivery_tag, message_count, head, len(body), deliveries)
    return b"".join((beginning, *body_frames(consumer.channel, body, consumer.frame_max)))


def test_get_ok_and_returned() -> None:
    ((channel, method, own, body),) = read(get_ok(CONSUMER, 5, 17, HEADS[3], b"body", 1))
    assert isinstance(method, commands.Basic.GetOk)
    assert (channel, method.delivery_tag, method.redelivered, method.message_count) == (3, 5, True, 17)
    assert (method.exchange, method.routing_key, body) == ("ex", "key", b"body")
    assert properties.decode(own).headers is not None
    ((_, first, _, _),) = read(get_ok(CONSUMER, 5, 17, b"", b"body"))
    assert isinstance(first, commands.Basic.GetOk)
    assert (first.redelivered, first.exchange, first.routing_key) == (False, "", "topic")
    ((_, back, own, body),) = read(b"".join(returned(3, 131072, 312, b"NO_ROUTE", HEADS[3], b"body")))
    assert isinstance(back, commands.Basic.Return)
    assert (back.reply_code, back.reply_text, back.exchange, back.routing_key) == (
        312,
        "NO_ROUTE",
        "ex",
        "key",
    )
    assert (own, body) == (delivery.properties(HEADS[3]), b"body")


@given(st.sampled_from(HEADS[1:]), st.integers(-(1 << 63), (1 << 63) - 1))
def test_adding_a_header_changes_nothing_else(head: bytes, number: int) -> None:
    before = properties.decode(delivery.properties(head))
    after = properties.decode(with_number(delivery.properties(head), b"x-death-count", number))
    entries = () if before.headers is None else before.headers.entries
    assert after.headers == Table((*entries, (b"x-death-count", Number(NumberType.INT64, number))))
    assert fields.table_octets(after.headers)
    assert {**vars_of(before), "headers": None} == {**vars_of(after), "headers": None}


def vars_of(values: Properties) -> dict[str, object]:
    return {name: getattr(values, name) for name in Properties.__dataclass_fields__}


@pytest.mark.usefixtures("each_codec")
def test_complete_counts_the_deliveries_that_were_sent() -> None:
    consumer = ConsumerFraming(1, b"c", 4096, DEFAULT)
    block = encode(7, 1, [b"", b"abc", bytes(5000)], 0, HEADS[:3])
    each = [deliveries(consumer, tag, block, range(tag, tag + 1)) for tag in (1, 2, 3)]
    whole = b"".join(each)
    divisions: list[list[bytes | memoryview]] = [[whole], [*each], [each[0] + each[1], memoryview(each[2])]]
    for parts in divisions:
        for sent in range(len(whole) + 1):
            count, rest = complete(parts, sent)
            assert sum(map(len, each[:count])) + rest == sent
            assert count == 3 or rest < len(each[count])


@pytest.mark.skipif(not codec.COMPILED, reason="no compiled codec here")
async def test_very_many_deliveries_are_counted_with_little_work() -> None:
    consumer = ConsumerFraming(1, b"c", 4096, DEFAULT)
    count = 4096
    octets = deliveries(consumer, 1, encode(7, 1, [b"x"] * count, 0), range(1, count + 1))
    with counted_calls() as calls:
        assert complete([octets], len(octets) - 1) == (count - 1, len(octets) // count - 1)
    assert calls.total < 10


@pytest.mark.usefixtures("each_codec")
def test_a_part_that_ends_in_the_fields_of_a_frame_is_no_delivery() -> None:
    octets = deliveries(ConsumerFraming(1, b"c", 4096, DEFAULT), 1, encode(7, 1, [b"x"], 0), range(1, 2))
    with pytest.raises(struct.error):
        complete([octets, octets[:3]], len(octets))


# -- the twins --------------------------------------------------------------------------------------------

SECTION = b"\x00\x53%c%s" % (Section.APPLICATION_PROPERTIES, encoding.write(Map((("k", "x" * 1100),))))
TRANSLATED = stored.stored_as(stored.BodyKind.TEXT, SECTION, b"").head
"""The head of a message of AMQP 1.0. Its translation is too long to be kept, so it counts in each portion."""

messages = st.tuples(st.binary(max_size=12), st.sampled_from((*HEADS, TRANSLATED)))


@given(
    st.lists(messages, min_size=1, max_size=8),
    st.builds(range, st.integers(4, 15), st.integers(4, 15), st.sampled_from([1, 1, 2, 3, 1 << 70, -1])),
    st.sampled_from([9, 12, 13, 4096]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
    st.integers(1, (1 << 64) - 20),
    st.sampled_from([0, 4_000, 10_000]),
)
def test_both_codecs_write_the_same(
    sent: list[tuple[bytes, bytes]],
    ids: range,
    frame_max: int,
    is_stream: bool,
    is_view: bool,
    before: int,
    tag: int,
    spent: int,
) -> None:
    block = encode(3, 5, [body for body, _ in sent], 0, [head for _, head in sent])
    if is_view:
        block = Block(
            3, 5, block.count, 0, memoryview(block.frames), memoryview(block.offsets), None, block.heads
        )
    consumer = ConsumerFraming(2, b"c", frame_max, DEFAULT, is_stream)
    outcomes = []
    for compiled in (codec.COMPILED, False):
        portion = Portion()
        portion.spend(bytes(spent))
        with using(compiled=compiled):
            try:
                outcomes.append(delivery.deliveries(consumer, tag, block, ids, portion, before))
            except ValueError as error:
                outcomes.append((str(error).encode(), 0))
    assert outcomes[0] == outcomes[1]
    if frame_max == 4096 and ids.step == 1 and ids and ids.start >= 5 and ids.stop <= block.next:
        octets, count = outcomes[0]
        bodies = [bytes(block.frame(message))[FRAME_HEADER:] for message in ids[:count]]
        assert [body for *_, body in read(octets)] == bodies


@pytest.mark.skipif(not codec.COMPILED, reason="no compiled codec here")
def test_offsets_that_lead_outside_are_left_to_the_plain_code() -> None:
    block = encode(3, 5, [b"abc"], 0, [HEADS[1]])
    heads = block.heads
    assert heads is not None

    def template(head: bytes) -> tuple[bytes, int, int, int]:
        return bytes(16), 0, 8, -1

    def write(offsets: bytes, head_offsets: bytes, frame_max: int = 100) -> tuple[bytes, int] | None:
        return codec.native.deliveries(
            block.frames, offsets, head_offsets, heads.octets, 0, 1, 1, 1, 1, frame_max, 5, template
        )

    good, head_good = bytes(block.offsets), bytes(heads.offsets)
    assert write(good, head_good) is not None
    assert write(good[:4] + b"\xff\0\0\0", head_good) is None
    assert write(good[:4] + b"\x03\0\0\0", head_good) is None
    assert write(good, head_good[:4] + b"\xff\0\0\0") is None
    assert write(good, b"\0\0\0\0") is None
    assert write(good, head_good, 8) is None

    def narrow(head: bytes) -> tuple[bytes, int, int, int]:
        return bytes(16), 0, 9, -1

    with pytest.raises(ValueError, match="no room"):
        codec.native.deliveries(block.frames, good, None, None, 0, 1, 1, 1, 1, 100, 5, narrow)
