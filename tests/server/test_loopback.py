"""The congestion control of connections within one machine."""

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from omq.bulk.network import PlainWire
from omq.bulk.opening import open_wire
from omq.client.tcp import connect_tcp
from omq.config import Config
from omq.listening import Sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a program choose it")

IPV6 = pytest.mark.skipif(not Path("/proc/sys/net/ipv6").exists(), reason="the machine has no IPv6")
LOOPBACK = pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=IPV6), "localhost"])

_NAME_OCTETS = 16


@LOOPBACK
async def test_a_server_does_not_pace_what_it_sends_at_a_loopback_address(host: str) -> None:
    assert await _accepted(host) == b"reno"


async def test_a_server_keeps_the_congestion_control_of_the_machine_at_other_addresses() -> None:
    with socket.socket() as usual:
        default = _name(usual)
    assert await _accepted("0.0.0.0") == default


@LOOPBACK
async def test_clients_do_not_pace_what_they_send_to_a_loopback_address(host: str) -> None:
    async with _listener(host) as listener:
        place = listener.getsockname()[:2]
        stream, connected = await connect_tcp(*place)
        assert _name(connected) == b"reno"
        stream.close()
        wire = open_wire(*place, security=None)
        assert isinstance(wire, PlainWire)
        assert _name(wire.socket) == b"reno"
        wire.close()


async def test_bulk_clients_try_each_address_of_a_host() -> None:
    async with _listener("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        wire = open_wire("localhost", port, None)  # which is ::1 as well on most machines
        assert wire.peer() == ("127.0.0.1", port)
        wire.close()
    with pytest.raises(ConnectionRefusedError):
        open_wire("localhost", port, None)


async def _accepted(host: str) -> bytes:
    """Return the congestion control of a connection that a server accepts at this address."""
    async with _listener(host) as listener, await trio.open_tcp_stream(*listener.getsockname()[:2]):
        accepted, _ = await listener.accept()
        with accepted:
            return _name(accepted)


@asynccontextmanager
async def _listener(host: str) -> AsyncIterator[trio.socket.SocketType]:
    """Yield the first socket of a server that listens on this host."""
    sockets = await Sockets.bind(Config(listen=[f"{host}:0"]), None)
    try:
        sockets.listen()
        yield sockets.any[0]
    finally:
        sockets.close()


def _name(one: socket.socket | trio.socket.SocketType) -> bytes:
    found = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_OCTETS)
    assert isinstance(found, bytes)
    return found.rstrip(b"\0")
