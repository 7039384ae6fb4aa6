"""The sockets at which a server listens."""

import socket
import sys

import pytest
import trio

from omq.config import Config
from omq.listening import Sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="congestion control can be chosen on Linux")

_NAME_OCTETS = 16


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_connections_over_the_loopback_interface_are_not_paced(host: str) -> None:
    assert await _congestion_control(host) == b"reno"


async def test_other_addresses_keep_the_congestion_control_of_the_machine() -> None:
    with socket.socket() as usual:
        default = _name(usual)
    assert await _congestion_control("0.0.0.0") == default


async def _congestion_control(host: str) -> bytes:
    """Return the congestion control of a connection that a server accepts at this address."""
    sockets = await Sockets.bind(Config(listen=[f"{host}:0"]), None)
    try:
        sockets.listen()
        listener = sockets.any[0]
        client = await trio.open_tcp_stream(*listener.getsockname()[:2])
        async with client:
            accepted, _ = await listener.accept()
            with accepted:
                return _name(accepted)
    finally:
        sockets.close()


def _name(one: socket.socket | trio.socket.SocketType) -> bytes:
    found = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_OCTETS)
    assert isinstance(found, bytes)
    return found.rstrip(b"\0")
