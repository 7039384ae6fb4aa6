"""The settings of the C library for memory that was freed.

Every commit allocates some megabytes, and frees them afterwards. By default glibc returns such memory to the
kernel at once, and the kernel must clear and map pages again for the next commit: with large commits that
takes more time than everything else (docs/PERFORMANCE.md). So the server makes glibc keep freed memory,
within bounds.

But the bounds apply only to the end of each arena. glibc also keeps free memory below an allocation in use,
and after a peak of clients that can be most of what they used. So the server checks the amount at intervals,
and returns the free pages that lie between allocations too: large amounts at once, smaller ones when they
have been there for some seconds. That takes about 10 ms for each 100 MiB, in which no thread can allocate,
and a server that commits all the time needs the same memory again at once. So where free memory comes back
after it was returned, the server waits longer before it returns it again.

By default glibc keeps small pieces that were freed in lists of their own (fastbins), and joins all of them
with their neighbours when a large piece is freed or needed. After the end of 10,000 bindings or queues that
took 10 to 50 ms at some later time, in which no task could run. So the server makes glibc join each piece at
once.

The objects of Python are in this memory too where `omq-server` was started as a command (omq/cli/start.py).
"""

import ctypes
import logging
import os
from typing import Protocol

from omq.cli.collector import drop_spare_objects
from omq.drivers.rounds import repeat
from omq.threads import in_thread

KEPT_OCTETS = 16 << 20
"""The most freed memory that glibc keeps at the end of each arena."""

MAPPED_OCTETS = 32 << 20
"""glibc returns only allocations of at least this size at once: the greatest threshold that it allows."""

ARENAS = 4
"""The number of arenas: threads share them, as they share the interpreter."""

FAST_OCTETS = 0
"""The size of pieces that glibc does not join with their neighbours at once, in octets: there are none."""

LOOK_SECONDS = 2.5
"""The interval of the checks."""

MUCH_OCTETS = 64 << 20
"""The amount of kept memory that the server returns at once: as much as the ends of all arenas may have."""

LITTLE_OCTETS = 4 << 20
"""The amount of kept memory that the server never returns."""

FIRST_LOOKS, MOST_LOOKS = 2, 24
"""The number of consecutive checks that must find more than that before the server returns it: at first, and
while it comes back every time.
"""

log = logging.getLogger("omq.server")

_MXFAST, _TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = 1, -1, -3, -8  # malloc.h


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory. Return False, and change nothing, if the C library is another one."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = ctypes.c_int, ctypes.c_int
    mallopt.restype = ctypes.c_int
    settings = (
        (_TRIM_THRESHOLD, KEPT_OCTETS),
        (_MMAP_THRESHOLD, MAPPED_OCTETS),
        (_ARENA_MAX, ARENAS),
        (_MXFAST, FAST_OCTETS),
    )
    results = [mallopt(option, value) for option, value in settings]
    return all(result == 1 for result in results)


class _Counts(ctypes.Structure):
    """`struct mallinfo2`, malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


class Library(Protocol):
    """The memory of the process, as the C library has it."""

    def in_use(self) -> int:
        """Return the number of allocated octets."""

    def resident(self) -> int:
        """Return the number of octets that the process has of its own."""

    def trim(self) -> None:
        """Return all free pages to the kernel."""


class Glibc:
    """glibc from 2.33 on. Raises OSError or AttributeError if the C library is another one."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._mallinfo2, self._malloc_trim = library.mallinfo2, library.malloc_trim
        self._mallinfo2.restype = _Counts
        self._malloc_trim.argtypes = (ctypes.c_size_t,)
        # Keep the file open, so that a check works even when clients use all descriptors.
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)

    def close(self) -> None:
        os.close(self._statm)

    def in_use(self) -> int:
        counts = self._mallinfo2()
        return int(counts.uordblks + counts.hblkhd)

    def resident(self) -> int:
        # Subtract shared pages: those belong to LMDB's files.
        _, resident, shared, *_ = map(int, os.pread(self._statm, 256, 0).split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def trim(self) -> None:
        self._malloc_trim(0)


class Returns:
    """Decides on the times at which memory is returned."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._least = self._lowest = library.resident()
        """The least resident memory ever, and since memory was returned."""
        # The resident memory besides allocations: about constant while glibc keeps no free memory.
        self._besides = self._lowest - library.in_use()
        self._looks = 0
        """The number of checks in a row that found more than a little."""
        self._patience = FIRST_LOOKS
        self._calm = 0
        """The number of checks since memory was returned."""
        self._uncounted = 0
        """The number of checks since glibc counted no more than a little."""
        self._until_count = FIRST_LOOKS
        """The number of such checks after which it counts again: more each time, up to MOST_LOOKS."""

    def look(self) -> int:
        """Return kept memory to the kernel if it is large. Return the number of octets by which the process
        shrank.
        """
        kept = self._kept()
        self._calm += 1
        self._looks = self._looks + 1 if kept > LITTLE_OCTETS else 0
        if kept < MUCH_OCTETS and self._looks < self._patience:
            return 0
        comes_back = self._calm <= 2 * self._patience
        self._patience = min(2 * self._patience, MOST_LOOKS) if comes_back else FIRST_LOOKS
        self._looks = self._calm = 0
        return self._trim()

    def _kept(self) -> int:
        """Return an estimate of the free memory that glibc keeps."""
        resident = self._library.resident()
        self._least, self._lowest = min(self._least, resident), min(self._lowest, resident)
        # A count takes long: glibc goes through every free piece. So do not count if little can be free. It
        # may be more only if memory in use at the last return is free now: then count seldom, and most often
        # right after that return, since the clients of a large load leave one after another.
        self._uncounted += 1
        is_near = resident - self._lowest <= LITTLE_OCTETS and self._uncounted <= self._until_count
        if is_near or resident - self._least <= LITTLE_OCTETS:
            return 0
        besides = resident - self._library.in_use()
        self._besides = min(self._besides, besides)
        kept = besides - self._besides
        if kept <= LITTLE_OCTETS:
            self._uncounted = 0
            self._until_count = min(2 * self._until_count, MOST_LOOKS)
        return kept

    def _trim(self) -> int:
        before = self._library.resident()
        drop_spare_objects()
        self._library.trim()
        self._lowest = self._library.resident()
        self._uncounted, self._until_count = 0, FIRST_LOOKS
        self._besides = self._lowest - self._library.in_use()
        return before - self._lowest


async def give_back_much() -> None:
    """Return freed memory to the kernel when it is much, or has been there for long, until cancelled."""
    try:
        library = Glibc()
    except (OSError, AttributeError):
        return
    try:
        returns = Returns(library)

        async def look() -> None:
            octets = await in_thread(returns.look)
            if octets:
                log.debug("returned %d MiB of freed memory to the kernel", octets >> 20)

        await repeat(log, "freed memory could not be returned to the kernel", LOOK_SECONDS, look)
    finally:
        library.close()
