"""Let the server's thread run soon after it has something to do.

All messages pass one thread, which mostly waits for sockets and works for less than a millisecond at a time.
When all processors are busy, it waits for the turns of other threads to end: those of the server, which check
secrets or read the store, and those of other programs. Since Linux 6.12 a thread may ask for short turns,
with the same share of the processors. When it wakes up, it runs before threads with longer turns.

It also waits for the interpreter. Python lets a thread that computes in Python go on for 5 ms while another
one waits, and the server's thread waits after each system call. So it would serve nobody while a thread reads
the configuration or imports a module, except for one step in 5 ms.
"""

import ctypes
import os
import platform
import sys

TURN_NANOSECONDS = 100_000
"""The length of a turn: the shortest that Linux grants. Its default is some milliseconds."""

HOLD_SECONDS = 0.0005
"""The number of seconds after which a thread that computes in Python lets another one run that waits."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, which the C library has no function for before glibc 2.41."""

_RESET_ON_FORK = 1
"""The threads that this one starts have turns of the default length. They lose a negative niceness, too."""


class _Attributes(ctypes.Structure):
    """The `sched_attr` of Linux, as far as its first version goes."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def shorten_holds() -> None:
    """Make no thread of this process hold the interpreter much longer than HOLD_SECONDS while others wait.

    Call it before the server's thread has others beside it. That is interrupted as well, but seldom: its
    steps are short, and the system calls between them let the others run.
    """
    sys.setswitchinterval(HOLD_SECONDS)


def ask_for_short_turns() -> bool:
    """Ask for this thread, and not for those that it starts later. Return whether the kernel has accepted
    that: before 6.12 it does so without an effect.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False  # the server was started with another policy, which decides about its turns
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    flags = _RESET_ON_FORK if nice >= 0 else 0
    attributes = _Attributes(
        ctypes.sizeof(_Attributes), os.SCHED_OTHER, flags, nice, runtime=TURN_NANOSECONDS
    )
    call = ctypes.CDLL(None).syscall
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.POINTER(_Attributes), ctypes.c_uint)
    refused: int = call(number, 0, ctypes.byref(attributes), 0)
    return not refused
