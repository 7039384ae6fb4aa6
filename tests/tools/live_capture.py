"""Captures real traffic on this machine with tcpdump."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

import pytest
import trio

PATIENCE_SECONDS = 60


@dataclass
class _Capture:
    """Return the octets that tcpdump has written so far."""

    octets: bytearray = field(default_factory=bytearray)
    grew: trio.Event = field(default_factory=trio.Event)

    async def collect(self, stream: trio.abc.ReceiveStream) -> None:
        async for octets in stream:
            self.octets += octets
            self.grew.set()
            self.grew = trio.Event()

    async def holds(self, mark: bytes) -> None:
        """Wait until these octets were captured."""
        while mark not in self.octets:
            await self.grew.wait()


@asynccontextmanager
async def capturing(port: int, path: Path, last: bytes) -> AsyncIterator[None]:
    """Capture the traffic of this port, up to the octets `last`, and write it to a file.

    Skips the test where that is not permitted.
    """
    if shutil.which("tcpdump") is None:
        pytest.skip("tcpdump is not installed")
    # It hands over what it has once a second. In its immediate mode it would drop packets instead.
    command = ["tcpdump", "-i", "lo", "-U", "-w", "-", "port", str(port)]
    capture = _Capture()
    async with trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process(command, stdout=PIPE, stderr=PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = b""
            while b"listening on" not in said:
                more = await process.stderr.receive_some()
                if not more:
                    pytest.skip(f"tcpdump may not capture here: {said.decode().strip()}")
                said += more
            nursery.start_soon(capture.collect, process.stdout)
            yield
            with trio.fail_after(PATIENCE_SECONDS):
                await capture.holds(last)
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await process.wait()
    await trio.Path(path).write_bytes(capture.octets)
