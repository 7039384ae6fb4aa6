"""The records of exchanges, bindings and queues: which topics get a message of AMQP, and how they keep it.

They are in tables of the catalogue, which a store of format 2 lacks.  A record is deleted in the same commit
as what it belongs to, so no crash leaves one behind.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from struct import Struct

import msgspec

from omq_storage.checksummed import verify, verify_and_decode, with_checksum
from omq_storage.database import Reading, Writing
from omq_storage.errors import DamagedRecord
from omq_storage.records import key_topic, topic_key

EXCHANGES = b"exchanges"
BINDINGS = b"bindings"
QUEUES = b"queues"
TOPOLOGY_TABLES = (EXCHANGES, BINDINGS, QUEUES)

LONGEST_NAME = 255
"""The longest name of an exchange in octets: it is a key, and keys have at most 511."""

_BINDING_KEY = Struct(">Q")


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    """The record of an exchange.  The caller defines the values of ``type``."""

    name: bytes
    type: str
    auto_delete: bool = False
    internal: bool = False
    alternate: bytes | None = None


@dataclass(frozen=True, slots=True)
class BindingRecord:
    """The record of a binding of a topic or of another exchange."""

    source: bytes
    """The name of the exchange whose messages it routes."""
    destination: int | bytes
    """The id of a topic, or the name of an exchange."""
    key: bytes
    arguments: bytes
    """Octets that only the caller interprets."""


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """A binding as it is stored: MessagePack cannot tell its two kinds of destination apart by itself."""

    source: bytes
    topic: int | None
    exchange: bytes | None
    key: bytes
    arguments: bytes


def pack_exchange(record: ExchangeRecord) -> bytes:
    """Return the value to store for an exchange; its key is the name."""
    return with_checksum(EXCHANGES, record.name, msgspec.msgpack.encode(record))


def decode_exchange(key: bytes, stored: bytes) -> ExchangeRecord:
    """Return the record of an exchange from its stored value.  Raises DamagedRecord."""
    return verify_and_decode(EXCHANGES, key, stored, ExchangeRecord, f"exchange {_quoted(key)}")


def binding_key(number: int) -> bytes:
    """Return the key of the binding with this number."""
    return _BINDING_KEY.pack(number)


def pack_binding(number: int, record: BindingRecord) -> bytes:
    """Return the value to store for a binding."""
    topic, exchange = (
        (record.destination, None) if isinstance(record.destination, int) else (None, record.destination)
    )
    stored = _Stored(record.source, topic, exchange, record.key, record.arguments)
    return with_checksum(BINDINGS, binding_key(number), msgspec.msgpack.encode(stored))


def decode_binding(key: bytes, stored: bytes) -> tuple[int, BindingRecord]:
    """Return the number and the record of a binding.  Raises DamagedRecord."""
    found = verify_and_decode(BINDINGS, key, stored, _Stored, "a binding")
    destination = found.topic if found.exchange is None else found.exchange
    if destination is None or len(key) != _BINDING_KEY.size:
        raise DamagedRecord("The record of a binding cannot be read: it has no destination.")
    record = BindingRecord(found.source, destination, found.key, found.arguments)
    return _BINDING_KEY.unpack(key)[0], record


def pack_queue(key: bytes, options: bytes) -> bytes:
    """Return the value to store for the options of a queue, whose key is that of its topic."""
    return with_checksum(QUEUES, key, options)


def decode_queue(key: bytes, stored: bytes) -> tuple[int, bytes]:
    """Return the topic id and the options of a queue.  Raises DamagedRecord."""
    topic = key_topic(key)
    return topic, verify(QUEUES, key, stored, f"the queue of topic {topic}")


def _quoted(name: bytes) -> str:
    return repr(name)[1:]


class StoredTopology:
    """The records in memory.  Not safe for several threads."""

    def __init__(
        self,
        exchanges: dict[bytes, ExchangeRecord],
        bindings: dict[int, BindingRecord],
        queues: dict[int, bytes],
    ) -> None:
        """Create a topology of these records. ``bindings`` are by number, ``queues`` the options by
        topic id.
        """
        self.exchanges = exchanges
        self.queues = queues
        self._next = 1 + max(bindings, default=0)
        self._numbers: dict[BindingRecord, int] = {}
        self._ends: dict[int | bytes, dict[BindingRecord, None]] = {}
        """The bindings by each of their two ends."""
        for number, record in bindings.items():
            self.add(number, record)

    def bindings(self) -> list[BindingRecord]:
        """Return all bindings in the order in which they were made."""
        return sorted(self._numbers, key=self._numbers.__getitem__)

    @property
    def next_number(self) -> int:
        """The number of the next binding."""
        return self._next

    def number(self, record: BindingRecord) -> int | None:
        """Return the number of a binding; None if there is no such binding."""
        return self._numbers.get(record)

    def of(self, end: int | bytes) -> dict[int, BindingRecord]:
        """Return the bindings with this end by number: from or to an exchange, or to a topic."""
        return {self._numbers[record]: record for record in self._ends.get(end, ())}

    def sample(self, number: int) -> "StoredTopology":
        """Return one exchange and the options of one queue, other ones for the next number."""
        exchanges, queues = sorted(self.exchanges), sorted(self.queues)
        exchange = [exchanges[number % len(exchanges)]] if exchanges else []
        queue = [queues[number % len(queues)]] if queues else []
        return StoredTopology(
            {name: self.exchanges[name] for name in exchange},
            {},
            {topic: self.queues[topic] for topic in queue},
        )

    def add(self, number: int, record: BindingRecord) -> None:
        """Add a binding with a new number."""
        self._numbers[record] = number
        self._next = max(self._next, number + 1)
        for end in (record.source, record.destination):
            self._ends.setdefault(end, {})[record] = None

    def remove(self, record: BindingRecord) -> None:
        """Remove a binding."""
        del self._numbers[record]
        for end in {record.source, record.destination}:
            del self._ends[end][record]
            if not self._ends[end]:
                del self._ends[end]


def read_topology(transaction: Reading) -> StoredTopology:
    """Return all exchanges, bindings and queues.  Raises DamagedRecord."""
    exchanges, bindings, queues = (
        list(transaction.cursor(table)) if transaction.has(table) else [] for table in TOPOLOGY_TABLES
    )
    return StoredTopology(
        {key: decode_exchange(key, stored) for key, stored in exchanges},
        dict(decode_binding(key, stored) for key, stored in bindings),
        dict(decode_queue(key, stored) for key, stored in queues),
    )


def check_ends(topology: StoredTopology, topics: Collection[int]) -> None:
    """Raise DamagedRecord for options and bindings of topics that are not there."""
    missing = topology.queues.keys() | {
        record.destination for record in topology.bindings() if isinstance(record.destination, int)
    }
    for topic in missing.difference(topics):
        raise DamagedRecord(f"Topic {topic} has a binding or options, but no record.")


def put_topology(transaction: Writing, topology: StoredTopology) -> None:
    """Store exchanges, bindings, numbered from 1, and the options of queues."""
    for exchange in topology.exchanges.values():
        transaction.put(EXCHANGES, exchange.name, pack_exchange(exchange))
    for number, binding in enumerate(topology.bindings(), start=1):
        transaction.put(BINDINGS, binding_key(number), pack_binding(number, binding))
    for topic, options in topology.queues.items():
        put_queue(transaction, topic, options)


def put_queue(transaction: Writing, topic: int, options: bytes) -> None:
    """Store the options of a queue."""
    key = topic_key(topic)
    transaction.put(QUEUES, key, pack_queue(key, options))


def delete_bindings(transaction: Writing, bound: Iterable[int]) -> None:
    """Delete the bindings with these numbers."""
    for number in bound:
        transaction.delete(BINDINGS, binding_key(number))
