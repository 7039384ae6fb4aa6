"""Find the tests that run the line of a mutant, and the time that they take."""

import ast
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from mutate_mutants import Mutant

_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Survey:
    """The results of the tests without a mutant."""

    seconds: Mapping[str, float]
    """By the name of the test, of those that pass."""
    starting: frozenset[str]
    """The tests that start other processes."""
    lines: Mapping[str, Mapping[int, frozenset[str]]]
    """The tests by module and line, without the lines that other processes run."""
    failed: Sequence[str] = ()
    """The tests that fail. They tell nothing about a mutant."""

    @classmethod
    def read(cls, file: Path) -> "Survey":
        """Read the file that the plugin mutate_spy has written."""
        noted = json.loads(file.read_text())
        failed: list[str] = noted["failed"]
        return cls(
            {name: seconds for name, seconds in noted["seconds"].items() if name not in failed},
            frozenset(noted["starting"]),
            {
                module: {int(line): frozenset(names).difference(failed) for line, names in lines.items()}
                for module, lines in noted["lines"].items()
            },
            failed,
        )

    def chosen(self, mutant: Mutant, nearest: Sequence[str], most: float | None) -> list[str]:
        """Choose the tests for a mutant: those that run the changed statement, the quickest first.

        Of the nearest tests those follow that start other processes, because these may run it too. Where no
        test runs it, as with a constant of a module, all the nearest tests are chosen, again the quickest
        first. At least one is chosen, and no more than take `most` seconds together, if it is not None.
        """
        lines = self.lines.get(mutant.module, {})
        running = {name for line in _statement(mutant) for name in lines.get(line, ())}
        near = [name for name in self.seconds if any(_is_in(name, test) for test in nearest)]
        others = [name for name in near if name in self.starting] if running else near
        found = [*self._quickest_first(running), *self._quickest_first(set(others) - running)]
        if most is None:
            return found
        ends = accumulate(self.seconds[name] for name in found)
        return found[: max(1, sum(1 for end in ends if end <= most))]

    def _quickest_first(self, names: Set[str]) -> list[str]:
        return sorted(names, key=lambda name: (self.seconds[name], name))


def _is_in(name: str, test: str) -> bool:
    """Return whether a test is in this file or folder."""
    return Path(name.partition("::")[0]).is_relative_to(test)


def _statement(mutant: Mutant) -> range:
    """Return the lines of the innermost statement with the change; of a compound one those before its body.

    The first lines of a function or a class run when the module is imported: their tests are those that run
    anything of it.
    """
    found = range(mutant.line, mutant.line + 1)
    size: int | None = None
    for node in ast.walk(ast.parse(mutant.original)):
        if not isinstance(node, ast.stmt):
            continue
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        begin = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        body: list[ast.stmt] = getattr(node, "body", [])
        end = max(begin + 1, body[0].lineno) if body else (node.end_lineno or node.lineno) + 1
        if mutant.line in (lines := range(begin, end)) and (size is None or len(lines) <= size):
            size = len(lines)
            found = range(begin, (node.end_lineno or end) + 1) if isinstance(node, _DEFINITION) else lines
    return found
