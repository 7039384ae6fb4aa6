"""Stores made by hand, with known topics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from omq_storage.blocks import encode, merge
from omq_storage.levels import Level
from omq_storage.records import block_key
from omq_storage.store import Store

NOON = 1_700_000_000_000_000
"""Microseconds since the epoch: 14 November 2023, 22:13:20 UTC."""

SECOND = 1_000_000


def body(message: int, size: int = 0) -> bytes:
    return b"%d" % message if not size else (b"%d " % message).ljust(size, b".")


@dataclass
class Topic:
    """A topic to store: blocks with these counts of messages, one message a second from `NOON` on."""

    counts: Sequence[int]
    size: int = 0
    first: int = 1
    deleted: int = 0
    """The messages below this id are deleted."""
    heads: Mapping[int, bytes] = field(default_factory=dict)
    delivery: str = "Broadcast"
    persistence: str = "Weak"


def make_store(path: Path, **topics: Topic) -> Path:
    """Create a store with these topics, as a server leaves it."""
    with Store.open(path) as store:
        for name, topic in topics.items():
            add_topic(store, name, topic)
    return path


def add_topic(store: Store, name: str, topic: Topic) -> None:
    record = store.catalogue.create(
        name.encode(), topic.delivery, topic.persistence, declared=True, reserved=1
    )
    if topic.persistence == "Transient":
        return
    environment = store.level(Level(topic.persistence.lower()))
    first = topic.first
    for count in topic.counts:
        if count > 0:
            parts = [
                encode(
                    record.id,
                    message,
                    [body(message, topic.size)],
                    NOON + message * SECOND,
                    [topic.heads[message]] if message in topic.heads else (),
                )
                for message in range(first, first + count)
            ]
            environment.append([merge(parts)])
        first += abs(count)  # a negative count is a gap
    if topic.deleted:
        environment.trim(record.id, topic.deleted)


def damage(store: Path, topic: int, first: int, level: Level = Level.WEAK) -> None:
    """Change the last octet of a stored block, as a bad disk would."""
    with lmdb.open(str(store / level.value), max_dbs=16, map_size=1 << 30) as opened:
        table = opened.open_db(b"blocks")
        with opened.begin(db=table, write=True) as transaction:
            stored = transaction.get(block_key(topic, first))
            assert stored is not None
            value = bytearray(stored)
            value[-1] ^= 1
            transaction.put(block_key(topic, first), bytes(value))
