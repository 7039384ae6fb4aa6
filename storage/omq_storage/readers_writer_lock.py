"""A readers-writer lock: several threads share it, or one thread holds it alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


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

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with other threads."""
        with self._changed:
            while self._has_writer:
                self._changed.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                if not self._readers:
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
