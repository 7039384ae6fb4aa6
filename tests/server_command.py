"""The real command `omq-server`, run as a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forked import Forked, run_forked

COMMAND = str(Path(sys.executable).with_name("omq-server"))

READY = "omq-server listening on "


@dataclass
class RunningServer:
    """A server that is ready. `ready`: the line that it has printed."""

    process: subprocess.Popen[str]
    ready: str

    @property
    def address(self) -> str:
        return self.ready.removeprefix(READY).strip().removesuffix(" (TLS only)")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 60) -> tuple[int, str, str]:
        """Send a signal; its exit status, the rest of its output and all its log, had within `seconds`."""
        self.process.send_signal(number)
        output, log = self.process.communicate(timeout=seconds)
        return self.process.returncode, output, log


@contextmanager
def running_server(
    *options: str | Path, command: str = COMMAND, forked: bool = True
) -> Iterator[RunningServer]:
    """Run it with these options and wait until it is ready. At the end of the block it is stopped, or killed
    where that takes long.

    `forked`: whether Python need not be started for it, where the command is that of this environment.
    """
    start: type[subprocess.Popen[str]] = Forked if forked and command == COMMAND else subprocess.Popen
    with start([command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                raise AssertionError(f"omq-server did not start: {process.communicate(timeout=60)[1]}")
            yield RunningServer(process, ready)
        finally:
            _end(process)


@contextmanager
def configured_server(folder: Path, configuration: str) -> Iterator[RunningServer]:
    """Run it with its store and its configuration file in this folder, as `running_server` does."""
    file = folder / "omq.toml"
    file.write_text(configuration)
    options = ("--listen", "127.0.0.1:0", "--store", folder / "store", "--config", file)
    with running_server(*options) as running:
        yield running


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()


def run_server(*options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a server that ends by itself, and return the result."""
    return run_forked([COMMAND, *options], text=True)
