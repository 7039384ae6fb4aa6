"""Many threads inside, or one alone: what keeps an environment from closing under a thread that uses it."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Gate:
    """``inside`` is for any number of threads at a time; ``alone`` waits until they have left and keeps
    others out.

    A thread that is inside must not ask for ``alone``: it would wait for itself.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._shut = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Comes in together with others."""
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Comes in when everyone has left, and keeps the others waiting."""
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._shut = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()
