"""A real server, in this process, for each test that asks for one."""

import functools
import inspect
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

import pytest
import trio
from client_helpers import OpenServer, url_of
from ports import reserved_port
from relays import Relay, relayed
from trio.testing import MockClock

from omq.client import Client, connect
from omq.config import Config
from omq.server import Server, open_server

SECONDS = 60.0
"""The time limit of a test, so that a lost answer fails the test instead of blocking it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        here = str(item.path).startswith(folder)
        if here and isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _limited(item.obj)


def _limited(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(**fixtures: object) -> None:
        # If a test makes the clock jump, the clock cannot limit the duration of the test.
        jumping = any(isinstance(fixture, MockClock) for fixture in fixtures.values())
        with trio.fail_after(math.inf if jumping else SECONDS):
            await test(**fixtures)

    return limited


@pytest.fixture
def open_omq(tmp_path: Path) -> Iterator[OpenServer]:
    with ExitStack() as ports:

        def opener(port: int = 0, **settings: object) -> AbstractAsyncContextManager[Server]:
            # A port that is kept until the test ends: others may not get it before a server starts again.
            config = Config(
                listen=[f"127.0.0.1:{port or ports.enter_context(reserved_port())}"],
                store=str(tmp_path / "store"),
                map_bytes=1 << 28,
                disk_reserve_bytes=0,
                **settings,  # type: ignore[arg-type]  # the names decide the types
            )
            return open_server(config)

        yield opener


@pytest.fixture
async def server(open_omq: OpenServer) -> AsyncIterator[Server]:
    async with open_omq() as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with connect(url_of(server)) as connected:
        yield connected


@pytest.fixture
async def relay(server: Server) -> AsyncIterator[Relay]:
    async with relayed(server.port) as running:
        yield running
