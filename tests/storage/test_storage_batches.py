"""Batches become blocks: small ones together, with their heads, and nothing lost at any boundary."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omq_storage import codec
from omq_storage.batches import BLOCK_MESSAGES, LARGE_OCTETS, Assembly, Batch, Bodies, blocks_of
from omq_storage.blocks import FRAME_HEADER, Block

Headed = tuple[Batch, Sequence[bytes], int]
"""A batch, its heads, and the octets of both."""


def headed_batch(count: int, size: int, headed: bool) -> Headed:
    """Return a batch of as many messages, the heads of which tell them apart."""
    batch = Bodies([b"%d" % index * size for index in range(count)])
    if not headed:
        return batch, (), batch.octets
    heads = [b"head %d of %d" % (index, count) if index % 3 else b"" for index in range(count)]
    return batch, heads, batch.octets + sum(map(len, heads))


def blocks_from(batches: Sequence[Headed]) -> list[Block]:
    return blocks_of(3, 7, 1_700_000_000_000_000, batches)


counts = st.one_of(st.integers(1, 5), st.integers(BLOCK_MESSAGES - 3, 2 * BLOCK_MESSAGES + 3))


@given(st.lists(st.tuples(counts, st.sampled_from([1, 1, 40]), st.booleans()), min_size=1, max_size=6))
@example([(4095, 1, False), (2, 1, True), (1, 1, False)])
@example([(2, 1, False), (2, 1, True), (2, 1, False), (3, 1, True)])
@example([(5000, 1, False), (5000, 1, True)])
def test_every_message_keeps_its_own_head(shapes: list[tuple[int, int, bool]]) -> None:
    batches = [headed_batch(*shape) for shape in shapes]
    blocks = blocks_from(batches)
    assert [block.first for block in blocks] == [7, *(block.next for block in blocks[:-1])]
    assert all(block.count <= BLOCK_MESSAGES for block in blocks)
    bodies = [bytes(frame[FRAME_HEADER:]) for block in blocks for frame in block.slices(block.first)]
    heads_of_all = [head for block in blocks for head in block.heads_from(block.first)]
    assert bodies == [body for batch, _, _ in batches for body in batch.bodies()]
    assert heads_of_all == [head for batch, heads, _ in batches for head in (heads or [b""] * batch.count)]


def test_small_posts_share_a_block_with_and_without_heads() -> None:
    plain, headed = headed_batch(2, 1, False), headed_batch(2, 1, True)
    (block,) = blocks_from([plain, headed, plain])
    assert block.heads_from(7) == [b"", b"", b"", b"head 1 of 2", b"", b""]
    (block,) = blocks_from([plain, plain])
    assert block.heads is None


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=30), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, 200),
)
def test_no_block_reaches_the_limit_but_for_one_message(
    sizes: list[list[int]], headed: bool, limit: int
) -> None:
    batches: list[Headed] = []
    for of_batch in sizes:
        batch = Bodies([b"x" * size for size in of_batch])
        heads = [b"head %d" % size for size in of_batch] if headed else ()
        batches.append((batch, heads, batch.octets))
    blocks = blocks_of(3, 7, 1_700_000_000_000_000, batches, limit)
    assert all(block.size < limit or block.count == 1 for block in blocks)
    assert [block.first for block in blocks] == [7, *(block.next for block in blocks[:-1])]
    frames = [bytes(frame[FRAME_HEADER:]) for block in blocks for frame in block.slices(block.first)]
    heads_of_all = [head for block in blocks for head in block.heads_from(block.first)]
    assert list(map(len, frames)) == [size for of_batch in sizes for size in of_batch]
    assert heads_of_all == [b"head %d" % len(frame) if headed else b"" for frame in frames]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    "parts",
    [[], [b"", b"one", b"", b" message"], [b"x" * LARGE_OCTETS, b"end"]],
    ids=["empty", "small", "large"],
)
def test_parts_of_one_message(compiled: bool, parts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "COMPILED", compiled and codec.COMPILED)
    body = b"".join(parts)
    assembly = Assembly(len(body))
    for part in parts:
        assembly.add(part)
    batch = assembly.batch()
    assert (batch.count, batch.octets, batch.longest) == (1, FRAME_HEADER + len(body), len(body))
    assert batch == Bodies([body])
    assert batch.part(0, 1) == batch
    # The first block may have the octets of the batch, and later ones have copies.
    blocks = [batch.encode(topic, 7, 1_700_000_000_000_000) for topic in (3, 4)]
    assert blocks == [Bodies([body]).encode(topic, 7, 1_700_000_000_000_000) for topic in (3, 4)]
