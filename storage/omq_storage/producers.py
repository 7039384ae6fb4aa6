"""The last sequence number of each idempotent producer of a topic, in the same environment as its blocks.

See docs/PROTOCOL.md, "Idempotent producers".

There are two tables, because the producers must be found by name and by the time of their last use:

- ``sequences``: topic id and producer name -> last sequence number, and the number of the last use.
- ``uses``: topic id and number of a use -> producer name.  So the producer that was used longest ago comes
  first.  The record under the topic id alone has the count of producers and the number of the next use.
"""

from collections.abc import Iterable, Mapping
from itertools import islice, takewhile
from struct import Struct

from omq_storage.checksummed import verify, with_checksum
from omq_storage.database import Reading, Writing
from omq_storage.records import block_key, key_topic, topic_key

PRODUCERS_KEPT = 1 << 16
"""The number of producers of a topic that are remembered; beyond it, the ones used longest ago are forgotten.
"""

LONGEST_PRODUCER = 255
"""The longest name of a producer in octets."""

SEQUENCE_LIMIT = 1 << 64
"""Sequence numbers are below this limit."""

SEQUENCES = b"sequences"
USES = b"uses"
PRODUCER_TABLES = (SEQUENCES, USES)

_PAIR = Struct(">QQ")


def last_sequences(transaction: Reading, topic: int, producers: Iterable[bytes]) -> dict[bytes, int]:
    """Return the last sequence number of each of these producers that has one.  Raises DamagedRecord."""
    return {producer: sequence for producer, (sequence, _) in _entries(transaction, topic, producers).items()}


def keep_sequences(transaction: Writing, topic: int, sequences: Mapping[bytes, int]) -> None:
    """Store the last sequence numbers of these producers.  The last producer counts as the one used last.

    Raises DamagedRecord, and ValueError for a name of more than 255 octets or a number outside 0 to 2^64 - 1.
    """
    for producer, sequence in sequences.items():
        if len(producer) > LONGEST_PRODUCER:
            raise ValueError(f"A producer has at most {LONGEST_PRODUCER} octets, this one {len(producer)}.")
        if not 0 <= sequence < SEQUENCE_LIMIT:
            raise ValueError(f"The sequence {sequence} does not fit into 64 bits.")
    counts = topic_key(topic)
    stored = transaction.get(USES, counts)
    count, use = 0, 0
    if stored is not None:
        count, use = _PAIR.unpack(verify(USES, counts, stored, f"the producers of topic {topic}"))
    known = _entries(transaction, topic, sequences)
    uses: list[tuple[bytes, bytes]] = []
    records: list[tuple[bytes, bytes]] = []
    own_key = topic_key(topic)
    for producer, sequence in sequences.items():
        before = known.get(producer)
        if before is None:
            count += 1
        if before is not None and before[1] + 1 == use:
            own_use = before[1]  # the usual case: the same producer was used last before, too
        else:
            if before is not None:
                transaction.delete(USES, block_key(topic, before[1]))
            own_use = use
            use += 1
            key = block_key(topic, own_use)
            uses.append((key, with_checksum(USES, key, producer)))
        key = own_key + producer
        records.append((key, with_checksum(SEQUENCES, key, _PAIR.pack(sequence, own_use))))
    transaction.put_many(USES, uses)
    transaction.put_many(SEQUENCES, sorted(records))
    if count > PRODUCERS_KEPT:
        _forget_oldest(transaction, topic, count - PRODUCERS_KEPT)
        count = PRODUCERS_KEPT
    transaction.put(USES, counts, with_checksum(USES, counts, _PAIR.pack(count, use)))


def forget_producers(transaction: Writing, topic: int, limit: int) -> bool:
    """Delete up to ``limit`` records of a topic from each table, also damaged ones.

    Return whether there may be more.
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


def decode_sequence(key: bytes, stored: bytes) -> tuple[int, bytes, int, int]:
    """Return topic id, producer, last sequence number and number of the last use.  Raises DamagedRecord."""
    topic = key_topic(key)
    producer = key[len(topic_key(topic)) :]
    what = f"producer {producer!r} of topic {topic}"
    sequence, use = _PAIR.unpack(verify(SEQUENCES, key, stored, what))
    return topic, producer, sequence, use


def check_use(key: bytes, stored: bytes) -> None:
    """Raise DamagedRecord unless this is an intact record of the table of uses."""
    verify(USES, key, stored, f"a producer of topic {key_topic(key)}")


def _entries(transaction: Reading, topic: int, producers: Iterable[bytes]) -> dict[bytes, tuple[int, int]]:
    """Return the last sequence number and the number of the last use, of each producer that has them."""
    own_key = topic_key(topic)
    found = transaction.get_many(SEQUENCES, sorted(own_key + producer for producer in producers))
    return {key[len(own_key) :]: decode_sequence(key, stored)[2:] for key, stored in found.items()}


def _forget_oldest(transaction: Writing, topic: int, count: int) -> None:
    cursor = transaction.cursor(USES)
    cursor.set_range(block_key(topic, 0))
    for key, stored in list(islice(cursor, count)):
        producer = verify(USES, key, stored, f"a producer of topic {topic}")
        transaction.delete(USES, key)
        transaction.delete(SEQUENCES, topic_key(topic) + producer)
