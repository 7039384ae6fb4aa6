"""Slots of LMDB's reader table that this process reserves for itself.

All processes that have an environment open share a table of 1,024 slots, and every read transaction takes
one.  Another process that takes all of them would stop this process from reading and from taking checkpoints.
So this process takes some slots when it opens the environment, and keeps them.

How a slot is kept: LMDB leaves its slot to a read transaction that is reset instead of aborted, and py-lmdb
resets a read transaction when its ``abort`` is called.  When the Python object is freed, py-lmdb keeps the
transaction, with its slot, as a spare one for the next ``begin`` (``max_spare_txns=1`` of the environment).
"""

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lmdb import Environment as LmdbEnvironment
    from lmdb import Transaction as LmdbTransaction

SLOTS_KEPT = 32
"""More than the threads that read at a time and the snapshots of checkpoints together need."""

Copying: TypeAlias = "LmdbTransaction[bytes]"
"""A transaction whose values are copies."""

Viewing: TypeAlias = "LmdbTransaction[memoryview[int]]"
"""A transaction whose values are views of the map."""

Either: TypeAlias = "LmdbTransaction[bytes] | LmdbTransaction[memoryview[int]]"


class ReaderSlots:
    """The reserved slots of one open environment.  Any call may come from any thread."""

    def __init__(self, environment: "LmdbEnvironment") -> None:
        """Reserve the slots.  Raises lmdb.Error when too few are free."""
        self._environment = environment
        self._lock = Lock()
        self._kept: deque[Either] = deque(environment.begin() for _ in range(SLOTS_KEPT))
        for transaction in self._kept:
            transaction.abort()

    def begin(self) -> Copying:
        """Begin a read transaction; the caller gives it to ``end``.  Raises lmdb.Error."""
        with self._lock:
            self._free_one_slot()
            return self._environment.begin()

    def begin_viewing(self) -> Viewing:
        """Begin a read transaction whose values are views of the map.  Raises lmdb.Error."""
        with self._lock:
            self._free_one_slot()
            return self._environment.begin(buffers=True)

    def end(self, transaction: Either) -> None:
        """End a read transaction and keep its slot."""
        transaction.abort()
        with self._lock:
            if len(self._kept) < SLOTS_KEPT:
                self._kept.append(transaction)

    def _free_one_slot(self) -> None:
        """Drop one kept transaction, so that py-lmdb reuses its slot for the next ``begin``.

        The oldest one goes: nothing refers to it any more, so dropping it frees it at once.
        """
        if self._kept:
            self._kept.popleft()
