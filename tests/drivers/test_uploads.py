"""Large messages on their way into the store: what is held of them, and what becomes of it."""

import tracemalloc
from pathlib import Path

import pytest
import trio.testing
from queue_cases import expiring, passed, published, queue_of
from served_drivers import KIB, MIB, WEAK, Client, Drivers, opened, quiet, settled

from omq.drivers.driver import Driver
from omq.drivers.reasons import Reason, Refused
from omq.drivers.uploads import PORTION_OCTETS, StoredUpload
from omq.model import FromBeginning
from omq_storage.fragments import FRAGMENT_OCTETS


async def uploaded(driver: Driver, body: bytes, head: bytes = b"") -> None:
    upload = await StoredUpload.begin(driver)
    await upload.add(body)
    assert await settled(await upload.post(head, None)) is None
    upload.close()


@pytest.mark.parametrize("fits", [True, False])
async def test_a_portion_is_collected_if_the_memory_has_room_for_it(tmp_path: Path, fits: bool) -> None:
    async with opened(tmp_path / "store", memory=64 * MIB) as drivers:
        driver = await drivers.declare(WEAK)
        share = drivers.memory.uploaded
        others = 0 if fits else share.limit - PORTION_OCTETS + 1
        assert share.try_take(others)
        upload = await StoredUpload.begin(driver)
        body = b""

        def collected() -> int:
            return share.used - others

        async def add(octets: int) -> None:
            nonlocal body
            more = bytes([len(body) % 251]) * octets
            body += more
            await upload.add(more)

        await add(FRAGMENT_OCTETS - 1)
        assert collected() == 0
        await add(1)
        assert collected() == (PORTION_OCTETS if fits else 0)
        await add(PORTION_OCTETS - FRAGMENT_OCTETS - 1)
        assert collected() == (PORTION_OCTETS if fits else 0)
        await add(1)  # that is a whole portion, which is stored
        assert collected() == 0
        await add(FRAGMENT_OCTETS + 5)
        assert await settled(await upload.post(b"", None)) is None
        assert collected() == 0
        upload.close()
        client = Client(driver, FromBeginning())
        await client.read()
        assert client.bodies == [body]
        client.close()
        share.give(others)


async def test_octets_that_arrive_by_twos_take_no_more_memory_than_others(tmp_path: Path) -> None:
    body = bytes(number % 251 for number in range(FRAGMENT_OCTETS - 1))
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK)
        upload = await StoredUpload.begin(driver)
        tracemalloc.start()
        try:
            for begin in range(0, len(body), 2):
                await upload.add(body[begin : begin + 2])
            assert tracemalloc.get_traced_memory()[0] < 2 * FRAGMENT_OCTETS
        finally:
            tracemalloc.stop()
        assert await settled(await upload.post(b"", None)) is None
        upload.close()
        client = Client(driver, FromBeginning())
        await client.read()
        assert client.bodies == [body]
        client.close()


async def test_what_does_not_become_a_message_holds_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=64 * MIB) as drivers:
        driver = await drivers.declare(WEAK)
        given_up = await StoredUpload.begin(driver)
        await given_up.add(bytes(FRAGMENT_OCTETS))
        assert drivers.memory.uploaded.used == PORTION_OCTETS
        given_up.close()
        assert drivers.memory.uploaded.used == 0
        late = await StoredUpload.begin(driver)
        await late.add(bytes(300 * KIB))
        await drivers.catalogue.delete(b"t")
        with pytest.raises(Refused) as refused:
            await late.post(b"", None)
        assert refused.value.reason is Reason.DELETED
        late.close()
        assert drivers.memory.uploaded.used == 0


async def test_a_large_message_expires_by_its_own_property(
    drivers: Drivers, clock: trio.testing.MockClock
) -> None:
    queue = await queue_of(drivers, durable=True)
    await uploaded(queue, bytes(FRAGMENT_OCTETS), published(b"", b"q"))
    await passed(clock, 1000)
    assert queue.ready == 1
    assert queue.purge() == 1
    await uploaded(queue, bytes(FRAGMENT_OCTETS), expiring(1000))
    await passed(clock, 0.9)
    assert queue.ready == 1
    await passed(clock, 0.2)
    assert queue.ready == 0
    await quiet()
    assert queue.info().messages == 0
