"""The quota of topics: how many there may be, and what is called when one that a client created has gone."""

from collections.abc import Callable

from omq.drivers.reasons import Reason, Refused

Release = Callable[[], None]
"""Called when a topic that was admitted is deleted, or could not be created."""

Admit = Callable[[], Release]
"""Called before a topic is created; raises Refused if it may not be."""

AdmitName = Callable[[bytes], Release]
"""The same for any topic, by its name."""


class TopicQuota:
    """The quota of one server."""

    def __init__(self, most: int, count: Callable[[], int]) -> None:
        """`count` returns how many topics there are."""
        self.most = most
        self._count = count
        self._released: dict[int, Release] = {}
        """Calls for deleted topics, by the ids of topics that clients created since the start."""

    def check_room(self) -> None:
        """Raise Refused if the quota of topics is used up."""
        if self._count() >= self.most:
            raise Refused(
                Reason.QUOTA, f"the server has its {self.most} topics, the most it is configured for"
            )

    def has_room(self, count: int) -> bool:
        """Return whether the quota allows so many more topics."""
        return self._count() + count <= self.most

    def admit(self, admit: Admit | None) -> Release:
        """Ask whether a topic may be created; None where no client asks for it. Raises Refused. Call what
        this returns if the topic could not be created, or else `created`.
        """
        if admit is not None:
            return admit()
        self.check_room()
        return _nothing

    def created(self, topic: int, released: Release) -> None:
        """The topic with this id was admitted, and exists now."""
        self._released[topic] = released

    def deleted(self, topic: int) -> None:
        """The topic with this id has gone."""
        released = self._released.pop(topic, None)
        if released is not None:
            released()


def _nothing() -> None:
    """Do nothing: no client's quota counts this topic."""
