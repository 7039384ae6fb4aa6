"""AMQP short strings: one octet that counts the 0 to 255 octets after it.

Source: 6-DMP, "Integration with AMQP" (commands and responses are short strings) and "Message envelope and
format" (names and most properties are too). Their octets are never taken for text of any encoding.
"""

LONGEST = 255
"""Octets: the longest short string, not counting the octet before it."""


class FieldError(ValueError):
    """Octets that are not the field they should be, or a value that its field cannot hold.

    The text says which field and what is wrong with it, and begins in lower case.
    """


def write(octets: bytes, what: str) -> bytes:
    """`octets` as a short string. `what` names it in errors.

    Raises `FieldError` when they are more than 255.
    """
    if len(octets) > LONGEST:
        raise FieldError(f"{what} of {len(octets)} octets is longer than {LONGEST}")
    return b"%c%s" % (len(octets), octets)


def skip(data: bytes, at: int, end: int, what: str) -> int:
    """Where the short string at `data[at]` is over; it must be by `end`.

    Raises `FieldError` when it is not.
    """
    if at >= end:
        raise FieldError(f"{what} is missing")
    after = at + 1 + data[at]
    if after > end:
        raise FieldError(f"{what} has {end - at - 1} of its {data[at]} octets")
    return after


def read(data: bytes, at: int, end: int, what: str) -> tuple[bytes, int]:
    """The octets of the short string at `data[at]`, without its count, and where it is over.

    Raises `FieldError` when it is not over by `end`.
    """
    after = skip(data, at, end, what)
    return data[at + 1 : after], after
