"""The exceptions of this package.  Each message is one sentence that an operator can understand as it is."""

from enum import Enum


class StoreError(Exception):
    """An operation on a store failed; the base class of all exceptions of this package."""


class StoreInUse(StoreError):
    """Another process has the store open."""


class NewerFormat(StoreError):
    """A later version of this package wrote the data, in a format that this version does not know."""


class DamagedRecord(StoreError):
    """The checksum or the content of a small record beside the blocks is wrong."""


class DamagedFile(StoreError):
    """A file of the store is missing, damaged or foreign, so the store cannot be opened."""


class StoreFailed(StoreError):
    """The disk refused to sync.  The store accepts no writes until it is opened again."""


class UnknownTopicId(StoreError):
    """The catalogue has no topic with this id."""


class NameTaken(StoreError):
    """The catalogue already has a topic with this name."""


class Limit(Enum):
    """The limit that a full store has reached."""

    MAP = "map"
    """The map size with which the environment was opened."""
    DISK = "disk"
    """The free space of the file system, a disk quota, or the file size limit of the process."""


class StoreFull(StoreError):
    """A write found no room.  Nothing of it was stored; everything that was stored before is unchanged."""

    def __init__(self, limit: Limit, sentence: str) -> None:
        super().__init__(sentence)
        self.limit = limit


class DamagedBlock(StoreError):
    """The checksum or the content of a stored block is wrong.

    ``first`` and ``last`` are the ids of its messages; ``last`` is None if only the damaged block could tell.
    """

    def __init__(self, topic: int, first: int, last: int | None, why: str) -> None:
        span = f"message {first} and those after it" if last is None else f"messages {first} to {last}"
        super().__init__(f"The block with {span} of topic {topic} is damaged: {why}.")
        self.topic = topic
        self.first = first
        self.last = last
        self.why = why

    @property
    def last_known(self) -> int:
        """The last id that is known to be in the block."""
        return self.first if self.last is None else self.last
