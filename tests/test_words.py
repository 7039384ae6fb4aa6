"""Plain technical English: no archaic words, and docstrings of functions that begin with a verb.

A docstring of a function says in the imperative what the function does: "Return the …", "Count …". Its object
is a noun: "Return the remaining messages", not "Return what is left". A docstring of a property, a class or
an attribute may be a noun, but no clause for one: "The number of …", not "How many …". It names its object
itself: "The priorities of …", not "Those of …".
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tracked import ROOT, tracked

FORBIDDEN = re.compile(
    r"\b(?:whoever|anew|so\s+many\s+(?:octets|messages)|of\s+(?:its|their)\s+own\s+accord|(?:is|are|was|were)\s+to\s+be)\b",
    re.IGNORECASE,
)
"""Say "a client that", "again", "N octets" or "N messages", name the cause of a thing, and say "must"."""

PLACES = (
    "omq",
    "storage",
    "docs",
    "tests",
    "tools",
    "deploy",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
)

OPENER = re.compile(
    r"""
    A|After|All|An|And|Another|Any|Anything|As|At|Because|Before|Both|But|By|Called|Each|
    Either|Every|Everybody|Everything|For|From|He|Here|How|However|I|If|In|It|Its|Many|More|
    Most|Much|Neither|No|Nobody|None|Not|Nothing|Of|On|Once|One|Only|Or|Other|Others|Our|
    Same|She|Since|So|Some|Somebody|Something|Such|Than|That|The|Their|Then|There|These|They|
    This|Those|To|Until|We|What|When|Whenever|Where|Wherever|Whether|Which|While|Who|Whose|
    Why|With|Within|Without|You
    """,
    re.VERBOSE,
)
"""Words that begin a noun phrase, a clause or a statement, but never an imperative."""

CLAUSE = re.compile(
    r"""
    (\"{3}|(?:\#|//|--|/?\*+)[ ])
    ((?:About|At|By|For|From|In|To)[ ](?:how|what|which|whom|where)|How|What|Where|Which|Who|Whose|Why)\b
    """,
    re.VERBOSE,
)
"""A docstring or a comment that begins with a clause in the place of a noun, or of "if"."""

LEADING = re.compile("And|As|At|By|For|From|In|It|Of|On|That|These|They|Those|To|With|Within|Without")
"""The first words of a docstring of a class, a constant or an attribute that name nothing: prepositions, and
pronouns for what the docstring before says.
"""

MARKS = ("#", "//", "--", "*")
"""The beginnings of lines of comments in Python, JavaScript and Lua."""

OBJECT = re.compile(
    r"""
    \"{3}([A-Z][a-z]+[ ](?:
        (?:(?:about|after|at|back|before|by|for|from|in|of|on|to|until|up|with)[ ])?
        (?:
            how|what|whatever|whichever|whoever|so[ ](?:much|many|often|long)\b(?![ ]that)
            |as[ ](?:much|many)[ ](?:as|of)
        )
        | (?<=Return[ ])(?:when|where|which|who|whose|why)
    ))\b
    """,
    re.VERBOSE,
)
"""A docstring that begins with a verb, and has a clause for its object."""

MODULE = re.compile(r"^    .*(?:\.py|/) +((?:what|how|which|when|where|who|whose|why)\b.*)$", re.MULTILINE)
"""A line of the list of modules in docs/ARCHITECTURE.md with a clause in the place of a noun."""

VERB = re.compile(r"[A-Z][a-z]+\b(?<![^s]s)")
"""A capitalised word that is not in the third person, as "Returns" would be."""


def texts(*endings: str) -> list[Path]:
    """Return the files below PLACES with one of these endings, except for this one, which names the words."""
    files = [file for file in tracked(*endings) if file.relative_to(ROOT).parts[0] in PLACES]
    return [file for file in files if file != Path(__file__)]


def forbidden(text: str) -> Iterator[tuple[int, str]]:
    """Yield each forbidden word with its line number."""
    for match in FORBIDDEN.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator makes the function a property, so that its docstring may be a noun."""
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and ast.unparse(node).rpartition(".")[2] in ("property", "cached_property", "setter")
        for node in function.decorator_list
    )


def not_imperative(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first word of each docstring of a function that is no verb for certain, with its line.

    The docstring of a test may state what holds.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("test_"):
            continue
        if not is_property(node):
            words = (ast.get_docstring(node) or "").split()
            if words and (OPENER.fullmatch(words[0]) or not VERB.match(words[0])):
                yield node.lineno, words[0]


def without_a_noun(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first word of each docstring of a class, a constant or an attribute that is in LEADING, with
    the line of the class or docstring.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            found = [(node.lineno, ast.get_docstring(node) or "")]
        elif isinstance(node, ast.Module | ast.FunctionDef):
            found = []
        else:
            continue
        for before, statement in pairwise(node.body):
            match statement:
                case ast.Expr(ast.Constant(str(text))) if isinstance(before, ast.Assign | ast.AnnAssign):
                    found.append((statement.lineno, text))
        for line, text in found:
            if text and LEADING.fullmatch(text.split()[0]):
                yield line, text.split()[0]


def clauses(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first words of each docstring and comment that begins with such a clause, with its line.

    The comment behind a line of a comment begins a sentence only if that line ends one.
    """
    before = ""
    for number, line in enumerate(map(str.strip, source.splitlines()), 1):
        match = CLAUSE.match(line)
        goes_on = any(line.startswith(mark) and before.startswith(mark) for mark in MARKS)
        if match and not (goes_on and not before.endswith(".")):
            yield number, match[2]
        before = line


def objects(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first words of each docstring that has a clause for its object, with its line."""
    for number, line in enumerate(source.splitlines(), 1):
        if match := OBJECT.match(line.lstrip()):
            yield number, match[1]


def test_no_text_has_a_forbidden_word() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file in texts(".py", ".pyx", ".pxi", ".md", ".js")
        for line, word in forbidden(file.read_text())
    ]
    assert found == []


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file in tracked(".py")
        for line, word in not_imperative(file.read_text())
    ]
    assert found == []


def test_docstrings_of_classes_constants_and_attributes_name_something() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file in tracked(".py")
        if file.relative_to(ROOT).parts[0] in ("omq", "storage")
        for line, word in without_a_noun(file.read_text())
    ]
    assert found == []


def test_no_docstring_or_comment_begins_with_a_clause_for_a_noun() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {words}"
        for file in tracked(".py", ".pyx", ".pxi", ".js", ".mjs", ".lua")
        if file != Path(__file__)
        for line, words in clauses(file.read_text())
    ]
    assert found == []


def test_no_docstring_has_a_clause_for_its_object() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {words}"
        for file in tracked(".py", ".pyx", ".pxi")
        for line, words in objects(file.read_text())
        if file != Path(__file__)
    ]
    assert found == []


def test_the_list_of_modules_has_nouns() -> None:
    assert MODULE.findall((ROOT / "docs" / "ARCHITECTURE.md").read_text()) == []
    assert MODULE.findall("    a.py   what it does\n    omq/a/  how\n    b.py  whatever") == [
        "what it does",
        "how",
    ]


@pytest.mark.parametrize(
    "word", ["Whoever", "anew", "so many octets", "so many\n    messages", "of their\nown accord", "is to be"]
)
def test_a_forbidden_word_is_found(word: str) -> None:
    assert list(forbidden(f"first\nsecond {word}.")) == [(2, word)]
    assert list(forbidden(f"x{word}")) == []


@pytest.mark.parametrize(
    ("opening", "found"),
    [
        ("Return the number.", []),
        ("Whether it is open.", [(1, "Whether")]),
        ("Returns the number.", [(1, "Returns")]),
        ("Pass it on.", []),
        ("`count` octets.", [(1, "`count`")]),
        ("return the number.", [(1, "return")]),
    ],
)
def test_a_docstring_without_a_verb_is_found(opening: str, found: list[tuple[int, str]]) -> None:
    assert list(not_imperative(f'def f() -> int:\n    """{opening}"""')) == found
    assert list(not_imperative(f'@property\ndef f(self) -> int:\n    """{opening}"""')) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('SECONDS = 1.0\n"""They pass."""', [(2, "They")]),
        ('class A:\n    """Of a queue."""\n    b: int\n    """That of it."""', [(1, "Of"), (4, "That")]),
        ('def f(self) -> None:\n    self.a = 1\n    """For messages."""', [(3, "For")]),
        ('"""In a module."""\nSECONDS = 1.0\n"""Seconds that pass."""', []),
    ],
)
def test_a_docstring_without_a_noun_is_found(source: str, found: list[tuple[int, str]]) -> None:
    assert list(without_a_noun(source)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""How many messages wait."""', [(1, "How")]),
        ('SECONDS = 1.0\n"""About how long a call lasts."""', [(2, "About how")]),
        ("    # What came before is done.", [(1, "What")]),
        ("# This ends.\n# Which of them", [(2, "Which")]),
        ("# This goes on, and says\n# what is written.", []),
        ("# This goes on, and says\n# What is written.", []),
        ("/**\n * What it has.\n */", [(2, "What")]),
        ("/** How many wait. */", [(1, "How")]),
        ("// What it has.", [(1, "What")]),
        ("-- This says\n-- what it has.\n-- What is left.", [(3, "What")]),
        ("factor * What", []),
        ('"""The number of messages that wait."""', []),
        ('"""Whether it is open."""', []),
    ],
)
def test_a_clause_for_a_noun_is_found(source: str, found: list[tuple[int, str]]) -> None:
    assert list(clauses(source)) == found


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        ("Send what the socket takes.", [(1, "Send what")]),
        ("Put back what was taken.", [(1, "Put back what")]),
        ("Return why it is closed.", [(1, "Return why")]),
        ("Wait until so many came.", [(1, "Wait until so many")]),
        ("Take as many as there is room for.", [(1, "Take as many as")]),
        ("Send as many octets as the socket accepts.", []),
        ("Return the reason why it is closed.", []),
        ("Return whether it is closed.", []),
        ("Connections whose client is not known.", []),
        ("None where it is not known.", []),
    ],
)
def test_a_clause_for_an_object_is_found(docstring: str, found: list[tuple[int, str]]) -> None:
    assert list(objects(f'"""{docstring}"""')) == found
