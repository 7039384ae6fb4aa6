"""The queue of posts for a store, and the selection of the posts of one commit.

A commit is limited in octets and in idempotent producers: each producer takes a lookup in the store and two
records, which is far more work than a short message. Topics take turns, so a post waits for a few commits
at most, whatever is posted to other topics.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Reason
from omq.drivers.reservations import Numbered
from omq.drivers.sequences import Origins
from omq_storage.batches import Batch
from omq_storage.blocks import Block

GROUP_OCTETS = 4 << 20
"""The limit of one commit in octets: less than the budget for posts, so that more can arrive meanwhile."""

GROUP_PRODUCERS = 1024
"""A commit with this number of idempotent producers takes no further post. One post of a sink has far fewer.
"""


class Stored(Numbered, Protocol):
    """What the writer needs of a driver."""

    deleted: bool
    failures: int
    """The number of commits that failed to store posts of this topic."""

    def now(self) -> int:
        """Microseconds since the epoch, never going back."""

    def stored(self, block: Block) -> None:
        """Called when `block` has the persistence of its topic."""


@dataclass(frozen=True, slots=True)
class Post:
    """Messages for one topic, and the octets that they take from the budget.

    `heads` is empty or has one for each message, empty where it has none; `origins` likewise, None where it
    has none. `producers` are those of the origins. `failures` is that of the driver when the post was made.
    """

    driver: Stored
    batch: Batch
    octets: int
    confirmation: Confirmation
    heads: Sequence[bytes] = ()
    origins: Origins = ()
    producers: AbstractSet[bytes] = frozenset()
    failures: int = 0

    @property
    def is_late(self) -> bool:
        """Whether messages with origins were posted before the publisher learnt that earlier ones were not
        stored.

        Stored now, they would make those look repeated when their producer sends them again.
        """
        return bool(self.origins) and self.failures != self.driver.failures


LATE = Failure(Reason.EARLIER, "messages before these could not be stored")
"""The failure of a late post."""


class Posts:
    """The posts that wait for a commit. Posts of one topic keep their order."""

    def __init__(self) -> None:
        # In the order of their turns. A plain dict would search for its first entry among all deleted ones.
        self._turns: OrderedDict[Stored, deque[Post]] = OrderedDict()
        self.octets = 0
        """Octets of the waiting posts."""

    def __bool__(self) -> bool:
        return bool(self._turns)

    def __len__(self) -> int:
        return sum(map(len, self._turns.values()))

    def add(self, post: Post) -> None:
        """Queue a post behind those of its topic."""
        self._turns.setdefault(post.driver, deque()).append(post)
        self.octets += post.octets

    def take_group(self) -> list[Post]:
        """Return the posts of the next commit: one of each topic, then the next of each, and so on.

        The post that reaches a limit is the last one. The next group continues with the topic after it.
        """
        group: list[Post] = []
        octets = producers = 0
        while self._turns and octets < GROUP_OCTETS and producers < GROUP_PRODUCERS:
            driver, posts = self._turns.popitem(last=False)
            post = posts.popleft()
            if posts:
                self._turns[driver] = posts
            group.append(post)
            octets += post.octets
            producers += len(post.producers)
        self.octets -= octets
        return group
