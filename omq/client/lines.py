"""Publish lines, made fast, many at a time.

Bodies are written between quotes, and of their octets only those that would mean something there are
escaped: text of any language stays as it is, on the wire as well, and binary bodies hardly grow. All lines of
one topic are alike but for their bodies, which is the form that the server reads fastest.
"""

from omq.protocol.omq.sexp import atom

_END = b'")\n'


def publish_start(topic: bytes) -> bytes:
    """A Publish line up to and with the quote that begins its body."""
    return b'(Publish %s "' % atom(topic)


def publish_line(start: bytes, body: bytes) -> bytes:
    """The whole line, its line feed included, of one message."""
    return start + _escaped(body).replace(b"\n", b"\\n") + _END


def publish_lines(start: bytes, text: bytes) -> bytes:
    """Publish lines for the lines of `text`: it ends in a line feed, which like the others is in no body."""
    return start + _escaped(text)[:-1].replace(b"\n", _END + start) + _END


def publish_bodies(start: bytes, bodies: list[bytes]) -> bytes:
    """Publish lines for many bodies, which may hold line feeds."""
    if any(b"\n" in body for body in bodies):
        return b"".join([publish_line(start, body) for body in bodies])
    return publish_lines(start, b"\n".join(bodies) + b"\n")


def _escaped(octets: bytes) -> bytes:
    return octets.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
