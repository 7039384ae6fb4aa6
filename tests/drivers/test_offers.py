"""Offers never wait: messages are taken over, or have a place in the line for room."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import trio
from served_drivers import (
    KIB,
    MIB,
    NOTHING,
    STRONG,
    Client,
    Drivers,
    Kind,
    of_kinds,
    opened,
    quiet,
    settled,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.config import Config
from omq.drivers.confirmation import CONFIRMED, Confirmation
from omq.drivers.driver import Driver
from omq.drivers.offer import PendingOffer
from omq.drivers.reasons import DELETED, Reason, Refused
from omq.drivers.seam import Octets
from omq.model import Delivery, Transient
from omq_storage.batches import Bodies
from omq_storage.errors import StoreFailed

STALL_SECONDS = Config().stall_seconds

ROUND_ROBIN, BROADCAST = Kind(Delivery.ROUND_ROBIN, Transient()), Kind(Delivery.BROADCAST, Transient())


@pytest.fixture
async def drivers(tmp_path: Path) -> AsyncIterator[Drivers]:
    """Yield drivers with the least memory that a server may have."""
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        yield drivers


class Publisher:
    """Offers messages, and notes whether it was woken."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.place: PendingOffer | None = None
        self.wakes = 0
        self.wake = trio.Event()

    def offer(self, *bodies: bytes) -> Confirmation | None:
        """Return the confirmation; None when there is no room."""
        offered = self.driver.offer(Bodies(bodies))
        if isinstance(offered, Confirmation):
            return offered
        self.place = offered
        offered.call_when_free(self.woken)
        return None

    def woken(self) -> None:
        self.wakes += 1
        self.wake.set()

    def again(self) -> Confirmation | None:
        assert self.place is not None
        offered = self.place.again()
        if isinstance(offered, Confirmation):
            self.place = None
            return offered
        assert offered is self.place
        offered.call_when_free(self.woken)
        return None


async def with_ids(drivers: Drivers, kind: Kind, name: bytes = b"t") -> Driver:
    """Return a topic that may hand out ids at once."""
    driver = await drivers.topic(kind, name)
    await drivers.catalogue.ids.reserve({driver: 1})
    return driver


def use_up_ids(driver: Driver) -> None:
    """Make the next id one that must be reserved first, as a great number of messages would."""
    driver.next_id = driver.reserved


def fill(driver: Driver, body: bytes = b"x" * 50 * KIB) -> tuple[int, Publisher]:
    """Offer messages until there is no room: how many were taken, and the publisher that waits."""
    for taken in range(1000):
        publisher = Publisher(driver)
        if publisher.offer(body) is None:
            return taken, publisher
    raise AssertionError("there is always room")


@of_kinds()
async def test_an_offer_with_room_is_taken_without_waiting(drivers: Drivers, kind: Kind) -> None:
    driver = await with_ids(drivers, kind)
    client = Client(driver)
    confirmations = [Publisher(driver).offer(b"%d" % number) for number in range(5)]
    for confirmation in confirmations:
        assert confirmation is not None
        if not kind.is_persistent:
            assert confirmation is CONFIRMED
        assert await settled(confirmation) is None
    assert (await client.read()).bodies == [b"0", b"1", b"2", b"3", b"4"]
    client.close()


@of_kinds()
async def test_an_offer_without_room_is_woken_when_there_is_some(drivers: Drivers, kind: Kind) -> None:
    driver = await with_ids(drivers, kind)
    client = Client(driver)
    taken, first = fill(driver)
    second = Publisher(driver)
    assert second.offer(b"second") is None  # however little it is: others wait before it
    assert (first.wakes, second.wakes) == (0, 0)
    assert first.again() is None
    assert second.again() is None
    next_id = driver.next_id
    assert next_id <= taken + 1
    await client.read()
    await quiet()
    assert first.wakes == 1
    confirmation = first.again()
    assert confirmation is not None
    await client.read()
    assert second.wakes == 1
    last = second.again()
    assert last is not None
    assert [await settled(confirmation), await settled(last)] == [None, None]
    await client.read()
    assert client.ids == [*range(1, taken + 3)]
    assert client.bodies[-1] == b"second"
    client.close()
    assert drivers.memory.statistics() == NOTHING


@of_kinds()
async def test_an_offer_that_leaves_holds_nothing_and_lets_others_pass(drivers: Drivers, kind: Kind) -> None:
    driver = await with_ids(drivers, kind)
    client = Client(driver)
    taken, first = fill(driver)
    second, third = Publisher(driver), Publisher(driver)
    assert (second.offer(b"second"), third.offer(b"third")) == (None, None)
    assert first.place is not None
    assert second.place is not None
    first.place.leave()
    first.place.leave()  # it may be used up already
    await client.read()
    second.place.leave()  # it was woken, and what was granted to it is free again
    await client.read()
    assert third.wakes == 1
    confirmation = third.again()
    assert confirmation is not None
    assert await settled(confirmation) is None
    await client.read()
    assert len(client.bodies) == taken + 1
    assert client.bodies[-1] == b"third"
    client.close()
    assert drivers.memory.statistics() == NOTHING


async def test_offers_and_posts_wait_in_one_line(drivers: Drivers) -> None:
    driver = await with_ids(drivers, ROUND_ROBIN)
    taken, first = fill(driver)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.post, Bodies([b"second"]))
        await wait_all_tasks_blocked()
        third = Publisher(driver)
        assert third.offer(b"third") is None
        client = Client(driver)
        await client.read()
        assert first.again() is CONFIRMED
        await quiet()
        assert third.again() is CONFIRMED
    await client.read()
    assert sorted(client.bodies[taken:]) == [b"second", b"third", b"x" * 50 * KIB]
    client.close()


@of_kinds(lambda kind: not kind.is_persistent)
async def test_a_waiting_offer_hears_that_the_topic_was_deleted(drivers: Drivers, kind: Kind) -> None:
    driver = await with_ids(drivers, kind)
    client = Client(driver)
    _, publisher = fill(driver)
    await drivers.catalogue.delete(b"t")
    assert publisher.wakes == 1
    with pytest.raises(Refused) as refused:
        publisher.again()
    assert refused.value.failure == DELETED
    with pytest.raises(Refused, match="the topic was deleted"):
        driver.offer(Bodies([b"late"]))
    assert drivers.memory.statistics() == NOTHING
    client.close()


# -- ids ---------------------------------------------------------------------------------------------------


@of_kinds(lambda kind: not kind.is_persistent)
async def test_ids_that_must_be_reserved_first_are_no_room_for_now(drivers: Drivers, kind: Kind) -> None:
    topics = [await drivers.topic(kind, b"%d" % number) for number in range(20)]
    publishers = [Publisher(topic) for topic in topics]
    for topic in topics:
        use_up_ids(topic)
    (used,) = {topic.next_id for topic in topics}
    reserved = drivers.store.catalogue.topics
    assert {record.reserved for record in reserved()} == {used}
    for publisher in publishers:
        assert publisher.offer(b"a") is None
        assert publisher.again() is None
    await quiet()
    for publisher in publishers:
        assert publisher.wakes == 1
        assert publisher.again() is CONFIRMED
    assert [topic.next_id for topic in topics] == [used + 1] * 20
    assert min(record.reserved for record in reserved()) > used + 1000
    other = Publisher(topics[0])
    assert other.offer(b"b") is CONFIRMED


@of_kinds(lambda kind: not kind.is_persistent)
async def test_ids_that_others_took_meanwhile_are_reserved_again(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    use_up_ids(driver)
    first, second = Publisher(driver), Publisher(driver)
    assert (first.offer(b"a"), second.offer(b"b")) == (None, None)
    await quiet()
    use_up_ids(driver)
    assert first.again() is None
    await quiet()
    assert first.again() is CONFIRMED
    assert second.again() is CONFIRMED


@of_kinds(lambda kind: not kind.is_persistent)
async def test_an_offer_that_leaves_during_a_reservation_takes_no_ids(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    use_up_ids(driver)
    used = driver.next_id
    async with drivers.catalogue.ids.held_back():
        with trio.move_on_after(0) as scope:
            await driver.post(Bodies([b"a"]))
        assert scope.cancelled_caught
    await quiet()
    assert driver.next_id == used
    assert drivers.memory.statistics() == NOTHING


async def test_an_admitted_offer_without_ids_gives_its_room_back(drivers: Drivers) -> None:
    driver = await with_ids(drivers, ROUND_ROBIN)
    taken, publisher = fill(driver)
    client = Client(driver)
    await client.read()
    assert len(client.got) == taken
    assert publisher.wakes == 1
    client.close()
    use_up_ids(driver)
    assert publisher.again() is None
    assert publisher.place is not None
    publisher.place.leave()
    await quiet()
    assert drivers.memory.statistics() == NOTHING


async def test_a_crowd_that_waits_for_ids_keeps_the_pace(drivers: Drivers) -> None:
    driver = await drivers.topic(BROADCAST)
    use_up_ids(driver)
    used = driver.next_id
    client = Client(driver)
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(driver.post, Bodies([b"%3d" % number + bytes(50 * KIB)]))
        while len(client.got) < 100:
            await client.read()
    assert client.gaps == []
    assert client.ids == [*range(used, used + 100)]
    client.close()


@of_kinds(lambda kind: not kind.is_persistent)
async def test_without_ids_messages_are_refused_and_hold_nothing(
    drivers: Drivers, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, other = await drivers.topic(kind), await drivers.topic(kind, b"other")

    def fail(bounds: dict[int, int]) -> None:
        if driver.topic.id in bounds:
            raise StoreFailed("the disk broke")

    monkeypatch.setattr(drivers.store.catalogue, "reserve", fail)
    use_up_ids(driver)
    use_up_ids(other)
    failing, going_on = Publisher(driver), Publisher(other)
    assert (failing.offer(b"a"), going_on.offer(b"b")) == (None, None)
    await quiet()
    with pytest.raises(Refused) as refused:
        failing.again()
    assert refused.value.reason is Reason.STORE_FAILED
    assert going_on.again() is CONFIRMED
    await drivers.catalogue.delete(b"other")
    assert drivers.memory.statistics() == NOTHING


async def test_a_partly_refused_post_reports_the_outcome_of_each_message(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await with_ids(drivers, BROADCAST)
    client = Client(driver)
    driver.next_id = driver.reserved - 300
    client.close()
    client = Client(driver)

    def fail(bounds: dict[int, int]) -> None:
        raise StoreFailed("the disk broke")

    monkeypatch.setattr(drivers.store.catalogue, "reserve", fail)
    offered = driver.offer(Bodies([b"%4d" % number + bytes(1000) for number in range(512)]))
    while not isinstance(offered, Confirmation):
        await client.read()
        await quiet()
        offered = offered.again()
    assert offered.failure is not None
    assert offered.failure.reason is Reason.STORE_FAILED
    (taken, none), (refused, failure) = offered.outcomes(512)
    assert (none, failure) == (None, offered.failure)
    assert taken + refused == 512
    await client.read()
    assert [int(body[:4]) for body in client.bodies] == [*range(taken)]
    assert 0 < taken <= 300
    client.close()


# -- the pace of transient broadcast topics ------------------------------------------------------------------


async def test_a_stalled_subscriber_holds_publishers_back_for_a_while_only(
    drivers: Drivers, autojump_clock: MockClock
) -> None:
    driver = await with_ids(drivers, BROADCAST)
    client = Client(driver)
    _, first = fill(driver)
    second = Publisher(driver)
    assert second.offer(b"second") is None
    begin = trio.current_time()
    await first.wake.wait()
    assert trio.current_time() - begin == pytest.approx(STALL_SECONDS)
    assert second.wakes == 0  # one at a time
    assert first.again() is CONFIRMED
    assert second.wakes == 1
    assert second.again() is CONFIRMED
    for _ in range(10):
        assert Publisher(driver).offer(b"x" * 50 * KIB) is CONFIRMED  # it is known to be stalled
    client.close()


async def test_a_subscriber_that_moves_has_as_long_again(drivers: Drivers, autojump_clock: MockClock) -> None:
    driver = await with_ids(drivers, BROADCAST)
    client = Client(driver)
    _, publisher = fill(driver)
    await publisher.wake.wait()
    assert publisher.again() is CONFIRMED
    for _ in range(14):
        assert Publisher(driver).offer(b"x" * 50 * KIB) is CONFIRMED  # it is known to be stalled
    await client.read_once()
    publisher = Publisher(driver)
    assert publisher.offer(b"waits") is None
    await trio.sleep(0.8 * STALL_SECONDS)
    await client.read_once()
    moved = trio.current_time()
    assert not publisher.wakes
    await publisher.wake.wait()
    assert trio.current_time() - moved == pytest.approx(STALL_SECONDS)
    client.close()


class Connection:
    """A connection whose socket takes nothing of what is pushed: only the test says what it has taken."""

    def __init__(self) -> None:
        self.sent = self.pushed = self.delivered = 0
        self.stalled_at: int | None = None

    def is_clear(self) -> bool:
        return False

    def try_send(self, parts: Sequence[Octets]) -> int:
        raise AssertionError("it is never clear")

    def has_room(self) -> bool:
        return self.is_clear()

    def is_filled(self) -> bool:
        return False

    def push(self, passed: object, lanes: Sequence[int]) -> None:
        raise AssertionError("nothing is routed here")

    def complete(self, rest: bytes) -> None:
        raise AssertionError("nothing was begun")


def served_by(connection: Connection, driver: Driver) -> Client:
    """Return a subscriber on this connection."""
    client = Client(driver)
    client.channel.attach(connection)
    return client


async def test_a_client_that_reads_much_of_other_topics_is_not_stalled(
    drivers: Drivers, autojump_clock: MockClock
) -> None:
    driver = await with_ids(drivers, BROADCAST)
    connection = Connection()
    client = served_by(connection, driver)
    _, publisher = fill(driver)
    for _ in range(20):
        connection.sent += 1
        await trio.sleep(STALL_SECONDS / 2)
    assert not publisher.wakes
    await client.read()
    assert publisher.wakes == 1
    assert publisher.again() is CONFIRMED
    assert (await client.read()).gaps == []
    client.close()


async def test_a_stalled_connection_is_stalled_in_all_its_topics(
    drivers: Drivers, autojump_clock: MockClock
) -> None:
    connection = Connection()
    topics = [await with_ids(drivers, BROADCAST, b"%d" % number) for number in range(50)]
    clients = [served_by(connection, driver) for driver in topics]
    begin = trio.current_time()
    _, publisher = fill(topics[0])
    await publisher.wake.wait()
    assert publisher.again() is CONFIRMED
    for driver in topics[1:]:
        for _ in range(20):
            assert Publisher(driver).offer(b"x" * 50 * KIB) is CONFIRMED
    assert trio.current_time() - begin == pytest.approx(STALL_SECONDS)
    connection.sent += 1  # it reads again, and sets the pace again
    assert Publisher(topics[-1]).offer(b"x" * 50 * KIB) is None
    for client in clients:
        client.close()


async def test_many_topics_together_push_out_nothing_that_a_moving_subscriber_needs(drivers: Drivers) -> None:
    topics = [await with_ids(drivers, BROADCAST, b"%d" % number) for number in range(40)]
    clients = [Client(driver) for driver in topics]
    for _ in range(3):
        for driver in topics:
            fill(driver, b"x" * 2 * KIB)
    for client in clients:
        assert (await client.read()).gaps == []
        assert client.ids == [*range(1, len(client.ids) + 1)] != []
    for client in clients:
        client.close()


async def test_offers_that_wait_for_the_store_are_taken_in_order(drivers: Drivers) -> None:
    driver = await drivers.topic(Kind(Delivery.BROADCAST, STRONG))
    client = Client(driver)
    publishers = [Publisher(driver) for _ in range(40)]
    confirmations = [
        publisher.offer(b"%d" % number + bytes(50 * KIB)) for number, publisher in enumerate(publishers)
    ]
    assert None in confirmations
    while None in confirmations:
        await quiet()
        for number, publisher in enumerate(publishers):
            if confirmations[number] is None and publisher.wakes:
                confirmations[number] = publisher.again()
    await client.read()
    assert [int(body.rstrip(b"\0")) for body in client.bodies] == [*range(40)]
    client.close()
