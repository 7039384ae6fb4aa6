"""Encode Publish lines, many at a time.

The encoder quotes bodies and escapes only the octets that have a meaning inside quotes: text of any language
stays readable on the wire, and binary bodies hardly grow. All lines of a topic differ only in their bodies,
which is the form that the server parses fastest.
"""

from omq.client.bodies import check_bodies
from omq.client.errors import MessageTooLong
from omq.protocol.omq.atoms import atom

_END = b'")\n'


def publish_start(topic: bytes) -> bytes:
    """Return a Publish line up to the opening quote of its body, quote included."""
    return b'(Publish %s "' % atom(topic)


def publish_line(start: bytes, body: bytes) -> bytes:
    """Encode one message as a line, line feed included. Raises TypeError."""
    try:
        return start + _escaped(body).replace(b"\n", b"\\n") + _END
    except (TypeError, AttributeError):
        check_bodies([body])
        return publish_line(start, bytes(body))  # a memoryview, which has no `replace`


def publish_lines(start: bytes, text: bytes) -> bytes:
    """Encode each line of `text`, which ends in a line feed, as a Publish line. Bodies get no line feed."""
    return start + _escaped(text)[:-1].replace(b"\n", _END + start) + _END


def publish_bodies(start: bytes, bodies: list[bytes]) -> bytes:
    """Encode many bodies, which may contain line feeds. Raises TypeError."""
    try:
        text = b"\n".join(bodies) + b"\n"
    except TypeError:
        check_bodies(bodies)
        raise
    if text.count(b"\n") > len(bodies):
        return b"".join([publish_line(start, body) for body in bodies])
    return publish_lines(start, text)


def always_fits(start: bytes, longest: int) -> int:
    """Return the length up to which any body fits a line of `longest` octets: escaping at most doubles a
    body.
    """
    return (longest + 1 - len(start) - len(_END)) // 2


def check_line(line_octets: int, longest: int) -> None:
    """Raise MessageTooLong for a line that is too long; `line_octets` includes its line feed."""
    if line_octets - 1 > longest:
        raise MessageTooLong(
            f"the message makes a line of {line_octets - 1} octets, and the server takes {longest}: "
            "publish it through a sink"
        )


def check_text(start: bytes, text: bytes, longest: int) -> None:
    """Raise MessageTooLong if `publish_lines` would make a line that is too long."""
    fitting = always_fits(start, longest)
    if len(text) > fitting:
        for body in text.split(b"\n"):
            if len(body) > fitting:
                check_line(len(publish_line(start, body)), longest)


def _escaped(octets: bytes) -> bytes:
    return octets.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
