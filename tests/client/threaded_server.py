"""A server in a thread of its own: the server runs on Trio, and these tests on asyncio."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import anyio
import trio

from omq.server import Server


@dataclass
class ThreadedServer:
    """The part of a `Server` that the tests use, callable from another thread."""

    port: int
    stop: Callable[[], Awaitable[None]]


@asynccontextmanager
async def in_a_thread(opening: AbstractAsyncContextManager[Server]) -> AsyncIterator[ThreadedServer]:
    """Run a server until the end of the block."""
    ready: Future[ThreadedServer] = Future()

    async def serve() -> None:
        token = trio.lowlevel.current_trio_token()
        leaving = trio.Event()
        async with opening as server:

            async def stop() -> None:
                await anyio.to_thread.run_sync(lambda: trio.from_thread.run(server.stop, trio_token=token))

            ready.set_result(ThreadedServer(server.port, stop))
            ends.append(lambda: token.run_sync_soon(leaving.set))
            await leaving.wait()

    ends: list[Callable[[], None]] = []
    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    server = await anyio.to_thread.run_sync(ready.result)
    try:
        yield server
    finally:
        ends[0]()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(thread.join)
