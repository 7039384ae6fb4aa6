"""Helpers for the tests of the client library."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

from omq.client import Connecting, connect
from omq.server import Server

OpenServer = Callable[..., AbstractAsyncContextManager[Server]]
"""Opens a server on the test's store, at a free port unless one is given; keywords are its settings."""


def url_of(server: Server) -> str:
    return f"omq://127.0.0.1:{server.port}"


def connect_to(server: Server, **settings: object) -> Connecting:
    return connect(url_of(server), **settings)  # type: ignore[arg-type]  # the names decide the types


class Running:
    """A server in a task of its own, which a test may stop while its clients continue."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.scope = anyio.CancelScope()
        self.stopped = anyio.Event()

    @classmethod
    async def start(cls, nursery: TaskGroup, opening: AbstractAsyncContextManager[Server]) -> Self:
        async def run(task_status: TaskStatus[Self]) -> None:
            async with opening as server:
                running = cls(server)
                task_status.started(running)
                with running.scope:
                    await anyio.sleep_forever()
            running.stopped.set()

        running: Self = await nursery.start(run)
        return running

    def connect(self, **settings: object) -> Connecting:
        return connect_to(self.server, **settings)

    async def stop(self) -> None:
        self.scope.cancel()
        await self.stopped.wait()
