"""Sexps by themselves: what is read and printed, the limits, and how time grows with a line."""

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from measuring import seconds, takes_linear_time

from omq.protocol.omq.atoms import atom, unquote
from omq.protocol.omq.commands import CommandError, parse
from omq.protocol.omq.sexp import MAX_DEPTH, Sexp, SexpError, read, write

# -- another reader, one octet after the other, to compare with ---------------------------------------------

BLANK = b" \t\f\n"
ENDS_ATOM = BLANK + b'\r"();'
LETTERS = {b"n": b"\n", b"t": b"\t", b"b": b"\b", b"r": b"\r", b"\r": b"\r"} | {
    c: c for c in (b"\\", b'"', b"'")
}


class Refusal(Exception):
    """The other parser's exception for a text that is not one sexp."""


class Reader:
    """A slow, recursive parser that follows the written rules closely."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.position = 0

    def at(self, octets: bytes) -> bool:
        return self.text.startswith(octets, self.position)

    def next(self) -> bytes:
        """Return the next octet, which is taken; nothing at the end."""
        self.position += 1
        return self.text[self.position - 1 : self.position]

    def ended(self) -> bool:
        return self.position >= len(self.text)

    def skip_blanks(self) -> None:
        while not self.ended():
            if self.text[self.position] in BLANK:
                self.position += 1
            elif self.at(b"\r"):
                self.position += 1
                if not (self.ended() or self.at(b"\n")):
                    raise Refusal
            elif self.at(b";"):
                while not (self.ended() or self.at(b"\r") or self.at(b"\n")):
                    self.position += 1
            elif self.at(b"#|"):
                self.skip_comment()
            else:
                return

    def skip_comment(self) -> None:
        depth = 0
        while True:
            if self.ended():
                raise Refusal
            if self.at(b"#|"):
                depth += 1
                self.position += 2
            elif self.at(b"|#"):
                depth -= 1
                self.position += 2
                if not depth:
                    return
            elif self.at(b'"'):
                self.string()
            else:
                self.position += 1

    def several(self) -> list[Sexp]:
        """Return the sexps up to the end, or up to a closing parenthesis."""
        found: list[Sexp] = []
        while True:
            self.skip_blanks()
            if self.ended() or self.at(b")"):
                return found
            if self.at(b"#;"):
                self.position += 2
                self.hidden()
            else:
                found.append(self.one())

    def hidden(self) -> None:
        """Skip the sexp that `#;` hides; another `#;` before it hides one more."""
        self.skip_blanks()
        if self.at(b"#;"):
            self.position += 2
            self.hidden()
            self.hidden()
        else:
            self.one()

    def one(self) -> Sexp:
        if self.ended() or self.at(b")"):
            raise Refusal
        if self.at(b"("):
            self.position += 1
            parts = self.several()
            if self.next() != b")":
                raise Refusal
            return parts
        return self.string() if self.at(b'"') else self.bare()

    def bare(self) -> bytes:
        start = self.position
        while not self.ended() and self.text[self.position] not in ENDS_ATOM:
            self.position += 1
        found = self.text[start : self.position]
        if b"#|" in found or b"|#" in found:
            raise Refusal
        return found

    def string(self) -> bytes:
        self.position += 1
        found = b""
        while (octet := self.next()) != b'"':
            if not octet:
                raise Refusal
            found += self.escape() if octet == b"\\" else octet
        return found

    def escape(self) -> bytes:
        octet = self.next()
        if octet.isdigit():
            digits = octet + self.next() + self.next()
            if len(digits) != 3 or not digits.isdigit() or int(digits) > 255:
                raise Refusal
            return bytes((int(digits),))
        if octet == b"x":
            digits = self.next() + self.next()
            if len(digits) != 2 or digits.strip(b"0123456789abcdefABCDEF"):
                raise Refusal
            return bytes((int(digits, 16),))
        if octet == b"\n" or (octet == b"\r" and self.at(b"\n")):
            if octet == b"\r":
                self.position += 1
            while self.at(b" ") or self.at(b"\t"):
                self.position += 1
            return b""
        return LETTERS.get(octet, b"\\" + octet)


def read_slowly(text: bytes) -> Sexp | None:
    reader = Reader(text)
    found = reader.several()
    if not reader.ended() or len(found) > 1:
        raise Refusal
    return found[0] if found else None


def write_slowly(sexp: Sexp) -> bytes:
    if isinstance(sexp, bytes):
        return atom(sexp)
    written = b""
    after_bare = False
    for part in sexp:
        piece = write_slowly(part)
        bare = piece[:1] not in (b"(", b'"')
        written += b" " + piece if bare and after_bare else piece
        after_bare = bare
    return b"(" + written + b")"


PIECES = [
    b"(", b")", b"()", b"#;", b"#|", b"|#", b"#", b"|", b";", b'"', b"\\", b"\\\\", b'\\"', b"\\n", b"\\q",
    b"\\065",
    b"\\255", b"\\256", b"\\06", b"\\x41", b"\\xfG", b"\\\r", b"\\\n  ", b"\\\r\n\t", b"a", b"bc", b"0",
    b"'", b",",
    b" ", b"  ", b"\t", b"\f", b"\v", b"\r", b"\n", b"\r\n", b"\0", b"\x7f", b"\xc3\xa9", b"\xff",
]  # fmt: skip

texts = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join),
    # Within a string and within a comment there is more to find than chance comes to.
    st.lists(st.sampled_from(PIECES), max_size=8).map(lambda pieces: b'(a "' + b"".join(pieces) + b'" b)'),
    st.lists(st.sampled_from(PIECES), max_size=8).map(lambda pieces: b"(a #|" + b"".join(pieces) + b"|# b)"),
    st.binary(max_size=30),
)
atoms = st.one_of(st.binary(max_size=12), st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join))
trees: st.SearchStrategy[Sexp] = st.recursive(atoms, lambda parts: st.lists(parts, max_size=4), max_leaves=12)


# -- reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sexp"),
    [
        (b"a", b"a"),
        (b'""', b""),
        (b"()", []),
        (b"(())", [[]]),
        (b'(a"b"c)', [b"a", b"b", b"c"]),
        (b"(a(b)c)", [b"a", [b"b"], b"c"]),
        (b"(\0 \v ' , [ ] \\ \\n \xff)", [b"\0", b"\v", b"'", b",", b"[", b"]", b"\\", b"\\n", b"\xff"]),
        (b"(nil t 1.50 007 -0)", [b"nil", b"t", b"1.50", b"007", b"-0"]),
        (b"(a#b a|b # |)", [b"a#b", b"a|b", b"#", b"|"]),
        (b"(a #;b c)", [b"a", b"c"]),
        (b"(a #;#;b c d)", [b"a", b"d"]),
        (b"(a #;(b (c #;d)) e)", [b"a", b"e"]),
        (b"(a#;b\n)", [b"a#"]),
        (b'(a #|b "|#" #| ( |# |# c)', [b"a", b"c"]),
        (b"(a #||# c)", [b"a", b"c"]),
        (b"(a ;b)\n c)", [b"a", b"c"]),
        (b"a\r", b"a"),
        (b"(a\r\nb)", [b"a", b"b"]),
        (b"a ; b\r", b"a"),
        (b"#;a b", b"b"),
        (b"b #;a", b"b"),
    ],
)
def test_valid_texts_are_parsed(text: bytes, sexp: Sexp) -> None:
    assert read(text) == sexp


@pytest.mark.parametrize(
    ("written", "octets"),
    [
        (b"", b""),
        (b"\\000\\065\\255", b"\0A\xff"),
        (b"\\x00\\x4a\\xFf", b"\0J\xff"),
        (b"\\n\\t\\b\\r\\\\\\\"\\'", b"\n\t\b\r\\\"'"),
        (b"\\q\\ \\a\\f\\v\\(", b"\\q\\ \\a\\f\\v\\("),
        (b"\\\\n\\\\065", b"\\n\\065"),
        (b"a\\\n   b", b"ab"),
        (b"a\\\r\n \tb", b"ab"),
        (b"a\\\rb", b"a\rb"),
        (b"#| |# ; ()\xff\0", b"#| |# ; ()\xff\0"),
    ],
)
def test_escapes_of_a_quoted_atom_are_resolved(written: bytes, octets: bytes) -> None:
    assert unquote(b'"' + written + b'"') == octets
    assert read(b'"' + written + b'"') == octets


@pytest.mark.parametrize(
    "text",
    [
        b"(", b")", b"(a", b"a)", b"a b", b"()()", b'"', b'"a', b'"a\\"', b"#;", b"(#;)", b"#; #;a",
        b"(a #;#;b)",
        b"#|", b"|#", b"a |#", b"#| #| |#", b"a#|b|#", b"a|#", b'#| " |#', b'#| "\\256" |#', b'"\\256"',
        b'"\\1"',
        b'"\\12x"', b'"\\x4"', b'"\\xg0"', b"\ra", b"a\rb", b"(a\r)", b"; c\ra", b'"\\',
    ],
)  # fmt: skip
def test_invalid_texts_are_refused(text: bytes) -> None:
    with pytest.raises(SexpError):
        read(text)


@pytest.mark.parametrize(
    "text", [b"", b" ", b"\t\f", b"\r", b"\n", b"; a", b"#|a|#", b"#;a", b"#;(a b) #;c", b' #| " |# " |# ;']
)
def test_blanks_and_comments_alone_are_no_sexp(text: bytes) -> None:
    assert read(text) is None


@settings(max_examples=600)
@given(texts)
@example(b'(a #|"|#"|# b)')
@example(b"(a #|#|#|# b)")
def test_any_text_is_read_as_the_rules_say(text: bytes) -> None:
    try:
        expected = read_slowly(text)
    except Refusal:
        with pytest.raises(SexpError):
            read(text)
    else:
        assert read(text) == expected


# -- writing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("octets", "written"),
    [
        (b"a", b"a"),
        (b"", b'""'),
        (b" ", b'" "'),
        (b"a#b|c", b"a#b|c"),
        (b"#", b"#"),
        (b"#;", b'"#;"'),
        (b"a#|", b'"a#|"'),
        (b"|#a", b'"|#a"'),
        (b"'[,]", b"'[,]"),
        (b"~!", b"~!"),
        (b"\x7f", b'"\\127"'),
        (b"\xc3\xa9", b'"\\195\\169"'),
        (b"\0\x01\x1f", b'"\\000\\001\\031"'),
        (b"\n\t\r\b\v\f", b'"\\n\\t\\r\\b\\011\\012"'),
        (b'"\\', b'"\\"\\\\"'),
        (b"(", b'"("'),
        (b")", b'")"'),
        (b";", b'";"'),
    ],
)
def test_atoms_are_printed_with_quotes_where_needed(octets: bytes, written: bytes) -> None:
    assert atom(octets) == written


@given(trees)
def test_a_sexp_is_written_as_sexplib_does_and_read_back(tree: Sexp) -> None:
    written = write(tree)
    assert written == write_slowly(tree)
    assert all(0x20 <= octet < 0x7F for octet in written)
    assert read(written) == tree


@given(atoms)
def test_an_atom_has_quotes_only_when_it_needs_them(octets: bytes) -> None:
    bare = bool(octets) and not any(octet <= 0x20 or octet >= 0x7F or octet in b'"();\\' for octet in octets)
    bare = bare and b"#|" not in octets and b"|#" not in octets
    assert (atom(octets) == octets) == bare


# -- limits -------------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    return b"(" * depth + b")" * depth


def test_lists_nest_as_deep_as_allowed_and_no_deeper() -> None:
    tree: Sexp = []
    for _ in range(MAX_DEPTH - 1):
        tree = [tree]
    assert read(nested(MAX_DEPTH)) == tree
    assert write(tree) == nested(MAX_DEPTH)
    with pytest.raises(SexpError, match="deeper"):
        read(nested(MAX_DEPTH + 1))
    with pytest.raises(SexpError, match="deeper"):
        write([tree])
    assert read(nested(3), max_depth=3) == [[[]]]
    with pytest.raises(SexpError, match="deeper than 3"):
        read(nested(4), max_depth=3)


def test_atoms_and_parentheses_outside_of_comments_count() -> None:
    text = b'(a #;(b c d) "e" #| f g |# (h)) ; i'
    assert read(text, max_tokens=7) == [b"a", b"e", [b"h"]]
    with pytest.raises(SexpError, match="more than 6"):
        read(text, max_tokens=6)


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_any_depth_is_refused_in_lists_and_good_in_comments(depth: int) -> None:
    for text in (nested(depth), b"(" * depth, b")" * depth, b"#;" * depth, b"#|" * depth):
        with pytest.raises(SexpError):
            read(text)
    assert read(b"(a #;" + nested(depth) + b")") == [b"a"]
    assert read(b"(a " + b"#|" * depth + b"|#" * depth + b")") == [b"a"]
    assert read(b"(a " + b"#;" * depth + b"() " * depth + b")") == [b"a"]
    assert read(b"(a " + b"#;(" * depth + b")" * depth + b")") == [b"a"]


# -- time ---------------------------------------------------------------------------------------------------

MIB = 1 << 20
MIB_SECONDS = 3.0
"""Much more than any line of a MiB takes, and much less than a parser with quadratic time needs."""


def parse_anything(line: bytes) -> None:
    try:
        parse(line)
    except CommandError:
        pass


@pytest.mark.parametrize(
    "head", [b"", b"(Unsubscribe ", b'"', b"#|"], ids=["alone", "in_a_list", "in_quotes", "in_a_comment"]
)
@pytest.mark.parametrize(
    "piece",
    [
        b"(", b")", b"()", b"#;", b"#|", b"|#", b"#||#", b"#|#", b"#;()", b"#;a ", b'"', b"\\", b'"\\120',
        b"\\120",
        b"\\x41", b"a", b"a ", b" ", b"\t", b"\r", b";", b"#", b"|", b"#|a|#", b'#|"', b'#|""|#',
        b'a "b" ', b"#a",
        b"a|", b"\\ ", b"\xff", b"\0",
    ],
)  # fmt: skip
def test_time_grows_as_the_line_does(head: bytes, piece: bytes) -> None:
    line = head + piece * (MIB // len(piece))
    assert takes_linear_time(lambda length: parse_anything(line[:length]), MIB // 128)
    assert seconds(lambda: parse_anything(line)) < MIB_SECONDS


@pytest.mark.parametrize("piece", [b"\\120", b"\\n", b"\\\\", b"\\q", b'\\"', b"a"])
def test_a_long_quoted_atom_takes_no_longer_than_its_length(piece: bytes) -> None:
    content = piece * (MIB // len(piece))
    assert seconds(lambda: parse(b'(Unsubscribe "' + content + b'")')) < MIB_SECONDS


def test_a_number_of_many_digits_takes_no_longer_than_its_length() -> None:
    for digits in (b"0" * MIB + b"7", b"7" * MIB, b"0x" + b"f" * MIB, b"0b" + b"0_" * (MIB // 2) + b"1"):
        assert seconds(partial(parse_anything, b"(Confirm " + digits + b")")) < MIB_SECONDS


@pytest.mark.parametrize(
    "line",
    [b"(Confirm 1" + b"_" * MIB + b")", b"(Ack 2013-08-07T10:01:02." + b"_" * MIB + b"Z)"],
    ids=["integer", "time"],
)
def test_underscores_are_not_removed_one_by_one(line: bytes) -> None:
    assert seconds(lambda: parse(line), 3) < seconds(lambda: line.replace(b"_", b""), 3)
