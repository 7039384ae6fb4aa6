"""tools/mutate.py kills a mutant that a test detects, and reports one that no test detects."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from mutate_area import Area
from mutate_areas import AREAS

MUTATE = Path(__file__).resolve().parents[2] / "tools" / "mutate.py"

ROOT = MUTATE.parents[1]

needs_cosmic_ray = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("cosmic_ray", "coverage")),
    reason="cosmic-ray and coverage are not installed: pip install -e '.[mutate]'",
)

MODULE = '''\
"""A module, one function of which is tested."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Pair:
    first: int | None
    second: int | None


def seen(pair: Pair) -> bool:
    return pair.first == pair.second


def unseen(count: int) -> int:
    return count * 2


class Base:
    def __init_subclass__(cls, frozen: bool) -> None: ...


class Struct(Base, frozen=True): ...


class Sized(Protocol):
    """Nothing runs these methods."""

    @property
    def size(self) -> int: ...

    def grow(self, by: int = 1) -> None:
        """Become larger."""
'''

TEST = """\
import subprocess
import sys
import tomllib

from sample import Pair, seen, unseen


def test_seen() -> None:
    assert seen(Pair(1, 1)) and not seen(Pair(1, 2)) and not seen(Pair(2, 1))
    assert unseen(0) == 0


def test_processes_of_a_test_have_the_mutant_too() -> None:
    program = "from sample import Pair, seen; assert seen(Pair(None, None)) and not seen(Pair(3, 4))"
    subprocess.run([sys.executable, "-c", program], check=True)
"""


def mutate(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MUTATE), "--root", str(root), "--module", "sample.py"]
    return subprocess.run(
        [*command, "--tests", "test_sample.py", *options], capture_output=True, text=True, check=False
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "sample.py").write_text(MODULE)
    (tmp_path / "test_sample.py").write_text(TEST)
    return tmp_path


@needs_cosmic_ray
@pytest.mark.parametrize(
    "how", [pytest.param((), id="survey", marks=pytest.mark.long), pytest.param(("--nearest",), id="nearest")]
)
def test_a_detected_mutant_is_killed_and_an_undetected_one_is_reported(
    project: Path, how: tuple[str, ...]
) -> None:
    done = mutate(project, "--sample", "0", "--seed", "3", *how)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    survived = [line for line in lines if line.startswith("survived ")]
    assert {line.rpartition(" ")[2] for line in survived} == {"sample.py:18"}
    assert "-    return count * 2" in lines
    killed = [line for line in lines if line.startswith("killed ")]
    assert "sample.py:14" in {line.rpartition(" ")[2] for line in killed}
    count = len(killed) + len(survived)
    assert lines[-1].startswith(f"== these: {len(killed)} of {count} killed (")
    assert (project / "sample.py").read_text() == MODULE


@needs_cosmic_ray
def test_a_sample_is_the_same_for_the_same_seed(project: Path) -> None:
    def listed(*options: str) -> list[str]:
        done = mutate(project, "--list", *options)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("sample.py:")]

    every = listed("--sample", "0")
    assert len(every) == len(listed("--sample", "0", "--seed", "9")) > 3
    assert listed("--sample", "2", "--seed", "5") == listed("--sample", "2", "--seed", "5") != []
    # Nothing in the annotations is mutated, and no `frozen=True`.
    assert not {"sample.py:8", "sample.py:9", "sample.py:25"} & set(every)


@needs_cosmic_ray
def test_the_quickest_tests_that_run_the_change_come_first() -> None:
    from mutate_mutants import Mutant  # they import cosmic-ray
    from mutate_survey import Survey

    seconds = {"a.py::slow": 3.0, "a.py::quick": 1.0, "a.py::other": 2.0, "b.py::far": 0.5}
    unseen, constant = 18, 4
    lines = {"sample.py": {14: frozenset({"a.py::other"}), unseen: frozenset({"a.py::slow", "b.py::far"})}}
    survey = Survey(seconds, frozenset({"a.py::quick", "b.py::elsewhere"}), lines)

    def chosen(line: int, most: float | None = None) -> list[str]:
        return survey.chosen(Mutant("sample.py", line, MODULE, ""), ["a.py"], most)

    assert chosen(unseen) == ["b.py::far", "a.py::slow", "a.py::quick"]
    assert chosen(unseen - 1) == chosen(unseen)  # the definition of the same function
    assert chosen(unseen, 3.9) == ["b.py::far", "a.py::slow"]
    assert chosen(unseen, 0.1) == ["b.py::far"]
    assert chosen(constant) == ["a.py::quick", "a.py::other", "a.py::slow"]


@needs_cosmic_ray
def test_tests_that_fail_without_a_mutant_prove_nothing(project: Path) -> None:
    wrong = "\n\ndef test_wrong() -> None:\n    seen(Pair(1, 2))\n    unseen(0)\n    assert False\n"
    (project / "test_sample.py").write_text(TEST + wrong)
    done = mutate(project, "--sample", "0")
    assert done.returncode == 1
    assert "not used, because it fails without a mutant: test_sample.py::test_wrong" in done.stderr
    assert "(by test_sample.py::test_seen): sample.py:14" in done.stdout
    assert "test_wrong" not in done.stdout
    (project / "test_sample.py").write_text(TEST.partition("\n\n")[0] + wrong)
    done = mutate(project)
    assert done.returncode == 2
    assert "no test passes without a mutant" in done.stderr


@pytest.mark.parametrize("area", AREAS.values(), ids=AREAS.keys())
def test_the_modules_and_tests_of_the_areas_exist(area: Area) -> None:
    modules = area.modules(ROOT)
    assert len(modules) >= 4
    named = {f"{area.folder}/{name}" for name in (*area.nearest, *area.twins)}
    assert named - set(modules) == set()
    tests = {test for module in modules for test in area.tests_of(module)}
    assert [test for test in tests if not (ROOT / test).exists()] == []


def test_every_package_of_the_project_has_an_area() -> None:
    packages = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("omq/**/__init__.py")}
    inner = {package for package in packages if any(other.startswith(package + "/") for other in packages)}
    without = {
        package
        for package in packages - inner
        if not any(Path(package).is_relative_to(area.folder) for area in AREAS.values())
    }
    assert without == {"omq/spark", "omq/arrow"}


def test_every_change_that_no_test_can_detect_is_one_of_a_line_that_exists() -> None:
    listed = tomllib.loads((ROOT / "tools" / "mutate" / "equivalent.toml").read_text())["equivalent"]
    assert len(listed) > 100
    gone = [
        (one["module"], one["before"])
        for one in listed
        if one["before"] not in map(str.strip, (ROOT / one["module"]).read_text().splitlines())
    ]
    assert gone == []
