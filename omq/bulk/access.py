"""The interface to stored blocks, implemented for a server (`remote`) and for a store on this machine
(`local`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from omq.gap_reasons import LOST
from omq.model import BlockInfo, Delivery, Persistence, Transient
from omq_storage.blocks import Block

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A snapshot of a topic."""

    id: int
    name: str
    first: int
    """The id of the oldest stored message; `next` if there is none."""
    next: int
    """The id that the next message will have."""
    bytes: int
    """Octets of the stored blocks."""
    persistence: Persistence
    problem: str | None = None
    """The reason why it cannot be read in bulk; None if it can."""


Span = tuple[StoredTopic, int, int]
"""The messages of a topic from one id to before another."""

TOPIC_DELETED = "the topic was deleted"
"""The reason of a gap: there is no such topic any more, or another one with its name."""

AHEAD = 15
"""The greatest number of later spans that a server is told of."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages `first` to `last` are not available, and the reason."""

    first: int
    last: int
    reason: str

    @property
    def next(self) -> int:
        """The id after that of the last one."""
        return self.last + 1

    @property
    def is_hole(self) -> bool:
        """Whether no reader could ever read these messages from the store, so that they are not data loss."""
        return self.reason == LOST

    def __len__(self) -> int:
        return self.next - self.first


class Access(AbstractContextManager["Access"], Protocol):
    """Gives access to stored blocks. A context manager that closes itself at the end.

    Methods raise Unreachable, ServerRefused, and omq_storage.errors.StoreError.
    """

    shows_all: bool
    """Whether `topics` returns all topics, or only those to which the client has a right."""

    def topics(self) -> dict[str, StoredTopic]:
        """Return every topic whose name is UTF-8, by name."""

    def block_at(self, topic: StoredTopic, message: int, end: int) -> BlockInfo | None:
        """Return the block that holds `message`, or else the next one that begins below `end`, or None."""

    def fetch(
        self,
        topic: StoredTopic,
        start: int,
        end: int,
        use: Callable[[Block, range], T],
        ahead: Sequence[Span] = (),
    ) -> Iterator[T | Gap]:
        """Yield the results of `use` for all messages from `start` to before `end`, in order, and the gaps
        between them. Every message occurs exactly once.

        `ahead`: what the next calls fetch, in this order: a server begins with the first AHEAD of it
        meanwhile. After the end of the iterator, call nothing else before those.

        `use` gets a verified block and the ids of the wanted messages in it: a block may extend beyond the
        range at both ends, since the server merges blocks. `use` must not keep references to the block, whose
        octets may change afterwards; `Block.copy` makes a copy to keep.
        """


def why_unreadable(delivery: Delivery, persistence: Persistence) -> str | None:
    """Return the reason why a topic of these types cannot be read in bulk; None if it can."""
    if isinstance(persistence, Transient):
        return "it is transient, and nothing of it is stored"
    if delivery is Delivery.ROUND_ROBIN:
        return "it is a round-robin topic, whose messages are gone when they are done"
    return None
