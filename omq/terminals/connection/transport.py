"""A socket as terminals use it: counted sends, and an end that lets the last words arrive."""

import os
from array import array
from collections.abc import Sequence
from fcntl import ioctl
from termios import FIONREAD

import trio

from omq.drivers.seam import SLOW_SECONDS

FIRST_OCTETS = 16 << 10
"""What a read takes at first: every connection can hold this much at the same time."""

MOST_OCTETS = 512 << 10
"""What it takes when there is more and the server's memory allows it."""

LINGER_SECONDS = 1.0
"""How long the other side has to read the last frame and to close, once the server has finished."""

LINGER_OCTETS = 64 << 20
"""How much of what it still sends is read and dropped meanwhile."""


class Transport:
    """One connected stream socket."""

    is_encrypted = False

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.since = trio.current_time()
        """When it was accepted."""
        self.received = 0
        """Octets read from the socket so far, without those of TLS."""
        self.sent = 0
        """Octets handed to the socket so far: exact also when a send breaks or is cancelled half-way."""

    def peer(self) -> str:
        """The other side's address, for the log."""
        try:
            name = self._stream.socket.getpeername()
        except OSError:
            return "(gone)"
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)

    def host(self) -> str:
        """The other side's address without its port: what two connections of one client have in common."""
        try:
            name = self._stream.socket.getpeername()
        except OSError:
            return "(gone)"
        return str(name[0]) if isinstance(name, tuple) else str(name)

    def keep_alive(self) -> None:
        """Have the kernel see now and then whether the other side is there, when it is sent nothing."""
        self._stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)

    async def receive(self, octets: int = FIRST_OCTETS) -> bytes:
        """What has arrived, at most so many octets; none of them when the other side has finished sending.

        Raises trio.BrokenResourceError when the connection broke.
        """
        while True:
            # Waiting first, rather than trying first: what has just arrived is acted on at once, not a round
            # of the scheduler later.
            await trio.lowlevel.wait_readable(self._stream.socket)
            try:
                data = self._read(octets)
                self.received += len(data)
                return data
            except BlockingIOError:
                pass  # it was readable for somebody who looked too early

    async def receive_arrived(self, octets: int) -> bytes:
        """So many octets that have arrived, according to `arrived`; none when all of them together are not
        readable yet. Raises as `receive` does.
        """
        await trio.lowlevel.checkpoint()
        data = self._read(octets)
        self.received += len(data)
        return data

    def _read(self, octets: int) -> bytes:
        try:
            return os.read(self._stream.socket.fileno(), octets)
        except BlockingIOError:
            raise
        except OSError as problem:
            raise trio.BrokenResourceError(f"the connection broke: {problem}") from problem

    def arrived(self) -> int:
        """How many octets a read would give at once, at most MOST_OCTETS."""
        count = array("i", [0])
        ioctl(self._stream.socket.fileno(), FIONREAD, count)
        return min(count[0], MOST_OCTETS)

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it. Raises trio.BrokenResourceError when the connection broke."""
        socket = self._stream.socket
        total = len(data)
        try:
            count = await socket.send(data)
            self.sent += count
            if count < total:
                with memoryview(data) as rest:
                    while count < total:
                        sent = await socket.send(rest[count:])
                        self.sent += sent
                        count += sent
        except OSError as problem:
            raise trio.BrokenResourceError(f"the connection broke: {problem}") from problem

    async def send_together(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send all of the parts, at most 1,024 of them. Raises trio.BrokenResourceError when it broke."""
        if len(parts) == 1:
            await self.send(parts[0])
            return
        try:
            count = await self._stream.socket.sendmsg(parts)
        except OSError as problem:
            raise trio.BrokenResourceError(f"the connection broke: {problem}") from problem
        self.sent += count
        for part in parts:
            if count < len(part):
                await self.send(memoryview(part)[count:] if count else part)
            count = max(0, count - len(part))

    async def send_unless_stalled(self, parts: Sequence[bytes | memoryview]) -> bool:
        """As `send_together`, but False when not all of it is on its way after SLOW_SECONDS: `sent` says how
        far it got, and the rest is still to be sent.
        """
        with trio.move_on_after(SLOW_SECONDS) as patience:
            await self.send_together(parts)
        return not patience.cancelled_caught

    async def wait_writable(self) -> None:
        """Until the other side has taken some of what was sent. Raises trio.BrokenResourceError."""
        try:
            await trio.lowlevel.wait_writable(self._stream.socket)
        except OSError as problem:
            raise trio.BrokenResourceError(f"the connection broke: {problem}") from problem

    async def say_end(self) -> None:
        """Say that nothing more comes, where that is more than closing. Raises trio.BrokenResourceError."""

    async def finish(self) -> None:
        """Say that nothing more comes, and read on a little.

        Closing a socket with unread octets resets the connection, and the reset can overtake what was sent
        last, such as the Error that explains the end.
        """
        try:
            with trio.move_on_after(LINGER_SECONDS):
                await self.say_end()
                await self._stream.send_eof()
                dropped = 0
                while dropped < LINGER_OCTETS and (data := await self.receive()):
                    dropped += len(data)
        except trio.BrokenResourceError:
            pass  # the other side is gone already, which is what this waits for

    def close(self) -> None:
        """Close at once."""
        self._stream.socket.close()
