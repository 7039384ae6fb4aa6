"""Which producer sent a message, and as which of its sequence (docs/PROTOCOL.md, "Idempotent producers").

A producer that sets app-id and a decimal message-id is idempotent: when it sends a message again, after a
failure that left it in doubt, the message is not stored again.
"""

from struct import Struct

from omq.protocol.amqp import properties

_FLAGS = Struct(">H")
_MESSAGE_ID = 1 << 7
_APP_ID = 1 << 3
_BOTH = _MESSAGE_ID | _APP_ID
_MOST_DIGITS = 20
_SEQUENCES = 1 << 64


def origin(head: bytes) -> tuple[bytes, int] | None:
    """The app-id and the message-id of a head that was checked; None for a message of no such producer.

    A message-id counts when it is decimal and below 2^64.
    """
    flags_at = 1 + head[0]
    flags_at += 1 + head[flags_at]
    (flags,) = _FLAGS.unpack_from(head, flags_at)
    if flags & _BOTH != _BOTH:
        return None
    if flags == _BOTH:
        # Nothing else to step over: producers in bulk send these two alone, and are not held up.
        digits_at = flags_at + _FLAGS.size
        name_at = digits_at + 1 + head[digits_at]
        digits, name = head[digits_at + 1 : name_at], head[name_at + 1 :]
    else:
        # A table among them is stepped over: it may be long.
        strings = properties.strings(head, flags_at)
        digits, name = strings["message_id"], strings["app_id"]
    if not name or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    sequence = int(digits)
    return (name, sequence) if sequence < _SEQUENCES else None
