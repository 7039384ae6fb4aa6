"""The distribution: its name, what it consists of, and that it works where nothing else is installed."""

import re
import shutil
import sys
import tarfile
import tomllib
from email import message_from_bytes
from functools import partial
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from programs import output_of
from server_command import running_server
from test_readme import check_python_client, check_shell_commands
from tracked import ROOT, tracked

from omq.version import VERSION

DISTRIBUTION = "omq-server"
PACKAGES = {"omq", "omq_storage"}


def test_the_distribution_has_a_name_of_its_own() -> None:
    """`omq` and `storage` on the package index are other projects."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["project"]["name"] == DISTRIBUTION
    assert metadata.version(DISTRIBUTION) == VERSION


run = partial(output_of, seconds=200)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an sdist and of a wheel made from it. Nothing that is compiled here is used."""
    checkout = tmp_path_factory.mktemp("checkout")
    for path in tracked():
        copy = checkout / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    # The codec works without optimization, too, and is compiled in a third of the time.
    run(sys.executable, "-m", "build", "--no-isolation", checkout, CFLAGS="-O0")
    return checkout / "dist"


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (found,) = built.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


# -- what they consist of -----------------------------------------------------------------------------------


def test_the_sdist_has_every_file_and_nothing_that_is_built(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        packed = {
            name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()
        }
    generated = {name for name in packed if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    here = {str(path.relative_to(ROOT)) for path in tracked()}
    assert packed - generated == {name for name in here if not name.startswith(".ci/")}


def test_the_wheel_installs_two_packages_and_nothing_beside_them(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert {"omq/py.typed", "omq_storage/py.typed", "omq/spark/source.py"} <= set(names)
    assert not [name for name in names if name.endswith((".pyx", ".pxi", ".c"))]


def test_the_wheel_has_every_file_of_the_packages_but_what_is_compiled(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        packed = {
            name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith(".so")
        }
    here = {
        str(path.relative_to(parent))
        for parent, package in ((ROOT, "omq"), (ROOT / "storage", "omq_storage"))
        for path in tracked()
        if path.is_relative_to(parent / package) and path.suffix not in (".pyx", ".pxi")
    }
    assert packed == here


def test_a_package_index_shows_the_readme_without_links_that_lead_nowhere(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = message_from_bytes(archive.read(name))
    assert fields["Description-Content-Type"] == "text/markdown"
    text = fields.get_payload()
    assert isinstance(text, str)
    assert "\n# omq\n" in f"\n{text}"
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert "https://trio.readthedocs.io" in links
    assert [link for link in links if not link.startswith("https://")] == []
    assert "docs/PROTOCOL.md" in text


# -- that they work -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the commands of an environment with what the wheel requires, and nothing else."""
    place = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", place)
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    plain = [each for each in required if "extra ==" not in each]
    assert any(each.startswith("trio") for each in plain)
    try:
        install(place / "bin", *plain)
    except AssertionError as problem:
        pytest.skip(
            f"pip cannot get what the wheel requires, from the network: {str(problem).splitlines()[-1]}"
        )
    return place / "bin"


def install(environment: Path, *what: str | Path) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--no-input")
    run(sys.executable, "-m", "pip", "--python", environment / "python", "install", *options, *what)


def check_installed(environment: Path, codec: str, tmp_path: Path) -> None:
    """Run the examples of the README with the installed commands on an empty store."""
    command = str(environment / "omq-server")
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store", command=command) as server:
        check_shell_commands(server, environment)
        check_python_client(server, environment)
        status, _, log = server.stop()
    assert status == 0
    assert codec in log
    version = metadata.version(DISTRIBUTION)
    assert run(command, "--version") == run(environment / "omq", "--version") == f"omq {version}\n"


def test_the_wheel_works_in_an_empty_environment(wheel: Path, environment: Path, tmp_path: Path) -> None:
    install(environment, "--no-index", "--no-deps", "--force-reinstall", wheel)
    check_installed(environment, "compiled codec", tmp_path)


@pytest.mark.long
def test_the_sdist_works_without_a_compiler(sdist: Path, environment: Path, tmp_path: Path) -> None:
    build = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--wheel-dir",
        tmp_path,
    )
    run(*build, sdist, CC="false")
    (plain,) = tmp_path.glob("*.whl")
    install(environment, "--no-index", "--no-deps", "--force-reinstall", plain)
    check_installed(environment, "plain Python codec", tmp_path)


def test_no_document_names_a_foreign_package_to_install() -> None:
    texts = tracked(".md", ".py", ".toml", ".sh")
    assert len(texts) > 100
    bare = re.compile(r"install\s[^\n]*?(?<![\w./-])omq(?=\[|['\"]|\s*$)|['\"]omq\[", re.MULTILINE)
    assert bare.search("pip install 'omq[spark]'")
    assert bare.search("pip install omq\n")
    assert not bare.search("pip install 'omq-server[spark]'")
    this = Path(__file__)
    found = [str(path.relative_to(ROOT)) for path in texts if path != this and bare.search(path.read_text())]
    assert found == []


def test_no_program_says_to_install_omq_from_an_index() -> None:
    # It is on none: anybody could publish a package of that name. The documents say so.
    texts = tracked(".py", ".sh")
    assert len(texts) > 100
    advised = re.compile(r"pip install [^\n]*omq-server")
    this = Path(__file__)
    found = [
        str(path.relative_to(ROOT)) for path in texts if path != this and advised.search(path.read_text())
    ]
    assert found == []
