"""Frames as the examples of docs/PROTOCOL.md write them: octets in rows, with words beside them."""

from struct import Struct

from protocol_document import Octet

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import properties
from omq.protocol.dmp.envelopes import AFTER_HEAD, NULL_MESSAGE, NUMBER
from omq.protocol.omq.frames import FrameType
from omq_storage.blocks import unpack_sent
from omq_storage.numbers import unpack

ROW = 16

COLUMN = 3 * ROW + 2

NAMES = {
    FrameType.ERROR: "Error", FrameType.PING: "Ping", FrameType.MESSAGE: "Message",
    FrameType.SUBSCRIBED: "Subscribed", FrameType.UNSUBSCRIBED: "Unsubscribed",
    FrameType.DECLARED: "Declared", FrameType.CONFIRMED: "Confirmed", FrameType.TOPICS: "Topics",
    FrameType.DELETED: "Deleted", FrameType.LEASED: "Leased", FrameType.BLOCK: "Block",
    FrameType.BLOCKS: "Blocks", FrameType.MANAGED: "Managed", FrameType.STATISTICS: "Statistics",
    FrameType.CONNECTIONS: "Connections", FrameType.SUBSCRIBERS: "Subscribers", FrameType.DONE: "Done",
}  # fmt: skip

LENGTH = Struct(">I")


def frame_rows(octets: tuple[Octet, ...]) -> list[str]:
    """Return whole frames as the document writes them: rows of hex, each with what it means."""
    rows: list[str] = []
    while octets:
        (length,) = LENGTH.unpack(known(octets[:4]))
        frame, octets = octets[: 4 + length], octets[4 + length :]
        kind = frame[4]
        assert isinstance(kind, int)
        rows.append(row(frame[:5], NAMES[FrameType(kind)]))
        payload = frame[5:]
        match kind:
            case FrameType.MESSAGE:
                rows.append(row(payload[:8], f"id {number(payload[:8])}"))
                rows.append(row(payload[8:12], f"topic {number(payload[8:12])}"))
                payload = payload[12:]
            case FrameType.PING:
                rows.append(row(payload, "seconds since the epoch"))
                payload = ()
            case FrameType.CONFIRMED:
                rows.append(row(payload, f"n {number(payload)}"))
                payload = ()
            case FrameType.DONE:
                rows.append(row(payload, f"count {number(payload)}"))
                payload = ()
            case FrameType.BLOCK:
                rows += block_rows(payload)
                payload = ()
            case _:
                pass
        rows += text_rows(payload)
    return rows


BLOCK_FIELDS = (
    (8, "magic, format {0}, flags {1}"), (4, "checksum"), (4, "topic {n}"), (8, "first id {n}"),
    (8, "time {n}"), (4, "{n} messages"), (4, "{n} octets of frames"), (8, "{n} octets of heads"),
)  # fmt: skip


def block_rows(octets: tuple[Octet, ...]) -> list[str]:
    """Return a stored block: its header field by field, its arrays, and its frames and heads."""
    value = known(octets)
    block = unpack_sent(value)
    rows: list[str] = []
    at = 0
    for size, meaning in BLOCK_FIELDS:
        field = octets[at : at + size]
        at += size
        rows.append(row(field, meaning.format(value[4], value[5], n=number(field))))
    arrays = [("offsets", block.offsets), ("time deltas", block.deltas)]
    if block.heads is not None:
        arrays.append(("offsets of heads", block.heads.offsets))
    for meaning, array in arrays:
        if array is not None:
            rows.append(row(octets[at : at + len(array)], f"{meaning} {', '.join(map(str, unpack(array)))}"))
            at += len(array)
    for message in range(block.first, block.next):
        size = len(block.frame(message))
        rows += text_rows(octets[at : at + size])
        at += size
    return rows + text_rows(octets[at:])


def text_rows(octets: tuple[Octet, ...]) -> list[str]:
    parts = (octets[start : start + ROW] for start in range(0, len(octets), ROW))
    return [row(part, shown(known(part))).rstrip() for part in parts]


def shown(octets: bytes) -> str:
    return "".join(chr(octet) if 32 <= octet < 127 else "." for octet in octets)


def dmp_rows(octets: bytes) -> list[str]:
    """Return the octets of a DMP server as the document writes them: short strings, then perhaps
    envelopes.
    """
    rows: list[str] = []
    while octets:
        if octets[0]:  # no envelope in the document has 16 MiB
            end = 1 + octets[0]
            rows += [row(tuple(octets[:1]), f"{octets[0]} octets"), *text_rows(tuple(octets[1:end]))]
        elif octets.startswith(NULL_MESSAGE):
            end = len(NULL_MESSAGE)
            rows.append(row(tuple(octets[:end]), "a null message"))
        else:
            end = NUMBER.size + NUMBER.unpack_from(octets)[0]
            rows += envelope_rows(octets[:end])
        octets = octets[end:]
    return rows


def envelope_rows(envelope: bytes) -> list[str]:
    key_at = NUMBER.size + 1 + envelope[NUMBER.size]
    flags_at = key_at + 1 + envelope[key_at]
    values_at = flags_at + 2
    options_at = stored_head.skip(envelope, NUMBER.size, len(envelope) - AFTER_HEAD)
    body_at = options_at + AFTER_HEAD
    present = [
        name.replace("_", "-")
        for name in properties.Properties.__dataclass_fields__
        if getattr(stored_head.decode(envelope[NUMBER.size : options_at]).properties, name) is not None
    ]
    exchange, key = envelope[NUMBER.size : key_at], envelope[key_at:flags_at]
    return [
        row(tuple(envelope[: NUMBER.size]), f"size {len(envelope) - NUMBER.size}"),
        row(tuple(exchange), f"exchange {shown(exchange[1:])}" if exchange[0] else "no exchange"),
        row(tuple(key), f"key {shown(key[1:])}" if key[0] else "no key"),
        row(tuple(envelope[flags_at:values_at]), ", ".join(present) or "no properties"),
        *text_rows(tuple(envelope[values_at:options_at])),
        row(
            tuple(envelope[options_at:body_at]),
            f"options {envelope[options_at]}, body of {len(envelope) - body_at}",
        ),
        *text_rows(tuple(envelope[body_at:])),
    ]


def known(octets: tuple[Octet, ...]) -> bytes:
    """Return the octets, with a digit for each one of a clock, and 0 for each one of a lease."""
    clock = ord("0")
    return bytes(octet if isinstance(octet, int) else clock if octet is None else 0 for octet in octets)


def number(octets: tuple[Octet, ...]) -> int:
    return int.from_bytes(known(octets), "big", signed=True)


def row(octets: tuple[Octet, ...], meaning: str) -> str:
    digits = " ".join(f"{octet:02x}" if isinstance(octet, int) else octet or "TT" for octet in octets)
    return f"{digits:<{COLUMN}}; {meaning}"
