"""Large messages, stored in fragments while they arrive.

A message that is too large to be held is written to its environment in fragments, each one LMDB value.  LMDB
needs consecutive free pages for a value, and finds a few of them easily.  Two tables:

- ``fragments``: number of a body, and index of the fragment in it -> FRAGMENT_OCTETS octets of the body; the
  last fragment may have fewer.
- ``loose``: number of a body -> topic id, for each body that is no message (yet, or any more).

A body begins as a loose one, in the transaction of its first fragment.  The transaction that makes it a
message deletes that record, and stores a description of the body as the block of the message
(``Fragmented``).  Deleting the message puts the record back.  So after any interruption the loose bodies that
nobody writes are exactly those whose fragments can be deleted, and ``sweep`` deletes them in small
transactions, however large they are.

Each fragment has a checksum over its content, the number of its body and its index.  So a description whose
body has all fragments is a whole message, and each fragment can be verified by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from struct import Struct

from omq_storage import numbers
from omq_storage.blocks import Block, packed_around
from omq_storage.checksummed import Octets, verify, with_checksum
from omq_storage.database import Reading, View, Writing
from omq_storage.errors import DamagedBlock, DamagedRecord, StoreError
from omq_storage.heads import Heads, encode_heads
from omq_storage.plain import FRAME, FRAME_HEADER, FRAMES_LIMIT, MESSAGE
from omq_storage.records import BLOCKS, BlockRecord, block_key, key_block

FRAGMENTS = b"fragments"
LOOSE = b"loose"
FRAGMENT_TABLES = (FRAGMENTS, LOOSE)

FRAGMENT_OCTETS = (1 << 16) - 20
"""Octets of the body in each fragment: with its checksum and LMDB's page header it fills 16 pages exactly."""

LONGEST_BODY = (1 << 32) - 1 - (FRAME_HEADER - 4)
"""The longest body that the length field of a Message frame can express."""

MAGIC = b"omqL"
_KEY = Struct(">QQ")
_NUMBER = Struct(">Q")
_TOPIC = Struct(">I")
_DESCRIPTION = Struct(">QQQI")
_SWEPT = 1024


@dataclass(frozen=True, slots=True)
class Fragmented:
    """One message whose body is stored in fragments: the description that is stored instead of a block."""

    topic: int
    first: int
    """Its message id."""
    time: int
    """Microseconds since the epoch."""
    body: int
    """The number of its body in this environment."""
    size: int
    """Octets of the body."""
    checksum: int
    """The CRC-32C of the body."""
    own_head: bytes = b""

    count = 1
    span = 0

    @property
    def last(self) -> int:
        """Its message id."""
        return self.first

    @property
    def next(self) -> int:
        """The id after it."""
        return self.first + 1

    @property
    def held(self) -> int:
        """Octets of body and head."""
        return self.size + len(self.own_head)

    @property
    def has_heads(self) -> bool:
        """Whether it has a head."""
        return bool(self.own_head)

    @property
    def heads(self) -> Heads | None:
        """Its head as those of a block."""
        return encode_heads([self.own_head], 1) if self.own_head else None

    def head(self, message: int) -> bytes:
        """Return its head, as a block does."""
        return self.own_head

    def message_time(self, message: int) -> int:
        """Return its time, as a block does."""
        return self.time

    @property
    def stored_octets(self) -> int:
        """Octets of the stored values."""
        return len(MAGIC) + 4 + _DESCRIPTION.size + len(self.own_head) + self.size


@dataclass(frozen=True, slots=True)
class Uploaded:
    """One message whose whole body is stored in fragments, and that gets its id when it is posted."""

    body: int
    """The number of the body."""
    size: int
    checksum: int
    """The CRC-32C of the body."""

    count = 1
    octets = FRAME_HEADER
    """Octets of memory that it takes, as those of a batch."""

    @property
    def longest(self) -> int:
        """Octets of the body."""
        return self.size

    def message(self, topic: int, first: int, time: int, head: bytes) -> Fragmented:
        """Return the message with this id."""
        return Fragmented(topic, first, time, self.body, self.size, self.checksum, head)


class TooLargeToHold(StoreError):
    """A message is too large to be read as a whole."""

    def __init__(self, topic: int, message: int, octets: int) -> None:
        """Refuse to read a message at once. ``octets``: size of its body."""
        super().__init__(
            f"Message {message} of topic {topic} has {octets} octets; it can only be read in pieces."
        )
        self.message = message
        self.octets = octets


@dataclass(frozen=True, slots=True)
class Fragments:
    """Some consecutive fragments of a body, to be stored."""

    topic: int
    body: int
    index: int
    """Index of the first of them."""
    octets: bytes
    """Their content: a multiple of FRAGMENT_OCTETS, except at the end of the body."""


def fragment_count(size: int) -> int:
    """Return the number of fragments of a body of this size."""
    return -(-size // FRAGMENT_OCTETS)


def info_of(message: Fragmented) -> BlockRecord:
    """Return the index record of a message in fragments."""
    octets = message.stored_octets
    return BlockRecord(message.first, 1, message.time, 0, octets, message.has_heads, message.body)


def pack_fragmented(message: Fragmented) -> bytes:
    """Return the value that is stored in place of a block."""
    record = _DESCRIPTION.pack(message.body, message.time, message.size, message.checksum) + message.own_head
    return MAGIC + with_checksum(BLOCKS, block_key(message.topic, message.first), record)


def unpack_fragmented(key: bytes, value: bytes | memoryview) -> Fragmented:
    """Return the description that is stored under this key.  Raises DamagedBlock, and DamagedRecord for a
    damaged key.
    """
    topic, message = key_block(key)
    stored = bytes(value)
    if not stored.startswith(MAGIC):
        raise DamagedBlock(topic, message, message, "it does not begin as a description does")
    try:
        record = verify(BLOCKS, key, stored[len(MAGIC) :], "a large message")
    except DamagedRecord as damaged:
        raise DamagedBlock(topic, message, message, "its description is damaged") from damaged
    body, time, size, checksum = _DESCRIPTION.unpack_from(record)
    return Fragmented(topic, message, time, body, size, checksum, record[_DESCRIPTION.size :])


def unpack_fragment(key: bytes, stored: Octets) -> tuple[int, int, Octets]:
    """Return number of the body, index, and content of a stored fragment.  Raises DamagedRecord."""
    if len(key) != _KEY.size:
        raise DamagedRecord(f"The key {key!r} is damaged.")
    body, index = _KEY.unpack(key)
    return body, index, verify(FRAGMENTS, key, stored, f"fragment {index} of body {body}")


def unpack_loose(key: bytes, stored: bytes) -> tuple[int, int]:
    """Return number and topic id of a loose body.  Raises DamagedRecord."""
    if len(key) != _NUMBER.size:
        raise DamagedRecord(f"The key {key!r} is damaged.")
    (body,) = _NUMBER.unpack(key)
    record = verify(LOOSE, key, stored, f"the loose body {body}")
    return body, _TOPIC.unpack(record)[0]


def fragment(get: View, message: Fragmented, index: int) -> memoryview:
    """Return a verified fragment of a message, as a view.  Raises DamagedBlock."""
    key = _KEY.pack(message.body, index)
    stored = get(FRAGMENTS, key)
    why = "its fragment is missing"
    if stored is not None:
        try:
            content = unpack_fragment(key, stored)[2]
        except DamagedRecord:
            why = "its fragment is damaged"
        else:
            if len(content) == min(FRAGMENT_OCTETS, message.size - index * FRAGMENT_OCTETS):
                return content
            why = "its fragment has another size"
    raise DamagedBlock(message.topic, message.first, message.first, f"{why} ({index})")


def body_of(get: View, message: Fragmented) -> Iterator[memoryview]:
    """Yield the verified fragments of a message in order.  Raises DamagedBlock."""
    for index in range(fragment_count(message.size)):
        yield fragment(get, message, index)


def assembled(get: View, message: Fragmented) -> Block:
    """Return a message as a block that is held whole.  Raises TooLargeToHold and DamagedBlock."""
    if message.size + FRAME_HEADER >= FRAMES_LIMIT:
        raise TooLargeToHold(message.topic, message.first, message.size)
    header = frame_header(message)
    frames = b"".join((header, *body_of(get, message)))
    offsets = numbers.pack([0, len(frames)])
    return Block(message.topic, message.first, 1, message.time, frames, offsets, None, message.heads)


def packed_beginning(message: Fragmented) -> bytes:
    """Return the beginning of the packed block of this message, up to the body, as ``pack`` would return it.
    The body and the head follow.

    Raises TooLargeToHold.
    """
    if message.size + FRAME_HEADER >= FRAMES_LIMIT:
        raise TooLargeToHold(message.topic, message.first, message.size)
    offsets = numbers.pack([0, FRAME_HEADER + message.size])
    block = Block(message.topic, message.first, 1, message.time, b"", offsets, None, message.heads)
    return packed_around(block, frame_header(message), message.size, message.checksum)


def frame_header(message: Fragmented) -> bytes:
    """Return the octets of its Message frame before the body."""
    return FRAME.pack(message.size + FRAME_HEADER - 4, MESSAGE, message.first, message.topic)


# -- writing -----------------------------------------------------------------------------------------------


def last_body(transaction: Reading) -> int:
    """Return the highest number of a body that any fragment or loose body has; 0 if there is none."""
    highest = 0
    for table, layout in ((FRAGMENTS, _KEY), (LOOSE, _NUMBER)):
        cursor = transaction.cursor(table)
        if cursor.last():
            highest = max(highest, layout.unpack(cursor.key())[0])
    return highest


def put_fragments(transaction: Writing, parts: Sequence[Fragments]) -> None:
    """Store fragments of loose bodies."""
    for part in parts:
        if not part.index:
            put_loose(transaction, part.topic, part.body)
        records = []
        for number, begin in enumerate(range(0, len(part.octets), FRAGMENT_OCTETS), part.index):
            key = _KEY.pack(part.body, number)
            records.append((key, with_checksum(FRAGMENTS, key, part.octets[begin : begin + FRAGMENT_OCTETS])))
        transaction.put_many(FRAGMENTS, records)


def put_loose(transaction: Writing, topic: int, body: int) -> None:
    """Record that a body is no message."""
    key = _NUMBER.pack(body)
    transaction.put(LOOSE, key, with_checksum(LOOSE, key, _TOPIC.pack(topic)))


def take_loose(transaction: Writing, message: Fragmented) -> None:
    """Record that a body is a message now.  Raises StoreError unless all its fragments are stored."""
    key = _NUMBER.pack(message.body)
    last = _KEY.pack(message.body, max(0, fragment_count(message.size) - 1))
    if transaction.get(LOOSE, key) is None or transaction.get(FRAGMENTS, last) is None:
        raise StoreError(f"The fragments of message {message.first} of topic {message.topic} are not stored.")
    transaction.delete(LOOSE, key)


def sweep(transaction: Writing, kept: frozenset[int], topic: int | None, divisor: int) -> bool:
    """Delete up to 64 MiB of fragments of loose bodies that are not ``kept``, divided by ``divisor``.

    ``topic``: only those of this topic.  Return whether any fragment was deleted: the record of a body goes
    in a later call.  So there is always another commit after the last deletion, and LMDB can reuse the pages
    in the one after that.  A damaged record of a loose body is deleted, and its fragments stay.
    """
    left = limit = max(1, _SWEPT // divisor)
    loose = transaction.cursor(LOOSE)
    key = b""
    while loose.set_range(key + b"\0"):
        key, stored = loose.item()
        try:
            body, own_topic = unpack_loose(key, stored)
        except DamagedRecord:
            transaction.delete(LOOSE, key)
            continue
        if body in kept or topic not in (None, own_topic):
            continue
        deleted = _delete_fragments(transaction, key, left)
        left -= deleted
        if not deleted:
            transaction.delete(LOOSE, key)
        if left <= 0:
            break
    return left < limit


def _delete_fragments(transaction: Writing, body: bytes, limit: int) -> int:
    """Delete up to ``limit`` fragments of the body with this packed number.  Return their number."""
    cursor = transaction.cursor(FRAGMENTS)
    found = cursor.iternext(values=False) if cursor.set_range(body) else ()
    keys = list(islice(takewhile(lambda key: key.startswith(body), found), limit))
    for key in keys:
        transaction.delete(FRAGMENTS, key)
    return len(keys)
