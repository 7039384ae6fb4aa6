"""Publish lines, made fast: what `omq.protocol.commands.publish_sexp` prints, many times a second.

Almost every body is printable, so a few searches in C decide what it needs; only what is not printable is
looked at octet by octet.
"""

from omq.protocol.sexp import atom

_PRINTABLE = bytes(range(0x20, 0x7F))
_BARE = bytes(octet for octet in range(0x21, 0x7F) if octet not in b'"();\\')
_WITHOUT_MEANING = bytes(octet for octet in _PRINTABLE if octet not in b'"\\')
_BETWEEN = b'")\n'

_WRITTEN = [
    bytes((octet,)) if octet in _WITHOUT_MEANING else atom(bytes((octet,)))[1:-1] for octet in range(256)
]
"""How each octet is written between quotes."""


def publish_prefix(topic: bytes) -> bytes:
    """A Publish line up to the end of its topic."""
    written = atom(topic)
    return b"(Publish" + written if written.startswith(b'"') else b"(Publish " + written


def publish_line(prefix: bytes, body: bytes) -> bytes:
    """The whole line, its line feed included, of one message."""
    bare = body and not body.translate(None, _BARE)
    if bare and not (b"#" in body and (b"#|" in body or b"|#" in body)):
        if prefix.endswith(b'"'):
            return prefix + body + b")\n"
        return prefix + b" " + body + b")\n"
    return prefix + b'"' + _content(body) + _BETWEEN


def _content(body: bytes) -> bytes:
    """`body` as it is written between quotes."""
    if not body.translate(None, _PRINTABLE):
        return _printable_content(body)
    return b"".join(map(_WRITTEN.__getitem__, body))


def _printable_content(text: bytes) -> bytes:
    return text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def publish_lines(prefix: bytes, text: bytes) -> bytes:
    """Publish lines for the lines of `text`: it ends in a line feed, which like the others is in no body.

    Bodies are always written in quotes here: so a text without special octets is turned over whole, with no
    step for each of its lines.
    """
    start = prefix + b'"'
    special = text.translate(None, _PRINTABLE)
    if special.count(b"\n") == len(special):
        content = _printable_content(text)
        return start + content[:-1].replace(b"\n", _BETWEEN + start) + _BETWEEN
    return b"".join([start + _content(line) + _BETWEEN for line in text[:-1].split(b"\n")])


def publish_bodies(prefix: bytes, bodies: list[bytes]) -> bytes:
    """Publish lines for many bodies, which may hold line feeds."""
    text = b"\n".join(bodies) + b"\n"
    if text.count(b"\n") == len(bodies):
        return publish_lines(prefix, text)
    return b"".join([publish_line(prefix, body) for body in bodies])
