"""The first eight octets of a connection, and what they decide.

See docs/PROTOCOL.md, "The first eight octets".
"""

import socket
import threading
from pathlib import Path

import pytest
import trio
from quietness import quiet
from trio.testing import MockClock

from omq.protocol.omq.types import Confirmed, Declared, Error

from .conversation import CONNECT, VERSION_ONE, eventually, serving

OUR_HEADER = b"AMQP\x00\x00\x09\x01"
START = b"\x01\x00\x00"
"""The beginning of the first method of AMQP 0-9-1: a frame of type 1 on channel 0."""
DMP_HEADER = b"AMQP\x0a\x01\x00\x01"


async def test_version_one_is_agreed_on(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(VERSION_ONE)
        assert await client.octets(8) == VERSION_ONE
        await client.send(CONNECT)
        await client.confirm(5)


async def test_the_octets_may_come_one_by_one(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        client.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each octet in its own segment
        for octet in VERSION_ONE + CONNECT + b"(Confirm 7)\n":
            await client.send(bytes([octet]))
            await trio.lowlevel.checkpoint()
        assert await client.octets(8) == VERSION_ONE
        assert await client.frame() == Confirmed(7)


async def test_commands_may_come_in_the_segment_of_the_handshake(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(VERSION_ONE + CONNECT + b"(Confirm 1)\n(Confirm 2)\n(Conf")
        assert await client.octets(8) == VERSION_ONE
        assert await client.frame() == Confirmed(1)
        assert await client.frame() == Confirmed(2)
        await client.send(b"irm 3)\n")
        assert await client.frame() == Confirmed(3)


async def test_many_first_clients_of_a_protocol_take_one_thread(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trio has 40 threads at a time, and the store and the disk need some of them."""
    imported = []
    goes_on = threading.Event()

    def slow_import(module: str) -> None:
        imported.append(module)
        goes_on.wait()

    async with serving(store) as host:
        monkeypatch.setattr("omq.reception.import_module", slow_import)
        try:
            clients = [await host.open() for _ in range(50)]
            for client in clients:
                await client.send(OUR_HEADER)
            await eventually(lambda: bool(imported))
            omq = await host.connect()  # a client whose protocol needs no import does not wait
            assert isinstance(await omq.ask(b"(Declare t Broadcast (Persistent Strong))"), Declared)
            assert len(imported) == 1
        finally:
            goes_on.set()
        for client in clients:
            assert (await client.octets(7))[:3] == START
        assert len(imported) == 1


@pytest.mark.parametrize(
    "octets",
    [
        "0000000000000000",
        "0000000000000002",
        "ffffffffffffffff",
        "0100000000000000",
        "8000000000000001",
        "505249202a204854",  # HTTP/2
    ],
)
async def test_another_version_is_answered_with_minus_one_and_the_end(store: Path, octets: str) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(bytes.fromhex(octets) + CONNECT)
        assert await client.octets(8) == b"\xff" * 8
        await client.ended()


@pytest.mark.parametrize("rest", [b"\x00\x00\x09\x00", b"\x0a\x01\x00\x02", b"\x01\x01\x08\x00", b"    "])
async def test_unknown_versions_of_amqp_are_answered_with_the_supported_one(store: Path, rest: bytes) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(b"AMQP" + rest)
        is_dmp = rest.startswith(b"\x0a")
        assert await client.octets(8) == (DMP_HEADER if is_dmp else OUR_HEADER)
        await client.ended()


@pytest.mark.parametrize(
    "octets",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
    ids=["TLS"],
)
async def test_protocols_that_are_not_served_are_closed(store: Path, octets: bytes) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(octets)
        await client.ended()
        assert host.connections == 0


@pytest.mark.parametrize(
    ("octets", "shown"),
    [
        (b"PRI * HTTP/2.0\r\n", "50 52 49 20 2a 20 48 54 (PRI * HT), which is HTTP/2"),
        (b"SSH-2.0-OpenSSH\r\n", "53 53 48 2d 32 2e 30 2d (SSH-2.0-), which is SSH"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "16 03 01 02 00 01 00 01 (........), which is TLS"),
        (b"AMQP\x01\x01\x08\x00", "41 4d 51 50 01 01 08 00 (AMQP....), which is AMQP 0-8"),
        (b"AMQP    ", "41 4d 51 50 20 20 20 20 (AMQP    ), which is AMQP"),
        (b"\x10\x10\x00\x04MQTT\x04\x02", "10 10 00 04 4d 51 54 54 (....MQTT), which is MQTT"),
        (b"*1\r\n$4\r\nPING\r\n", "2a 31 0d 0a 24 34 0d 0a (*1..$4..), which is Redis"),
        (bytes(7) + b"\2", "00 00 00 00 00 00 00 02 (........), which is omq of version 2"),
        (bytes.fromhex("1f207e7f00000000"), "1f 20 7e 7f 00 00 00 00 (. ~.....)"),
        (bytes.fromhex("deadbeef00000000"), "de ad be ef 00 00 00 00 (........)"),
    ],
)
async def test_the_log_has_the_octets_and_their_name_where_it_is_known(
    store: Path, octets: bytes, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.server")
    async with serving(store) as host:
        client = await host.open()
        await client.send(octets)
        while await client.stream.receive_some(4096):
            pass
    (line,) = [record.getMessage() for record in caplog.records if "it began with" in record.getMessage()]
    assert line.endswith(f": what it speaks is not served here; it began with {shown}")


FEW = [
    (b"", "it sent nothing"),
    (b"GET", "it began with 47 45 54 (GET)"),
    (b"\x16\x03\x01", "it began with 16 03 01 (...), which is TLS"),
    (b"AMQP\x00\x00\x09", "it began with 41 4d 51 50 00 00 09 (AMQP...), which is AMQP"),
]


def logged_by_server(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines about connections, without their peers."""
    lines = [record.getMessage() for record in caplog.records if hasattr(record, "peer")]
    return [line.partition(": ")[2] for line in lines]


@pytest.mark.parametrize(("octets", "began"), FEW)
async def test_the_log_has_the_octets_of_a_handshake_that_took_too_long(
    store: Path, clock: MockClock, octets: bytes, began: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.server")
    async with serving(store) as host:
        client = await host.open()
        await client.send(octets)
        await eventually(lambda: host.handshakes == 1)
        await quiet()  # what was sent has been read
        clock.jump(10.5)
        await client.ended()
    assert logged_by_server(caplog) == [f"no handshake within 10 s; {began}"]


@pytest.mark.parametrize(("octets", "began"), FEW)
async def test_the_log_has_the_octets_of_a_handshake_that_ended(
    store: Path, octets: bytes, began: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is logged of a connection that said nothing: such look whether the port is open."""
    caplog.set_level("INFO", "omq.server")
    async with serving(store) as host:
        client = await host.open()
        await client.send(octets)
        await client.done()
        await client.ended()
    assert logged_by_server(caplog) == ([f"it ended in its first octets; {began}"] if octets else [])


@pytest.mark.parametrize("count", range(8))
async def test_a_handshake_that_is_cut_off_is_closed_without_a_word(store: Path, count: int) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(VERSION_ONE[:count])
        await client.done()
        await client.ended()
        await eventually(lambda: host.handshakes == host.connections == 0)


async def test_the_handshake_has_ten_seconds(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        quick, slow = await host.open(), await host.open()
        await quick.send(VERSION_ONE[:4])
        await slow.send(VERSION_ONE[:7])
        await eventually(lambda: host.handshakes == 2)
        clock.jump(5)
        await quick.send(VERSION_ONE[4:])
        assert await quick.octets(8) == VERSION_ONE
        assert host.handshakes == 1
        clock.jump(5)
        await slow.ended()
        assert host.handshakes == 0
        await quick.send(CONNECT)
        await quick.confirm()


async def test_connect_must_name_the_version_of_the_handshake(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(VERSION_ONE + b"(Connect 2 test)\n(Confirm 1)\n")
        assert await client.octets(8) == VERSION_ONE
        (answer,) = await client.rest()
        assert isinstance(answer, Error)
        assert answer.text.startswith(b"Connect 2: ")
