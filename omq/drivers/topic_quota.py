"""The quota of topics: their greatest number, and the calls when one that a client created has gone."""

from collections.abc import Callable

from omq.drivers.reasons import Reason, Refused

Release = Callable[[], None]
"""Releases the quotas that something took. Call it once: when it is gone, or could not be created."""

Admit = Callable[[], Release]
"""Called before a topic is created; raises Refused if it may not be."""

AdmitName = Callable[[bytes], Release]
"""The same for any topic, by its name."""


class TopicQuota:
    """The quota of one server."""

    def __init__(self, most: int, count: Callable[[], int]) -> None:
        """Create a quota of `most` topics; `count` returns their number now."""
        self.most = most
        self._count = count
        self._awaited = 0
        """The number of admitted topics that do not exist yet: the disk may still be writing them."""
        self._released: dict[int, Release] = {}
        """Calls for deleted topics, by the ids of topics that clients created since the start."""

    def check_room(self) -> None:
        """Raise Refused if the quota of topics is used up."""
        if not self.has_room(1):
            raise Refused(
                Reason.QUOTA, f"the server has its {self.most} topics, the most it is configured for"
            )

    def has_room(self, count: int) -> bool:
        """Return whether the quota allows `count` more topics."""
        return self._count() + self._awaited + count <= self.most

    def admit(self, admit: Admit | None) -> Release:
        """Ask whether a topic may be created; None where no client asks for it. Raises Refused. It counts
        from now on: pass what this returns to `created`, or to `not_created`.
        """
        released = _nothing
        if admit is not None:
            released = admit()
        else:
            self.check_room()
        self._awaited += 1
        return released

    def created(self, topic: int, released: Release) -> None:
        """Record that the topic with this id, which was admitted, exists now."""
        self._awaited -= 1
        self._released[topic] = released

    def not_created(self, released: Release) -> None:
        """Release a topic that was admitted and could not be created."""
        self._awaited -= 1
        released()

    def deleted(self, topic: int) -> None:
        """Release the topic with this id, which has gone."""
        released = self._released.pop(topic, None)
        if released is not None:
            released()


def _nothing() -> None:
    """Do nothing: no client's quota counts this topic."""
