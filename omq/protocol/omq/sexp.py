"""Read and print sexps as OCaml's sexplib 0.15 does: octets in, a tree of atoms and lists out.

Source: docs/PROTOCOL.md, "What the client sends: lines" and "What the server sends: frames".

sexpdata builds and prints the trees. Its atoms are those of Lisp, not of OCaml, so the lexer here extracts
the atoms and passes only the skeleton to sexpdata: `(Subscribe prices From_current)` becomes `(0 1 2)`. The
lexer is iterative and linear in the number of octets; sexpdata recurses, so the lexer limits the nesting.
"""

import re
import threading
from array import array
from collections.abc import Generator, Iterator
from typing import NoReturn, TypeAlias, cast

import sexpdata

from omq.protocol.omq.atoms import BARE, CHUNK, ESCAPE, PLAIN, QUOTED, STEP, atom, joined, unquoting
from omq.protocol.steps import Steps, finished
from omq_storage import codec

Sexp: TypeAlias = bytes | list["Sexp"]

MAX_DEPTH = 100
"""The deepest nesting of lists. Comments may nest without a limit."""


class SexpError(ValueError):
    """The octets are not one sexp, or not one of the required type. The text is one sentence."""


# -- the lexer ----------------------------------------------------------------------------------------------
# Every repetition is possessive: an alternative never gives back what it has matched, so no line is read
# twice.

# A carriage return counts as a blank only where the line ends; it also ends a comment. A block comment that
# holds neither strings nor others is blank as well; `_end_of_block_comment` knows the rest of them.
_BLANKS = rb'(?:[ \t\f\n]++|\r(?=\n|\Z)|;[^\r\n]*+|#\|[^#|"]*+\|#)*+'
_KNOWN = rb"[()]|" + BARE + rb"|" + QUOTED + rb"|#;|#\|"
# An unknown token is taken whole, to the end of the octets that are examined.
_TOKEN = re.compile(_BLANKS + rb"(" + _KNOWN + rb"|(?s:.)++|)")
_IS_KNOWN = re.compile(_KNOWN)

_WHOLE_BLANKS = re.compile(rb'(?:[ \t\f\n]++|\r\n|;[^\r\n]*+(?=[\r\n])|#\|[^#|"]*+\|#)*+')
_LINE_COMMENT = re.compile(rb"[^\r\n]*+")
_CONTENT = re.compile(rb'[^"\\]*+(?:' + ESCAPE + rb'[^"\\]*+)*+')
_IN_ATOM = re.compile(rb"(?:" + PLAIN + rb"++|#(?!\|)|\|(?!#))*+")
_WITHIN_COMMENT = re.compile(rb"#\||\|#|" + QUOTED + rb'|"')

_PAIRS = (b"#|", b"|#")

_CARRIAGE, _LINE_FEED, _SEMICOLON, _QUOTE, _OPEN, _CLOSE, _NUMBER_SIGN = b'\r\n;"()#'

TOKENS_CHUNK = 1 << 8
"""The number of octets of one step, each of which may be a token."""

# The faults, in the order of those of the compiled codec, from 1 on.
_CARRIAGE_RETURN = "a carriage return stands before other octets of the line"
_BAD_STRING = "a string has no end or a bad escape"
_NEVER_BEGAN = "|# ends a comment that never began"
_PAIR_IN_ATOM = "an unquoted atom holds #| or |#"
_BAD_STRING_IN_COMMENT = "a comment holds an unfinished string or a bad escape"
_ENDLESS_COMMENT = "a comment that begins with #| has no end"
_TOO_DEEP = "lists nest deeper than {max_depth}"
_COMMENTS_NOTHING = "#; has no sexp to comment out"
_NEVER_OPENED = ") closes a list that was never opened"
_MORE_THAN_ONE = "there is more than one sexp"
_TOO_MANY = "there are more than {max_tokens} atoms and parentheses"
_ENDLESS_LIST = "a list has no end"
_FAULTS = (
    _CARRIAGE_RETURN, _BAD_STRING, _NEVER_BEGAN, _PAIR_IN_ATOM, _BAD_STRING_IN_COMMENT, _ENDLESS_COMMENT,
    _TOO_DEEP, _COMMENTS_NOTHING, _NEVER_OPENED, _MORE_THAN_ONE, _TOO_MANY, _ENDLESS_LIST,
)  # fmt: skip


def _tokens(text: bytes) -> Iterator[tuple[int, int] | None]:
    """Yield begin and end of each token of `text`, without blanks and comments except `#;`. None is a pause.

    One expression reads a chunk. A token at the end of the chunk may be incomplete: it is read again from its
    beginning, or, when it fills the chunk, by the function for its kind. Raises SexpError at a bad token.
    """
    size = len(text)
    at = paused = 0
    while at < size:
        before = at
        bound = min(size, at + TOKENS_CHUNK)
        for match in _TOKEN.finditer(text, at, bound):
            begin, end = match.span(1)
            if end == bound < size:
                break
            if begin == end:
                return
            if end == size and not _IS_KNOWN.fullmatch(text, begin, end):
                _refuse(text, begin)
            at = end
            if end - begin == 2 and text[begin:end] == b"#|":
                at = yield from _comment_end(text, end)
                break
            yield begin, end
        if at == before:
            at = _blanks_end(text, at, bound)
        if at == before:
            at = yield from _long(text, at)
        if at - paused >= TOKENS_CHUNK:
            paused = at
            yield None


def _blanks_end(text: bytes, at: int, bound: int) -> int:
    """Return the end of the blanks and comments at `at` that are certainly complete before `bound`."""
    found = _WHOLE_BLANKS.match(text, at, bound)
    assert found is not None
    return found.end()


def _long(text: bytes, at: int) -> Generator[tuple[int, int] | None, None, int]:
    """Parse the token or comment at `at`, which may be longer than a chunk, and return its end."""
    octet = text[at]
    if octet == _CARRIAGE:
        if text[at + 1] != _LINE_FEED:  # it is not the last octet: the expression takes that one
            _refuse(text, at)
        return at + 1
    if octet == _SEMICOLON:
        return (yield from _run(_LINE_COMMENT, text, at))
    if octet == _QUOTE:
        end = yield from _quoted_end(text, at)
        if end is None:
            _refuse(text, at)
    elif text.startswith(b"#|", at):
        return (yield from _comment_end(text, at + 2))
    else:  # neither a parenthesis nor `#;`: the expression takes these
        end = yield from _bare_end(text, at)
    yield at, end
    return end


def _run(pattern: re.Pattern[bytes], text: bytes, at: int) -> Generator[None, None, int]:
    """Return the end of a match. Every part of a match must match the pattern, too."""
    while True:
        bound = min(len(text), at + CHUNK)
        found = pattern.match(text, at, bound)
        assert found is not None
        at = found.end()
        if at < bound or at == len(text):
            return at
        yield


def _quoted_end(text: bytes, at: int) -> Generator[None, None, int | None]:
    """Return the end of the string whose quote is at `at`; None if it has no end or a bad escape."""
    at += 1
    while True:
        # An escape that the end of the chunk splits is left to the next chunk.
        found = _CONTENT.match(text, at, min(len(text), at + CHUNK))
        assert found is not None
        end = found.end()
        if end < len(text) and text[end] == _QUOTE:
            return end + 1
        if end == at or end == len(text):
            return None
        at = end
        yield


def _bare_end(text: bytes, begin: int) -> Generator[None, None, int]:
    """Return the end of the bare atom at `begin`."""
    at = begin
    while True:
        bound = min(len(text), at + CHUNK)
        found = _IN_ATOM.match(text, at, bound)
        assert found is not None
        end = found.end()
        # The end of the chunk may split a pair, which the expression cannot see then.
        if text[end : end + 1] in (b"#", b"|") if end < bound else text[end - 1 : end + 1] in _PAIRS:
            _refuse(text, begin)
        if end < bound or end == len(text):
            return end
        at = end
        yield


def _comment_end(text: bytes, at: int) -> Generator[None, None, int]:
    """Return the end of the comment whose `#|` ends at `at`."""
    depth = 1
    paused = at
    while True:
        bound = min(len(text), at + TOKENS_CHUNK)
        for match in _WITHIN_COMMENT.finditer(text, at, bound):
            at = match.end()
            match match[0]:
                case b"#|":
                    depth += 1
                case b"|#":
                    depth -= 1
                    if not depth:
                        return at
                case b'"':
                    end = yield from _quoted_end(text, at - 1)
                    if end is None:
                        raise SexpError(_BAD_STRING_IN_COMMENT)
                    at = end
                    break
                case _:
                    pass  # a string
        else:
            if bound == len(text):
                raise SexpError(_ENDLESS_COMMENT)
            # The first octet of a pair may be the last of the chunk.
            at = max(at, bound - 1)
        if at - paused >= TOKENS_CHUNK - 1:
            paused = at
            yield


def _refuse(text: bytes, begin: int) -> NoReturn:
    """Return the error of the token at `begin`."""
    if text.startswith(b"\r", begin):
        raise SexpError(_CARRIAGE_RETURN)
    if text.startswith(b'"', begin):
        raise SexpError(_BAD_STRING)
    if text.startswith(b"|#", begin):
        raise SexpError(_NEVER_BEGAN)
    raise SexpError(_PAIR_IN_ATOM)


# -- reading ------------------------------------------------------------------------------------------------


_OPENED = -1  # among the marks of the compiled codec


class _PerThread(threading.local):
    """Making a sexpdata parser takes longer than parsing a line, so each thread keeps one."""

    def __init__(self) -> None:
        self.parser = sexpdata.Parser("")


_per_thread = _PerThread()


def read(text: bytes, max_depth: int = MAX_DEPTH, max_tokens: int | None = None) -> Sexp | None:
    """Return the one sexp in `text`, or None if it has only blanks and comments.

    Raises SexpError when it is not a sexp, when it is more than one, when it nests deeper than `max_depth`,
    and when it has more than `max_tokens` atoms and parentheses outside comments.
    """
    return finished(steps(text, max_depth, max_tokens))


def steps(text: bytes, max_depth: int = MAX_DEPTH, max_tokens: int | None = None) -> Steps[Sexp | None]:
    """Do the same in steps, each of which takes less than a millisecond if there is a limit for tokens."""
    scan = scanned_compiled if codec.COMPILED else scanned_plain
    skeleton, atoms = yield from scan(text, max_depth, max_tokens)
    if not skeleton:
        return None
    values: list[bytes] = []
    for written in atoms:
        value = (yield from unquoting(written)) if written[0] == _QUOTE else written
        values += (value,)
    parser = _per_thread.parser
    parser.string = skeleton
    _, trees = parser.parse_sexp(0)
    return _with_atoms(trees[0], values)


def read_one(payload: bytes) -> Sexp:
    """Return the one sexp in the payload of a frame. Raises SexpError, also when it has none."""
    sexp = read(payload)
    if sexp is None:
        raise SexpError("there is no sexp")
    return sexp


def scanned_compiled(text: bytes, max_depth: int, max_tokens: int | None) -> Steps[tuple[str, list[bytes]]]:
    """Return the skeleton of the sexp, with a number for each atom, and the atoms as they are written.

    The skeleton is empty when there is no sexp. Raises SexpError.
    """
    scan = codec.native.SexpScan(text, max_depth, len(text) if max_tokens is None else max_tokens)
    while scan.step(STEP):
        yield
    if scan.fault:
        raise _fault(_FAULTS[scan.fault - 1], max_depth, max_tokens)
    skeleton: list[str] = []
    atoms: list[bytes] = []
    marks = iter(scan.marks)
    for mark in marks:
        if mark >= 0:
            skeleton.append(f"{len(atoms)} ")
            atoms.append(text[mark : next(marks)])
        else:
            skeleton.append("(" if mark == _OPENED else ")")
    return "".join(skeleton), atoms


def _fault(text: str, max_depth: int, max_tokens: int | None) -> SexpError:
    return SexpError(text.format(max_depth=max_depth, max_tokens=max_tokens))


def scanned_plain(text: bytes, max_depth: int, max_tokens: int | None) -> Steps[tuple[str, list[bytes]]]:
    """Scan a text as `scanned_compiled` does, in plain Python."""
    structure = _Structure(max_depth, max_tokens)
    for token in _tokens(text):
        if token is None:
            yield
        elif structure.fault is None:
            structure.add(text, *token)
    return structure.finish()


class _Structure:
    """Builds the skeleton of one sexp from its tokens.

    A fault in the structure is raised at the end, because a later bad token has precedence.
    """

    def __init__(self, max_depth: int, max_tokens: int | None) -> None:
        self.fault: SexpError | None = None
        self._max_depth = max_depth
        self._max_tokens = max_tokens
        self._skeleton: list[str] = []
        self._atoms: list[bytes] = []
        self._opened = array("I")  # for each open list: the number of `#;` before it
        self._comments = 0  # the number of `#;` that wait for their sexp, in the innermost list
        # The number of open lists at the begin of the surrounding comment, including the commented list.
        self._hidden = 0
        self._whole = 0  # sexps finished outside of all lists

    def add(self, text: bytes, begin: int, end: int) -> None:
        """Add the next token. Do not add any after a fault."""
        octet = text[begin]
        if octet == _OPEN:
            self._open()
        elif octet == _CLOSE:
            self._close()
        elif octet == _NUMBER_SIGN and text[begin:end] == b"#;":
            self._comments += 1
        else:
            if not self._comments and not self._hidden:
                self._skeleton.append(f"{len(self._atoms)} ")
                self._atoms.append(text[begin:end])
            self._end_sexp()
        if self.fault is None and self._max_tokens is not None and len(self._skeleton) > self._max_tokens:
            self._fail(_TOO_MANY)

    def finish(self) -> tuple[str, list[bytes]]:
        """Return the skeleton and the atoms. Raise SexpError."""
        if self.fault is None and self._comments:
            self._fail(_COMMENTS_NOTHING)
        if self.fault is None and self._opened:
            self._fail(_ENDLESS_LIST)
        if self.fault is not None:
            raise self.fault
        return "".join(self._skeleton), self._atoms

    def _fail(self, text: str) -> None:
        self.fault = _fault(text, self._max_depth, self._max_tokens)

    def _open(self) -> None:
        self._opened.append(self._comments)
        if not self._hidden:
            if self._comments:
                self._hidden = len(self._opened)
            elif len(self._opened) > self._max_depth:
                self._fail(_TOO_DEEP)
            else:
                self._skeleton.append("(")
        self._comments = 0

    def _close(self) -> None:
        if self._comments:
            self._fail(_COMMENTS_NOTHING)
            return
        if not self._opened:
            self._fail(_NEVER_OPENED)
            return
        if not self._hidden:
            self._skeleton.append(")")
        elif self._hidden == len(self._opened):
            self._hidden = 0
        self._comments = self._opened.pop()
        self._end_sexp()

    def _end_sexp(self) -> None:
        # The oldest waiting `#;` hides this sexp; if none waits, the sexp counts.
        if self._comments:
            self._comments -= 1
        elif not self._opened:
            self._whole += 1
            if self._whole > 1:
                self._fail(_MORE_THAN_ONE)


def _with_atoms(tree: object, atoms: list[bytes]) -> Sexp:
    """Replace each number in sexpdata's tree by its atom."""
    if isinstance(tree, int):
        return atoms[tree]
    return [_with_atoms(part, atoms) for part in cast(list[object], tree)]


# -- writing ------------------------------------------------------------------------------------------------

_SKELETON = re.compile(r"[()]|[0-9]++")


def write(sexp: Sexp) -> bytes:
    """Return `sexp` in sexplib's machine form, without a line feed: one space between two bare atoms and none
    elsewhere.

    Raises SexpError when it nests deeper than MAX_DEPTH.
    """
    if isinstance(sexp, bytes):
        return atom(sexp)
    atoms: list[bytes] = []
    skeleton = sexpdata.dumps(_without_atoms(sexp, atoms, MAX_DEPTH))
    marks = _SKELETON.findall(skeleton)
    return joined([mark.encode() if mark in "()" else atoms[int(mark)] for mark in marks])


def _without_atoms(sexp: Sexp, atoms: list[bytes], depth: int) -> object:
    """Return the tree for sexpdata: append each atom to `atoms`, as printed, and replace it by its number
    there.
    """
    if isinstance(sexp, bytes):
        atoms.append(atom(sexp))
        return len(atoms) - 1
    if not depth:
        raise SexpError(f"lists nest deeper than {MAX_DEPTH}")
    return [_without_atoms(part, atoms, depth - 1) for part in sexp]
