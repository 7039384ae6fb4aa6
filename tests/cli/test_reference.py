"""Completions and manual pages: they say what `--help` says, and their programs can read them."""

import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from forked import run_forked

from omq.cli import command_line, server
from omq.cli.client import ACTIONS

OMQ = Path(sys.executable).with_name("omq")

PROGRAMS = ("omq", "omq-server")


def run(*words: str | Path, given: str | None = None) -> str:
    """Run a command that must succeed and say nothing on standard error; return its output."""
    if Path(words[0]).name in PROGRAMS:
        done = run_forked(words, given, text=True)
    else:
        done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def complete(script: str, *words: str) -> set[str]:
    """Return the completions that bash offers for the last of these words."""
    (function,) = re.findall(r"^complete (?:-o \w+ )*-F (\w+) ", script, re.MULTILINE)
    typed = " ".join(f"'{word}'" for word in words)
    return set(
        run(
            "bash",
            "-c",
            f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}\n{function}\n"
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ).split()
    )


def test_bash_completes_commands_verbs_options_and_their_values(tmp_path: Path) -> None:
    script = run(OMQ, "completion", "bash")
    assert {"declare", "delete"} <= complete(script, "omq", "de")
    assert complete(script, "omq", "store", "re") == {"repair"}
    assert complete(script, "omq", "declare", "--pers") == {"--persistence"}
    assert complete(script, "omq", "declare", "--persistence", "s") == {"strong"}
    server = run(OMQ, "completion", "bash", "omq-server")
    assert complete(server, "omq-server", "--check") == {"--check-config"}


@pytest.mark.parametrize(("shell", "beginning"), [("zsh", "#compdef {}"), ("fish", "complete -c {} ")])
@pytest.mark.parametrize("program", PROGRAMS)
def test_other_shells_get_a_script_of_their_own(
    shell: str, beginning: str, program: str, tmp_path: Path
) -> None:
    script = run(OMQ, "completion", shell, program)
    assert beginning.format(program) in script
    assert "help" in script
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(script)
        run(shell, "-n", tmp_path / "script")


def unexplained(told: str) -> list[str]:
    """Return the arguments and options of a help that have no text beside them or below them."""
    lines = told.partition("\n\n")[2].splitlines()
    return [
        line
        for line, after in pairwise([*lines, ""])
        if re.fullmatch(r"  \S.*", line) and not re.search(r"\S  +\S", line) and not after.startswith(" " * 4)
    ]


def test_every_argument_is_explained() -> None:
    for made in (command_line.parser(ACTIONS), server.parser()):
        for each in command_line.every_parser(made):
            told = each.format_help()
            arguments = re.findall(r"(?:arguments|options):\n(?:  .*\n)+", told)
            assert [line for part in arguments for line in unexplained("\n\n" + part)] == [], each.prog
            assert re.findall(r"^  \{.*", told, re.MULTILINE) == [], each.prog


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_manual_page_has_all_that_the_help_has(program: str) -> None:
    page = run(OMQ, "man", program)
    section = {"omq": 1, "omq-server": 8}[program]
    assert page.startswith(f'.TH {program.upper()} {section} "" "omq ')
    plain = page.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
    told = run(OMQ.with_name(program), "--help")
    words = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", told)) | set(
        re.findall(r"^    (\w+)  ", told, re.MULTILINE)
    )
    assert len(words) > 5
    assert {word for word in words if word not in plain} == set()
    if program == "omq":
        for command in ("omq pub", "omq store backup", "omq queues list", "omq completion"):
            assert f"\n.SS {command}\n" in plain
            options = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", run(OMQ, *command.split()[1:], "--help")))
            assert options <= set(re.findall(r"--[a-z][a-z-]+", plain)), command


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("program", PROGRAMS)
def test_groff_has_no_complaint_about_a_manual_page(program: str) -> None:
    run("groff", "-man", "-ww", "-z", "-", given=run(OMQ, "man", program))


def test_unknown_pages_and_completions_are_refused() -> None:
    for words in (("man", "ls"), ("completion", "csh"), ("completion",)):
        done = run_forked([OMQ, *words], text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert "omq" in done.stderr.splitlines()[-1]


def test_a_reader_that_has_enough_may_stop() -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{OMQ} man | head -c 1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, ".", "")


def test_a_full_disk_is_told_in_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = run_forked([OMQ, "man"], stdout=full, text=True)
    assert (done.returncode, done.stderr) == (1, "omq: standard output: No space left on device\n")
