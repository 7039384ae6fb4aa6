"""Reserves message ids durably before they are assigned, so that no id gets a second meaning."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import trio
from msgspec import Struct

from omq.drivers.signal import Signal
from omq.model import Topic

IDS_RESERVED = 1 << 20
"""The number of ids that are reserved at a time."""


class Numbered(Protocol):
    """The interface of a driver that needs ids."""

    topic: Topic
    next_id: int
    reserved: int
    """Ids below this one may be assigned."""
    deleted: bool


N = TypeVar("N", bound=Numbered)


class _Wanted(Struct, frozen=True):
    """Ids that a publisher waits for."""

    one: Numbered
    count: int
    done: Callable[[Exception | None], None]


class Reservations:
    """Reserves ids for all topics: for many of them in one commit, because each commit waits for the disk.

    `run` is the task that does so for callers that do not wait themselves.
    """

    def __init__(self, commit: Callable[[Mapping[int, int]], Awaitable[None]]) -> None:
        """Create reservations, where `commit` reserves ids durably (topic id -> the limit below which ids may
        be assigned).
        """
        self._commit = commit
        self._lock = trio.Lock()
        self._wanted: list[_Wanted] = []
        self._is_wanted = Signal()
        self._waiting: dict[Numbered, int] = {}
        """The number of ids for each driver that the calls of `reserve` behind the lock need."""

    def want(self, one: Numbered, count: int, done: Callable[[Exception | None], None]) -> None:
        """Request `count` ids for a driver. `done` is called when they are reserved, or with the exception.

        Other posts may have used the ids by then. A topic that is deleted meanwhile gets none.
        """
        self._wanted.append(_Wanted(one, count, done))
        self._is_wanted.set()

    async def run(self) -> None:
        """Reserve the requested ids, until cancelled: all requests during one commit in the next one."""
        while True:
            await self._is_wanted.wait()
            while self._wanted:
                wanted, self._wanted = self._wanted, []
                counts: dict[Numbered, int] = {}
                for each in wanted:
                    counts[each.one] = counts.get(each.one, 0) + each.count
                problems = await self._try(counts)
                for each in wanted:
                    each.done(problems.get(each.one))

    async def _try(self, counts: Mapping[Numbered, int]) -> dict[Numbered, Exception]:
        """Reserve in one commit; if that fails, topic by topic. Return the exceptions, for the publishers."""
        try:
            await self.reserve(counts)
        except Exception as problem:  # noqa: BLE001 - each publisher reports it, and this task continues
            if len(counts) == 1:
                return dict.fromkeys(counts, problem)
            problems: dict[Numbered, Exception] = {}
            for one, count in counts.items():
                problems |= await self._try({one: count})
            return problems
        return {}

    async def reserve(self, counts: Mapping[N, int]) -> None:
        """Make sure that each of these drivers may assign its number of ids.

        A topic that is deleted meanwhile gets none: check its `deleted` afterwards.

        Raises omq_storage.errors.StoreError; then none of them got more.
        """
        if not _lacking(counts):
            return
        # The holder of the lock reserves for all calls that wait for it: each commit waits for the disk.
        for one, count in counts.items():
            self._waiting[one] = self._waiting.get(one, 0) + count
        try:
            async with self._lock:
                if not _lacking(counts):
                    return
                every, self._waiting = self._waiting, {}
                for one, count in counts.items():
                    every[one] = max(count, every.get(one, 0))
                try:
                    await self._reserve(every)
                except Exception:  # any exception is raised, unless another topic may be its cause
                    if every.keys() <= counts.keys():
                        raise
                    await self._reserve(counts)
        finally:
            for one in counts:
                self._waiting.pop(one, None)  # a call that still needs it has its own `counts`

    async def _reserve(self, counts: Mapping[N, int]) -> None:
        bounds = {one: one.next_id + counts[one] + IDS_RESERVED for one in _lacking(counts)}
        if bounds:
            await self._commit({one.topic.id: bound for one, bound in bounds.items()})
        for one, bound in bounds.items():
            one.reserved = bound

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[None]:
        """Reserve no ids during the block, so that a topic's record and its driver change in
        one step. A reservation finds a deleted topic either in the catalogue or marked as deleted, and a
        record that is replaced has every reserved id.
        """
        async with self._lock:
            yield


def _lacking(counts: Mapping[N, int]) -> list[N]:
    return [one for one, count in counts.items() if not one.deleted and one.next_id + count > one.reserved]
