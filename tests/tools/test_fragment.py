"""A commit that changes the program has a fragment of the changelog, or says that it needs none."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tracked import ROOT

IDENTITY = ("-c", "user.name=omq", "-c", "user.email=omq@example.org")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository whose commits the hook of this project checks."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "fragment.py", tmp_path / "tools")
    hook = tmp_path / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\nexec {sys.executable} tools/fragment.py "$1"\n')
    hook.chmod(0o755)
    return tmp_path


def committed(repository: Path, message: str, *names: str) -> tuple[bool, str]:
    """Commit new files with these names. Return whether git made the commit, and what the hook printed."""
    for name in names:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("new\n")
    subprocess.run(["git", "add", *names], cwd=repository, check=True)
    made = subprocess.run(
        ["git", *IDENTITY, "commit", "-q", "-m", message],
        cwd=repository, check=False, capture_output=True, text=True,
    )  # fmt: skip
    return made.returncode == 0, made.stderr


@pytest.mark.parametrize("program", ["omq/new.py", "storage/omq_storage/new.pyx"])
def test_a_commit_of_the_program_without_a_fragment_is_refused(repository: Path, program: str) -> None:
    was_made, printed = committed(repository, "Change it", program)
    assert not was_made
    assert "has no fragment of the changelog" in printed
    assert committed(repository, "Change it", "changes/+new.added.md")[0]


def test_a_commit_that_users_do_not_notice_says_so(repository: Path) -> None:
    assert committed(repository, "Split it\n\nIt was long.\n\nChangelog: none", "omq/new.py") == (True, "")


def test_other_commits_need_no_fragment(repository: Path) -> None:
    assert committed(repository, "Test it", "tests/test_new.py", "docs/PROTOCOL.md") == (True, "")


def test_the_hook_is_installed_with_the_others() -> None:
    configured = (ROOT / ".pre-commit-config.yaml").read_text()
    assert "entry: .venv/bin/python tools/fragment.py\n" in configured
    assert "default_install_hook_types: [pre-commit, commit-msg]\n" in configured
    checked = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-config"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
