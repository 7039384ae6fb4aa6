"""The publishes of one read of a connection: grouped by topic, and the outcome of each.

The messages of a read for one topic are one post, in their order. Order between topics does not matter.
"""

from collections.abc import Iterable, Sequence

import msgspec
import trio

from omq.drivers.confirmation import Confirmation, all_of
from omq.drivers.reasons import Failure, Reason
from omq.drivers.routed_topic import RoutedTopic
from omq_storage.batches import Batch


async def settled(posted: Iterable["ChannelPost"]) -> None:
    """Wait until all of these are settled."""
    pending = [
        confirmation for each in posted for confirmation in each.confirmations() if not confirmation.settled
    ]
    if pending:
        are_settled = trio.Event()
        all_of(pending).listen(are_settled.set)
        await are_settled.wait()


class Group:
    """The messages of a read for one topic. `confirmation` is there when they are offered."""

    __slots__ = ("_outcomes", "batches", "confirmation", "count", "failure", "heads")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.heads: list[bytes] = []
        self.count = 0
        self.confirmation: Confirmation | None = None
        self.failure: Failure | None = None
        """The reason why they were refused at once."""
        self._outcomes: list[Failure | None] | None = None
        """The outcome of each message; None until somebody asks for those of a group that failed."""

    def add(self, batch: Batch, heads: Sequence[bytes]) -> int:
        """Add messages, and return the number of those before them."""
        before = self.count
        self.batches.append(batch)
        self.heads += heads
        self.count += batch.count
        return before

    def offered(self) -> None:
        """Release the messages: they are offered, and must not change any more."""
        self.batches, self.heads = [], []

    @property
    def is_settled(self) -> bool:
        return self.failure is not None or (self.confirmation is not None and self.confirmation.settled)

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


Groups = dict[RoutedTopic, Group]


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
    parts: list[_Part] = msgspec.field(default_factory=list)
    _settled: int = 0
    """The number of the first parts that are known to be settled."""

    def add(self, group: Group, begin: int, count: int, indexes: Sequence[int] | None) -> None:
        """Note that N `count` of these messages are in this group: those at `indexes`, or all of them."""
        self.parts.append(_Part(group, begin, count, indexes))

    def confirmations(self) -> list[Confirmation]:
        """Return their confirmations."""
        return [part.group.confirmation for part in self.parts if part.group.confirmation is not None]

    @property
    def is_settled(self) -> bool:
        # Each part is asked once after it is settled: a message may have thousands, and every one that is
        # settled is a reason to look.
        parts, settled = self.parts, self._settled
        while settled < len(parts) and parts[settled].group.is_settled:
            settled += 1
        self._settled = settled
        return settled == len(parts)

    def failures(self) -> dict[int, Failure]:
        """Return the failures of settled messages, by their indexes. A message succeeds if all its topics
        have it. A topic that was deleted meanwhile does not count: its deletion would have taken the message
        all the same.
        """
        found: dict[int, Failure] = {}
        for part in self.parts:
            for place, failure in enumerate(part.group.failures(part.begin, part.count)):
                if failure is not None and failure.reason is not Reason.DELETED:
                    found[place if part.indexes is None else part.indexes[place]] = failure
        return found
