"""Commits of the bodies of large messages, part by part as they arrive (`omq.drivers.uploads`).

These commits are small and take turns with those of posts. A commit has the parts of several messages.
"""

import os
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import trio

from omq.drivers.posts import StoredDriver
from omq.drivers.reasons import Failure, Refused
from omq.threads import in_thread
from omq_storage.environment import Environment
from omq_storage.errors import Limit, StoreFull
from omq_storage.fragments import Fragments

GROUP_OCTETS = 1 << 20
"""A commit ends with the part that reaches this. Posts wait for one of them at most."""


class LevelWriter(Protocol):
    """The interface of the writer of a level for these commits."""

    environment: Environment
    refusal: Failure | None
    was_full: bool

    def log_failure(self, problem: Exception) -> Failure:
        """Log the reason why a part was not stored, and return the failure for its publisher."""


class _Waiting:
    """A part of a large message that waits for its commit, and the outcome."""

    __slots__ = ("driver", "failure", "is_done", "part")

    def __init__(self, driver: StoredDriver, part: Fragments) -> None:
        self.driver = driver
        self.part = part
        self.is_done = False
        self.failure: Failure | None = None


class FragmentCommits:
    """Stores parts of large messages; the `lock` is held during each commit of the level."""

    def __init__(self, writer: LevelWriter, lock: trio.Lock) -> None:
        self.disk_reserve = 0
        """Octets of free disk that these parts leave."""
        self._writer = writer
        self._lock = lock
        self._waiting: deque[_Waiting] = deque()
        self._turn = trio.Lock()

    async def put(self, driver: StoredDriver, part: Fragments) -> None:
        """Store a part of a body of this topic, in a commit of its own or together with parts of others.
        Raises Refused.
        """
        waiting = _Waiting(driver, part)
        self._waiting.append(waiting)
        try:
            async with self._turn:
                while not waiting.is_done:
                    await self._commit()
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        if waiting.failure is not None:
            raise Refused.of(waiting.failure)

    async def _commit(self) -> None:
        async with self._lock:
            group: list[_Waiting] = []
            octets = 0
            while self._waiting and octets < GROUP_OCTETS:
                group.append(self._waiting.popleft())
                octets += len(group[-1].part.octets)
            # Others' parts are among them, so this connection may not end in the middle.
            with trio.CancelScope(shield=True):
                await self._put_all(group)

    async def _put_all(self, group: Sequence[_Waiting]) -> None:
        """Store these parts in one transaction; if that fails, one by one."""
        writer = self._writer
        for waiting in group:
            waiting.failure = waiting.driver.gone if waiting.driver.deleted else writer.refusal
        parts = [waiting.part for waiting in group if waiting.failure is None]
        try:
            if parts:
                await in_thread(partial(self._put_within_reserve, parts))
        except Exception as problem:  # noqa: BLE001 - logged; nobody may wait for a part that fails
            writer.was_full |= isinstance(problem, StoreFull)
            if len(parts) > 1:
                for waiting in group:
                    await self._put_all([waiting])
                return
            failure = writer.log_failure(problem)
            for waiting in group:
                waiting.failure = waiting.failure or failure
        for waiting in group:
            waiting.is_done = True

    def _put_within_reserve(self, parts: Sequence[Fragments]) -> None:
        """Write fragments within the disk's reserve: a large message can fill a disk faster than housekeeping
        looks. Raise StoreFull when the reserve is reached.
        """
        environment = self._writer.environment
        status = os.statvfs(environment.path)
        if status.f_bavail * status.f_frsize < self.disk_reserve:
            raise StoreFull(Limit.DISK, f"The disk of {environment.path} has less free than the reserve.")
        environment.put_fragments(parts)
