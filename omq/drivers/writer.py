"""The group commit: one writer per sync level (docs/ARCHITECTURE.md, "A message from socket to socket").

Posts that arrive during a commit wait and form the next one, or several if they are many, with those that
soon follow (`omq.drivers.gathering`). A commit takes what the queue of posts gives it
(`omq.drivers.post_queue`).

The writer assigns ids just before it writes a block: a commit that fails has used none, so ids stay
consecutive.
"""

import logging
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from omq.drivers.budget import Budget
from omq.drivers.changed_positions import ChangedPositions
from omq.drivers.fragment_commits import FragmentCommits
from omq.drivers.gathering import Gathering
from omq.drivers.histogram import Histogram
from omq.drivers.immediate_sends import ImmediateSends
from omq.drivers.post_queue import POSTS_IN_TURN, PostQueue
from omq.drivers.posts import LATE, Post, RoutedDriver, StoredDriver, StoredValue
from omq.drivers.problems import DEFECT, for_clients, logged
from omq.drivers.push import MOST_STORED_WORK, Pushes
from omq.drivers.reasons import Failure
from omq.drivers.reservations import Numbered, Reservations
from omq.drivers.routed import RoutedPost, RoutedQueue, assign_ids, commit_of
from omq.drivers.seam import TAKE_OCTETS
from omq.drivers.signal import Signal
from omq.drivers.slices import SLICE_SECONDS
from omq.drivers.statistics import WriterStatistics
from omq.drivers.topic_commit import TopicCommit, topic_commit
from omq.logs import LogThrottle, quoted
from omq.threads import CallsInThread, in_thread
from omq_storage.blocks import Block
from omq_storage.environment import Environment, Extent
from omq_storage.errors import StoreError, StoreFull
from omq_storage.fragments import Fragmented

if TYPE_CHECKING:
    from omq_storage._codec import StoreCommit, StorePart

TOPICS_IN_TURN = 12
"""The number of topics whose blocks are made from posts, or become available to subscribers, after which the
other tasks of the server have a turn.
"""

ROUTED_IN_STEP = 4
"""The number of topics of a routed commit after which the time is looked at. One without subscribers takes
less than a microsecond, and one that is pushed to 64 of them a tenth of a millisecond or more.
"""

MESSAGES_OF_TOPIC = 64
"""The number of messages that are as much work as one more topic."""

TOPICS_SETTLED_IN_TURN = 128
"""The number of settled topics, or routed posts, after which the other tasks of the server have a turn.
Settling is quick, and each turn wakes publishers.
"""

SENT_TOGETHER_OCTETS = TAKE_OCTETS // 2
"""The octets of the messages of several topics at which they are sent. So a topic with as many can follow,
and a connection gets no more than TAKE_OCTETS before its rate limit is looked at again.
"""

log = logging.getLogger("omq.writer")

T = TypeVar("T")
Failures = dict[StoredDriver, Failure]


class Writer:
    """The only writer of messages of one environment; `run` is its task."""

    def __init__(
        self, environment: Environment, budget: Budget, ids: Reservations, at_once: ImmediateSends
    ) -> None:
        self.environment = environment
        self.refusal: Failure | None = None
        """The reason why posts are refused now (the disk's reserve is reached); None otherwise."""
        self.was_full = False
        """Whether a commit found no room since the last round of housekeeping."""
        self.checkpoint_due = Signal()
        """Set after a commit, if a checkpoint would free the journal of the level."""
        self._is_checkpoint_due = False
        self.changed_positions = ChangedPositions()
        self._budget = budget
        self._ids = ids
        self._at_once = at_once
        self._problems = LogThrottle.of_problem(log, "cannot store")
        self._defects = LogThrottle.of_problem(log, "a post failed by a defect of the server")
        self._unsent = LogThrottle.of_problem(log, "messages were not sent by a defect of the server")
        self._posts = PostQueue()
        self._gathering = Gathering()
        self.routed = RoutedQueue(budget.limit, self)
        """The messages that were routed from lines, and wait."""
        self._wanted = trio.Event()
        """Set when posts wait."""
        self._lock = trio.Lock()
        self._idle = trio.Event()
        self._idle.set()
        self._commits = 0
        self._commit_seconds = 0.0
        self._last_commit_seconds = 0.0
        self._messages = 0
        self._octets = 0
        self._failures = 0
        self._commit_times = Histogram()
        self._checkpoint_times = Histogram()
        self._began: float | None = None  # the current commit
        self._in_thread: CallsInThread  # while it runs
        self._trouble: Failure | None = None
        self._checkpoint_trouble: Failure | None = None
        self.fragments = FragmentCommits(self, self._lock)
        """Stores the bodies of large messages as they arrive."""

    def statistics(self) -> WriterStatistics:
        """Return a snapshot of the waiting posts, and of the messages stored so far."""
        return WriterStatistics(
            level=self.environment.level,
            waiting_posts=self._posts.count + len(self.routed.posts),
            waiting_octets=self._posts.octets + sum(post.held for post in self.routed.posts),
            commits=self._commits,
            commit_seconds=self._commit_seconds,
            last_commit_seconds=self._last_commit_seconds,
            messages=self._messages,
            octets=self._octets,
            failures=self._failures,
            refusal=self.refusal,
            commit_times=self._commit_times.snapshot(),
            checkpoint_times=self._checkpoint_times.snapshot(),
            committing_seconds=0.0 if self._began is None else time.perf_counter() - self._began,
            trouble=self._trouble or self._checkpoint_trouble,
        )

    def submit(self, post: Post) -> None:
        """Queue a post. Its octets are taken from the budget, which limits the queue."""
        # Routed messages are committed before the posts that wait, so nothing may be routed after this post.
        post.driver.allow_routing(False)
        self._posts.add(post)
        self._want()

    def submit_routed(self, post: RoutedPost) -> None:
        """Queue messages that were routed from lines. Their octets are taken from the budget, too; the lane
        limits them to those of one commit.
        """
        self.routed.posts.append(post)
        self._want()

    def _want(self) -> None:
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wanted.set()

    async def drain(self) -> None:
        """Wait until all submitted posts are settled."""
        await self._idle.wait()

    async def call(self, function: Callable[[], T]) -> T:
        """Run a writing call of the environment between commits, in a thread."""
        async with self._lock:
            return await in_thread(function)

    def log_failure(self, problem: Exception) -> Failure:
        """Log the reason why a part of a large message was not stored, and return the failure for its
        publisher.
        """
        return logged(problem, self._problems, self._defects)

    async def checkpoint(self) -> None:
        """Make everything that was written so far durable. Raises StoreError."""
        began = time.perf_counter()
        try:
            await in_thread(self.environment.checkpoint)
        except StoreError as problem:
            self._checkpoint_trouble = for_clients(problem)
            raise
        self._checkpoint_trouble = None
        self._checkpoint_times.observe(time.perf_counter() - began)

    async def recover(self) -> None:
        """Find out whether the problem of the last commit or checkpoint is over, if there was one. Otherwise
        nothing would, while no client publishes to this level. A problem that persists is in the log.
        """
        if self.refusal is not None:
            return
        if self._checkpoint_trouble is not None:
            with suppress(StoreError):
                await self.checkpoint()
        if self._trouble is not None:
            try:
                await self.call(self.environment.try_storing)
            except StoreFull:
                self.was_full = True  # a checkpoint may make room
            except StoreError:
                pass  # as before
            else:
                self._trouble = None

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that stops the writer during its block."""
        return self._lock

    async def run(self) -> None:
        """Commit the submitted posts, group after group, until cancelled."""
        with closing(CallsInThread()) as self._in_thread:
            while True:
                await self._wanted.wait()
                while self.routed.posts or self._posts.count:
                    await self._commit_next()
                self._wanted = trio.Event()
                self._idle.set()

    async def _commit_next(self) -> None:
        """Commit everything that was routed, then the posts that wait, within the limits of a group. `run`
        must not keep the posts while it waits for others: a topic that is deleted meanwhile would stay in
        memory.

        Take the posts first: each post stops the routing of its topic, so what is routed by now came before
        the posts of this group. Messages that were routed during an earlier commit, and posts after them, may
        both wait by now.
        """
        if self._posts.count and not self.routed.posts and self._gathering.lacks(self._posts):
            await self._gathering.gather(self._posts)
        group = await self._posts.next_group() if self._posts.count else []
        if self.routed.posts:
            if not group:
                await self.routed.collect()
            await self._commit_routed()
        if group:
            await self._commit(group)
        # Each post is freed in its turn: thousands at once would take long.
        group.reverse()
        for number in range(1, len(group) + 1):
            if not number % TOPICS_SETTLED_IN_TURN:
                await trio.lowlevel.cancel_shielded_checkpoint()
            driver = group.pop().driver
            if not self._posts.has(driver):
                driver.allow_routing(True)

    async def _commit_routed(self) -> None:
        """Commit all routed messages together; topic by topic if that is not possible."""
        routed = self.routed.take()
        parts = [post.take() for post in routed]
        if await self._append_routed(parts):
            for begin in range(0, len(routed), TOPICS_SETTLED_IN_TURN):
                if begin:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                with self._at_once:
                    for post in routed[begin : begin + TOPICS_SETTLED_IN_TURN]:
                        self._budget.give(post.held)
                        post.confirmation.settle()
                self._at_once.send()
            return
        for post, part in zip(routed, parts, strict=True):
            posts = []
            work = 0
            for each in post.divided(part):
                work = await _take_turns(work, each.batch.count)
                self._budget.force(each.octets)
                posts.append(each)
            self._budget.give(post.held)
            await self._commit(posts)

    async def _append_routed(self, parts: list["StorePart"]) -> bool:
        """Store these parts in one transaction; return False if nothing was stored."""
        commit = await commit_of(parts)
        await self._acquire()
        try:
            if self.refusal is not None or not await assign_ids(commit, self._ids):
                return False
            began = self._began = time.perf_counter()
            try:
                await self._in_thread.call(partial(self._store_routed, commit))
            except StoreError as problem:
                self._problems.add(problem)
                return False
            except Exception:  # noqa: BLE001 - logged; the messages are committed topic by topic
                self._defects.add(traceback.format_exc(chain=False))
                return False
            finally:
                self._began = None
            self.routed.seconds = time.perf_counter() - began
            self._count(commit.messages, commit.octets, self.routed.seconds)
            begin = self._deliver_some(commit, 0)
            while begin < len(commit):
                await trio.lowlevel.cancel_shielded_checkpoint()
                begin = self._deliver_some(commit, begin)
        finally:
            self._lock.release()
        return True

    async def _acquire(self) -> None:
        """Acquire the lock, at once if it is free. `async with` waits for the next round of the scheduler
        even then, and makes the commit of a single message that much longer.
        """
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    def _store_routed(self, commit: "StoreCommit") -> None:
        began = time.perf_counter()
        self.environment.append_commit(commit)
        self._observe(began)

    def _deliver_some(self, commit: "StoreCommit", begin: int) -> int:
        """Pass the stored blocks of topics with subscribers to their drivers: of the topics from the place
        `begin` on, as many as a step has time for. Return the place of the next one.
        """
        pushes = Pushes()
        until = time.perf_counter() + SLICE_SECONDS
        while begin < len(commit) and pushes.work < MOST_STORED_WORK // 2 and time.perf_counter() < until:
            for driver, first, values in commit.stored(begin, begin + ROUTED_IN_STEP):
                self._deliver_routed(driver, first, values, pushes)
                if pushes.octets >= SENT_TOGETHER_OCTETS:
                    self._send(pushes)
            begin += ROUTED_IN_STEP
        self._send(pushes)
        return begin

    def _deliver_routed(
        self, driver: RoutedDriver, first: int, values: Sequence[StoredValue], pushes: Pushes
    ) -> None:
        """Pass the stored blocks to a driver with subscribers."""
        try:
            driver.routed(first, values, pushes)
        except Exception:  # noqa: BLE001 - they are stored and confirmed; this task continues
            self._log_exception(driver)

    async def _commit(self, group: Sequence[Post]) -> None:
        """Store a group of posts and settle each of them in any case.

        If a post raises an exception that no store raises, the posts of its topic are committed again one by
        one: it alone fails, and neither the others nor this task.
        """
        for post in await self._commit_at_once(group):
            for failing in await self._commit_at_once([post]):
                self._failures += 1
                failing.driver.failures += 1
                self._settle(failing, DEFECT)

    async def _commit_at_once(self, group: Sequence[Post]) -> list[Post]:
        """Store a group of posts and settle them, except those of drivers with a defective post. These are
        returned in order, and none of them is stored.
        """
        posts_of: dict[StoredDriver, list[Post]] = {}
        counts: Counter[StoredDriver] = Counter()
        late: list[Post] = []
        for number, post in enumerate(group, 1):
            if not number % POSTS_IN_TURN:
                await trio.lowlevel.cancel_shielded_checkpoint()
            if post.producers and post.producers.are_late():
                post.producers.fail()  # for the posts behind it in this group; `_settle` calls it again
                late.append(post)
            else:
                posts_of.setdefault(post.driver, []).append(post)
                counts[post.driver] += post.batch.count
        failures: Failures = {}
        defective: set[StoredDriver] = set()
        portions: dict[StoredDriver, TopicCommit] = {}
        await self._acquire()
        try:
            refusal = self.refusal
            if refusal is not None:
                await trio.lowlevel.cancel_shielded_checkpoint()  # when there may be room again
                failures = dict.fromkeys(posts_of, refusal)
            else:
                failures = await self._reserve(counts, defective)
            # From here on no topic of the group can lose its blocks: a deletion waits for this lock.
            work = 0
            for driver, posts in posts_of.items():
                work = await _take_turns(work, counts[driver])
                if driver.deleted:
                    failures[driver] = driver.gone
                if driver in failures or driver in defective:
                    continue
                try:
                    portion = await topic_commit(driver, posts, self.environment)
                except StoreError as problem:
                    self._problems.add(problem)
                    failures[driver] = for_clients(problem)
                except Exception:  # noqa: BLE001 - logged; the posts of other topics continue
                    self._log_defect(driver, defective)
                else:
                    if portion.blocks:  # else every message was repeated
                        portions[driver] = portion
            if portions:
                failures |= await self._append(portions, defective)
        finally:
            self._lock.release()
        for post in late:
            self._settle(post, LATE)
        unsettled: list[Post] = []
        # The posts and blocks of each topic are freed in its turn: thousands at once would take long.
        drivers = list(posts_of)
        for begin in range(0, len(drivers), TOPICS_SETTLED_IN_TURN):
            if begin:
                await trio.lowlevel.cancel_shielded_checkpoint()
            with self._at_once:
                for driver in drivers[begin : begin + TOPICS_SETTLED_IN_TURN]:
                    posts, failure = posts_of.pop(driver), failures.get(driver)
                    portions.pop(driver, None)
                    if failure is not None:
                        self._failures += 1
                        driver.failures += 1
                    if driver in defective:
                        unsettled += posts
                        continue
                    for post in posts:
                        self._settle(post, failure)
            self._at_once.send()
        return unsettled

    def _log_defect(self, driver: StoredDriver, defective: set[StoredDriver]) -> None:
        """Log the exception that is being handled, which posts of this driver raised."""
        self._log_exception(driver)
        defective.add(driver)

    def _settle(self, post: Post, failure: Failure | None) -> None:
        self._budget.give(post.octets)
        if failure is not None:
            post.producers.fail()
        post.confirmation.settle(failure)

    async def _reserve(self, counts: Mapping[StoredDriver, int], defective: set[StoredDriver]) -> Failures:
        """Reserve ids for all topics that lack some in one commit; if that fails, topic by topic, as in
        `_append`.
        """
        if len(counts) <= TOPICS_SETTLED_IN_TURN and all(
            driver.next_id + count <= driver.reserved for driver, count in counts.items()
        ):
            return {}  # most commits end here, and spend nothing on reservations
        try:
            await self._ids.reserve(counts)
        except Exception as problem:  # noqa: BLE001 - each is a failure of a topic, or told as a defect
            return await self._one_by_one(self._reserve, counts, problem, defective)
        return {}

    async def _one_by_one(
        self,
        attempt: Callable[[Mapping[StoredDriver, T], set[StoredDriver]], Awaitable[Failures]],
        work: Mapping[StoredDriver, T],
        problem: Exception,
        defective: set[StoredDriver],
    ) -> Failures:
        """Attempt the work of each topic alone, because that of all together raised `problem`, which is being
        handled. Return the failures.
        """
        if len(work) == 1:
            return self._failed(work, problem, defective)
        failures: Failures = {}
        for driver, part in work.items():
            failures |= await attempt({driver: part}, defective)
        return failures

    def _failed(
        self, drivers: Iterable[StoredDriver], problem: Exception, defective: set[StoredDriver]
    ) -> Failures:
        """Return the failures of these drivers for an exception that is being handled; none yet if
        it is a defect.
        """
        if isinstance(problem, StoreError):
            self._problems.add(problem)
            self._trouble = for_clients(problem)
            return dict.fromkeys(drivers, self._trouble)
        for driver in drivers:
            self._log_defect(driver, defective)
        return {}

    async def _append(
        self, portions: Mapping[StoredDriver, TopicCommit], defective: set[StoredDriver]
    ) -> Failures:
        """Write all in one transaction; if that fails, topic by topic, so that one topic does not
        fail the others.
        """
        blocks: list[Block | Fragmented] = []
        sequences: dict[int, Mapping[bytes, int]] = {}
        messages = octets = 0
        for number, (driver, portion) in enumerate(portions.items(), 1):
            if not number % TOPICS_SETTLED_IN_TURN:
                await trio.lowlevel.cancel_shielded_checkpoint()
            for block in portion.blocks:
                blocks.append(block)
                messages += block.count
                octets += block.held
            if portion.sequences:
                sequences[driver.topic.id] = portion.sequences
        began = self._began = time.perf_counter()  # real time: a commit waits for a disk
        try:
            extents = await self._in_thread.call(partial(self._store, blocks, sequences))
        except Exception as problem:  # noqa: BLE001 - each is a failure of a topic, or told as a defect
            self.was_full |= isinstance(problem, StoreFull)
            return await self._one_by_one(self._append, portions, problem, defective)
        finally:
            self._began = None
        seconds = time.perf_counter() - began
        self._count(messages, octets, seconds)
        self._gathering.committed(messages, self._posts.messages, seconds)
        work = 0
        pushes = Pushes()
        for driver, portion in portions.items():
            if work >= TOPICS_IN_TURN:
                self._send(pushes)
                pushes = Pushes()
            work = await _take_turns(work, sum(block.count for block in portion.blocks))
            try:
                driver.stored(portion.blocks, extents.pop(driver.topic.id), pushes)
            except Exception:  # noqa: BLE001 - they are stored and confirmed; this task continues
                self._log_exception(driver)
            if pushes.octets >= SENT_TOGETHER_OCTETS:
                self._send(pushes)
        self._send(pushes)
        return {}

    def _send(self, pushes: Pushes) -> None:
        """Send stored messages to the subscribers that have everything before them."""
        try:
            pushes.send()
        except Exception:  # noqa: BLE001 - a defect, which the log shows; this task serves others
            self._unsent.add(traceback.format_exc(chain=False))

    def _log_exception(self, driver: Numbered) -> None:
        """Log the exception that is being handled, which comes from this driver."""
        what = f"{quoted(driver.topic.topic)}\n{traceback.format_exc(chain=False)}"
        self._defects.add(what, topic=driver.topic.topic)

    def _store(
        self, blocks: Sequence[Block | Fragmented], sequences: Mapping[int, Mapping[bytes, int]]
    ) -> dict[int, Extent]:
        """Write blocks in the thread of a commit, which also counts its time."""
        began = time.perf_counter()
        extents = self.environment.append(blocks, sequences)
        self._observe(began)
        return extents

    def _observe(self, began: float) -> None:
        """Note, in the thread of a commit, its time and whether a checkpoint is due."""
        self._commit_times.observe(time.perf_counter() - began)
        self._is_checkpoint_due = self.environment.is_checkpoint_due

    def _count(self, messages: int, octets: int, seconds: float) -> None:
        """Count the messages that a commit stored."""
        self._commits += 1
        self._trouble = None
        self._last_commit_seconds = seconds
        self._commit_seconds += seconds
        self._messages += messages
        self._octets += octets
        if self._is_checkpoint_due:
            self.checkpoint_due.set()


async def _take_turns(work: int, messages: int) -> int:
    """Let the other tasks have a turn now and then, before a topic of a commit with N `messages`. Return the
    work since their last turn. Nothing can cancel a commit there: its posts would never be settled.
    """
    if work >= TOPICS_IN_TURN:
        await trio.lowlevel.cancel_shielded_checkpoint()
        work = 0
    return work + 1 + messages // MESSAGES_OF_TOPIC
