"""How the C library keeps memory that was freed.

Every commit allocates some megabytes, and frees them when it is written. Left to itself, glibc gives such
memory back to the kernel at once, which has to clear and map pages anew for the next commit: with large
commits that takes more time than all else (docs/PERFORMANCE.md). So a server has it kept, within bounds.
"""

import ctypes

KEPT_OCTETS = 16 << 20
"""How much freed memory at the end of each arena stays with the process."""

MAPPED_OCTETS = 32 << 20
"""Only a piece of memory of this size is given back as soon as it is freed: the most that glibc allows."""

ARENAS = 4
"""How many arenas there may be: threads share them, as they share the interpreter."""

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
