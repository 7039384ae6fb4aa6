"""The pages of the spool's file that are in use: see `omq.drivers.spool`."""

from threading import Lock

PAGE_OCTETS = 4096

_FREE, _USED = b"\0", b"\1"

_PART_OCTETS = 150
"""The approximate octets of memory for a part of scattered pages."""


class SpoolPages:
    """The pages in use: an octet for each page of the file, and the parts of each scattered extent.

    Threads share it. Pages are named by the first one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._map = bytearray()
        self._hint = 0
        """No page before this one is free."""
        self._scattered: dict[int, list[range]] = {}
        self._parts = 0
        self._lock = Lock()

    @property
    def octets(self) -> int:
        """The approximate octets of memory that this takes."""
        return len(self._map) + self._parts * _PART_OCTETS

    def take(self, count: int) -> int | None:
        """Take N pages, consecutive ones if possible. Return the first; None if there are fewer."""
        with self._lock:
            if self.used + count > self.limit:
                return None
            self.used += count
            end = len(self._map)
            first = self._map.find(_FREE * count, self._hint)
            if first < 0 and end + count <= self.limit:
                first = end
            if first < 0:
                return self._take_scattered(count)
            self._set(range(first, first + count), _USED)
            if count == 1:
                self._hint = first + 1
            return first

    def _take_scattered(self, count: int) -> int:
        """Take N pages wherever they are."""
        parts: list[range] = []
        while count:
            begin = self._map.find(_FREE, self._hint)
            if begin < 0:
                part = range(len(self._map), len(self._map) + count)
            else:
                end = self._map.find(_USED, begin, begin + count)
                part = range(begin, min(begin + count, len(self._map)) if end < 0 else end)
            self._set(part, _USED)
            self._hint = part.stop
            parts.append(part)
            count -= len(part)
        self._scattered[parts[0].start] = parts
        self._parts += len(parts)
        return parts[0].start

    def _set(self, pages: range, value: bytes) -> None:
        self._map[pages.start : pages.stop] = value * len(pages)

    def parts(self, first: int, count: int) -> list[range]:
        """Return the parts of N pages that were taken together."""
        return self._scattered.get(first) or [range(first, first + count)]

    def give(self, first: int, count: int) -> None:
        """Give back N pages that were taken together."""
        with self._lock:
            parts = self._scattered.pop(first, None)
            if parts is None:
                parts = [range(first, first + count)]
            else:
                self._parts -= len(parts)
            for part in parts:
                self._set(part, _FREE)
            self._hint = min(self._hint, min(part.start for part in parts))
            self.used -= count
            if not self.used:
                self._map = bytearray()
                self._hint = 0
