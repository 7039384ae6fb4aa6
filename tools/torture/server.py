"""The command omq-server in a process that can be killed at any moment."""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Self

import trio

READY = b"omq-server listening on "
STARTS_WITHIN = 30.0


def _limit_descriptors(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


class DidNotStart(Exception):
    """The server ended before it was ready; the last lines of its log."""


class Server:
    """A server of its own process. It starts when this is created; `ready` returns the port. The end of a
    `with` block kills it.
    """

    def __init__(
        self,
        store: Path,
        configuration: str,
        boot_id: str,
        environment: Mapping[str, str],
        descriptors: int | None = None,
    ) -> None:
        """Start a server. `descriptors`: limit of open descriptors; None for the limit of the operating
        system.
        """
        self._log = store.with_name(store.name + ".log")
        settings = store.with_name(store.name + ".toml")
        settings.write_text(configuration)
        command = [sys.executable, "-m", "omq.cli.server", "--listen", "127.0.0.1:0", "--store", str(store)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(settings)],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment, "OMQ_BOOT_ID": boot_id},
                preexec_fn=None if descriptors is None else partial(_limit_descriptors, descriptors),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.kill()

    async def ready(self) -> int:
        """Wait until it listens, and return the port. Raises DidNotStart."""
        assert self.process.stdout is not None
        try:
            with trio.fail_after(STARTS_WITHIN):
                line = await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True)
        except trio.TooSlowError:
            self.kill()
            raise DidNotStart("it was not ready in time") from None
        if not line.startswith(READY):
            self.process.wait()
            raise DidNotStart(self.log()[-2000:] or f"it ended with {self.process.returncode}")
        return int(line.rpartition(b":")[2])

    def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.terminate()
        return self.process.wait(30)

    def log(self) -> str:
        """Return the log of all servers on this store."""
        return self._log.read_text(errors="replace")
