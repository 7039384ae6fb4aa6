"""Hostile clients: the actions of each kind on a connection, again and again."""

import itertools
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

HANDSHAKE = struct.pack(">q", 1)
CONNECTED = HANDSHAKE + b"(Connect 1 hostile)\n"
DMP = b"AMQP\x0a\x01\x00\x01"

BUSY = "busy"
"""A transient broadcast topic with a steady flow of messages."""
HISTORY = "history"
"""A broadcast topic with many stored messages."""
WORK = "work"
"""A round-robin topic with many stored messages."""
DRAIN = "drain"
"""The topic to which hostile clients publish."""

LITTLE = 4096
"""Size of the kernel's receive buffer of a client that does not read."""

DWELL_SECONDS = 4.0
"""Average time before a client disconnects."""

_FRAME = struct.Struct(">IB")
_LEASED = 7


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of being hostile."""

    name: str
    share: int
    """The number of clients of this kind among 1,000."""
    act: Callable[["Client"], Awaitable[None]]
    """One action with one or two connections; raises OSError when the server ends it."""
    pause: float
    """Seconds until the next time, on average."""


class Client:
    """The state of a hostile client: random numbers, and sockets that are closed after each action."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.chance = chance
        self.made = 0
        """The number of connections that it has made."""
        self._port = port
        self._sockets: list[trio.socket.SocketType] = []

    async def open(self, octets: bytes = b"", receive: int | None = None) -> trio.socket.SocketType:
        """Connect, and send something; `receive` bounds the octets that the kernel takes in before they are
        read.
        """
        made = trio.socket.socket()
        self._sockets.append(made)
        if receive is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        await made.connect(("127.0.0.1", self._port))
        self.made += 1
        await send(made, octets)
        return made

    async def dwell(self) -> None:
        """Do nothing for a while."""
        await trio.sleep(self.chance.uniform(0, 2 * DWELL_SECONDS))

    def reset(self) -> None:
        """Reset all its connections."""
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    async def live(self, kind: Kind) -> None:
        """Act until cancelled."""
        while True:
            # They do not all come at the same moment, and not in step afterwards.
            await trio.sleep(self.chance.random() * kind.pause * 2)
            try:
                await kind.act(self)
            except OSError:
                pass  # the server has had enough of it, which is its right
            finally:
                self.close()


async def send(to: trio.socket.SocketType, octets: bytes) -> None:
    """Send all of it. Raise OSError."""
    rest = memoryview(octets)
    while rest:
        rest = rest[await to.send(rest) :]


async def read_on(of: trio.socket.SocketType) -> None:
    """Read until the server ends the connection."""
    while await of.recv(1 << 16):
        pass


# -- those that do nothing ----------------------------------------------------------------------------------


async def says_nothing(client: Client) -> None:
    await read_on(await client.open())


async def only_shakes_hands(client: Client) -> None:
    await read_on(await client.open(HANDSHAKE))


async def only_connects(client: Client) -> None:
    await read_on(await client.open(CONNECTED))


# -- those that are slow ------------------------------------------------------------------------------------


async def reads_slowly(client: Client) -> None:
    await _read_slowly(client, f"(Subscribe {BUSY} From_current)\n".encode())


async def reads_history_slowly(client: Client) -> None:
    await _read_slowly(client, f"(Subscribe {HISTORY} From_beginning)\n".encode())


async def _read_slowly(client: Client, subscribe: bytes) -> None:
    """Read one octet a second. Half of these clients answer Pings, so the server keeps them."""
    acknowledges = client.chance.random() < 0.5
    slow = await client.open(CONNECTED + subscribe, LITTLE)
    # Those that are given up would take an hour to see it, at this pace: then they come again.
    for second in range(1, client.chance.randint(100, 400)):
        if not await slow.recv(1):
            return
        if acknowledges and second % 20 == 0:
            await send(slow, b"(Ack (2026-01-01 00:00:00Z))\n")
        await trio.sleep(1)


async def writes_slowly(client: Client) -> None:
    slow = await client.open(CONNECTED)
    while True:
        for octet in f'(Publish {DRAIN} "one octet a second")\n'.encode():
            await slow.send(bytes([octet]))
            await trio.sleep(1)


async def works_and_confirms_nothing(client: Client) -> None:
    subscribe = f"(Request {WORK} 100)\n(Subscribe {WORK} From_current)\n".encode()
    worker = await client.open(CONNECTED + subscribe)
    # Half of them disconnect after a while, and their work is delivered again.
    with trio.move_on_after(client.chance.uniform(5, 30) if client.chance.random() < 0.5 else 1e9):
        await read_on(worker)


# -- those that break off -----------------------------------------------------------------------------------


async def breaks_off_a_command(client: Client) -> None:
    whole = f"(Publish {DRAIN} {'x' * 200})\n".encode() * client.chance.randint(1, 5)
    await client.open(CONNECTED + whole[: client.chance.randrange(len(whole))])
    await client.dwell()
    client.reset()


async def breaks_off_an_envelope(client: Client) -> None:
    """Break an envelope off together with its principal, so that no connection receives the Error."""
    lease, _ = await _lease(client, f"(Put {DRAIN})\n".encode())
    whole = envelope(b"y" * 1000) * client.chance.randint(1, 5)
    await client.open(DMP + lease + whole[: client.chance.randrange(len(whole))])
    await client.dwell()
    client.reset()


async def cuts_an_envelope_short(client: Client) -> None:
    """Half-close in the middle of an envelope: the client gets the answer, the principal is gone."""
    lease, principal = await _lease(client, f"(Put {DRAIN})\n".encode())
    sink = await client.open(DMP + lease)
    await sink.recv(1000)  # the lease is used
    principal.close()
    await client.dwell()
    await send(sink, envelope(b"z" * 1000)[:-500])
    sink.shutdown(socket.SHUT_WR)
    with trio.move_on_after(2):
        await read_on(sink)


async def _lease(client: Client, command: bytes) -> tuple[bytes, trio.socket.SocketType]:
    """Return a lease as a short string, and its principal. Raises OSError."""
    principal = await client.open(CONNECTED + command)
    received = b""
    while True:
        part = await principal.recv(4096)
        if not part:
            raise ConnectionError("no lease was given")
        received += part
        at = len(HANDSHAKE)
        while at + _FRAME.size <= len(received):
            length, kind = _FRAME.unpack_from(received, at)
            end = at + 4 + length
            if kind == _LEASED and end <= len(received):
                lease = received[at + _FRAME.size : end]
                return bytes([len(lease)]) + lease, principal
            at = end


def envelope(body: bytes) -> bytes:
    """Return a DMP message with only a body."""
    rest = b"\0\0" + b"\0\0" + b"\0" + len(body).to_bytes(3, "big") + body
    return struct.pack(">I", len(rest)) + rest


# -- those that talk nonsense -------------------------------------------------------------------------------

PROTOCOLS = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2,  # the hello of a TLS client
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"AMQP\x00\x00\x09\x01",
    b"AMQP\x03\x01\x00\x00",
    b"AMQP\x0a\x01\x00\x07",
    struct.pack(">q", 7),
    struct.pack(">q", -1),
)

LINES = (
    b"(" * 100_000 + b"\n",
    b"(" * 100_000 + b")" * 100_000 + b"\n",
    b"x" * (2 << 20),
    b'(Publish drain "' + b"\\" * 100_000 + b'"\n',
    b"\n" * 100_000,
    b"; only a comment\n" * 5_000,
    b"(Subscribe \xff\xfe From_nowhere)\n",
    b"(Request work -1)\n(Received work 99999999999999999999)\n(Fetch nothing 1 1)\n" * 100,
    b"(Delete nothing)\n(Unsubscribe nothing)\n(Get busy (From_message -1))\n" * 100,
    b"#| a comment without an end " * 1000,
)


async def talks_nonsense(client: Client) -> None:
    other = await client.open(_nonsense(client.chance), LITTLE)
    with trio.move_on_after(2):
        await read_on(other)


def _nonsense(chance: random.Random) -> bytes:
    match chance.randrange(6):
        case 0:
            return chance.randbytes(chance.randint(1, 2000))
        case 1:
            return chance.choice(PROTOCOLS)
        case 2:
            return CONNECTED + chance.choice(LINES)
        case 3:
            return CONNECTED + chance.randbytes(chance.randint(1, 20_000)) + b"\n"
        case 4:
            lease = chance.randbytes(chance.randint(1, 40)).hex().encode()
            return DMP + bytes([len(lease)]) + lease + envelope(b"never")
        case _:
            return HANDSHAKE + f"(Publish {DRAIN} x)\n".encode()  # no Connect before it


# -- those that flood ---------------------------------------------------------------------------------------

FLOODS = (
    b"Topics\n",
    b"(Subscribe busy From_current)\n(Unsubscribe busy)\n",
    b"(Subscribe history From_beginning)\n(Unsubscribe history)\n",
    b"(Blocks history 1 1000000)\n",
    b"(Fetch history 1 1000000)\n",
    b"(Declare drain Broadcast (Persistent Weak))\n",
    b"(Confirm 1)\n",
    b"(Nonsense)\n",
)


async def floods(client: Client) -> None:
    """Send small commands, without ever reading an answer."""
    commands = client.chance.choice(FLOODS) * 1000
    other = await client.open(CONNECTED, LITTLE)
    with trio.move_on_after(client.chance.uniform(5, 60)):
        while True:
            await send(other, commands)
    client.reset()


KINDS = (
    Kind("say nothing", 100, says_nothing, 1),
    Kind("only shake hands", 100, only_shakes_hands, 1),
    Kind("only connect", 100, only_connects, 1),
    Kind("read an octet a second", 200, reads_slowly, 1),
    Kind("read history an octet a second", 50, reads_history_slowly, 1),
    Kind("work and confirm nothing", 25, works_and_confirms_nothing, 1),
    Kind("write an octet a second", 125, writes_slowly, 1),
    Kind("break off a command", 75, breaks_off_a_command, 0.5),
    Kind("break off an envelope", 50, breaks_off_an_envelope, 0.5),
    Kind("cut an envelope short", 25, cuts_an_envelope_short, 0.5),
    Kind("talk nonsense", 100, talks_nonsense, 6),
    Kind("flood and read nothing", 50, floods, 4),
)


def clients(count: int) -> Iterator[Kind]:
    """Return the kinds of `count` clients: each kind has at least one, and its share of the rest."""
    for kind in KINDS:
        yield from itertools.repeat(kind, max(1, count * kind.share // 1000))
