"""Read the producer and the sequence number of a message (docs/PROTOCOL.md, "Idempotent producers").

A producer that sets app-id and a decimal message-id is idempotent: when it repeats a message after a failure,
because it does not know the outcome, the server does not store the message again.
"""

from collections.abc import Sequence

from omq.protocol.amqp import properties
from omq.protocol.amqp.head import names_end
from omq_storage import codec

_BOTH = properties.MESSAGE_ID | properties.APP_ID
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
