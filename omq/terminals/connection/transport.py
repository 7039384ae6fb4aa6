"""A socket as terminals use it: counted sends, and an end that lets the last words arrive."""

import os
from array import array
from collections.abc import Sequence
from fcntl import ioctl
from termios import FIONREAD

import trio

from omq.drivers.seam import SLOW_SECONDS, Octets

FIRST_OCTETS = 16 << 10
"""What a read takes at first: every connection can hold this much at the same time."""

MOST_OCTETS = 512 << 10
"""What it takes when there is more and the server's memory allows it."""

MOST_PARTS = 1024
"""The most parts of one system call (IOV_MAX of Linux)."""

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
        """The number of octets handed to the socket. It is exact also if a send breaks or is cancelled."""
        self.pending: Octets = b""
        """What this object has taken over and the socket has not: nothing without TLS."""

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

    def try_send(self, parts: Sequence[Octets]) -> int:
        """Hand the parts over as far as the socket takes them now, without waiting. Return the number of
        octets that were taken over: the caller continues behind them, and never sends them again.

        Raises trio.BrokenResourceError.
        """
        try:
            taken = os.writev(self._stream.socket.fileno(), parts[:MOST_PARTS])
        except BlockingIOError:
            return 0
        except OSError as problem:
            raise trio.BrokenResourceError(f"the connection broke: {problem}") from problem
        self.sent += taken
        return taken

    async def send(self, *parts: Octets) -> None:
        """Send all of the parts. This lets other tasks run only if the socket does not take everything at
        once. Raises trio.BrokenResourceError.
        """
        rest = behind(parts, self.try_send(parts))
        while rest or self.pending:
            await self._writable()
            rest = behind(rest, self.try_send(rest))

    async def send_unless_stalled(self, parts: Sequence[Octets]) -> bool:
        """As `send`, but return False if the other side has not taken everything within SLOW_SECONDS. `sent`
        then includes all octets that must not be sent again.
        """
        rest = behind(parts, self.try_send(parts))
        if not rest and not self.pending:
            return True
        with trio.move_on_after(SLOW_SECONDS) as patience:
            await self.send(*rest)
        return not patience.cancelled_caught

    async def wait_taken(self) -> None:
        """Wait until the other side has taken some of what was sent. Raises trio.BrokenResourceError."""
        await self._writable()

    async def _writable(self) -> None:
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


def behind(parts: Sequence[Octets], octets: int) -> Sequence[Octets]:
    """The rest of these parts after their first `octets`."""
    for index, part in enumerate(parts):
        if octets < len(part):
            return (memoryview(part)[octets:] if octets else part, *parts[index + 1 :])
        octets -= len(part)
    return ()
