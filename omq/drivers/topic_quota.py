"""The quota of topics: their greatest number, and the calls when one that a client created has gone."""

from collections.abc import Callable

from omq.counted import counted
from omq.drivers.reasons import Reason, Refused

Release = Callable[[], None]
"""Releases the quotas that something took. Call it once: when it is gone, or could not be created."""

Admit = Callable[[], Release]
"""Called before a topic is created; raises Refused if it may not be."""

AdmitName = Callable[[bytes], Release]
"""The same for any topic, by its name."""


class TopicQuota:
    """The quota of one server. A caller that admits topics holds the lock of the catalogue until they exist,
    so that no others are created meanwhile.
    """

    def __init__(self, most: int, count: Callable[[], int]) -> None:
        """Create a quota of `most` topics; `count` returns their number now."""
        self.most = most
        self._count = count
        self._released: dict[int, Release] = {}
        """Calls for deleted topics, by the ids of topics that clients created since the start."""

    def check_room(self) -> None:
        """Raise Refused if the quota of topics is used up."""
        if not self.has_room(1):
            what = f"the server has its {counted(self.most, 'topic')}, the most it is configured for"
            raise Refused(Reason.QUOTA, what)

    def has_room(self, count: int) -> bool:
        """Return whether the quota allows `count` more topics."""
        return self._count() + count <= self.most

    def admit(self, admit: Admit | None) -> Release:
        """Ask whether a topic may be created; None where no client asks for it. Raises Refused. Pass what
        this returns to `created`, or call it if the topic could not be created.
        """
        if admit is not None:
            return admit()
        self.check_room()
        return _nothing

    def created(self, topic: int, released: Release) -> None:
        """Record that the topic with this id, which was admitted, exists now."""
        self._released[topic] = released

    def deleted(self, topic: int) -> None:
        """Release the topic with this id, which has gone."""
        released = self._released.pop(topic, None)
        if released is not None:
            released()


def _nothing() -> None:
    """Do nothing: no client's quota counts this topic."""
