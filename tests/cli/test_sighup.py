"""SIGHUP never ends a server, with TLS or without; SIGTERM ends it in order from its start on."""

import os
import platform
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_command import COMMAND, READY, running_server

HANDSHAKE = bytes(7) + b"\1"


def test_a_server_without_tls_ignores_sighup(tmp_path: Path) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            answers = client.makefile("rb")
            client.sendall(HANDSHAKE + b"(Connect 1 x)\n(Confirm 1)\n")
            assert len(answers.read(21)) == 21
            server.process.send_signal(signal.SIGHUP)
            assert server.process.stderr is not None
            line = next(line for line in server.process.stderr if "SIGHUP" in line)
            assert line.endswith(
                "SIGHUP: there is no configuration to reload: the server was started without --config\n"
            )
            client.sendall(b"(Confirm 2)\n")
            assert answers.read(13)[-1] == 2
        assert server.stop()[0] == 0


def test_sighup_during_start_and_shutdown_is_harmless(tmp_path: Path) -> None:
    command: list[str | Path] = [COMMAND, "--listen", "127.0.0.1:0", "--store", tmp_path / "store"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "codec" in process.stderr.readline()  # its first line, before anything is opened
        for number in (signal.SIGHUP, signal.SIGUSR1):
            process.send_signal(number)
        assert process.stdout.readline().startswith(READY)
        process.send_signal(signal.SIGTERM)
        assert next(line for line in process.stderr if "stopping" in line)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 0


STARTED_TWICE = pytest.mark.skipif(
    "PYTHONMALLOC" in os.environ or platform.libc_ver()[0] != "glibc",
    reason="the interpreter is started once only",
)


@contextmanager
def starting(*options: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run the command with these options. The interpreter is being started for the second time, and has
    loaded nothing.
    """
    with subprocess.Popen(
        [COMMAND, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        variables = Path(f"/proc/{process.pid}/environ")
        by = time.monotonic() + 60
        try:
            while b"PYTHONMALLOC=" not in variables.read_bytes():
                assert process.poll() is None
                assert time.monotonic() < by, "the interpreter was not started again"
            yield process
        finally:
            process.kill()


@STARTED_TWICE
def test_signals_before_the_modules_are_loaded_are_harmless(tmp_path: Path) -> None:
    with starting("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as process:
        for number in (signal.SIGHUP, signal.SIGUSR1):
            process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(READY)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


@STARTED_TWICE
def test_sigterm_before_the_modules_are_loaded_stops_the_server_in_order(tmp_path: Path) -> None:
    with starting("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as process:
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert not output
    assert "SIGTERM: stopping" in log
    assert log.endswith("stopped\n")


@STARTED_TWICE
def test_sigterm_ends_a_command_that_is_no_server() -> None:
    with starting("--hash-secret") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM
