"""What goes out on a connection: gathered while a send is under way, so that many publishes share one."""

import time
from collections.abc import Callable

import trio

from omq.client.network import Stream
from omq.client.reasons import reason

OUTPUT_OCTETS = 256 << 10
"""How much waits for the writer before publishers must wait too."""

YIELD_SECONDS = 250e-6
"""A task that publishes without pause lets the writer run this often."""


class Outlet:
    """Octets queued for a stream, and the task that sends them.

    `refuse` is called before anything is queued, and raises when the connection has ended. `broken` is
    called when sending has failed: what the server said before it closed may still be there to read, so that
    is not yet the end of the connection.
    """

    def __init__(self, stream: Stream, refuse: Callable[[], None], broken: Callable[[], None]) -> None:
        self._stream = stream
        self._refuse = refuse
        self._tell_broken = broken
        self._queue: list[bytes] = []
        self._octets = 0
        self._sending = False
        self._last_yield = 0.0
        self._has_output = trio.lowlevel.ParkingLot()
        self._has_room = trio.lowlevel.ParkingLot()
        self._flushed = trio.lowlevel.ParkingLot()
        self._finished = False
        self.closed = False
        """Set when the connection has ended."""
        self.broken: str | None = None
        """Why sending failed, if it did."""

    def post(self, octets: bytes) -> None:
        """Queue octets without waiting: for commands, of which there are few. Nothing when it has ended."""
        if self._finished or self.closed:
            return
        self._octets += len(octets)
        self._queue.append(octets)
        self._has_output.unpark()

    async def send(self, octets: bytes) -> None:
        """Queue octets; wait first while too much is queued.

        What a lone caller sends leaves at once; one that calls again and again shares system calls with
        itself. So it does not always pass control to other tasks. When it raises, nothing was queued.
        """
        await self.room()
        self.post(octets)

    async def room(self) -> None:
        """Wait while too much is queued; the caller may `post` then, at once. Raises at the end."""
        while self._octets >= OUTPUT_OCTETS and not self.closed:
            await self._has_room.park()
        self._refuse()

    async def pause(self) -> None:
        """Let the writer run, if it has not had the chance for a while."""
        if time.perf_counter() - self._last_yield > YIELD_SECONDS:
            await trio.lowlevel.checkpoint()
            self._last_yield = time.perf_counter()

    async def run(self) -> None:
        """Send what is queued, until cancelled or broken."""
        try:
            while True:
                if not self._queue:
                    self._sending = False
                    self._flushed.unpark_all()
                    await self._has_output.park()
                    continue
                octets = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
                self._queue.clear()
                self._octets = 0
                self._sending = True
                self._has_room.unpark_all()
                await self._stream.send_all(octets)
        except trio.BrokenResourceError as error:
            self.broken = reason(error)
            self._tell_broken()

    async def finish(self) -> None:
        """Send what is queued, then say that nothing more comes. Raises trio.BrokenResourceError."""
        while (self._queue or self._sending) and not self.closed:
            await self._flushed.park()
        self._refuse()
        self._finished = True
        await self._stream.send_eof()

    def close(self) -> None:
        """The connection has ended: wake everybody who waits here."""
        self.closed = True
        self._has_room.unpark_all()
        self._flushed.unpark_all()
