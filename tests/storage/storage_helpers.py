"""Helpers for the tests of the store."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import lmdb
import pytest

from omq_storage.blocks import FRAME_HEADER, Block, encode
from omq_storage.checkpoint import recover
from omq_storage.environment import Environment
from omq_storage.inspection import inspect
from omq_storage.levels import Level
from omq_storage.merging import SmallBlocks
from omq_storage.records import TooOld
from omq_storage.store import lock_store

NOON = 1_700_000_000_000_000
"""A time, in microseconds since the epoch."""


def bodies_of(blocks: Iterable[Block]) -> list[tuple[int, bytes]]:
    """Return ids and bodies of all messages, parsed from the frames one by one."""
    return [
        (message, bytes(block.frame(message))[FRAME_HEADER:])
        for block in blocks
        for message in range(block.first, block.next)
    ]


def heads_of(blocks: Sequence[Block]) -> list[bytes]:
    """Return the heads of all messages."""
    return [head for block in blocks for head in block.heads_from(block.first)]


def read_all(environment: Environment, topic: int, first: int = 0, max_bytes: int = 1 << 20) -> list[Block]:
    """Return all stored blocks of a topic, read in several calls."""
    found: list[Block] = []
    while blocks := environment.read(topic, first, max_bytes):
        found += blocks
        first = blocks[-1].next
    return found


def whole(environment: Environment, topic: int, message: int, octets: int = 1 << 20) -> bytes:
    """Read a body piece by piece."""
    looked_at = environment.bodies.open_message(topic, message)
    assert looked_at is not None
    found = b""
    while len(found) < looked_at.size:
        piece = environment.bodies.read_piece(looked_at, len(found), octets)
        assert piece is not None
        assert 0 < len(piece) <= octets
        found += piece
    return found


def open_level(
    path: Path, level: Level = Level.WEAK, *, map_size: int = 1 << 30, boot_id: str = "first"
) -> Environment:
    """Open an environment as a store does."""
    path.mkdir(exist_ok=True)
    recover(path, boot_id)
    return Environment(path, level, map_size=map_size, boot_id=boot_id)


def numbered(topic: int, first: int, count: int, size: int = 100, time: int = NOON) -> Block:
    """Return a block whose bodies contain topic and message id, padded to ``size`` octets."""
    bodies = [b"%d/%d " % (topic, message) for message in range(first, first + count)]
    return encode(topic, first, [body.ljust(size, b".") for body in bodies], time)


def before(time: int) -> TooOld:
    """Select all messages with an earlier time."""
    return TooOld(time, time_below=1 << 63, below=0)


def merge_all(environment: Environment, topic: int) -> int:
    """Merge until nothing is left to merge, and return the number of steps."""
    blocks = SmallBlocks(lambda start: environment.merge_small(topic, start), 0)
    steps = 1
    while blocks.step():
        steps += 1
    return steps


def damage(path: Path, table: bytes, key: bytes, change: object) -> None:
    """Change one value without the environment; ``change`` returns None to delete it."""
    assert callable(change)
    with lmdb.open(str(path), max_dbs=8) as environment:
        found = environment.open_db(table, create=False)
        with environment.begin(write=True) as transaction:
            value = change(transaction.get(key, db=found))
            if value is None:
                transaction.delete(key, db=found)
            else:
                transaction.put(key, value, db=found)


def flipped(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


class Panicking:
    """An environment of LMDB that can be told to refuse all transactions."""

    def __init__(self, real: object) -> None:
        self.real = real
        self.has_panicked = False
        self.begun = 0
        """The number of transactions that were begun."""

    def begin(self, *arguments: object, **options: object) -> object:
        self.begun += 1
        if self.has_panicked:
            raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC")
        return self.real.begin(*arguments, **options)  # type: ignore[attr-defined]  # lmdb has no types

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


def panicking(monkeypatch: pytest.MonkeyPatch) -> list[Panicking]:
    """Let all environments that are opened from now on be such ones; they are added to the list."""
    opening = lmdb.open
    opened: list[Panicking] = []

    def open_so(*arguments: object, **options: object) -> Panicking:
        opened.append(Panicking(opening(*arguments, **options)))  # type: ignore[arg-type]  # lmdb checks its arguments itself
        return opened[-1]

    monkeypatch.setattr(lmdb, "open", open_so)
    return opened


def problems(path: Path) -> list[str]:
    """Return the faults that a check of a store finds."""
    with lock_store(path):
        return inspect(path, "first", lambda _: None).problems
