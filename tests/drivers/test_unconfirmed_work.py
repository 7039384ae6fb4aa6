"""The memory of work that is not confirmed is counted, and bounds the messages that are dealt."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from served_drivers import Listener
from trio.testing import wait_all_tasks_blocked

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.memory import Memory
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import ACCEPTED, CreditKind, TakenMessages
from omq.drivers.slices import in_slices
from omq.drivers.unconfirmed import FREE_OCTETS
from omq.model import Delivery, FromCurrent, Transient
from omq_storage.batches import Bodies
from omq_storage.store import Store

MIB = 1 << 20


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Memory, Driver, Driver]]:
    """Yield the memory of a server, whose share for unconfirmed work is tiny, and two topics with many
    messages.
    """
    with Store.open(tmp_path / "store", map_size=1 << 28, boot_id="first") as store:
        async with trio.open_nursery() as nursery:
            memory = Memory(64 * MIB)
            memory.unconfirmed.limit = 2 * FREE_OCTETS
            catalogue = Catalogue(Config(store=str(tmp_path)), store, memory, nursery)
            first, second = [
                await catalogue.declare(name, Delivery.ROUND_ROBIN, Transient()) for name in (b"a", b"b")
            ]
            for _ in range(15):
                await first.post(Bodies([b""] * 5000))
                await second.post(Bodies([b""] * 5000))
            yield memory, first, second
            nursery.cancel_scope.cancel()


async def worker(driver: Driver) -> RoundRobinChannel:
    channel = driver.open(Listener(), FromCurrent())
    assert isinstance(channel, RoundRobinChannel)
    channel.grant(1 << 40, CreditKind.WINDOW)
    await wait_all_tasks_blocked()
    return channel


async def dealt(channel: RoundRobinChannel) -> list[int]:
    """Return the ids of all that the channel gets while nothing is confirmed."""
    ids: list[int] = []
    while isinstance(taken := await channel.take(), TakenMessages):
        new = [id for selection in taken.selections for id in selection.ids]
        channel.written(len(new))
        await wait_all_tasks_blocked()
        ids += new
    return ids


async def test_a_worker_with_much_unconfirmed_work_waits_alone(
    served: tuple[Memory, Driver, Driver],
) -> None:
    memory, driver, _ = served
    share = memory.unconfirmed
    greedy = await worker(driver)
    ids = await dealt(greedy)
    assert len(ids) < 75_000
    assert share.limit <= share.used < share.limit + FREE_OCTETS
    # Another one gets work all the same, a little.
    modest = await worker(driver)
    others = await dealt(modest)
    assert others
    assert share.used < share.limit + 4 * FREE_OCTETS
    # With what the first confirms, in any order, it goes on, and so does the other.
    for id in reversed(ids):
        assert greedy.settle(range(id, id + 1), ACCEPTED)
    await wait_all_tasks_blocked()
    more = await dealt(greedy)
    assert more
    others += await dealt(modest)
    for id in others:
        assert modest.settle(range(id, id + 1), ACCEPTED)
    await wait_all_tasks_blocked()
    # The messages of a lost worker go to the other, all of them.
    greedy.close()
    rest: list[int] = []
    await wait_all_tasks_blocked()
    while new := await dealt(modest):
        for id in new:
            assert modest.settle(range(id, id + 1), ACCEPTED)
        rest += new
        await wait_all_tasks_blocked()
    assert set(more) <= set(rest)
    assert sorted([*ids, *others, *rest]) == list(range(1, 75_001))
    assert share.used == 0
    assert driver.info().messages == 0


async def test_a_worker_of_another_topic_goes_on_when_the_share_is_free_again(
    served: tuple[Memory, Driver, Driver],
) -> None:
    memory, first, second = served
    share = memory.unconfirmed
    waiting = await worker(second)
    taken = await waiting.take()
    assert isinstance(taken, TakenMessages)
    greedy = await worker(first)
    ids = await dealt(greedy)
    assert share.used >= share.limit
    waiting.written(sum(len(selection.ids) for selection in taken.selections))
    await wait_all_tasks_blocked()
    await dealt(waiting)
    # It holds as much as it may beside a share that is spent, and gets no more until others confirm.
    assert not waiting.ready()
    for id in ids:
        assert greedy.settle(range(id, id + 1), ACCEPTED)
    greedy.finish()
    await wait_all_tasks_blocked()
    assert waiting.ready()
    await in_slices(first.end())
    await in_slices(second.end())
    assert share.used == 0
