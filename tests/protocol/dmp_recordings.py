"""Reads the recorded connections of OpenAMQ (tests/data/dmp; the README beside it says what they are)."""

import re
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "data" / "dmp"

_TEXT_LINE = re.compile(r" *[\d.]+ ([CS]): (.*)")


@dataclass(frozen=True)
class Read:
    """Octets of one side that the other read at once; empty where it closed."""

    side: str
    octets: bytes


def reads(name: str) -> list[Read]:
    lines = (DIRECTORY / f"{name}.hex").read_text().splitlines()
    return [
        Read(side, b"" if octets == "EOF" else bytes.fromhex(octets))
        for _, side, octets in (line.split() for line in lines)
    ]


def sent(name: str, side: str) -> bytes:
    """Return all octets of one side."""
    return b"".join(read.octets for read in reads(name) if read.side == side)


def described(name: str, side: str) -> list[tuple[str, bytes]]:
    """Return the texts that one side sent according to the decoded recording, each with its octets."""
    lines = (DIRECTORY / f"{name}.txt").read_text().splitlines()
    found = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        match = _TEXT_LINE.fullmatch(line)
        if match and match[1] == side and match[2] != "EOF":
            found.append((match[2], bytes.fromhex(below.strip())))
    return found


NAMES = sorted(path.stem for path in DIRECTORY.glob("*.hex"))
AMQP = [name for name in NAMES if sent(name, "C").startswith(b"AMQP\x00\x00\x09\x01")]
OTHER_VERSION = ["G_leases.conn8"]
DMP = [name for name in NAMES if name not in AMQP and name not in OTHER_VERSION]
FEEDS = [name for name in DMP if b"200 OK Feed" in sent(name, "S")]
SINKS = [name for name in DMP if b"200 OK Sink" in sent(name, "S")]
