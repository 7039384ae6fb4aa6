"""Each place exists that docs/ARCHITECTURE.md, "Where each term of the source texts is" names."""

import ast
import re

import pytest
from tracked import ROOT

DOCUMENT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
SECTION = DOCUMENT.partition("\n## Where each term of the source texts is\n")[2].partition("\n## ")[0]
ROWS = [tuple(row) for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", SECTION, re.MULTILINE)[1:]]
PLACES = [
    (file, name)
    for _, _, places in ROWS
    for file, names in re.findall(r"`([a-z0-9_/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", places)
    for name in re.findall(r"`([\w.]+)`", names)
]
TEXTS = {"original omq source", "terminal-driver RFC", "6-DMP", "router-message-bus"}


def defined(statements: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Return the names that these statements define, with the statements within each."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name] = statement.body
            case ast.Assign(targets=targets):
                found |= {
                    target.id: []
                    for each in targets
                    for target in ast.walk(each)
                    if isinstance(target, ast.Name)
                }
    return found


def test_the_terms_of_every_text_have_places() -> None:
    assert {text for text, _, _ in ROWS} == TEXTS
    assert len(PLACES) >= len(ROWS) >= len(TEXTS)


def test_a_term_has_one_row() -> None:
    terms = [(text, term) for text, term, _ in ROWS]
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_a_place_of_a_term_exists(file: str, name: str) -> None:
    within = ast.parse((ROOT / file).read_text()).body
    for part in name.split("."):
        names = defined(within)
        assert part in names
        within = names[part]
