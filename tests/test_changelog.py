"""Fragments of the changelog are well named, and become the text of the next version."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FRAGMENTS = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "README.md")


def test_every_fragment_has_a_name_that_towncrier_reads() -> None:
    named = re.compile(r"\+[a-z0-9-]+\.(added|changed|fixed|removed)\.md")
    assert [path.name for path in FRAGMENTS if not named.fullmatch(path.name)] == []


def test_every_fragment_is_in_the_next_version() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "99.0"]
    made = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    written = " ".join(made.split())
    assert "## 99.0" in written
    missing = [path.name for path in FRAGMENTS if " ".join(path.read_text().split()) not in written]
    assert missing == []
