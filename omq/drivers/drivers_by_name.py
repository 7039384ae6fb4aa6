"""The drivers of topics by the names of the topics, and in the order of their ids.

To copy a list of thousands of drivers takes milliseconds, because each of them gets a reference more and is
in no processor cache. So work that looks at all of them goes through chunks of neighbouring ids.
"""

from collections.abc import Iterator

from omq.drivers.driver import Driver

CHUNK_IDS = 1024
"""The number of neighbouring topic ids of a chunk."""


class DriversByName(dict[bytes, Driver]):
    """Drivers by name. Use nothing but item assignment and `del` to change it."""

    def __init__(self) -> None:
        super().__init__()
        self.octets = 0
        """The octets of the names."""
        self._chunks: dict[int, dict[int, Driver]] = {}
        """The drivers by the ids of their topics, in chunks by their numbers."""

    def __setitem__(self, name: bytes, driver: Driver) -> None:
        if name not in self:
            self.octets += len(name)
        super().__setitem__(name, driver)
        id = driver.topic.id
        self._chunks.setdefault(id // CHUNK_IDS, {})[id] = driver

    def __delitem__(self, name: bytes) -> None:
        id = self[name].topic.id
        super().__delitem__(name)
        self.octets -= len(name)
        chunk = self._chunks[id // CHUNK_IDS]
        del chunk[id]
        if not chunk:
            del self._chunks[id // CHUNK_IDS]

    def in_turn(self) -> Iterator[Driver]:
        """Yield the drivers in the order of the ids of their topics, and hold none of them after its turn.
        Those that come meanwhile may be there.
        """
        for number in sorted(self._chunks):
            chunk = self._chunks.get(number, {})
            for id in sorted(chunk):
                if id in chunk:  # it may have gone
                    yield chunk[id]
