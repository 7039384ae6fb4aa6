"""The memory that a connection takes while it does nothing."""

import gc
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from measuring import untraced
from quietness import quiet

from .conversation import VERSION_ONE, serving

CONNECTIONS = 100
OPENINGS = {
    "omq": (VERSION_ONE + b"(Connect 1 idle)\n", 13_000),
    "amqp 1.0": (b"AMQP\3\1\0\0", 14_500),
}
"""The first octets of the client of a protocol, and the most octets that its connection may take."""


@contextmanager
def connected(port: int, opening: bytes) -> Iterator[None]:
    """Connect many clients, of which the server has accepted none yet."""
    with ExitStack() as opened:
        for _ in range(CONNECTIONS):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(opening)
        yield


@pytest.mark.parametrize("protocol", OPENINGS)
async def test_an_idle_connection_takes_little_memory(store: Path, protocol: str) -> None:
    opening, most = OPENINGS[protocol]
    async with serving(store, client_share=1.0) as host:
        with connected(host.port, opening):  # the first clients load modules, and fill caches
            await quiet()
        await quiet()
        with connected(host.port, opening), untraced():
            gc.collect()
            tracemalloc.start()
            try:
                await quiet()
                assert host.connections == CONNECTIONS
                taken, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert 5_000 < taken / CONNECTIONS < most
