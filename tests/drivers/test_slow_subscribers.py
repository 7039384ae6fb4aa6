"""A channel of a broadcast topic whose subscriber is slow: what it gives, and whether it takes at once."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.memory import Memory
from omq.drivers.seam import LITTLE_OCTETS, SLOW_SECONDS, Channel, EndReason, TakenMessages
from omq.model import Delivery, FromBeginning, FromCurrent, Persistent, Sync, Transient
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER
from omq_storage.store import Store


class Listener:
    """A subscriber that only wants to keep its channel."""

    direct = None

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: EndReason) -> None: ...


@pytest.fixture
def clock() -> MockClock:
    """Return a clock that stands still but for the jumps: a machine that is slow makes no subscriber slow."""
    return MockClock()


@pytest.fixture
async def catalogue(tmp_path: Path, clock: MockClock) -> AsyncIterator[Catalogue]:
    with Store.open(tmp_path / "store", map_size=1 << 28, boot_id="first") as store:
        async with trio.open_nursery() as nursery:
            catalogue = Catalogue(Config(store=str(tmp_path)), store, Memory(64 << 20), nursery)
            for writer in catalogue.writers.values():
                nursery.start_soon(writer.run)
            yield catalogue
            nursery.cancel_scope.cancel()


@pytest.fixture
async def topic(catalogue: Catalogue) -> Driver:
    """Return a transient broadcast topic."""
    driver = await catalogue.declare(b"t", Delivery.BROADCAST, Transient())
    await catalogue.ids.reserve({driver: 1})
    return driver


async def taken(channel: Channel) -> list[tuple[int, int, bytes]]:
    """Return the ids, lengths and heads of what a channel gives at once."""
    found = await channel.take()
    if found is None:
        return []
    assert isinstance(found, TakenMessages)
    selections = [(selection.block, id) for selection in found.selections for id in selection.ids]
    return [(id, len(block.frame(id)), block.head(id)) for block, id in selections]


@pytest.mark.parametrize("headed", [True, False])
async def test_a_slow_subscriber_gets_little_at_a_time_with_its_heads(
    topic: Driver, clock: MockClock, headed: bool
) -> None:
    channel = topic.open(Listener(), FromCurrent())
    size = LITTLE_OCTETS // 4
    heads = [b"head %d" % number if headed else b"" for number in range(1, 11)]
    await topic.post(Bodies([bytes(size)] * 10), heads if headed else ())
    await wait_all_tasks_blocked()
    whole = await taken(channel)
    assert [(id, head) for id, _, head in whole] == list(enumerate(heads, 1))
    clock.jump(SLOW_SECONDS)
    channel.written(1)
    assert (
        await taken(channel) == whole[1:4]
    )  # a frame has octets besides its body, so three fit and not four
    channel.written(3)
    assert await taken(channel) == whole[4:]  # it is not slow any more


async def test_a_second_makes_a_client_slow_and_half_a_second_does_not(
    topic: Driver, clock: MockClock
) -> None:
    channel = topic.open(Listener(), FromCurrent())
    await topic.post(Bodies([bytes(1000)] * 300))
    await wait_all_tasks_blocked()
    for seconds, count in ((0.5, 299), (1.0, LITTLE_OCTETS // (1000 + FRAME_HEADER)), (0.5, 297)):
        assert await taken(channel)
        clock.jump(seconds)
        channel.written(1)
        found = await taken(channel)
        assert len(found) == count
        channel.written(0)


async def test_a_subscriber_takes_immediate_messages_unless_it_is_stalled(topic: Driver) -> None:
    assert not topic.has_taker()
    channel = topic.open(Listener(), FromCurrent())
    assert topic.has_taker()
    channel.hold()
    assert not topic.has_taker()
    await topic.post(Bodies([b"x"]))
    await wait_all_tasks_blocked()
    assert not topic.has_taker()
    channel.release()
    assert topic.has_taker()
    other = topic.open(Listener(), FromCurrent())
    channel.hold()
    assert topic.has_taker()
    other.close()
    assert not topic.has_taker()


async def test_a_subscriber_that_is_far_behind_takes_nothing_immediate(catalogue: Catalogue) -> None:
    topic = await catalogue.declare(b"t", Delivery.BROADCAST, Persistent(Sync.WEAK))
    stored = trio.Event()
    (await topic.post(Bodies([b"x"] * 3))).listen(stored.set)
    await stored.wait()
    channel = topic.open(Listener(), FromBeginning())
    assert not topic.has_taker()
    assert [id for id, _, _ in await taken(channel)] == [1, 2, 3]
    assert topic.has_taker()


async def test_a_slow_subscriber_gets_all_of_two_small_messages(topic: Driver, clock: MockClock) -> None:
    channel = topic.open(Listener(), FromCurrent())
    await topic.post(Bodies([b"x"]))
    await topic.post(Bodies([b"y", b"z"]))
    await wait_all_tasks_blocked()
    assert await taken(channel)
    clock.jump(SLOW_SECONDS)
    channel.written(1)
    assert [id for id, _, _ in await taken(channel)] == [2, 3]
