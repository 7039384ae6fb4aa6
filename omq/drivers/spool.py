"""The spool: one unnamed file for messages of transient topics that do not fit into the memory.

A subscriber that is not scheduled for a moment falls behind, and soon the memory has no room for its next
blocks. These move to the spool, and the subscriber reads them from there. The file has no name,
so nothing of it is left when the server ends, however it ends. It has a limit, and leaves the reserve of the
disk free.

The file is divided into pages (`omq.drivers.spool_pages`), which are used again in any order. A topic has
*extents* there: each is the stored value of a block in which neighbouring blocks are merged. The index
of the extents is in memory (`omq.drivers.spooled`) and counts with the tails.

Long messages never come into memory as a whole: they are written while they arrive
(`omq.drivers.spooled_bodies`).
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import EBADF
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Protocol, TypeVar

import trio
from msgspec import Struct

from omq.drivers.signal import Signal
from omq.drivers.spool_pages import PAGE_OCTETS, SpoolPages
from omq.drivers.spool_room import SpoolRoom, pages_of
from omq.drivers.spoolable import Spoolable, SpoolExtent
from omq.drivers.tail import TailMemory
from omq.logs import LogThrottle
from omq.threads import in_thread
from omq_storage.blocks import BLOCK_HEADER, SPAN_LIMIT, Block, excerpt, merge, packed_parts, unpack
from omq_storage.crc import crc32c
from omq_storage.errors import DamagedBlock
from omq_storage.lookup import VerifiedBlock
from omq_storage.numbers import SIZE
from omq_storage.pieces import InBlock, LargeMessage, located, part_with, piece_within

log = logging.getLogger("omq.spool")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
"""Linux: to read from the page cache only."""

EXTENT_OCTETS = 1 << 20
"""The greatest size of an extent with several messages: one read of it is one read of a store."""

AT_ONCE_OCTETS = 256 << 10
"""The greatest number of octets that the Trio thread reads itself, if they are in the page cache: to read
them in a thread takes longer.
"""

INDEX_OCTETS = 40
"""The octets of memory for an extent: its numbers, in an array that may have room for some more."""


class SpoolFull(Exception):
    """The spool takes no more now. The text gives the reason."""


class DiskFull(SpoolFull):
    """The spool takes no more, because the disk has only its reserve free."""

    def __init__(self) -> None:
        super().__init__("the disk has only its reserve free")


class SpoolStatistics(Struct, frozen=True):
    """The use of the spool."""

    limit: int
    """The greatest size of the file; 0 if there is no spool."""
    used: int
    """Octets of its pages with messages."""
    written: int
    """Octets written to it so far."""


class Spooling(Struct, frozen=True):
    """Consecutive blocks of one topic, to be written."""

    blocks: Sequence[Block]
    before: SpoolExtent | None
    """The extent before them, if the blocks and it are written again together."""


class _Read(Protocol[T_co]):
    def __call__(self, extent: SpoolExtent, *, is_quick: bool) -> T_co: ...


class Spool:
    """The spool of a server. Its index is in the memory of the tails."""

    is_stored = False

    def __init__(
        self, folder: Path, limit: int, reserve: int, tails: TailMemory, readers: trio.CapacityLimiter
    ) -> None:
        """Create a spool below `folder`, of at most `limit` octets, that leaves `reserve` octets of the disk
        free.
        """
        self._folder = folder
        self._reserve = reserve
        self._tails = tails
        self._readers = readers
        self._pages = SpoolPages(limit // PAGE_OCTETS)
        self._file: BinaryIO | None = None
        self._opening = Lock()
        self._is_closed = False
        self.changed = Signal()
        """Wakes the spooler."""
        self.room = SpoolRoom(self._pages, self.changed)
        """The room for long messages."""
        self.topics: dict[Spoolable, None] = {}
        """The topics with messages on it."""
        self.refused = LogThrottle.of_problem(log, "long messages were refused")
        """Logs why."""
        self._extents = 0
        self._counted = 0
        """The octets of the index that count with the tails."""
        self._written = 0
        # The following is known by the first page.
        self._large: dict[int, LargeMessage] = {}
        """The places of the messages that may have to be read in pieces: an extent has a single one then."""
        self._read_now: dict[int, int] = {}
        """The number of tasks that read an extent now, by its first page. Other extents have no entry."""
        self._dropped: set[int] = set()
        """The extents that are freed as soon as no task reads them."""

    # -- its index: see omq.drivers.tail.MemoryUser --------------------------------------------------------

    @property
    def octets(self) -> int:
        """The octets of memory that the index takes."""
        return self._extents * INDEX_OCTETS + self._pages.octets

    def _count(self) -> None:
        """Count the index as it is now with the tails."""
        before, self._counted = self._counted, self.octets
        if self._counted > before:
            self._tails.hold(self, self._counted - before)
        else:
            self._tails.shrank(self, before - self._counted)

    def __len__(self) -> int:
        return self._extents

    def forget(self, octets: int, kept: int) -> bool:
        """Drop nothing: the messages would be lost, and little memory be free."""
        return False

    # -- writing: only the spooler does --------------------------------------------------------------------

    @property
    def has_many_extents(self) -> bool:
        """Whether small extents should be joined: their index takes much memory, or their pages much of the
        file.
        """
        return self.octets > self._tails.limit // 8 or self._pages.used > self._pages.limit // 2

    async def write(self, runs: Sequence[Spooling]) -> list[list[SpoolExtent]]:
        """Write blocks, each run of another topic. Return the extents of each run.

        Raises SpoolFull.
        """
        octets = sum(block.held for run in runs for block in run.blocks)
        if self._pages.used * PAGE_OCTETS + octets > self._pages.limit * PAGE_OCTETS:
            raise SpoolFull("it has reached its limit")
        if self.octets > self._tails.limit // 4:
            raise SpoolFull("its index takes too much memory")
        written: list[list[SpoolExtent]] = []
        before = [run.before for run in runs if run.before is not None]
        try:
            with self._reading(before):
                await in_thread(partial(self._write, runs, octets, written))
        except BaseException as problem:
            for extent in chain.from_iterable(written):
                self._free(extent)
            if isinstance(problem, OSError):
                raise SpoolFull(problem.strerror or str(problem)) from problem
            raise
        self._extents += sum(map(len, written))
        self._count()
        self._written += sum(extent.octets for extents in written for extent in extents)
        return written

    def _write(self, runs: Sequence[Spooling], needed: int, written: list[list[SpoolExtent]]) -> None:
        """Write all of it, and add the extents to `written`. Raise SpoolFull and OSError."""
        file = self._opened(needed)
        for run in runs:
            blocks = run.blocks
            if run.before is not None:
                blocks = [self._read_block(run.before, is_quick=False).block, *blocks]
            extents: list[SpoolExtent] = []
            written.append(extents)
            for block in _extents_of(blocks):
                parts = packed_parts(block)
                size = sum(map(len, parts))
                is_large = size > EXTENT_OCTETS
                page = self._pages.take(pages_of(size))
                if page is None:
                    raise SpoolFull("it has reached its limit")
                if is_large:
                    self._large[page] = located(block, size, block.first)
                extents.append(SpoolExtent(block.topic, block.first, block.next, size, page))
                pages = self._pages.parts(page, pages_of(size))
                begin = 0
                for part in parts if is_large else (b"".join(parts),):
                    for place, octets in _parts(pages, range(begin, begin + len(part))):
                        _write_at(file, memoryview(part)[octets.start - begin : octets.stop - begin], place)
                    begin += len(part)

    def _opened(self, needed: int) -> int:
        """Return the descriptor of the file, if the disk has N `needed` octets beyond its reserve. Raise
        DiskFull and OSError.
        """
        with self._opening:
            if self._is_closed:
                raise OSError(EBADF, "the server ends")
            if self._file is None:
                from tempfile import TemporaryFile  # few servers need it

                self._file = TemporaryFile(dir=self._folder, prefix="spool-", buffering=0)  # noqa: SIM115 - it stays open as long as the spool
            file = self._file.fileno()
        status = os.fstatvfs(file)
        if status.f_bavail * status.f_frsize - needed < self._reserve:
            raise DiskFull
        return file

    def keeps(self, topic: Spoolable) -> None:
        """Note that messages of a topic are on the spool: the spooler drops them when nobody needs them."""
        self.topics[topic] = None
        self.changed.set()

    async def shorten(self) -> None:
        """Give the room of the file back to the disk, and its descriptor, if nothing is in it."""
        if self._file is not None and not self._pages.used:
            file, self._file = self._file, None
            try:
                await in_thread(file.close)
            finally:
                file.close()  # the thread did not, if this was cancelled before

    # -- long messages: see omq.drivers.spooled_bodies -----------------------------------------------------

    @property
    def limit(self) -> int:
        """The greatest size of the file; 0 if there is no spool."""
        return self._pages.limit * PAGE_OCTETS

    def has_disk(self, octets: int) -> bool:
        """Return whether the disk has N `octets` beyond its reserve."""
        status = os.statvfs(self._folder)
        return status.f_bavail * status.f_frsize - octets >= self._reserve

    def take(self, pages: int) -> int:
        """Take N `pages` for a part of a body, which is an extent. Return the first one. Raises SpoolFull.

        As long as they are taken, the file stays open.
        """
        page = self._pages.take(pages)
        if page is None:
            raise SpoolFull("it has reached its limit")
        self._extents += 1
        self._count()
        return page

    async def write_parts(self, parts: Sequence[tuple[SpoolExtent, int, memoryview]]) -> None:
        """Write octets, each from an index in an extent on. Raises SpoolFull, and OSError."""
        with self._reading([extent for extent, _, _ in parts]):  # so no other body gets these pages
            await in_thread(partial(self._write_parts, parts))
        self._written += sum(len(octets) for _, _, octets in parts)

    def _write_parts(self, parts: Sequence[tuple[SpoolExtent, int, memoryview]]) -> None:
        file = self._opened(sum(len(octets) for _, _, octets in parts))
        for extent, begin, octets in parts:
            pages = self._pages.parts(extent.page, pages_of(extent.octets))
            for place, part in _parts(pages, range(begin, begin + len(octets))):
                _write_at(file, octets[part.start - begin : part.stop - begin], place)

    async def read_part(self, extent: SpoolExtent, checksum: int) -> bytes:
        """Return the octets of an extent that is a part of a body. Raises DamagedBlock."""

        def read(extent: SpoolExtent, *, is_quick: bool) -> bytes:
            octets = self._read(extent, range(extent.octets), is_quick=is_quick)
            if crc32c(octets) != checksum:
                raise DamagedBlock(extent.topic, extent.first, extent.first, "a part of its body is damaged")
            return octets

        return await self._in_reader(extent, read)

    # -- reading -------------------------------------------------------------------------------------------

    async def read(self, extent: SpoolExtent) -> VerifiedBlock:
        """Return the messages of an extent. Raises DamagedBlock."""
        return await self._in_reader(extent, self._read_block)

    def _read_block(self, extent: SpoolExtent, *, is_quick: bool) -> VerifiedBlock:
        value = self._read(extent, range(extent.octets), is_quick=is_quick)
        return VerifiedBlock(unpack(extent.topic, extent.first, value), value)

    def read_at_once(self, extent: SpoolExtent) -> VerifiedBlock:
        """Return the messages of an extent, without waiting. Raises DamagedBlock; BlockingIOError if the disk
        would have to be read.
        """
        return self._read_block(extent, is_quick=True)

    async def look_at(self, extent: SpoolExtent, message: int) -> LargeMessage:
        """Find a message, for reading it piece by piece. Raises DamagedBlock."""
        large = self._large.get(extent.page)
        if large is not None:
            return large
        found = await self.read(extent)
        return located(found.block, len(found.value), message)

    async def read_piece(
        self, extent: SpoolExtent, message: LargeMessage, begin: int, octets: int
    ) -> bytes | None:
        """Return a piece of the body of a message. Raises DamagedBlock."""
        place = message.place
        assert isinstance(place, InBlock)

        def read(extent: SpoolExtent, *, is_quick: bool) -> bytes | None:
            part = self._read(extent, part_with(message, place, begin), is_quick=is_quick)
            return piece_within(place, part, begin, octets)

        return await self._in_reader(extent, read)

    async def _in_reader(self, extent: SpoolExtent, read: _Read[T]) -> T:
        if extent.octets <= AT_ONCE_OCTETS:
            try:
                return read(extent, is_quick=True)
            except BlockingIOError:
                pass  # it is not in the page cache
        with self._reading((extent,)):
            return await in_thread(partial(read, extent, is_quick=False), limiter=self._readers)

    @contextmanager
    def _reading(self, extents: Sequence[SpoolExtent]) -> Iterator[None]:
        """Leave the pages of these extents alone during the block."""
        readers = self._read_now
        for extent in extents:
            readers[extent.page] = readers.get(extent.page, 0) + 1
        try:
            yield
        finally:
            for extent in extents:
                readers[extent.page] -= 1
                if not readers[extent.page]:
                    del readers[extent.page]
                    if extent.page in self._dropped:
                        self._dropped.discard(extent.page)
                        self._free(extent)

    def _read(self, extent: SpoolExtent, octets: range, *, is_quick: bool) -> bytes:
        """Return these octets of the stored value of an extent. Raises DamagedBlock; and BlockingIOError if
        `is_quick` is set and the disk would have to be read.
        """
        assert self._file is not None, "nothing was written"
        if is_quick and not _NOWAIT:
            raise BlockingIOError
        file = self._file.fileno()
        value = bytearray(len(octets))
        pages = self._pages.parts(extent.page, pages_of(extent.octets))
        try:
            for place, part in _parts(pages, octets):
                view = memoryview(value)[part.start - octets.start : part.stop - octets.start]
                count = os.preadv(file, [view], place, _NOWAIT if is_quick else 0)
                if is_quick and count < len(part):
                    raise BlockingIOError
        except BlockingIOError:
            raise
        except OSError as problem:
            if is_quick:  # not every file system can tell
                raise BlockingIOError from problem
            why = problem.strerror or str(problem)
            raise DamagedBlock(extent.topic, extent.first, extent.next - 1, why) from problem
        return bytes(value)

    # -- the rest ------------------------------------------------------------------------------------------

    def drop(self, extents: Iterable[SpoolExtent]) -> None:
        """Free the pages of extents, of each as soon as nobody reads it."""
        for extent in extents:
            self._extents -= 1
            if extent.page in self._read_now:
                self._dropped.add(extent.page)
            else:
                self._free(extent)
        self._count()

    def _free(self, extent: SpoolExtent) -> None:
        self._large.pop(extent.page, None)
        self._pages.give(extent.page, pages_of(extent.octets))
        self._count()
        self.room.freed()
        if not self._pages.used:
            self.changed.set()

    def statistics(self) -> SpoolStatistics:
        """Return the use of the spool."""
        pages = self._pages
        return SpoolStatistics(pages.limit * PAGE_OCTETS, pages.used * PAGE_OCTETS, self._written)

    def close(self) -> None:
        """Close the file: then nothing of it is left. Nobody reads any more. A thread that is about to write
        fails.
        """
        with self._opening:
            file, self._file, self._is_closed = self._file, None, True
        if file is not None:
            file.close()


def _parts(pages: Sequence[range], octets: range) -> Iterator[tuple[int, range]]:
    """Yield the pieces in the file of these octets of the value in these pages: a place, and the octets
    there.
    """
    begin = 0
    for some in pages:
        end = begin + len(some) * PAGE_OCTETS
        part = range(max(begin, octets.start), min(end, octets.stop))
        if part:
            yield some.start * PAGE_OCTETS + part.start - begin, part
        begin = end


def _write_at(file: int, octets: memoryview, place: int) -> None:
    """Write all of these octets. Raise OSError."""
    while octets:
        count = os.pwrite(file, octets, place)
        octets = octets[count:]
        place += count


def _extents_of(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield consecutive blocks merged into extents."""
    gathered: list[Block] = []
    octets = 0
    for block in chain.from_iterable(map(_divided, blocks)):
        more = _octets_at_most(block)
        if gathered and (
            octets + more > EXTENT_OCTETS or block.time + block.span - gathered[0].time >= SPAN_LIMIT
        ):
            yield merge(gathered)
            gathered, octets = [], 0
        gathered.append(block)
        octets += more
    yield merge(gathered)


def _octets_at_most(block: Block) -> int:
    """Return the greatest number of octets that the messages of a block take in a stored value."""
    return BLOCK_HEADER + block.held + 3 * SIZE * block.count


def _divided(block: Block) -> Iterator[Block]:
    """Yield the messages of a block in blocks that fit into an extent, if possible."""
    if block.count == 1 or _octets_at_most(block) <= EXTENT_OCTETS:
        yield block
        return
    first = block.first
    octets = 0
    for message in range(block.first, block.next):
        more = len(block.frame(message)) + len(block.head(message)) + 3 * SIZE
        if message > first and octets + more > EXTENT_OCTETS // 2:
            yield excerpt(block, first, message)
            first, octets = message, 0
        octets += more
    yield excerpt(block, first, block.next)
