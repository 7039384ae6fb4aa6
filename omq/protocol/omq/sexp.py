"""Sexps as OCaml's sexplib 0.15 reads and prints them: octets in, a tree of atoms and lists out.

Source: omq text, Message format ("sexps conforming to the normal sexp converters").

sexpdata builds and prints the trees. Its idea of an atom is a Lisp's, not OCaml's, so the lexer here keeps
the atoms aside and shows sexpdata only the skeleton: `(Subscribe prices From_current)` becomes `(0 1 2)`.
Everything before sexpdata is iterative and linear in the number of octets; sexpdata recurses, so the nesting
is capped before it.
"""

import re
import threading
from typing import NoReturn, TypeAlias, cast

import sexpdata

Sexp: TypeAlias = bytes | list["Sexp"]

MAX_DEPTH = 100
"""The deepest nesting of lists. Comments may nest without a limit."""


class SexpError(ValueError):
    """The octets are not one sexp, or not the sexp that was asked for. Its text is one sentence's worth."""


# -- the lexer ----------------------------------------------------------------------------------------------
# Every repetition is possessive: what one alternative has taken it never gives back, so no line is read
# twice.

# Ends an atom: blanks, quote, parentheses and semicolon. "#|" and "|#" must not occur within one, "#;" not
# begin one. The lookahead refuses an atom that would have to stop in front of such a pair.
_PLAIN = rb'[^ \t\f\r\n"();#|]'
BARE = rb'(?!#;|[ \t\f\r\n"();])' + _PLAIN + rb"*+(?:(?:#(?!\|)|\|(?!#))" + _PLAIN + rb"*+)*+(?![#|])"

_ESCAPE = rb"\\(?:[01][0-9]{2}|2[0-4][0-9]|25[0-5]|x[0-9a-fA-F]{2}|[^0-9x])"
QUOTED = rb'"[^"\\]*+(?:' + _ESCAPE + rb'[^"\\]*+)*+"'

# A carriage return counts as a blank only where the line ends; it also ends a comment. A block comment that
# holds neither strings nor others is blank as well; `_end_of_block_comment` knows the rest of them.
_BLANKS = rb'(?:[ \t\f\n]++|\r(?=\n|\Z)|;[^\r\n]*+|#\|[^#|"]*+\|#)*+'
_KNOWN = rb"[()]|" + BARE + rb"|" + QUOTED + rb"|#;|#\|"
# What is not known is taken whole, to the end of the line: so it is always the last token, and tried only
# once.
_TOKEN = re.compile(_BLANKS + rb"(" + _KNOWN + rb"|(?s:.)++|)")
_IS_KNOWN = re.compile(_KNOWN)

_WITHIN_COMMENT = re.compile(rb"#\||\|#|" + QUOTED + rb'|"')


def _tokens(text: bytes) -> list[bytes]:
    """The tokens of `text` without blanks, block comments and line comments. A bad one can only be last."""
    if b"#|" not in text:
        tokens = _TOKEN.findall(text)
    else:
        tokens = []
        position = 0
        while position < len(text):
            for match in _TOKEN.finditer(text, position):
                if match[1] == b"#|":
                    position = _end_of_block_comment(text, match.end())
                    break
                tokens.append(match[1])
            else:
                break
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


def _end_of_block_comment(text: bytes, position: int) -> int:
    """The position after the `|#` that ends the comment whose `#|` ends at `position`."""
    depth = 1
    for match in _WITHIN_COMMENT.finditer(text, position):
        match match[0]:
            case b"#|":
                depth += 1
            case b"|#":
                depth -= 1
                if not depth:
                    return match.end()
            case b'"':
                raise SexpError("a comment holds an unfinished string or a bad escape")
    raise SexpError("a comment that begins with #| has no end")


def _refuse(token: bytes) -> NoReturn:
    if token.startswith(b"\r"):
        raise SexpError("a carriage return stands before other octets of the line")
    if token.startswith(b'"'):
        raise SexpError("a string has no end or a bad escape")
    if token.startswith(b"|#"):
        raise SexpError("|# ends a comment that never began")
    raise SexpError("an unquoted atom holds #| or |#")


# -- reading ------------------------------------------------------------------------------------------------


class _PerThread(threading.local):
    """A sexpdata parser takes longer to make than a line to read, so each thread keeps one."""

    def __init__(self) -> None:
        self.parser = sexpdata.Parser("")


_per_thread = _PerThread()


def read(text: bytes, max_depth: int = MAX_DEPTH, max_tokens: int | None = None) -> Sexp | None:
    """The one sexp that `text` holds, or None if it holds only blanks and comments.

    Raises SexpError when it is not a sexp, when it is more than one, when it nests deeper than `max_depth`,
    and when it has more than `max_tokens` atoms and parentheses outside comments.
    """
    tokens = _tokens(text)
    if not tokens:
        return None
    if not _IS_KNOWN.fullmatch(tokens[-1]):
        _refuse(tokens[-1])

    atoms: list[bytes] = []
    skeleton: list[str] = []
    opened: list[int] = []  # for each list that is open: how many `#;` stood before it
    comments = 0  # how many `#;` still wait for their sexp, in the innermost list
    hidden = 0  # how many lists were open, the commented one included, where the comment around us began
    whole = 0  # sexps finished outside of all lists
    for token in tokens:
        if token == b"(":
            opened.append(comments)
            if not hidden:
                if comments:
                    hidden = len(opened)
                else:
                    if len(opened) > max_depth:
                        raise SexpError(f"lists nest deeper than {max_depth}")
                    skeleton.append("(")
            comments = 0
        elif token == b"#;":
            comments += 1
            continue
        else:
            if token != b")":
                if not comments and not hidden:
                    skeleton.append(f"{len(atoms)} ")
                    atoms.append(token)
            else:
                if comments:
                    raise SexpError("#; has no sexp to comment out")
                if not opened:
                    raise SexpError(") closes a list that was never opened")
                if not hidden:
                    skeleton.append(")")
                elif hidden == len(opened):
                    hidden = 0
                comments = opened.pop()
            # A sexp ends here: the oldest waiting `#;` takes it, or it counts.
            if comments:
                comments -= 1
            elif not opened:
                whole += 1
                if whole > 1:
                    raise SexpError("there is more than one sexp")
        if max_tokens is not None and len(skeleton) > max_tokens:
            raise SexpError(f"there are more than {max_tokens} atoms and parentheses")
    if comments:
        raise SexpError("#; has no sexp to comment out")
    if opened:
        raise SexpError("a list has no end")
    if not whole:
        return None

    parser = _per_thread.parser
    parser.string = "".join(skeleton)
    _, trees = parser.parse_sexp(0)
    return _with_atoms(trees[0], [unquote(atom) if atom[0] == 34 else atom for atom in atoms])


def _with_atoms(tree: object, atoms: list[bytes]) -> Sexp:
    """sexpdata's tree of numbers with each number replaced by the atom it stands for."""
    if isinstance(tree, int):
        return atoms[tree]
    return [_with_atoms(part, atoms) for part in cast(list[object], tree)]


# -- atoms --------------------------------------------------------------------------------------------------

_ESCAPED = re.compile(rb"\\(?:([0-9]{3})|x(..)|(\r?\n[ \t]*+)|(.))", re.DOTALL)
_LETTERS = {
    b"n": b"\n", b"t": b"\t", b"b": b"\b", b"r": b"\r", b"\\": b"\\", b'"': b'"', b"'": b"'",
    b"\r": b"\r",  # alone of the unknown ones this escape loses its backslash
}  # fmt: skip


def _meaning(match: re.Match[bytes]) -> bytes:
    match match.lastindex:
        case 1:
            return bytes((int(match[1]),))
        case 2:
            return bytes((int(match[2], 16),))
        case 3:
            return b""  # a line that goes on after a backslash
        case _:
            return _LETTERS.get(match[4], match[0])  # an unknown escape keeps its backslash


def unescape(content: bytes) -> bytes:
    """What stands between the quotes of a quoted atom (one that `QUOTED` matches), its escapes resolved."""
    if b"\\" not in content:
        return content
    if b"\\\\" not in content:
        # Each backslash escapes what follows it; JSON has no others than quotes.
        simple = content.replace(b'\\"', b'"')
        if b"\\" not in simple:
            return simple
    return _ESCAPED.sub(_meaning, content)


def unquote(atom: bytes) -> bytes:
    """The octets of an atom written in quotes (one that `QUOTED` matches)."""
    return unescape(atom[1:-1])


_NEEDS_QUOTES = re.compile(rb'[^!-~]|["();\\]|#\||\|#')
_NEEDS_ESCAPE = re.compile(rb'[^ -~]|["\\]')
_WRITTEN = {bytes((octet,)): b"\\%03d" % octet for octet in range(256)} | {
    b'"': b'\\"', b"\\": b"\\\\", b"\n": b"\\n", b"\t": b"\\t", b"\r": b"\\r", b"\b": b"\\b",
}  # fmt: skip


def atom(octets: bytes) -> bytes:
    """`octets` as sexplib prints an atom: bare where it can be read back so, else in quotes; printable."""
    if octets and not _NEEDS_QUOTES.search(octets):
        return octets
    return b'"' + _NEEDS_ESCAPE.sub(lambda match: _WRITTEN[match[0]], octets) + b'"'


# -- writing ------------------------------------------------------------------------------------------------

_SKELETON = re.compile(r"[()]|[0-9]++")


def write(sexp: Sexp) -> bytes:
    """`sexp` in sexplib's machine form, without a line feed: one space between two bare atoms and none
    elsewhere.

    Raises SexpError when it nests deeper than MAX_DEPTH.
    """
    if isinstance(sexp, bytes):
        return atom(sexp)
    atoms: list[bytes] = []
    skeleton = sexpdata.dumps(_without_atoms(sexp, atoms, MAX_DEPTH))
    pieces: list[bytes] = []
    after_bare = False
    for mark in _SKELETON.findall(skeleton):
        if mark in "()":
            pieces.append(mark.encode())
            after_bare = False
            continue
        piece = atoms[int(mark)]
        bare = not piece.startswith(b'"')
        if bare and after_bare:
            pieces.append(b" ")
        pieces.append(piece)
        after_bare = bare
    return b"".join(pieces)


def _without_atoms(sexp: Sexp, atoms: list[bytes], depth: int) -> object:
    """The tree that sexpdata prints: each atom put into `atoms`, as printed, and replaced by its number
    there.
    """
    if isinstance(sexp, bytes):
        atoms.append(atom(sexp))
        return len(atoms) - 1
    if not depth:
        raise SexpError(f"lists nest deeper than {MAX_DEPTH}")
    return [_without_atoms(part, atoms, depth - 1) for part in sexp]
