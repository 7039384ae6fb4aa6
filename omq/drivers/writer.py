"""The group commit: one writer per sync level (design, section 6).

Posts that arrive while a commit is under way wait together and become the next commit. Ids are given here,
when a block is about to be written: a commit that fails has used none, so ids stay consecutive.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import trio

from omq.drivers.budget import Budget
from omq.drivers.confirmation import Confirmation
from omq.drivers.problems import for_clients
from omq.drivers.signal import Signal
from omq.protocol.types import Topic
from storage.batches import Batch, joined
from storage.blocks import Block
from storage.environment import Environment
from storage.errors import StoreError, StoreFull

BLOCK_MESSAGES = 4096
BLOCK_OCTETS = 512 << 10
"""Where a block is full: large enough that a scan costs little, small enough to cut and to send at once."""

GROUP_OCTETS = 8 << 20
"""How much one commit takes at the most."""

log = logging.getLogger("omq.writer")

T = TypeVar("T")


class Stored(Protocol):
    """What the writer needs of a driver."""

    topic: Topic
    next_id: int
    deleted: bool

    async def reserve(self, count: int) -> None:
        """See that the next `count` ids may be handed out."""

    def now(self) -> int:
        """Microseconds since the epoch, never going back."""

    def stored(self, block: Block) -> None:
        """`block` is as safe as its topic asks."""


@dataclass(frozen=True, slots=True)
class Post:
    """Messages for one topic, with the octets they hold of the budget."""

    driver: Stored
    batch: Batch
    octets: int
    confirmation: Confirmation


class Writer:
    """Owns the writing side of one environment; `run` is its task."""

    def __init__(self, environment: Environment, budget: Budget) -> None:
        self.environment = environment
        self.refusal: str | None = None
        """Why nothing may be written now (the disk's reserve is reached): the sentence for publishers."""
        self.was_full = False
        """Whether a commit found no room since housekeeping last looked."""
        self._budget = budget
        self._posts: deque[Post] = deque()
        self._signal = Signal()
        self._lock = trio.Lock()
        self._idle = trio.Event()
        self._idle.set()

    def submit(self, post: Post) -> None:
        """Queue a post. Its octets are held in the budget, which bounds the queue."""
        self._posts.append(post)
        if self._idle.is_set():
            self._idle = trio.Event()
        self._signal.set()

    async def drain(self) -> None:
        """Wait until everything submitted is settled."""
        await self._idle.wait()

    async def call(self, function: Callable[[], T]) -> T:
        """Run a writing call of the environment between commits, in a thread."""
        async with self._lock:
            return await trio.to_thread.run_sync(function)

    async def run(self) -> None:
        """Commit what is submitted, group after group, until cancelled."""
        while True:
            await self._signal.wait()
            while self._posts:
                await self._commit(self._take_group())
            self._idle.set()

    def _take_group(self) -> list[Post]:
        group: list[Post] = []
        octets = 0
        while self._posts and octets < GROUP_OCTETS:
            post = self._posts.popleft()
            group.append(post)
            octets += post.octets
        return group

    async def _commit(self, group: list[Post]) -> None:
        posts_of: dict[Stored, list[Post]] = {}
        for post in group:
            posts_of.setdefault(post.driver, []).append(post)
        failures: dict[Stored, str] = {}
        blocks_of: dict[Stored, list[Block]] = {}
        async with self._lock:
            for driver, posts in posts_of.items():
                if self.refusal is not None or driver.deleted:
                    failures[driver] = self.refusal or "the topic was deleted"
                    continue
                try:
                    await driver.reserve(sum(post.batch.count for post in posts))
                except StoreError as problem:
                    log.error("%r: no ids could be reserved: %s", driver.topic.topic, problem)
                    failures[driver] = for_clients(problem)
                    continue
                blocks_of[driver] = blocks_from(driver, posts)
            if blocks_of:
                failures |= await self._append(blocks_of)
        for post in group:
            self._budget.give(post.octets)
            post.confirmation.settle(failures.get(post.driver))

    async def _append(self, blocks_of: dict[Stored, list[Block]]) -> dict[Stored, str]:
        """Write all in one transaction; when that fails, topic by topic: one must not fail the others."""
        try:
            await trio.to_thread.run_sync(
                self.environment.append, [block for blocks in blocks_of.values() for block in blocks]
            )
        except StoreError as problem:
            self.was_full |= isinstance(problem, StoreFull)
            if len(blocks_of) == 1:
                log.error("cannot store: %s", problem)
                return dict.fromkeys(blocks_of, for_clients(problem))
            failures: dict[Stored, str] = {}
            for driver, blocks in blocks_of.items():
                failures |= await self._append({driver: blocks})
            return failures
        for driver, blocks in blocks_of.items():
            for block in blocks:
                driver.stored(block)
        return {}


def blocks_from(driver: Stored, posts: Sequence[Post]) -> list[Block]:
    """The posts' messages as blocks, small posts together, with the next ids of the topic."""
    blocks: list[Block] = []
    batches: list[Batch] = []
    count = octets = 0
    next_id = driver.next_id
    now = driver.now()

    def close() -> None:
        nonlocal next_id, count, octets
        whole = joined(batches)
        for start in range(0, count, BLOCK_MESSAGES):
            part = whole if count <= BLOCK_MESSAGES else whole.part(start, min(count, start + BLOCK_MESSAGES))
            blocks.append(part.encode(driver.topic.id, next_id, now))
            next_id += part.count
        batches.clear()
        count = octets = 0

    for post in posts:
        full = octets + post.octets > BLOCK_OCTETS or count + post.batch.count > BLOCK_MESSAGES
        if batches and full:
            close()
        batches.append(post.batch)
        count += post.batch.count
        octets += post.octets
    close()
    return blocks
