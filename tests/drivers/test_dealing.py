"""The dealer of a round-robin topic and its channels, where a terminal is in the middle of something."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.memory import Memory
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import (
    ACCEPTED,
    LITTLE_OCTETS,
    Channel,
    CreditKind,
    EndReason,
    Modified,
    Outcome,
    Piece,
    Rejected,
    Released,
    Taken,
    TakenMessages,
    Unavailable,
)
from omq.drivers.stored_reads import READ_OCTETS
from omq.model import Delivery, FromCurrent, Transient
from omq_storage.batches import Bodies
from omq_storage.blocks import encode
from omq_storage.environment import Environment, Position
from omq_storage.levels import Level
from omq_storage.runs import runs_of
from omq_storage.store import Store

MIB = 1 << 20


class Listener:
    """A subscriber that only wants to keep its channel."""

    direct = None

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: EndReason) -> None: ...


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Memory, Driver]]:
    """Yield the memory of a server, and a transient topic in it."""
    with Store.open(tmp_path / "store", map_size=1 << 28, boot_id="first") as store:
        async with trio.open_nursery() as nursery:
            memory = Memory(64 * MIB)
            catalogue = Catalogue(Config(store=str(tmp_path)), store, memory, nursery)
            driver = await catalogue.declare(b"t", Delivery.ROUND_ROBIN, Transient())
            await catalogue.ids.reserve({driver: 1})
            yield memory, driver
            nursery.cancel_scope.cancel()


async def worker(driver: Driver, credit: int | None = None) -> RoundRobinChannel:
    channel = driver.open(Listener(), FromCurrent())
    assert isinstance(channel, RoundRobinChannel)
    if credit is not None:
        channel.grant(credit, CreditKind.WINDOW)
    await wait_all_tasks_blocked()
    return channel


async def post(driver: Driver, count: int) -> None:
    await driver.post(Bodies([b"x" * 100] * count))
    await wait_all_tasks_blocked()


async def taken(channel: RoundRobinChannel) -> list[int]:
    """Return the ids of what a channel gives at once."""
    found = await channel.take()
    if found is None:
        return []
    assert isinstance(found, TakenMessages)
    return [id for selection in found.selections for id in selection.ids]


async def test_a_message_confirmed_early_does_not_go_to_others_after_a_stall(
    served: tuple[Memory, Driver],
) -> None:
    memory, driver = served
    first = await worker(driver, credit=10)
    await post(driver, 5)
    assert first.settle(range(2, 3), ACCEPTED)
    assert first.settle(range(4, 5), ACCEPTED)
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
        assert channel.settle(range(1, 2), ACCEPTED)
        assert memory.waiting.used > 0
        channel.written(1)
    else:
        channel.written(1)
        assert memory.waiting.used > 0
        assert channel.settle(range(1, 2), ACCEPTED)
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


@asynccontextmanager
async def stored(
    path: Path, blocks: Mapping[int, Sequence[bytes]], position: Position | None = None
) -> AsyncIterator[tuple[Environment, Driver]]:
    """Yield a persistent topic with blocks of these bodies, by the ids that they begin with."""
    with Store.open(path / "store", map_size=1 << 28, boot_id="first") as store:
        topic = store.catalogue.create(b"t", "Round_robin", "Weak", True, reserved=100).id
        environment = store.level(Level.WEAK)
        environment.append([encode(topic, first, list(bodies), 0) for first, bodies in blocks.items()])
        if position is not None:
            environment.set_positions({topic: position})
        async with trio.open_nursery() as nursery:
            catalogue = Catalogue(Config(store=str(path)), store, Memory(64 * MIB), nursery)
            await catalogue.open_stored()
            driver = catalogue.lookup(b"t")
            assert driver is not None
            yield environment, driver
            nursery.cancel_scope.cancel()


async def next_of(channel: RoundRobinChannel) -> Taken | None:
    """Return the messages of a channel as soon as it has some."""
    with trio.fail_after(60):
        while not channel.ready():
            await wait_all_tasks_blocked(0.01)
    return await channel.take()


@pytest.mark.parametrize("credit", [None, 100])
@pytest.mark.parametrize("way", ["stall", "leave"])
async def test_messages_in_the_store_dealt_to_a_worker_go_to_others(
    tmp_path: Path, way: str, credit: int | None
) -> None:
    """Of a large block workers are dealt the ids only. None of them is lost with the worker."""
    count = 20
    async with stored(tmp_path, {1: [bytes(2 * READ_OCTETS // count)] * count}) as (_, driver):
        first = await worker(driver, credit)
        piece = await next_of(first)
        assert isinstance(piece, Piece)
        assert piece.message == 1
        assert 2 <= first.outstanding_count() < count
        if way == "leave":
            first.close()
        else:
            first.written(0, 5)  # the client took a little of the message
            first.hold()
        second = await worker(driver)
        wanted = list(range(1 if way == "leave" else 2, count + 1))
        found = []
        for _ in wanted:
            piece = await next_of(second)
            assert isinstance(piece, Piece)
            found.append(piece.message)
            second.written(1)
        assert sorted(found) == wanted


async def test_after_a_stall_in_a_message_of_a_block_its_next_piece_is_small(tmp_path: Path) -> None:
    """Until the client takes its pieces quickly again."""
    size = 5 * LITTLE_OCTETS
    async with stored(tmp_path, {1: [bytes(size)] * 2}) as (_, driver):
        channel = await worker(driver)
        assert isinstance(await next_of(channel), TakenMessages)
        channel.written(0, 10)  # the client stalled in the first message
        small = await channel.take()
        assert isinstance(small, Piece)
        assert (small.message, small.begin, len(small.octets)) == (1, 10, LITTLE_OCTETS)
        channel.written(0, 10 + LITTLE_OCTETS)
        rest = await channel.take()
        assert isinstance(rest, Piece)
        assert rest.begin + len(rest.octets) == size


@pytest.mark.parametrize("credit", [None, 1])
async def test_a_worker_dealt_a_missing_message_hears_of_it_and_goes_on(
    tmp_path: Path, credit: int | None
) -> None:
    large = [bytes(READ_OCTETS + 1)]
    async with stored(tmp_path, {1: large, 2: large}) as (environment, driver):
        channel = await worker(driver, credit)
        while not channel.ready():
            await wait_all_tasks_blocked(0.01)
        environment.trim(driver.topic.id, 2)
        assert await channel.take() == Unavailable(1, 1, "it is no longer kept")
        assert channel.outstanding_count() == 0
        piece = await next_of(channel)  # its credit is free again without a grant
        assert isinstance(piece, Piece)
        assert piece.message == 2


async def test_a_worker_hears_of_every_gap_in_its_order(served: tuple[Memory, Driver]) -> None:
    channel = await worker(served[1])
    gaps = [Unavailable(first, first, "it is no longer kept") for first in (1, 3, 5)]
    for gap in gaps[:2]:
        channel.tell(gap)
    assert await channel.take() == gaps[0]
    channel.tell(gaps[2])
    assert [await channel.take(), await channel.take()] == gaps[1:]
    assert not channel.ready()
    assert await channel.take() is None


@pytest.mark.parametrize("credit", [None, 1])
async def test_a_missing_message_is_undeliverable_to_nobody_any_more(
    tmp_path: Path, credit: int | None
) -> None:
    async with stored(tmp_path, {1: [bytes(READ_OCTETS + 1)]}) as (environment, driver):
        first = await worker(driver, 1)
        assert isinstance(await next_of(first), Piece)
        assert first.settle(range(1, 2), Modified(undeliverable_here=True)) == 1
        first.written(1)
        assert first.is_undeliverable(1)
        second = await worker(driver, credit)
        while not second.ready():
            await wait_all_tasks_blocked(0.01)
        environment.trim(driver.topic.id, 2)
        assert await second.take() == Unavailable(1, 1, "it is no longer kept")
        assert not first.is_undeliverable(1)


@pytest.mark.parametrize("outcome", [None, Released(), Rejected()])
async def test_a_take_that_is_cancelled_keeps_the_outcome_of_its_message(
    tmp_path: Path, outcome: Outcome | None
) -> None:
    async with stored(tmp_path, {1: [bytes(READ_OCTETS + 1)]}) as (_, driver):
        first = await worker(driver, 1)
        while not first.ready():
            await wait_all_tasks_blocked(0.01)
        readers = driver.resources.readers
        reading = [object() for _ in range(int(readers.total_tokens))]
        for other in reading:
            readers.acquire_on_behalf_of_nowait(other)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.take)
            await wait_all_tasks_blocked()  # it waits for its turn to read
            if outcome is not None:
                assert first.settle(range(1, 2), outcome) == 1
            nursery.cancel_scope.cancel()
        for other in reading:
            readers.release_on_behalf_of(other)
        first.close()
        assert driver.rejections == isinstance(outcome, Rejected)
        second = await worker(driver)
        if isinstance(outcome, Rejected):
            assert driver.info().messages == 0
            assert not second.ready()
        else:
            piece = await next_of(second)
            assert isinstance(piece, Piece)
            assert (piece.message, piece.deliveries) == (1, 0)


async def test_done_messages_are_not_counted_after_a_restart(tmp_path: Path) -> None:
    blocks = {first: [b"x"] * 10 for first in (1, 11, 21)}
    async with stored(tmp_path, blocks, Position(15, runs_of((3, 12)))) as (_, driver):
        assert driver.info().messages == 2 + 16
        channel = await worker(driver)
        found: list[int] = []
        while len(found) < 18:
            messages = await next_of(channel)
            assert isinstance(messages, TakenMessages)
            ids = [id for selection in messages.selections for id in selection.ids]
            channel.written(len(ids))
            found += ids
        assert found == [3, 12, *range(15, 31)]
        assert driver.info().messages == 0
