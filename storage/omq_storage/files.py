"""Creating files and directories that survive a power failure."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""The errors of a write for which the file system has no room."""

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
"""Only the user of the server may read its files, under any umask: they hold messages."""

_PROBE = 1 << 20

_BLOCK = 512
"""The unit of `st_blocks` in octets."""


def has_room(path: Path) -> bool:
    """Return whether this file could grow by 1 MiB, from a test with a file beside it.

    The test file begins with a hole of the size of this one, so that the same limit of the file size applies.
    Raises OSError when the test fails for another reason.
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


def allocate(path: Path, octets: int) -> None:
    """Reserve blocks of the disk for the first N ``octets`` of a file, if it has them; create the file.

    The content of the file does not change.  Raises OSError, also if the file system has no room for what the
    file lacks.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        os.posix_fallocate(descriptor, 0, octets)
    except OSError as error:
        has_all = os.fstat(descriptor).st_blocks * _BLOCK >= octets
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL) and not (error.errno in NO_ROOM and has_all):
            raise
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable.  Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner(path: Path) -> None:
    """Give files and directories of root below a directory to the owner of the directory.

    Does nothing for other users than root, who cannot change owners.  Raises OSError.
    """
    root = 0
    if os.geteuid() != root:
        return
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        owner = os.fstat(directory)
        if owner.st_uid == root:
            return
        # Not by the path: the owner of a directory above may let it lead to another one meanwhile.
        for _, directories, files, parent in os.fwalk(".", dir_fd=directory):
            for name in (*directories, *files):
                _give(name, parent, owner, root)
    finally:
        os.close(directory)


def _give(name: str, parent: int, owner: os.stat_result, giver: int) -> None:
    """Give a file or a directory to this owner, if it is the giver's, and at no other place, too.

    The owner of the directory may change it meanwhile, and must not get a file of another place by that.
    """
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if found.st_uid != giver or not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == giver and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a directory, and those above it if they are missing; durable on return.

    Raises OSError; NotADirectoryError, with the path, if one of them exists and is no directory.
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
    """Open an empty file for writing that no other user may read.  Raises OSError."""
    path.unlink(missing_ok=True)  # an existing file would keep its mode
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb")


def write_durably(path: Path, content: bytes) -> None:
    """Create or replace a file.  After a power failure it has either the old or the new content.

    Raises OSError.
    """
    fresh = path.with_name(path.name + ".new")
    with create(fresh) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)
