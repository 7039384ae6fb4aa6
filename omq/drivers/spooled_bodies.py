"""Bodies of long messages on the spool, which are written as they arrive, and read piece by piece."""

from array import array
from collections.abc import Iterator

from omq.drivers.spool import Spool
from omq.drivers.spool_room import Promise, pages_of
from omq.drivers.spoolable import SpoolExtent
from omq_storage.crc import crc32c
from omq_storage.errors import DamagedBlock
from omq_storage.fragments import Fragmented
from omq_storage.pieces import CHECKED_OCTETS


class SpooledBody:
    """One body, on pages of its own. Each part of CHECKED_OCTETS has an extent, and a checksum.

    Call `drop` at the end, and once more for each call of `shared`.
    """

    __slots__ = (
        "_checksums",
        "_damaged",
        "_pages",
        "_promise",
        "_size",
        "_spool",
        "_unfinished",
        "_users",
        "octets",
    )

    def __init__(self, spool: Spool, size: int, promise: Promise) -> None:
        """Create a body of N octets (`size`), of which none has come, with the promise of room for it."""
        self._spool = spool
        self._size = size
        self._promise = promise
        self._pages = array("Q")
        """The first page of each part."""
        self._checksums = array("I")
        self.octets = 0
        """The octets that are written, or are about to be."""
        self._users = 1
        self._unfinished = 0  # pages, while the message is not complete
        self._damaged: DamagedBlock | None = None

    def verify(self) -> None:
        """Raise DamagedBlock if an earlier read has: then nobody needs to begin the message."""
        if self._damaged is not None:
            raise self._damaged

    def shared(self) -> "SpooledBody":
        """Return it for one more user."""
        self._users += 1
        return self

    async def put(self, octets: bytes) -> None:
        """Write the next octets. Raises omq.drivers.spool.SpoolFull."""
        places: list[tuple[SpoolExtent, int, memoryview]] = []
        left = memoryview(octets)
        while left:
            begin = self.octets % CHECKED_OCTETS
            if not begin:
                self._begin_part()
            some = left[: CHECKED_OCTETS - begin]
            self._checksums[-1] = crc32c(some, self._checksums[-1])
            places.append((self._part(len(self._pages) - 1), begin, some))
            self.octets += len(some)
            left = left[len(some) :]
        self._spool.room.moved()
        await self._spool.write_parts(places)

    def _begin_part(self) -> None:
        """Take the pages of the next part. Raise SpoolFull."""
        pages = pages_of(min(CHECKED_OCTETS, self._size - self.octets))
        self._pages.append(self._spool.take(pages))
        self._checksums.append(0)
        self._spool.room.use(self._promise, pages)
        self._spool.room.unfinished += pages
        self._unfinished += pages

    def finish(self) -> None:
        """Note that the message is complete, or never will be."""
        self._spool.room.unfinished -= self._unfinished
        self._unfinished = 0

    def _part(self, number: int, message: int = 0, topic: int = 0) -> SpoolExtent:
        octets = min(CHECKED_OCTETS, self._size - number * CHECKED_OCTETS)
        return SpoolExtent(topic, message, message + 1, octets, self._pages[number])

    def _parts(self) -> Iterator[SpoolExtent]:
        return map(self._part, range(len(self._pages)))

    async def read(self, message: Fragmented, begin: int, octets: int) -> bytes:
        """Return at most N `octets` of the body of this message from the octet `begin` on. A piece does not
        cross the border of two parts. Raises DamagedBlock.
        """
        self._spool.room.moved()
        number, skipped = divmod(begin, CHECKED_OCTETS)
        extent = self._part(number, message.first, message.topic)
        try:
            part = await self._spool.read_part(extent, self._checksums[number])
        except DamagedBlock as damaged:
            self._damaged = damaged
            raise
        return part[skipped : skipped + octets]

    async def whole(self, topic: int) -> bytes:
        """Return all octets that are written, those of a message to this topic. Raises DamagedBlock."""
        message = Fragmented(topic, 0, 0, 0, self.octets, 0)
        begins = range(0, self.octets, CHECKED_OCTETS)
        parts = [await self.read(message, begin, self.octets - begin) for begin in begins]
        return b"".join(parts)

    def drop(self) -> None:
        """Give its pages back, and what was promised to it, when the last user drops it."""
        self._users -= 1
        if self._users:
            return
        self.finish()
        self._spool.room.withdraw(self._promise)
        parts = list(self._parts())
        self._pages = array("Q")
        self._spool.drop(parts)
