"""The pages of the spool: each is used once at a time, and extents are read back wherever theirs are."""

from itertools import pairwise
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


PART_OCTETS = 150
"""The octets of memory that a part of scattered pages counts for."""


class PagesModel:
    """The same pages, one by one: consecutive ones if possible, and always the first ones."""

    def __init__(self) -> None:
        self.pages: list[bool] = []
        self.parts = 0

    def take(self, count: int) -> list[int] | None:
        """Take N pages and return them; None if there are fewer."""
        if sum(self.pages) + count > LIMIT:
            return None
        size = len(self.pages)
        starts = (at for at in range(size - count + 1) if not any(self.pages[at : at + count]))
        first = next(starts, size)
        if first + count <= LIMIT:
            found = [*range(first, first + count)]
        else:
            found = [page for page in range(LIMIT) if page >= size or not self.pages[page]][:count]
            gaps = sum(page + 1 != after for page, after in pairwise(found))
            behind = size in found and size - 1 in found
            self.parts += 1 + gaps + behind
        self.pages += [False] * (max(found) + 1 - size)
        for page in found:
            self.pages[page] = True
        return found

    def give(self, pages: list[int], parts: int) -> None:
        for page in pages:
            self.pages[page] = False
        self.parts -= parts
        if not any(self.pages):
            self.pages.clear()


@given(st.lists(st.one_of(st.integers(1, 12), st.tuples(st.integers(0, 9)))))
def test_the_first_free_pages_are_taken_together_if_possible(steps: list[int | tuple[int]]) -> None:
    pages, model = SpoolPages(LIMIT), PagesModel()
    taken: dict[int, tuple[int, list[int], int]] = {}
    for step in [12, 12, 12, (1,), 2, (0,), (1,), *steps, (0,), (0,), *steps]:
        if isinstance(step, int):
            before = model.parts
            expected = model.take(step)
            first = pages.take(step)
            assert first == (None if expected is None else expected[0])
            if first is not None and expected is not None:
                assert [page for part in pages.parts(first, step) for page in part] == expected
                taken[first] = step, expected, model.parts - before
        elif taken:
            first = list(taken)[step[0] % len(taken)]
            count, own, parts = taken.pop(first)
            pages.give(first, count)
            model.give(own, parts)
        assert pages.used == sum(model.pages)
        assert pages.octets == len(model.pages) + PART_OCTETS * model.parts


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
