"""The mutants of a module: which small changes there are, and a random sample of them.

The operators are cosmic-ray's. Some mutants are not made, because it is known beforehand what would become of
them: those whose code does not compile or is the same program, and those in annotations and declarations that
only the type checker reads.
"""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from itertools import chain
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

DECLARATIONS = {"abstractmethod", "final", "overload", "override"}
"""Decorators that only the type checker reads."""

DECLARING_ARGUMENTS = {"frozen", "slots"}
"""Arguments of a class or its decorator that change nothing in a program that passes the type checker."""

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    module: str
    """Its path, from the root of the project."""
    line: int
    original: str
    code: str

    @property
    def diff(self) -> str:
        """The changed lines with one line around them."""
        lines = unified_diff(self.original.splitlines(), self.code.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[3:])

    @property
    def changed(self) -> tuple[str, str]:
        """The lines that the change takes away and those that it puts there, without indentation."""
        lines = list(unified_diff(self.original.splitlines(), self.code.splitlines(), lineterm="", n=0))[3:]
        before = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
        after = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
        return before, after


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A change that an operator can make."""

    module: str
    operator: str
    occurrence: int
    line: int


def sample(root: Path, modules: list[str], count: int | None, seed: int) -> Iterator[Mutant]:
    """Yield mutants of these modules, one for each of `count` places chosen at random, or for every place.

    An operator of arithmetic can be replaced by ten others, and a number only by two: were mutants chosen and
    not places, most would be of the kind that every test kills.
    """
    chance = random.Random(seed)
    places: dict[tuple[str, Position, Position], list[_Candidate]] = {}
    sources = {module: (root / module).read_text() for module in modules}
    for module, source in sources.items():
        for begin, end, candidate in _candidates(module, source):
            places.setdefault((module, begin, end), []).append(candidate)
    order = sorted(places)
    chance.shuffle(order)
    found = 0
    for place in order:
        if found == count:
            return
        candidates = places[place]
        chance.shuffle(candidates)
        for candidate in candidates:
            mutant = _made(candidate, sources[candidate.module])
            if mutant is not None:
                found += 1
                yield mutant
                break


def _candidates(module: str, source: str) -> Iterator[tuple[Position, Position, _Candidate]]:
    tree = get_ast(source)
    unseen = list(_unseen(ast.parse(source)))
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments():
            continue
        operator = kind()
        positions = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, (begin, end) in enumerate(positions):
            if not any(first <= begin and end <= last for first, last in unseen):
                yield begin, end, _Candidate(module, name, occurrence, begin[0])


def _made(candidate: _Candidate, source: str) -> Mutant | None:
    """Return the mutant; None where its code does not compile, or is the same program."""
    operator: Any = get_operator(candidate.operator)()
    code = mutate_code(source, operator, candidate.occurrence)
    if code is None:
        return None
    try:
        tree = ast.parse(code)
        compile(tree, candidate.module, "exec")
    except SyntaxError:
        return None
    if ast.dump(tree) == ast.dump(ast.parse(source)):
        return None
    return Mutant(candidate.module, candidate.line, source, code)


def _unseen(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Yield the parts of a module that only the type checker reads."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation):
                yield _span(annotation)
            case ast.AnnAssign(annotation=annotation):
                yield _span(annotation)
            case ast.arguments(vararg=None, kwonlyargs=[first, *_]):
                # The bare star before it, which makes it an argument that must be named.
                (line, column), _ = _span(first)
                before = [*node.posonlyargs, *node.args]
                yield _span(before[-1])[1] if before else (0, 0), (line, column)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.returns is not None:
                    yield _span(node.returns)
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Name) and decorator.id in DECLARATIONS:
                        (line, column), _ = _span(decorator)
                        yield (line, column - 1), (line + 1, 0)  # with its @, and the end of its line
            case ast.ClassDef() if any(_name(base) == "Protocol" for base in node.bases):
                # A protocol lists members that a class must have. Nobody calls these; one with a body is
                # inherited.
                for member in node.body:
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not _has_body(member):
                        begin = min([member.lineno, *(each.lineno for each in member.decorator_list)])
                        yield (begin, 0), _span(member)[1]
            case ast.ClassDef():
                calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
                for keyword in chain(node.keywords, *(call.keywords for call in calls)):
                    if keyword.arg in DECLARING_ARGUMENTS:
                        yield _span(keyword)
            case ast.Call(func=ast.Name("cast" | "TypeVar"), args=[first, *_]):
                yield _span(first)
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                yield _span(node)
            case ast.Assign(targets=[ast.Name(name)], value=ast.BinOp(op=ast.BitOr()) as union):
                # `Frame = Error | Ping`: a name for a type
                if name[:1].isupper() and not name.isupper():
                    yield _span(union)
            case _:
                pass


def _name(node: ast.expr) -> str:
    """Return the name of a class, without its module and the types in its brackets."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return ""


def _has_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether it does more than having a docstring or an ellipsis."""
    return not all(
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        for statement in function.body
    )


def _span(node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> tuple[Position, Position]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
