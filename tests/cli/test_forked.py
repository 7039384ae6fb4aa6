"""Processes that are forked for tests."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from cli_helpers import Shell
from forked import Forked, run_forked
from measuring import unmeasured


def test_a_command_that_does_not_end_is_killed(shell: Shell) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_forked(["omq", "sub", "silent"], b"", 0.5, env=shell.environment)
    assert shell.omq("ping").returncode == 0


def test_a_forked_process_is_a_child_with_its_own_environment(tmp_path: Path) -> None:
    with unmeasured():
        pipe = subprocess.PIPE
        environment = os.environ | {"OMQ_SERVER": "omq://127.0.0.1:1"}
        with Forked[str](["omq", "ping"], stderr=pipe, text=True, env=environment, cwd=tmp_path) as process:
            _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "127.0.0.1:1" in said
        (tmp_path / "omq.toml").write_text("nonsense = 7")
        done = run_forked(["omq-server", "--check-config", "--config", "omq.toml"], text=True, cwd=tmp_path)
        assert "nonsense" in done.stderr
        with Forked[str](["omq-server", "--hash-secret"], stdin=pipe) as process:
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
