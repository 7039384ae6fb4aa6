"""The responses of a DMP server: three digits, an indicator and an explanation, in one short string.

Source: 6-DMP, "Integration with AMQP" and "Response codes"; explanations that OpenAMQ was observed to send
have its wording. Clients use only the three digits.
"""

import re
from dataclasses import dataclass
from enum import IntEnum

from omq.protocol.amqp import shortstr

_DIGITS = 3


class ResponseCode(IntEnum):
    """The nine codes of 6-DMP."""

    OK = 200
    BAD_LEASE = 402
    NO_ACCESS = 403
    NOT_FOUND = 404
    SYNTAX_ERROR = 502
    INVALID = 503
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def indicator(self) -> bytes:
        """The short text after the digits, such as `BAD-LEASE`."""
        return self.name.replace("_", "-").encode()


_EXPLANATIONS = {
    ResponseCode.OK: b"",
    ResponseCode.BAD_LEASE: b"Lease is not valid for this connection",
    ResponseCode.NO_ACCESS: b"The connection that asked for this lease has no right to use it",
    ResponseCode.NOT_FOUND: b"The sink or feed of this lease is no longer there",
    ResponseCode.SYNTAX_ERROR: b"A field has a value that it cannot have",
    ResponseCode.INVALID: b"Nothing of this kind can be done here",
    ResponseCode.NOT_ALLOWED: b"The server does not permit this",
    ResponseCode.NOT_IMPLEMENTED: b"The server does not know how to do this",
    ResponseCode.INTERNAL_ERROR: b"The server failed to do this",
}


class ResponseError(ValueError):
    """A short string that does not begin with three digits, so it is not a response."""


@dataclass(frozen=True, slots=True)
class Response:
    """`code` is 0 to 999, for a conforming server one of `ResponseCode`; `words` is the text after it."""

    code: int
    words: bytes = b""

    @property
    def ok(self) -> bool:
        """Whether the server fulfilled the request."""
        return self.code == ResponseCode.OK


def response(code: ResponseCode, explanation: bytes | None = None) -> Response:
    """Make a response with its indicator, and by default with the standard explanation of its code."""
    if explanation is None:
        explanation = _EXPLANATIONS[code]
    return Response(code, b" ".join(filter(None, (code.indicator, explanation))))


GREETING = response(ResponseCode.OK, b"DP/0.1")
"""The answer to the protocol header, as OpenAMQ words it; the text has `DMP/0.1`."""

LEASE_NOT_VALID = response(ResponseCode.BAD_LEASE)
"""The answer to an unknown or expired lease."""

LEASE_IN_USE = response(ResponseCode.BAD_LEASE, b"Lease already acquired")
"""The answer to a lease that was used before, whether or not its connection is still open."""

_STORED = re.compile(rb"\b([0-9]+) messages stored\b")
_LONGEST_NAME = shortstr.LONGEST - len(b"200 OK Sink '' ready")


def sink_ready(name: bytes) -> Response:
    """Return the answer to the lease of a sink; a name that does not fit is shortened and ends in `...`."""
    return response(ResponseCode.OK, b"Sink '%s' ready" % _fitting(name, _LONGEST_NAME))


def feed_ready(name: bytes) -> Response:
    """Return the answer to the lease of a feed; a name that does not fit is shortened and ends in `...`."""
    return response(ResponseCode.OK, b"Feed '%s' ready" % _fitting(name, _LONGEST_NAME))


def stored(messages: int) -> Response:
    """Return the final response to a sink that closed its sending direction, once its messages are stored."""
    return response(ResponseCode.OK, words_of_stored(messages))


def words_of_stored(messages: int) -> bytes:
    """Return the words about the messages of a sink that the server has stored."""
    return b"%d messages stored" % messages


def stored_of(said: Response) -> int | None:
    """Return the number of the messages that are stored according to this response, or None."""
    found = _STORED.search(said.words)
    return None if found is None else int(found[1])


def encode(said: Response) -> bytes:
    """Encode a response as a short string; words that do not fit are shortened and end in `...`.

    Raises `ValueError` for a code outside 0 to 999.
    """
    if not 0 <= said.code <= 999:
        raise ValueError(f"{said.code} does not have three digits")
    words = _fitting(said.words, shortstr.LONGEST - _DIGITS - 1)
    return shortstr.write(b"%03d %s" % (said.code, words) if words else b"%03d" % said.code, "the response")


def decode(octets: bytes) -> Response:
    """Parse a response from the contents of a short string, without the length octet.

    Raises `ResponseError` if it does not begin with three digits.
    """
    digits = octets[:_DIGITS]
    if len(digits) < _DIGITS or not digits.isdigit():
        raise ResponseError(f"a response begins with {octets[:_DIGITS]!r} instead of three digits")
    return Response(int(digits), octets[_DIGITS:].removeprefix(b" "))


def _fitting(octets: bytes, longest: int) -> bytes:
    return octets if len(octets) <= longest else octets[: longest - 3] + b"..."
