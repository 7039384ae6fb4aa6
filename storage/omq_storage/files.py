"""Making files and directories that are still there after a power failure."""

import errno
import os
from pathlib import Path
from typing import BinaryIO

NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""What the operating system answers when it will not store more."""

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
"""What is made belongs to its user alone, whatever the umask: it holds messages."""

_PROBE = 1 << 20


def has_room(path: Path) -> bool:
    """Whether this file could grow by 1 MiB, tried with a file beside it.  OSError when that fails otherwise.

    The other file has a hole as large as this one, so that it meets the same limits to the size of a file.
    """
    probe = path.with_name(path.name + ".probe")
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT, FILE_MODE)
        try:
            return os.pwrite(descriptor, bytes(_PROBE), path.stat().st_size) == _PROBE
        finally:
            os.close(descriptor)
            probe.unlink()
    except OSError as error:
        if error.errno in NO_ROOM:
            return False
        raise


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable; OSError when that fails."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, as far as they are missing, durably.  OSError when that fails:
    NotADirectoryError, with its name, where one of them is something else.
    """
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_directory(path.parent)
    try:
        path.mkdir(DIRECTORY_MODE, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    sync_directory(path.parent)


def create(path: Path) -> BinaryIO:
    """Opens a file for writing, empty, which nobody else may read.  OSError when that fails."""
    path.unlink(missing_ok=True)  # one that is there would keep the mode that it has
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb")


def write_durably(path: Path, content: bytes) -> None:
    """Makes or replaces a file: after a power failure it has the old content or the new, never another."""
    fresh = path.with_name(path.name + ".new")
    with create(fresh) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
