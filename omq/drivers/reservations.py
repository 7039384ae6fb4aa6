"""Reserves message ids durably before they are assigned, so that no id gets a second meaning."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import trio
from msgspec import Struct

from omq.drivers.signal import Signal
from omq.drivers.slices import Slices
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
NeededIds = Iterable[tuple[Numbered, int]]
"""The number of ids for each driver."""


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
        self._waiting: dict[object, NeededIds] = {}
        """The number of ids for each driver that each call of `reserve` behind the lock needs."""

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
                slices = Slices()
                for each in wanted:
                    counts[each.one] = counts.get(each.one, 0) + each.count
                    await slices.step()
                problems = await self._try(counts)
                for each in wanted:
                    each.done(problems.get(each.one))
                    await slices.step()

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
        if not await _lacking(counts):
            return
        # The holder of the lock reserves for all calls that wait for it: each commit waits for the disk.
        own = object()
        self._waiting[own] = counts.items()
        try:
            async with self._lock:
                if not await _lacking(counts):
                    return
                waiting, self._waiting = self._waiting, {}
                every = await _of_all(waiting.values(), counts)
                try:
                    await self._reserve(every)
                except Exception:  # any exception is raised, unless another topic may be its cause
                    if every.keys() <= counts.keys():
                        raise
                    await self._reserve(counts)
        finally:
            self._waiting.pop(own, None)

    async def _reserve(self, counts: Mapping[N, int]) -> None:
        lacking = await _lacking(counts)
        if not lacking:
            return
        bounds: list[int] = []
        of_topics: dict[int, int] = {}
        slices = Slices()
        for one in lacking:
            bounds.append(one.next_id + counts[one] + IDS_RESERVED)
            of_topics[one.topic.id] = bounds[-1]
            await slices.step()
        await self._commit(of_topics)
        with trio.CancelScope(shield=True):  # what the store has is known for all of them
            for one, bound in zip(lacking, bounds, strict=True):
                one.reserved = bound
                await slices.step()

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[None]:
        """Reserve no ids during the block, so that a topic's record and its driver change in
        one step. A reservation finds a deleted topic either in the catalogue or marked as deleted, and a
        record that is replaced has every reserved id.
        """
        async with self._lock:
            yield


async def _lacking(counts: Mapping[N, int]) -> list[N]:
    """Return those that may not assign their numbers of ids, in turn with other tasks. While the lock is
    held, none of them gets more ids meanwhile, and none is deleted.
    """
    found: list[N] = []
    slices = Slices()
    for one, count in counts.items():
        if not one.deleted and one.next_id + count > one.reserved:
            found.append(one)
        await slices.step()
    return found


async def _of_all(waiting: Iterable[NeededIds], own: Mapping[N, int]) -> dict[Numbered, int]:
    """Return the number of ids for each driver that all these calls need, with the one that has the lock. An
    earlier call may have reserved for it, too; then it lacks some again, and does not wait any more.
    """
    every: dict[Numbered, int] = {}
    slices = Slices()
    for counts in waiting:
        for one, count in counts:
            every[one] = every.get(one, 0) + count
            await slices.step()
    for one, count in own.items():
        every[one] = max(count, every.get(one, 0))
        await slices.step()
    return every
