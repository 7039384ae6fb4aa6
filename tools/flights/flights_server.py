"""The server of the demo: started, killed, started again, stopped."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from flights_file import DemoFailed
from flights_receiving import PATIENCE_SECONDS

READY = b"omq-server listening on "


class Server:
    """`omq-server` as a process, which can be killed and started again at the same port."""

    def __init__(self, directory: Path) -> None:
        self.store = directory / "store"
        self.log = directory / "server.log"
        self._address = "127.0.0.1:0"  # a free port, at first
        self._process: trio.Process | None = None

    @property
    def address(self) -> str:
        return self._address

    @property
    def url(self) -> str:
        return f"omq://{self._address}"

    async def start(self) -> None:
        """Start it, and wait until it says it is ready."""
        options = ["--listen", self._address, "--store", str(self.store)]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then stops the server.
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "omq.cli.server", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        said = b""
        with trio.move_on_after(PATIENCE_SECONDS):
            while not said.endswith(b"\n") and (data := await self._process.stdout.receive_some()):
                said += data
        if not said.startswith(READY) or not said.endswith(b"\n"):
            raise DemoFailed("omq-server did not start")
        self._address = said.removeprefix(READY).decode().strip()

    async def kill(self) -> None:
        """Kill it without warning, as a crash would."""
        if self._process is not None:
            self._process.kill()
            with trio.CancelScope(shield=True):
                await self._process.wait()
                assert self._process.stdout is not None
                await self._process.stdout.aclose()
            self._process = None

    async def stop(self) -> None:
        """End it properly."""
        assert self._process is not None
        self._process.terminate()
        with trio.move_on_after(PATIENCE_SECONDS):
            await self._process.wait()
        status = self._process.returncode
        await self.kill()
        if status != 0:
            raise DemoFailed(f"omq-server ended with status {status} when it was asked to stop")


@asynccontextmanager
async def server_in(directory: Path) -> AsyncIterator[Server]:
    """Yield a started server that has ended after the block, even after an exception."""
    server = Server(directory)
    try:
        await server.start()
        yield server
        await server.stop()
    except BaseException:  # Ctrl-C and cancellation, too
        await server.kill()
        raise
