"""Messages of many stored topics that one read has brought: as one post for the writer of their level, which
waits in the queue of that level, and as a part of its next commit.

The compiled codec collects them (`omq_storage.routes`), and makes the stored values of a whole commit at
once. So Python does nothing for a single topic or message. A commit that fails is tried again topic by topic,
as other posts are: only then has each topic a post and an outcome of its own.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import trio

from omq.drivers.confirmation import Confirmation, all_of
from omq.drivers.gathering import while_more_come
from omq.drivers.posts import Post, StoredDriver
from omq.drivers.reasons import DELETED, Failure
from omq.drivers.reservations import Reservations
from omq_storage import codec
from omq_storage.batches import Bodies

if TYPE_CHECKING:
    from omq_storage._codec import StoreCommit, StoreLane, StorePart

ROUTED_OCTETS = 6 << 20
"""The limit of the messages of one commit, in octets. Large commits have more messages for each topic, and
the store takes its time for each topic."""

ROUTED_MESSAGES = 1 << 16
"""The limit of the messages of one commit."""

ROUTED_SHARE = 3, 4
"""The greatest part of the memory for posts that they take, so that other levels have the rest."""

LONG_COMMIT_SECONDS = 0.01
"""The number of seconds of a commit after which the next one waits for more messages."""

QUIET_SECONDS = 0.001
"""The number of seconds without a message after which it begins."""

TOPICS_IN_TURN = 2048
"""The number of topics of a step, after which the other tasks of the server have a turn."""

log = logging.getLogger("omq.writer")


class RoutedPost:
    """The messages of one read for the topics of one level. Each topic keeps their order."""

    __slots__ = ("_part", "_posts", "confirmation", "held", "messages")

    def __init__(self, part: "StorePart") -> None:
        self._part: StorePart | None = part
        self.messages = part.messages
        self.held = part.held
        """The octets that they take of the memory for posts."""
        self.confirmation = Confirmation()
        """The confirmation, which is settled when the outcome of all messages is known. See `failures`."""
        self._posts: list[tuple[bytes, int, Confirmation]] = []

    def failures(self) -> Iterator[tuple[bytes, int, Failure]]:
        """Return the topics whose messages failed: the name, the number of the messages, and the failure."""
        for name, count, confirmation in self._posts:
            if confirmation.failure is not None:
                yield name, count, confirmation.failure

    @property
    def failed(self) -> int:
        """The number of the topics whose messages failed, when the outcome is known."""
        return 0 if self.confirmation.failure is None else sum(1 for _ in self.failures())

    def take(self) -> "StorePart":
        """Return the messages, once: the post may outlive its commit, and must not keep their memory."""
        part, self._part = self._part, None
        assert part is not None, "a post is committed once"
        return part

    def divided(self, part: "StorePart") -> Iterator[Post]:
        """Return a post for each topic. Its outcomes are those of the posts from now on."""
        for place, (name, driver) in enumerate(zip(part.names, part.owners(), strict=True)):
            batch = Bodies(part.bodies(place))
            confirmation = Confirmation()
            self._posts.append((name, batch.count, confirmation))
            if driver is None:
                confirmation.settle(DELETED)
            else:
                yield Post(driver, batch, batch.octets, confirmation)
        self.confirmation.settle_as(all_of(confirmation for _, _, confirmation in self._posts))


class RoutedQueue:
    """The routed posts of one level that wait for a commit; the lane limits them to the size of one
    commit.
    """

    def __init__(self, memory: int, writer: object) -> None:
        """Make a queue for this writer, which the lane leads to. `memory`: octets of the memory for posts."""
        self.lane: StoreLane | None = None
        """The way to this queue in the codec; only compiled code can route messages."""
        if codec.COMPILED:
            part, whole = ROUTED_SHARE
            self.lane = codec.native.StoreLane(min(ROUTED_OCTETS, memory * part // whole), ROUTED_MESSAGES)
            self.lane.owner = writer
        self.posts: list[RoutedPost] = []
        """The waiting posts, in their order."""
        self.seconds = 0.0
        """The number of seconds that the last commit took."""
        self._has_room = trio.lowlevel.ParkingLot()
        self._turn = trio.Lock()

    async def room(self) -> None:
        """Wait until the lane has room, behind those who wait already: a commit has room for few of them."""
        assert self.lane is not None
        async with self._turn:
            while self.lane.is_full:
                await self._has_room.park()

    async def collect(self) -> None:
        """Wait after a long commit while connections route more, but no longer than that took: one commit
        costs less than two for the same topics.
        """
        assert self.lane is not None
        if self.seconds <= LONG_COMMIT_SECONDS:
            return
        lane, until = self.lane, time.perf_counter() + self.seconds  # real time, as that of a commit
        await while_more_come(
            lambda: len(self.posts), QUIET_SECONDS, lambda now: now < until and not lane.is_full
        )

    def take(self) -> list[RoutedPost]:
        """Return everything that waits, for a commit that begins. The lane has room for the next one now."""
        assert self.lane is not None
        taken, self.posts = self.posts, []
        self.lane.begin()
        self._has_room.unpark_all()
        return taken


async def commit_of(parts: Sequence["StorePart"]) -> "StoreCommit":
    """Return one commit with all these messages."""
    commit = codec.native.StoreCommit()
    turn = TOPICS_IN_TURN
    for part in parts:
        commit.add(part)
        turn -= len(part.names)
        if turn < 0:
            turn = TOPICS_IN_TURN
            await trio.lowlevel.cancel_shielded_checkpoint()
    return commit


async def assign_ids(commit: "StoreCommit", ids: Reservations) -> bool:
    """Give the messages of a commit their ids; return False if a topic was deleted, or has no ids. No topic
    may be deleted until the commit is stored.

    The posts of the commit will then try it again topic by topic, and report it.
    """
    counts: dict[StoredDriver, int] = {}
    for begin in range(0, len(commit), TOPICS_IN_TURN):
        if begin:
            await trio.lowlevel.cancel_shielded_checkpoint()
        counts.update(commit.without_ids(begin, begin + TOPICS_IN_TURN))
    if counts:
        try:
            await ids.reserve(counts)
        except Exception as problem:  # noqa: BLE001 - see above
            log.debug("no ids could be reserved for %d topics: %s", len(counts), problem)
            return False
    now = time.time_ns() // 1000
    for begin in range(0, len(commit), TOPICS_IN_TURN):
        if begin:
            await trio.lowlevel.cancel_shielded_checkpoint()
        end = begin + TOPICS_IN_TURN
        if not commit.is_whole(begin, end):
            return False
        commit.number(begin, end, now)
    return True
