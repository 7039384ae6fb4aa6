"""When nothing more happens by itself, and time that passes then."""

from collections.abc import Callable

import trio
import trio.testing
from trio.testing import MockClock

from omq.threads import active_calls


async def quiet() -> None:
    """Wait until every task waits and no thread works: nothing more happens by itself, but for time."""
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if not trio.testing.active_thread_count() and not active_calls():
            return
        await trio.testing.wait_all_threads_completed()
        while active_calls():
            await trio.lowlevel.checkpoint()


async def pass_time(clock: MockClock, seconds: float, step: float = 1) -> None:
    """Let time pass in steps, and wait after each until the server has done what it has to."""
    while seconds > 0:
        clock.jump(min(step, seconds))
        seconds -= step
        await quiet()


async def pass_until(condition: Callable[[], bool], clock: MockClock, step: float = 1) -> None:
    """Let time pass as `pass_time` does, until a condition is met."""
    while not condition():
        clock.jump(step)
        await quiet()
