"""Detecting that a file system was mounted again.

A file system that fails and is mounted again, or whose disk was unplugged for a while, may have lost data
that was not synced.  That is like a power failure, but the boot id of the machine stays the same.

The kernel has a directory in sysfs for each mounted file system and for each disk.  It creates them at every
mount, with a new inode number, so these numbers identify a mount.  The mount id of the kernel (statx) would
not do: it differs in each bind mount and mount namespace, as containers and hardened system services have
them, although the file system was not mounted again.
"""

import os
from pathlib import Path

_VARIABLE = "OMQ_MOUNT_ID"
_SYS = Path("/sys")
_KINDS = ("ext4", "xfs", "f2fs")

UNKNOWN = ""


def mount_id(path: Path) -> str:
    """Return a string that identifies the mount of the file system with ``path``, or UNKNOWN.

    The environment variable OMQ_MOUNT_ID has precedence over sysfs.  Raises OSError when the path cannot be
    accessed.
    """
    given = os.environ.get(_VARIABLE)
    if given is not None:
        return given
    number = path.stat().st_dev
    device = _SYS / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    try:
        name = device.resolve(strict=True).name
    except OSError:
        return UNKNOWN  # no block device: tmpfs, overlay, btrfs, a network file system
    for kind in _KINDS:
        try:
            mounted = (_SYS / "fs" / kind / name).stat().st_ino
        except OSError:
            continue
        return f"{kind} {name} {mounted} {device.stat().st_ino}"
    return UNKNOWN


def is_same_mount(before: str, now: str) -> bool:
    """Return whether both strings identify the same mount; True if one of them is UNKNOWN."""
    return before == now or UNKNOWN in (before, now)
