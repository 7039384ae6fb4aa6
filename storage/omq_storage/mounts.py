"""Which mounting of a file system a file lies in.

A file system that fails and is mounted again, or whose disk is unplugged and plugged in again, may have lost
what was not synced, as after a power failure, although the machine ran on.  The kernel has a directory in
sysfs for each file system that it has mounted, and for each disk.  It makes them anew each time, with another
inode number.  Bind mounts and mount namespaces, as of containers and of hardened system services, do not
change them; they would change the id of a mount.
"""

import os
from pathlib import Path

_VARIABLE = "OMQ_MOUNT_ID"
_SYS = Path("/sys")
_KINDS = ("ext4", "xfs", "f2fs")

UNKNOWN = ""


def mounting(path: Path) -> str:
    """Names the mounting of the file system that ``path`` lies in; UNKNOWN where it cannot be told.

    The environment variable OMQ_MOUNT_ID, when it is set, or else what sysfs says.  OSError when the path
    cannot be looked at.
    """
    given = os.environ.get(_VARIABLE)
    if given is not None:
        return given
    number = path.stat().st_dev
    device = _SYS / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    try:
        name = device.resolve(strict=True).name
    except OSError:
        return UNKNOWN  # it lies on no disk of its own: tmpfs, overlay, btrfs, a network file system
    for kind in _KINDS:
        try:
            mounted = (_SYS / "fs" / kind / name).stat().st_ino
        except OSError:
            continue
        return f"{kind} {name} {mounted} {device.stat().st_ino}"
    return UNKNOWN


def is_same(before: str, now: str) -> bool:
    """Whether nothing was mounted in between, as far as that can be told."""
    return before == now or UNKNOWN in (before, now)
