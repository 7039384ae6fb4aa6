"""Random arguments for calls of the compiled codec: valid, mutated, and hostile ones."""

from array import array
from collections.abc import Callable
from random import Random
from struct import pack
from typing import Any

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import LongString, Table
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq_storage import plain

HEADS = (
    stored_head.PLAIN_HEAD,
    stored_head.encode(Head(b"x", b"key")),
    stored_head.encode(
        Head(b"x", b"key", Properties(message_id=b"7", app_id=b"me", timestamp=1 << 63, priority=3))
    ),
    stored_head.encode(Head(b"", b"", Properties(headers=Table(((b"a", LongString(b"b")),))))),
    stored_head.encode(Head(b"x" * 255, b"y" * 255)),
)

NUMBERS = (
    -(1 << 70), -(1 << 63) - 1, -(1 << 63), -(1 << 31), -1, 0, 1, 2, 3, 12, 13, 17, 255,
    (1 << 24) - 1, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 17, (1 << 32) - 1, 1 << 32,
    1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 70,
)  # fmt: skip

STRANGERS: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: "text", lambda: 7.5, list, tuple, dict, object, lambda: [b"a", None],
    lambda: range(5), lambda: bytearray(b"abc"), lambda: memoryview(b"abcdef")[::2],
    lambda: array("I", [1, 2, 3]), lambda: (b"a" for _ in range(3)), lambda: b"", lambda: True,
    lambda: float("nan"), lambda: [b"a"] * 3,
)  # fmt: skip
"""Functions that make invalid arguments."""

SEXP_PIECES = (
    b"a", b"#", b"|", b"#|", b"|#", b"#;", b";", b" ", b"\n", b"\r", b"\r\n", b"(", b"(", b")", b")", b'"',
    b'""', b'"a b"', b"\\", b'\\"', b"\\n", b"\\065", b"\\256", b"\\x41", b"\\x4", b"\\z", b"\\\n ", b"\0",
    b"\xff", b"x" * 40, b"(" * 20, b"#;" * 300,
)  # fmt: skip

LINE_PIECES = (
    b"(Publish ", b"(publish ", b"(Publish a ", b'(Publish "a b"', b" ", b'"', b"a", b")\n", b'")\n',
    b"\\", b'\\"', b"\\n", b"\\065", b"\\255", b"\\256", b"\\2", b"#", b"|", b"#|", b"|#", b"#;", b";",
    b"\r", b"\r\n", b"\n", b"\xff", b"\0", b"(Publish a b)\n", b'(Publish a "b")\n',
    b'(Publish "a""b")\n', b"0123456789abcdef", b"(Publish", b"\\\\",
)  # fmt: skip


def number(random: Random, below: int = 20) -> Any:
    """Return a number, mostly one that may fit."""
    chance = random.random()
    if chance < 0.75:
        return random.randint(-1, below)
    return random.choice(NUMBERS) if chance < 0.97 else random.choice(STRANGERS)()


def octets(random: Random, most: int = 60) -> bytes:
    return random.randbytes(random.randint(0, most))


def bodies_of(random: Random) -> list[bytes]:
    return [octets(random) for _ in range(random.randint(0, 12))]


def mutated(random: Random, good: bytes) -> bytes:
    """Return the octets unchanged, truncated, or with octets changed, removed, inserted or repeated."""
    changed = bytearray(good)
    for _ in range(random.choice((0, 1, 1, 2, 3, 6))):
        at = random.randint(0, len(changed))
        match random.randrange(6):
            case 0:
                changed[at : at + 1] = random.randbytes(1)
            case 1:
                del changed[at : at + random.randint(1, 9)]
            case 2:
                changed[at:at] = octets(random, 9)
            case 3:
                changed[at:at] = changed[max(0, at - random.randint(1, 60)) : at]
            case 4:
                changed[at : at + 4] = pack(">I", random.choice(NUMBERS) & 0xFFFFFFFF)
            case _:
                del changed[at:]
    return bytes(changed)


def held(random: Random, data: bytes) -> Any:
    """Return the same octets in a buffer of one kind or another, of exactly their size."""
    match random.randrange(5):
        case 0:
            return bytearray(data)
        case 1:
            return memoryview(data)
        case 2:
            return memoryview(bytearray(b"xx" + data + b"yy"))[2 : 2 + len(data)]
        case 3:
            return array("B", data)
        case _:
            return data


def block(random: Random) -> tuple[bytes, bytes]:
    """Return frames and offsets, which may lead anywhere."""
    bodies = bodies_of(random) or [b"a"]
    made, offsets = plain.frames_of(3, 5, bodies)
    chance = random.random()
    if chance < 0.3:
        return made, offsets
    if chance < 0.5:
        return mutated(random, made), offsets
    if chance < 0.8:
        return made, mutated(random, offsets)
    wild = b"".join(pack("<I", random.choice(NUMBERS) & 0xFFFFFFFF) for _ in range(random.randint(0, 9)))
    return octets(random, 120), wild + octets(random, 3)
