"""The send queue of a connection. It collects output during a send, so publishes share sends."""

import time
from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint

from omq.client.network import Stream
from omq.client.parking import ParkingLot
from omq.client.reasons import reason

OUTPUT_OCTETS = 256 << 10
"""The size of the queue from which on publishers wait."""

YIELD_SECONDS = 250e-6
"""A task that publishes continuously lets the writer run at this interval."""


class SendQueue:
    """A queue of octets for a stream, and the task that sends them.

    The queue calls `refuse` before it queues anything; `refuse` raises when the connection has ended. It
    calls `broken` when sending has failed. That does not end the connection yet: the receive buffer may still
    contain the server's last frames.
    """

    def __init__(self, stream: Stream, refuse: Callable[[], None], broken: Callable[[], None]) -> None:
        self._stream = stream
        self._refuse = refuse
        self._tell_broken = broken
        self._queue: list[bytes] = []
        self._octets = 0
        self._last_yield = 0.0
        self._has_output = ParkingLot()
        self._has_room = ParkingLot()
        self._finished = ParkingLot()
        self.finishing = False
        """Set when `finish` was called."""
        self._is_ending = False
        self.is_finished = False
        """Set when the queue is sent and the sending direction is closed."""
        self.closed = False
        """Set when the connection has ended."""
        self.broken: str | None = None
        """The reason why sending failed, if it did."""

    def post(self, octets: bytes) -> None:
        """Queue octets without waiting: for commands, which are few. Do nothing after the end."""
        if self._is_ending or self.closed:
            return
        self._octets += len(octets)
        self._queue.append(octets)
        self._has_output.unpark()

    async def send(self, octets: bytes) -> None:
        """Wait while the queue is full, then queue octets.

        A single call's octets are sent at once; repeated calls share system calls. To allow that, this does
        not always yield to other tasks. If it raises, it has queued nothing.
        """
        await self.room()
        self.post(octets)

    async def room(self) -> None:
        """Wait while the queue is full; afterwards the caller may `post` at once. Raises when the connection
        has ended.
        """
        while self._octets >= OUTPUT_OCTETS and not self.closed:
            await self._has_room.park()
        self._refuse()

    async def pause(self) -> None:
        """Let the writer run if it has not run for YIELD_SECONDS."""
        if time.perf_counter() - self._last_yield > YIELD_SECONDS:
            await checkpoint()
            self._last_yield = time.perf_counter()

    async def run(self) -> None:
        """Send the queue, and close the sending direction after `finish`, until cancelled or until sending
        fails.
        """
        try:
            while True:
                if self._queue:
                    octets = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
                    self._queue.clear()
                    self._octets = 0
                    self._has_room.unpark_all()
                    await self._stream.send_all(octets)
                elif self.finishing:
                    self._is_ending = True
                    await self._stream.send_eof()
                    self.is_finished = True
                    self._finished.unpark_all()
                    return
                else:
                    await self._has_output.park()
        except anyio.BrokenResourceError as error:
            self.broken = reason(error)
            self._tell_broken()

    async def finish(self) -> None:
        """Let the writer send the queue and then close the sending direction, and wait for that. Raises when
        the connection has ended before.

        The writer goes on if this is cancelled; any number of calls wait for the same.
        """
        self.finishing = True
        self._has_output.unpark()
        while not self.is_finished:
            if self.closed:
                self._refuse()
                return
            await self._finished.park()

    def close(self) -> None:
        """Wake all waiting tasks: the connection has ended."""
        self.closed = True
        self._has_room.unpark_all()
        self._finished.unpark_all()
