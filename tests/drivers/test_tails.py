"""The tails of many topics together keep wanted messages longer than those that everybody has had."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from served_drivers import WEAK, opened, post
from trio.testing import MockClock

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.memory import Memory
from omq.drivers.seam import SLOW_SECONDS, Channel, EndReason, TakenMessages
from omq.drivers.tail import Tail, TailMemory
from omq.model import Delivery, FromCurrent, Transient
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER, Block, encode
from omq_storage.store import Store

MIB = 1 << 20
TOPICS = 24
BODY = bytes(64 << 10)


class Listener:
    """A subscriber that only wants to keep its channel."""

    direct = None

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: EndReason) -> None: ...


@pytest.fixture
async def catalogue(tmp_path: Path) -> AsyncIterator[Catalogue]:
    """Yield a catalogue whose tails have 1 MiB together."""
    with Store.open(tmp_path / "store", map_size=1 << 24, boot_id="first") as store:
        async with trio.open_nursery() as nursery:
            yield Catalogue(Config(store=str(tmp_path)), store, Memory(4 * MIB), nursery)
            nursery.cancel_scope.cancel()


async def test_messages_all_have_received_push_out_no_awaited_ones(
    catalogue: Catalogue,
) -> None:
    waiting = await catalogue.declare(b"waiting", Delivery.BROADCAST, Transient())
    behind = waiting.open(Listener(), FromCurrent())
    await waiting.post(Bodies([BODY]))
    for number in range(TOPICS):
        driver = await catalogue.declare(b"%d" % number, Delivery.BROADCAST, Transient())
        channel = driver.open(Listener(), FromCurrent())
        await driver.post(Bodies([BODY]))
        assert isinstance(await channel.take(), TakenMessages)
        channel.written(1)
    assert isinstance(await behind.take(), TakenMessages)


async def test_messages_that_a_store_has_give_before_those_that_only_memory_has(tmp_path: Path) -> None:
    """However large those are: the subscribers of the others read on in the store."""
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        waiting = await drivers.declare(Transient(), name=b"waiting")
        behind = waiting.open(Listener(), FromCurrent())
        await post(waiting, 2 * BODY)
        others = []
        for number in range(TOPICS):
            stored = await drivers.declare(WEAK, name=b"%d" % number)
            others.append(stored.open(Listener(), FromCurrent()))
            await post(stored, BODY)
        assert drivers.memory.tails.unstored < drivers.memory.tails.used <= drivers.memory.tails.limit
        for channel in (behind, *others):
            assert isinstance(await channel.take(), TakenMessages)
            channel.close()


async def test_a_topic_with_stalled_subscribers_gives_before_others_do(catalogue: Catalogue) -> None:
    quick = await catalogue.declare(b"quick", Delivery.BROADCAST, Transient())
    stalled = await catalogue.declare(b"stalled", Delivery.BROADCAST, Transient())
    reader, _ = quick.open(Listener(), FromCurrent()), stalled.open(Listener(), FromCurrent())
    for number in range(3 * MIB // len(BODY)):
        await quick.post(Bodies([b"%d" % number]))
        with trio.move_on_after(0.01):  # what it waits for, its only subscriber, stands still
            await stalled.post(Bodies([BODY]))
        taken = await reader.take()
        assert isinstance(taken, TakenMessages)
        reader.written(1)
        assert quick.resources.memory.tails.used <= MIB


def block(first: int, count: int = 1) -> Block:
    return encode(1, first, [b"%d" % message for message in range(first, first + count)], 0)


def test_a_tail_with_a_gap_forgets_blocks_before_it() -> None:
    """Else it would cover the gap, and give the block after it for a message in it."""
    memory = TailMemory(MIB)
    tail = Tail(memory, MIB)
    for first in (1, 3, 7):
        tail.append(block(first, 2))
    assert [tail.covers(message) for message in range(1, 10)] == 6 * [False] + 2 * [True] + [False]
    assert [found.first for found in tail.from_position(8, MIB)] == [7]
    assert (tail.first, tail.next, len(tail)) == (7, 9, 1)
    assert memory.used == tail.octets == block(7, 2).held


def large_block(message: int) -> Block:
    """Return a block of one message, of the same size for each of them."""
    return encode(1, message, [BODY], 0)


def test_tails_of_one_size_give_way_alike() -> None:
    size = large_block(1).held
    memory = TailMemory(60 * size)
    tails = [Tail(memory, 2 * MIB) for _ in range(3)]
    for tail in tails:
        for first in range(1, 21):
            tail.append(large_block(first))
    assert memory.used == 60 * size
    tails[0].append(large_block(21))
    assert memory.used <= (60 - 7) * size
    lengths = sorted(len(tail) for tail in tails)
    assert lengths[0] >= 17
    assert lengths[2] - lengths[0] <= 1


def test_a_small_tail_gives_nothing_while_there_are_larger_ones() -> None:
    size = large_block(1).held
    memory = TailMemory(64 * size)
    small, *large = [Tail(memory, 2 * MIB) for _ in range(4)]
    small.append(large_block(1))
    for tail in large:
        for first in range(1, 22):
            tail.append(large_block(first))
    large[1].append(large_block(22))
    assert len(small) == 1
    assert memory.used <= 56 * size


@pytest.mark.parametrize("heads", [(), (b"first", b"", b"third")])
async def test_a_slow_subscriber_gets_its_messages_with_their_heads(
    catalogue: Catalogue, heads: tuple[bytes, ...], mock_clock: MockClock
) -> None:
    driver = await catalogue.declare(b"topic", Delivery.BROADCAST, Transient())
    channel = driver.open(Listener(), FromCurrent())
    await driver.post(Bodies([b"taken slowly"]))
    assert isinstance(await channel.take(), TakenMessages)
    mock_clock.jump(SLOW_SECONDS)
    channel.written(1)
    await driver.post(Bodies([b"a", b"b", b"c"]), heads)
    taken = await channel.take()
    assert isinstance(taken, TakenMessages)
    (selection,) = taken.selections
    assert [bytes(selection.block.frame(message))[FRAME_HEADER:] for message in selection.ids] == [
        b"a",
        b"b",
        b"c",
    ]
    assert tuple(selection.block.heads_from(selection.ids.start)) == (heads or (b"", b"", b""))
