"""The stored head: the properties of a message, beside its body, in the form of an AMQP 0-9 content header.

    short string exchange | short string routing key | u16 property flags, properties

All protocols use this form of properties: a DMP envelope carries these octets between its size and its
options (6-DMP, "Message envelope and format"), blocks store them, and Spark and replays read them here. A
message without properties has no head. The entry `amqp-1.0` of the headers table is reserved for the sections
of an AMQP 1.0 message that have no equivalent among the properties.

Consecutive messages often have equal heads, and few parts of the server look into them: exchanges, queues
with priorities or expiry, dead letters, and consumers of another protocol. So the server checks the octets of
a head once, transfers and stores them unchanged, and parses them only on demand.
"""

from dataclasses import dataclass, replace

from omq.protocol.amqp import properties, shortstr
from omq.protocol.amqp.fields import Table
from omq.protocol.amqp.properties import Properties

NO_NAMES = b"\x00\x00"
"""The beginning of a head with an empty exchange and an empty routing key."""

PLAIN_HEAD = NO_NAMES + properties.NO_PROPERTIES
"""The head of a message without exchange, routing key and properties: the octets of `Head()`."""

MAX_HEAD = 64 * 2**10
"""The longest accepted head, in octets. Everything except the headers table takes at most 3,100 octets."""


_NONE = Properties()


@dataclass(frozen=True, slots=True)
class Head:
    """A parsed head. The exchange and the routing key have 0 to 255 octets."""

    exchange: bytes = b""
    routing_key: bytes = b""
    properties: Properties = _NONE


def skip(data: bytes, at: int, end: int) -> int:
    """Check the head at `data[at]` and return its end, which must not exceed `end`.

    Raises `FieldError` for missing, truncated and unknown fields.
    """
    return properties.checked_end(data, bounds(data, at, end))


def bounds(data: bytes, at: int, end: int) -> tuple[int, int | None]:
    """Skip a head as `skip` does, but do not check the headers table; return also its position, or None."""
    # The common case first, without a call: two complete names, and no properties.
    key_at = at + 1 + data[at] if at < end else end
    flags_at = key_at + 1 + data[key_at] if key_at < end else end
    after = flags_at + len(properties.NO_PROPERTIES)
    if after <= end:
        if not data[flags_at] and not data[flags_at + 1]:
            return after, None
        return properties.bounds(data, flags_at, end)
    key_at = shortstr.skip(data, at, end, "the exchange")
    flags_at = shortstr.skip(data, key_at, end, "the routing key")
    return properties.bounds(data, flags_at, end)


def names_end(octets: bytes) -> int:
    """Return the index at which the property flags of a checked head begin."""
    key_at = 1 + octets[0]
    return key_at + 1 + octets[key_at]


def names(octets: bytes) -> tuple[bytes, bytes]:
    """Return the exchange and the routing key of a checked head."""
    key_at = 1 + octets[0]
    return octets[1:key_at], octets[key_at + 1 : names_end(octets)]


def routing_key(octets: bytes) -> bytes:
    """Return the routing key of a checked head."""
    key_at = 1 + octets[0]
    return octets[key_at + 1 : key_at + 1 + octets[key_at]]


def headers_table(octets: bytes) -> bytes:
    """Return the octets of the headers table of a checked head; empty without one. An empty head has none."""
    at = bounds(octets, 0, len(octets))[1] if octets else None
    return b"" if at is None else octets[at : at + 4 + int.from_bytes(octets[at : at + 4], "big")]


def joined(exchange: bytes, routing_key: bytes, encoded: bytes) -> bytes:
    """Return the head with these names and encoded properties. Raises `FieldError` for a name longer than
    255 octets.
    """
    return b"".join(
        (shortstr.write(exchange, "the exchange"), shortstr.write(routing_key, "the routing key"), encoded)
    )


def decode(octets: bytes) -> Head:
    """Parse a head. Raises `FieldError` for octets that are not exactly one head."""
    end = len(octets)
    exchange, at = shortstr.read(octets, 0, end, "the exchange")
    routing_key, at = shortstr.read(octets, at, end, "the routing key")
    return Head(exchange, routing_key, properties.decode(octets[at:]))


def encode(head: Head) -> bytes:
    """Encode a head. Raises `FieldError` for a name longer than 255 octets or a property out of range."""
    return joined(head.exchange, head.routing_key, properties.encode(head.properties))


def with_headers(octets: bytes) -> bytes:
    """Add an empty headers table to a head: four octets of padding without a meaning.

    `octets` is a head without headers. Raises `FieldError` if it is not a head.
    """
    head = decode(octets)
    if head.properties.headers is not None:
        raise ValueError("this head has headers already")
    return encode(replace(head, properties=replace(head.properties, headers=Table())))
