"""docs/PROTOCOL.md as a test reads it: its examples, and the sentences of errors that it lists."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from omq.protocol.amqp import shortstr
from omq.protocol.handshake import DMP_HEADER
from omq.protocol.omq import types
from omq.protocol.omq.frames import encode

DOCUMENT = Path(__file__).parent.parent / "docs" / "PROTOCOL.md"

TEXT = DOCUMENT.read_text()

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
    """Return the sentences that the document lists, as patterns: a word in capitals stands for something, and
    the thing that a quota counts is a singular after 1.
    """
    return [
        (line, re.compile(COUNTED.sub(r"(?:\\d+ \1s|1 \1),", _pattern_of(line))))
        for _, _, lines in fenced("errors")
        for line in lines
    ]


COUNTED = re.compile(r"-\?\\d\+\\ ((?:\w|\\ )+)s,")
"""The number and the things that a quota counts, in the pattern of a sentence."""


def _pattern_of(line: str) -> str:
    return "".join(_pattern(part) for part in STAND_IN.split(line))


def _pattern(part: str) -> str:
    if part in NUMBERS:
        return r"-?\d+"
    return ".+" if part in WORDS else re.escape(part)
