"""A TCP connection on asyncio and on Trio: a socket that does not block, and waits for it.

This is not anyio's `SocketStream`: on asyncio that one reads ahead into a queue of its own. Here both
libraries make the same system calls, of the sizes that the client chooses. What the client does not read
stays in the kernel, so that the server notices.
"""

import errno
import math
import os
import socket
from contextlib import suppress

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from omq.addresses import format_address
from omq.loopback import turn_off_pacing

NEXT_ADDRESS_SECONDS = 0.25
"""The number of seconds to try one address of a host before the next one is tried as well (RFC 8305)."""

UNSENT_OCTETS = 16 << 10
"""The kernel calls a socket writable when it has less than this to send. More would only add latency."""


class TcpStream:
    """A connected socket. One task may send while another receives.

    The methods raise anyio.BrokenResourceError, whose cause is the operating system's error, and
    anyio.ClosedResourceError after `close`.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def send_all(self, data: bytes) -> None:
        await checkpoint_if_cancelled()
        waited = False
        with memoryview(data) as octets:
            sent = 0
            while sent < len(octets):
                try:
                    sent += self._socket.send(octets[sent:])
                except BlockingIOError:
                    await anyio.wait_writable(self._socket)
                    waited = True
                except OSError as error:
                    raise self._broken(error) from error
        if not waited:
            await cancel_shielded_checkpoint()

    async def receive_some(self, max_bytes: int, seconds: float = math.inf) -> bytes:
        """Receive at least one octet; nothing at the end of the stream. Raises TimeoutError when nothing
        arrives within `seconds`.
        """
        await checkpoint_if_cancelled()
        waited = False
        while True:
            try:
                data = self._socket.recv(max_bytes)
                break
            except BlockingIOError:
                # Here and not around all of this: a scope for each read costs as much as the read.
                with anyio.move_on_after(seconds) as limit:
                    await anyio.wait_readable(self._socket)
                if limit.cancelled_caught:
                    raise TimeoutError from None
                waited = True
            except OSError as error:
                raise self._broken(error) from error
        if not waited:
            await cancel_shielded_checkpoint()
        return data

    async def send_eof(self) -> None:
        """Close the sending direction; receiving continues."""
        await checkpoint_if_cancelled()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._broken(error) from error

    def peer(self) -> tuple[str, int]:
        """Return the address and the port of the other side. Raise OSError."""
        host, port, *_ = self._socket.getpeername()
        return str(host), int(port)

    def close(self, last: bytes = b"") -> None:
        """Close the socket, also while a task waits for it. Before that, send as many of the `last` octets as
        it takes at once. A second call does nothing.
        """
        if self._socket.fileno() >= 0:
            if last:
                with suppress(OSError):
                    self._socket.send(last)
            anyio.notify_closing(self._socket)
            self._socket.close()

    @staticmethod
    def _broken(error: OSError) -> Exception:
        if error.errno == errno.EBADF:
            return anyio.ClosedResourceError()
        return anyio.BrokenResourceError()


async def connect_tcp(host: str, port: int) -> tuple[TcpStream, socket.socket]:
    """Connect to the first address of a host that answers. Return the stream, and its socket for options.

    Raises OSError; its cause is a group if all addresses of the host failed.
    """
    addresses = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    connected: list[socket.socket] = []
    errors: list[OSError] = []

    async def attempt(family: int, address: tuple[str | int, ...], failed: anyio.Event) -> None:
        try:
            found = await _connect(family, address)
        except OSError as error:
            errors.append(error)
            failed.set()
            return
        connected.append(found)
        attempts.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as attempts:
            for family, _, _, _, address in addresses:
                failed = anyio.Event()
                attempts.start_soon(attempt, family, address, failed)
                with anyio.move_on_after(NEXT_ADDRESS_SECONDS):
                    await failed.wait()
        if not connected:
            problem = f"all attempts to connect to {format_address(host, port)} failed"
            raise OSError(problem) from ExceptionGroup(problem, errors)
        first = connected.pop()
    finally:
        for late in connected:
            late.close()
    return TcpStream(first), first


async def _connect(family: int, address: tuple[str | int, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        with suppress(OSError, AttributeError):  # not every system has it
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_OCTETS)
        turn_off_pacing(made, str(address[0]))
        try:
            made.connect(address)
        except BlockingIOError:
            await anyio.wait_writable(made)
            failure = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                raise OSError(failure, os.strerror(failure)) from None
    except BaseException:  # cancelled, too
        made.close()
        raise
    return made
