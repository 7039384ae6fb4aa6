"""AMQP short strings: one length octet, and 0 to 255 octets after it.

Source: 6-DMP, "Integration with AMQP" (commands and responses are short strings) and "Message envelope and
format" (names and most properties are too). omq never interprets their octets as text.
"""

LONGEST = 255
"""The greatest length of a short string, without its length octet."""


class FieldError(ValueError):
    """Malformed octets of a field, or a value out of range.

    The text names the field and the error, and begins in lower case.
    """


def write(octets: bytes, what: str) -> bytes:
    """Encode a short string. `what` names it in errors.

    Raises `FieldError` for more than 255 octets.
    """
    if len(octets) > LONGEST:
        raise FieldError(f"{what} of {len(octets)} octets is longer than {LONGEST}")
    return b"%c%s" % (len(octets), octets)


def skip(data: bytes, at: int, end: int, what: str) -> int:
    """Return the end of the short string at `data[at]`.

    Raises `FieldError` if it exceeds `end`.
    """
    if at >= end:
        raise FieldError(f"{what} is missing")
    after = at + 1 + data[at]
    if after > end:
        raise FieldError(f"{what} has {end - at - 1} of its {data[at]} octets")
    return after


def read(data: bytes, at: int, end: int, what: str) -> tuple[bytes, int]:
    """Read the short string at `data[at]`; return its octets and its end.

    Raises `FieldError` if it exceeds `end`.
    """
    after = skip(data, at, end, what)
    return data[at + 1 : after], after
