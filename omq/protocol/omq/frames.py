"""Encode typed frames to octets, and decode octets to typed frames.

A frame is `u32 length | u8 type | payload`, big-endian; the length counts everything after itself
(docs/PROTOCOL.md, "What the server sends: frames"; the original omq source has the types 0 to 4).

Most frames are messages, so the decoder reads a whole buffer in one pass, and returns consecutive messages of
one topic as one `MessageRun`: two lists, and `Message` objects only on demand.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import repeat
from struct import Struct
from typing import TypeVar, assert_never

from omq.model import DEFAULT_MAX_BODY, Topic
from omq.protocol.omq import block_lists, commands
from omq.protocol.omq.management import answer_pieces, read_answer
from omq.protocol.omq.statistics import (
    connection_pieces,
    read_connections,
    read_statistics,
    read_subscribers,
    statistics_octets,
    subscriber_pieces,
)
from omq.protocol.omq.types import (
    BlockList,
    Confirmed,
    ConnectionList,
    Declared,
    Deleted,
    Done,
    Error,
    Frame,
    Leased,
    Managed,
    Message,
    Ping,
    StoredBlock,
    Subscribed,
    SubscriberList,
    TopicList,
    Unsubscribed,
    Watched,
)
from omq.protocol.steps import Steps, finished
from omq_storage import codec

T = TypeVar("T")

STEP_OCTETS = 2 << 10
"""The number of octets of a list that are encoded in one step."""

MESSAGE_HEADER = Struct(">IBQI")
"""The header of a Message frame: length, type, message id, topic id."""

MESSAGE_OVERHEAD = MESSAGE_HEADER.size - 4
"""The octets besides the body that the length of a Message frame includes."""

DEFAULT_MAX_FRAME = DEFAULT_MAX_BODY + MESSAGE_OVERHEAD
"""The default for the greatest length field that a decoder accepts."""

_LENGTH = Struct(">I")
_HEADER = Struct(">IB")
_U32 = Struct(">I")
_I64 = Struct(">q")


class FrameType(IntEnum):
    """The octet after the length. From 5 on they are ours, sent only in answer to commands that are ours."""

    ERROR = 0
    PING = 1
    MESSAGE = 2
    SUBSCRIBED = 3
    UNSUBSCRIBED = 4
    DECLARED = 5
    CONFIRMED = 6
    LEASED = 7
    BLOCK = 8
    TOPICS = 9
    DELETED = 10
    BLOCKS = 11
    MANAGED = 12
    STATISTICS = 13
    CONNECTIONS = 14
    SUBSCRIBERS = 15
    DONE = 16


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Consecutive Message frames of one topic, in the order of the wire.

    `ids` and `bodies` are of the same length, at least one; `bodies[i]` is the body of message `ids[i]`.
    The caller owns both lists; the decoder does not change them afterwards.
    """

    topic: int
    ids: list[int]
    bodies: list[bytes]

    def __len__(self) -> int:
        return len(self.ids)

    def messages(self) -> list[Message]:
        """Return the messages as `Message` objects, in a new list."""
        return list(map(Message, self.ids, repeat(self.topic), self.bodies))

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())


@dataclass(frozen=True, slots=True)
class DroppedMessage:
    """A Message frame that was above the limit of the decoder: its body is dropped as it arrives."""

    topic: int
    id: int
    octets: int
    """The length of the body."""


class FrameError(ValueError):
    """The octets are not frames of protocol one; the stream cannot be read further.

    `before` holds the frames that the same `feed` had decoded before, so that an earlier Error of the server
    is not lost.
    """

    def __init__(self, text: str, before: "list[Decoded] | None" = None) -> None:
        super().__init__(text)
        self.before: list[Decoded] = before if before is not None else []


Decoded = Frame | MessageRun | DroppedMessage
"""A part of the octets of a server, decoded."""


def encode(frame: Frame) -> bytes:
    """Encode one frame, including its length.

    Raises `struct.error` for a number out of range: a message id outside 0..2^64-1, a topic id
    or a time outside 0..2^32-1, an n outside the signed 64 bits.
    """
    match frame:
        case Message(id, topic, body):
            return MESSAGE_HEADER.pack(MESSAGE_OVERHEAD + len(body), FrameType.MESSAGE, id, topic) + body
        case Error(text):
            return _framed(FrameType.ERROR, text)
        case Ping(time):
            return _framed(FrameType.PING, _U32.pack(time))
        case Subscribed(named):
            return _framed(FrameType.SUBSCRIBED, commands.topic_sexp(named))
        case Unsubscribed(named):
            return _framed(FrameType.UNSUBSCRIBED, commands.topic_sexp(named))
        case Declared(named):
            return _framed(FrameType.DECLARED, commands.topic_sexp(named))
        case Confirmed(n):
            return _framed(FrameType.CONFIRMED, _I64.pack(n))
        case Leased(lease):
            return _framed(FrameType.LEASED, lease)
        case StoredBlock(value):
            return _framed(FrameType.BLOCK, bytes(value))
        case TopicList(topics):
            return _framed(FrameType.TOPICS, commands.topic_list_sexp(topics))
        case Deleted(named):
            return _framed(FrameType.DELETED, commands.topic_sexp(named))
        case BlockList(blocks):
            return _framed(FrameType.BLOCKS, block_lists.write(blocks))
        case Managed() | ConnectionList() | SubscriberList():
            return finished(encoding(frame))
        case Watched(statistics):
            return _framed(FrameType.STATISTICS, statistics_octets(statistics))
        case Done(count):
            return _framed(FrameType.DONE, _I64.pack(count))
        case _:
            assert_never(frame)


def encoding(frame: Managed | ConnectionList | SubscriberList) -> Steps[bytes]:
    """Encode a frame as `encode` does, in steps: its list may have many long records."""
    match frame:
        case Managed(answer):
            kind, pieces = FrameType.MANAGED, answer_pieces(answer)
        case ConnectionList(connections):
            kind, pieces = FrameType.CONNECTIONS, connection_pieces(connections)
        case SubscriberList(subscribers):
            kind, pieces = FrameType.SUBSCRIBERS, subscriber_pieces(subscribers)
        case _:
            assert_never(frame)
    made: list[bytes] = []
    octets = in_step = 0
    for piece in pieces:
        made.append(piece)
        octets += len(piece)
        in_step += len(piece)
        if in_step >= STEP_OCTETS:
            in_step = 0
            yield
    return b"".join([header(kind, octets), *made])


def header(kind: FrameType, octets: int) -> bytes:
    """Return the header of a frame with a payload of N `octets`."""
    return _HEADER.pack(1 + octets, kind)


def block_header(octets: int) -> bytes:
    """Return the header of a Block frame with a stored block of N `octets`."""
    return header(FrameType.BLOCK, octets)


def _framed(kind: FrameType, payload: bytes) -> bytes:
    return header(kind, len(payload)) + payload


class FrameDecoder:
    """Decodes a server's octets, in pieces of any size, into frames.

    It keeps at most one unfinished frame, so `max_frame` and the last fed piece bound its memory. It copies
    every octet a constant number of times, however small the pieces.
    """

    __slots__ = ("_dropped", "_max_frame", "_needed", "_unfinished")

    def __init__(self, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        """Create a decoder without octets. `max_frame`: the largest accepted value of a frame's length field,
        in octets.
        """
        self._max_frame = max_frame
        self._unfinished = bytearray()
        self._needed = _LENGTH.size  # octets of `_unfinished` needed for progress
        self._dropped = 0  # octets still to come of a DroppedMessage

    @property
    def unfinished(self) -> int:
        """The held octets of an incomplete frame."""
        return len(self._unfinished)

    @property
    def is_within_a_frame(self) -> bool:
        """Whether the octets so far end in the middle of a frame: at the end of the stream, it is cut off."""
        return bool(self._unfinished or self._dropped)

    def feed(self, data: bytes) -> list[Decoded]:
        """Return the frames that `data` completes, in order; consecutive messages of one topic as one run.
        A Message longer than `max_frame` is a DroppedMessage, as soon as its header is there.

        Raises `FrameError` for an unknown type, a malformed payload or another frame longer than `max_frame`;
        do not feed the decoder after that.
        """
        if self._dropped:
            dropped = min(self._dropped, len(data))
            self._dropped -= dropped
            data = data[dropped:]
        if self._unfinished:
            if len(self._unfinished) + len(data) < self._needed:
                self._unfinished += data
                return []
            data = b"".join((self._unfinished, data))
            self._unfinished = bytearray()
        found: list[Decoded] = []
        try:
            done = self._scan(data, found)
        except FrameError as error:
            error.before = found
            raise
        if done < len(data):
            self._unfinished += memoryview(data)[done:]
        return found

    def _scan(self, data: bytes, found: list[Decoded]) -> int:
        """Append the whole frames of `data` to `found`; return where the first unfinished one begins."""
        size = len(data)
        largest = self._max_frame
        position = 0
        while True:
            position = take_messages(data, position, largest, found)
            # One frame of another type, a bad one, or the unfinished end.
            available = size - position
            if available < 4:
                self._needed = 4
                return position
            (length,) = _LENGTH.unpack_from(data, position)
            if length < 1:
                raise FrameError("a frame of length 0 has no type")
            if length > largest:
                if data[position + 4 : position + 5] not in (bytes((FrameType.MESSAGE,)), b""):
                    raise FrameError(f"a frame of {length} octets is above the limit of {largest}")
                if available < MESSAGE_HEADER.size:
                    self._needed = MESSAGE_HEADER.size if available > 4 else _HEADER.size
                    return position
                _, _, id, topic = MESSAGE_HEADER.unpack_from(data, position)
                found.append(DroppedMessage(topic, id, length - MESSAGE_OVERHEAD))
                position += 4 + length
                if position > size:
                    self._dropped = position - size
                    return size
                continue
            if available < 4 + length:
                self._needed = 4 + length
                return position
            start, position = position + 4, position + 4 + length
            found.append(_control(data[start], data[start + 1 : position]))


def take_messages(data: bytes, position: int, largest: int, found: list[Decoded]) -> int:
    """Append the runs of complete messages at `position`; return the position of anything else.

    Anything else is a frame of another type, a bad one, one longer than `largest`, or the unfinished end.
    """
    if codec.COMPILED:
        return codec.native.take_messages(data, position, largest, found, MessageRun)
    return take_messages_plain(data, position, largest, found)


def take_messages_plain(data: bytes, position: int, largest: int, found: list[Decoded]) -> int:
    """Take messages as `take_messages` does, in plain Python."""
    size = len(data)
    last_start = size - MESSAGE_HEADER.size
    unpack = MESSAGE_HEADER.unpack_from
    ids: list[int] = []
    bodies: list[bytes] = []
    run_topic = -1
    while position <= last_start:
        length, kind, id, topic = unpack(data, position)
        end = position + 4 + length
        if kind != 2 or end > size or length < 13 or length > largest:
            break
        if topic != run_topic:
            if ids:
                found.append(MessageRun(run_topic, ids, bodies))
                ids, bodies = [], []
            run_topic = topic
        ids.append(id)
        bodies.append(data[position + 17 : end])
        position = end
    if ids:
        found.append(MessageRun(run_topic, ids, bodies))
    return position


def _control(kind: int, payload: bytes) -> Frame:
    """Parse a frame that is no Message: `take_messages` has parsed all valid frames of that type."""
    match kind:
        case FrameType.ERROR:
            return Error(payload)
        case FrameType.PING:
            return Ping(_number(_U32, "Ping", payload))
        case FrameType.MESSAGE:
            raise FrameError(f"a Message of {len(payload)} octets is too short for its two ids")
        case FrameType.SUBSCRIBED:
            return Subscribed(_topic("Subscribed", payload))
        case FrameType.UNSUBSCRIBED:
            return Unsubscribed(_topic("Unsubscribed", payload))
        case FrameType.DECLARED:
            return Declared(_topic("Declared", payload))
        case FrameType.CONFIRMED:
            return Confirmed(_number(_I64, "Confirmed", payload))
        case FrameType.LEASED:
            return Leased(payload)
        case FrameType.TOPICS:
            try:
                return TopicList(commands.topic_list_of_sexp(payload))
            except ValueError as error:
                raise FrameError(f"Topics carries no list of topics: {error}") from error
        case FrameType.BLOCK:
            return StoredBlock(payload)
        case FrameType.DELETED:
            return Deleted(_topic("Deleted", payload))
        case FrameType.BLOCKS:
            try:
                return BlockList(block_lists.read(payload))
            except ValueError as error:
                raise FrameError(f"Blocks carries no list of blocks: {error}") from error
        case FrameType.MANAGED:
            try:
                return Managed(read_answer(payload))
            except ValueError as error:
                raise FrameError(f"Managed carries no answer: {error}") from error
        case FrameType.STATISTICS:
            return Watched(_read(read_statistics, "Statistics", payload))
        case FrameType.CONNECTIONS:
            return ConnectionList(_read(read_connections, "Connections", payload))
        case FrameType.SUBSCRIBERS:
            return SubscriberList(_read(read_subscribers, "Subscribers", payload))
        case FrameType.DONE:
            return Done(_number(_I64, "Done", payload))
        case _:
            raise FrameError(f"a frame of type {kind} is not known here")


def _number(shape: Struct, name: str, payload: bytes) -> int:
    if len(payload) != shape.size:
        raise FrameError(f"{name} carries {len(payload)} octets instead of {shape.size}")
    number: int = shape.unpack(payload)[0]
    return number


def _read(read: Callable[[bytes], T], name: str, payload: bytes) -> T:
    try:
        return read(payload)
    except ValueError as error:
        raise FrameError(f"{name} carries something else: {error}") from error


def _topic(name: str, payload: bytes) -> Topic:
    try:
        return commands.topic_of_sexp(payload)
    except ValueError as error:
        raise FrameError(f"{name} carries no topic: {error}") from error
