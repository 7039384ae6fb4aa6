"""Prefetch items of a generator in a thread, so that reading and writing overlap."""

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing
from typing import Generic, TypeVar

T = TypeVar("T")

WAITING = 4
"""The greatest number of prefetched items."""

END_SECONDS = 5.0
"""The number of seconds to wait for the thread at the end; a slow server may block it longer."""


class ReadAhead(Generic[T], AbstractContextManager["ReadAhead[T]"]):
    """Iterates over a generator that runs in a thread. Leaving the block stops and closes the generator."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items
        self._queue: queue.Queue[T | _End] = queue.Queue(WAITING)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="reading ahead", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over = True
        # Make room for a blocked put, after which the thread sees `_over`.
        while not self._queue.empty():
            self._queue.get_nowait()
        self._thread.join(END_SECONDS)

    def __iter__(self) -> Iterator[T]:
        """Yield the items of the generator. Raise what it raised."""
        while True:
            item = self._queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def _run(self) -> None:
        error: Exception | None = None
        try:
            with closing(self._items):
                for item in self._items:
                    self._queue.put(item)
                    if self._over:
                        return
        except Exception as raised:  # noqa: BLE001 - it is raised again where the items are taken
            error = raised
        self._queue.put(_End(error))


class _End:
    """The last item in the queue."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
