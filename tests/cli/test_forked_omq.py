"""The process that forks commands for tests."""

import subprocess

import pytest
from cli_helpers import Shell


def test_a_command_that_does_not_end_is_killed(shell: Shell) -> None:
    assert shell.forked is not None
    with pytest.raises(subprocess.TimeoutExpired):
        shell.forked.run(["sub", "silent"], b"", shell.environment, 0.5)
    assert shell.omq("ping").returncode == 0
