"""The dealer of a round-robin topic and its channels, where a terminal is in the middle of something."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.channel import Channel, End, Messages
from omq.drivers.driver import Driver
from omq.drivers.memory import Memory
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.model import Delivery, FromCurrent, Transient
from omq_storage.batches import Bodies
from omq_storage.store import Store

MIB = 1 << 20


class Listener:
    """A subscriber that only wants to keep its channel."""

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: End) -> None: ...


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Memory, Driver]]:
    """The memory of a server, and a transient topic in it."""
    with Store.open(tmp_path / "store", map_size=1 << 28, boot_id="first") as store:
        async with trio.open_nursery() as nursery:
            memory = Memory(64 * MIB)
            catalogue = Catalogue(Config(store=str(tmp_path)), store, memory, nursery)
            driver = await catalogue.declare(b"t", Delivery.ROUND_ROBIN, Transient())
            await driver.reserve(1)
            yield memory, driver
            nursery.cancel_scope.cancel()


async def worker(driver: Driver, credit: int | None = None) -> RoundRobinChannel:
    channel = driver.open(Listener(), FromCurrent())
    assert isinstance(channel, RoundRobinChannel)
    if credit is not None:
        channel.request(credit)
    await wait_all_tasks_blocked()
    return channel


async def post(driver: Driver, count: int) -> None:
    await driver.post(Bodies([b"x" * 100] * count))
    await wait_all_tasks_blocked()


async def taken(channel: RoundRobinChannel) -> list[int]:
    """The ids of what a channel gives at once."""
    found = await channel.take()
    if found is None:
        return []
    assert isinstance(found, Messages)
    return [id for cut in found.cuts for id in cut.ids]


async def test_what_was_confirmed_before_it_was_sent_does_not_go_to_others_after_a_stall(
    served: tuple[Memory, Driver],
) -> None:
    memory, driver = served
    first = await worker(driver, credit=10)
    await post(driver, 5)
    first.received(2)
    first.received(4)
    second = await worker(driver)
    first.hold()
    await wait_all_tasks_blocked()
    assert await taken(second) == [1, 3, 5]
    second.written(3)
    first.release()
    await wait_all_tasks_blocked()
    assert not first.ready()
    assert memory.waiting.used == 0


@pytest.mark.parametrize("confirmed_first", [False, True])
async def test_a_message_is_kept_until_it_is_both_sent_and_confirmed(
    served: tuple[Memory, Driver], confirmed_first: bool
) -> None:
    memory, driver = served
    channel = await worker(driver, credit=10)
    await post(driver, 1)
    assert await taken(channel) == [1]
    channel.written(0, 10)  # it is begun, and the client stalled
    if confirmed_first:
        channel.received(1)
        assert memory.waiting.used > 0
        channel.written(1)
    else:
        channel.written(1)
        assert memory.waiting.used > 0
        channel.received(1)
    assert memory.waiting.used == 0
    assert driver.info().messages == 0


@pytest.mark.parametrize("block", [2, 4, 5, 7])
async def test_the_turn_goes_on_behind_small_blocks(served: tuple[Memory, Driver], block: int) -> None:
    _, driver = served
    workers = [await worker(driver) for _ in range(3)]
    for _ in range(6):
        await post(driver, block)
    for index, channel in enumerate(workers):
        assert await taken(channel) == list(range(index + 1, 6 * block + 1, 3))
