"""Room on the disk that is kept for deletions, so that one can be done when the disk is full.

LMDB never writes over a page that is in use: to delete, it writes a few new pages before any is given back.
On a disk without a free octet that fails, and so nothing could ever be deleted.  So a file of a few MiB, with
nothing in it, is truncated for a deletion, and then grows again into what the deletion left of the room.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from omq_storage.files import NO_ROOM

SPARE_FILE = "spare"

SPARE_OCTETS = 4 << 20
"""More than the deletion of a message of 1 GiB takes, where LMDB notes 8 octets for each page of 4 KiB."""

_STEP = 16 << 10


class SpareRoom:
    """The file of a store that is open.  Calls may come from any thread."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file, and lets it grow as far as there is room.  OSError when the disk fails."""
        self._turn = Lock()
        self._is_closed = False
        # Kept open, so that a deletion needs no descriptor when clients have taken all there are.
        self._file = os.open(path / SPARE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            status = os.fstat(self._file)
            self._octets = min(status.st_size, status.st_blocks * 512) // _STEP * _STEP
            self.restore()
        except BaseException:  # Ctrl-C, too
            os.close(self._file)
            raise

    @contextmanager
    def given(self) -> Iterator[None]:
        """Within the block the room is free for whoever writes; so nobody may write but the deletion."""
        with self._turn:
            os.ftruncate(self._file, 0)
            os.fsync(self._file)
            self._octets = 0
        try:
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Lets the file grow to its length again, as far as there is room.  OSError when the disk fails."""
        with self._turn:
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
        """Closes the file, whose room stays taken; calling it again does nothing."""
        with self._turn:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)
