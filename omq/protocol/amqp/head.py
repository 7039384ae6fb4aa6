"""The stored head: the properties of a message, beside its body, in the form of an AMQP 0-9 content header.

    short string exchange | short string routing key | u16 property flags, properties

It is the one form of properties between protocols: a DMP envelope carries these octets between its size and
its options (6-DMP, "Message envelope and format"), blocks store them, and Spark and replays read them here. A
message without properties has no head at all. The entry `amqp-1.0` of the headers table is reserved for the
sections of an AMQP 1.0 message that have no equal among the properties.

The head of one message is very often that of the next, and nothing in it routes. So it travels and is stored
as octets that were checked once, and is taken apart only for those who ask.
"""

from dataclasses import dataclass, replace

from omq.protocol.amqp import properties, shortstr
from omq.protocol.amqp.fields import Table
from omq.protocol.amqp.properties import Properties, check_headers
from omq.protocol.steps import finished

PLAIN_HEAD = b"\x00\x00" + properties.NO_PROPERTIES
"""The head of a message without exchange, routing key and properties: the octets of `Head()`."""

MAX_HEAD = 64 * 2**10
"""Octets: the longest head that is accepted. All but the headers takes 3,100 octets at most."""


_NONE = Properties()


@dataclass(frozen=True, slots=True)
class Head:
    """Names are 0 to 255 octets."""

    exchange: bytes = b""
    routing_key: bytes = b""
    properties: Properties = _NONE


def skip(data: bytes, at: int, end: int) -> int:
    """Where the head at `data[at]` is over, everything in it checked; it must be by `end`.

    Raises `FieldError` for what is missing, cut or not known.
    """
    after, table = bounds(data, at, end)
    if table is not None:
        finished(check_headers(data, table, after))
    return after


def bounds(data: bytes, at: int, end: int) -> tuple[int, int | None]:
    """As `skip`, but the table of headers, if there is one, is not looked into, and told as well."""
    # The common case first, without a call: two names that are whole, and no properties.
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


def decode(octets: bytes) -> Head:
    """The head that these octets are. Raises `FieldError` when they are not one, or more than one."""
    end = len(octets)
    exchange, at = shortstr.read(octets, 0, end, "the exchange")
    routing_key, at = shortstr.read(octets, at, end, "the routing key")
    return Head(exchange, routing_key, properties.decode(octets[at:]))


def encode(head: Head) -> bytes:
    """Raises `FieldError` for a name above 255 octets or a property that its field cannot hold."""
    return b"".join(
        (
            shortstr.write(head.exchange, "the exchange"),
            shortstr.write(head.routing_key, "the routing key"),
            properties.encode(head.properties),
        )
    )


def with_headers(octets: bytes) -> bytes:
    """The head with an empty table of headers added: four octets more that say nothing.

    `octets` is a head without headers; raises `FieldError` when it is no head.
    """
    head = decode(octets)
    if head.properties.headers is not None:
        raise ValueError("this head has headers already")
    return encode(replace(head, properties=replace(head.properties, headers=Table())))
