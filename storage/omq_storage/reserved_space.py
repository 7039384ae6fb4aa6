"""Disk space that is reserved for deletions, so that messages can be deleted when the disk is full.

LMDB never overwrites a page in use: a deletion writes a few new pages before it frees any.  On a full disk
that fails, so nothing could ever be deleted.  So the store has a file of a few MiB without content.  For a
deletion the file is truncated.  Afterwards it grows again, as far as the deletion has left room.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from omq_storage.files import NO_ROOM

SPARE_FILE = "spare"

SPARE_OCTETS = 4 << 20
"""More than the deletion of a message of 1 GiB needs: LMDB lists 8 octets for each freed page of 4 KiB."""

_STEP = 16 << 10


class ReservedSpace:
    """The reserved space of an open store.  Any call may come from any thread."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and let it grow as far as there is room.  Raises OSError if the disk
        fails.
        """
        self._lock = Lock()
        self._is_closed = False
        # Stays open, so that a deletion works when connections have taken all file descriptors.
        self._file = os.open(path / SPARE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            status = os.fstat(self._file)
            self._octets = min(status.st_size, status.st_blocks * 512) // _STEP * _STEP
            self.restore()
        except BaseException:  # Ctrl-C, too
            os.close(self._file)
            raise

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the space during the block.

        Only the deletion may write then, or others would use it up.
        """
        with self._lock:
            os.ftruncate(self._file, 0)
            os.fsync(self._file)
            self._octets = 0
        try:
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Let the file grow to its full size, as far as there is room.  Raises OSError if the disk fails."""
        with self._lock:
            while self._octets < SPARE_OCTETS:
                try:
                    if os.pwrite(self._file, bytes(_STEP), self._octets) < _STEP:
                        return
                except OSError as error:
                    if error.errno in NO_ROOM:
                        return
                    raise
                self._octets += _STEP

    def close(self) -> None:
        """Close the file; the space stays reserved.  A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)
