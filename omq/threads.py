"""Runs blocking calls in threads, also when the operating system cannot start a thread for a while.

A limit on threads (a container's limit on pids, say) or a lack of memory can keep a thread from being
started, which usually passes. Then the call waits until a thread can be started: the server loses no
messages, and the task that asked for the call waits as for a slow disk.
"""

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Active:
    """The number of calls of `CallsInThread` that are in threads, in a run of Trio."""

    number: int = 0


_active: "trio.lowlevel.RunVar[_Active]" = trio.lowlevel.RunVar("_active")


def _active_calls() -> _Active:
    try:
        return _active.get()
    except LookupError:
        _active.set(active := _Active())
        return active


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


class CallsInThread:
    """Runs the calls of one task in a thread, one after the other, with less work for each than `in_thread`
    has: nothing limits the number of threads, and nothing cancels a call.

    The thread wakes the task by a pipe of its own. A thread of `trio.to_thread` wakes a task of Trio, which
    wakes the caller: that takes another round of the scheduler, and a small commit is not much longer.
    """

    def __init__(self) -> None:
        """Open the pipe; `close` closes it. Raises OSError if there is no descriptor."""
        self._ends, self._ended = os.pipe()

    def close(self) -> None:
        """Close the pipe. Call it between two calls."""
        os.close(self._ends)
        os.close(self._ended)

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread, and return its result or raise its exception."""
        outcome: Outcome[T] | None = None

        def deliver(result: "Outcome[T]") -> None:
            nonlocal outcome
            outcome = result
            os.write(self._ended, b"\0")

        while True:
            try:
                trio.lowlevel.start_thread_soon(function, deliver)
            except RuntimeError as problem:
                _tell(problem)
                with trio.CancelScope(shield=True):
                    await trio.sleep(RETRY_SECONDS)
            else:
                break
        active = _active_calls()
        active.number += 1
        try:
            await trio.lowlevel.wait_readable(self._ends)
        except trio.Cancelled:
            # Seldom; a scope around each wait would take longer than all else here. The next checkpoint of
            # the task raises it again.
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(self._ends)
        finally:
            active.number -= 1
        os.read(self._ends, 1)
        assert outcome is not None, "the thread has delivered it before it wrote"
        return outcome.unwrap()


def active_calls() -> int:
    """Return the number of calls of `CallsInThread` that are in threads. Trio does not count these
    threads.
    """
    return _active_calls().number


def _tell(problem: RuntimeError) -> None:
    now = trio.current_time()
    if now >= _tell_at.get():
        _tell_at.set(now + TELL_SECONDS)
        log.error("work that needs a thread waits until one can be started: %s", problem)
