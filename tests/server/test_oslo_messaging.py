"""oslo.messaging with its unmodified AMQP 1.0 driver: calls, casts, fan-out, errors and notifications."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.mark.skipif(not PYTHON.exists(), reason="tools/test installs oslo.messaging where it can be built")
def test_the_example_of_the_guide_prints_what_it_says(tmp_path: Path) -> None:
    guide = (HERE.parents[1] / "docs" / "AMQP-1.0.md").read_text()
    code, said = re.findall(r"```\w*\n(.*?)```", guide, re.DOTALL)[3:5]
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        script = f"host, port = '127.0.0.1', {server.port}\n{code}"
        done = subprocess.run(
            [PYTHON, "-c", script], capture_output=True, text=True, timeout=110, check=False
        )
    assert done.stdout == said, done.stderr[-3000:]


@contextmanager
def oslo(port: int, what: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process with a server or a client of oslo.messaging."""
    process = subprocess.Popen(
        [PYTHON, HERE / "oslo_killed_server.py", str(port), what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.skipif(not PYTHON.exists(), reason="tools/test installs oslo.messaging where it can be built")
def test_a_server_that_is_killed_in_the_middle_of_a_call(tmp_path: Path) -> None:
    with (
        running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server,
        oslo(server.port, "serve") as first,
    ):
        assert line(first) == "serving"
        with oslo(server.port, "call") as client:
            assert line(first) == "in the middle"
            first.kill()
            # The driver accepts a call when it begins it, but perhaps that was not sent yet. If it was, the
            # client waits in vain; if not, the server tells it that the call is in doubt.
            assert line(client) in ("lost: MessagingTimeout", "lost: MessageDeliveryFailure")
            with oslo(server.port, "serve") as second:
                assert line(second) == "serving"
                assert client.stdin is not None
                client.stdin.write("again\n")
                client.stdin.flush()
                assert line(client) == "3"
