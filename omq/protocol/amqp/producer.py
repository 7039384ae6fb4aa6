"""The producer and the sequence number in a stored head (docs/PROTOCOL.md, "Idempotent producers").

A producer that sets app-id and a decimal message-id is idempotent: when it repeats a message after a failure,
because it does not know the outcome, the server does not store the message again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import properties, shortstr
from omq.protocol.amqp.head import NO_NAMES, PLAIN_HEAD, names_end
from omq_storage import codec

_BOTH = properties.MESSAGE_ID | properties.APP_ID
_ONLY_BOTH = _BOTH.to_bytes(len(properties.NO_PROPERTIES), "big")
"""The property flags of a message with a message-id and an app-id, and no other property."""
_NUMBERED = NO_NAMES + _ONLY_BOTH
"""The beginning of the head of such a message without exchange and routing key."""
_MOST_DIGITS = 20
_SEQUENCES = 1 << 64


def origin(head: bytes) -> tuple[bytes, int] | None:
    """Return the app-id and the message-id of a checked head; None if its producer is not idempotent.

    A message-id is a sequence number if it is decimal and below 2^64.
    """
    flags_at = names_end(head)
    flags = properties.flags_of(head, flags_at)
    if flags & _BOTH != _BOTH:
        return None
    if flags == _BOTH:
        # The fast path: bulk producers send only these two properties, so nothing precedes them.
        digits_at = flags_at + len(properties.NO_PROPERTIES)
        name_at = digits_at + 1 + head[digits_at]
        digits, name = head[digits_at + 1 : name_at], head[name_at + 1 :]
    else:
        # Skip a headers table without parsing it, since it may be long.
        strings = properties.strings(head, flags_at)
        digits, name = strings["message_id"], strings["app_id"]
    if not name or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    sequence = int(digits)
    return (name, sequence) if sequence < _SEQUENCES else None


def origins(heads: Sequence[bytes]) -> list[tuple[bytes, int] | None]:
    """Return the origin of the message with each of these checked heads."""
    found = codec.native.origins(heads) if codec.COMPILED else None
    return list(map(origin, heads)) if found is None else found


def numbered_heads(
    producer: bytes, numbers: Iterable[int], keys: Iterable[bytes] | None = None
) -> list[bytes]:
    """Make the heads of messages with these sequence numbers, the same producer, these routing keys, if there
    are any, and nothing else. Raises `FieldError` for a name or key longer than 255 octets.
    """
    app_id = shortstr.write(producer, "the producer's name")
    if keys is None:
        return [b"%b%c%d%b" % (_NUMBERED, len(str(number)), number, app_id) for number in numbers]
    names = (b"\x00" + shortstr.write(key, "the routing key") + _ONLY_BOTH for key in keys)
    return [
        b"%b%c%d%b" % (begin, len(str(number)), number, app_id)
        for begin, number in zip(names, numbers, strict=True)
    ]


def renumbered(head: bytes, producer: bytes, number: int) -> bytes:
    """Return a checked head with another producer, whose name has 1 to 255 octets, and sequence number."""
    if head == PLAIN_HEAD or head.startswith(_NUMBERED):
        return b"%b%c%d%c%b" % (_NUMBERED, len(str(number)), number, len(producer), producer)
    parsed = stored_head.decode(head)
    own = replace(parsed.properties, message_id=b"%d" % number, app_id=producer)
    return stored_head.encode(replace(parsed, properties=own))
