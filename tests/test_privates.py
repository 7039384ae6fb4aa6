"""Tests use no private names: what begins with an underscore belongs to its own module, and may change.

An object may use its own (`self._x`, `cls._x`). Everything else has a public way: `statistics()`, what a
client sees, a file.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

FILES = sorted(TESTS.rglob("*.py"))

BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}
"""Functions, and methods of `monkeypatch`, that take the name of an attribute."""

NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}
"""The methods of named tuples that Python documents: they begin with an underscore, so that no field has the
same name.
"""

CODEC = "omq_storage._codec"
"""The compiled codec, a private module: tests compare it with its twin, and hide it to have the twin used."""


def is_private(name: str) -> bool:
    last = name.rpartition(".")[2]
    if last in NAMED_TUPLE or name == CODEC:
        return False
    return last.startswith("_") and not (last.startswith("__") and last.endswith("__"))


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def reaches(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each use of a private name of another object."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value, name) if is_private(name) and not is_own(value):
                yield node.lineno, ast.unparse(node)
            case ast.MatchClass(kwd_attrs=names):
                yield from ((node.lineno, name) for name in names if is_private(name))
            case ast.Import(names):
                yield from ((node.lineno, each.name) for each in names if is_private(each.name))
            case ast.ImportFrom(module, names):
                imported = [module or "", *(each.name for each in names)]
                yield from ((node.lineno, name) for name in imported if is_private(name))
            case ast.Call(func, arguments) if ast.unparse(func).rpartition(".")[2] in BY_NAME:
                for argument in arguments:
                    match argument:
                        case ast.Constant(str(name)) if is_private(name):
                            yield node.lineno, name


def test_no_test_uses_a_private_name() -> None:
    assert len(FILES) > 100
    found = {str(path.relative_to(TESTS)): list(reaches(path.read_text())) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "server._terminals",
        "server.catalogue._store.catalogue",
        "del one()._x",
        "match one:\n    case Two(_three=four):\n        pass",
        "import omq._private",
        "from omq.server import _open",
        "from omq._private import open",
        "getattr(server, '_terminals')",
        "monkeypatch.setattr('omq_storage.catalogue._IDS', 2)",
    ],
)
def test_each_way_to_a_private_name_is_found(source: str) -> None:
    assert list(reaches(source))


@pytest.mark.parametrize("source", ["self._x = 1", "cls._x", "one.__dict__", "getattr(one, 'two')", "_x = 1"])
def test_other_names_are_left_alone(source: str) -> None:
    assert not list(reaches(source))
