"""The exit status of `omq-server`."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from server_command import COMMAND, READY, running_server

from omq_storage.store import FORMAT_FILE

PROGRAM = """
import os
from omq_storage.database import Database
from omq_storage.errors import StoreError
from omq.cli.server import main

sync = Database.sync

def refuse_later(self):
    if os.path.exists("broken"):
        raise StoreError("The disk is broken.")
    sync(self)

Database.sync = refuse_later
main()
"""


def test_a_disk_that_refused_to_sync_is_a_failure_while_running(tmp_path: Path) -> None:
    config = tmp_path / "omq.toml"
    config.write_text("weak_flush_seconds = 0.1\n")
    store = str(tmp_path / "store")
    options = ["--listen", "127.0.0.1:0", "--store", store, "--config", str(config)]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().removeprefix(READY).rpartition(":")[2])
            (tmp_path / "broken").touch()
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(bytes(7) + b"\1(Connect 1 test)\n(Declare t Broadcast (Persistent Weak))\n")
                refused = b""
                number = 0
                while b"the store failed" not in refused:
                    number += 1
                    client.sendall(b"(Publish t x)\n(Confirm %d)\n" % number)
                    data = client.recv(65536)
                    assert data
                    refused += data
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
            assert process.returncode == 1
            assert "the stores could not be closed as they should: The disk refused" in log
            assert "Traceback" not in log
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_start_at_once(tmp_path: Path, number: signal.Signals) -> None:
    store = tmp_path / "store"
    store.mkdir()
    os.mkfifo(store / FORMAT_FILE)
    with subprocess.Popen(
        [COMMAND, "--listen", "127.0.0.1:0", "--store", store],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            # As soon as the server reads this end is open, too; then it waits for the content.
            with (store / FORMAT_FILE).open("wb"):
                process.send_signal(signal.SIGHUP)
                process.send_signal(number)
                output, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert not output
    assert f"{number.name}: stopping" in log
    assert log.endswith("stopped\n")
    assert "Traceback" not in log


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_further_signals_do_not_end_a_server_that_stops(tmp_path: Path, first: signal.Signals) -> None:
    """Such as those of an impatient user, or of `timeout`, which sends SIGTERM twice."""
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store", forked=False) as server:
        server.process.send_signal(first)
        while server.process.returncode is None:
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(0.001)  # without a pause the server would do nothing but receive them
        _, log = server.process.communicate(timeout=60)
    assert server.process.returncode == 0, log
    assert log.endswith("stopped\n")
    assert "Traceback" not in log
