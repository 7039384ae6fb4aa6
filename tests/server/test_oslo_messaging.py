"""oslo.messaging with its unmodified AMQP 1.0 driver: calls, casts, fan-out, errors and notifications."""

import os
import subprocess
from pathlib import Path

import pytest
from server_command import running_server

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("OSLO_PYTHON", HERE.parents[1] / ".venv" / "oslo" / "bin" / "python"))

SAID = """\
called
failed as it should
cast
fanned out
called by name
nobody answered
notified
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="tools/test installs oslo.messaging where it can be built")
@pytest.mark.parametrize("addresses", ["routable", "legacy"])
def test_oslo_messaging(tmp_path: Path, addresses: str) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        done = subprocess.run(
            [PYTHON, HERE / "oslo_conversation.py", str(server.port), addresses],
            capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
    assert done.stdout == SAID, done.stderr[-3000:]
