"""docs/PROTOCOL.md is the contract: every example in it runs here, octet for octet, against a real server.

The document itself explains how its examples are written (its chapter "How to read the examples").
"""

import re
import tomllib
import typing
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from struct import Struct
from typing import Literal, assert_never

import lmdb
import msgspec
import pytest
import trio

from omq.config import Config
from omq.protocol import types
from omq.protocol.commands import CommandError, parse
from omq.protocol.frames import FrameDecoder, FrameType, MessageRun, encode
from omq.protocol.handshake import hello
from omq.server import open_server
from storage.blocks import encode as block_of
from storage.levels import Level
from storage.records import block_key
from storage.store import Store

DOCUMENT = Path(__file__).parent.parent / "docs" / "PROTOCOL.md"
TEXT = DOCUMENT.read_text()

PATIENCE_SECONDS = 10
"""How long an example may take before it counts as stuck."""

CONNECT = b"(Connect 1 example)\n"
"""What goes before an example that does not begin with a handshake of its own."""

# -- reading the document -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    connection: str
    octets: bytes


@dataclass(frozen=True, slots=True)
class Expect:
    """Octets that must come; None for one that may have any value."""

    connection: str
    octets: tuple[int | None, ...]
    line: int
    written: tuple[str, ...] = ()
    """The lines of the document, where they are in hex."""


@dataclass(frozen=True, slots=True)
class Mark:
    """`end`: the client finishes sending. `drop`: it closes. `closed`: the server has closed."""

    connection: str
    what: Literal["end", "drop", "closed"]


Step = Send | Expect | Mark


@dataclass(frozen=True, slots=True)
class Example:
    line: int
    heading: str
    settings: str
    stored: tuple[str, ...]
    steps: tuple[Step, ...]
    shakes_hands: bool
    """Whether it begins with the first octets of a connection, so that nothing goes before it."""

    def __str__(self) -> str:
        return f"{self.heading}, line {self.line}"

    def sent(self) -> bytes:
        return b"".join(step.octets for step in self.steps if isinstance(step, Send))


@dataclass(slots=True)
class Unfinished:
    """An example while its lines are read."""

    settings: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


STEP = re.compile(r"(\d?)([<>])(x|e|end|drop)?(?: (.*))?")


def read_octets(written: str) -> tuple[int | None, ...]:
    digits = written.partition(";")[0].split()
    return tuple(None if pair == "TT" else int(pair, 16) for pair in digits)


def read_example(line: int, heading: str, lines: list[str]) -> Example:
    example = Unfinished()
    for number, text in enumerate(lines, line):
        match text[:2]:
            case "= ":
                example.settings.append(text[2:])
            case "@ ":
                example.stored.append(text[2:])
            case "# " | "":
                pass
            case _:
                match = STEP.fullmatch(text)
                assert match, f"line {number} of the document is no line of an example: {text!r}"
                example.steps.append(read_step(number, match[1], match[2], match[3], match[4] or ""))
    first = next(text for text in lines if STEP.fullmatch(text))
    return Example(
        line,
        heading,
        "\n".join(example.settings),
        tuple(example.stored),
        joined(example.steps),
        shakes_hands=first.startswith(">x"),
    )


def read_step(line: int, connection: str, arrow: str, kind: str | None, rest: str) -> Step:
    match arrow, kind:
        case ">", None:
            return Send(connection, rest.encode() + b"\n")
        case ">", "x":
            return Send(connection, bytes(octet or 0 for octet in read_octets(rest)))
        case ">", "end":
            return Mark(connection, "end")
        case ">", "drop":
            return Mark(connection, "drop")
        case "<", "end":
            return Mark(connection, "closed")
        case "<", "e":
            return Expect(connection, tuple(encode(types.Error(rest.encode()))), line)
        case "<", None:
            return Expect(connection, read_octets(rest), line, (rest,))
        case _:
            raise AssertionError(f"line {line} of the document is no line of an example")


def joined(steps: list[Step]) -> tuple[Step, ...]:
    """Steps with lines that belong together as one: what is sent at once, and the rows of octets."""
    together: list[Step] = []
    for step in steps:
        match (together[-1] if together else None), step:
            case Send(before, octets), Send(connection, more) if before == connection:
                together[-1] = Send(connection, octets + more)
            case Expect(before, octets, line, rows), Expect(connection, more, _, row) if (
                before == connection and bool(rows) == bool(row)
            ):
                together[-1] = Expect(connection, octets + more, line, rows + row)
            case _:
                together.append(step)
    return tuple(together)


def fenced(kind: str) -> Iterator[tuple[int, str, list[str]]]:
    """The fenced blocks of a kind: the line of their first, the heading above them, and their lines."""
    heading = ""
    block: list[str] | None = None
    start = 0
    for number, text in enumerate(TEXT.splitlines(), 1):
        if block is None:
            if text.startswith("#"):
                heading = text.lstrip("# ")
            elif text.startswith("```"):
                block, start, opened = [], number + 1, text[3:]
        elif text == "```":
            if opened == kind:
                yield start, heading, block
            block = None
        else:
            block.append(text)
    assert block is None, "the document's last fenced block has no end"


EXAMPLES = [read_example(*block) for block in fenced("omq")]


NUMBERS = ("A", "B", "K", "M", "N")
WORDS = ("ARGUMENT", "ARGUMENTS", "COMMAND", "FEED", "NAME", "SINK", "TIME", "TOPIC", "TYPES", "WHY")
STAND_IN = re.compile(rf"\b({'|'.join(NUMBERS + WORDS)})\b")


def sentence_patterns() -> list[tuple[str, re.Pattern[str]]]:
    """The sentences that the document lists, as patterns: a word in capitals stands for something."""
    return [
        (line, re.compile("".join(_pattern(part) for part in STAND_IN.split(line))))
        for _, _, lines in fenced("errors")
        for line in lines
    ]


def _pattern(part: str) -> str:
    if part in NUMBERS:
        return r"-?\d+"
    return ".+" if part in WORDS else re.escape(part)


# -- how frames are written ---------------------------------------------------------------------------------

ROW = 16
COLUMN = 3 * ROW + 2
NAMES = {
    FrameType.ERROR: "Error", FrameType.PING: "Ping", FrameType.MESSAGE: "Message",
    FrameType.SUBSCRIBED: "Subscribed", FrameType.UNSUBSCRIBED: "Unsubscribed",
    FrameType.DECLARED: "Declared", FrameType.CONFIRMED: "Confirmed", FrameType.TOPICS: "Topics",
    FrameType.DELETED: "Deleted", FrameType.LEASED: "Leased",
}  # fmt: skip
LENGTH = Struct(">I")


def frame_rows(octets: tuple[int | None, ...]) -> list[str]:
    """Whole frames as the document writes them: rows of hex, each with what it means."""
    rows: list[str] = []
    while octets:
        (length,) = LENGTH.unpack(known(octets[:4]))
        frame, octets = octets[: 4 + length], octets[4 + length :]
        kind = frame[4]
        assert kind is not None
        rows.append(row(frame[:5], NAMES[FrameType(kind)]))
        payload = frame[5:]
        match kind:
            case FrameType.MESSAGE:
                rows.append(row(payload[:8], f"id {number(payload[:8])}"))
                rows.append(row(payload[8:12], f"topic {number(payload[8:12])}"))
                payload = payload[12:]
            case FrameType.PING:
                rows.append(row(payload, "seconds since the epoch"))
                payload = ()
            case FrameType.CONFIRMED:
                rows.append(row(payload, f"n {number(payload)}"))
                payload = ()
            case _:
                pass
        for start in range(0, len(payload), ROW):
            part = payload[start : start + ROW]
            text = "".join(chr(octet) if 32 <= octet < 127 else "." for octet in known(part))
            rows.append(row(part, text).rstrip())
    return rows


def known(octets: tuple[int | None, ...]) -> bytes:
    return bytes(octet or 0 for octet in octets)


def number(octets: tuple[int | None, ...]) -> int:
    return int.from_bytes(known(octets), "big", signed=True)


def row(octets: tuple[int | None, ...], meaning: str) -> str:
    digits = " ".join("TT" if octet is None else f"{octet:02x}" for octet in octets)
    return f"{digits:<{COLUMN}}; {meaning}"


# -- running an example -------------------------------------------------------------------------------------


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
                damage(path / Level.WEAK.value, topic, int(span.split()[0]))


def damage(environment: Path, topic: int, first: int) -> None:
    """Change the last octet of a stored block, as a bad disk would."""
    with lmdb.open(str(environment), max_dbs=4, map_size=1 << 30) as opened:
        table = opened.open_db(b"blocks")
        with opened.begin(db=table, write=True) as transaction:
            stored = transaction.get(block_key(topic, first))
            assert stored is not None
            value = bytearray(stored)
            value[-1] ^= 1
            transaction.put(block_key(topic, first), bytes(value))


@asynccontextmanager
async def served(example: Example, path: Path) -> AsyncIterator[int]:
    """A server for one example; the port it listens on."""
    if example.stored:
        await trio.to_thread.run_sync(fill_store, path, example.stored)
    settings = {"listen": ["127.0.0.1:0"], "store": str(path)} | tomllib.loads(example.settings)
    async with open_server(msgspec.convert(settings, Config)) as server:
        yield server.port


class Connections:
    """The connections of an example, opened when first used."""

    def __init__(self, port: int, stack: AsyncExitStack, shakes_hands: bool) -> None:
        self._port = port
        self._stack = stack
        self._shakes_hands = shakes_hands
        self._open: dict[str, trio.SocketStream] = {}

    async def get(self, name: str) -> trio.SocketStream:
        if name not in self._open:
            stream = await trio.open_tcp_stream("127.0.0.1", self._port)
            self._open[name] = await self._stack.enter_async_context(stream)
            if not self._shakes_hands:
                await stream.send_all(hello())
                assert await receive(stream, 8) == hello()
                await stream.send_all(CONNECT)
        return self._open[name]

    async def drop(self, name: str) -> None:
        await self._open.pop(name).aclose()

    async def finish(self) -> None:
        """See that nothing came that the example does not show."""
        for stream in self._open.values():
            with trio.CancelScope() as scope:
                try:
                    await stream.send_eof()
                except trio.BrokenResourceError:
                    scope.cancel()  # the server has closed it, as the example shows
        for stream in self._open.values():
            assert await receive_all(stream) == b"", "the server sent more than the example shows"


async def receive(stream: trio.SocketStream, count: int) -> bytes:
    """So many octets, fewer only where the server closes before."""
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
            await stream.send_all(octets)
        case Expect(_, octets, line):
            received = await receive(stream, len(octets))
            assert matches(octets, received), f"line {line} of the document: the server sent {received!r}"
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


def matches(wanted: tuple[int | None, ...], received: bytes) -> bool:
    return len(wanted) == len(received) and all(
        octet is None or octet == got for octet, got in zip(wanted, received, strict=True)
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
async def test_example(example: Example, tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with served(example, tmp_path / "store") as port, AsyncExitStack() as stack:
            connections = Connections(port, stack, example.shakes_hands)
            for step in example.steps:
                await run_step(step, connections)
            await connections.finish()


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_words_beside_the_octets_are_right(example: Example) -> None:
    shown = [step for step in example.steps if isinstance(step, Expect) and step.written]
    if example.shakes_hands and shown:
        first = shown[0]
        shown[0] = Expect(first.connection, first.octets[8:], first.line + 1, first.written[1:])
    for step in shown:
        assert list(step.written) == frame_rows(step.octets), f"from line {step.line} of the document"


# -- the document is complete -------------------------------------------------------------------------------


def frames_shown() -> list[types.Frame | MessageRun]:
    frames: list[types.Frame | MessageRun] = []
    for example in EXAMPLES:
        for _, steps in groupby(
            sorted(
                (step for step in example.steps if isinstance(step, Expect)),
                key=lambda step: step.connection,
            ),
            key=lambda step: step.connection,
        ):
            octets = b"".join(known(step.octets) for step in steps)
            frames += FrameDecoder().feed(octets[8:] if example.shakes_hands else octets)
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


# -- the errors ---------------------------------------------------------------------------------------------


async def told_when_too_slow(path: Path) -> str:
    """The Error to a subscriber that read nothing while more passed than memory holds."""
    config = Config(listen=["127.0.0.1:0"], store=str(path), memory_bytes=4 << 20, max_message_bytes=1 << 20)
    declared = encode(types.Declared(types.Topic(0, b"ticks")))
    subscribed = encode(types.Subscribed(types.Topic(0, b"ticks")))
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
