"""The block: consecutive messages of one topic, encoded exactly as the server sends them.

See docs/ARCHITECTURE.md, "What flows: the block".

A frame, numbers big-endian::

    u32 length | u8 2 | u64 message id | u32 topic id | body        length counts everything after itself

The stored value of a block.  Numbers are big-endian, except in the three arrays: these are little-endian, so
that Arrow can use them in place::

     0  4 octets  magic "omqB"
     4  u8        format version, 1
     5  u8        flags: 1 = the block has time deltas, 2 = it has heads; all others must be 0
     6  u16       0
     8  u32       CRC-32C of everything else
    12  u32       topic id
    16  u64       id of the first message
    24  u64       time of the first message, microseconds since the epoch
    32  u32       count of messages, at least 1
    36  u32       octets of frames, under 2^30
    40  u64       octets of heads, under 2^30; 0 without flag 2
    48  u32 * (count + 1)   offsets of the frames in the frames, and their end
        u32 * count         time deltas, microseconds since the first message (only with flag 1)
        u32 * (count + 1)   offsets of the heads in the heads, and their end (only with flag 2)
        frames
        heads               (only with flag 2)

The head of a message is its metadata (docs/ARCHITECTURE.md, "Glossary").  Here a head is an opaque string of
octets, empty for a message without a head.  Heads are not part of the frames.  If no message of a block has a
head, the block has no array for them.

Magic, version and checksum keep their place and meaning in every later version, so that a damaged block never
looks like one of a newer format.

All work for single messages is in ``omq_storage.codec``, ``omq_storage.heads`` and ``merge``.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

import msgspec

from omq_storage import codec, numbers
from omq_storage.crc import combined, crc32c
from omq_storage.errors import DamagedBlock, NewerFormat
from omq_storage.heads import Heads, encode_heads, merge_heads
from omq_storage.numbers import Octets
from omq_storage.plain import FRAME_HEADER, FRAMES_LIMIT
from omq_storage.plain import ID_LIMIT as _ID_LIMIT

__all__ = [
    "BLOCK_HEADER", "FRAMES_LIMIT", "FRAME_HEADER", "SPAN_LIMIT",
    "Block", "Octets", "encode", "end", "excerpt", "merge", "pack", "unpack", "unpack_sent",
]  # fmt: skip

SPAN_LIMIT = 1 << 32

MAGIC = b"omqB"
_VERSION = 1
_DELTAS = 1
_HEADS = 2
_FLAGS = _DELTAS | _HEADS
_START = Struct(">4sBBH")
_CHECKSUM = Struct(">I")
_REST = Struct(">IQQIIQ")
_REST_AT = _START.size + _CHECKSUM.size
_ARRAYS_AT = _REST_AT + _REST.size

BLOCK_HEADER = _ARRAYS_AT + numbers.SIZE
"""Octets of a stored value that do not depend on its messages: the header and the last offset."""


class Block(msgspec.Struct, frozen=True):
    """Consecutive messages of one topic.

    ``frames``: the Message frames, as the server sends them.  ``offsets``: count + 1 little-endian u32, the
    index of the first octet of each frame, then the length of ``frames``.  ``deltas``: count little-endian
    u32, microseconds after ``time``, not decreasing; None if all are zero.  ``heads``: the heads of the
    messages; None if no message has one.  The octets may be views of one stored value.
    """

    topic: int
    first: int
    count: int
    time: int
    """Time of the first message in microseconds since the epoch."""
    frames: Octets
    offsets: Octets
    deltas: Octets | None = None
    heads: Heads | None = None

    @property
    def last(self) -> int:
        """Id of the last message."""
        return self.first + self.count - 1

    @property
    def next(self) -> int:
        """Id after that of the last message."""
        return self.first + self.count

    @property
    def size(self) -> int:
        """Octets of the frames."""
        return len(self.frames)

    @property
    def held(self) -> int:
        """Octets of the frames and the heads: the memory that the messages take."""
        return len(self.frames) if self.heads is None else len(self.frames) + len(self.heads.octets)

    @property
    def has_heads(self) -> bool:
        """Whether any message has a head."""
        return self.heads is not None

    @property
    def span(self) -> int:
        """Microseconds from the first message to the last."""
        return 0 if self.deltas is None else numbers.number(self.deltas, self.count - 1)

    def copy(self) -> "Block":
        """Return a copy with octets of its own, for a block that is a view of a buffer or of the map."""
        deltas = None if self.deltas is None else bytes(self.deltas)
        heads = None if self.heads is None else self.heads.copy()
        return msgspec.structs.replace(
            self, frames=bytes(self.frames), offsets=bytes(self.offsets), deltas=deltas, heads=heads
        )

    def after(self, message: int) -> memoryview:
        """Return the frames from this message id on; empty for ``next``.

        Raises ValueError for an id outside first to next.
        """
        return memoryview(self.frames)[self._offset(message) :]

    def frame(self, message: int) -> memoryview:
        """Return the frame of one message.  Raises ValueError if the block does not have it."""
        return memoryview(self.frames)[self._offset(message) : self._offset(message + 1)]

    def body(self, message: int) -> memoryview:
        """Return the body of one message.  Raises ValueError if the block does not have it."""
        return self.frame(message)[FRAME_HEADER:]

    def slices(self, message: int, end: int | None = None) -> list[memoryview]:
        """Return each frame from this message id on, up to the one before `end` or to the last one of the
        block. Raises ValueError for an id outside first to next.
        """
        self.check(message)
        offsets = self.offsets if end is None else self.offsets[: numbers.SIZE * (end - self.first + 1)]
        return codec.slices(self.frames, offsets, message - self.first)

    def messages_within(self, message: int, octets: int) -> int:
        """Return the number of whole frames from this message id on that fit into ``octets``.

        Raises ValueError for an id outside first to next.
        """
        end = self._offset(message) + octets
        return bisect_right(range(message, self.next), end, key=lambda each: self._offset(each + 1))

    def gather(self, messages: range) -> bytes:
        """Return the frames of these message ids, joined.  Round-robin topics send every Nth message like
        this.

        Raises ValueError if the ids do not increase, or the block does not have them.
        """
        begin, end = self.indexes(messages)
        return codec.gathered(self.frames, self.offsets, begin, end, messages.step)

    def indexes(self, messages: range) -> tuple[int, int]:
        """Return begin and end of these messages as indexes into the block; 0 and 0 for no message.

        Raises ValueError if the ids do not increase, or the block does not have them.
        """
        if not messages:
            return 0, 0
        if messages.step < 1 or messages.start < self.first or messages[-1] > self.last:
            raise ValueError(
                f"Messages {messages} are not within {self.first} to {self.next}, going upwards."
            )
        return messages.start - self.first, messages[-1] + 1 - self.first

    def heads_from(self, message: int, end: int | None = None) -> list[bytes]:
        """Return the head of each message from this id on, up to the one before `end` or to the last one of
        the block; empty for a message without a head.

        Raises ValueError for an id outside first to next.
        """
        self.check(message)
        if self.heads is None:
            return [b""] * (min(self.next, self.next if end is None else end) - message)
        return self.heads.values(message - self.first, None if end is None else end - self.first)

    def head(self, message: int) -> bytes:
        """Return the head of one message; empty if it has none.  Raises ValueError for an unknown id."""
        if not self.first <= message <= self.last:
            raise ValueError(f"Message {message} is not among {self.first} to {self.last}.")
        return b"" if self.heads is None else self.heads.value(message - self.first)

    def message_time(self, message: int) -> int:
        """Return the time of one message in microseconds since the epoch.

        Raises ValueError if the block does not have it.
        """
        if not self.first <= message <= self.last:
            raise ValueError(f"Message {message} is not among {self.first} to {self.last}.")
        return (
            self.time
            if self.deltas is None
            else self.time + numbers.number(self.deltas, message - self.first)
        )

    def check(self, message: int) -> None:
        """Raise ValueError for an id outside first to next."""
        if not self.first <= message <= self.next:
            raise ValueError(f"Message {message} is not within {self.first} to {self.next}.")

    def _offset(self, message: int) -> int:
        self.check(message)
        return numbers.number(self.offsets, message - self.first)


def encode(topic: int, first: int, bodies: Sequence[bytes], time: int, heads: Sequence[bytes] = ()) -> Block:
    """Return the block of messages that arrived together.

    ``first``: id of the first message.  ``time``: microseconds since the epoch, for all of them.  ``heads``:
    empty, or one for each body, with empty octets for a message without a head.

    Raises ValueError for no body, for a wrong number of heads, and if the frames or the heads reach 1 GiB or
    the ids 2^64.
    """
    frames, offsets = codec.frames_of(topic, first, bodies)
    side = encode_heads(heads, len(bodies)) if heads else None
    return Block(topic, first, len(bodies), time, frames, offsets, None, side)


def excerpt(block: Block, first: int, end: int) -> Block:
    """Return a copy of the messages of a block from ``first`` on, before ``end``."""
    bodies = [bytes(block.frame(message)[FRAME_HEADER:]) for message in range(first, end)]
    heads = block.heads_from(first, end) if block.has_heads else ()
    time = block.message_time(first)
    copied = encode(block.topic, first, bodies, time, heads)
    if block.deltas is None:
        return copied
    deltas = numbers.pack(block.message_time(message) - time for message in range(first, end))
    return msgspec.structs.replace(copied, deltas=deltas)


def pack(block: Block) -> bytes:
    """Return the stored value of a block."""
    return b"".join(packed_parts(block))


def packed_parts(block: Block) -> Sequence[Octets]:
    """Return the parts of the stored value of a block, without copying its frames and heads."""
    arrays: list[Octets] = [block.offsets]
    flags = 0
    side = 0
    if block.deltas is not None:
        flags |= _DELTAS
        arrays.append(block.deltas)
    if block.heads is None:
        arrays.append(block.frames)
    else:
        flags |= _HEADS
        side = len(block.heads.octets)
        arrays += (block.heads.offsets, block.frames, block.heads.octets)
    start = _START.pack(MAGIC, _VERSION, flags, 0)
    rest = _REST.pack(block.topic, block.first, block.time, block.count, len(block.frames), side)
    checksum = crc32c(rest, crc32c(start))
    for part in arrays:
        checksum = crc32c(part, checksum)
    return start, _CHECKSUM.pack(checksum), rest, *arrays


def packed_around(block: Block, beginning: bytes, octets: int, checksum: int) -> bytes:
    """Return the beginning of the stored value of a block whose frames are not in memory.

    Its frames are ``beginning``, which is the end of the returned value, and then ``octets`` with this
    ``checksum``.  The heads follow those.

    ``block`` has everything but the frames.
    """
    side = b"" if block.heads is None else bytes(block.heads.octets)
    arrays = bytes(block.offsets) + (b"" if block.heads is None else bytes(block.heads.offsets))
    start = _START.pack(MAGIC, _VERSION, 0 if block.heads is None else _HEADS, 0)
    size = len(beginning) + octets
    rest = _REST.pack(block.topic, block.first, block.time, block.count, size, len(side)) + arrays + beginning
    whole = crc32c(side, combined(crc32c(rest, crc32c(start)), checksum, octets))
    return start + _CHECKSUM.pack(whole) + rest


def end(topic: int, message: int) -> bytes:
    """Return the value that ends the answer to a Fetch: a block without messages, and the id to
    continue at.
    """
    return pack(Block(topic, message, 0, 0, b"", numbers.pack([0])))


def body_octets_in(count: int, value: Octets | None) -> int | None:
    """Return the octets of the bodies in the stored value of a block with ``count`` messages; None if this is
    no such value.
    """
    if value is None or len(value) < _ARRAYS_AT:
        return None
    *_, own_count, size, _ = _REST.unpack_from(value, _REST_AT)
    octets: int = size - FRAME_HEADER * count
    return octets if own_count == count and octets >= 0 else None


def body_octets_at_most(count: int, packed: int) -> int:
    """Return the greatest number of octets of the bodies of ``count`` messages whose stored value has
    ``packed`` octets: exactly as many, unless the value has heads or times of single messages.
    """
    beside = _START.size + _CHECKSUM.size + _REST.size + numbers.SIZE * (count + 1) + FRAME_HEADER * count
    return max(0, packed - beside)


def unpack(topic: int, first: int, value: Octets) -> Block:
    """Return the block of a value that was stored under this topic and first message id.

    Its octets are views of ``value``.  Raises DamagedBlock if the value is not exactly what ``pack`` returned
    for this topic and id, and NewerFormat if a later version made it.

    The checksum comes first.  It detects damage, but not forgery.  So this function also verifies everything
    that could lead a reader outside of the frames and heads: the sizes, that each frame has room for its
    header and ends where the next one begins, and that each head ends where the next one begins.  It relies
    on the checksum for the headers inside the frames and for the order of the deltas: wrong ones give wrong
    numbers, but never an access outside of the block.
    """
    block = _unpack(topic, first, value)
    if not block.count:
        raise DamagedBlock(topic, first, None, "it claims 0 messages")
    return block


def unpack_sent(value: Octets) -> Block:
    """Return the block that a server sent.  Like `unpack`, but takes topic and first id from the value
    itself.

    For a value of `end`, return a block without messages.
    """
    if len(value) < _ARRAYS_AT:
        raise DamagedBlock(0, 0, None, f"it has only {len(value)} octets")
    topic, first, *_ = _REST.unpack_from(value, _REST_AT)
    return _unpack(topic, first, value)


def _unpack(topic: int, first: int, value: Octets) -> Block:
    if len(value) < _ARRAYS_AT:
        raise DamagedBlock(topic, first, None, f"it has only {len(value)} octets")
    view = memoryview(value)
    magic, version, flags, reserved = _START.unpack_from(view)
    if magic != MAGIC:
        raise DamagedBlock(topic, first, None, "it does not begin as a block does")
    if crc32c(view[_REST_AT:], crc32c(view[: _START.size])) != _CHECKSUM.unpack_from(view, _START.size)[0]:
        raise DamagedBlock(topic, first, None, "its checksum is wrong")
    if version != _VERSION or flags & ~_FLAGS:
        raise NewerFormat(
            f"The block from message {first} of topic {topic} has format {version} with flags {flags}; "
            f"this version reads format {_VERSION} with flags up to {_FLAGS}."
        )
    own_topic, own_first, time, count, size, side = _REST.unpack_from(view, _REST_AT)
    if (own_topic, own_first) != (topic, first):
        raise DamagedBlock(topic, first, None, f"it is the one from message {own_first} of topic {own_topic}")
    if first + count > _ID_LIMIT:
        raise DamagedBlock(topic, first, None, f"it claims {count} messages")
    offsets_end = _ARRAYS_AT + numbers.SIZE * (count + 1)
    deltas_end = offsets_end + (numbers.SIZE * count if flags & _DELTAS else 0)
    frames_at = deltas_end + (numbers.SIZE * (count + 1) if flags & _HEADS else 0)
    frames_end = frames_at + size
    sizes_allowed = size < FRAMES_LIMIT and side < (FRAMES_LIMIT if flags & _HEADS else 1)
    if reserved or not sizes_allowed or frames_end + side != len(view):
        raise DamagedBlock(topic, first, first + count - 1, "its sizes contradict one another")
    offsets = view[_ARRAYS_AT:offsets_end]
    if not codec.rises(offsets, count, size, FRAME_HEADER):
        raise DamagedBlock(topic, first, first + count - 1, "its frames overlap or are too short")
    deltas = view[offsets_end:deltas_end] if flags & _DELTAS else None
    heads = Heads(view[deltas_end:frames_at], view[frames_end:]) if flags & _HEADS else None
    if heads is not None and not codec.rises(heads.offsets, count, side, 0):
        raise DamagedBlock(topic, first, first + count - 1, "its heads overlap")
    return Block(topic, first, count, time, view[frames_at:frames_end], offsets, deltas, heads)


def merge(blocks: Sequence[Block]) -> Block:
    """Return one block with the messages of several consecutive blocks.

    Each message keeps its time.  Deltas never decrease: if the clock went back between two blocks, the later
    messages get the last time before that.  Raises ValueError for no block, for different topics, for ids
    that are not consecutive, and if the result spans 2^32 microseconds or reaches 1 GiB of frames or heads.
    """
    if not blocks:
        raise ValueError("There is no block to merge.")
    if len(blocks) == 1:
        return blocks[0]
    start = blocks[0]
    if any(b.topic != start.topic for b in blocks) or any(
        before.next != after.first for before, after in pairwise(blocks)
    ):
        raise ValueError("Only blocks of one topic that follow one another can be merged.")
    size = sum(b.size for b in blocks)
    if size >= FRAMES_LIMIT:
        raise ValueError(f"A block of {size} octets is too large; it must stay under {FRAMES_LIMIT}.")
    offsets = [numbers.pack([0])]
    deltas: list[bytes] = []
    base = 0
    latest = 0
    for b in blocks:
        shift = b.time - start.time
        if max(latest, shift + b.span) >= SPAN_LIMIT:
            raise ValueError(f"A block may not span {SPAN_LIMIT} microseconds.")
        offsets.append(numbers.shifted(b.offsets[numbers.SIZE :], base))
        base += b.size
        if b.deltas is None:
            latest = max(latest, shift)
            deltas.append(numbers.pack([latest]) * b.count)
        elif shift >= latest:
            latest = shift + b.span
            deltas.append(numbers.shifted(b.deltas, shift))
        else:
            deltas.append(numbers.pack(max(latest, shift + delta) for delta in numbers.unpack(b.deltas)))
            latest = max(latest, shift + b.span)
    return Block(
        start.topic,
        start.first,
        sum(b.count for b in blocks),
        start.time,
        b"".join(b.frames for b in blocks),
        b"".join(offsets),
        b"".join(deltas) if latest else None,
        merge_heads([(b.heads, b.count) for b in blocks]),
    )
