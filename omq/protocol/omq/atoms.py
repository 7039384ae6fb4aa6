"""The atoms of sexps, and their two written forms in OCaml's sexplib 0.15: bare and in quotes.

Source: docs/PROTOCOL.md, "What the client sends: lines" and "What the server sends: frames".
"""

import re
from collections.abc import Iterable

from omq.protocol.steps import Steps, finished
from omq_storage import codec

# Every repetition is possessive: an alternative never gives back what it has matched, so no atom is read
# twice.

# Ends an atom: blanks, quote, parentheses and semicolon. "#|" and "|#" must not occur within one, "#;" not
# begin one. The lookahead refuses an atom that would have to stop in front of such a pair.
PLAIN = rb'[^ \t\f\r\n"();#|]'
BARE = rb'(?!#;|[ \t\f\r\n"();])' + PLAIN + rb"*+(?:(?:#(?!\|)|\|(?!#))" + PLAIN + rb"*+)*+(?![#|])"

ESCAPE = rb"\\(?:[01][0-9]{2}|2[0-4][0-9]|25[0-5]|x[0-9a-fA-F]{2}|[^0-9x])"
QUOTED = rb'"[^"\\]*+(?:' + ESCAPE + rb'[^"\\]*+)*+"'

CHUNK = 4 << 10
"""The number of octets of a string, an atom or a comment that are read in one step in plain Python."""

STEP = 16 << 10
"""The number of octets that the compiled codec reads in one step."""

_ESCAPED = re.compile(rb"\\(?:([0-9]{3})|x(..)|(\r?\n[ \t]*+)|(.))", re.DOTALL)
_LETTERS = {
    b"n": b"\n", b"t": b"\t", b"b": b"\b", b"r": b"\r", b"\\": b"\\", b'"': b'"', b"'": b"'",
    b"\r": b"\r",  # the only unknown escape that loses its backslash
}  # fmt: skip


def _meaning(match: re.Match[bytes]) -> bytes:
    match match.lastindex:
        case 1:
            return bytes((int(match[1]),))
        case 2:
            return bytes((int(match[2], 16),))
        case 3:
            return b""  # a line continuation
        case _:
            return _LETTERS.get(match[4], match[0])  # an unknown escape keeps its backslash


def unescape(content: bytes) -> bytes:
    """Return the content of a quoted atom (one that `QUOTED` matches) with its escapes resolved."""
    if b"\\" not in content:
        return content
    if b"\\\\" not in content:
        # Every backslash here escapes a quote or a backslash, so the content is valid JSON.
        simple = content.replace(b'\\"', b'"')
        if b"\\" not in simple:
            return simple
    return _ESCAPED.sub(_meaning, content)


def unquote(atom: bytes) -> bytes:
    """Return the octets of a quoted atom (one that `QUOTED` matches)."""
    return finished(unquoting(atom))


def unquoting(atom: bytes) -> Steps[bytes]:
    """Resolve the escapes of a quoted atom as `unquote` does, in steps."""
    if b"\\" not in atom:
        return atom[1:-1]
    return (yield from (unquoting_compiled if codec.COMPILED else unquoting_plain)(atom))


def unquoting_compiled(atom: bytes) -> Steps[bytes]:
    """Resolve escapes as `unquoting` does, with the compiled codec."""
    at, end = 1, len(atom) - 1
    pieces: list[bytes] = []
    while True:
        piece, at = codec.native.unescaped(atom, at, min(end, at + STEP), end)
        pieces.append(piece)
        if at == end:
            return b"".join(pieces)
        yield


# Complete escapes only: one that the end of a chunk splits is left to the next chunk.
_WHOLE = re.compile(rb"[^\\]*+(?:" + ESCAPE + rb"[^\\]*+)*+")


def unquoting_plain(atom: bytes) -> Steps[bytes]:
    """Resolve escapes as `unquoting` does, in plain Python."""
    at, end = 1, len(atom) - 1
    if end - at <= CHUNK or b"\n" in atom:
        # An escape with a line feed also skips the blanks after it; it does not occur in lines.
        return unescape(atom[1:-1])
    pieces: list[bytes] = []
    while at < end:
        found = _WHOLE.match(atom, at, min(end, at + CHUNK))
        assert found is not None
        pieces.append(unescape(found[0]))
        at = found.end()
        yield
    return b"".join(pieces)


_NEEDS_QUOTES = re.compile(rb'[^!-~]|["();\\]|#\||\|#')
_NEED_ESCAPES = re.compile(rb'(?:[^ -~]|["\\])++')
_WRITTEN = [b"\\%03d" % octet for octet in range(256)]
for _octet, _escape in b'""', b"\\\\", b"\nn", b"\tt", b"\rr", b"\bb":
    _WRITTEN[_octet] = b"\\" + bytes((_escape,))


def atom(octets: bytes) -> bytes:
    """Print an atom as sexplib does: bare if it can be parsed back like that, otherwise in quotes."""
    if octets and not _NEEDS_QUOTES.search(octets):
        return octets
    # Octets that need escapes often come together, and a call for each run of them takes less time.
    return (
        b'"' + _NEED_ESCAPES.sub(lambda run: b"".join([_WRITTEN[octet] for octet in run[0]]), octets) + b'"'
    )


_NOT_BARE = (ord("("), ord(")"), ord('"'))
"""The first octets of a parenthesis, a list and a quoted atom, which need no space beside them."""


def joined(parts: Iterable[bytes]) -> bytes:
    """Join printed atoms, lists and parentheses, with a space between two bare atoms."""
    spaced: list[bytes] = []
    was_bare = False
    for part in parts:
        is_bare = part[0] not in _NOT_BARE
        if is_bare and was_bare:
            spaced.append(b" ")
        spaced.append(part)
        was_bare = is_bare
    return b"".join(spaced)


def atom_written(octets: bytes) -> bytes:
    """Return the atom that is written so, bare or quoted."""
    return unquote(octets) if octets.startswith(b'"') else octets
