"""What can go wrong in a store.  Every message is one sentence that can be shown to an operator as it is."""

from enum import Enum


class StoreError(Exception):
    """Something about a store failed; the root of all errors of this package."""


class StoreInUse(StoreError):
    """Another process holds the store."""


class NewerFormat(StoreError):
    """The data was written by a later version of this package, in a format this one does not know."""


class DamagedRecord(StoreError):
    """A small record beside the blocks is not what was written."""


class DamagedFile(StoreError):
    """A file of the store is missing or not what it was, so the store cannot be opened as it is."""


class StoreFailed(StoreError):
    """The disk refused to make data safe, and nothing more is written until the store is opened again."""


class UnknownTopic(StoreError):
    """The catalogue has no topic of that id."""


class NameTaken(StoreError):
    """The catalogue already has a topic of that name."""


class Limit(Enum):
    """What a full store ran out of."""

    MAP = "map"
    """The map size that the environment was opened with."""
    DISK = "disk"
    """The file system, a quota, or the largest file the process may write."""


class StoreFull(StoreError):
    """There was no room; nothing of the refused write is stored, and everything stored before it still is."""

    def __init__(self, limit: Limit, sentence: str) -> None:
        super().__init__(sentence)
        self.limit = limit


class DamagedBlock(StoreError):
    """A stored block is not what was written.

    ``first`` and ``last`` are the ids of the messages in it; ``last`` is None where only the damaged octets
    could tell.
    """

    def __init__(self, topic: int, first: int, last: int | None, why: str) -> None:
        span = f"message {first} and those after it" if last is None else f"messages {first} to {last}"
        super().__init__(f"The block with {span} of topic {topic} is damaged: {why}.")
        self.topic = topic
        self.first = first
        self.last = last
        self.why = why
