"""The entry points of the commands `omq` and `omq-server`, before the slow imports."""

import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn

CACHED = "glibc.malloc.tcache_count=32"
"""The number of freed pieces that the cache of a thread has of each size up to 1,032 octets: 1 MiB in all."""

_STDERR = 2


def main() -> NoReturn:
    """Run the command and exit. Ctrl-C ends it without a traceback at any time."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        # While modules load there is nothing to clean up, so let Ctrl-C end the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _take_standard_descriptors()
    run: Callable[[], NoReturn]
    if sys.argv[1:2] == ["store"]:
        from omq.cli import store

        run = partial(store.main, sys.argv[2:])
    elif sys.argv[1:2] in (["completion"], ["man"]):
        from omq.cli import reference

        run = partial(reference.main, sys.argv[1:])
    else:
        from omq.cli import client

        run = client.main
    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(1)


def serve() -> NoReturn:
    """Run `omq-server`, with all objects of Python in the memory of the C library.

    Python's own allocator returns memory in arenas of 1 MiB, and only those in which no object is left: after
    a crowd of clients nearly every arena has one. glibc returns single pages (omq/cli/allocator.py). Which
    allocator Python uses is decided before it starts, by a variable of the environment, so this starts it
    again, in the same process. A choice that is in the environment already is respected.

    glibc keeps some freed pieces of each size in a cache of the thread, 7 by default. Python frees and makes
    more small objects than that at a time, so this also makes the cache larger (CACHED).
    """
    # The server handles these signals once it runs. Until then they must not end it; ignored signals stay
    # ignored in the interpreter that is started below. While modules load, Ctrl-C ends the process at once.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # SIGTERM waits until `server.run` receives it and stops in order; blocked signals stay blocked, too.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "PYTHONMALLOC" not in os.environ and _can_return_pages():
        os.environ["PYTHONMALLOC"] = "malloc"
        # The later one of two values for the same setting has effect.
        chosen = os.environ.get("GLIBC_TUNABLES")
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (CACHED, chosen)))
        # If the interpreter cannot be started again, the server runs all the same, and keeps more memory.
        with suppress(OSError):
            os.execv(sys.executable, sys.orig_argv)
    _take_standard_descriptors()
    # Without it, errors at the start would go to standard output, and no stack could be printed.
    with suppress(OSError):
        sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)
    from omq.cli import server

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        server.main()
    except KeyboardInterrupt:
        sys.exit(1)
    sys.exit(0)


def _take_standard_descriptors() -> None:
    """Open /dev/null at those of the descriptors 0 to 2 with which the process was not started.

    Otherwise a file of the store may get such a number, and the interpreter and the C library write what they
    report of a crash into it. The streams of Python stay None.
    """
    with suppress(OSError):  # without /dev/null, the command runs all the same
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            pass
        os.close(descriptor)


def _can_return_pages() -> bool:
    """Return whether the C library is glibc from 2.33 on, which tells the amount of free memory that it
    keeps.
    """
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return False
    found = re.match(r"(\d+)\.(\d+)", version)
    return name == "glibc" and found is not None and (int(found[1]), int(found[2])) >= (2, 33)
