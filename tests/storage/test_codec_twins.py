"""The compiled codec and the plain one: the same values and the same errors for everything."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twins import BUILT, compiled, native, needs_codec, outcome, using

from omq_storage import codec, numbers, plain
from omq_storage.batches import Assembly, Batch, Bodies, Framed, batch, joined
from omq_storage.blocks import FRAME_HEADER, Block, encode

LAST_NUMBER = (1 << 32) - 1

topics = st.integers(0, (1 << 32) - 1) | st.integers(-2, 1 << 33) | st.just(7.5)
ids = st.integers(0, 1 << 40) | st.integers((1 << 64) - 6, (1 << 64) + 1) | st.integers(-2, 2)
octets = st.binary(max_size=60)
lists = st.lists(octets, max_size=12)
other_octets: st.SearchStrategy[object] = octets.map(lambda each: memoryview(each)) | octets.map(bytearray)
odd_lists = st.lists(octets | other_octets | st.just("text"), max_size=4)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> Iterator[None]:
    """Use the compiled codec, also with OMQ_PLAIN=1."""
    with compiled():
        yield


def has_c_compiler() -> bool:
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return shutil.which(command) is not None and Path(command).name != "false" and header.is_file()


@pytest.mark.skipif(not has_c_compiler(), reason="no C compiler here, or no headers of Python")
def test_the_codec_is_built_if_there_is_a_compiler() -> None:
    assert BUILT, "install the package (pip install -e .): its build makes storage/omq_storage/_codec"
    assert native().frames_of(1, 1, [b"a"]) == plain.frames_of(1, 1, [b"a"])


@pytest.mark.parametrize("way", ["OMQ_PLAIN", "not built"])
def test_the_plain_codec_is_used_if_the_compiled_one_is_missing(way: str) -> None:
    program = (
        "import sys\n"
        + ("sys.modules['omq_storage._codec'] = None\n" if way == "not built" else "")
        + "from omq_storage import blocks, codec\n"
        "import omq.protocol.omq.lines, omq.protocol.dmp.reader, omq.protocol.dmp.writer\n"
        "assert blocks.encode(1, 1, [b'a'], 0).size == 18\n"
        "print(codec.describe())"
    )
    environment = os.environ | {"OMQ_PLAIN": "1" if way == "OMQ_PLAIN" else ""}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, check=True, capture_output=True, text=True
    )
    assert done.stdout == "plain Python codec\n"


@needs_codec
@given(topics, ids, lists | odd_lists | lists.map(tuple))
@example(1, (1 << 64) - 1, [b"a"])
@example(1, (1 << 64) - 1, [b"a", b"b"])
@example(0xFFFFFFFF, 0, [b""])
def test_frames(topic: int, first: int, bodies: list[bytes]) -> None:
    expected = outcome(lambda: plain.frames_of(topic, first, bodies))
    assert outcome(lambda: codec.frames_of(topic, first, bodies)) == expected
    alone = outcome(lambda: native().frames_of(topic, first, bodies))
    # Alone it makes the common ones, and none that its twin refuses.
    if isinstance(expected[0], bytes) and all(type(body) is bytes for body in bodies):
        assert alone == expected
    else:
        assert alone is None or alone == expected


@needs_codec
def test_frames_too_large_for_a_block() -> None:
    bodies = [bytes(1 << 20)] * 1024
    assert outcome(lambda: codec.frames_of(1, 1, bodies)) == outcome(lambda: plain.frames_of(1, 1, bodies))
    assert native().prepare(bodies) is None
    part = native().prepare(bodies[:600])
    assert native().joined([part, part]) is None


offsets = st.one_of(
    st.lists(st.integers(0, 90), max_size=8).map(lambda gaps: list(accumulate(gaps, initial=0))),
    st.lists(st.integers(0, (1 << 32) - 1), max_size=8),
    st.lists(st.integers(0, 130), max_size=8),
)


@needs_codec
@given(st.binary(max_size=120), offsets.map(numbers.pack), st.integers(0, 9))
def test_slices_of_anything(frames: bytes, bounds: bytes, index: int) -> None:
    for held in (frames, memoryview(frames)):
        expected = outcome(lambda held=held: plain.slices(held, bounds, index))  # type: ignore[misc]  # a lambda with a default has no type
        assert outcome(lambda held=held: codec.slices(held, bounds, index)) == expected  # type: ignore[misc]  # a lambda with a default has no type


@needs_codec
@given(
    st.binary(max_size=120),
    offsets.map(numbers.pack),
    st.integers(-2, 9),
    st.integers(-2, 9),
    st.sampled_from([-1, 0, 1, 2, 3, 100, 1 << 70]),
)
def test_gathering_anything(frames: bytes, bounds: bytes, begin: int, end: int, step: int) -> None:
    expected = outcome(lambda: plain.gathered(frames, bounds, begin, end, step))
    assert outcome(lambda: codec.gathered(memoryview(frames), bounds, begin, end, step)) == expected


@needs_codec
@given(
    st.binary(max_size=120),
    offsets.map(numbers.pack),
    st.integers(-2, 9),
    st.integers(-2, 9),
    st.sampled_from([0, 0, 0, -1, 1]),
    st.sampled_from([0, 0, 0, -1, 1]),
    st.sampled_from([0, 0, 1, 1000, LAST_NUMBER - 1, LAST_NUMBER, -1]),
)
@example(bytes(range(60)), numbers.pack([0, 17, 40, 60]), 1, 3, 0, 0, 0)
@example(bytes(range(60)), numbers.pack([0, 16, 40, 60]), 0, 3, 0, 0, 0)
@example(bytes(range(60)), numbers.pack([0, 17, 40, 61]), 0, 3, 0, 0, 0)
def test_copying_bodies_of_anything(
    frames: bytes, bounds: bytes, begin: int, end: int, more: int, longer: int, base: int
) -> None:
    edges = numbers.unpack(bounds)
    pairs = list(pairwise(edges))[max(begin, 0) : max(end, 0)]
    valid = 0 <= begin <= end < len(edges) and all(
        start + FRAME_HEADER <= stop <= len(frames) for start, stop in pairs
    )
    expected = [frames[start + FRAME_HEADER : stop] for start, stop in pairs]
    into = bytearray(max(0, sum(map(len, expected)) + more))
    ends = bytearray(max(0, numbers.SIZE * (len(pairs) + 1) + longer))
    sizes_are_right = (len(into), len(ends)) == (
        sum(map(len, expected)),
        numbers.SIZE * (len(pairs) + 1),
    )
    copied = native().copy_bodies(memoryview(frames), bounds, begin, end, into, ends, base)
    if valid and sizes_are_right and 0 <= base <= LAST_NUMBER - len(into):
        assert copied
        assert into == b"".join(expected)
        assert ends == numbers.pack(accumulate(map(len, expected), initial=base))
    else:
        assert copied is None


@needs_codec
def test_bodies_are_not_copied_into_read_only_buffers() -> None:
    frames, bounds = plain.frames_of(1, 1, [b"body"])
    with pytest.raises(BufferError):
        native().copy_bodies(frames, bounds, 0, 1, bytes(4), bytearray(8), 0)
    with pytest.raises(BufferError):
        native().count_up(1, bytes(8))


@needs_codec
@given(st.integers(0, (1 << 64) - 9) | st.just((1 << 32) - 3), st.integers(0, 8))
def test_counting_up(first: int, count: int) -> None:
    room = bytearray(8 * count)
    native().count_up(first, room)
    assert room == b"".join(number.to_bytes(8, "little") for number in range(first, first + count))


@needs_codec
@given(
    offsets.filter(bool), st.integers(-1, 1), st.integers(-3, 3), st.integers(0, 91), st.binary(max_size=3)
)
@example([0, 1 << 30], 0, 0, 17, b"")
@example([0, (1 << 30) - 1], 0, 0, 17, b"")
@example([0, 1 << 31, 17], 0, 0, 17, b"")
@example([1, 18], 0, 0, 17, b"")
@example([0], 0, 0, 17, b"")
def test_rising_offsets_are_recognised_alike(
    bounds: list[int], more: int, longer: int, least: int, behind: bytes
) -> None:
    array = numbers.pack(bounds) + behind
    count, size = len(bounds) - 1 + more, max(0, bounds[-1] + longer)
    for held in (array, memoryview(array)):
        expected = outcome(lambda held=held: numbers.rises(held, count, size, least))  # type: ignore[misc]  # a lambda with a default has no type
        assert outcome(lambda held=held: codec.rises(held, count, size, least)) == expected  # type: ignore[misc]  # a lambda with a default has no type


@needs_codec
@given(st.lists(st.binary(max_size=8) | st.sampled_from([b"\1k\2kk\x01\0", b"\0\0\x80\0later"]), min_size=1))
@example([b"\0", b"\1", b"\0\0", b"\0\0\xff", b"\xff\0\0\0"])
def test_the_property_flags_of_heads(heads: list[bytes]) -> None:
    bounds = numbers.pack(accumulate(map(len, heads), initial=0))
    expected = 0
    for head in heads:
        fields = head[1 + head[0] :] if head else b""
        fields = fields[1 + fields[0] :] if fields else b""
        expected |= int.from_bytes(fields[:2], "big") if len(fields) >= 2 else 0
    for octets in (b"".join(heads), memoryview(b"".join(heads))):
        assert codec.property_flags(bounds, octets) == plain.property_flags(bounds, octets) == expected
    assert codec.native.property_flags(numbers.pack([0, 9]), b"12345678") is None


WITH_PRIORITY = [
    b"\0\0\x08\0\x07",
    b"\1e\2kk\xf8\0\1c\0\0\0\0\3abc\2\x09later",
    b"\0\0\x28\0\0\0\0\2ab\xff",
    b"\0\1k\x10\0\2",
]
"""Heads of which the first three have the priorities 7, 9 and 255."""


@needs_codec
@given(st.lists(st.binary(max_size=8) | st.sampled_from(WITH_PRIORITY), min_size=1), st.integers(0, 20))
@example([*WITH_PRIORITY, b""], 0)
@example([b"\0\0\x28\0\xff\xff\xff\xff\x07"], 0)
def test_the_priorities_of_heads(heads: list[bytes], cut: int) -> None:
    """Also of heads that are cut."""
    known = dict(zip(WITH_PRIORITY, (7, 9, 255, 0), strict=True))
    for every in (heads, [head[: len(head) - cut] for head in heads]):
        bounds = numbers.pack(accumulate(map(len, every), initial=0))
        for octets in (b"".join(every), memoryview(b"".join(every))):
            found = plain.priorities(bounds, octets)
            assert codec.priorities(bounds, octets) == found
            assert codec.native.priorities(bounds, octets) in (found, None)
            assert all(found[place] == known.get(head, found[place]) for place, head in enumerate(every))
    whole = numbers.pack(accumulate(map(len, WITH_PRIORITY), initial=0))
    assert codec.native.priorities(whole, b"".join(WITH_PRIORITY)) == bytes([7, 9, 255, 0])
    assert codec.native.priorities(numbers.pack([0, 9]), b"12345678") is None


@needs_codec
@given(st.integers(0, 300), st.integers(1, 3000))
@example(0, 1)
@example((1 << 32) - 1, 2)
def test_multiples(step: int, count: int) -> None:
    assert (
        codec.native.multiples(step, count) == numbers.multiples(step, count) == codec.multiples(step, count)
    )
    assert numbers.unpack(codec.multiples(step, count)) == [index * step for index in range(count)]


@needs_codec
@pytest.mark.parametrize(("step", "count"), [(-1, 2), (1 << 32, 2), (1 << 31, 3), (1, 0), (1, 1 << 28)])
def test_multiples_that_do_not_fit(step: int, count: int) -> None:
    assert codec.native.multiples(step, count) is None


@needs_codec
@given(st.integers(0, 40), st.lists(st.integers(0, 60), min_size=1, max_size=40), st.data())
def test_offsets_that_rise_but_for_one(least: int, gaps: list[int], data: st.DataObject) -> None:
    bounds = list(accumulate((least + gap for gap in gaps), initial=0))
    assert codec.rises(numbers.pack(bounds), len(gaps), bounds[-1], least)
    index = data.draw(st.integers(0, len(gaps)))
    bounds[index] = data.draw(st.integers(0, (1 << 32) - 1))
    array = numbers.pack(bounds)
    for size in (bounds[-1], bounds[-1] % (1 << 30)):
        assert codec.rises(array, len(gaps), size, least) == numbers.rises(array, len(gaps), size, least)


@needs_codec
@given(st.lists(octets, min_size=1, max_size=20), st.integers(1, 6))
def test_every_nth_message_of_a_block(bodies: list[bytes], hands: int) -> None:
    block = encode(3, 5, bodies, 0)
    for turn in range(hands):
        messages = range(5 + turn, block.next, hands)
        assert block.gather(messages) == b"".join(block.frame(message) for message in messages)
    for outside in (range(4, 6), range(5, block.next + 1), range(block.last, 3, -1)):
        with pytest.raises(ValueError, match="not within"):
            block.gather(outside)


def prepared(bodies: list[bytes]) -> Batch:
    return Framed(native().prepare(bodies), max(map(len, bodies), default=0))


@needs_codec
@given(topics, ids, lists)
def test_a_batch_of_frames_is_a_batch_of_bodies(topic: int, first: int, bodies: list[bytes]) -> None:
    framed, listed = prepared(bodies), Bodies(bodies)
    assert framed == listed
    assert (framed.count, framed.octets, framed.longest) == (listed.count, listed.octets, listed.longest)
    for begin in range(-1, len(bodies) + 2):
        for end in range(-1, len(bodies) + 2):
            assert outcome(lambda b=begin, e=end: framed.part(b, e)) == outcome(  # type: ignore[misc]  # a lambda with a default has no type
                lambda b=begin, e=end: listed.part(b, e)  # type: ignore[misc]  # a lambda with a default has no type
            )
    expected = outcome(lambda: listed.encode(topic, first, 9))
    assert outcome(lambda: framed.encode(topic, first, 9)) == expected


@needs_codec
@given(lists.filter(bool))
def test_stamped_frames_never_change(bodies: list[bytes]) -> None:
    framed = prepared(bodies)
    once = framed.encode(1, 100, 9)
    octets_then = bytes(bytearray(once.frames))
    again = framed.encode(2, 200, 9)
    assert once.frames == octets_then
    assert once == encode(1, 100, bodies, 9)
    assert again == encode(2, 200, bodies, 9)
    assert framed.part(0, len(bodies)).encode(3, 5, 9) == encode(3, 5, bodies, 9)


@needs_codec
@given(st.lists(lists, min_size=1, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_batches_joined(parts: list[list[bytes]], kinds: list[bool]) -> None:
    whole = [body for part in parts for body in part]
    made = joined(
        [prepared(part) if framed else Bodies(part) for part, framed in zip(parts, kinds, strict=False)]
    )
    assert made == Bodies(whole)
    # One batch that the codec holds is enough: then no message becomes an object of its own.
    assert isinstance(made, Framed) == any(kinds[: len(parts)])
    assert (made.count, made.octets, made.longest) == (
        len(whole),
        sum(map(len, whole)) + FRAME_HEADER * len(whole),
        max(map(len, whole), default=0),
    )
    if whole:
        assert made.encode(1, 1, 0) == encode(1, 1, whole, 0)


@needs_codec
@given(lists, octets, st.integers(-1, 1))
def test_a_message_that_arrives_in_parts(parts: list[bytes], last: bytes, beyond: int) -> None:
    whole = b"".join(parts) + last
    size = max(0, len(whole) + beyond)

    def assembled() -> Batch:
        assembly = Assembly(size)
        for part in (*parts, last):
            assembly.add(part)
        return assembly.batch()

    compiled = outcome(assembled)
    with using(compiled=False):
        plainly = outcome(assembled)
    assert compiled == plainly
    if size != len(whole):
        assert compiled[0] is ValueError
    else:
        assert isinstance(compiled, Framed)
        assert (compiled.count, compiled.octets, compiled.longest) == (
            plainly.count,
            plainly.octets,
            plainly.longest,
        )
        assert compiled.encode(7, 1, 0) == encode(7, 1, [whole], 0)


@needs_codec
def test_a_frame_in_parts_is_complete_and_given_away_once() -> None:
    frame = native().FrameInParts(3)
    frame.add(b"ab")
    for wrong in (lambda: frame.add(b"cd"), frame.frames):
        with pytest.raises(ValueError, match="The body is"):
            wrong()
    frame.add(b"c")
    assert frame.frames().bodies() == [b"abc"]
    with pytest.raises(ValueError, match="not complete"):
        frame.frames()
    with pytest.raises(ValueError, match="longer"):
        frame.add(b"")
    for size in (-1, 1 << 30):
        with pytest.raises(ValueError, match="does not fit"):
            native().FrameInParts(size)


@needs_codec
def test_large_frames_are_made_without_the_gil() -> None:
    bodies = [bytes([number]) * 5000 for number in range(250)] * 2
    frames, bounds = plain.frames_of(7, 1, bodies)
    assert native().frames_of(7, 1, bodies) == (frames, bounds)
    framed = prepared(bodies)
    assert framed.octets >= 1 << 20
    assert framed.encode(7, 1, 0) == framed.encode(7, 1, 0) == Block(7, 1, 500, 0, frames, bounds)


@needs_codec
@pytest.mark.parametrize(
    "envelope",
    [
        (-1, 8, 9),
        (0, 3, 9),
        (5, 4, 9),
        (0, 8, 7),
        (0, 8, 21),
        (0, 21, 21),
        (1 << 62, (1 << 62) + 4, 1 << 62),
        (0, -(1 << 63), 9),
    ],
)
def test_spans_lie_within_their_octets(envelope: tuple[int, int, int]) -> None:
    spans = native().Spans(bytes(20))
    with pytest.raises(ValueError, match="This envelope"):
        spans.add_envelope(*envelope, 0)
    for position in (-1, 21, 1 << 62):
        with pytest.raises(ValueError, match="not within"):
            spans.take_envelopes(position, 100, 100, 100)
        with pytest.raises(ValueError, match="not within"):
            native().deal_lines(bytes(20), position, 100)
    assert (spans.count, spans.bodies(), batch(spans).count) == (0, [], 0)


@needs_codec
def test_found_messages_are_frames_without_another_copy() -> None:
    spans = native().Spans(bytes(20))
    spans.add_envelope(0, 8, 20, 0)
    found = batch(spans)
    assert isinstance(found, Framed)
    assert (found.count, found.longest, found.bodies()) == (1, 12, [bytes(12)])


@needs_codec
def test_joining_other_objects_is_refused() -> None:
    for wrong in (None, b"", 3):
        with pytest.raises(TypeError):
            native().joined([wrong])
    assert native().Frames().stamped(1, 1) is None
    assert native().Frames().bodies() == []
