"""The progress bars of commands, which only a terminal shows."""

from pathlib import Path

import pytest
from cli_helpers import Shell, on_a_terminal


@pytest.mark.parametrize("how", ["--file", "--lines"])
def test_a_terminal_shows_how_much_of_a_file_is_published(shell: Shell, tmp_path: Path, how: str) -> None:
    (tmp_path / "file").write_bytes(b"x" * 99_999 + b"\n")
    published = ("pub", how[2:], how, str(tmp_path / "file"))
    assert b"100%" in on_a_terminal(shell, *published, stream="stderr")
    assert shell.omq(*published).stderr == b""
