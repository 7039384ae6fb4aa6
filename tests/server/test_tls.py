"""TLS on the server's ports: the same conversations, and what is particular about their beginning and end."""

import math
import random
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import anyio
import pytest
import trio
from certificates import Authority
from garbage import uncollected
from quietness import pass_time
from trio.testing import MockClock

from omq.client.network import TlsStream, open_stream
from omq.client.tcp import TcpStream, connect_tcp
from omq.config import Config
from omq.credentials import client_context
from omq.drivers.memory import Memory
from omq.protocol.handshake import REFUSED
from omq.protocol.omq.frames import encode
from omq.protocol.omq.types import Error, Frame
from omq.protocol.tls import TlsEngine
from omq.server_address import Security
from omq.terminals.connection.admission import ReadAdmission
from omq.terminals.connection.certificates import Certificates
from omq.terminals.connection.tls_transport import TlsTransport
from omq.terminals.connection.transport import FIRST_OCTETS

from .conversation import (
    CONNECT,
    PATIENCE,
    VERSION_ONE,
    Conversation,
    InProcess,
    declared,
    eventually,
    numbered,
    publish,
    reads_although_stalled,
    serving,
)
from .dmp_conversation import Consumer, envelopes, feed, lease, response, send_all, show_on, sink, stored

MIB = 1 << 20


class TlsHost(InProcess):
    """A server whose connections are made with TLS."""

    authority: Authority
    tls_port: int

    async def open(self, receive_octets: int | None = None) -> Conversation:
        with trio.fail_after(PATIENCE):
            security = Security(client_context(self.authority.file, None, None), "127.0.0.1")
            stream = await open_stream("127.0.0.1", self.tls_port, security)
        return self.opened(stream)

    async def connect_by_hand(self) -> "ManualConnection":
        """Return a connection whose records the test sends itself."""
        with trio.fail_after(PATIENCE):
            by_hand = await ManualConnection.open(self.tls_port, self.authority)
        by_hand.conversation = self.opened(by_hand.stream)
        await by_hand.conversation.send(VERSION_ONE + CONNECT)
        assert await by_hand.conversation.octets(8) == VERSION_ONE
        return by_hand

    async def open_plain(self) -> Conversation:
        return await InProcess.open(self)


class ManualConnection:
    """A connection whose socket and TLS engine can be used one by one."""

    conversation: Conversation

    def __init__(self, socket: TcpStream, will_reset: Callable[[], None], engine: TlsEngine) -> None:
        self.socket = socket
        self._will_reset = will_reset
        self.engine = engine
        self.stream = TlsStream(socket, engine)

    @classmethod
    async def open(cls, port: int, authority: Authority) -> "ManualConnection":
        stream, socket = await connect_tcp("127.0.0.1", port)
        reset = partial(socket.setsockopt, SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        by_hand = cls(stream, reset, TlsEngine(secured(authority), server_name="127.0.0.1"))
        await by_hand.stream.shake_hands()
        return by_hand

    def reset(self) -> None:
        """End the connection the hard way: the server gets a reset instead of an end."""
        self._will_reset()
        self.socket.close()  # without close_notify

    def encrypted(self, octets: bytes) -> bytes:
        """Return these octets in one record."""
        self.engine.write(octets)
        return self.engine.outgoing()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def serving_tls(store: Path, authority: Authority, **settings: Any) -> AsyncIterator[TlsHost]:
    shown = authority.issue("127.0.0.1")
    async with serving(store, tls_cert=str(shown.cert), tls_key=str(shown.key), **settings) as plain:
        host = TlsHost(plain.server)
        host.authority = authority
        host.tls_port = (plain.server.tls_addresses or plain.server.addresses)[0][1]
        try:
            yield host
        finally:
            host.hang_up()


def secured(authority: Authority) -> ssl.SSLContext:
    return client_context(authority.file, None, None)


# -- one port, and ports of its own -------------------------------------------------------------------------


async def test_plain_and_encrypted_clients_meet_on_one_port(store: Path, authority: Authority) -> None:
    async with serving_tls(store, authority) as host:
        encrypted, plain = await host.connect(), await host.open_plain()
        await plain.send(VERSION_ONE + CONNECT)
        assert await plain.octets(8) == VERSION_ONE
        await plain.ask(b"(Subscribe t From_current)")
        await encrypted.send(publish(b"t", numbered(1, 1000)))
        assert await plain.bodies(1000) == numbered(1, 1000)
        await encrypted.ask(b"(Subscribe t From_beginning)")
        assert await encrypted.bodies(1000) == numbered(1, 1000)


async def test_a_port_for_tls_alone_speaks_nothing_else(store: Path, authority: Authority) -> None:
    async with serving_tls(store, authority, listen_tls=["127.0.0.1:0"]) as host:
        assert host.tls_port != host.port
        client = await host.connect()
        await client.confirm()
        stream = await trio.open_tcp_stream("127.0.0.1", host.tls_port)
        async with stream:
            await stream.send_all(VERSION_ONE + CONNECT)
            with trio.fail_after(PATIENCE):
                assert await stream.receive_some() == b""


async def test_without_a_certificate_the_server_closes(store: Path, authority: Authority) -> None:
    async with serving(store) as host:
        with pytest.raises(anyio.BrokenResourceError):
            await open_stream("127.0.0.1", host.port, Security(secured(authority), "127.0.0.1"))


async def test_inside_tls_the_first_octets_choose_again(store: Path, authority: Authority) -> None:
    async with serving_tls(store, authority) as host:
        stranger = await host.open()
        await stranger.send(b"PRI * HT")
        assert await stranger.octets(8) == REFUSED
        await stranger.ended()
        nested = await host.open()
        await nested.send(bytes.fromhex("1603010200010001"))
        with pytest.raises(anyio.BrokenResourceError):
            await nested.stream.receive_some(1)


# -- everything else is the same -----------------------------------------------------------------------------


async def test_large_messages_in_both_directions(store: Path, authority: Authority) -> None:
    body = random.Random(3).randbytes(3 * MIB).hex().encode()
    async with serving_tls(store, authority, max_line_bytes=16 * MIB) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_current)")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, publish(b"t", [body, b"small", body]))
            assert await client.bodies(3) == [body, b"small", body]
        await eventually(lambda: host.memory_used == 0)


async def test_records_of_any_size(store: Path, authority: Authority) -> None:
    octets = publish(b"t", numbered(1, 3000))
    chance = random.Random(5)
    async with serving_tls(store, authority) as host:
        client = await host.connect()
        at = 0
        while at < len(octets):
            size = chance.choice([1, 2, 100, 16_384, 16_385, 40_000])
            await client.send(octets[at : at + size])
            at += size
        await client.confirm()
        await client.ask(b"(Subscribe t From_beginning)")
        assert await client.bodies(3000) == numbered(1, 3000)


async def test_octets_are_counted_without_those_of_tls(store: Path, authority: Authority) -> None:
    async with serving_tls(store, authority) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_current)")
        await client.confirm()
        (terminal,) = host.server.terminals()
        await eventually(lambda: not terminal.statistics().is_sending)
        assert terminal.statistics().is_encrypted
        was = terminal.statistics()
        lines = publish(b"t", [b"x" * 1000] * 200)
        await client.send(lines)
        messages = await client.messages(200)
        octets = sum(len(encode(message)) for message in messages)
        await eventually(lambda: terminal.statistics().octets_out - was.octets_out == octets)
        assert terminal.statistics().octets_in - was.octets_in == len(lines)


async def test_half_a_record_holds_nothing_up(store: Path, authority: Authority) -> None:
    """Whole commands before it are executed, though there is more to read."""
    async with serving_tls(store, authority) as host:
        by_hand = await host.connect_by_hand()
        client = by_hand.conversation
        await client.ask(b"(Subscribe t From_current)")
        lines = publish(b"t", [b"x" * 1000] * 40)
        whole = b"".join(
            by_hand.encrypted(lines[start : start + 16_384]) for start in range(0, len(lines), 16_384)
        )
        rest = by_hand.encrypted(publish(b"t", [b"last" * 3000]))
        await by_hand.socket.send_all(whole + rest[:5000])
        assert await client.bodies(40) == [b"x" * 1000] * 40
        await by_hand.socket.send_all(rest[5000:])
        assert (await client.message()).body == b"last" * 3000


async def test_a_part_of_a_record_is_no_end(authority: Authority) -> None:
    """Also when much came before it and it is there to be read at once."""
    shown = authority.issue("127.0.0.1")
    engine = Certificates(Config(tls_cert=str(shown.cert), tls_key=str(shown.key))).engine()
    first, second = b"1" * FIRST_OCTETS, b"2" * 1000
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    got: list[bytes] = []
    async with listener, trio.open_nursery() as nursery:

        async def read() -> None:
            stream = await listener.accept()
            transport = await TlsTransport.accept(stream, engine, await stream.receive_some())
            admission = ReadAdmission(transport, Memory(64 * MIB), trio.CancelScope())
            got.append(await admission.receive())
            await client.socket.send_all(octets[end + 100 : end + 200])
            await trio.lowlevel.wait_readable(stream.socket)
            nursery.start_soon(client.socket.send_all, octets[end + 200 :])
            got.append(await admission.receive())
            await stream.aclose()

        nursery.start_soon(read)
        port = listener.socket.getsockname()[1]
        client = await ManualConnection.open(port, authority)
        begin = client.encrypted(first)
        end = len(begin)
        octets = begin + client.encrypted(second)
        await client.socket.send_all(octets[: end + 100])
    client.socket.close()
    assert got == [first, second]


async def test_a_sink_and_a_feed(store: Path, authority: Authority) -> None:
    bodies = [b"%d" % number * (number % 70) for number in range(5000)]
    async with serving_tls(store, authority) as host:
        client = await host.connect()
        consumer: Consumer = await feed(host, client)
        connection = await sink(host, client)
        await connection.send(envelopes(bodies))
        assert await stored(connection) == 5000
        assert await consumer.bodies(5000) == bodies
        await client.ask(b"(Delete t)")
        assert await consumer.rest() == []


async def test_an_incomplete_message_goes_to_another_worker(store: Path, authority: Authority) -> None:
    """`written` counts what has left in whole records: nobody can read another."""
    bodies = [b"%04d" % number * 4096 for number in range(400)]
    async with serving_tls(store, authority) as host:
        client = await host.connect()
        await client.ask(b"(Declare jobs Round_robin (Persistent Weak))")
        by_hand = await host.connect_by_hand()
        slow = by_hand.conversation
        await slow.ask(b"(Subscribe jobs From_current)")
        await client.send(publish(b"jobs", bodies))
        await client.confirm()
        got = await slow.bodies(3)
        by_hand.reset()
        await eventually(lambda: host.connections == 1)
        other = await host.connect()
        await other.ask(b"(Subscribe jobs From_current)")
        first = await other.message()
        # Messages that it had read, and those on their way to it, are done; nothing behind them is.
        assert first.id > len(got)
        rest = [first.body] + await other.bodies(400 - first.id)
        assert rest == bodies[first.id - 1 :]


async def test_a_stalled_reader_continues_in_the_middle_of_a_large_message(
    store: Path, authority: Authority, clock: MockClock
) -> None:
    """Nothing is lost or sent twice of the records that were begun."""
    bodies = [b"".join(b"%d %07d " % (number, place) for place in range(2 * MIB)) for number in range(2)]
    async with serving_tls(store, authority, max_message_bytes=64 * MIB, missed_pings=0) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send_all(host, client, bodies)
        slow = await host.connect()
        await slow.ask(b"(Subscribe t From_beginning)")
        consumer = await feed(host, client, b"(Get t From_beginning)")
        await reads_although_stalled(host, clock, slow, bodies)
        assert await consumer.bodies(2) == bodies


# -- the end ------------------------------------------------------------------------------------------------


async def test_a_half_close_is_answered_and_closed(store: Path, authority: Authority) -> None:
    async with serving_tls(store, authority) as host:
        client = await host.connect()
        await client.send(publish(b"t", numbered(1, 1000)))
        await client.ask(b"(Subscribe t From_beginning)")
        await client.say(b"(Confirm 5)")
        await client.done()
        frames = await client.rest()  # raises when the server ends without close_notify
        assert len(frames) == 1001


async def test_a_sink_that_is_cut_off_is_not_confirmed(store: Path, authority: Authority) -> None:
    """Somebody on the way can end a TCP connection, but not say close_notify."""
    async with serving_tls(store, authority) as host:
        by_hand = await ManualConnection.open(host.tls_port, authority)
        connection = host.opened(by_hand.stream)
        await show_on(connection, await lease(await host.connect(), b"(Put t)"))
        assert (await response(connection)).startswith(b"200 OK")
        await connection.send(envelopes(numbered(1, 10)))
        transport = by_hand.socket
        await transport.send_eof()
        with trio.fail_after(PATIENCE):
            assert await transport.receive_some(1000) == b""


@pytest.mark.parametrize("how", ["closed", "reset", "garbage"])
async def test_a_connection_that_breaks_leaves_nothing_behind(
    store: Path, authority: Authority, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.connections")
    with uncollected() as left:
        async with serving_tls(store, authority) as host:
            client = await host.connect_by_hand()
            await client.conversation.say(b"(Subscribe t From_current)")
            await client.conversation.frame()
            match how:
                case "closed":
                    client.socket.close()  # without close_notify
                case "reset":
                    client.reset()
                case "garbage":
                    await client.socket.send_all(bytes(100))
            await eventually(lambda: host.server.connections == 0)
            await eventually(lambda: not left())
    (line,) = [line for line in caplog.messages if "disconnected after" in line]
    assert " s: it broke (" in line


async def test_the_server_says_why_it_ends(store: Path, authority: Authority, clock: MockClock) -> None:
    async with serving_tls(store, authority) as host:
        client = await host.connect()
        await pass_time(clock, 170, step=5)
        frames: list[Frame] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_time, clock, math.inf, 0.5)  # steps below the time for its end
            frames += await client.rest()
            nursery.cancel_scope.cancel()
        assert isinstance(frames[-1], Error)
        assert frames[-1].text.startswith(b"Ping: 3 in a row")


# -- handshakes ---------------------------------------------------------------------------------------------


async def test_a_handshake_has_its_time_and_no_more(
    store: Path, authority: Authority, clock: MockClock
) -> None:
    async with serving_tls(store, authority) as host:
        silent = await host.open_plain()
        await silent.send(bytes.fromhex("16030100c8010000c40303"))
        # This one shakes hands and then says nothing: the same time is for both.
        encrypted = await host.open()
        await eventually(lambda: host.handshakes == 2)
        await pass_time(clock, 5)  # a slow machine may have taken the other half
        assert host.handshakes == 2
        clock.jump(5)
        with trio.fail_after(PATIENCE):
            await silent.ended()
            with pytest.raises(anyio.BrokenResourceError):
                await encrypted.stream.receive_some(1)
        await eventually(lambda: host.handshakes == 0)


@pytest.mark.parametrize(
    "octets",
    [
        b"\x16\x03" + b"x" * 100,
        bytes.fromhex("1603010004aabbccdd") * 3,
        b"\x16\x03\x01\xff\xff" + b"z" * 70_000,
    ],
)
async def test_garbage_is_answered_and_closed(store: Path, authority: Authority, octets: bytes) -> None:
    async with serving_tls(store, authority) as host:
        stream = await trio.open_tcp_stream("127.0.0.1", host.port)
        async with stream:
            await stream.send_all(octets)
            with trio.fail_after(PATIENCE):
                answer = await stream.receive_some()
                assert answer.startswith(b"\x15\x03"), "an alert"
        await (await host.connect()).confirm()


async def test_older_versions_are_refused(store: Path, authority: Authority) -> None:
    async with serving_tls(store, authority) as host:
        context = ssl.create_default_context(cafile=authority.file)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(anyio.BrokenResourceError, match=r"TLS: .*version"):
            await open_stream("127.0.0.1", host.port, Security(context, "127.0.0.1"))


async def test_clients_certificates(store: Path, authority: Authority, tmp_path: Path) -> None:
    own, stranger = Authority(tmp_path / "own"), Authority(tmp_path / "stranger")
    async with serving_tls(store, authority, tls_client_ca=str(own.file)) as host:

        async def answer(shown: Authority | None) -> bytes:
            files = None if shown is None else shown.issue("client", "client")
            context = client_context(authority.file, files and files.cert, files and files.key)
            stream = await open_stream("127.0.0.1", host.port, Security(context, "127.0.0.1"))
            try:
                await stream.send_all(VERSION_ONE + CONNECT)
                with trio.fail_after(PATIENCE):
                    return await stream.receive_some(8)
            finally:
                stream.close()

        assert await answer(own) == VERSION_ONE
        with pytest.raises(anyio.BrokenResourceError, match=r"TLS: .*certificate required"):
            await answer(None)
        with pytest.raises(anyio.BrokenResourceError, match=r"TLS: .*(unknown ca|decrypt)"):
            await answer(stranger)


async def test_certificates_are_read_again(store: Path, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    async with serving_tls(store, authority) as host:
        before = await host.connect()
        shown = authority.issue("127.0.0.1")
        fresh = other.issue("127.0.0.1")
        shown.cert.write_bytes(fresh.cert.read_bytes())
        shown.key.write_bytes(fresh.key.read_bytes())
        assert host.server.certificates is not None
        host.server.certificates.reload()
        with pytest.raises(anyio.BrokenResourceError, match="the certificate is not accepted: "):
            await host.open()
        host.authority = other
        await (await host.connect()).confirm()
        await before.confirm()
