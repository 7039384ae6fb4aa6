"""Read access of one client: the topics that it may see, and the stored messages of a topic."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from omq.access.rights import Rights
from omq.drivers.catalogue import Catalogue
from omq.drivers.reasons import NO_TOPIC, Reason, Refused
from omq.drivers.seam import Unavailable
from omq.model import Topic, TopicInfo
from omq_storage.environment import BlockRecord
from omq_storage.lookup import VerifiedBlock
from omq_storage.pieces import LargeMessage

T = TypeVar("T")


class StoredMessages(Protocol):
    """The stored messages of one topic: the part of its driver that `Archive.find` returns."""

    topic: Topic
    next_id: int
    deleted: bool

    async def replay(self, position: int, octets: int) -> list[VerifiedBlock] | Unavailable:
        """See `Driver.replay`."""

    async def read_piece(self, message: LargeMessage, begin: int, octets: int) -> bytes | None:
        """See `Driver.read_piece`."""

    async def stored_blocks(
        self, first: int, count: int, limit: int, then: Callable[[list[BlockRecord]], T]
    ) -> T:
        """See `Driver.stored_blocks`."""


class Archive:
    """The stored messages under one name, for a client that may subscribe to it."""

    __slots__ = ("_catalogue", "_name", "check")

    def __init__(self, catalogue: Catalogue, name: bytes, check: Callable[[], None]) -> None:
        self._catalogue = catalogue
        self._name = name
        self.check = check
        """Raises Refused when the client may not read the messages any more: a read may last long, and wait
        for others before it begins.
        """

    def find(self, first: int, count: int) -> StoredMessages:
        """Return the topic if `count` messages from `first` on can be read. Raises Refused."""
        self.check()
        driver = self._catalogue.lookup(self._name)
        if driver is None:
            raise Refused.of(NO_TOPIC)
        driver.check_replay(first)
        if count < 0:
            raise Refused(Reason.INVALID, "count cannot be negative")
        return driver


def visible_topics(catalogue: Catalogue, rights: Rights) -> Iterator[TopicInfo | None]:
    """Yield the topics that a client with these rights may know of, in the order of their ids, and None for
    each other one: so the caller can pause after each step, however few topics the client may see.

    Topics that are deleted meanwhile are left out, and those that are made meanwhile may be there.
    """
    for driver in catalogue.in_turn():
        now = catalogue.current(driver)
        yield None if now is None or not rights.sees(now.topic.topic) else now.info()
