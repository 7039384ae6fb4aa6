"""A post: messages for one topic on their way to the writer of its level."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from omq.drivers.confirmation import Confirmation
from omq.drivers.producers import NO_PRODUCERS, PostProducers, TopicProducers
from omq.drivers.push import Pushes
from omq.drivers.reasons import Failure, Reason
from omq.drivers.reservations import Numbered
from omq.drivers.sequences import Origins
from omq_storage.batches import Batch
from omq_storage.blocks import Block
from omq_storage.fragments import Fragmented, Uploaded
from omq_storage.records import Extent

StoredValue = tuple[int, int, int, memoryview, memoryview]
"""A block that a commit has stored: the first id, the number and the time of its messages, their frames, and
the offsets of these (see `omq_storage.blocks.Block`).
"""


class StoredDriver(Numbered, Protocol):
    """The interface of a driver for the writer."""

    deleted: bool
    gone: Failure
    """The failure of messages that come when the topic is deleted, or has another driver."""
    failures: int
    """The number of commits that failed to store posts of this topic."""
    producers: TopicProducers
    """The idempotent producers with posts that wait."""

    def now(self) -> int:
        """Return the time in microseconds since the epoch; it never goes back."""

    def stored(self, blocks: Sequence[Block | Fragmented], extent: Extent, pushes: Pushes) -> None:
        """Handle blocks that now have the persistence of the topic, at least one. `extent` is its new stored
        extent. Messages that are sent at once are added to `pushes`.
        """

    def allow_routing(self, is_allowed: bool) -> None:
        """Route no messages while it is not allowed: posts of the topic wait, and none may overtake them."""


class RoutedDriver(StoredDriver, Protocol):
    """The interface, for the writer, of a driver whose messages are routed."""

    def routed(self, first: int, values: Sequence[StoredValue], pushes: Pushes) -> None:
        """Handle messages that are stored, and that the compiled codec has counted already. Without `values`
        they are in the store only, from this id on. Messages that are sent at once are added to `pushes`.
        """


@dataclass(frozen=True, slots=True)
class Post:
    """Messages for one topic, and the octets that they take from the budget.

    `heads` is empty or has one for each message, empty where it has none; `origins` likewise, None where it
    has none. `producers` are those of the origins; a post of a transient topic has them alone, because the
    repeated messages are removed before.
    """

    driver: StoredDriver
    batch: Batch | Uploaded
    octets: int
    confirmation: Confirmation
    heads: Sequence[bytes] = ()
    origins: Origins = ()
    producers: PostProducers = NO_PRODUCERS


LATE = Failure(Reason.EARLIER, "messages before these could not be stored")
"""The failure of a late post: see `omq.drivers.producers`."""
