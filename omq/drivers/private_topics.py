"""Topics that are found only through their drivers, such as those for replies to one connection."""

from omq.drivers.driver import Driver
from omq.drivers.lifetime import Private
from omq.drivers.topic_quota import Admit
from omq.drivers.unrecorded import UnrecordedTopics
from omq.model import Delivery, Topic

FIRST_PRIVATE, LAST_PRIVATE = 1 << 31, (1 << 32) - 1
"""The range of the ids of private topics. Ids of the catalogue start at 0, and stay far below."""


class PrivateTopics:
    """The private topics of a server."""

    def __init__(self, unrecorded: UnrecordedTopics) -> None:
        self._unrecorded = unrecorded
        self._drivers: dict[int, Driver] = {}
        self._last_id = LAST_PRIVATE

    def __len__(self) -> int:
        return len(self._drivers)

    def __contains__(self, topic: int) -> bool:
        return topic in self._drivers

    def create(self, name: bytes, delivery: Delivery, lifetime: Private, admit: Admit | None) -> Driver:
        """Create a transient topic that is not found by its name, without a write to the disk. It counts
        against the quota of topics. Raises Refused.
        """
        topic = Topic(self._next_id(), name)
        driver = self._unrecorded.create(topic, delivery, lifetime, admit, self.delete)
        self._drivers[topic.id] = driver
        return driver

    def _next_id(self) -> int:
        """Return the next id that no private topic has; after the last one they begin again."""
        while True:
            last = self._last_id
            self._last_id = FIRST_PRIVATE if last == LAST_PRIVATE else last + 1
            if self._last_id not in self._drivers:
                return self._last_id

    def delete(self, driver: Driver) -> None:
        """Delete a private topic unless it is deleted already; its subscribers' channels end."""
        assert isinstance(driver.lifetime, Private)
        if self._drivers.pop(driver.topic.id, None) is None:
            return
        self._unrecorded.end(driver)
