"""A change of a topic whose connection ends meanwhile is completed: never half of it."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from served_drivers import WEAK, Drivers, post, quiet
from trio.testing import wait_all_tasks_blocked

from omq.drivers import slices
from omq.drivers.driver import Driver
from omq.drivers.topic_quota import Release
from omq.model import Delivery
from omq_storage.levels import Level


async def retype(drivers: Drivers) -> None:
    await drivers.catalogue.declare(b"t", Delivery.ROUND_ROBIN, WEAK)


async def delete(drivers: Drivers) -> None:
    await drivers.catalogue.delete(b"t")


@pytest.mark.parametrize("change", [retype, delete])
async def test_a_change_that_has_begun_is_completed(
    shared_drivers: Drivers, change: Callable[[Drivers], Awaitable[None]]
) -> None:
    catalogue = shared_drivers.catalogue
    driver: Driver | None = await catalogue.lookup_or_declare(b"t")
    if change is delete:
        await post(driver, b"x")
        assert driver.environment.extents()
    async with trio.open_nursery() as nursery:

        async def begin() -> None:
            await change(shared_drivers)

        async with catalogue.ids.held_back():
            nursery.start_soon(begin)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
    await quiet()
    driver = catalogue.lookup(b"t")
    stored = [(record.name, record.delivery) for record in shared_drivers.store.catalogue.topics()]
    if change is delete:
        assert (driver, stored) == (None, [])
        assert not any(shared_drivers.store.level(level).extents() for level in Level)
    else:
        assert driver is not None
        assert driver.delivery is Delivery.ROUND_ROBIN
        assert stored == [(b"t", "Round_robin")]


async def test_topics_that_are_made_together_all_exist_although_their_maker_is_gone(
    shared_drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    names = [b"%d" % number for number in range(30)]
    with trio.CancelScope() as maker:

        def admit(name: bytes) -> Release:
            maker.cancel()
            return lambda: None

        await shared_drivers.catalogue.make(names, Delivery.BROADCAST, WEAK, admit)
    assert sorted(record.name for record in shared_drivers.store.catalogue.topics()) == sorted(names)
    assert all(shared_drivers.catalogue.lookup(name) is not None for name in names)
