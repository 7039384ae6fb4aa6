"""A socket as terminals use it: it counts what it sends, and its end lets the last octets arrive."""

import os
import select
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from fcntl import ioctl
from termios import FIONREAD

import trio

from omq.addresses import format_address
from omq.drivers.seam import SLOW_SECONDS, Octets
from omq.terminals.connection.pace import Pace

FIRST_OCTETS = 16 << 10
"""The octets of a first read: all connections can hold this much at the same time."""

MOST_OCTETS = 512 << 10
"""The octets of a read when more has arrived, and there is memory for it."""

MOST_PARTS = 1024
"""The most parts of one system call (IOV_MAX of Linux)."""

LINGER_SECONDS = 1.0
"""The number of seconds for the other side to read the last frame and to close, after the server has
finished.
"""

LINGER_OCTETS = 64 << 20
"""The most octets that are read and dropped meanwhile."""

BY_CLIENT = "its client ended it"
"""The reason why most connections end, for the log."""

BY_SHUTDOWN = "the server is stopping"
"""The reason for the log and for clients, when the server ends all connections."""


class Transport:
    """One connected stream socket."""

    __slots__ = (
        "_ending",
        "_has_finished",
        "_peer",
        "pace",
        "pending",
        "received",
        "sent",
        "since",
        "stream",
    )

    is_encrypted = False

    certificate: str | None = None
    """The name in the certificate of the other side, which was verified; None without such a certificate."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        """The socket. Only transports use it."""
        self.since = trio.current_time()
        """When it was accepted, in Trio's time."""
        self.received = 0
        """The number of octets read from the socket, without the overhead of TLS."""
        self.sent = 0
        """The number of octets handed to the socket. It is exact also if a send breaks or is cancelled."""
        self.pending: Octets = b""
        """The octets that this object has taken over and the socket has not; none without TLS."""
        self.pace: Pace | None = None
        """The pace at which all connections send, from when this one has a sender."""
        self._ending: str | None = None
        self._has_finished = False
        self._peer: str | None = None  # the kernel forgets it when the other side resets the connection

    def ends(self, why: str) -> None:
        """Note the reason why the connection ends; the first reason counts."""
        if self._ending is None:
            self._ending = why

    def why_it_ended(self) -> str | None:
        """Return the reason why the connection ends, for the log; None while it is open."""
        return self._ending

    def peer(self) -> str:
        """Return the address and port of the other side, for the log."""
        if self._peer is None:
            try:
                name = self.stream.socket.getpeername()
            except OSError:
                return "(gone)"
            self._peer = format_address(name[0], name[1]) if isinstance(name, tuple) else str(name)
        return self._peer

    def host(self) -> str:
        """Return the address of the other side without its port: two connections of one client share it."""
        return _host(self.stream.socket.getpeername)

    def local(self) -> str:
        """Return the address at which the connection was accepted, without its port."""
        return _host(self.stream.socket.getsockname)

    def keep_alive(self) -> None:
        """Let the kernel check from time to time whether the other side is there while nothing is sent."""
        self.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE, 1)

    async def receive(self, octets: int = FIRST_OCTETS) -> bytes:
        """Wait for octets, and return at most this many; none if the other side has finished sending.

        Raises trio.BrokenResourceError.
        """
        while True:
            # Wait first instead of trying first: otherwise a try that succeeds needs a checkpoint, and the
            # octets are processed one round of the scheduler later.
            await trio.lowlevel.wait_readable(self.stream.socket)
            try:
                data = self._read(octets)
                self.received += len(data)
                return data
            except BlockingIOError:
                pass  # it only seemed readable

    def receive_arrived(self, octets: int) -> bytes:
        """Return at most this many octets that have arrived, according to `arrived`, without waiting; none if
        they cannot be read yet. Raises as `receive` does.
        """
        data = self._read(octets)
        self.received += len(data)
        return data

    def _read(self, octets: int) -> bytes:
        try:
            return os.read(self.stream.socket.fileno(), octets)
        except BlockingIOError:
            raise
        except OSError as problem:
            raise self._broken(problem) from problem

    def _broken(self, problem: OSError) -> trio.BrokenResourceError:
        self.ends(f"it broke ({problem.strerror or problem})")
        return trio.BrokenResourceError(f"the connection broke: {problem}")

    def arrived(self) -> int:
        """Return the number of octets that a read would give now, at most MOST_OCTETS."""
        count = array("i", [0])
        ioctl(self.stream.socket.fileno(), FIONREAD, count)
        return min(count[0], MOST_OCTETS)

    def is_finished(self) -> bool:
        """Return whether the other side has finished sending or is gone, also if octets arrived before."""
        poll = select.poll()
        poll.register(self.stream.socket.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def try_send(self, parts: Sequence[Octets]) -> int:
        """Hand the parts over as far as the socket takes them now, without waiting. Return the number of
        octets that were taken over: the caller continues after them, and never sends them again.

        Raises trio.BrokenResourceError.
        """
        try:
            taken = os.writev(self.stream.socket.fileno(), parts[:MOST_PARTS])
        except BlockingIOError:
            return 0
        except OSError as problem:
            raise self._broken(problem) from problem
        self.sent += taken
        return taken

    async def send(self, *parts: Octets) -> None:
        """Send all of the parts. This lets other tasks run only if the socket does not take everything at
        once. Raises trio.BrokenResourceError.
        """
        rest = rest_after(parts, self.try_send(parts))
        while rest or self.pending:
            await self._writable()
            rest = rest_after(rest, self.try_send(rest))

    async def send_unless_stalled(self, parts: Sequence[Octets]) -> bool:
        """Send as `send` does, but return False if the other side has not taken everything within
        SLOW_SECONDS. `sent` then includes all octets that must not be sent again.
        """
        rest = rest_after(parts, self.try_send(parts))
        if not rest and not self.pending:
            return True
        with trio.move_on_after(SLOW_SECONDS) as patience:
            await self.send(*rest)
        return not patience.cancelled_caught

    async def wait_taken(self) -> None:
        """Wait until the other side has taken some of the octets that were sent. Raises
        trio.BrokenResourceError.
        """
        await self._writable()

    async def _writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self.stream.socket)
        except OSError as problem:
            raise self._broken(problem) from problem
        if self.pace is not None:
            await self.pace.turn()

    async def say_end(self) -> None:
        """Announce the end of the stream, if the protocol can. Raises trio.BrokenResourceError."""

    async def finish(self, *, after_peer: bool = False) -> None:
        """Close the sending direction, and read until the other side closes, within bounds. With `after_peer`
        the other side closes first.

        Closing a socket with unread octets resets the connection, and the reset may discard what was sent
        last before the other side has read it, such as the Error that explains the end.
        """
        self.ends(BY_CLIENT)
        try:
            if after_peer:
                await self._read_to_end()
            with trio.move_on_after(LINGER_SECONDS):
                await self._finish_sending()
                await self._read_to_end()
        except trio.BrokenResourceError:
            pass  # the other side has closed, which is what this waits for

    async def finish_sending(self) -> None:
        """Close the sending direction, within bounds. Call `finish` later."""
        self.ends(BY_CLIENT)
        with trio.move_on_after(LINGER_SECONDS), suppress(trio.BrokenResourceError):
            await self._finish_sending()

    async def _finish_sending(self) -> None:
        if self._has_finished:
            return
        self._has_finished = True
        await self.say_end()
        self._end_sending()

    async def _read_to_end(self) -> None:
        with trio.move_on_after(LINGER_SECONDS):
            dropped = 0
            while dropped < LINGER_OCTETS and (data := await self.receive()):
                dropped += len(data)

    def _end_sending(self) -> None:
        try:
            # `send_eof` of the stream raises through a context manager. Python 3.13 keeps the frames then,
            # and with them the connection, until a garbage collection.
            self.stream.socket.shutdown(trio.socket.SHUT_WR)
        except OSError as problem:
            raise self._broken(problem) from problem

    def close(self) -> None:
        """Close at once."""
        self.stream.socket.close()


def _host(address: Callable[[], object]) -> str:
    """Return an address of a socket without its port."""
    try:
        name = address()
    except OSError:
        return "(gone)"
    return str(name[0]) if isinstance(name, tuple) else str(name)


def rest_after(parts: Sequence[Octets], octets: int) -> Sequence[Octets]:
    """Return the rest of these parts after their first `octets`."""
    for index, part in enumerate(parts):
        if octets < len(part):
            return (memoryview(part)[octets:] if octets else part, *parts[index + 1 :])
        octets -= len(part)
    return ()
