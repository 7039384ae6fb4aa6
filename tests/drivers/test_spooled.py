"""The spooled messages of one topic, and their limits, without a server around them."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from omq.drivers.seam import LITTLE_OCTETS, Unavailable
from omq.drivers.spool import (
    AT_ONCE_OCTETS,
    EXTENT_OCTETS,
    INDEX_OCTETS,
    Spool,
    SpoolFull,
    Spooling,
    SpoolStatistics,
)
from omq.drivers.spool_pages import PAGE_OCTETS
from omq.drivers.spoolable import SpoolExtent
from omq.drivers.spooled import Spooled
from omq.drivers.tail import TailMemory
from omq_storage.blocks import FRAME_HEADER, SPAN_LIMIT, Block, encode
from omq_storage.lookup import LargeBlock, VerifiedBlock
from omq_storage.pieces import CHECKED_OCTETS

TOPIC = 7
MIB = 1 << 20


def block(first: int, octets: Sequence[int], time: int = 0, heads: Sequence[bytes] = ()) -> Block:
    """Return a block with messages of these lengths; each is another octet."""
    bodies = [bytes([(first + number) % 256]) * each for number, each in enumerate(octets)]
    return encode(TOPIC, first, bodies, time, heads)


@pytest.fixture
def tails() -> TailMemory:
    return TailMemory(MIB)


@pytest.fixture
def readers() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(1)


MakeSpool = Callable[..., Spool]


@pytest.fixture
def make_spool(tmp_path: Path, tails: TailMemory, readers: trio.CapacityLimiter) -> Iterator[MakeSpool]:
    """Return a function that makes a spool of N pages."""
    made: list[Spool] = []

    def make(pages: int = 4096, reserve: int = 0) -> Spool:
        made.append(Spool(tmp_path, pages * PAGE_OCTETS, reserve, tails, readers))
        return made[-1]

    yield make
    for spool in made:
        spool.close()


@pytest.fixture
def spool(make_spool: MakeSpool) -> Spool:
    return make_spool()


@pytest.fixture
def is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every read find the page cache: not every file system can tell, and pages may leave it."""
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, parts, place, flags=0: preadv(file, parts, place))


async def written(spool: Spool, *blocks: Block, before: SpoolExtent | None = None) -> list[SpoolExtent]:
    ((*extents,),) = await spool.write([Spooling(blocks, before)])
    return extents


def used_pages(spool: Spool) -> int:
    return spool.statistics().used // PAGE_OCTETS


# -- the index of one topic --------------------------------------------------------------------------------

RANGES = (range(1, 4), range(4, 5), range(6, 10), range(10, 13))
"""The messages of each extent; message 5 is lost."""
HELD = frozenset(chain.from_iterable(RANGES))
POSITIONS = range(15)


async def held(spool: Spool) -> tuple[Spooled, list[SpoolExtent]]:
    """Return a topic in the spool, and its extents."""
    spooled = Spooled(spool, TOPIC)
    extents = [(await written(spool, block(ids.start, [10] * len(ids))))[0] for ids in RANGES]
    spooled.add(extents[:1], None)
    spooled.add(extents[1:], None)
    return spooled, extents


def covered(spooled: Spooled) -> set[int]:
    return {position for position in POSITIONS if spooled.covers(position)}


async def test_each_position_is_in_its_extent_or_before_one(spool: Spool) -> None:
    spooled = Spooled(spool, TOPIC)
    assert not spooled
    assert (spooled.first, spooled.last, spooled.first_after(1)) == (None, None, None)
    assert not covered(spooled)
    spooled, extents = await held(spool)
    assert spooled
    assert spooled.first == 1
    assert spooled.last == extents[-1] == SpoolExtent(TOPIC, 10, 13, extents[-1].octets, 3)
    assert covered(spooled) == HELD
    for position in POSITIONS:
        behind = [ids.start for ids in RANGES if ids.start > position]
        assert spooled.first_after(position) == (behind[0] if behind else None)


@pytest.mark.parametrize(
    "kept", [*chain.from_iterable(combinations((0, 2, 4, 5, 9, 13), n) for n in (0, 1, 2))]
)
async def test_extents_below_a_position_are_dropped_except_those_that_are_kept(
    spool: Spool, kept: Collection[int]
) -> None:
    for position in POSITIONS:
        spooled, extents = await held(spool)
        spooled.forget_below(position, kept)
        left = [
            number
            for number, ids in enumerate(RANGES)
            if ids.stop > position or any(each in ids for each in kept)
        ]
        assert covered(spooled) == set(chain.from_iterable(RANGES[number] for number in left))
        assert used_pages(spool) == len(left)
        assert spooled.octets == sum(extents[number].octets for number in left)
        spooled.clear()
        assert used_pages(spool) == spooled.octets == 0
        assert not spooled


async def test_an_extent_is_replaced_by_one_with_its_messages_and_more(spool: Spool) -> None:
    spooled = Spooled(spool, TOPIC)
    spooled.add(await written(spool, block(1, [10])), None)
    first = spooled.last
    assert first is not None
    spooled.add(await written(spool, block(2, [20]), before=first), first)
    joined = spooled.last
    assert joined is not None
    assert (joined.first, joined.next) == (1, 3)
    assert spooled.octets == joined.octets
    assert used_pages(spool) == 1
    stored = await spooled.replay(1, None)
    assert isinstance(stored, list)
    assert bytes(stored[0].block.frame(1)[FRAME_HEADER:]) == b"\1" * 10
    # One that is not the last any more stays.
    spooled.add(await written(spool, block(3, [10])), first)
    assert covered(spooled) == {1, 2, 3}


async def test_stored_messages_are_read_as_a_whole_or_told_to_be_large(spool: Spool) -> None:
    spooled = Spooled(spool, TOPIC)
    source = block(1, [100, 200, 300], heads=[b"", b"head", b""])
    (extent,) = await written(spool, source)
    spooled.add([extent], None)
    for largest in (None, extent.octets):
        stored = await spooled.replay(2, largest)
        assert isinstance(stored, list)
        assert [each.block.frames for each in stored] == [source.frames]
        assert stored[0].block.head(2) == b"head"
    with pytest.raises(LargeBlock) as large:
        await spooled.replay(2, extent.octets - 1)
    assert large.value.octets == extent.octets


async def test_damage_is_told_up_to_the_end_of_its_extent(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spooled, _ = await held(spool)
    preadv = os.preadv

    def read(file: int, parts: Any, place: int, flags: int = 0) -> int:
        count = preadv(file, parts, place, flags)
        parts[0][-1] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", read)
    gone = await spooled.replay(7, None)
    assert isinstance(gone, Unavailable)
    assert (gone.first, gone.last) == (7, 9)
    assert gone.reason.startswith("the store is damaged there (")
    assert spooled.at_hand(7) == ()


@pytest.mark.usefixtures("is_cached")
async def test_only_small_extents_are_at_hand(spool: Spool) -> None:
    spooled = Spooled(spool, TOPIC)
    (small,) = await written(spool, block(1, [100]))
    overhead = small.octets - 100
    (exact,) = await written(spool, block(2, [LITTLE_OCTETS - overhead]))
    (longer,) = await written(spool, block(3, [LITTLE_OCTETS - overhead + 1]))
    spooled.add([small, exact, longer], None)
    assert [len(spooled.at_hand(position)) for position in range(5)] == [0, 1, 1, 0, 0]
    assert spooled.at_hand(2)[0].first == 2


async def test_a_message_is_read_piece_by_piece(spool: Spool) -> None:
    spooled = Spooled(spool, TOPIC)
    body = bytes(range(256)) * (2 * CHECKED_OCTETS // 256) + b"end"
    large = encode(TOPIC, 5, [body], 0, [b"head"])
    spooled.add(await written(spool, block(4, [10])), None)
    spooled.add(await written(spool, large), None)
    message = await spooled.look_at(5)
    assert message is not None
    assert (message.id, message.head, message.size) == (5, b"head", len(body))
    read = b""
    while len(read) < len(body):
        piece = await spooled.read_piece(message, len(read), 300_000)
        assert piece
        assert len(piece) <= 300_000
        read += piece
    assert read == body
    small = await spooled.look_at(4)
    assert small is not None
    assert await spooled.read_piece(small, 2, 100) == b"\4" * 8
    spooled.clear()
    assert await spooled.look_at(5) is None
    assert await spooled.read_piece(message, 0, 1) is None


# -- what is written as one extent -------------------------------------------------------------------------


def shapes(extents: Sequence[SpoolExtent]) -> list[tuple[int, int]]:
    return [(extent.first, extent.next) for extent in extents]


async def test_neighbours_are_written_as_one_extent(spool: Spool, tails: TailMemory) -> None:
    extents = await written(spool, *(block(1 + 10 * number, [50] * 10) for number in range(40)))
    assert shapes(extents) == [(1, 401)]
    assert len(spool) == 1
    assert tails.used == spool.octets == INDEX_OCTETS + used_pages(spool)
    assert spool.statistics().written == extents[0].octets


async def test_an_extent_has_at_most_a_mebioctet_unless_it_is_one_message(spool: Spool) -> None:
    extents = await written(spool, *(block(number, [EXTENT_OCTETS // 4]) for number in range(1, 10)))
    assert shapes(extents) == [(1, 4), (4, 7), (7, 10)]
    many = await written(spool, block(10, [EXTENT_OCTETS // 5] * 10))
    assert [extent.next - extent.first for extent in many] == [4, 4, 2]
    one = await written(spool, block(20, [2 * EXTENT_OCTETS]))
    assert shapes(one) == [(20, 21)]
    assert one[0].octets > 2 * EXTENT_OCTETS
    assert max(extent.octets for extent in (*extents, *many)) <= EXTENT_OCTETS
    for extent in (*extents, *many, *one):
        stored = (await spool.read(extent)).block
        for message in range(extent.first, extent.next):
            assert set(stored.frame(message)[FRAME_HEADER:]) == {message}


async def test_a_block_that_just_fits_is_not_divided(spool: Spool) -> None:
    # Twenty octets are more than the header and the numbers of two messages are long beside the frames.
    fitting = block(1, [EXTENT_OCTETS // 2 - 100] * 2)
    assert shapes(await written(spool, fitting)) == [(1, 3)]
    too_long = block(1, [EXTENT_OCTETS // 2] * 2)
    assert shapes(await written(spool, too_long)) == [(1, 2), (2, 3)]


@pytest.mark.parametrize(("later", "count"), [(SPAN_LIMIT - 1, 1), (SPAN_LIMIT, 2)])
async def test_an_extent_spans_what_a_block_may(spool: Spool, later: int, count: int) -> None:
    extents = await written(spool, block(1, [10], time=5), block(2, [10], time=5 + later))
    assert len(extents) == count
    stored = (await spool.read(extents[-1])).block
    assert stored.message_time(2) == 5 + later


# -- its limits --------------------------------------------------------------------------------------------


async def test_as_much_as_the_limit_is_taken_and_no_more(make_spool: MakeSpool) -> None:
    spool = make_spool(pages=4)
    assert spool.statistics() == SpoolStatistics(4 * PAGE_OCTETS, 0, 0)
    extents = await written(spool, block(1, [3 * PAGE_OCTETS]))
    assert used_pages(spool) == 4
    with pytest.raises(SpoolFull, match="it has reached its limit"):
        await written(spool, block(2, [1]))
    spool.drop(extents)
    # The octets fit, but not in whole pages: what was written of it is given back.
    with pytest.raises(SpoolFull, match="it has reached its limit"):
        await spool.write([Spooling([block(number, [10])], None) for number in range(1, 6)])
    assert used_pages(spool) == spool.octets == 0
    assert spool.statistics().written == extents[0].octets
    await spool.write([Spooling([block(number, [10])], None) for number in range(1, 5)])
    assert used_pages(spool) == len(spool) == 4


async def test_the_reserve_of_the_disk_stays_free(
    make_spool: MakeSpool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status = os.statvfs(tmp_path)
    free = status.f_bavail * status.f_frsize
    monkeypatch.setattr(os, "fstatvfs", lambda _: status)
    one = block(1, [100])
    with pytest.raises(SpoolFull, match="the disk has only its reserve free"):
        await written(make_spool(reserve=free - one.held + 1), one)
    await written(make_spool(reserve=free - one.held), one)


async def test_the_index_takes_a_quarter_of_the_memory_at_most(
    tmp_path: Path, readers: trio.CapacityLimiter
) -> None:
    tails = TailMemory(8 * 4 * (INDEX_OCTETS + 1))
    spool = Spool(tmp_path, 4096 * PAGE_OCTETS, 0, tails, readers)
    extents = []
    for number in range(1, 10):
        assert spool.has_many_extents == (number > 5)  # beyond an eighth
        extents += await written(spool, block(number, [10]))
    assert spool.octets == tails.used == 9 * (INDEX_OCTETS + 1) > tails.limit // 4
    with pytest.raises(SpoolFull, match="its index takes too much memory"):
        await written(spool, block(10, [10]))
    spool.drop(extents[:2])
    await written(spool, block(10, [10]))
    assert spool.forget(100, 0) is False
    spool.close()


async def test_small_extents_are_joined_when_half_of_the_pages_are_used(make_spool: MakeSpool) -> None:
    spool = make_spool(pages=4)
    for number, many in ((1, False), (2, False), (3, False)):
        assert spool.has_many_extents == many
        await written(spool, block(number, [10]))
    assert spool.has_many_extents


# -- dropped while it is read ------------------------------------------------------------------------------


async def test_pages_that_are_read_are_not_used_again(
    make_spool: MakeSpool, readers: trio.CapacityLimiter
) -> None:
    spool = make_spool(pages=2 * AT_ONCE_OCTETS // PAGE_OCTETS)
    source = block(1, [AT_ONCE_OCTETS])
    (extent,) = await written(spool, source)
    read: list[VerifiedBlock] = []

    async def reader() -> None:
        read.append(await spool.read(extent))

    async with trio.open_nursery() as nursery:
        await readers.acquire_on_behalf_of("a reader of another extent")
        for _ in range(2):
            nursery.start_soon(reader)
        await wait_all_tasks_blocked()
        spool.drop([extent])
        assert len(spool) == 0
        assert used_pages(spool) == AT_ONCE_OCTETS // PAGE_OCTETS + 1
        (other,) = await written(spool, block(2, [1000]))
        assert other.page != extent.page
        readers.release_on_behalf_of("a reader of another extent")
    assert [each.block.frames for each in read] == [source.frames] * 2
    assert used_pages(spool) == 1
    spool.drop([other])
    assert used_pages(spool) == 0


async def test_the_index_is_counted_again_when_dropped_messages_are_read_no_more(
    spool: Spool, tails: TailMemory, readers: trio.CapacityLimiter
) -> None:
    extents = [(await written(spool, block(id, [AT_ONCE_OCTETS])))[0] for id in range(1, 6)]
    async with trio.open_nursery() as nursery:
        await readers.acquire_on_behalf_of("a reader of another extent")
        for extent in extents[1::2]:
            nursery.start_soon(spool.read, extent)
        await wait_all_tasks_blocked()
        spool.drop(extents)
        assert tails.used == spool.octets > 0
        readers.release_on_behalf_of("a reader of another extent")
    assert spool.octets == 0
    assert tails.used == 0


@pytest.mark.usefixtures("is_cached")
async def test_a_small_extent_is_read_without_a_thread(spool: Spool, readers: trio.CapacityLimiter) -> None:
    (small,) = await written(spool, block(1, [100]))
    (exact,) = await written(spool, block(2, [AT_ONCE_OCTETS - small.octets + 100]))
    (longer,) = await written(spool, block(3, [AT_ONCE_OCTETS - small.octets + 101]))
    assert (exact.octets, longer.octets) == (AT_ONCE_OCTETS, AT_ONCE_OCTETS + 1)
    async with readers:
        for extent in (small, exact):
            with trio.fail_after(60):
                await spool.read(extent)
        with trio.move_on_after(0) as scope:
            await spool.read(longer)
        assert scope.cancelled_caught


async def test_the_file_exists_while_something_is_in_it(spool: Spool, tmp_path: Path) -> None:
    def is_open() -> bool:
        links = Path("/proc/self/fd").iterdir()
        return any(str(tmp_path) in str(each.readlink()) for each in links if os.path.lexists(each))

    assert not is_open()
    extents = await written(spool, block(1, [10]))
    await spool.shorten()
    assert is_open()
    spool.drop(extents)
    await spool.shorten()
    assert not is_open()
    (extent,) = await written(spool, block(2, [10]))
    assert (await spool.read(extent)).block.first == 2
    spool.close()
    spool.close()
    assert not is_open()
    with pytest.raises(SpoolFull, match="the server ends"):
        await written(spool, block(3, [10]))
    assert not is_open()


async def test_a_cancelled_task_closes_the_file(spool: Spool) -> None:
    spool.drop(await written(spool, block(1, [10])))
    with trio.CancelScope() as scope:
        scope.cancel()
        await spool.shorten()  # Python warns of a file that is not closed
    assert scope.cancelled_caught
