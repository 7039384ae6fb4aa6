"""A thread that reads ahead a little, so that reading and writing wait at the same time."""

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing
from typing import Generic, TypeVar

T = TypeVar("T")

WAITING = 4
"""How many items wait to be taken."""

END_SECONDS = 5.0
"""How long the thread is waited for: a server may keep it longer."""


class Ahead(Generic[T], AbstractContextManager["Ahead[T]"]):
    """The items of a generator, which runs in a thread and is closed there. Leaving the block ends that."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items
        self._queue: queue.Queue[T | _End] = queue.Queue(WAITING)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="reading ahead", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over = True
        # Room for one that waits for it; it then sees that it is over.
        while not self._queue.empty():
            self._queue.get_nowait()
        self._thread.join(END_SECONDS)

    def __iter__(self) -> Iterator[T]:
        """Raises what the generator raised."""
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
        except Exception as raised:  # noqa: BLE001 (it is raised again where the items are taken)
            error = raised
        self._queue.put(_End(error))


class _End:
    """Nothing comes behind this."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
