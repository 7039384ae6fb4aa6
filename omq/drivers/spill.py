"""Messages of a transient queue for which the memory has no room: they wait in the environment Async.

A connection that publishes to a queue may be the one that must acknowledge its messages. So it must not wait
until others take some: what does not fit into the memory is written to the disk, and read back when it is
dealt. Nobody needs it after a restart, which deletes it.
"""

import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Protocol

import trio

from omq.drivers.budget import Budget
from omq.drivers.confirmation import CONFIRMED, Confirmation
from omq.drivers.offer import Offered
from omq.drivers.pending_offers import PendingPersistentOffer
from omq.drivers.posts import Post, StoredDriver
from omq.drivers.writer import Writer
from omq.logs import LogThrottle, quoted
from omq_storage.batches import Batch
from omq_storage.environment import Environment
from omq_storage.errors import StoreError

DELETE_SECONDS = 1.0
"""The number of seconds between two deletions of done messages from the disk."""

log = logging.getLogger("omq.spill")


class Spilling(StoredDriver, Protocol):
    """A queue that spills."""

    def first_on_disk(self) -> int:
        """Return an id below which no message is needed from the disk."""


class Spill:
    """The messages of one queue that are on the disk, or on their way there."""

    def __init__(self, queue: Spilling, writer: Writer, budget: Budget) -> None:
        """Create the spill of a queue, where `budget` is the share of the memory for messages on their way
        into a store.
        """
        # Not the queue itself: the two would wait for the garbage collector when the queue is deleted.
        self._weak_queue = weakref.ref(queue)
        self._writer = writer
        self._budget = budget
        self.on_the_way = 0
        """The number of posts that are not stored yet. Later messages must go the same way, to keep the
        order.
        """
        self._last = CONFIRMED
        """The confirmation of the last post."""
        self.numbered = CONFIRMED
        """The confirmation of the last post of idempotent producers. If it succeeds, so have those before it,
        unless their failure is known.
        """
        self._is_deleting = False
        self._problems = LogThrottle.of_problem(
            log,
            f"{quoted(queue.topic.topic)}: messages that are done are still on the disk",
            topic=queue.topic.topic,
        )

    @property
    def _queue(self) -> Spilling:
        queue = self._weak_queue()
        assert queue is not None, "a queue that has gone spills nothing"
        return queue

    @property
    def environment(self) -> Environment:
        """The LMDB environment with the messages."""
        return self._writer.environment

    def offer(self, batch: Batch, heads: Sequence[bytes], octets: int) -> Offered:
        """Write messages to the disk. Only the memory for messages on their way to a store limits them."""
        post = Post(self._queue, batch, octets, Confirmation(), heads)
        if not self._budget.try_take(octets):
            return PendingPersistentOffer(self.submit, self._budget, post)
        self.submit(post)
        return post.confirmation

    def force(
        self,
        batch: Batch,
        heads: Sequence[bytes],
        octets: int,
        producers: AbstractSet[bytes] = frozenset(),
    ) -> Confirmation:
        """Submit a batch as `offer` does, beyond the memory for messages on their way to a store. It has new
        messages of these idempotent `producers`, if any.
        """
        self._budget.force(octets)
        of_post = self._queue.producers.of_post(producers)
        post = Post(self._queue, batch, octets, Confirmation(), heads, producers=of_post)
        self.submit(post)
        if producers:
            self.numbered = post.confirmation
        return post.confirmation

    def submit(self, post: Post) -> None:
        """Write messages whose octets are counted."""
        self.on_the_way += 1
        self._last = post.confirmation
        post.confirmation.listen(self._arrived)
        self._writer.submit(post)

    def _arrived(self) -> None:
        self.on_the_way -= 1

    def when_arrived(self, call: Callable[[], None]) -> None:
        """Call a function when the posts that are on their way now have their ids, and no later one has."""
        self._last.listen(call)

    def keep_deleting(self, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """Delete messages that are done, until none is on the disk. `start` starts a task."""
        if not self._is_deleting:
            self._is_deleting = True
            start(partial(self._delete, self._queue))

    async def _delete(self, queue: Spilling) -> None:
        try:
            deleted_below = 0
            while not queue.deleted:
                await trio.sleep(DELETE_SECONDS)
                first, is_over = queue.first_on_disk(), False
                if first == deleted_below and first != queue.next_id:
                    continue
                try:
                    trim = partial(self.environment.trim, queue.topic.id, first)
                    is_over = not (await self._writer.call(trim)).messages
                except StoreError as problem:
                    self._problems.add(problem)
                    continue
                deleted_below = first
                if is_over and not self.on_the_way and first == queue.first_on_disk() == queue.next_id:
                    return
        finally:
            self._is_deleting = False
