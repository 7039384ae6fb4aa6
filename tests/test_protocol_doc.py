"""docs/PROTOCOL.md is the contract: every example in it runs here, octet for octet, against a real server.

The document itself explains how its examples are written (its chapter "How to read the examples").
"""

import itertools
import re
import tomllib
import typing
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Literal, assert_never

import msgspec
import pytest
import trio
from made_stores import damage

from omq import model
from omq.config import Config
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import properties, shortstr
from omq.protocol.dmp.envelopes import AFTER_HEAD, NULL_MESSAGE, NUMBER
from omq.protocol.dmp.responses import ResponseCode
from omq.protocol.handshake import DMP_HEADER, hello
from omq.protocol.omq import types
from omq.protocol.omq.commands import CommandError, parse
from omq.protocol.omq.frames import FrameDecoder, FrameType, MessageRun, encode
from omq.server import open_server
from omq_storage.blocks import encode as block_of
from omq_storage.blocks import unpack_sent
from omq_storage.levels import Level
from omq_storage.numbers import unpack
from omq_storage.store import Store

DOCUMENT = Path(__file__).parent.parent / "docs" / "PROTOCOL.md"
TEXT = DOCUMENT.read_text()

PATIENCE_SECONDS = 60
"""The time limit of an example."""

CONNECT = b"(Connect 1 example)\n"
"""What precedes an example that does not begin with a handshake of its own."""

# -- reading the document -----------------------------------------------------------------------------------


Octet = int | str | None
"""A value; None for one that may have any; `L1` for one that may have any and is the next of `LEASE1`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Octets from the client; `LEASE1` stands for the lease with that name."""

    connection: str
    octets: bytes


@dataclass(frozen=True, slots=True)
class Expect:
    """Octets that the server must send."""

    connection: str
    octets: tuple[Octet, ...]
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
    raw: frozenset[str]
    """The connections that it shows from their first octets on, so that nothing goes before."""

    def __str__(self) -> str:
        return f"{self.heading}, line {self.line}"

    def sent(self) -> bytes:
        return b"".join(step.octets for step in self.steps if isinstance(step, Send))

    def expected(self, connection: str) -> list[Expect]:
        return [step for step in self.steps if isinstance(step, Expect) and step.connection == connection]

    def speaking(self, *, dmp: bool) -> list[str]:
        """Return the connections that speak DMP, or those that speak omq."""
        begin: dict[str, bytes] = {}
        for step in self.steps:
            begin.setdefault(step.connection, step.octets if isinstance(step, Send) else b"")
        return [name for name, octets in begin.items() if octets.startswith(DMP_HEADER) == dmp]


@dataclass(slots=True)
class Unfinished:
    """An example while its lines are parsed."""

    settings: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


STEP = re.compile(r"(\d?)([<>])(x|e|s|end|drop)?(?: (.*))?")
LEASE_OCTET = re.compile(r"L\d")


def read_octets(written: str) -> tuple[Octet, ...]:
    return tuple(map(read_octet, written.partition(";")[0].split()))


def read_octet(pair: str) -> Octet:
    if LEASE_OCTET.fullmatch(pair):
        return pair
    return None if pair == "TT" else int(pair, 16)


def read_sent(written: str) -> bytes:
    digits = written.partition(";")[0].split()
    return b"".join(part.encode() if part.startswith("LEASE") else bytes.fromhex(part) for part in digits)


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
    first: dict[str, str] = {}
    for text in lines:
        if match := STEP.fullmatch(text):
            first.setdefault(match[1], f"{match[2]}{match[3]}")
    return Example(
        line,
        heading,
        "\n".join(example.settings),
        tuple(example.stored),
        joined(example.steps),
        raw=frozenset(connection for connection, kind in first.items() if kind == ">x"),
    )


def read_step(line: int, connection: str, arrow: str, kind: str | None, rest: str) -> Step:
    match arrow, kind:
        case ">", None:
            return Send(connection, rest.encode() + b"\n")
        case ">", "x":
            return Send(connection, read_sent(rest))
        case ">", "end":
            return Mark(connection, "end")
        case ">", "drop":
            return Mark(connection, "drop")
        case "<", "end":
            return Mark(connection, "closed")
        case "<", "e":
            return Expect(connection, tuple(encode(types.Error(rest.encode()))), line)
        case "<", "s":
            return Expect(connection, tuple(shortstr.write(rest.encode(), rest)), line)
        case "<", None:
            return Expect(connection, read_octets(rest), line, (rest,))
        case _:
            raise AssertionError(f"line {line} of the document is no line of an example")


def joined(steps: list[Step]) -> tuple[Step, ...]:
    """Return steps with lines that belong together as one: what is sent at once, and the rows of octets."""
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
    """Yield the fenced blocks of a kind: the line of their first, the heading above them, and their lines."""
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
WORDS = ("ARGUMENT", "ARGUMENTS", "COMMAND", "FEED", "NAME", "SINK", "TIME", "TOPIC", "TYPES", "WHOSE", "WHY")
STAND_IN = re.compile(rf"\b({'|'.join(NUMBERS + WORDS)})\b")


def sentence_patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Return the sentences that the document lists, as patterns: a word in capitals stands for something."""
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
    FrameType.DELETED: "Deleted", FrameType.LEASED: "Leased", FrameType.BLOCK: "Block",
    FrameType.BLOCKS: "Blocks", FrameType.MANAGED: "Managed", FrameType.STATISTICS: "Statistics",
    FrameType.CONNECTIONS: "Connections", FrameType.SUBSCRIBERS: "Subscribers", FrameType.DONE: "Done",
}  # fmt: skip
LENGTH = Struct(">I")


def frame_rows(octets: tuple[Octet, ...]) -> list[str]:
    """Return whole frames as the document writes them: rows of hex, each with what it means."""
    rows: list[str] = []
    while octets:
        (length,) = LENGTH.unpack(known(octets[:4]))
        frame, octets = octets[: 4 + length], octets[4 + length :]
        kind = frame[4]
        assert isinstance(kind, int)
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
            case FrameType.DONE:
                rows.append(row(payload, f"count {number(payload)}"))
                payload = ()
            case FrameType.BLOCK:
                rows += block_rows(payload)
                payload = ()
            case _:
                pass
        rows += text_rows(payload)
    return rows


BLOCK_FIELDS = (
    (8, "magic, format {0}, flags {1}"), (4, "checksum"), (4, "topic {n}"), (8, "first id {n}"),
    (8, "time {n}"), (4, "{n} messages"), (4, "{n} octets of frames"), (8, "{n} octets of heads"),
)  # fmt: skip


def block_rows(octets: tuple[Octet, ...]) -> list[str]:
    """Return a stored block: its header field by field, its arrays, and its frames and heads."""
    value = known(octets)
    block = unpack_sent(value)
    rows: list[str] = []
    at = 0
    for size, meaning in BLOCK_FIELDS:
        field = octets[at : at + size]
        at += size
        rows.append(row(field, meaning.format(value[4], value[5], n=number(field))))
    arrays = [("offsets", block.offsets), ("time deltas", block.deltas)]
    if block.heads is not None:
        arrays.append(("offsets of heads", block.heads.offsets))
    for meaning, array in arrays:
        if array is not None:
            rows.append(row(octets[at : at + len(array)], f"{meaning} {', '.join(map(str, unpack(array)))}"))
            at += len(array)
    for message in range(block.first, block.next):
        size = len(block.frame(message))
        rows += text_rows(octets[at : at + size])
        at += size
    return rows + text_rows(octets[at:])


def text_rows(octets: tuple[Octet, ...]) -> list[str]:
    parts = (octets[start : start + ROW] for start in range(0, len(octets), ROW))
    return [row(part, shown(known(part))).rstrip() for part in parts]


def shown(octets: bytes) -> str:
    return "".join(chr(octet) if 32 <= octet < 127 else "." for octet in octets)


def dmp_rows(octets: bytes) -> list[str]:
    """Return what a DMP server sends, as the document writes it: short strings, then perhaps envelopes."""
    rows: list[str] = []
    while octets:
        if octets[0]:  # no envelope in the document has 16 MiB
            end = 1 + octets[0]
            rows += [row(tuple(octets[:1]), f"{octets[0]} octets"), *text_rows(tuple(octets[1:end]))]
        elif octets.startswith(NULL_MESSAGE):
            end = len(NULL_MESSAGE)
            rows.append(row(tuple(octets[:end]), "a null message"))
        else:
            end = NUMBER.size + NUMBER.unpack_from(octets)[0]
            rows += envelope_rows(octets[:end])
        octets = octets[end:]
    return rows


def envelope_rows(envelope: bytes) -> list[str]:
    key_at = NUMBER.size + 1 + envelope[NUMBER.size]
    flags_at = key_at + 1 + envelope[key_at]
    values_at = flags_at + 2
    options_at = stored_head.skip(envelope, NUMBER.size, len(envelope) - AFTER_HEAD)
    body_at = options_at + AFTER_HEAD
    present = [
        name.replace("_", "-")
        for name in properties.Properties.__dataclass_fields__
        if getattr(stored_head.decode(envelope[NUMBER.size : options_at]).properties, name) is not None
    ]
    exchange, key = envelope[NUMBER.size : key_at], envelope[key_at:flags_at]
    return [
        row(tuple(envelope[: NUMBER.size]), f"size {len(envelope) - NUMBER.size}"),
        row(tuple(exchange), f"exchange {shown(exchange[1:])}" if exchange[0] else "no exchange"),
        row(tuple(key), f"key {shown(key[1:])}" if key[0] else "no key"),
        row(tuple(envelope[flags_at:values_at]), ", ".join(present) or "no properties"),
        *text_rows(tuple(envelope[values_at:options_at])),
        row(
            tuple(envelope[options_at:body_at]),
            f"options {envelope[options_at]}, body of {len(envelope) - body_at}",
        ),
        *text_rows(tuple(envelope[body_at:])),
    ]


def known(octets: tuple[Octet, ...]) -> bytes:
    """Return the octets, with a digit for each one of a clock, and 0 for each one of a lease."""
    clock = ord("0")
    return bytes(octet if isinstance(octet, int) else clock if octet is None else 0 for octet in octets)


def number(octets: tuple[Octet, ...]) -> int:
    return int.from_bytes(known(octets), "big", signed=True)


def row(octets: tuple[Octet, ...], meaning: str) -> str:
    digits = " ".join(f"{octet:02x}" if isinstance(octet, int) else octet or "TT" for octet in octets)
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
        """Remember what came in the places that are written `L1`, and the like."""
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


# -- the document is complete -------------------------------------------------------------------------------


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


# -- the errors ---------------------------------------------------------------------------------------------


async def told_when_too_slow(path: Path) -> str:
    """Return the Error to a subscriber that reads nothing while more messages pass than fit into the
    memory.
    """
    config = Config(listen=["127.0.0.1:0"], store=str(path), memory_bytes=4 << 20, max_message_bytes=1 << 20)
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
