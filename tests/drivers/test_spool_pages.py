"""The pages of the spool: each is used once at a time, and extents are read back wherever theirs are."""

from pathlib import Path

import trio
from hypothesis import given
from hypothesis import strategies as st

from omq.drivers.spool import Spool, Spooling
from omq.drivers.spool_pages import PAGE_OCTETS, SpoolPages
from omq.drivers.tail import TailMemory
from omq_storage.blocks import Block, encode

LIMIT = 40


@given(st.lists(st.one_of(st.integers(1, 12), st.tuples(st.integers(0, 9)))))
def test_pages_are_taken_by_one_at_a_time(steps: list[int | tuple[int]]) -> None:
    """A number takes that many pages, a tuple gives some of the taken ones back."""
    pages = SpoolPages(LIMIT)
    taken: dict[int, tuple[int, set[int]]] = {}
    for step in steps:
        if isinstance(step, int):
            fits = pages.used + step <= LIMIT
            first = pages.take(step)
            assert (first is not None) == fits
            if first is not None:
                own = {page for part in pages.parts(first, step) for page in part}
                assert len(own) == step
                assert own <= set(range(LIMIT))
                assert all(own.isdisjoint(others) for _, others in taken.values())
                taken[first] = step, own
        elif taken:
            first = list(taken)[step[0] % len(taken)]
            pages.give(first, taken.pop(first)[0])
        assert pages.used == sum(count for count, _ in taken.values())
    for first, (count, _) in taken.items():
        pages.give(first, count)
    assert pages.used == pages.octets == 0


def block(first: int, octets: int) -> Block:
    """Return a block with one message."""
    return encode(1, first, [bytes([first]) * octets], 0)


async def test_an_extent_in_scattered_pages_is_read_back(tmp_path: Path) -> None:
    tails = TailMemory(1 << 20)
    spool = Spool(tmp_path, LIMIT * PAGE_OCTETS, 0, tails, trio.CapacityLimiter(1))
    small = [(await spool.write([Spooling([block(number, 100)], None)]))[0][0] for number in range(LIMIT)]
    spool.drop(small[::2])
    large = block(200, (LIMIT // 2 - 1) * PAGE_OCTETS)
    ((extent,),) = await spool.write([Spooling([large], None)])
    assert spool.statistics().used == spool.statistics().limit
    assert (await spool.read(extent)).block.frames == large.frames
    for other in small[1::2]:
        assert (await spool.read(other)).block.frames == block(other.first, 100).frames
    spool.drop([extent, *small[1::2]])
    assert spool.statistics().used == tails.used == 0
    await spool.shorten()
