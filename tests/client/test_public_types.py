"""A program can name whatever the methods of the client take and return: its type is public."""

import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import omq.blocking
import omq.client

REFERENCE = (Path(__file__).parents[2] / "docs" / "PYTHON.md").read_text()

MODULES = set(re.findall(r"automodule:: (\S+)", REFERENCE)) - {"omq.client", "omq.blocking"}
"""The modules that are public as a whole; of the other two, the names in `__all__` are."""

NAMED = {getattr(omq.client, name) for name in omq.client.__all__}
NAMED |= {getattr(omq.blocking, name) for name in omq.blocking.__all__}


def is_public(found: type) -> bool:
    return found in NAMED or found.__module__ in MODULES


def classes(annotation: object) -> Iterator[type]:
    """Yield our classes in an annotation, and those of their fields."""
    for argument in typing.get_args(annotation):
        yield from classes(argument)
    if inspect.isclass(annotation) and annotation.__module__.partition(".")[0] in ("omq", "omq_storage"):
        yield annotation
        if issubclass(annotation, msgspec.Struct):
            for hint in typing.get_type_hints(annotation).values():
                yield from classes(hint)


@pytest.mark.parametrize("client", [omq.client.Client, omq.blocking.Client], ids=lambda each: each.__module__)
def test_the_types_of_every_method_are_public(client: type) -> None:
    seen = 0
    for name, method in inspect.getmembers(client, inspect.isfunction):
        if name.startswith("_"):
            continue
        assert isinstance(method, types.FunctionType)
        hints = typing.get_type_hints(inspect.unwrap(method))
        for found in {each for hint in hints.values() for each in classes(hint)}:
            seen += 1
            assert is_public(found), f"{name} has {found.__module__}.{found.__qualname__}"
    assert seen > 20
