"""How the C library keeps memory that was freed.

Every commit allocates some megabytes, and frees them when it is written. Left to itself, glibc gives such
memory back to the kernel at once, which has to clear and map pages anew for the next commit: with large
commits that takes more time than all else (docs/PERFORMANCE.md). So a server has it kept, within bounds.

But the bounds are for memory at the end of each arena. What is free below something that is in use stays too,
and after a crowd of clients that can be all they had. So it is looked at now and then, and when it is much it
is given back. That takes some 10 ms for each 100 MiB, in which nobody allocates, so it is not done for a
little.
"""

import ctypes
import logging
import os

from omq.drivers.rounds import repeat
from omq.threads import in_thread

KEPT_OCTETS = 16 << 20
"""How much freed memory at the end of each arena stays with the process."""

MAPPED_OCTETS = 32 << 20
"""Only a piece of memory of this size is given back as soon as it is freed: the most that glibc allows."""

ARENAS = 4
"""How many arenas there may be: threads share them, as they share the interpreter."""

LOOK_SECONDS = 5.0
"""How often it is looked at how much is kept."""

MUCH_OCTETS = 64 << 20
"""How much must be kept that it is given back: as much as the ends of all arenas may have."""

log = logging.getLogger("omq.server")

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h


def keep_freed_memory() -> bool:
    """Have glibc keep what is freed; False where the C library is another one, which is left as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = ctypes.c_int, ctypes.c_int
    mallopt.restype = ctypes.c_int
    settings = ((_TRIM_THRESHOLD, KEPT_OCTETS), (_MMAP_THRESHOLD, MAPPED_OCTETS), (_ARENA_MAX, ARENAS))
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


class Glibc:
    """glibc from 2.33 on. Raises OSError and AttributeError where the C library is another one."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._mallinfo2, self._malloc_trim = library.mallinfo2, library.malloc_trim
        self._mallinfo2.restype = _Counts
        self._malloc_trim.argtypes = (ctypes.c_size_t,)
        # Kept open, so that a look needs no descriptor when clients have taken all there are.
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)

    def close(self) -> None:
        os.close(self._statm)

    def in_use(self) -> int:
        counts = self._mallinfo2()
        return int(counts.uordblks + counts.hblkhd)

    def resident(self) -> int:
        # What is shared is not of interest: those are the pages of LMDB's files.
        _, resident, shared, *_ = map(int, os.pread(self._statm, 256, 0).split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def trim(self) -> None:
        self._malloc_trim(0)


class Returns:
    """When memory is given back."""

    def __init__(self, library: Glibc) -> None:
        self._library = library
        # What the process has besides what is in use: hardly more than this, when nothing free is kept.
        self._besides = library.resident() - library.in_use()

    def look(self) -> int:
        """Give back what is kept, if it is much; how many octets less that made."""
        library = self._library
        resident = library.resident()
        besides = resident - library.in_use()
        if besides - self._besides < MUCH_OCTETS:
            self._besides = min(self._besides, besides)
            return 0
        library.trim()
        left = library.resident()
        self._besides = left - library.in_use()
        return resident - left


async def give_back_much() -> None:
    """Give freed memory back when much of it is kept, until cancelled."""
    try:
        library = Glibc()
    except (OSError, AttributeError):
        return
    try:
        returns = Returns(library)

        async def look() -> None:
            octets = await in_thread(returns.look)
            if octets:
                log.debug("%d MiB of freed memory were given back", octets >> 20)

        await repeat(log, "freed memory could not be given back", LOOK_SECONDS, look)
    finally:
        library.close()
