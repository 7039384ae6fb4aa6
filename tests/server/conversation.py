"""A server under test, and raw connections to it: octets out, frames in.

Nothing of the client library is used here, so that a mistake of it cannot hide one of the server's.
"""

import os
import signal
import socket
import struct
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from forked import Forked
from quietness import pass_time, pass_until
from server_command import COMMAND, READY
from trio.testing import MockClock

from omq.client.network import TlsStream
from omq.config import Config
from omq.drivers.seam import SLOW_SECONDS
from omq.model import TopicInfo
from omq.protocol.omq.frames import FrameDecoder, MessageRun
from omq.protocol.omq.types import Confirmed, Error, Frame, Message, Ping, TopicList
from omq.server import Server, open_server
from omq.systemd import PassedSockets
from omq.terminals.connection.statistics import ConnectionStatistics, Kind

PATIENCE = 60
"""Seconds after which something that was promised is taken for missing."""

VERSION_ONE = bytes.fromhex("0000000000000001")
CONNECT = b"(Connect 1 test)\n"

PERSISTENCES = {
    "Transient": b"Transient",
    "Strong": b"(Persistent Strong)",
    "Weak": b"(Persistent Weak)",
    "Async": b"(Persistent Async)",
}

EVERY = pytest.mark.parametrize("persistence", PERSISTENCES.values(), ids=PERSISTENCES.keys())
"""Runs a test with each persistence."""

STORED = pytest.mark.parametrize(
    "persistence", [b"(Persistent Strong)", b"(Persistent Weak)", b"(Persistent Async)"]
)
"""Runs a test with each sync level."""


def quoted(octets: bytes) -> bytes:
    """Return any octets as a quoted atom: each one as a decimal escape."""
    return b'"' + b"".join(b"\\%03d" % octet for octet in octets) + b'"'


def publish(topic: bytes, bodies: Iterable[bytes]) -> bytes:
    """Publish lines, whose bodies need no escapes."""
    return b"".join(b'(Publish %s "%s")\n' % (topic, body) for body in bodies)


def numbered(first: int, last: int) -> list[bytes]:
    """Return bodies that tell their number, the last one included."""
    return [b"%d" % number for number in range(first, last + 1)]


class Conversation:
    """One connection to a server, and what the server says on it."""

    def __init__(self, stream: trio.SocketStream | TlsStream) -> None:
        self.stream = stream
        self.pings: list[Ping] = []
        """The pings that came; they are left out of everything else."""
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()

    async def send(self, octets: bytes) -> None:
        """Send octets as they are."""
        with trio.fail_after(PATIENCE):
            await self.stream.send_all(octets)

    async def say(self, *commands: bytes) -> None:
        """Send commands, each with its line feed."""
        await self.send(b"".join(command + b"\n" for command in commands))

    async def octets(self, count: int) -> bytes:
        """Return exactly N (`count`) octets, before any frame is read."""
        received = b""
        with trio.fail_after(PATIENCE):
            while len(received) < count:
                data = await self.stream.receive_some(count - len(received))
                assert data, f"the connection ended after {received!r}"
                received += data
        return received

    @property
    def unfinished(self) -> int:
        """Octets of a frame that is not complete."""
        return self._decoder.unfinished

    async def frame(self) -> Frame:
        """Return the next frame that is no ping."""
        while not self._frames:
            assert await self.receive(), "the connection ended"
        return self._frames.popleft()

    async def receive(self) -> bool:
        """Read once from the socket, whatever comes; False at its end."""
        with trio.fail_after(PATIENCE):
            data = await self.stream.receive_some(256 << 10)
        for found in self._decoder.feed(data):
            match found:
                case MessageRun():
                    self._frames += found.messages()
                case Ping():
                    self.pings.append(found)
                case _:
                    self._frames.append(found)
        return bool(data)

    async def ask(self, command: bytes) -> Frame:
        """Return the next frame after a command."""
        await self.say(command)
        return await self.frame()

    async def ask_all(self, commands: Iterable[bytes]) -> list[Frame]:
        """Return a frame for each of the commands, all of which are sent first."""
        sent = list(commands)
        await self.say(*sent)
        return [await self.frame() for _ in sent]

    async def error(self) -> bytes:
        """Return the sentence of the next frame, which must be an Error."""
        frame = await self.frame()
        assert isinstance(frame, Error), frame
        return frame.text

    async def refusal(self, command: bytes) -> bytes:
        """Return the sentence of the Error that answers a command."""
        await self.say(command)
        return await self.error()

    async def message(self) -> Message:
        """Return the next frame, which must be a Message."""
        frame = await self.frame()
        assert isinstance(frame, Message), frame
        return frame

    async def messages(self, count: int) -> list[Message]:
        """Return the next N (`count`) frames, which must be Messages."""
        return [await self.message() for _ in range(count)]

    async def bodies(self, count: int) -> list[bytes]:
        """Return the bodies of the next so many frames, which must be Messages."""
        return [message.body for message in await self.messages(count)]

    async def ids(self, count: int) -> list[int]:
        """Return the ids of the next so many frames, which must be Messages."""
        return [message.id for message in await self.messages(count)]

    async def confirm(self, n: int = 1) -> None:
        """Wait until everything published here is as safe as its topic promises."""
        assert await self.ask(b"(Confirm %d)" % n) == Confirmed(n)

    async def settle(self) -> None:
        """Wait until the commands given here are acted on; what comes meanwhile is kept for later."""
        await self.say(b"(Confirm 0)")
        before: list[Frame] = []
        while not _answers_confirm(frame := await self.frame()):
            before.append(frame)
        self._frames.extendleft(reversed(before))

    async def topics(self) -> dict[bytes, TopicInfo]:
        """Return the answer to Topics, by name."""
        answer = await self.ask(b"Topics")
        assert isinstance(answer, TopicList), answer
        return {info.topic: info for info in answer.topics}

    async def rest(self) -> list[Frame]:
        """Return every frame until the server ends the connection, which it must do between two frames."""
        while await self.receive():
            pass
        assert self.unfinished == 0
        frames, self._frames = list(self._frames), deque()
        return frames

    async def ended(self) -> None:
        """Wait until the server ends the connection without another word."""
        assert await self.rest() == []

    async def done(self) -> None:
        """Half-close: say that no more commands come."""
        await self.stream.send_eof()

    def reset(self) -> None:
        """End the connection the hard way: the server gets a reset instead of an end."""
        assert isinstance(self.stream, trio.SocketStream)
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """End the connection at once."""
        if isinstance(self.stream, trio.SocketStream):
            self.stream.socket.close()
        else:
            self.stream.close()


def _answers_confirm(frame: Frame) -> bool:
    return isinstance(frame, Confirmed) or (isinstance(frame, Error) and frame.text.startswith(b"Confirm "))


class Host:
    """A server to talk to. Its connections are closed when it is left."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._conversations: list[Conversation] = []

    async def open(self, receive_octets: int | None = None) -> Conversation:
        """Return a connection on which nothing was said; `receive_octets` makes its receive buffer that
        small.
        """
        opened = trio.socket.socket()
        if receive_octets is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_octets)
        with ExitStack() as unconnected:
            unconnected.callback(opened.close)
            with trio.fail_after(PATIENCE):
                await opened.connect(("127.0.0.1", self.port))
            unconnected.pop_all()
        return self.opened(trio.SocketStream(opened))

    async def connect(self, receive_octets: int | None = None) -> Conversation:
        """Return a connection after its handshake and Connect."""
        conversation = await self.open(receive_octets)
        await conversation.send(VERSION_ONE + CONNECT)
        assert await conversation.octets(8) == VERSION_ONE
        return conversation

    def opened(self, stream: trio.SocketStream | TlsStream) -> Conversation:
        """Return a conversation on a stream that was made for it."""
        conversation = Conversation(stream)
        self._conversations.append(conversation)
        return conversation

    async def topics(self) -> dict[bytes, TopicInfo]:
        """Return the server's topics, asked for on a connection of its own."""
        conversation = await self.connect()
        topics = await conversation.topics()
        conversation.close()
        return topics

    def leave_open(self, conversation: Conversation) -> None:
        """Do not close a connection that was made here: the test does."""
        self._conversations.remove(conversation)

    def hang_up(self, *but: Conversation) -> None:
        """Close every connection that was made here, but for some."""
        for conversation in self._conversations:
            if conversation not in but:
                conversation.close()
        self._conversations = list(but)


class InProcess(Host):
    """A server in this process."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.port)
        self.server = server

    @property
    def connections(self) -> int:
        """The number of connections that have passed the handshake and are not over."""
        return len(self.server.terminals())

    @property
    def handshakes(self) -> int:
        """The number of connections that have not passed the handshake."""
        return self.server.statistics().handshakes

    @property
    def memory_used(self) -> int:
        """The octets of the bounded memory for input, for messages on their way into a store, and for those
        that wait.
        """
        memory = self.server.memory.statistics()
        return memory.posted + memory.reading + memory.waiting


@asynccontextmanager
async def serving(
    store: Path, passed: PassedSockets | None = None, **settings: Any
) -> AsyncIterator[InProcess]:
    """Yield a server in this process, with these settings; it is stopped properly at the end."""
    config = Config(listen=["127.0.0.1:0"], store=str(store), **settings)
    async with open_server(config, passed) as server:
        host = InProcess(server)
        try:
            yield host
        finally:
            host.hang_up()


class OwnProcess(Host):
    """A server in a process of its own."""

    def __init__(self, port: int, process: Forked[bytes]) -> None:
        super().__init__(port)
        self.process = process

    async def kill(self) -> None:
        """Send SIGKILL: it gets no chance to do anything more."""
        self.process.kill()
        await trio.to_thread.run_sync(self.process.wait)

    async def stop(self) -> int:
        """Send SIGTERM: it ends properly. Return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return await trio.to_thread.run_sync(self.process.wait, PATIENCE)


@asynccontextmanager
async def serving_process(
    store: Path, settings: str = "", boot_id: str = "this-boot"
) -> AsyncIterator[OwnProcess]:
    """Yield a server in a process of its own, with the text of a configuration file; killed if it
    still runs.
    """
    configuration = store.with_name(store.name + ".toml")
    configuration.write_text(settings)
    command = [COMMAND, "--listen", "127.0.0.1:0", "--store", str(store)]
    process = Forked[bytes](
        [*command, "--config", str(configuration), "--log-level", "warning"],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMQ_BOOT_ID": boot_id},
    )
    assert process.stdout is not None
    try:
        with process.stdout as output:
            with trio.fail_after(PATIENCE):
                said = await trio.to_thread.run_sync(output.readline, abandon_on_cancel=True)
            assert said.startswith(READY.encode()), said
            host = OwnProcess(int(said.rpartition(b":")[2]), process)
            try:
                yield host
            finally:
                host.hang_up()
    finally:
        process.kill()
        process.wait()


async def declared(host: Host, types: bytes, topic: bytes = b"t") -> Conversation:
    """Return a connection that has declared a topic of these types."""
    client = await host.connect()
    await client.ask(b"(Declare %s %s)" % (topic, types))
    return client


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that takes a moment."""
    with trio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - there is no event for what goes on inside a server
            await trio.sleep(0.002)


async def reads_although_stalled(
    host: InProcess, clock: MockClock, slow: Conversation, bodies: list[bytes]
) -> None:
    """Read these messages to the end, after the client has stalled three times in the middle."""

    def is_stalled() -> bool:
        found = [terminal.statistics() for terminal in host.server.terminals()]
        return any(each.kind is Kind.OMQ and each.stalled_seconds is not None for each in found)

    for _ in range(3):
        await pass_until(is_stalled, clock, SLOW_SECONDS)
        for _ in range(20):
            await slow.receive()
    await slow.say(b"(Confirm 1)")
    frames = [await slow.frame() for _ in range(len(bodies) + 1)]
    assert [frame.body for frame in frames if isinstance(frame, Message)] == bodies
    assert Confirmed(1) in frames


async def answers_pile_up(host: InProcess) -> ConnectionStatistics:
    """Wait until the server keeps the greatest number of answers for a client that does not read, so that the
    server reads nothing more of it. Returns the statistics of its connection.
    """
    with trio.fail_after(PATIENCE):
        before: ConnectionStatistics | None = None
        still = 0
        while still < 20 or before is None:
            await trio.sleep(0.002)
            found = [terminal.statistics() for terminal in host.server.terminals()]
            now = max(found, key=lambda each: each.held.answers)
            moved = before is None or (before.octets_in, before.octets_out) != (now.octets_in, now.octets_out)
            still = 0 if moved or now.waiting_answers < 50 else still + 1
            before = now
    return before


async def tidied(
    client: Conversation, clock: MockClock, topic: bytes, condition: Callable[[TopicInfo], bool]
) -> TopicInfo:
    """Let the time pass in which the server tidies its store, until a topic is as it should be."""
    for _ in range(500):
        info = (await client.topics())[topic]
        if condition(info):
            return info
        await pass_time(clock, 2, step=2)  # a busy disk takes longer, and no time passes meanwhile
    raise AssertionError(f"{info} stays as it is")
