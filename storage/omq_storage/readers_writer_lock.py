"""A readers-writer lock: several threads share it, or one thread holds it alone."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Condition


class _Shared:
    """A context manager without a state of its own, so one serves all threads and all their blocks."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._end()


class ReadersWriterLock:
    """Any number of threads may hold the lock as ``shared``; a thread that holds it as ``exclusive`` is
    alone.

    A waiting ``exclusive`` stops later ``shared`` requests, so it cannot starve.  The lock is not reentrant:
    a thread that holds it as ``shared`` and asks for ``exclusive`` waits for itself.  It must not ask for
    ``shared`` a second time either, because an ``exclusive`` request may be waiting between the two.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._readers = 0
        self._has_writer = False  # from the moment it begins to wait for the readers
        self._shared = _Shared(self._begin, self._end)

    def shared(self) -> AbstractContextManager[None]:
        """Return a context manager that holds the lock together with other threads."""
        return self._shared

    def _begin(self) -> None:
        with self._changed:
            while self._has_writer:
                self._changed.wait()
            self._readers += 1

    def _end(self) -> None:
        with self._changed:
            self._readers -= 1
            if self._has_writer and not self._readers:
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait until no other thread holds the lock, then hold it alone."""
        with self._changed:
            while self._has_writer:
                self._changed.wait()
            self._has_writer = True
            while self._readers:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._has_writer = False
                self._changed.notify_all()
