"""The publishes of one read of a connection: grouped by topic, and the outcome of each.

The messages of a read for one topic are one post, in their order, or several if they are many, as those of a
transaction may be. Order between topics does not matter.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import msgspec

from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Reason
from omq.drivers.routed_topic import RoutedTopic
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.connection.last_outcomes import settled
from omq_storage.batches import BLOCK_MESSAGES, BLOCK_OCTETS, Batch

MOST_MESSAGES, MOST_OCTETS = BLOCK_MESSAGES, BLOCK_OCTETS
"""The number of messages, and of the octets of their frames, from which on later ones are another post. A
block of them is made in less than a millisecond.
"""

MOST_BATCHES = 1024
"""The same number of batches, such as those of messages that are published to several queues in turn. To join
them takes most of the time.
"""

LOOKED_IN_TURN = 128
"""The number of settled posts, or of their parts, after which the other connections have their turn."""


class Publisher(Protocol):
    """The channel on which messages are published."""

    number: int
    reply_queue: bytes | None
    """The queue of the channel for direct replies."""
    is_over: bool
    """Whether the channel is closed."""

    @property
    def tells_outcomes(self) -> bool:
        """Whether it tells the client the outcome of each message, or of its transaction."""

    def refused(self, failure: Failure) -> None:
        """Note that a message failed of which `published` was not told."""

    def published(self, posted: "ChannelPost") -> None:
        """Record messages that were published, in their order."""

    def look(self) -> None:
        """Check the published messages: some of them are settled."""

    def tell_settled(self, outbox: Outbox) -> None:
        """Confirm the settled messages: the next one is returned."""


class Group:
    """Messages of a read for one topic. `confirmation` is there when they are offered."""

    __slots__ = (
        "_outcomes",
        "_publishers",
        "batches",
        "confirmation",
        "count",
        "failure",
        "heads",
        "octets",
    )

    def __init__(self) -> None:
        self._publishers: list[Publisher] = []
        self.octets = 0
        self.batches: list[Batch] = []
        self.heads: list[bytes] = []
        self.count = 0
        self.confirmation: Confirmation | None = None
        self.failure: Failure | None = None
        """The reason why they were refused at once."""
        self._outcomes: list[Failure | None] | None = None
        """The outcome of each message; None until somebody asks for those of a group that failed."""

    @property
    def work(self) -> int:
        """The approximate work of an offer of them, in that for a single message."""
        return 1 + len(self.batches) // 16 + self.count // 256 + (self.octets >> 15)

    @property
    def is_full(self) -> bool:
        """Whether later messages are another post."""
        return self.count >= MOST_MESSAGES or self.octets >= MOST_OCTETS or len(self.batches) >= MOST_BATCHES

    def add(self, batch: Batch, heads: Sequence[bytes], publisher: Publisher) -> int:
        """Add messages of a publisher, and return the number of those before them."""
        before = self.count
        self.octets += batch.octets
        if not self._publishers or self._publishers[-1] is not publisher:
            self._publishers.append(publisher)
        self.batches.append(batch)
        self.heads += heads
        self.count += batch.count
        return before

    def offered(self, outcome: Confirmation | Failure) -> None:
        """Keep the answer to the offer of the messages, and release them: they must not change any more. If
        it is not settled yet, let the publishers look at it then.
        """
        self.batches, self.heads = [], []
        publishers, self._publishers = self._publishers, []
        if isinstance(outcome, Failure):
            self.failure = outcome
            return
        self.confirmation = outcome
        if not outcome.settled:
            outcome.listen(partial(_look, tuple(dict.fromkeys(publishers))))

    @property
    def is_settled(self) -> bool:
        return self.failure is not None or (self.confirmation is not None and self.confirmation.settled)

    @property
    def has_failed(self) -> bool:
        """Whether a message of a settled group failed."""
        return self.failure is not None or (
            self.confirmation is not None and self.confirmation.failure is not None
        )

    def failures(self, begin: int, count: int) -> Sequence[Failure | None]:
        """Return the outcome of each of these messages of a settled group; nothing if all succeeded."""
        if self.failure is not None:
            return [self.failure] * count
        assert self.confirmation is not None
        if self.confirmation.failure is None:
            return ()
        if self._outcomes is None:  # every publish of the group asks, so this is done once
            runs = self.confirmation.outcomes(self.count)
            self._outcomes = [failure for number, failure in runs for _ in range(number)]
        return self._outcomes[begin : begin + count]


def _look(publishers: Sequence[Publisher]) -> None:
    for publisher in publishers:
        publisher.look()


class Groups:
    """The messages of a read, which are not offered yet. Those of one topic keep their order."""

    __slots__ = ("_last", "_posts")

    def __init__(self) -> None:
        self._last: dict[RoutedTopic, Group] = {}
        # From the first one on: an empty deque takes 700 octets.
        self._posts: deque[tuple[RoutedTopic, Group]] | None = None

    def __len__(self) -> int:
        return 0 if self._posts is None else len(self._posts)

    def group(self, topic: RoutedTopic) -> Group:
        """Return the group for further messages of a topic."""
        group = self._last.get(topic)
        if group is None or group.is_full:
            group = self._last[topic] = Group()
            if self._posts is None:
                self._posts = deque()
            self._posts.append((topic, group))
        return group

    def take(self) -> Iterator[tuple[RoutedTopic, Group]]:
        """Yield all groups, and forget each of them. Add nothing meanwhile."""
        while self._posts:
            topic, group = self._posts.popleft()
            self._last.pop(topic, None)
            yield topic, group


class _Part(msgspec.Struct, frozen=True):
    """Messages of a publish in one group."""

    group: Group
    begin: int
    """The number of messages of the group before them."""
    count: int
    indexes: Sequence[int] | None
    """Their indexes among the messages of the publish; None for all of them."""


class ChannelPost(msgspec.Struct):
    """Consecutive messages that a client published on one channel."""

    count: int
    _parts: list[_Part | None] = msgspec.field(default_factory=list)
    """Their parts; None for those that are known to be settled."""
    _settled: int = 0
    """The number of these: the first ones."""
    _failed: list[_Part] | None = None
    """The settled parts in which a message failed, if there are any."""

    def add(self, group: Group, begin: int, count: int, indexes: Sequence[int] | None) -> None:
        """Note that N `count` of these messages are in this group: those at `indexes`, or all of them."""
        self._parts.append(_Part(group, begin, count, indexes))

    @property
    def is_settled(self) -> bool:
        self.look(len(self._parts))
        return self.is_known

    @property
    def is_known(self) -> bool:
        """Whether `look` has found that they are settled."""
        return self._settled == len(self._parts)

    def look(self, most: int) -> int:
        """See which of the next N (`most`) parts are settled. Return the number of these."""
        # Each part is asked once after it is settled, and freed: a message may have thousands, and every one
        # that is settled is a reason to look.
        parts, first = self._parts, self._settled
        settled, end = first, min(len(parts), first + most)
        while settled < end:
            part = parts[settled]
            if part is not None:
                if not part.group.is_settled:
                    break
                parts[settled] = None
                if part.group.has_failed:
                    if self._failed is None:
                        self._failed = []
                    self._failed.append(part)
            settled += 1
        self._settled = settled
        return settled - first

    async def settled(self) -> None:
        """Wait until they are settled. They must be offered."""
        while not self.is_settled:
            part = self._parts[self._settled]
            assert part is not None
            confirmation = part.group.confirmation
            assert confirmation is not None, "its messages are offered"
            await settled(confirmation)

    def failures(self) -> dict[int, Failure]:
        """Return the failures of settled messages, by their indexes. A message succeeds if all its topics
        have it. A topic that was deleted meanwhile does not count: its deletion would have taken the message
        all the same.
        """
        found: dict[int, Failure] = {}
        for part in self._failed or ():
            for place, failure in enumerate(part.group.failures(part.begin, part.count)):
                if failure is not None and failure.reason is not Reason.DELETED:
                    found[place if part.indexes is None else part.indexes[place]] = failure
        return found
