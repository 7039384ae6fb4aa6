"""The catalogue: which topics there are, kept durably in an LMDB environment of its own (design, section 6)."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What is kept about one topic.  ``delivery`` and ``persistence`` are the caller's own words."""

    id: int
    name: bytes
    delivery: str
    persistence: str
    declared: bool
    """True when someone declared it with these types, False when it only got the defaults."""
    reserved: int = 0
    """No message id from this one on was ever handed out."""
    retention_bytes: int | None = None
    retention_seconds: int | None = None


class Catalogue:
    """Every call may come from any thread; what it changed is durable when it returns."""

    def topics(self) -> list[TopicRecord]:
        """All topics, by ascending id."""
        raise NotImplementedError

    def create(
        self,
        name: bytes,
        delivery: str,
        persistence: str,
        declared: bool,
        *,
        reserved: int = 0,
        retention_bytes: int | None = None,
        retention_seconds: int | None = None,
    ) -> TopicRecord:
        """A new topic with the next id, 0 to 2^31 - 1.  An id is never used again, even after ``delete``.

        Raises NameTaken, StoreFull, and StoreError when all ids were used.
        """
        raise NotImplementedError

    def update(self, record: TopicRecord) -> None:
        """Replaces the record of that id.

        Raises UnknownTopic, NameTaken, StoreFull, and StoreError when ``reserved`` would go down.
        """
        raise NotImplementedError

    def reserve(self, reserved: Mapping[int, int]) -> None:
        """Sets ``reserved`` of these topic ids in one commit, after which ids below it may be handed out.

        Raises UnknownTopic, StoreFull, and StoreError when one would go down; then none is changed.
        """
        raise NotImplementedError

    def delete(self, topic: int) -> None:
        """Forgets a topic; its blocks are the environment's to drop.  Raises UnknownTopic."""
        raise NotImplementedError

    def close(self) -> None:
        """Waits for the calls under way and closes the environment."""
        raise NotImplementedError
