"""When nothing more happens by itself, and time that passes then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from omq.threads import active_calls

START = 1_800_000_000
"""The time of the system that `follow` begins with, in seconds since 1970."""


def follow(clock: MockClock, patch: pytest.MonkeyPatch) -> None:
    """Let the time of the system follow Trio's clock, from START on."""
    begun = clock.current_time()
    patch.setattr("time.time_ns", lambda: START * 10**9 + round((clock.current_time() - begun) * 1e9))


async def quiet() -> None:
    """Wait until every task waits and no thread works: nothing more happens by itself, but for time."""
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if not trio.testing.active_thread_count() and not active_calls():
            return
        await trio.testing.wait_all_threads_completed()
        while active_calls():
            await trio.lowlevel.checkpoint()


@contextmanager
def stopped(clock: MockClock) -> Iterator[None]:
    """Stop the clock within the block, but for its jumps: however slow the machine is, no time passes by
    itself.
    """
    before, clock.rate = clock.rate, 0.0
    try:
        yield
    finally:
        clock.rate = before


async def pass_time(clock: MockClock, seconds: float, step: float = 1) -> None:
    """Let just so much time pass in steps, and wait after each until the server has done what it has to."""
    with stopped(clock):
        while seconds > 0:
            clock.jump(min(step, seconds))
            seconds -= step
            await quiet()


async def pass_until(condition: Callable[[], bool], clock: MockClock, step: float = 1) -> None:
    """Let time pass as `pass_time` does, until a condition is met."""
    with stopped(clock):
        while not condition():
            clock.jump(step)
            await quiet()
