"""Code that the measurement of coverage must not slow down (CONTRIBUTING.md, "Coverage"), and times for
tests.
"""

import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

TOLD_BY = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
"""Variables of the environment by which a process is told to measure its coverage."""

MEASURED_EXAMPLES = 25
"""The number of examples of one test that `sampled` measures."""


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
def sampled(test: Any) -> Iterator[None]:
    """Measure only the first examples of a test of hypothesis within the block: the others execute the same
    lines, and each takes several times as long when it is measured.
    """
    tracer = sys.gettrace()
    inner: Callable[..., object] = test.inner_test
    examples = itertools.count()

    @functools.wraps(inner)
    def counted(*arguments: object, **named: object) -> object:
        if next(examples) == MEASURED_EXAMPLES:
            sys.settrace(None)
        return inner(*arguments, **named)

    test.inner_test = counted
    try:
        yield
    finally:
        test.inner_test = inner
        sys.settrace(tracer)


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Return the processor time that `work` takes, the least of several runs, without other programs."""
    least = float("inf")
    with untraced():
        for _ in range(times):
            began = time.process_time()
            work()
            least = min(least, time.process_time() - began)
    return least
