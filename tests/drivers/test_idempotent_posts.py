"""Messages of idempotent producers, posted to drivers with real stores behind them."""

import shutil
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from served_drivers import ASYNC, STRONG, WEAK, Drivers, Listener, kept, opened, settled

from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.posts import LATE
from omq.drivers.seam import TakenMessages
from omq.drivers.sequences import Origin, RecentSequences, without_repeated
from omq.drivers.stored_types import LEVELS
from omq.drivers.uploads import StoredUpload
from omq.model import Delivery, FromCurrent, Persistence, Persistent, Transient
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.environment import Environment
from omq_storage.errors import Limit, StoreError, StoreFull
from omq_storage.levels import Level

PERSISTENT = pytest.mark.parametrize("persistence", [STRONG, WEAK, ASYNC], ids=str)
DELIVERY = pytest.mark.parametrize("delivery", list(Delivery))


@pytest.fixture
async def drivers(tmp_path: Path) -> AsyncIterator[Drivers]:
    async with opened(tmp_path / "store") as found:
        yield found


async def failure_of(confirmation: Confirmation) -> str | None:
    """Return the sentence of a failure for the poster; None when the post is confirmed."""
    failure = await settled(confirmation)
    return None if failure is None else failure.text


def bodies_of(origins: Sequence[Origin | None]) -> list[bytes]:
    """Return bodies that tell where they come from."""
    return [b"-" if origin is None else b"%s %d" % origin for origin in origins]


async def post(driver: Driver, *origins: Origin | None) -> None:
    """Post messages with these origins, and wait for them to be confirmed."""
    assert await failure_of(await driver.post(Bodies(bodies_of(origins)), origins=origins)) is None


def known(driver: Driver, *producers: bytes) -> dict[bytes, int]:
    return driver.environment.sequences(driver.topic.id, producers)


@DELIVERY
@PERSISTENT
async def test_a_repeated_message_is_confirmed_and_dropped(
    drivers: Drivers, persistence: Persistence, delivery: Delivery
) -> None:
    driver = await drivers.declare(persistence, delivery)
    await post(driver, (b"a", 1), (b"a", 2), (b"b", 1))
    await post(driver, (b"a", 1), (b"a", 2), (b"b", 1))
    await post(driver, (b"a", 2), (b"a", 3), None, (b"b", 0), (b"b", 2))
    assert kept(driver) == [b"a 1", b"a 2", b"b 1", b"a 3", b"-", b"b 2"]
    assert known(driver, b"a", b"b") == {b"a": 3, b"b": 2}
    assert drivers.memory.posted.used == 0


async def test_a_lower_sequence_is_a_repeated_message_within_one_post_too(drivers: Drivers) -> None:
    driver = await drivers.declare(WEAK)
    await post(driver, (b"a", 5), (b"a", 3), (b"a", 5), (b"b", 3), (b"a", 6), (b"b", (1 << 64) - 1))
    await post(driver, (b"b", 0), (b"a", 4))
    assert kept(driver) == [b"a 5", b"b 3", b"a 6", b"b %d" % ((1 << 64) - 1)]


async def test_posts_of_one_commit(drivers: Drivers) -> None:
    driver = await drivers.declare(STRONG)
    other = await drivers.declare(STRONG, name=b"other")
    confirmations = [
        await to.post(Bodies(bodies_of(origins)), heads, origins)
        for to, heads, origins in (
            (driver, (), [(b"a", 1), (b"a", 2)]),
            (other, (), [(b"a", 1)]),
            (driver, [b"x", b"", b"y", b"z"], [(b"a", 2), (b"a", 3), None, (b"b", 1)]),
            (driver, (), [(b"a", 1), (b"b", 1)]),
            (driver, (), []),
        )
        if origins
    ]
    confirmations.append(await driver.post(Bodies([b"plain"])))
    assert [await failure_of(each) for each in confirmations] == [None] * len(confirmations)
    assert kept(driver) == [b"a 1", b"a 2", b"a 3", b"-", b"b 1", b"plain"]
    assert kept(other) == [b"a 1"]
    heads = [
        head
        for block in driver.environment.read(driver.topic.id, 0)
        for head in block.heads_from(block.first)
    ]
    assert heads == [b"", b"", b"", b"y", b"z", b""]


@PERSISTENT
async def test_sequences_survive_a_restart(tmp_path: Path, persistence: Persistence) -> None:
    for _ in range(3):
        async with opened(tmp_path / "store") as drivers:
            driver = await drivers.declare(persistence)
            await post(driver, (b"a", 1), (b"a", 2))
            assert kept(driver) == [b"a 1", b"a 2"]
    async with opened(tmp_path / "store") as drivers:
        await drivers.catalogue.delete(b"t")
        driver = await drivers.declare(persistence)
        await post(driver, (b"a", 1))
        assert kept(driver) == [b"a 1"]


@pytest.mark.parametrize("level", [Level.WEAK, Level.ASYNC])
async def test_sequences_never_point_past_surviving_messages(tmp_path: Path, level: Level) -> None:
    sync = next(sync for sync, known in LEVELS.items() if known is level)
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(Persistent(sync))
        await post(driver, (b"a", 1), (b"a", 2))
        driver.environment.checkpoint()
        await post(driver, (b"a", 3), (b"b", 1))
        shutil.copytree(tmp_path / "store", tmp_path / "lost")
    async with opened(tmp_path / "lost", boot_id="second") as drivers:
        driver = await drivers.declare(Persistent(sync))
        assert known(driver, b"a", b"b") == {b"a": 2}
        # A producer that was not told that they are durable sends them again, and loses nothing.
        await post(driver, (b"a", 1), (b"a", 2), (b"a", 3), (b"b", 1))
        blocks = driver.environment.read(driver.topic.id, 0)
        bodies = [bytes(frame[FRAME_HEADER:]) for block in blocks for frame in block.slices(block.first)]
        assert bodies == [b"a 1", b"a 2", b"a 3", b"b 1"]


def failing(times: int, after: threading.Event | None = None) -> Callable[..., object]:
    """Return an `append` that finds no room N (`times`) times, when `after` is set."""
    append = Environment.append
    left = times

    def fail_at_first(self: Environment, blocks: Sequence[Block], *sequences: Any) -> object:
        nonlocal left
        if left:
            left -= 1
            assert after is None or after.wait(60)
            raise StoreFull(Limit.DISK, "There is no room on disk.")
        return append(self, blocks, *sequences)

    return fail_at_first


async def test_posts_behind_a_failed_one_fail_and_can_be_sent_again(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await drivers.declare(WEAK)
    await post(driver, (b"a", 1))
    posted = threading.Event()
    monkeypatch.setattr(Environment, "append", failing(times=1, after=posted))
    first = await driver.post(Bodies([b"a 2"]), origins=[(b"a", 2)])
    await trio.testing.wait_all_tasks_blocked()  # its commit is under way
    later = await driver.post(Bodies([b"a 3"]), origins=[(b"a", 3)])
    plain = await driver.post(Bodies([b"plain"]))
    posted.set()
    assert [await failure_of(each) for each in (first, later, plain)] == ["the disk is full", LATE.text, None]
    await post(driver, (b"a", 2), (b"a", 3))
    assert kept(driver) == [b"a 1", b"plain", b"a 2", b"a 3"]
    assert drivers.memory.posted.used == 0


def gated(*gates: threading.Event) -> Callable[..., object]:
    """Return an `append` that waits for one of these before each commit, and finds no room the first time."""
    append = Environment.append
    left = list(gates)

    def wait(self: Environment, blocks: Sequence[Block], *sequences: Any) -> object:
        if left:
            assert left.pop(0).wait(60)
            if len(left) == len(gates) - 1:
                raise StoreFull(Limit.DISK, "There is no room on disk.")
        return append(self, blocks, *sequences)

    return wait


def offer(driver: Driver, *origins: Origin | None) -> Confirmation:
    """Post messages with these origins, for which there is room."""
    offered = driver.offer(Bodies(bodies_of(origins)), origins=origins)
    assert isinstance(offered, Confirmation)
    return offered


async def test_a_producer_does_not_fail_with_another_one(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher of the other one does not know of any failure, and may publish more at once."""
    driver = await drivers.declare(WEAK)
    posted = threading.Event()
    monkeypatch.setattr(Environment, "append", gated(posted))
    failed = offer(driver, (b"a", 1))
    await trio.testing.wait_all_tasks_blocked()  # its commit is under way
    others = [offer(driver, (b"b", 1))]
    failed.listen(lambda: others.append(offer(driver, (b"b", 2))))
    posted.set()
    assert [await failure_of(failed), *[await failure_of(each) for each in others]] == [
        "the disk is full",
        None,
        None,
    ]
    await post(driver, (b"a", 1), (b"b", 1), (b"b", 2))
    assert kept(driver) == [b"b 1", b"b 2", b"a 1"]


async def test_posts_behind_one_that_failed_because_it_was_late_fail_too(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their producer is another one than that of the first failure. They were made before their publisher
    learnt that the late one failed: before its commit, and during it.
    """
    driver = await drivers.declare(WEAK)
    gates = [threading.Event(), threading.Event()]
    monkeypatch.setattr(Environment, "append", gated(*gates))
    failed = offer(driver, (b"a", 1))
    await trio.testing.wait_all_tasks_blocked()
    late = offer(driver, (b"a", 2), (b"b", 1))
    plain = offer(driver, None)
    behind: list[Confirmation] = []
    failed.listen(lambda: behind.append(offer(driver, (b"b", 2))))
    gates[0].set()
    await settled(failed)
    await trio.testing.wait_all_tasks_blocked()  # the commit of the plain one is under way
    assert not late.settled
    behind.append(offer(driver, (b"b", 3)))
    gates[1].set()
    outcomes = [await failure_of(each) for each in (plain, late, *behind)]
    assert outcomes == [None, LATE.text, LATE.text, LATE.text]
    await post(driver, (b"a", 1), (b"a", 2), (b"b", 1), (b"b", 2), (b"b", 3))
    assert kept(driver) == [b"-", b"a 1", b"a 2", b"b 1", b"b 2", b"b 3"]
    assert drivers.memory.posted.used == 0


async def test_an_upload_fails_behind_a_post_that_fails_while_its_last_octets_are_written(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await drivers.declare(WEAK)
    posted = threading.Event()
    monkeypatch.setattr(Environment, "append", gated(posted))
    failed = offer(driver, (b"a", 1))
    await trio.testing.wait_all_tasks_blocked()  # its commit is under way
    uploaded: list[Confirmation] = []
    uploads = [await StoredUpload.begin(driver) for _ in range(2)]
    for upload in uploads:
        await upload.add(b"a 2")

    async def post_upload(upload: StoredUpload) -> None:
        uploaded.append(await upload.post(b"", (b"a", 2)))
        upload.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(post_upload, uploads[0])
        await trio.testing.wait_all_tasks_blocked()  # it waits for the end of that commit
        posted.set()
    assert [await failure_of(each) for each in (failed, *uploaded)] == ["the disk is full", LATE.text]
    await post(driver, (b"a", 1))
    await post_upload(uploads[1])
    assert await failure_of(uploaded[1]) is None
    assert driver.next_id == 3


async def test_one_topic_does_not_fail_the_sequences_of_another(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = [await drivers.declare(STRONG, name=name) for name in (b"one", b"two")]
    monkeypatch.setattr(Environment, "append", failing(times=2))  # both together, then the first alone
    confirmations = [await driver.post(Bodies([b"a 1"]), origins=[(b"a", 1)]) for driver in (one, two)]
    assert [await failure_of(each) for each in confirmations] == ["the disk is full", None]
    assert [known(driver, b"a") for driver in (one, two)] == [{}, {b"a": 1}]
    await post(one, (b"a", 1))
    await post(two, (b"a", 1))
    assert kept(one) == kept(two) == [b"a 1"]


async def test_sequences_that_cannot_be_read_fail_the_posts_that_need_them(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await drivers.declare(WEAK)

    def damaged(self: Environment, topic: int, producers: object) -> dict[bytes, int]:
        raise StoreError("The record of the producers is damaged.")

    monkeypatch.setattr(Environment, "sequences", damaged)
    confirmation = await driver.post(Bodies([b"a 1"]), origins=[(b"a", 1)])
    assert await failure_of(confirmation) == "the store failed, the server's log has more"
    assert await failure_of(await driver.post(Bodies([b"plain"]))) is None


@DELIVERY
async def test_a_transient_topic_remembers_while_it_runs(drivers: Drivers, delivery: Delivery) -> None:
    driver = await drivers.declare(Transient(), delivery)
    other = await drivers.declare(Transient(), delivery, name=b"other")
    channel = driver.open(Listener(), FromCurrent())
    await post(driver, (b"a", 1), (b"a", 2), (b"b", 1))
    await post(driver, (b"a", 2), (b"b", 1))
    await post(driver, (b"a", 3), None, (b"a", 1))
    await post(other, (b"a", 1))
    assert (driver.next_id, other.next_id) == (6, 2)
    await trio.testing.wait_all_tasks_blocked()
    frames = b""
    while channel.ready():
        taken = await channel.take()
        assert isinstance(taken, TakenMessages)
        frames += b"".join(selection.frames() for selection in taken.selections)
        channel.written(sum(len(selection.ids) for selection in taken.selections))
    bodies = [b"a 1", b"a 2", b"b 1", b"a 3", b"-"]
    assert len(frames) == sum(map(len, bodies)) + FRAME_HEADER * len(bodies)
    assert all(body in frames for body in bodies)
    # The waiting messages, and only those, are held.
    held = other.info().bytes if delivery is Delivery.ROUND_ROBIN else 0
    assert drivers.memory.waiting.used == held
    assert len(drivers.memory.sequences) == 3


async def test_heads_of_a_transient_topic_are_held_and_given_back(drivers: Drivers) -> None:
    driver = await drivers.declare(Transient(), Delivery.ROUND_ROBIN)
    await driver.post(Bodies([b"body"] * 2), [b"head", b""])
    assert drivers.memory.waiting.used == driver.info().bytes == 2 * (FRAME_HEADER + 4) + 4
    channel = driver.open(Listener(), FromCurrent())
    await trio.testing.wait_all_tasks_blocked()
    taken = await channel.take()
    assert isinstance(taken, TakenMessages)
    channel.written(sum(len(selection.ids) for selection in taken.selections))
    assert drivers.memory.waiting.used == 0


@pytest.mark.parametrize("persistence", [Transient(), WEAK], ids=str)
async def test_a_wrong_number_of_heads_or_origins(drivers: Drivers, persistence: Persistence) -> None:
    driver = await drivers.declare(persistence)
    with pytest.raises(ValueError, match="1 heads for 2 messages"):
        await driver.post(Bodies([b"a", b"b"]), [b"head"])
    with pytest.raises(ValueError, match="3 origins for 2 messages"):
        await driver.post(Bodies([b"a", b"b"]), origins=[None] * 3)
    assert driver.next_id == 1


some_origins = st.lists(
    st.none() | st.tuples(st.sampled_from([b"a", b"b", b""]), st.integers(0, 6)), max_size=30
)


@given(some_origins, st.booleans(), st.dictionaries(st.sampled_from([b"a", b"b"]), st.integers(0, 4)))
def test_without_repeated_leaves_rising_numbers_of_each_producer(
    origins: list[Origin | None], headed: bool, before: dict[bytes, int]
) -> None:
    bodies = [b"%d" % index for index in range(len(origins))]
    heads = [b"head " + body for body in bodies] if headed else []
    last = dict(before)
    batch, new_heads = without_repeated(Bodies(bodies), heads, origins, last)
    new = batch.bodies()
    assert new_heads == ([b"head " + body for body in new] if headed else [])
    left = set(map(int, new))
    highest = dict(before)
    for index, origin in enumerate(origins):
        is_new = origin is None or origin[1] > highest.get(origin[0], -1)
        assert (index in left) == is_new
        if origin is not None and is_new:
            highest[origin[0]] = origin[1]
    assert last == highest


def test_the_memory_for_producers_of_transient_topics_is_bounded() -> None:
    recent = RecentSequences(3)
    recent.keep(1, {b"a": 1, b"b": 2})
    recent.keep(2, {b"a": 3})
    recent.keep(1, {b"a": 4})
    recent.keep(2, {b"b": 5})
    assert recent.last(1, [b"a", b"b", b"c"]) == {b"a": 4}
    assert recent.last(2, [b"a", b"b"]) == {b"a": 3, b"b": 5}
    assert len(recent) == 3
