"""LMDB's places for readers, of which this process keeps some for itself.

All processes that have an environment open share 1,024 places, and every read transaction takes one.  Another
process that takes all of them would keep this one from reading and from taking checkpoints.  So some are
taken when the environment is opened, and kept: LMDB leaves its place to a transaction that was reset, and
py-lmdb resets a read transaction that is aborted, and gives its place back only with the object.
"""

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lmdb import Environment as LmdbEnvironment
    from lmdb import Transaction as LmdbTransaction

KEPT = 32
"""More than there are threads that read at a time, and snapshots."""

Copying: TypeAlias = "LmdbTransaction[bytes]"
"""A transaction whose values are copies."""

Viewing: TypeAlias = "LmdbTransaction[memoryview[int]]"
"""A transaction whose values are views of the map."""

Either: TypeAlias = "LmdbTransaction[bytes] | LmdbTransaction[memoryview[int]]"


class Places:
    """Read transactions of one open environment.  Any call may come from any thread."""

    def __init__(self, environment: "LmdbEnvironment") -> None:
        """Takes the places.  Raises lmdb.Error when there are too few."""
        self._environment = environment
        self._turn = Lock()
        self._kept: deque[Either] = deque(environment.begin() for _ in range(KEPT))
        for transaction in self._kept:
            transaction.abort()

    def begin(self) -> Copying:
        """A read transaction, to be given to ``end``.  Raises lmdb.Error."""
        with self._turn:
            self._give_one_to_the_next()
            return self._environment.begin()

    def begin_viewing(self) -> Viewing:
        """As ``begin``, for views of the map."""
        with self._turn:
            self._give_one_to_the_next()
            return self._environment.begin(buffers=True)

    def end(self, transaction: Either) -> None:
        """Ends a read transaction, and keeps its place."""
        transaction.abort()
        with self._turn:
            if len(self._kept) < KEPT:
                self._kept.append(transaction)

    def _give_one_to_the_next(self) -> None:
        """Frees a kept transaction: py-lmdb has the next one that is begun go on in its place.

        It takes the one that ended first, which nobody refers to any more.
        """
        if self._kept:
            self._kept.popleft()
