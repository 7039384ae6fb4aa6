"""The base of sinks, subscriptions, feeds and fetches: each is open until `close` or the end of a block."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from omq.blocking.portal import Entered, Portal
from omq.client import ConnectionLost

T = TypeVar("T")
Item = TypeVar("Item")
Items = TypeVar("Items", bound=AsyncIterator[Any])


class EnteredContext(AbstractContextManager["EnteredContext[T]"], Generic[T]):
    """A context manager of `omq.client` that was entered. Leaving the block leaves it."""

    def __init__(self, portal: Portal, entered: Entered[T]) -> None:
        self._portal = portal
        self._entered = entered
        self._opened = entered.value.get()
        self._is_left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_left = True
        self._portal.leave(self._entered, whole=error is None)

    def _leave(self) -> None:
        """Leave as at the end of a block without an exception. A second call has the same outcome."""
        self._is_left = True
        self._portal.leave(self._entered, whole=True)


class EnteredIterator(EnteredContext[T]):
    """One that the caller reads: closing it loses nothing that the caller needs."""

    def __iter__(self) -> Self:
        return self

    def close(self) -> None:
        """Close it, as at the end of a `with` block. A second call does nothing."""
        try:
            self._leave()
        except ConnectionLost:
            pass  # the client was closed before


class EnteredItems(EnteredIterator[Items], Generic[Items, Item]):
    """One whose asynchronous iterator gives the items that the caller gets."""

    def __init__(self, portal: Portal, entered: Entered[Items]) -> None:
        super().__init__(portal, entered)
        # The client's thread fills it: an item that has come when Ctrl-C interrupts the call is not lost.
        self._items: deque[Item] = deque()

    def __next__(self) -> Item:
        if not self._items:
            self._portal.call(self._take)
        if not self._items:
            raise StopIteration
        return self._items.popleft()

    async def _take(self) -> None:
        async for item in self._opened:
            self._items.append(item)
            return
