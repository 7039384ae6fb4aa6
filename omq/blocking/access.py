"""How stored blocks are reached: one door for the omq port and one for a store of this machine."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from omq.model import BlockInfo
from omq_storage.blocks import Block

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic as it is at the moment."""

    id: int
    name: str
    first: int
    """Id of the oldest message that is kept; `next` when none is."""
    next: int
    """The id that the next message will have."""
    bytes: int
    """Octets of the stored blocks."""
    problem: str | None = None
    """Why it cannot be read in bulk, None where it can."""


HOLE = "they were lost before they were durable"
"""The reason of a gap between messages: a power failure took them, or the ids were never used."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages `first` to `last` that cannot be had, and why."""

    first: int
    last: int
    reason: str

    @property
    def is_hole(self) -> bool:
        """Whether nobody has ever been able to read them from the store, and nobody ever will."""
        return self.reason == HOLE

    def __len__(self) -> int:
        return self.last + 1 - self.first


class Access(AbstractContextManager["Access"], Protocol):
    """One way to the blocks. Leaving its block closes it.

    Methods raise Unreachable, Refused, and omq_storage.errors.StoreError.
    """

    shows_all: bool
    """Whether `topics` has all there are, or only those that we have some right to."""

    def topics(self) -> dict[str, StoredTopic]:
        """Every topic whose name is UTF-8, by name."""

    def block_at(self, topic: StoredTopic, message: int, end: int) -> BlockInfo | None:
        """The block that holds `message`, or the next one that begins below `end`; None where none does."""

    def fetch(
        self, topic: StoredTopic, start: int, end: int, use: Callable[[Block, range], T]
    ) -> Iterator[T | Gap]:
        """What `use` makes of all messages from `start` to before `end`, in order, with gaps between. Nothing
        is left out, and nothing comes twice.

        `use` is given a block, verified, and the ids of those of its messages that are meant: a block may
        reach beyond, also to what came before, when it was merged meanwhile. It must keep nothing of the
        block, whose octets may change afterwards; `Block.copy` makes one to keep.
        """


def why_unreadable(delivery: str, persistence: str) -> str | None:
    """Why a topic of these types cannot be read in bulk, None when it can."""
    if persistence == "Transient":
        return "it is transient, and nothing of it is stored"
    if delivery != "Broadcast":
        return "it is a round-robin topic, whose messages are gone when they are done"
    return None
