"""Gathers posts before a commit, because those who were just confirmed are about to publish again.

A client with a limited number of unconfirmed messages sends the next ones when a commit confirms the last
ones. The first of them to arrive would be committed by themselves, and all others would wait for that: two
flushes of the disk where one is enough.
"""

import time
from collections.abc import Callable
from typing import Protocol

import trio

QUIET_SECONDS = 0.0003
"""The number of seconds without a post after which a commit waits for no more of them. A client needs less
between two sends.
"""


LONGEST_SECONDS = 0.01
"""The greatest number of seconds that a commit waits, although a disk may take much longer."""


class WaitingPosts(Protocol):
    """The posts that wait for a commit."""

    messages: int
    """The number of their messages."""

    @property
    def is_full(self) -> bool:
        """Whether they are enough for a whole commit."""


class Gathering:
    """The expected number of messages since the last commit, and the wait of the next one for them."""

    __slots__ = ("_expected", "_until")

    def __init__(self) -> None:
        self._expected = 0
        self._until = 0.0

    def committed(self, messages: int, waiting: int, seconds: float) -> None:
        """Note that a commit of N `messages` took `seconds`, and that N `waiting` others arrived meanwhile.

        As many messages as it confirmed are expected next. To wait for them, half as long as it took, costs
        less than one more commit.
        """
        self._expected = messages + waiting
        # Real time, as that of a commit.
        self._until = time.perf_counter() + min(seconds / 2, LONGEST_SECONDS)

    def lacks(self, posts: WaitingPosts) -> bool:
        """Return whether more messages are expected, and can be in the next commit."""
        return self._may_wait(posts, time.perf_counter())

    async def gather(self, posts: WaitingPosts) -> None:
        """Wait while more messages come than these, and more are expected."""
        await while_more_come(lambda: posts.messages, QUIET_SECONDS, lambda now: self._may_wait(posts, now))

    def _may_wait(self, posts: WaitingPosts, now: float) -> bool:
        return posts.messages < self._expected and not posts.is_full and now < self._until


async def while_more_come(
    count: Callable[[], int], quiet_seconds: float, may_wait: Callable[[float], bool]
) -> None:
    """Give the other tasks turns while N (`count`) grows at least once in each `quiet_seconds`, as long as
    `may_wait` allows it at a time of `time.perf_counter`.

    A timer of Trio is no alternative: it would not fire before the milliseconds in which `epoll_wait` counts.
    """
    known, moved = count(), time.perf_counter()
    now = moved
    while may_wait(now) and now - moved < quiet_seconds:
        await trio.lowlevel.checkpoint()
        now = time.perf_counter()
        if count() > known:
            known, moved = count(), now
