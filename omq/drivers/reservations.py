"""Ids reserved durably before one is handed out, so that none gets a second meaning."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import trio

from omq.model import Topic

IDS_RESERVED = 1 << 20
"""How many ids are reserved at a time for messages that a power failure may take back."""


class Numbered(Protocol):
    """What has ids to hand out: a driver."""

    topic: Topic
    next_id: int
    reserved: int
    """Ids below it may be handed out."""


N = TypeVar("N", bound=Numbered)


class Reservations:
    """Reserves ids for all topics: for many of them in one commit, as each waits for the disk."""

    def __init__(self, commit: Callable[[Mapping[int, int]], Awaitable[None]]) -> None:
        """`commit` reserves, for topic ids, all ids below others, durably."""
        self._commit = commit
        self._lock = trio.Lock()

    async def reserve(self, counts: Mapping[N, int]) -> None:
        """See that each of these may hand out as many ids as are named with it.

        Raises omq_storage.errors.StoreError; then none of them got more.
        """
        if not _lacking(counts):
            return
        async with self._lock:
            # While others' were under way these may have got theirs.
            bounds = {one: one.next_id + counts[one] + IDS_RESERVED for one in _lacking(counts)}
            if bounds:
                await self._commit({one.topic.id: bound for one, bound in bounds.items()})
            for one, bound in bounds.items():
                one.reserved = bound


def _lacking(counts: Mapping[N, int]) -> list[N]:
    return [one for one, count in counts.items() if one.next_id + count > one.reserved]
