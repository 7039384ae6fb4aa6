"""The functions that other threads have an event loop call."""

import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import trio


class LoopEnded(Exception):
    """The loop has ended: it calls nothing more."""


class LoopCalls:
    """The functions that one loop is to call, in their order.

    Not `TrioToken.run_sync_soon`: it takes a lock by a `with` statement. Since Python 3.14, Ctrl-C may come
    when the main thread has the lock and is not in the block yet. The lock would remain taken then, and the
    loop would wait for it for ever. Here a thread may be interrupted anywhere: what it does is done in C.
    """

    def __init__(self) -> None:
        """Prepare to take functions. Raises OSError if there are no descriptors."""
        self._functions: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._reading, self._writing = sockets = socket.socketpair()
        for each in sockets:
            each.setblocking(False)
        self._has_ended = False
        # Not before: a thread that is about to send would send into a file that has got the same number.
        weakref.finalize(self, _close, sockets).atexit = False

    def put(self, function: Callable[[], object]) -> None:
        """Have the loop call a function soon. A function that is put by an interrupted call is called with
        the next one, if at all. Raises LoopEnded; the function may have been called nevertheless.
        """
        self._functions.put(function)
        if self._has_ended:
            raise LoopEnded
        # If no more octets fit, the loop has not read those that are there, so it wakes.
        with suppress(BlockingIOError):
            self._writing.send(b"\0")

    async def run(self) -> None:
        """Call the functions as they come, until cancelled. This runs in the loop."""
        while True:
            await trio.lowlevel.wait_readable(self._reading)
            with suppress(BlockingIOError):
                self._reading.recv(4096)
            self._call()

    def end(self) -> None:
        """Call the functions that have come since `run` ended, and then none. The loop's thread does it."""
        self._has_ended = True
        self._call()

    def _call(self) -> None:
        with suppress(Empty):
            while True:
                self._functions.get_nowait()()


def _close(sockets: tuple[socket.socket, socket.socket]) -> None:
    for each in sockets:
        each.close()
