"""The size of one commit: nobody waits for more than a few commits, whatever others have posted."""

import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from counted_steps import counted_calls, watched
from hypothesis import given
from hypothesis import strategies as st
from served_drivers import opened

from omq.config import Config
from omq.drivers import slices
from omq.drivers.catalogue import Catalogue
from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.memory import Memory
from omq.drivers.post_queue import GROUP_OCTETS, GROUP_POSTS, GROUP_PRODUCERS, CommitGroup, PostQueue
from omq.drivers.posts import Post
from omq.drivers.producers import TopicProducers
from omq.drivers.routed import RoutedPost
from omq.drivers.topic_commit import TopicCommit
from omq.drivers.writer import TOPICS_SETTLED_IN_TURN
from omq.model import Delivery, Persistent, Sync, Topic
from omq_storage import codec
from omq_storage.batches import Bodies
from omq_storage.blocks import Block
from omq_storage.records import Extent
from omq_storage.store import Store

PRODUCERS = 700
"""Of one post: no bound is a multiple of it."""


@asynccontextmanager
async def topics(path: Path, sync: Sync, names: Sequence[bytes]) -> AsyncIterator[list[Driver]]:
    """Yield topics of a level, with their writers."""
    with Store.open(path, map_size=1 << 28) as store:
        async with trio.open_nursery() as nursery:
            catalogue = Catalogue(Config(store=str(path)), store, Memory(1 << 26), nursery)
            for writer in catalogue.writers.values():
                nursery.start_soon(writer.run)
            await catalogue.open_stored()
            yield [await catalogue.declare(name, Delivery.BROADCAST, Persistent(sync)) for name in names]
            for writer in catalogue.writers.values():
                await writer.drain()
            nursery.cancel_scope.cancel()


async def settled(confirmation: Confirmation) -> None:
    event = trio.Event()
    confirmation.listen(event.set)
    with trio.fail_after(60):
        await event.wait()
    assert confirmation.failure is None


@pytest.mark.parametrize("sync", Sync)
async def test_a_writer_has_drained_when_everything_is_settled(tmp_path: Path, sync: Sync) -> None:
    async with topics(tmp_path, sync, [b"busy", b"other"]) as (busy, _):
        assert busy.writer is not None
        for number in range(1, 4):
            confirmation = await busy.post(Bodies([b"x"]))
            await busy.writer.drain()
            assert busy.info().messages == number
            assert confirmation.settled


@pytest.mark.parametrize("sync", Sync)
async def test_another_topic_waits_for_few_commits(tmp_path: Path, sync: Sync) -> None:
    async with topics(tmp_path, sync, [b"busy", b"other"]) as (busy, other):

        def stored() -> tuple[int, int]:
            """Return the number of commits so far, and that of the messages in them."""
            return busy.environment.usage().transaction - first, busy.next_id - 1

        first = busy.environment.usage().transaction
        posts = []
        for number in range(0, 40 * PRODUCERS, PRODUCERS):
            names = [b"producer %d" % name for name in range(number, number + PRODUCERS)]
            posts.append(await busy.post(Bodies(names), origins=[(name, 1) for name in names]))
        before, _ = stored()
        alone = await other.post(Bodies([b"alone"]))
        found: list[tuple[int, int]] = []
        alone.listen(lambda: found.append(stored()))  # at once: the next commit begins afterwards
        await settled(alone)
        ((commits, messages),) = found
        assert commits - before <= 2
        # And while the others go on: the messages stored until then fit into these commits.
        assert messages <= commits * (GROUP_PRODUCERS + PRODUCERS)
        for post in posts:
            await settled(post)
        commits, messages = stored()
        assert messages == 40 * PRODUCERS <= commits * (GROUP_PRODUCERS + PRODUCERS)


@dataclass(eq=False)
class Recipient:
    """A driver, as a queue of posts sees it."""

    topic: Topic = field(default_factory=lambda: Topic(3, b"t"))
    next_id: int = 1
    reserved: int = 1
    deleted: bool = False
    failures: int = 0
    producers: TopicProducers = field(default_factory=TopicProducers)

    async def reserve(self, count: int) -> None:
        raise AssertionError

    def now(self) -> int:
        raise AssertionError

    def stored(self, blocks: Sequence[Block], extent: Extent) -> None:
        raise AssertionError


def post(driver: Recipient, octets: int, producers: int) -> Post:
    names = frozenset(b"%d" % number for number in range(producers))
    return Post(driver, Bodies([b""]), octets, Confirmation(), producers=driver.producers.of_post(names))


def take_all(queue: PostQueue) -> list[list[Post]]:
    groups = []
    while queue.count:
        group = CommitGroup()
        while queue.move_to(group, 7):
            pass
        groups.append(group.posts)
    return groups


sizes = st.tuples(
    st.integers(0, 2),
    st.sampled_from([1, GROUP_OCTETS // 3, GROUP_OCTETS]),
    st.sampled_from([0, 1, GROUP_PRODUCERS // 2, GROUP_PRODUCERS]),
)


@given(st.lists(sizes, max_size=20))
def test_every_post_is_taken_once_and_those_of_a_topic_in_their_order(
    shapes: Sequence[tuple[int, int, int]],
) -> None:
    drivers = [Recipient() for _ in range(3)]
    queue = PostQueue()
    added = [post(drivers[index], octets, producers) for index, octets, producers in shapes]
    for each in added:
        queue.add(each)
    groups = take_all(queue)
    for driver in drivers:
        taken = [each for group in groups for each in group if each.driver is driver]
        wanted = [each for each in added if each.driver is driver]
        assert list(map(id, taken)) == list(map(id, wanted))
    for group in groups:
        assert group
        assert sum(each.octets for each in group[:-1]) < GROUP_OCTETS
        assert sum(len(each.producers) for each in group[:-1]) < GROUP_PRODUCERS
    assert (queue.count, queue.octets, queue.messages) == (0, 0, 0)


def test_one_commit_takes_many_posts() -> None:
    """4 MiB, and the post with which it exceeds that; so a commit with an fsync serves many publishers."""
    queue = PostQueue()
    drivers = [Recipient() for _ in range(100)]
    for driver in drivers:
        queue.add(post(driver, 100_000, 1))
    assert [len(group) for group in take_all(queue)] == [42, 42, 16]


def test_topics_take_turns() -> None:
    busy, other, third = Recipient(), Recipient(), Recipient()
    queue = PostQueue()
    for _ in range(3):
        queue.add(post(busy, 1, GROUP_PRODUCERS))
    queue.add(post(other, GROUP_OCTETS, 0))
    queue.add(post(third, 1, 0))
    queue.add(post(other, 1, 0))
    groups = [[each.driver for each in group] for group in take_all(queue)]
    assert groups == [[busy], [other], [third, busy], [other, busy]]


def test_a_commit_has_a_limited_number_of_posts() -> None:
    queue = PostQueue()
    for _ in range(GROUP_POSTS + 1):
        queue.add(post(Recipient(), 1, 0))
    assert [len(group) for group in take_all(queue)] == [GROUP_POSTS, 1]


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


async def test_other_tasks_have_turns_between_the_topics_of_a_commit(tmp_path: Path) -> None:
    steps = Steps()
    settled_in: Counter[int] = Counter()
    names = [b"topic %d" % number for number in range(3 * TOPICS_SETTLED_IN_TURN // 2)]
    async with topics(tmp_path, Sync.WEAK, names) as drivers:
        confirmations = [await driver.post(Bodies([b"x"])) for driver in drivers]
        trio.lowlevel.add_instrument(steps)
        for confirmation in confirmations:
            confirmation.listen(lambda: settled_in.update([steps.number]))
        for confirmation in confirmations:
            await settled(confirmation)
        trio.lowlevel.remove_instrument(steps)
    assert settled_in.total() == len(names)
    assert max(settled_in.values()) <= TOPICS_SETTLED_IN_TURN
    assert len(settled_in) < 10  # and not a turn for each topic


async def test_the_posts_of_many_topics_are_committed_in_short_steps(tmp_path: Path) -> None:
    names = [b"topic %d" % number for number in range(500)]
    async with topics(tmp_path, Sync.WEAK, names) as drivers:
        for confirmation in [await driver.post(Bodies([b"x"])) for driver in drivers]:
            await settled(confirmation)  # they have ids for more then
        confirmations = [await driver.post(Bodies([b"x"])) for driver in drivers]
        with counted_calls() as calls:
            for confirmation in confirmations:
                await settled(confirmation)
            assert drivers[0].writer is not None
            await drivers[0].writer.drain()
        assert calls.total > 30 * len(names)
        assert calls.longest < 2500


def parts_of_commits() -> int:
    """Return the number of the parts of commits that are in memory."""
    return sum(isinstance(each, TopicCommit) for each in gc.get_objects())


@pytest.fixture
def few_objects() -> Iterator[None]:
    """Hide the objects of other tests from `gc.get_objects`: they may be hundreds of thousands."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_objects")
async def test_the_parts_of_a_commit_are_freed_in_turn_with_other_tasks(tmp_path: Path) -> None:
    names = [b"topic %d" % number for number in range(4 * TOPICS_SETTLED_IN_TURN)]
    async with topics(tmp_path, Sync.WEAK, names) as drivers:
        for confirmation in [await driver.post(Bodies([b"x"])) for driver in drivers]:
            await settled(confirmation)
        confirmations = [await driver.post(Bodies([b"x"])) for driver in drivers]
        with watched(parts_of_commits) as parts:
            for confirmation in confirmations:
                await settled(confirmation)
            assert drivers[0].writer is not None
            await drivers[0].writer.drain()
    assert max(parts.all) == len(names)
    assert 0 < parts.largest_fall() <= TOPICS_SETTLED_IN_TURN


async def test_many_topics_are_made_in_short_steps(tmp_path: Path) -> None:
    names = [b"topic %d" % number for number in range(100)]
    async with opened(tmp_path) as drivers:
        with counted_calls() as calls:
            async with trio.open_nursery() as nursery:  # steps of another task count
                nursery.start_soon(
                    drivers.catalogue.make, names, Delivery.ROUND_ROBIN, Persistent(Sync.WEAK), None
                )
        assert calls.total > 60 * len(names)
        assert calls.longest < 1500


async def test_many_names_are_looked_up_in_turn_with_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [b"topic %d" % number for number in range(100)]
    async with opened(tmp_path) as drivers:
        await drivers.catalogue.make(names, Delivery.ROUND_ROBIN, Persistent(Sync.WEAK), None)
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1.0)
        with watched(lambda: 0) as steps:
            await drivers.catalogue.make(names, Delivery.ROUND_ROBIN, Persistent(Sync.WEAK), None)
    assert len(steps.all) > len(names)


async def test_new_names_are_admitted_in_turn_with_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [b"topic %d" % number for number in range(100)]
    admitted = 0

    def admit(name: bytes) -> Callable[[], None]:
        nonlocal admitted
        admitted += 1
        return lambda: None

    async with opened(tmp_path) as drivers:
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1.0)
        with watched(lambda: admitted) as numbers:
            await drivers.catalogue.make(names, Delivery.ROUND_ROBIN, Persistent(Sync.WEAK), admit)
    assert admitted == len(names)
    assert numbers.largest_rise() == 1


async def test_the_ids_of_many_topics_are_reserved_in_short_steps(tmp_path: Path) -> None:
    names = [b"topic %d" % number for number in range(1000)]
    async with opened(tmp_path) as drivers:
        catalogue = drivers.catalogue
        await catalogue.make(names, Delivery.BROADCAST, Persistent(Sync.WEAK), None)
        counts = dict.fromkeys(catalogue, 10)
        with counted_calls() as calls:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(catalogue.ids.reserve, counts)
        assert len(counts) == len(names)
        assert all(driver.has_ids(10) for driver in counts)
        assert calls.total > 10 * len(names)
        assert calls.longest < 1500


async def test_the_first_posts_of_many_topics_are_committed_in_short_steps(tmp_path: Path) -> None:
    names = [b"topic %d" % number for number in range(1000)]
    async with opened(tmp_path) as drivers:
        catalogue = drivers.catalogue
        await catalogue.make(names, Delivery.BROADCAST, Persistent(Sync.WEAK), None)
        every = list(catalogue)
        confirmations = [await driver.post(Bodies([b"x"])) for driver in every]
        with counted_calls() as calls:
            for confirmation in confirmations:
                await settled(confirmation)
        assert len(every) == len(names)
        assert calls.longest < 2500


class OpenRoutes(trio.abc.Instrument):
    """Notes after each step of a task how many topics may be routed."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self.counts: list[int] = []
        self._drivers = drivers

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        count = sum(driver.route.is_open for driver in self._drivers)
        if self.counts[-1:] != [count]:
            self.counts.append(count)


@pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")
async def test_other_tasks_have_turns_while_the_topics_of_a_commit_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omq.drivers.writer.TOPICS_SETTLED_IN_TURN", 8)
    names = [b"topic %d" % number for number in range(28)]
    async with topics(tmp_path, Sync.WEAK, names) as drivers:
        for confirmation in [await driver.post(Bodies([b"x"])) for driver in drivers]:
            await settled(confirmation)
        routes = OpenRoutes(drivers)
        trio.lowlevel.add_instrument(routes)
        for confirmation in [await driver.post(Bodies([b"x"])) for driver in drivers]:
            await settled(confirmation)
        assert drivers[0].writer is not None
        await drivers[0].writer.drain()
        trio.lowlevel.remove_instrument(routes)
    assert routes.counts[-5:] == [0, 7, 15, 23, 28]


@pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")
async def test_other_tasks_have_turns_between_the_routed_posts_of_a_commit(tmp_path: Path) -> None:
    steps = Steps()
    settled_in: Counter[int] = Counter()
    async with topics(tmp_path, Sync.WEAK, [b"busy"]) as (busy,):
        assert busy.writer is not None
        line = b'(Publish busy "x")\n'
        trio.lowlevel.add_instrument(steps)
        posts = []
        for _ in range(3 * TOPICS_SETTLED_IN_TURN // 2):
            passed = codec.native.Pass(codec.native.Routes({b"busy": busy.route}), None, 100, 100)
            codec.native.deal_lines(line, 0, len(line), passed)
            ((_, part),) = passed.parts
            posts.append(RoutedPost(part))
            busy.resources.memory.posted.force(part.held)
            busy.writer.submit_routed(posts[-1])
            posts[-1].confirmation.listen(lambda: settled_in.update([steps.number]))
        for routed in posts:
            await settled(routed.confirmation)
        trio.lowlevel.remove_instrument(steps)
    assert settled_in.total() == len(posts)
    assert max(settled_in.values()) <= TOPICS_SETTLED_IN_TURN
