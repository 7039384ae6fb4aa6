"""Programs that use the synchronous client, each a process of its own, and interrupts of its calls."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

import pytest

from omq.blocking.portal import TaskResult

SECONDS = 60.0
"""The time limit of a line of output, and of the end of a program."""

BEGINNING = """
import atexit, os, signal, sys, threading, warnings
at_last = []  # what the program does after its clients have ended
atexit.register(lambda: [call() for call in at_last])
from omq.blocking import connect
from omq.client import FromBeginning
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # of a fork, since Python 3.12
client = connect(sys.argv[1])
"""


class Program:
    """A program that uses a client; it is killed at the end of the block if it has not ended."""

    def __init__(self, url: str, text: str) -> None:
        # It is not measured. An interrupt may arrive while the thread holds a lock of what measures, which is
        # Python code: the lock would stay locked, and the other thread would wait for it for ever.
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGINNING + text, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        self.process.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.process.kill()
        self.process.__exit__(*raised)

    def line(self) -> str:
        """Return the next line of its output; an empty one if none comes."""
        assert self.process.stdout is not None
        limit = threading.Timer(SECONDS, self.process.kill)
        limit.start()
        try:
            return self.process.stdout.readline()
        finally:
            limit.cancel()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Wait for its end, and return the exit status and the rest of the output."""
        output, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, output


ALARM = """
import itertools
def interrupt(*signal):
    if armed:
        raise KeyboardInterrupt
armed = False
signal.signal(signal.SIGALRM, interrupt)
def interrupted(call, microseconds):
    global armed
    try:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
            call()
        finally:
            armed = False
    except KeyboardInterrupt:
        armed = False
"""
"""The beginning of a program that interrupts its calls: `interrupted(call, microseconds)`."""


def interrupted_as_it_ends(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Make a call that Ctrl-C interrupts in the moment in which its result is known."""
    waits = TaskResult.wait

    def wait(result: TaskResult[object]) -> None:
        waits(result)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(TaskResult, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        call()
