"""docs/PROTOCOL.md is the contract: every example in it runs here, octet for octet, against a real server.

The document itself explains how its examples are written (its chapter "How to read the examples").
"""

import itertools
import re
import tomllib
import typing
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import assert_never

import msgspec
import pytest
import trio
from document_rows import dmp_rows, frame_rows, known
from made_stores import damage
from protocol_document import (
    EXAMPLES,
    TEXT,
    Example,
    Expect,
    Mark,
    Octet,
    Send,
    Step,
    fenced,
    sentence_patterns,
)
from tracked import ROOT

from omq import model, refusal_words
from omq.config import Config
from omq.protocol.amqp import properties
from omq.protocol.dmp.responses import ResponseCode
from omq.protocol.handshake import hello
from omq.protocol.omq import types
from omq.protocol.omq.commands import CommandError, parse
from omq.protocol.omq.frames import FrameDecoder, FrameType, MessageRun, encode
from omq.protocol.omq.sentences import sentence
from omq.server import open_server
from omq_storage.blocks import encode as block_of
from omq_storage.levels import Level
from omq_storage.store import Store

PATIENCE_SECONDS = 60
"""The time limit of an example."""

CONNECT = b"(Connect 1 example)\n"
"""The line before an example that does not begin with a handshake of its own."""


# -- running an example --------------------------------------------------------------------------------------


def fill_store(path: Path, stored: tuple[str, ...]) -> None:
    """Make a store as `@` lines describe it: `prices: 1 to 2, 3 to 4 lost, 5 to 6`."""
    with Store.open(path) as store:
        environment = store.level(Level.WEAK)
        for line in stored:
            name, _, spans = line.partition(": ")
            topic = store.catalogue.create(name.encode(), "Broadcast", "Weak", declared=True, reserved=1).id
            for span in spans.split(", "):
                first, _, last, *fate = span.split()
                if fate == ["lost"]:
                    continue
                bodies = [b"body %d" % id for id in range(int(first), int(last) + 1)]
                environment.append([block_of(topic, int(first), bodies, 1_700_000_000_000_000)])
                if fate == ["deleted"]:
                    environment.trim(topic, int(last) + 1)
    for line in stored:
        for span in line.partition(": ")[2].split(", "):
            if span.endswith("damaged"):
                damage(path, topic, int(span.split()[0]))


@asynccontextmanager
async def served(example: Example, path: Path) -> AsyncIterator[int]:
    """Yield a server for one example; the port it listens on."""
    if example.stored:
        await trio.to_thread.run_sync(fill_store, path, example.stored)
    settings = {"listen": ["127.0.0.1:0"], "store": str(path)} | tomllib.loads(example.settings)
    async with open_server(msgspec.convert(settings, Config)) as server:
        yield server.port


class Connections:
    """The connections of an example; each is opened at its first use."""

    def __init__(self, port: int, stack: AsyncExitStack, raw: frozenset[str]) -> None:
        self._port = port
        self._stack = stack
        self._raw = raw
        self._leases: dict[bytes, bytes] = {}
        self._open: dict[str, trio.SocketStream] = {}

    async def get(self, name: str) -> trio.SocketStream:
        if name not in self._open:
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            self._open[name] = await self._stack.enter_async_context(stream)
            if name not in self._raw:
                await stream.send_all(hello())
                assert await receive(stream, 8) == hello()
                await stream.send_all(CONNECT)
        return self._open[name]

    def keep_leases(self, wanted: tuple[Octet, ...], received: bytes) -> None:
        """Remember the octets in the places that are written `L1`, and the like."""
        for octet, got in zip(wanted, received, strict=True):
            if isinstance(octet, str):
                name = octet.replace("L", "LEASE").encode()
                self._leases[name] = self._leases.get(name, b"") + bytes([got])

    def with_leases(self, octets: bytes) -> bytes:
        """Put the leases in the places of their names."""
        for name, lease in self._leases.items():
            octets = octets.replace(name, lease)
        return octets

    async def drop(self, name: str) -> None:
        await self._open.pop(name).aclose()

    async def finish(self) -> None:
        """Check that the server sent nothing that the example does not show."""
        for stream in self._open.values():
            with trio.CancelScope() as scope:
                try:
                    await stream.send_eof()
                except trio.BrokenResourceError:
                    scope.cancel()  # the server has closed it, as the example shows
        for stream in self._open.values():
            assert await receive_all(stream) == b"", "the server sent more than the example shows"


async def receive(stream: trio.SocketStream, count: int) -> bytes:
    """Receive `count` octets; fewer only if the server closes before."""
    octets = b""
    while len(octets) < count and (more := await stream.receive_some(count - len(octets))):
        octets += more
    return octets


async def receive_all(stream: trio.SocketStream) -> bytes:
    return b"".join([data async for data in stream])


async def run_step(step: Step, connections: Connections) -> None:
    stream = await connections.get(step.connection)
    match step:
        case Send(_, octets):
            await stream.send_all(connections.with_leases(octets))
        case Expect(_, octets, line):
            received = await receive(stream, len(octets))
            assert matches(octets, received), f"line {line} of the document: the server sent {received!r}"
            connections.keep_leases(octets, received)
        case Mark(name, what):
            match what:
                case "end":
                    await stream.send_eof()
                case "drop":
                    await connections.drop(name)
                case "closed":
                    assert await receive_all(stream) == b""
                case _:
                    assert_never(what)
        case _:
            assert_never(step)


def matches(wanted: tuple[Octet, ...], received: bytes) -> bool:
    return len(wanted) == len(received) and all(
        not isinstance(octet, int) or octet == got for octet, got in zip(wanted, received, strict=True)
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
async def test_example(example: Example, tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with served(example, tmp_path / "store") as port, AsyncExitStack() as stack:
            connections = Connections(port, stack, example.raw)
            for step in example.steps:
                await run_step(step, connections)
            await connections.finish()


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_words_beside_the_octets_are_right(example: Example) -> None:
    for connection in example.speaking(dmp=False):
        steps = [step for step in example.expected(connection) if step.written]
        if connection in example.raw and steps:
            first = steps[0]
            steps[0] = Expect(connection, first.octets[8:], first.line + 1, first.written[1:])
        for step in steps:
            assert list(step.written) == frame_rows(step.octets), f"from line {step.line} of the document"
    for connection in example.speaking(dmp=True):
        for step in example.expected(connection):
            if step.written:
                rows = dmp_rows(known(step.octets))
                assert list(step.written) == rows, f"from line {step.line} of the document"


# -- the document is complete --------------------------------------------------------------------------------


def frames_shown() -> list[types.Frame | MessageRun]:
    frames: list[types.Frame | MessageRun] = []
    for example in EXAMPLES:
        for connection in example.speaking(dmp=False):
            octets = b"".join(known(step.octets) for step in example.expected(connection))
            frames += FrameDecoder().feed(octets[8:] if connection in example.raw else octets)
    return frames


def commands_shown() -> set[type]:
    commands: set[type] = set()
    for example in EXAMPLES:
        for line in example.sent().split(b"\n"):
            try:
                commands.add(type(parse(line)))
            except CommandError:
                continue
    return commands


def test_every_command_has_an_example() -> None:
    assert set(typing.get_args(types.Command)) - commands_shown() == set()


def test_every_frame_has_an_example() -> None:
    shown = {type(frame) for frame in frames_shown()}
    assert set(typing.get_args(types.Frame)) - {types.Message} - shown == set()
    assert MessageRun in shown


def test_every_frame_type_is_listed_with_its_number() -> None:
    listed = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", TEXT, re.MULTILINE))
    assert {int(number): name.upper() for number, name in listed.items()} == {
        kind.value: kind.name for kind in FrameType
    }


def test_every_response_code_is_listed() -> None:
    listed = dict(re.findall(r"^\| `(\d{3}) ([A-Z-]+)` \|", TEXT, re.MULTILINE))
    assert {int(code): words.encode() for code, words in listed.items()} == {
        code.value: code.indicator for code in ResponseCode
    }


def test_every_property_is_listed_with_its_flag() -> None:
    listed = re.findall(r"^\| `([0-9a-f]{4})` \| ([a-z-]+) \|", TEXT, re.MULTILINE)
    names = [name.replace("_", "-") for name in properties.Properties.__dataclass_fields__]
    assert [name for _, name in listed] == names
    assert [int(flag, 16) for flag, _ in listed] == [0x8000 >> place for place in range(len(names))]


def test_the_types_in_ocaml_notation_have_every_constructor() -> None:
    (ocaml,) = ("\n".join(lines) for _, heading, lines in fenced("ocaml") if heading == "Types")
    client = ocaml.partition("module Client")[2].partition("module Topic ")[0]
    names = {command.__name__ for command in typing.get_args(types.Command)}
    assert names - set(re.findall(r"^ *\| (\w+)", client, re.MULTILINE)) == set()


def test_the_limits_are_those_of_the_configuration() -> None:
    rows = re.findall(r"^\| [^|]+ \| ([\d,]+)[^|]* \| `(\w+)` \|", TEXT, re.MULTILINE)
    assert rows
    for limit, key in rows:
        assert getattr(Config(), key) == int(limit.replace(",", "")), key


# -- the errors ----------------------------------------------------------------------------------------------


async def told_when_too_slow(path: Path) -> str:
    """Return the Error to a subscriber that reads nothing while more messages pass than fit into the
    memory.
    """
    config = Config(
        listen=["127.0.0.1:0"],
        store=str(path),
        memory_bytes=4 << 20,
        max_message_bytes=1 << 20,
        spool_bytes=0,
    )
    declared = encode(types.Declared(model.Topic(0, b"ticks")))
    subscribed = encode(types.Subscribed(model.Topic(0, b"ticks")))
    async with open_server(config) as server, AsyncExitStack() as stack:
        unread = trio.socket.socket()
        # With little room in the socket, what is not read soon waits in the server.
        unread.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await unread.connect(("127.0.0.1", server.port))
        slow = await stack.enter_async_context(trio.SocketStream(unread))
        await slow.send_all(hello() + CONNECT + b"(Declare ticks Broadcast Transient)\n")
        await slow.send_all(b"(Subscribe ticks From_current)\n")
        assert await receive(slow, 8 + len(declared + subscribed)) == hello() + declared + subscribed

        publisher = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", server.port))
        await publisher.send_all(hello() + CONNECT)
        line = b"(Publish ticks %s)\n" % (b"x" * 60_000)
        for _ in range(16):
            await publisher.send_all(line * 20)
        await publisher.send_all(b"(Confirm 1)\n")
        confirmed = hello() + encode(types.Confirmed(1))
        assert await receive(publisher, len(confirmed)) == confirmed

        decoder = FrameDecoder()
        async for data in slow:
            for frame in decoder.feed(bytes(data)):
                if isinstance(frame, types.Error):
                    return frame.text.decode()
    raise AssertionError("the server closed the connection")


def errors_shown() -> set[str]:
    return {frame.text.decode() for frame in frames_shown() if isinstance(frame, types.Error)}


async def test_every_sentence_listed_is_produced(tmp_path: Path) -> None:
    """The examples have run as tests of their own: what they show is what the server says."""
    with trio.fail_after(3 * PATIENCE_SECONDS):
        errors = errors_shown() | {await told_when_too_slow(tmp_path / "store")}
    patterns = sentence_patterns()
    assert [listed for listed, pattern in patterns if not any(map(pattern.fullmatch, errors))] == []


def test_every_sentence_shown_is_listed() -> None:
    patterns = [pattern for _, pattern in sentence_patterns()]
    assert [error for error in errors_shown() if not any(p.fullmatch(error) for p in patterns)] == []


ARGUMENTS = (
    b"x", b"1", b"()", b"(x)", b"From_current", b"(From_message x)", b"(From_message (1))", b"Broadcast",
    b"(2013-08-07 10:01:02 Mars)", b"(1/x/1 10:01:02)", b'"2013-08-07 10:01:02 Mars"', b'"1/x/1 10:01:02"',
)  # fmt: skip
"""For every argument a valid value and all kinds of invalid ones."""


def test_every_sentence_about_a_line_that_is_no_command_is_listed() -> None:
    refused: set[str] = set()
    for command in typing.get_args(types.Command):
        for count in range(4):
            for arguments in itertools.product(ARGUMENTS, repeat=count):
                try:
                    parse(b"(%s)" % b" ".join((command.__name__.encode(), *arguments)))
                except CommandError as error:
                    refused.add(error.sentence.decode())
    assert len(refused) > 100
    patterns = [pattern for _, pattern in sentence_patterns()]
    assert [error for error in refused if not any(p.fullmatch(error) for p in patterns)] == []


def test_the_document_names_the_words_that_clients_recognise() -> None:
    """The console recognises an unknown client, too."""
    (named,) = re.findall(r"because clients decide by them, too:(.*?)\.\n\n", TEXT, re.DOTALL)
    words = [value for name, value in vars(refusal_words).items() if name.isupper()]
    assert sorted(re.findall("`(.*?)`", " ".join(named.split()))) == sorted(words)
    console = (ROOT / "omq" / "console" / "app" / "link.js").read_text()
    assert f'"{sentence("Connect", None, refusal_words.NO_CLIENT).decode()}"' in console
