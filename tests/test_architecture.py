"""Imports point down only: the layers of docs/ARCHITECTURE.md, verified from the source."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "ARCHITECTURE.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"

LAYERS = {
    "omq.cli": {
        "omq.version",
        "omq.server_address",
        "omq.watching",
        "omq.management",
        "omq.replay",
        "omq.reloading",
        "omq.systemd",
        "omq.client",
        "omq.addresses",
        "omq.counted",
        "omq.credentials",
        "omq.printable",
        "omq.units",
        "omq.server",
        "omq.listening",
        "omq.access",
        "omq.drivers",
        "omq.config",
        "omq.threads",
        "omq.protocol.omq",
        "omq.protocol.amqp",
        "omq.model",
        "omq_storage",
    },
    "omq": {"omq.client"},  # the package's own `__init__`
    "omq.server": {
        "omq.reception",
        "omq.connections",
        "omq.listening",
        "omq.overview",
        "omq.terminals.omq",
        "omq.terminals.connection",
        "omq.drivers",
        "omq.access",
        "omq.config",
        "omq.logs",
        "omq.threads",
        "omq.statistics",
        "omq.systemd",
        "omq_storage",
    },
    "omq.reception": {
        "omq.connections",
        "omq.listening",
        "omq.terminals.omq",
        "omq.terminals.dmp",
        "omq.terminals.amqp_0_9",
        "omq.terminals.amqp_1_0",
        "omq.terminals.http",
        "omq.metrics",
        "omq.terminals.connection",
        "omq.access",
        "omq.logs",
        "omq.threads",
        "omq.protocol",
    },
    "omq.connections": {
        "omq.counted",
        "omq.printable",
        "omq.model",
        "omq.terminals.connection",
        "omq.drivers",
        "omq.access",
        "omq.logs",
    },
    "omq.listening": {"omq.addresses", "omq.config", "omq.loopback", "omq.systemd"},
    "omq.statistics": {"omq.drivers", "omq.terminals.connection"},
    "omq.reloading": {"omq.config"},
    "omq.config_errors": {"omq.printable", "omq.units"},
    "omq.overview": {
        "omq.version",
        "omq.watching",
        "omq.statistics",
        "omq.terminals.connection",
        "omq.drivers",
        "omq.config",
        "omq.logs",
        "omq.model",
    },
    "omq.metrics": {
        "omq.version",
        "omq.statistics",
        "omq.terminals.connection",
        "omq.terminals.http",
        "omq.drivers",
        "omq.config",
        "omq.logs",
        "omq.threads",
        "omq.model",
        "omq.protocol.http",
        "omq_storage",
    },
    "omq.systemd": {"omq.addresses", "omq.config"},
    "omq.terminals": set(),
    "omq.terminals.omq": {
        "omq.refusal_words",
        "omq.watching",
        "omq.management",
        "omq.terminals.connection",
        "omq.drivers",
        "omq.access",
        "omq.protocol",
        "omq.protocol.omq",
        "omq.gap_reasons",
        "omq.model",
        "omq_storage",
    },
    "omq.terminals.http": {
        "omq.terminals.connection",
        "omq.drivers",
        "omq.access",
        "omq.config",
        "omq.model",
        "omq.threads",
        "omq.protocol.http",
    },
    "omq.terminals.amqp_1_0": {
        "omq.version",
        "omq.terminals.connection",
        "omq.drivers",
        "omq.access",
        "omq.config",
        "omq.logs",
        "omq.model",
        "omq.protocol.amqp",
        "omq.protocol.amqp_1_0",
        "omq_storage",
    },
    "omq.terminals.amqp_0_9": {
        "omq.version",
        "omq.terminals.connection",
        "omq.exchanges",
        "omq.drivers",
        "omq.access",
        "omq.logs",
        "omq.model",
        "omq.threads",
        "omq.protocol.amqp",
        "omq.protocol.amqp_0_9",
        "omq_storage",
    },
    "omq.terminals.dmp": {
        "omq.terminals.connection",
        "omq.drivers",
        "omq.access",
        "omq.exchanges",
        "omq.logs",
        "omq.model",
        "omq.protocol",
        "omq.protocol.amqp",
        "omq.protocol.amqp_1_0",  # what a feed shows of such a message
        "omq.protocol.dmp",
        "omq_storage",
    },
    "omq.terminals.connection": {
        "omq.addresses",
        "omq.access",
        "omq.exchanges",  # routes, for DMP and AMQP 0-9-1
        "omq.drivers",
        "omq.config",
        "omq.logs",
        "omq.model",
        "omq.protocol",
        "omq_storage",
    },
    "omq.access": {
        "omq.counted",
        "omq.refusal_words",
        "omq.watching",
        "omq.management",
        "omq.drivers",
        "omq.exchanges",
        "omq.config",
        "omq.logs",
        "omq.threads",
        "omq.model",
        "omq.protocol",  # work in steps
        "omq.protocol.amqp",
        "omq_storage",
    },
    "omq.exchanges": {
        "omq.counted",
        "omq.protocol",
        "omq.drivers",
        "omq.logs",
        "omq.threads",
        "omq.protocol.amqp",
        "omq.protocol.amqp_1_0",
        "omq_storage",
    },
    "omq.drivers": {
        "omq.counted",
        "omq.refusal_words",
        "omq.watching",
        "omq.config",
        "omq.logs",
        "omq.threads",
        "omq.gap_reasons",
        "omq.model",
        "omq.protocol.amqp",  # the stored head: priority and expiration
        "omq_storage",
    },
    "omq.gap_reasons": {"omq_storage"},
    "omq.refusal_words": set(),
    "omq.logs": {"omq.printable"},
    "omq.version": set(),
    "omq.threads": set(),
    "omq.config": {"omq.model", "omq.config_errors", "omq.counted"},
    "omq.client": {
        "omq.server_address",
        "omq.addresses",
        "omq.credentials",
        "omq.keepalive",
        "omq.loopback",
        "omq.watching",
        "omq.errors",
        "omq.management",
        "omq.protocol",
        "omq.protocol.omq",
        "omq.protocol.dmp",
        "omq.protocol.amqp",
        "omq.model",
    },
    "omq.blocking": {"omq.client", "omq.credentials", "omq.management", "omq.watching", "omq.model"},
    "omq.replay": {
        "omq.spark",
        "omq.bulk",
        "omq.counted",
        "omq.model",
        "omq.printable",
        "omq.protocol.amqp",
        "omq.protocol.dmp",
        "omq_storage",
    },
    "omq.arrow": {"omq.bulk", "omq.counted", "omq.protocol.amqp", "omq_storage"},
    "omq.spark": {
        "omq.arrow",
        "omq.bulk",
        "omq.counted",
        "omq.model",
        "omq.protocol.amqp",
        "omq.protocol.dmp",
        "omq.server_address",
    },
    "omq.bulk": {
        "omq.server_address",
        "omq.counted",
        "omq.credentials",
        "omq.errors",
        "omq.keepalive",
        "omq.loopback",
        "omq.protocol",
        "omq.protocol.omq",
        "omq.protocol.dmp",
        "omq.protocol.amqp",
        "omq.gap_reasons",
        "omq.model",
        "omq_storage",
    },
    "omq.errors": set(),
    "omq.protocol": set(),
    "omq.protocol.omq": {
        "omq.refusal_words",
        "omq.watching",
        "omq.protocol",
        "omq.management",
        "omq.model",
        "omq_storage",
    },
    "omq.protocol.dmp": {"omq.protocol", "omq.protocol.amqp", "omq.model", "omq_storage"},
    "omq.protocol.http": set(),
    "omq.protocol.amqp_0_9": {
        "omq.protocol.amqp",
        "omq.protocol.amqp_1_0",  # what a consumer gets of such a message
        "omq.model",
        "omq_storage",
    },
    "omq.protocol.amqp_1_0": {"omq.protocol.amqp", "omq_storage"},
    "omq.protocol.amqp": {"omq.protocol", "omq_storage"},
    "omq.printable": set(),
    "omq.server_address": {"omq.addresses"},
    "omq.addresses": set(),
    "omq.counted": set(),
    "omq.units": set(),
    "omq.credentials": set(),
    "omq.keepalive": set(),
    "omq.loopback": set(),
    "omq.management": set(),
    "omq.watching": {"omq.model"},
    "omq.model": set(),
    "omq_storage": set(),
}
"""The packages that each package may import, besides itself."""

LINE = "------------------------"
"""The line in the document's list below which nothing imports Trio."""

EVENT_LOOPS = {"trio", "anyio", "asyncio"}
"""The modules that no module below this line imports."""

FILES_AND_SOCKETS = {"os", "pathlib", "select", "selectors", "shutil", "socket", "socketserver", "tempfile"}
"""The modules that no module of `omq.protocol` imports: octets go in, events come out."""


def listed() -> list[str]:
    """Return the lines of the document's list of modules."""
    block = re.search(r"^    omq/cli/.*?(?=\n\n)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    return [line.removeprefix("    ") for line in block[0].splitlines()]


def drawn() -> list[Path]:
    """Return the files in the document's list of modules, as paths from the project's root."""
    files: list[Path] = []
    folder = Path()
    for text in listed():
        if match := re.match(r"[a-z_/0-9]+/(?= )", text):
            folder = Path(match[0])
        elif not text.startswith(" "):
            files += map(Path, re.findall(r"^[a-z_/]+\.py", text))
        else:
            names = re.match(r" +((?:[a-z_]+\.py(?:, )?)+)", text)
            assert names is not None, f"no file in {text!r}"
            files += [folder / name for name in names[1].split(", ")]
    return files


def drawn_packages() -> list[str]:
    """Return the dotted names of the packages in the document's list, from the top, with LINE among them.
    A module that is in no package below `omq` is one of its own.
    """
    headings = [text.split()[0] for text in listed() if not text.startswith(" ")]
    names = [re.sub(r"\.py$|/$", "", heading.removeprefix("storage/")) for heading in headings]
    return [name.replace("/", ".") for name in names]


DRAWN = drawn_packages()
WITHOUT_TRIO = set(DRAWN[DRAWN.index(LINE) :])


def modules() -> dict[str, Path]:
    """Return every module of the project by its dotted name."""
    found = {}
    for package in (ROOT / "omq", ROOT / "storage" / "omq_storage"):
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_bytes(), MODULES[name])


def imported(name: str) -> Iterator[str]:
    """Return the dotted names of all imports of a module, also in functions and for type checkers."""
    for node in ast.walk(parsed(name)):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module, names, 0):
                assert module is not None
                # `from omq import server` names a module only together.
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom():
                raise AssertionError(
                    f"{name} has a relative import in line {node.lineno}: write the whole name"
                )
            case _:
                pass


def package_of(name: str) -> str | None:
    """Return the package of a dotted name; None for a foreign module."""
    packages = [known for known in LAYERS if name == known or name.startswith(known + ".")]
    return max(packages, key=len, default=None)


def test_every_module_is_in_a_package() -> None:
    """Otherwise say in LAYERS what it may import."""
    assert [name for name in MODULES if package_of(name) in (None, "omq") and name != "omq"] == []


def may_import(own: str, other: str) -> bool:
    """Return whether modules of a package of ours may import this name."""
    target = package_of(other)
    if target is not None and target != own and target not in LAYERS[own]:
        return False
    top = other.partition(".")[0]
    if own in WITHOUT_TRIO and top in EVENT_LOOPS:
        return False
    return not own.startswith("omq.protocol") or top not in FILES_AND_SOCKETS


def test_imports_point_down_only() -> None:
    packages = {name: own for name in MODULES if (own := package_of(name)) is not None}
    wrong = [
        f"{name} imports {other}"
        for name, own in packages.items()
        for other in imported(name)
        if not may_import(own, other)
    ]
    assert wrong == []


BEHIND_SESSIONS = (
    "omq.access.clients",
    "omq.access.limits.Quota",
    "omq.access.limits.check_quota",
    "omq.drivers.broadcast",
    "omq.drivers.broadcast_channel",
    "omq.drivers.catalogue",
    "omq.drivers.competing",
    "omq.drivers.deletion",
    "omq.drivers.driver",
    "omq.drivers.factory",
    "omq.drivers.priority_queue",
    "omq.drivers.queue",
    "omq.drivers.round_robin",
    "omq.drivers.round_robin_channel",
    "omq.drivers.topic_changes",
    "omq.drivers.topics_by_name",
    "omq.drivers.writer",
    "omq.exchanges.exchanges",
    "omq.exchanges.routes.Router",
)
"""The names that only sessions may use on behalf of a client, so that no terminal decides about its rights.
"""


def test_terminals_reach_drivers_through_sessions_only() -> None:
    terminals = [name for name in MODULES if name.startswith("omq.terminals.")]
    assert len(terminals) > 20
    behind = tuple(f"{each}." for each in BEHIND_SESSIONS)
    wrong = [
        f"{name} imports {other}"
        for name in terminals
        for other in imported(name)
        if f"{other}.".startswith(behind)
    ]
    assert wrong == []


def channels() -> set[str]:
    """Return the protocol `omq.drivers.seam.Channel`, and the classes that implement it."""
    return {
        node.name
        for name in MODULES
        if name.startswith("omq.drivers.")
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Channel")
    }


def distinguished(tree: ast.AST) -> Iterator[str]:
    """Return the names of the classes that `isinstance` and class patterns of a module look for."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("isinstance"), [_, classes]) | ast.MatchClass(classes):
                for each in ast.walk(classes):
                    match each:
                        case ast.Name(name) | ast.Attribute(attr=name):
                            yield name
                        case _:
                            pass
            case _:
                pass


def test_no_module_distinguishes_the_channels_of_the_seam() -> None:
    classes = channels()
    assert {"BroadcastChannel", "Channel", "DirectChannel", "RoundRobinChannel"} <= classes
    over = [name for name in MODULES if name.startswith(("omq.access", "omq.drivers", "omq.terminals"))]
    assert len(over) > 100
    found = {name: classes.intersection(distinguished(parsed(name))) for name in over}
    assert {name: classes for name, classes in found.items() if classes} == {}


def test_each_package_imports_all_that_it_may_import() -> None:
    found: dict[str | None, set[str | None]] = {own: set() for own in LAYERS}
    for name in MODULES:
        found[package_of(name)].update(map(package_of, imported(name)))
    assert {own: unused for own, below in LAYERS.items() if (unused := below - found[own])} == {}


def test_the_document_lists_each_package_above_those_that_it_imports() -> None:
    place = {name: number for number, name in enumerate(DRAWN)}
    assert place.keys() - LAYERS.keys() == {LINE, "omq.console"}  # the console has no Python
    assert LAYERS.keys() - place.keys() == {"omq"}  # the name of all: its `__init__` offers `connect`
    assert len(place) == len(DRAWN)
    wrong = [
        f"{own} is not above {other}, which it imports"
        for own, below in LAYERS.items()
        for other in below
        if own in place and place[own] >= place[other]
    ]
    assert wrong == []


def test_the_table_of_folders_names_the_rows_that_each_row_imports_from() -> None:
    """Each row of the table in CONTRIBUTING.md imports only from rows below it."""
    rows = [
        (dotted_in(folders), set(dotted_in(imports)))
        for folders, imports in re.findall(
            r"^\| (`(?:omq|storage)\b.*) \| .* \| (.*) \|$", CONTRIBUTING.read_text(), re.MULTILINE
        )
    ]
    assert len(rows) == 11
    for number, (own, named) in enumerate(rows):
        imports = [other for name, below in LAYERS.items() if is_in(name, own) for other in below]
        below = {row[0] for row, _ in rows if any(is_in(each, row) for each in imports)} - {own[0]}
        assert (own, named) == (own, below)
        assert named <= {row[0] for row, _ in rows[number + 1 :]}


def dotted_in(cell: str) -> list[str]:
    """Return the dotted names of the packages and modules whose paths a cell of a table has."""
    paths = re.findall(r"`(\S+)`", cell)
    return [path.removeprefix("storage/").removesuffix(".py").replace("/", ".") for path in paths]


def is_in(name: str, packages: list[str]) -> bool:
    """Return whether a package or module is one of these packages, or in one."""
    return f"{name}.".startswith(tuple(f"{each}." for each in packages))


def test_no_module_is_imported_by_one_that_it_imports() -> None:
    """Within a package, too, imports form no cycle."""
    left = {name: set(imported_modules(name)) - {name} for name in MODULES}
    while left:
        lowest = [name for name, below in left.items() if not below & left.keys()]
        assert lowest, f"there is a cycle among these modules: {sorted(left)}"
        for name in lowest:
            del left[name]


def imported_modules(name: str) -> Iterator[str]:
    """Return the names of those of our modules that a module imports."""
    for other in imported(name):
        module = other if other in MODULES else other.rpartition(".")[0]
        if module in MODULES:
            yield module


@pytest.mark.parametrize(
    ("loaded", "unwanted"),
    [
        ("omq.protocol.omq.lines, omq.protocol.omq.frames, omq.protocol.handshake", "trio"),
        ("omq_storage.store", "trio omq"),
        ("omq.cli.client", "asyncio tqdm"),
        ("omq.cli.server", "email h11 importlib.metadata prometheus_client wsproto zipfile zoneinfo"),
    ],
)
def test_what_is_not_needed_is_not_loaded(loaded: str, unwanted: str) -> None:
    """Programs that read blocks must not need to load the server, and commands start quickly."""
    program = f"import sys, {loaded}; sys.exit(any(name in sys.modules for name in {unwanted.split()!r}))"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_the_packages_in_the_document_exist() -> None:
    files = drawn()
    assert len(files) > 20
    assert [str(file) for file in files if not (ROOT / file).is_file()] == []


def test_every_module_is_in_the_document_once() -> None:
    files = [str(file) for file in drawn()]
    modules = [str(path.relative_to(ROOT)) for path in MODULES.values() if path.name != "__init__.py"]
    assert sorted(files) == sorted(modules)


def test_every_package_is_in_the_document() -> None:
    packages = {str(path.parent.relative_to(ROOT)) + "/" for path in MODULES.values()} - {"omq/"}
    assert {package for package in packages if f"\n    {package} " not in DOCUMENT.read_text()} == set()
