"""CONTRIBUTING.md names files and definitions that exist. A commit passes the checks of style and types of
tools/test.
"""

import ast
import re

import pytest
from tracked import ROOT, tracked

DOCUMENT = (ROOT / "CONTRIBUTING.md").read_text()
FILES = {str(path.relative_to(ROOT)) for path in tracked()}
FOLDERS = {str(parent) for path in tracked() for parent in path.relative_to(ROOT).parents}
QUOTED = re.findall(r"`([^`\n]+)`", DOCUMENT)
PATHS = sorted(
    {each for each in QUOTED if re.fullmatch(r"(?:omq|storage|tests|tools|docs|changes)/[\w/.-]+", each)}
)
STEPS = DOCUMENT.partition("## Add a terminal in ten steps\n")[2].partition("\n## ")[0]
NAMES = sorted(set(re.findall(r"`([A-Za-z_]\w+(?:\.[a-z_]\w+)?)`", STEPS)))

COMMAND = re.compile(r'(?:"\$python"|\.venv/bin/python) -m ((?:ruff|mypy)\b.*)')
MYPYPATH = re.compile(r"MYPYPATH=(\S+)")


def defined() -> set[str]:
    """Return the names of classes, functions, methods and attributes in the server: of members also with the
    names of their classes.
    """
    names = set()
    for path in tracked(".py"):
        if not path.is_relative_to(ROOT / "omq"):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            match node:
                case ast.ClassDef(name, body=body):
                    names.add(name)
                    for member in body:
                        match member:
                            case (
                                ast.FunctionDef(own)
                                | ast.AsyncFunctionDef(own)
                                | ast.AnnAssign(target=ast.Name(own))
                            ):
                                names |= {own, f"{name}.{own}"}
                            case _:
                                pass
                case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                    names.add(name)
                case _:
                    pass
    return names


@pytest.mark.parametrize("path", [each for each in PATHS if "NAME" not in each])
def test_a_path_in_the_document_exists(path: str) -> None:
    assert path.rstrip("/") in FILES | FOLDERS


def test_the_steps_to_a_terminal_name_what_exists() -> None:
    assert len(re.findall(r"^[0-9]+\. ", STEPS, re.MULTILINE)) == 10
    assert "Session.offer" in NAMES
    assert set(NAMES) <= defined()


def checks(text: str) -> list[str]:
    """Return the commands of ruff and mypy in a text, without the files to check: pre-commit adds those."""
    return sorted(
        " ".join(word for word in command.split() if word != "." and not word.startswith("tools/"))
        for command in COMMAND.findall(text)
    )


def test_a_commit_passes_the_checks_of_style_and_types() -> None:
    everything = (ROOT / "tools" / "test").read_text()
    before = (ROOT / ".pre-commit-config.yaml").read_text()
    assert len(checks(everything)) == 5
    assert checks(before) == checks(everything)
    (folders,) = MYPYPATH.findall(everything)
    assert MYPYPATH.findall(before) == [folders.replace("$tools", "tools")]
