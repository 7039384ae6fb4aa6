"""Publish lines, made fast, many at a time.

Bodies are written between quotes, and of their octets only those that would mean something there are
escaped: text of any language stays as it is, on the wire as well, and binary bodies hardly grow. All lines of
one topic are alike but for their bodies, which is the form that the server reads fastest.
"""

from omq.client.bodies import check_bodies
from omq.client.errors import MessageTooLong
from omq.protocol.omq.sexp import atom

_END = b'")\n'


def publish_start(topic: bytes) -> bytes:
    """A Publish line up to and with the quote that begins its body."""
    return b'(Publish %s "' % atom(topic)


def publish_line(start: bytes, body: bytes) -> bytes:
    """The whole line, its line feed included, of one message. Raises TypeError."""
    try:
        return start + _escaped(body).replace(b"\n", b"\\n") + _END
    except (TypeError, AttributeError):
        check_bodies([body])
        return publish_line(start, bytes(body))  # a memoryview, which has no `replace`


def publish_lines(start: bytes, text: bytes) -> bytes:
    """Publish lines for the lines of `text`: it ends in a line feed, which like the others is in no body."""
    return start + _escaped(text)[:-1].replace(b"\n", _END + start) + _END


def publish_bodies(start: bytes, bodies: list[bytes]) -> bytes:
    """Publish lines for many bodies, which may hold line feeds. Raises TypeError."""
    try:
        text = b"\n".join(bodies) + b"\n"
    except TypeError:
        check_bodies(bodies)
        raise
    if text.count(b"\n") > len(bodies):
        return b"".join([publish_line(start, body) for body in bodies])
    return publish_lines(start, text)


def always_fits(start: bytes, longest: int) -> int:
    """A body of up to so many octets makes a line of at most `longest`: no octet takes more than two."""
    return (longest + 1 - len(start) - len(_END)) // 2


def check_line(line_octets: int, longest: int) -> None:
    """Raises MessageTooLong for a line of so many octets, its line feed included."""
    if line_octets - 1 > longest:
        raise MessageTooLong(
            f"the message makes a line of {line_octets - 1} octets, and the server takes {longest}: "
            "publish it through a sink"
        )


def check_text(start: bytes, text: bytes, longest: int) -> None:
    """Raises MessageTooLong when one of the lines that `publish_lines` makes is too long."""
    fitting = always_fits(start, longest)
    if len(text) > fitting:
        for body in text.split(b"\n"):
            if len(body) > fitting:
                check_line(len(publish_line(start, body)), longest)


def _escaped(octets: bytes) -> bytes:
    return octets.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
