"""The last sequence of each producer of a topic, beside the topic's blocks.

See docs/PROTOCOL.md, "Idempotent producers".

Two tables.  ``sequences``: topic id and producer give the last sequence and the number of its use.  ``uses``:
topic id and number of a use give the producer, so that the one used longest ago is the first; under the topic
id alone stand how many producers there are, and the number of the next use.
"""

from collections.abc import Iterable, Mapping
from itertools import islice, takewhile
from struct import Struct

from omq_storage.database import Reading, Writing
from omq_storage.records import block_key, key_topic, topic_key
from omq_storage.sealed import seal, unseal

PRODUCERS_KEPT = 1 << 16
"""Producers of one topic whose last sequence is kept; with more, the ones used longest ago are forgotten."""

LONGEST_PRODUCER = 255
"""Octets of a producer's name."""

SEQUENCE_LIMIT = 1 << 64
"""Sequences are below this."""

SEQUENCES = b"sequences"
USES = b"uses"
PRODUCER_TABLES = (SEQUENCES, USES)

_PAIR = Struct(">QQ")


def last_sequences(transaction: Reading, topic: int, producers: Iterable[bytes]) -> dict[bytes, int]:
    """The last sequence of those of the producers that have one.  Raises StoreError for a damaged record."""
    return {producer: sequence for producer, (sequence, _) in _entries(transaction, topic, producers).items()}


def keep_sequences(transaction: Writing, topic: int, sequences: Mapping[bytes, int]) -> None:
    """Sets the last sequence of these producers, the last of them as the one used last.

    Raises StoreError for a damaged record, and ValueError for a producer of more than 255 octets or a
    sequence that is not within 0 to 2^64 - 1.
    """
    for producer, sequence in sequences.items():
        if len(producer) > LONGEST_PRODUCER:
            raise ValueError(f"A producer has at most {LONGEST_PRODUCER} octets, this one {len(producer)}.")
        if not 0 <= sequence < SEQUENCE_LIMIT:
            raise ValueError(f"The sequence {sequence} does not fit into 64 bits.")
    counts = topic_key(topic)
    sealed = transaction.get(USES, counts)
    count, use = 0, 0
    if sealed is not None:
        count, use = _PAIR.unpack(unseal(USES, counts, sealed, f"the producers of topic {topic}"))
    known = _entries(transaction, topic, sequences)
    uses: list[tuple[bytes, bytes]] = []
    records: list[tuple[bytes, bytes]] = []
    own_key = topic_key(topic)
    for producer, sequence in sequences.items():
        before = known.get(producer)
        if before is None:
            count += 1
        if before is not None and before[1] + 1 == use:
            own_use = before[1]  # it was the last one used before, too: so it is mostly
        else:
            if before is not None:
                transaction.delete(USES, block_key(topic, before[1]))
            own_use = use
            use += 1
            key = block_key(topic, own_use)
            uses.append((key, seal(USES, key, producer)))
        key = own_key + producer
        records.append((key, seal(SEQUENCES, key, _PAIR.pack(sequence, own_use))))
    transaction.put_many(USES, uses)
    transaction.put_many(SEQUENCES, sorted(records))
    if count > PRODUCERS_KEPT:
        _forget_oldest(transaction, topic, count - PRODUCERS_KEPT)
        count = PRODUCERS_KEPT
    transaction.put(USES, counts, seal(USES, counts, _PAIR.pack(count, use)))


def forget_producers(transaction: Writing, topic: int, limit: int) -> bool:
    """Deletes up to ``limit`` records of a topic from each table, damaged ones too; whether there may be
    more.
    """
    more = False
    for table in PRODUCER_TABLES:
        cursor = transaction.cursor(table)
        found = cursor.iternext(values=False) if cursor.set_range(topic_key(topic)) else ()
        keys = list(islice(takewhile(lambda key: key_topic(key) == topic, found), limit))
        for key in keys:
            transaction.delete(table, key)
        more |= len(keys) == limit
    return more


def decode_sequence(key: bytes, sealed: bytes) -> tuple[int, bytes, int, int]:
    """Topic id, producer, last sequence and number of its use, as stored.  Raises DamagedRecord."""
    topic = key_topic(key)
    producer = key[len(topic_key(topic)) :]
    what = f"producer {producer!r} of topic {topic}"
    sequence, use = _PAIR.unpack(unseal(SEQUENCES, key, sealed, what))
    return topic, producer, sequence, use


def check_use(key: bytes, sealed: bytes) -> None:
    """Raises DamagedRecord unless this is how a use, or the number of uses, is stored."""
    unseal(USES, key, sealed, f"a producer of topic {key_topic(key)}")


def _entries(transaction: Reading, topic: int, producers: Iterable[bytes]) -> dict[bytes, tuple[int, int]]:
    """The last sequence of each of these producers that has one, and the number of its use."""
    own_key = topic_key(topic)
    found = transaction.get_many(SEQUENCES, sorted(own_key + producer for producer in producers))
    return {key[len(own_key) :]: decode_sequence(key, sealed)[2:] for key, sealed in found.items()}


def _forget_oldest(transaction: Writing, topic: int, count: int) -> None:
    cursor = transaction.cursor(USES)
    cursor.set_range(block_key(topic, 0))
    for key, sealed in list(islice(cursor, count)):
        producer = unseal(USES, key, sealed, f"a producer of topic {topic}")
        transaction.delete(USES, key)
        transaction.delete(SEQUENCES, topic_key(topic) + producer)
