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

from omq.protocol.amqp.fields import Table
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.frames import method_frame
from omq.protocol.amqp_1_0 import frames, performatives

from .conversation import VERSION_ONE, serving

CONNECTIONS = 100

CONNECT = VERSION_ONE + b"(Connect 1 idle)\n"

ONE_CHANNEL = b"".join(
    [
        b"AMQP\0\0\x09\x01",
        method_frame(0, methods.ConnectionStartOk(Table(()), b"PLAIN", b"\0guest\0guest", b"en_US")),
        method_frame(0, methods.ConnectionTuneOk(2047, 128 << 10, 0)),
        method_frame(0, methods.ConnectionOpen(b"/")),
        method_frame(1, methods.ChannelOpen()),
    ]
)

ONE_SESSION = b"".join(
    [
        b"AMQP\0\1\0\0",
        frames.write(0, performatives.write(performatives.Open("idle"))),
        frames.write(0, performatives.write(performatives.Begin(None, 0, 100, 100))),
    ]
)

OPENINGS = {
    "omq": (CONNECT, 11_400),
    "omq, subscribed": (CONNECT + b"(Subscribe t From_current)\n", 12_100),
    "amqp 0-9-1": (ONE_CHANNEL, 16_200),
    "amqp 1.0": (b"AMQP\3\1\0\0", 11_200),
    "amqp 1.0, with a session": (ONE_SESSION, 15_700),
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
