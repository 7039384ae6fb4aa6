"""Runs blocking calls in threads, also when the operating system cannot start a thread for a while.

A limit on threads (a container's limit on pids, say) or a lack of memory can keep a thread from being
started, which usually passes. Then the call waits until a thread can be started: the server loses no
messages, and the task that asked for the call waits as for a slow disk.
"""

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from outcome import Outcome

RETRY_SECONDS = 0.1
"""The number of seconds that a call waits before it tries again to start a thread."""

TELL_SECONDS = 5.0
"""The shortest time between two log lines which say that no thread can be started."""

log = logging.getLogger("omq.threads")

T = TypeVar("T")

_tell_at: "trio.lowlevel.RunVar[float]" = trio.lowlevel.RunVar("_tell_at", -math.inf)

_active_calls: "trio.lowlevel.RunVar[int]" = trio.lowlevel.RunVar("_active_calls", 0)


async def in_thread(
    function: Callable[[], T],
    *,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """Run `function` in a thread, as `trio.to_thread.run_sync` does; wait while no thread can be started."""
    begun = False

    def run() -> T:
        nonlocal begun
        begun = True
        return function()

    while True:
        try:
            return await trio.to_thread.run_sync(run, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
        except RuntimeError as problem:
            if begun:
                raise  # by the function itself
            _tell(problem)
        await trio.sleep(RETRY_SECONDS)


async def in_thread_at_once(function: Callable[[], T]) -> T:
    """Run `function` in a thread as `in_thread` does, with half of the work for it: nothing limits how many
    threads do, and nothing cancels the call before it begins. For a caller that makes one call at a time.
    """
    task = trio.lowlevel.current_task()
    token = trio.lowlevel.current_trio_token()

    def deliver(result: "Outcome[T]") -> None:
        token.run_sync_soon(trio.lowlevel.reschedule, task, result)

    while True:
        try:
            trio.lowlevel.start_thread_soon(function, deliver)
        except RuntimeError as problem:
            _tell(problem)
            with trio.CancelScope(shield=True):
                await trio.sleep(RETRY_SECONDS)
        else:
            break
    _active_calls.set(_active_calls.get() + 1)
    try:
        done: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
    finally:
        _active_calls.set(_active_calls.get() - 1)
    return done


def active_calls() -> int:
    """Return the number of calls of `in_thread_at_once` that are in threads. Trio does not count these
    threads.
    """
    return _active_calls.get()


def _tell(problem: RuntimeError) -> None:
    now = trio.current_time()
    if now >= _tell_at.get():
        _tell_at.set(now + TELL_SECONDS)
        log.error("work that needs a thread waits until one can be started: %s", problem)
