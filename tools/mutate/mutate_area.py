"""An area of the code that can be mutated, and the names of its tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Area:
    """A folder of modules, and the tests that should kill the mutants of each."""

    folder: str
    tests: tuple[str, ...]
    nearest: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tests by module (its path in the folder), which are run before the others: a mutant is dead with the
    first test that fails.
    """
    twins: frozenset[str] = frozenset()
    """The modules whose work the compiled codec does where there is one; their tests also run without it."""

    def modules(self, root: Path) -> list[str]:
        """Return its modules, as paths from the root of the project."""
        found = (root / self.folder).rglob("*.py")
        return sorted(str(path.relative_to(root)) for path in found if path.name != "__init__.py")

    def has(self, module: str) -> bool:
        """Return whether a module, given by its path, is one of this area."""
        return Path(module).is_relative_to(self.folder)

    def _name(self, module: str) -> str:
        return str(Path(module).relative_to(self.folder))

    def codecs(self, module: str) -> tuple[bool, ...]:
        """Return the codecs with which its tests must run: first the plain one (True) if this module does its
        work, then the compiled one (False).
        """
        return (True, False) if self._name(module) in self.twins else (False,)

    def nearest_to(self, module: str) -> tuple[str, ...]:
        """Return the tests nearest to this module; all of the area where none are named."""
        return self.nearest.get(self._name(module), self.tests)

    def tests_of(self, module: str) -> tuple[str, ...]:
        """Return all its tests, the nearest to this module first."""
        first = self.nearest.get(self._name(module), ())
        return (*first, *(test for test in self.tests if test not in first))


def server(*names: str) -> tuple[str, ...]:
    """Return files of tests that run a whole server."""
    return tuple(f"tests/server/test_{name}.py" for name in names)


def amqp(*names: str) -> tuple[str, ...]:
    """Return files of tests of AMQP 0-9-1."""
    return tuple(f"tests/amqp_0_9/test_{name}.py" for name in names)


DEAD_LETTERS = (
    "tests/exchanges/test_dead_letters.py",
    "tests/exchanges/test_dead_letters_on_their_way.py",
)

QUEUES = (*amqp("probe", "channels", "amqp_tools"), *DEAD_LETTERS)
"""Tests of queues and exchanges by AMQP 0-9-1."""
