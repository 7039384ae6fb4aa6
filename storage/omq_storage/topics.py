"""The records of topics in the catalogue, and the ids for new ones."""

from dataclasses import dataclass
from struct import Struct

import msgspec

from omq_storage.checksummed import verify, verify_and_decode, with_checksum
from omq_storage.database import Reading, Writing
from omq_storage.errors import StoreError
from omq_storage.records import Extent, key_topic, topic_key

TOPICS = b"topics"
COUNTER = b"counter"
NEXT = b"next"
_NUMBER = Struct(">Q")
TOPIC_IDS = 1 << 31


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """The record of one topic.  The caller defines the values of ``delivery`` and ``persistence``."""

    id: int
    name: bytes
    delivery: str
    persistence: str
    declared: bool
    """Whether a client declared the topic with these types; False if it was created with the defaults."""
    reserved: int = 0
    """No message id from this one on was ever assigned."""
    resume: int = 0
    """No message id below this one is assigned any more: some of these ids were, to messages that were lost.
    """
    lost_from: int = 0
    """No message from this one to ``resume`` is stored: these were lost, or never assigned.  0 if unknown."""
    retention: tuple[int | None, int | None] | None = None
    """The limits of octets and of milliseconds that a client has set, each None without a limit; None where
    the configuration decides.  Earlier versions ignore it."""

    @property
    def lost(self) -> range:
        """The ids of the last loss, as far as they are known."""
        return range(self.lost_from, self.resume) if self.lost_from else range(0)

    def next_id(self, extent: Extent) -> int:
        """Return the id of the next message, for what is stored of the topic."""
        return max(1, extent.next, self.resume)


def topic_records(transaction: Reading) -> list[TopicRecord]:
    """Return the records of all topics, by ascending id.  Raises DamagedRecord."""
    return [decode_topic(key, stored) for key, stored in transaction.cursor(TOPICS)]


def put_topic(transaction: Writing, record: TopicRecord) -> None:
    """Store the record of a topic."""
    key = topic_key(record.id)
    transaction.put(TOPICS, key, with_checksum(TOPICS, key, msgspec.msgpack.encode(record)))


def decode_topic(key: bytes, stored: bytes) -> TopicRecord:
    """Return the record of a topic from its stored value.  Raises DamagedRecord."""
    return verify_and_decode(TOPICS, key, stored, TopicRecord, f"topic {key_topic(key)} in the catalogue")


def read_next_id(transaction: Reading) -> int:
    """Return the id of the next new topic.  Raises DamagedRecord."""
    stored = transaction.get(COUNTER, NEXT)
    return 0 if stored is None else decode_next_id(NEXT, stored)


def put_next_id(transaction: Writing, topic: int) -> None:
    """Store the id of the next new topic."""
    transaction.put(COUNTER, NEXT, with_checksum(COUNTER, NEXT, _NUMBER.pack(topic)))


def decode_next_id(key: bytes, stored: bytes) -> int:
    """Return the id of the next new topic.  Raises DamagedRecord."""
    topic: int = _NUMBER.unpack(verify(COUNTER, key, stored, "the next topic id"))[0]
    return topic


def take_ids(transaction: Writing, count: int) -> range:
    """Return the next N ids, which nothing else gets, ever.  Raises StoreError when all ids were used."""
    topic = read_next_id(transaction)
    if topic + count > TOPIC_IDS:
        raise StoreError(f"All {TOPIC_IDS} topic ids were used.")
    put_next_id(transaction, topic + count)
    return range(topic, topic + count)
