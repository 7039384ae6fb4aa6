"""A real server, in this process, for each test that asks for one."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio
from client_helpers import OpenServer, url_of

from omq.client import Client, connect
from omq.config import Config
from omq.server import Server, open_server


@pytest.fixture
def open_omq(tmp_path: Path) -> OpenServer:
    def opener(port: int = 0, **settings: object) -> AbstractAsyncContextManager[Server]:
        config = Config(
            listen=[f"127.0.0.1:{port}"],
            store=str(tmp_path / "store"),
            map_bytes=1 << 28,
            disk_reserve_bytes=0,
            **settings,  # type: ignore[arg-type]
        )
        return open_server(config)

    return opener


@pytest.fixture
async def within_half_a_minute(nursery: trio.Nursery) -> None:
    """A test that waits for what never comes fails instead of standing still."""

    async def fail() -> None:
        await trio.sleep(30)
        raise trio.TooSlowError

    nursery.start_soon(fail)


@pytest.fixture
async def server(open_omq: OpenServer) -> AsyncIterator[Server]:
    async with open_omq() as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with connect(url_of(server)) as connected:
        yield connected
