"""The distribution: its name, what it installs, and what the documents tell users to install."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
DISTRIBUTION = "omq-server"
PACKAGES = {"omq", "omq_storage"}


def test_the_distribution_has_a_name_of_its_own() -> None:
    """`omq` and `storage` on the package index are other projects."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["project"]["name"] == DISTRIBUTION
    assert metadata.version(DISTRIBUTION) == declared["project"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from the files that git tracks, without the compiled codec of this checkout."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "omq", "storage"):
        subprocess.run(["cp", "-r", ROOT / name, copy / name], check=True)
    for built in copy.glob("storage/omq_storage/*.so"):
        built.unlink()
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        copy / "dist",
        copy,
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (found,) = (copy / "dist").glob("*.whl")
    return found


def test_the_wheel_installs_two_packages_and_nothing_beside_them(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert {"omq/py.typed", "omq_storage/py.typed", "omq/spark/source.py"} <= set(names)


def test_the_wheel_has_every_module(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(".py")}
    here = {
        str(path.relative_to(parent))
        for parent, package in ((ROOT, "omq"), (ROOT / "storage", "omq_storage"))
        for path in (parent / package).rglob("*.py")
    }
    assert packed == here


def test_no_document_names_a_foreign_package_to_install() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    texts = [
        ROOT / name for name in listed.stdout.split("\0") if name.endswith((".md", ".py", ".toml", ".sh"))
    ]
    assert len(texts) > 100
    bare = re.compile(r"install\s[^\n]*?(?<![\w./-])omq(?=\[|['\"]|\s*$)|['\"]omq\[", re.MULTILINE)
    assert bare.search("pip install 'omq[spark]'")
    assert bare.search("pip install omq\n")
    assert not bare.search("pip install 'omq-server[spark]'")
    this = Path(__file__)
    found = [str(path.relative_to(ROOT)) for path in texts if path != this and bare.search(path.read_text())]
    assert found == []
