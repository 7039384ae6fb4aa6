"""The block codec: blocks are read as they were written, and all damage is detected."""

import tracemalloc
from itertools import accumulate, pairwise
from struct import Struct

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from storage_helpers import NOON, bodies_of, numbered

from omq_storage import heads as heads_module
from omq_storage import numbers
from omq_storage.blocks import FRAME_HEADER, Block, encode, excerpt, merge, pack, unpack
from omq_storage.errors import DamagedBlock, NewerFormat
from omq_storage.heads import Heads

topics = st.integers(0, (1 << 31) - 1)
ids = st.integers(0, (1 << 64) - 100)
times = st.integers(0, (1 << 62))
bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=40)
a_head = st.one_of(st.just(b""), st.binary(max_size=20))


def heads_of(messages: list[bytes], data: st.DataObject) -> list[bytes]:
    """Return heads for none or all of the messages."""
    return data.draw(st.one_of(st.just([]), st.lists(a_head, min_size=len(messages), max_size=len(messages))))


def with_all(messages: list[bytes], heads: list[bytes]) -> list[bytes]:
    """Return a head for each message, empty where none was given."""
    return heads or [b""] * len(messages)


def test_a_block_octet_for_octet() -> None:
    block = encode(7, 41, [b"a", b"bc"], NOON)
    assert block.frames == bytes.fromhex("0000000e 02 0000000000000029 00000007 61") + bytes.fromhex(
        "0000000f 02 000000000000002a 00000007 6263"
    )
    assert block.offsets == bytes.fromhex("00000000 12000000 25000000")
    assert block == Block(7, 41, 2, NOON, block.frames, block.offsets, None)
    assert (block.last, block.next, block.size, block.span) == (42, 43, 37, 0)
    value = pack(block)
    assert value == bytes.fromhex(
        "6f6d7142 01 00 0000 72ae30ee 00000007 0000000000000029 00060a24181e4000 00000002 00000025"
        "0000000000000000 00000000 12000000 25000000"
        "0000000e 02 0000000000000029 00000007 61 0000000f 02 000000000000002a 00000007 6263"
    )


def test_a_block_with_heads_octet_for_octet() -> None:
    block = encode(7, 41, [b"a", b"bc"], NOON, [b"", b"head"])
    assert block.frames == encode(7, 41, [b"a", b"bc"], NOON).frames
    assert block.heads == Heads(bytes.fromhex("00000000 00000000 04000000"), b"head")
    assert (block.size, block.held) == (37, 41)
    value = pack(block)
    assert value == bytes.fromhex(
        "6f6d7142 01 02 0000 a4c07bd8 00000007 0000000000000029 00060a24181e4000 00000002 00000025"
        "0000000000000004 00000000 12000000 25000000 00000000 00000000 04000000"
        "0000000e 02 0000000000000029 00000007 61 0000000f 02 000000000000002a 00000007 6263"
        "68656164"
    )
    later = merge([block, encode(7, 43, [b""], NOON + 1)])
    assert pack(later)[5] == 3
    assert later.heads_from(41) == [b"", b"head", b""]


@pytest.mark.parametrize("heads", [[b"head"] * 3, [b"", b"", b"x"], [b"x", b"", b""], [b"a", b"b", b"a"]])
def test_equal_heads_are_stored_as_others_are(heads: list[bytes]) -> None:
    block = encode(7, 41, [b"a", b"b", b"c"], NOON, heads)
    assert block.heads_from(41) == heads
    assert block.heads is not None
    assert bytes(block.heads.octets) == b"".join(heads)


def test_a_block_without_heads_stores_no_array_for_them() -> None:
    plain = encode(7, 41, [b"a", b"bc"], NOON)
    assert encode(7, 41, [b"a", b"bc"], NOON, [b"", b""]) == plain
    assert merge([plain, encode(7, 43, [b"d"], NOON, [b""])]).heads is None
    assert not plain.has_heads
    assert plain.heads_from(42) == [b""]
    assert plain.held == plain.size


@given(topics, ids, bodies, times, st.data())
def test_encode_pack_and_unpack_agree(
    topic: int, first: int, messages: list[bytes], time: int, data: st.DataObject
) -> None:
    heads = heads_of(messages, data)
    block = encode(topic, first, messages, time, heads)
    assert block.frames == encode(topic, first, messages, time).frames
    value = pack(block)
    again = unpack(topic, first, value)
    assert again == block
    assert again.has_heads == any(heads)
    assert again.held == again.size + sum(map(len, heads))
    assert bodies_of([again]) == list(enumerate(messages, first))
    assert b"".join(again.slices(first)) == block.frames
    for skipped in range(len(messages) + 1):
        rest = again.after(first + skipped)
        assert rest == b"".join(again.slices(first + skipped))
        assert len(rest) == sum(FRAME_HEADER + len(body) for body in messages[skipped:])
        assert again.heads_from(first + skipped) == with_all(messages, heads)[skipped:]
        for end in range(first + skipped, first + len(messages) + 2):
            count = end - first - skipped
            assert again.slices(first + skipped, end) == again.slices(first + skipped)[:count]
            assert again.heads_from(first + skipped, end) == again.heads_from(first + skipped)[:count]


def test_unpack_copies_nothing() -> None:
    value = pack(encode(1, 0, [b"x" * 1000] * 10, NOON))
    block = unpack(1, 0, value)
    assert isinstance(block.frames, memoryview)
    assert block.frames.obj is value


def test_ids_outside_of_the_block_are_refused() -> None:
    block = encode(1, 10, [b"a", b"b"], NOON)
    for wrong in (9, 13):
        for ask in (block.after, block.frame, block.slices, block.heads_from, block.message_time):
            with pytest.raises(ValueError, match="not"):
                ask(wrong)
    with pytest.raises(ValueError, match="not"):
        block.frame(12)


def test_encode_refuses_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode(1, 0, [], NOON)
    with pytest.raises(ValueError, match="64 bits"):
        encode(1, (1 << 64) - 1, [b"a", b"b"], NOON)
    with pytest.raises(ValueError, match="too large"):
        encode(1, 0, [b"x" * (1 << 20)] * 1024, NOON)
    for wrong in (1, 3):
        with pytest.raises(ValueError, match=f"{wrong} heads for 2 messages"):
            encode(1, 0, [b"a", b"b"], NOON, [b"head"] * wrong)
    with pytest.raises(ValueError, match="too many"):
        encode(1, 0, [b""] * 1024, NOON, [b"x" * (1 << 20)] * 1024)


@given(
    st.lists(st.tuples(bodies, st.integers(-1000, 1 << 20)), min_size=1, max_size=6),
    topics,
    st.integers(0, 1 << 60),
    st.data(),
)
def test_merge_keeps_messages_heads_and_times(
    parts: list[tuple[list[bytes], int]], topic: int, first: int, data: st.DataObject
) -> None:
    blocks: list[Block] = []
    expected: list[int] = []
    expected_heads: list[bytes] = []
    time, following = NOON, first
    for messages, pause in parts:
        time += pause
        heads = heads_of(messages, data)
        blocks.append(encode(topic, following, messages, time, heads))
        expected_heads += with_all(messages, heads)
        following += len(messages)
        expected += [max(time, expected[-1] if expected else time)] * len(messages)
    whole = merge(blocks)
    assert bodies_of([whole]) == bodies_of(blocks)
    assert b"".join(b.frames for b in blocks) == whole.frames
    assert (whole.first, whole.next) == (first, following)
    assert [whole.message_time(m) for m in range(first, following)] == expected
    assert whole.heads_from(first) == expected_heads
    assert whole.has_heads == any(expected_heads)
    assert unpack(topic, first, pack(whole)) == whole
    # Merging in two steps makes no difference, so deltas are added to deltas rightly.
    for cut in range(1, len(blocks)):
        assert merge([merge(blocks[:cut]), merge(blocks[cut:])]).frames == whole.frames
        assert merge([merge(blocks[:cut]), *blocks[cut:]]) == whole


def test_merge_when_the_clock_went_back_into_a_block_with_deltas() -> None:
    early = encode(1, 0, [b"a"], NOON + 50)
    late = merge(
        [encode(1, 1, [b"b"], NOON), encode(1, 2, [b"c"], NOON + 30), encode(1, 3, [b"d"], NOON + 90)]
    )
    whole = merge([early, late])
    assert [whole.message_time(m) - NOON for m in range(4)] == [50, 50, 50, 90]


def test_merge_refuses_blocks_that_do_not_fit_together() -> None:
    one = encode(1, 0, [b"a"], NOON)
    with pytest.raises(ValueError, match="no block"):
        merge([])
    with pytest.raises(ValueError, match="follow"):
        merge([one, encode(1, 2, [b"a"], NOON)])
    with pytest.raises(ValueError, match="follow"):
        merge([one, encode(2, 1, [b"a"], NOON)])
    with pytest.raises(ValueError, match="span"):
        merge([one, encode(1, 1, [b"a"], NOON + (1 << 32))])
    with pytest.raises(ValueError, match="span"):
        merge([one, encode(1, 1, [b"a"], NOON + (1 << 40))])
    assert merge([one, encode(1, 1, [b"a"], NOON + (1 << 32) - 1)]).span == (1 << 32) - 1


def test_merge_refuses_too_many_octets_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [encode(1, n, [b""] * 5, NOON, [b"x" * 100] * 5) for n in (0, 5)]
    monkeypatch.setattr(heads_module, "OFFSETS_LIMIT", 1001)
    assert merge(parts).heads_from(0) == [b"x" * 100] * 10
    monkeypatch.setattr(heads_module, "OFFSETS_LIMIT", 1000)
    with pytest.raises(ValueError, match="too many"):
        merge(parts)


@given(st.data(), bodies)
def test_any_flipped_bit_is_found(data: st.DataObject, messages: list[bytes]) -> None:
    start = encode(3, 5, messages, NOON, heads_of(messages, data))
    value = bytearray(pack(merge([start, encode(3, 5 + len(messages), [b"z"], NOON + 7)])))
    bit = data.draw(st.integers(0, len(value) * 8 - 1))
    value[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedBlock) as damage:
        unpack(3, 5, bytes(value))
    assert (damage.value.topic, damage.value.first) == (3, 5)


@pytest.mark.parametrize("heads", [[], [b"", b"head"]])
def test_every_bit_of_one_block(heads: list[bytes]) -> None:
    good = pack(encode(3, 5, [b"hello", b""], NOON, heads))
    for bit in range(len(good) * 8):
        value = bytearray(good)
        value[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedBlock):
            unpack(3, 5, bytes(value))


@given(st.data(), bodies)
def test_any_other_length_is_found(data: st.DataObject, messages: list[bytes]) -> None:
    value = pack(encode(3, 5, messages, NOON, heads_of(messages, data)))
    length = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(DamagedBlock):
        unpack(3, 5, value[:length])
    with pytest.raises(DamagedBlock):
        unpack(3, 5, value + bytes(1 + length))


@given(st.binary(max_size=300))
@example(b"omqB" + bytes(60))
def test_any_octets_are_refused(value: bytes) -> None:
    with pytest.raises(DamagedBlock):
        unpack(0, 0, value)


def test_a_block_under_another_key_is_refused() -> None:
    value = pack(encode(3, 5, [b"a"], NOON))
    for topic, first in ((3, 6), (4, 5)):
        with pytest.raises(DamagedBlock, match="it is the one from message 5 of topic 3"):
            unpack(topic, first, value)


def resealed(value: bytes, at: int, octets: bytes) -> bytes:
    """Change a value and compute the checksum again, as an attacker would."""
    changed = value[:at] + octets + value[at + len(octets) :]
    return changed[:8] + Struct(">I").pack(crc32c(changed[12:], crc32c(changed[:8]))) + changed[12:]


def test_newer_formats_are_distinguished_from_damage() -> None:
    value = pack(encode(3, 5, [b"a"], NOON))
    for at, octets in ((4, b"\2"), (5, b"\4"), (5, b"\x80")):
        with pytest.raises(NewerFormat, match="this version reads format 1"):
            unpack(3, 5, resealed(value, at, octets))


@pytest.mark.parametrize(
    ("at", "octets"),
    [
        (6, b"\0\1"),  # the reserved number
        (32, b"\0\0\0\0"),  # no messages
        (32, b"\xff\xff\xff\xff"),
        (32, b"\0\0\0\2"),
        (36, b"\0\0\0\0"),
        (36, b"\x7f\xff\xff\xff"),
        (40, b"\0\0\0\0\0\0\0\1"),
        (48, b"\1\0\0\0"),  # the first offset
        (52, b"\x10\0\0\0"),  # the second: one octet less than a header
        (52, b"\0\0\0\0"),
        (52, b"\xff\xff\xff\xff"),
        (52, b"\0\0\0\x40"),
        (56, b"\x12\0\0\0"),
        (60, b"\0\0\0\0"),  # the last: the length of the frames
        (60, b"\xff\0\0\0"),
    ],
)
def test_a_forged_value_cannot_lead_outside_of_its_frames(at: int, octets: bytes) -> None:
    value = pack(encode(3, 5, [b"abc"] * 3, NOON))
    assert resealed(value, 48, b"") == value
    with pytest.raises(DamagedBlock):
        unpack(3, 5, resealed(value, at, octets))


@pytest.mark.parametrize(
    ("at", "octets"),
    [
        (5, b"\0"),  # no heads, but octets of them
        (5, b"\1"),  # deltas in the place of the heads' offsets
        (40, b"\0\0\0\0\0\0\0\0"),
        (40, b"\0\0\0\0\0\0\0\7"),
        (40, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
        (40, b"\0\0\0\0\x40\0\0\0"),
        (36, b"\0\0\0\x40"),  # frames that reach into the heads
        (64, b"\1\0\0\0"),  # the first head's offset
        (68, b"\7\0\0\0"),  # the second: behind the end
        (68, b"\xff\xff\xff\xff"),
        (68, b"\0\0\0\x80"),
        (72, b"\1\0\0\0"),  # the third: before the second
        (76, b"\0\0\0\0"),  # the last: the length of the heads
        (76, b"\x06\0\0\x80"),
    ],
)
def test_a_forged_value_cannot_lead_outside_of_its_heads(at: int, octets: bytes) -> None:
    value = pack(encode(3, 5, [b"abc"] * 3, NOON, [b"he", b"ad", b"s."]))
    assert value[64:80] == bytes.fromhex("00000000 02000000 04000000 06000000")
    assert resealed(value, 48, b"") == value
    with pytest.raises(DamagedBlock):
        unpack(3, 5, resealed(value, at, octets))


@pytest.mark.parametrize(
    ("at", "octets", "why"),
    [
        (36, b"\0\0\0\x40", "its sizes contradict one another"),
        (56, b"\x12\0\0\0", "its frames overlap or are too short"),
        (72, b"\1\0\0\0", "its heads overlap"),
    ],
)
def test_damage_behind_the_number_of_messages_is_told_with_their_ids(
    at: int, octets: bytes, why: str
) -> None:
    value = resealed(pack(encode(3, 5, [b"abc"] * 3, NOON, [b"he", b"ad", b"s."])), at, octets)
    with pytest.raises(DamagedBlock) as damage:
        unpack(3, 5, value)
    told = damage.value
    assert (told.topic, told.first, told.last, told.why) == (3, 5, 7, why)


@given(st.lists(st.one_of(st.integers(0, 30), st.integers(0, (1 << 32) - 1)), min_size=1, max_size=12))
def test_offsets_of_heads_are_good_only_in_order(offsets: list[int]) -> None:
    good = encode(3, 5, [b"x"] * len(offsets), NOON, [b"head"] * len(offsets))
    forged = [0, *offsets[1:], 4 * len(offsets)]
    at = 48 + 4 * (len(offsets) + 1)
    value = resealed(pack(good), at, b"".join(number.to_bytes(4, "little") for number in forged))
    if forged == sorted(forged):
        lengths = [end - begin for begin, end in pairwise(forged)]
        assert [len(head) for head in unpack(3, 5, value).heads_from(5)] == lengths
    else:
        with pytest.raises(DamagedBlock, match="its heads overlap"):
            unpack(3, 5, value)


forged_offsets = st.one_of(
    st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=12),
    st.lists(st.integers(15, 40), min_size=1, max_size=12).map(lambda gaps: list(accumulate(gaps))),
)


@given(forged_offsets, st.integers(1, 400))
@example([0, 20, 40], 3)
def test_offsets_are_good_only_when_every_frame_has_room(offsets: list[int], size: int) -> None:
    good = encode(3, 5, [b"x" * size] * len(offsets), NOON)
    forged = [0, *offsets[1:], good.size]
    lengths = [end - begin for begin, end in pairwise(forged)]
    value = resealed(pack(good), 48, b"".join(number.to_bytes(4, "little") for number in forged))
    if min(lengths) >= FRAME_HEADER:
        assert [len(frame) for frame in unpack(3, 5, value).slices(5)] == lengths
    else:
        with pytest.raises(DamagedBlock, match="overlap"):
            unpack(3, 5, value)


def test_a_check_of_very_many_offsets_keeps_nothing_in_memory() -> None:
    """Only the numbers for blocks of the usual size are cached for the next block."""
    count = 1 << 17
    offsets = numbers.pack(range(0, 20 * count + 1, 20))
    tracemalloc.start()
    try:
        assert numbers.rises(offsets, count, 20 * count, 20)
        kept, highest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert highest > len(offsets)
    assert kept < len(offsets) // 4


def test_an_excerpt_keeps_the_times_of_its_messages() -> None:
    block = merge([numbered(1, 3 * n, 3, time=NOON + 5 * n) for n in range(4)])
    copied = excerpt(block, 4, 11)
    assert copied.time == NOON + 5
    assert [copied.message_time(each) for each in range(4, 11)] == [
        block.message_time(each) for each in range(4, 11)
    ]
    assert unpack(1, 4, pack(copied)) == copied
