"""Code that the measurement of coverage must not slow down (CONTRIBUTING.md, "Coverage"), and times for
tests.
"""

import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

import pytest
import trio
from trio.abc import Clock, Instrument

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TOLD_BY = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
"""Variables of the environment by which a process is told to measure its coverage."""

MEASURED_SECONDS = 0.25
"""The processor time of one test function, with all its cases, that `beginning` measures in a process."""

DOUBTLESS_SECONDS = 0.2
"""A processor time that `takes_linear_time` does not doubt."""

_left: defaultdict[str, float] = defaultdict(lambda: MEASURED_SECONDS)
"""The rest of that time, by the name of the function."""


@contextmanager
def unmeasured() -> Iterator[None]:
    """Exclude processes that are started within the block from the measurement: they run at their usual
    speed.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in TOLD_BY:
            patch.delenv(name, raising=False)
        yield


@contextmanager
def untraced() -> Iterator[None]:
    """Exclude this thread from the measurement, too, within the block."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


@contextmanager
def beginning(function: str) -> Iterator[None]:
    """Measure this thread only for the first MEASURED_SECONDS of processor time within the blocks of one
    function. A test that works longer executes the same lines many times, and takes two or three times as
    long measured.
    """
    tracer = sys.gettrace()
    if tracer is None:
        yield
        return

    def stop(number: int, frame: object) -> None:
        sys.settrace(None)

    before = signal.signal(signal.SIGVTALRM, stop)
    if _left[function]:
        signal.setitimer(signal.ITIMER_VIRTUAL, _left[function])
    else:
        sys.settrace(None)
    try:
        yield
    finally:
        _left[function], _ = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        sys.settrace(tracer)


class _Pause(Instrument):
    """Stops the timer of `beginning` at the end of a run of Trio."""

    left = 0.0
    """The seconds that the timer had left."""

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        if task.parent_nursery is None:
            self.left, _ = signal.setitimer(signal.ITIMER_VIRTUAL, 0)


_run = trio.run


def run(
    main: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    clock: Clock | None = None,
    instruments: Sequence[Instrument] = (),
    **options: bool,
) -> T:
    """Run Trio, without the signal of `beginning` at the end of the run. Trio closes the socket that Python
    writes signals to before it takes this socket from Python, and Python reports a signal in between.
    """
    if threading.current_thread() is not threading.main_thread():
        return _run(main, *args, clock=clock, instruments=instruments, **options)
    pause = _Pause()
    try:
        return _run(main, *args, clock=clock, instruments=[*instruments, pause], **options)
    finally:
        if pause.left:
            signal.setitimer(signal.ITIMER_VIRTUAL, pause.left)


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Return the processor time that `work` takes, the least of several runs, without other programs."""
    least = float("inf")
    with untraced():
        for _ in range(times):
            began = time.process_time()
            work()
            least = min(least, time.process_time() - began)
    return least


def takes_linear_time(work: Callable[[int], object], length: int) -> bool:
    """Return whether `work` takes less than 10 times as long for four times the `length`, where quadratic
    time would be 16. Some systems count processor time in steps of 10 ms, so a doubtful result is measured
    again, with more runs together.
    """

    def repeated(length: int, times: int) -> float:
        return seconds(lambda: [work(length) for _ in range(times)], 3)

    times = 1
    while (long := repeated(4 * length, times)) >= 10 * repeated(length, times):
        if long > DOUBTLESS_SECONDS:
            return False
        times *= 4
    return True
