"""The printer of `omq sub`: the tasks of all topics share its count and its clock."""

import math
import os
from collections.abc import Callable
from typing import Self

import trio

from omq.cli.output import for_terminal, write_all


class Printer:
    """Prints to standard output; the tasks of all topics share it."""

    def __init__(self, form: str, count: int | None, timeout: float | None, end: trio.CancelScope) -> None:
        self.left = count
        """The number of messages still to print; None for no limit."""
        self.waiting = trio.CancelScope()
        """Cancelled when no message has arrived for the timeout."""
        self.form = form
        self._timeout = math.inf if timeout is None else timeout
        self._rest = self._timeout
        self._stops = 0
        self._end = end
        self._lock = trio.Lock()
        self._is_terminal = os.isatty(1)
        self._wait()

    def _wait(self) -> None:
        self._rest = self._timeout
        if not self._stops:
            self.waiting.deadline = trio.current_time() + self._rest

    def stop_clock(self) -> "StoppedClock":
        """Stop the clock until the result is closed: this time is no silence of the server."""
        if not self._stops:
            self._rest = self.waiting.deadline - trio.current_time()
        self._stops += 1
        self.waiting.deadline = math.inf
        return StoppedClock(self)

    def start_clock(self) -> None:
        """Start the clock, if nobody else has stopped it. Called by `StoppedClock`."""
        self._stops -= 1
        if not self._stops:
            self.waiting.deadline = trio.current_time() + self._rest

    async def print(self, count: int, text: Callable[[int], bytes]) -> int:
        """Print the first of `count` messages, up to the number still to print, and return the number
        printed. `text` formats them.
        """
        async with self._lock:
            wanted = count if self.left is None else min(count, self.left)
            if wanted:
                octets = text(wanted)
                if self._is_terminal:
                    octets = for_terminal(self.form, octets)
                with self.stop_clock():  # a slow reader of our output is no silence of the server
                    # Write directly to the descriptor: no buffer holds back messages, and a run is one write.
                    await trio.to_thread.run_sync(write_all, octets, abandon_on_cancel=True)
                self._wait()
                if self.left is not None:
                    self.left -= wanted
            return wanted

    def arrived(self) -> None:
        """Note that a part of a message has come: the server is not silent."""
        self._wait()

    def saved(self) -> None:
        """Count a message that is saved, and end after the last one that is wanted."""
        self._wait()
        if self.left is not None:
            self.left -= 1
            if not self.left:
                self.end()

    def end(self) -> None:
        """End the command: the last message is printed and confirmed."""
        self._end.cancel()


class StoppedClock:
    """The clock of a printer while it is stopped.

    Ctrl-C may interrupt a command at any instruction, also before a `with` block is left. A generator would
    then be closed by the garbage collector, without Trio, and fail; an object of this class is only freed.
    """

    def __init__(self, printer: Printer) -> None:
        self._printer: Printer | None = printer

    def close(self) -> None:
        """Start the clock again; do nothing the second time."""
        printer, self._printer = self._printer, None
        if printer is not None:
            printer.start_clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
