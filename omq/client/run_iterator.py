"""Iterates over a subscription or a feed: over runs of messages, or over messages whose bodies are open."""

from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

Run = TypeVar("Run")


class RunIterator(Generic[Run]):
    """Iterates until there are no more."""

    def __init__(self, next_run: Callable[[], Awaitable[Run | None]]) -> None:
        self._next_run = next_run

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Run:
        run = await self._next_run()
        if run is None:
            raise StopAsyncIteration
        return run
