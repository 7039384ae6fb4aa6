"""Runs of transfers: whole messages of one link, one in a frame, read many frames at a time.

A function here takes frames from a position on as long as they have the common form, and leaves every other
frame to the connection, which reads it by itself and knows the error. So it never raises.

The common form is what clients send: the fields of a transfer in their plain encodings, no state, and nothing
that continues; and a message whose body is one section `data` or `amqp-value`, without delivery-annotations
and footer. One with an absolute-expiry-time is a run of its own.
"""

from struct import Struct

import msgspec

from omq.protocol.amqp_1_0 import decoding, lifetimes, serials, stored
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.stored import MOST_AROUND
from omq.protocol.amqp_1_0.types import DecodeError
from omq_storage import codec
from omq_storage.batches import Batch, Bodies, batch

MESSAGES_A_STEP = 512
"""The most messages that one call takes in plain Python."""

COMPILED_MESSAGES_A_STEP = 8 << 10
"""The same with the compiled codec."""

LONGEST_TAG = 32


class TransferRun(msgspec.Struct, frozen=True):
    """Messages with consecutive delivery-ids."""

    channel: int
    handle: int
    delivery: int
    """The delivery-id of the first one."""
    settled: bool
    longest: int
    """The octets of the longest one, with its sections."""
    is_timed: bool
    """Whether it is one message with an absolute-expiry-time, which its head does not have."""
    batch: Batch
    heads: list[bytes] | None
    """The head to store with each; None if no message has one."""

    @property
    def last(self) -> int:
        """The delivery-id of the last one."""
        return serials.add(self.delivery, self.batch.count - 1)


def take_transfers(data: bytes, at: int, max_frame: int) -> tuple[TransferRun | None, int]:
    """Take consecutive whole messages of one link, from `at` on.

    Returns them, or None if there is none in the common form, and the position after them.
    """
    if not codec.COMPILED:
        return take_transfers_plain(data, at, max_frame)
    taken = codec.native.take_transfers(data, at, max_frame, COMPILED_MESSAGES_A_STEP)
    if taken is None:
        return None, at
    end, channel, handle, delivery, settled, longest, is_timed, spans, heads = taken
    return TransferRun(channel, handle, delivery, settled, longest, is_timed, batch(spans), heads), end


def take_transfers_plain(data: bytes, at: int, max_frame: int) -> tuple[TransferRun | None, int]:
    """Take messages as `take_transfers` does, in plain Python."""
    bodies: list[bytes] = []
    heads: list[bytes] = []
    longest = 0
    is_timed = False
    first = found = _transfer(data, at, max_frame)
    while first is not None and found is not None:
        taken = _message(data, found.payload, found.end)
        if taken is None or (taken[1] and bodies):
            break
        message, is_timed = taken
        bodies.append(message.body)
        heads.append(message.head)
        longest = max(longest, found.end - found.payload)
        at = found.end
        if is_timed or len(bodies) >= MESSAGES_A_STEP:
            break
        found = _transfer(data, at, max_frame)
        if found is not None and found.link != (*first.link[:3], serials.add(first.link[3], len(bodies))):
            break
    if first is None or not bodies:
        return None, at
    channel, handle, settled, delivery = first.link
    kept = heads if any(heads) else None
    return TransferRun(channel, handle, delivery, settled, longest, is_timed, Bodies(bodies), kept), at


class _Transfer(msgspec.Struct, frozen=True):
    link: tuple[int, int, bool, int]
    """Channel, handle, whether it is settled, and the delivery-id."""
    payload: int
    end: int


_FRAME = Struct(">IHH")
_U32 = Struct(">I")
_PLAIN_FRAME = 0x0200
_NULL, _TRUE, _FALSE = 0x40, 0x41, 0x42
_SHORT_LIST, _LONG_LIST, _BINARY = 0xC0, 0xD0, 0xA0
_LEAST_FIELDS, _MOST_FIELDS = 3, 11


def _transfer(data: bytes, at: int, max_frame: int) -> _Transfer | None:
    """Read the frame of a whole message in the common form at `at`."""
    if len(data) - at < _FRAME.size + 7:
        return None
    size, kind, channel = _FRAME.unpack_from(data, at)
    end = at + size
    if not _FRAME.size + 7 <= size <= max_frame or end > len(data) or kind != _PLAIN_FRAME:
        return None
    at += _FRAME.size
    if not data.startswith(b"\x00\x53\x14", at):
        return None
    constructor = data[at + 3]
    if constructor == _SHORT_LIST:
        stop, count, at = at + 5 + data[at + 4], data[at + 5], at + 6
    elif constructor == _LONG_LIST and end - at >= 12:
        stop = at + 8 + _U32.unpack_from(data, at + 4)[0]
        count, at = _U32.unpack_from(data, at + 8)[0], at + 12
    else:
        return None
    if stop > end or not _LEAST_FIELDS <= count <= _MOST_FIELDS:
        return None
    handle, at = _uint(data, at, stop)
    delivery, at = _uint(data, at, stop) if handle is not None else (None, at)
    if handle is None or delivery is None or stop - at < 2 or data[at] != _BINARY:
        return None
    if data[at + 1] > LONGEST_TAG:
        return None
    at += 2 + data[at + 1]
    settled = False
    for field in range(_LEAST_FIELDS, count):
        if at >= stop:
            return None
        value = data[at]
        if value == _NULL:
            at += 1
        elif field == 3:  # message-format
            number, at = _uint(data, at, stop)
            if number != 0:
                return None
        elif field in (4, 10) and value in (_TRUE, _FALSE):  # settled, batchable
            settled = settled or (field == 4 and value == _TRUE)
            at += 1
        elif field in (5, 8, 9) and value == _FALSE:  # more, resume, aborted
            at += 1
        else:
            return None
    return _Transfer((channel, handle, settled, delivery), stop, end) if at == stop else None


def _uint(data: bytes, at: int, end: int) -> tuple[int | None, int]:
    """Read the uint at `at`; return it, or None if there is none, and where it ends."""
    match data[at] if at < end else None:
        case 0x43:
            return 0, at + 1
        case 0x52 if end - at >= 2:
            return data[at + 1], at + 2
        case 0x70 if end - at >= 5:
            number: int = _U32.unpack_from(data, at + 1)[0]
            return number, at + 5
        case _:
            return None, at


_LISTS = (Section.HEADER, Section.PROPERTIES)
_BEFORE = (*_LISTS, Section.MESSAGE_ANNOTATIONS, Section.APPLICATION_PROPERTIES)


def _message(data: bytes, begin: int, end: int) -> tuple[stored.Stored, bool] | None:
    """Return the stored form of a message in the common form, and whether it has an absolute-expiry-time."""
    at, last, is_timed = begin, 0, False
    expiration: bytes | None = None
    while end - at >= 4 and data.startswith(b"\x00\x53", at):
        code, constructor = data[at + 2], data[at + 3]
        found_form = stored.form_of(code, constructor)
        if found_form is not None:
            if at - begin > MOST_AROUND:
                return None
            found = _sized(data, at, end)
            if found is None or found[0] + found[1] != end:
                return None
            body, length = found
            wide = stored.WIDE if constructor >= 0xB0 and length < 256 else 0
            made = stored.stored_as(found_form + wide, data[begin:at], data[body:end], b"", expiration)
            return made, is_timed
        if code == Section.AMQP_VALUE:
            if at - begin > MOST_AROUND or not _is_last(data, at + 3, end):
                return None
            kind = stored.BodyKind.SECTIONS
            return stored.stored_as(kind, data[begin:at], data[at:end], b"", expiration), is_timed
        if code <= last or code not in _BEFORE:
            return None
        last = code
        is_list = code in _LISTS
        if constructor == 0x45 and is_list:
            at += 4
            continue
        if constructor not in ((0xC0, 0xD0) if is_list else (0xC1, 0xD1)):
            return None
        found = _sized(data, at, end)
        if found is None or found[0] + found[1] > end:
            return None
        value, at = at + 3, found[0] + found[1]
        try:
            if code == Section.HEADER and (ttl := lifetimes.ttl(data, value, at)) is not None:
                expiration = b"%d" % ttl
            if code == Section.PROPERTIES:
                is_timed = lifetimes.has_absolute_expiry_time(data, value, at)
        except DecodeError:
            return None
    return None


def _is_last(data: bytes, at: int, end: int) -> bool:
    """Return whether the value at `at` has no descriptor, and ends at `end`."""
    try:
        return data[at] != 0 and decoding.skip(data, at, end) == end
    except DecodeError:
        return False


def _sized(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """Return the index of the content of the section at `at`, and its length, which may be too long."""
    if data[at + 3] in (0xA0, 0xA1, 0xC0, 0xC1):
        return (at + 5, data[at + 4]) if end - at >= 5 else None
    return (at + 8, _U32.unpack_from(data, at + 4)[0]) if end - at >= 8 else None
