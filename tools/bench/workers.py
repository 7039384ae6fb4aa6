"""Processes that generate load, and the counters that they share.

The generators are forked, so that they inherit prepared buffers without copying, and so that neither Python's
interpreter lock nor the measuring process stands between a generator and its socket.
"""

import mmap
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

_FORK = multiprocessing.get_context("fork")

MAX_SUBSCRIBERS = 64


class BenchFailure(Exception):
    """A figure that is not reliable or could not be measured. The report always names it."""


class SharedCounters:
    """Counters in memory shared by the processes of one measurement.

    Every word has one writer. Aligned eight-octet stores are whole on the machines this runs on, so no lock
    is needed, and a reader that sees a value a moment late only waits a moment longer.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, mmap.PAGESIZE)
        self._words = memoryview(self._map).cast("Q")

    @property
    def target(self) -> int:
        """The number of messages in all; 0 until the publisher knows."""
        return self._words[0]

    @target.setter
    def target(self, messages: int) -> None:
        self._words[0] = messages

    def set_received(self, subscriber: int, messages: int) -> None:
        self._words[1 + subscriber] = messages

    def received(self, subscribers: int) -> Sequence[int]:
        return self._words[1 : 1 + subscribers].tolist()


@dataclass(frozen=True)
class Span:
    """The measurement of one process: first and last time on the monotonic clock, and processor time."""

    start: int
    end: int
    messages: int
    cpu_seconds: float
    detail: dict[str, float]


def cpu_seconds() -> float:
    """Return the processor time of the calling process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


Begin = Callable[[], None]
"""Called by a load generator when it is connected and prepared; returns when all are."""

Task = Callable[[Begin], Any]


def _child(task: Task, pipe: "connection.Connection[Any, Any]") -> None:
    # Ctrl-C reaches the whole process group; only the measuring process reacts, and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    parent = os.getppid()

    def begin() -> None:
        pipe.send(("ready", None))
        while not pipe.poll(1):
            if os.getppid() != parent:
                raise SystemExit(1)
        pipe.recv()

    try:
        pipe.send(("done", task(begin)))
    except BenchFailure as failure:
        pipe.send(("failed", str(failure)))


def run_together(
    tasks: dict[str, Task],
    limit_seconds: float,
    watch: Callable[[], None] | None = None,
    began: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run the tasks each in a process of its own, started at the same moment; return their results by name.

    The first failure ends the others. A task that is not done within the limit is a failure too. `watch` is
    called some twenty times a second meanwhile, and `began` directly before the tasks start.
    """
    processes: dict[str, Any] = {}
    pipes: dict[str, Any] = {}
    results: dict[str, Any] = {}
    deadline = time.monotonic() + limit_seconds
    try:
        for name, task in tasks.items():
            ours, theirs = _FORK.Pipe()
            process = _FORK.Process(target=_child, args=(task, theirs), name=name, daemon=True)
            process.start()
            theirs.close()
            processes[name], pipes[name] = process, ours
        waiting = set(tasks)
        while len(results) < len(tasks):
            open_pipes = {pipes[name]: name for name in tasks if name not in results}
            left = max(0.0, deadline - time.monotonic())
            ready = connection.wait(list(open_pipes), left if watch is None else min(0.05, left))
            if watch is not None:
                watch()
            if not ready and time.monotonic() >= deadline:
                missing = ", ".join(sorted(open_pipes.values()))
                raise BenchFailure(f"not finished within {limit_seconds:.0f} s: {missing}")
            for pipe in ready:
                name = open_pipes[pipe]
                try:
                    word, value = pipes[name].recv()
                except EOFError:
                    raise BenchFailure(f"the {name} process ended without a result") from None
                if word == "failed":
                    raise BenchFailure(f"{name}: {value}")
                if word == "done":
                    results[name] = value
                    waiting.discard(name)
                else:
                    waiting.discard(name)
                    if not waiting:
                        if began is not None:
                            began()
                        for other in pipes.values():
                            other.send("go")
        for process in processes.values():
            process.join(5)
    finally:
        for process in processes.values():
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in pipes.values():
            pipe.close()
    return results


def run_beside(
    cpu_seconds: Callable[[], float], tasks: dict[str, Task], limit_seconds: float
) -> tuple[dict[str, Any], float]:
    """Run the tasks as `run_together` does. Return their results, and the processor time of the server since
    they started together, which `cpu_seconds` tells. The time in which they connected does not count: a
    server may load a protocol when its first client comes.
    """
    before = 0.0

    def began() -> None:
        nonlocal before
        before = cpu_seconds()

    results = run_together(tasks, limit_seconds, began=began)
    return results, cpu_seconds() - before
