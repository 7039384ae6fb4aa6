"""The omq protocol through a WebSocket: see docs/PROTOCOL.md, "WebSocket"."""

import re
import socket
import struct
from pathlib import Path

import pytest
import trio
import trio.testing
from certificates import Authority
from counted_steps import counted_calls
from quietness import pass_time
from trio.testing import MockClock
from wsproto.events import BytesMessage, Ping, TextMessage

from omq.credentials import client_context
from omq.protocol.http.websocket import WebSocket
from omq.protocol.omq.types import Confirmed, Error, Message
from omq.terminals.connection.statistics import Kind
from omq.terminals.connection.transport import MOST_OCTETS, Transport
from omq.terminals.http.websocket_transport import WebSocketTransport

from .conversation import (
    CONNECT,
    VERSION_ONE,
    Conversation,
    declared,
    eventually,
    numbered,
    publish,
    reads_although_stalled,
    serving,
)
from .dmp_conversation import send_all
from .http_conversation import request
from .websocket_conversation import (
    Rejected,
    WebSocketStream,
    closed_with,
    connect_websocket,
    open_websocket,
    stream_of,
    without_delay,
)

MIB = 1 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that issues the server's certificate."""
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_omq_is_spoken_through_a_websocket(store: Path) -> None:
    async with serving(store) as host:
        reader = await connect_websocket(host)
        await reader.say(b"(Subscribe prices From_current)")
        await reader.settle()
        writer = await host.connect()
        await writer.say(b'(Publish prices "one")', b'(Publish prices "two")')
        await reader.frame()  # Subscribed
        assert await reader.bodies(2) == [b"one", b"two"]
        (seen,) = [each.statistics() for each in host.server.terminals() if each.subscriptions()]
        assert seen.kind is Kind.OMQ
        assert host.server.statistics().served[Kind.HTTP] == 0


async def test_boundaries_of_messages_mean_nothing(store: Path) -> None:
    async with serving(store) as host:
        client = await open_websocket(host)
        without_delay(client)
        for octet in VERSION_ONE + CONNECT + b"(Confirm 7)\n":
            await client.send(bytes([octet]))
        assert await client.octets(8) == VERSION_ONE
        assert await client.frame() == Confirmed(7)
        await client.send(b"(Confirm 1)\n(Confirm 2)\n(Conf")
        await stream_of(client).message(BytesMessage(data=b"irm ", message_finished=False))
        await stream_of(client).message(BytesMessage(data=b"3)\n"))
        assert [await client.frame() for _ in range(3)] == [Confirmed(1), Confirmed(2), Confirmed(3)]


async def test_the_first_octets_may_come_with_the_request(store: Path) -> None:
    async with serving(store) as host:
        plain = await host.open()
        await plain.send(
            b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            b"\x82\x88\0\0\0\0" + VERSION_ONE + b"\x82\x9d\0\0\0\0" + CONNECT + b"(Confirm 1)\n"
        )
        head = await plain.octets(len(b"HTTP/1.1 101 "))
        assert head == b"HTTP/1.1 101 "
        while not head.endswith(b"\r\n\r\n"):
            head += await plain.octets(1)
        assert await plain.octets(10) == b"\x82\x08" + VERSION_ONE
        await plain.octets(2)
        assert await plain.frame() == Confirmed(1)


@pytest.mark.parametrize(("offered", "chosen"), [("mqtt, omq", b"omq"), ("mqtt", None), ("", None)])
async def test_the_subprotocol_is_omq_or_none(store: Path, offered: str, chosen: bytes | None) -> None:
    async with serving(store) as host:
        plain = await host.open()
        fields = {"Sec_WebSocket_Protocol": offered} if offered else {}
        await plain.send(
            request(
                "/ws",
                Upgrade="websocket",
                Connection="Upgrade",
                Sec_WebSocket_Version="13",
                Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
                Sec_WebSocket_Extensions="permessage-deflate",
                **fields,
            )
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await plain.octets(1)
        lines = dict(line.lower().split(b": ") for line in head.split(b"\r\n")[1:-2])
        assert lines.get(b"sec-websocket-protocol") == chosen
        assert b"sec-websocket-extensions" not in lines


async def test_text_is_taken_for_lines(store: Path) -> None:
    async with serving(store) as host:
        client = await open_websocket(host)
        await client.send(VERSION_ONE)
        for text in ("(Connect 1 test)", "(Confirm 1)\n(Confirm 2)", "(Confirm 3)\n", ""):
            await stream_of(client).message(TextMessage(data=text))
        await stream_of(client).message(TextMessage(data="(Confirm", message_finished=False))
        await stream_of(client).message(TextMessage(data=" 4)"))
        assert await client.octets(8) == VERSION_ONE
        assert [await client.frame() for _ in range(4)] == [Confirmed(n) for n in (1, 2, 3, 4)]


async def test_a_large_replay_arrives_whole(store: Path) -> None:
    async with serving(store) as host:
        writer = await host.connect()
        bodies = [body * 40 for body in numbered(10_000, 30_000)]
        await writer.send(publish(b"many", bodies))
        await writer.confirm()
        reader = await connect_websocket(host)
        await reader.say(b"(Subscribe many From_beginning)")
        await reader.frame()  # Subscribed
        assert await reader.bodies(len(bodies)) == bodies


async def test_a_large_line_may_come_in_one_message(store: Path) -> None:
    async with serving(store) as host:
        client = await connect_websocket(host)
        await client.say(b"(Subscribe large From_current)")
        await client.frame()
        body = b"x" * 900_000
        await client.say(b'(Publish large "' + body + b'")')
        message = await client.frame()
        assert isinstance(message, Message)
        assert message.body == body


async def test_close_is_the_end_of_the_input(store: Path) -> None:
    async with serving(store) as host:
        client = await connect_websocket(host)
        await client.say(b"(Publish prices one)", b"(Confirm 1)")
        await client.done()
        assert await client.rest() == [Confirmed(1)]
        assert closed_with(client) == 1000
        await eventually(lambda: host.connections == 0)


async def test_the_server_closes_in_order_when_it_stops(store: Path) -> None:
    async with serving(store) as host:
        client = await connect_websocket(host)
        await client.settle()
        await host.server.stop()
        assert await client.rest() == []
        assert closed_with(client) == 1000


@pytest.mark.parametrize(
    ("how", "why"), [("eof", "it ended without Close"), ("reset", "Connection reset by peer")]
)
async def test_an_end_without_close_is_no_end_of_the_input(
    store: Path, how: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.connections")
    async with serving(store) as host:
        client = await connect_websocket(host)
        await client.say(b"(Subscribe prices From_current)")
        await client.settle()
        if how == "eof":
            await stream_of(client).stream.send_eof()
        else:
            connected = stream_of(client).stream
            assert isinstance(connected, trio.SocketStream)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connected.socket.close()
        await eventually(lambda: host.connections == 0)
    (line,) = [line for line in caplog.messages if " disconnected after " in line]
    assert f" s: it broke ({why}); " in line


async def test_pings_are_answered_between_messages(store: Path) -> None:
    async with serving(store) as host:
        client = await connect_websocket(host)
        await stream_of(client).message(Ping(payload=b"there?"))
        await client.confirm()
        assert stream_of(client).pongs == [b"there?"]


@pytest.mark.parametrize(
    ("octets", "code"),
    [
        (b"\x82\x05hello", 1002),  # not masked
        (b"\x83\x80\0\0\0\0", 1002),  # a reserved opcode
        (b"\x80\x80\0\0\0\0", 1002),  # a continuation of nothing
        (b"\xc2\x80\0\0\0\0", 1002),  # a reserved bit
        (b"\x89\xfe\x01\x00\0\0\0\0", 1002),  # a long Ping
        (b"\x81\x81\0\0\0\0\xff", 1007),  # not UTF-8
    ],
)
async def test_a_wrong_frame_ends_the_connection_with_its_code(store: Path, octets: bytes, code: int) -> None:
    async with serving(store) as host:
        client = await connect_websocket(host)
        await client.say(b"(Confirm 1)")
        await stream_of(client).stream.send_all(octets)
        frames = await client.rest()
        assert frames[0] == Confirmed(1)
        closed = stream_of(client).closed
        assert closed is not None
        assert closed.code == code


async def test_a_message_has_a_bound(store: Path) -> None:
    async with serving(store) as host:
        client = await connect_websocket(host)
        lines = b"\n" * (1 << 20)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send() -> None:
                try:
                    for _ in range(18):
                        message = BytesMessage(data=lines, message_finished=False)
                        await stream_of(client).message(message)
                except trio.BrokenResourceError:
                    pass  # the server has closed

            assert await client.rest() == []
        assert closed_with(client) == 1009


async def test_many_empty_frames_do_not_delay_other_clients(store: Path) -> None:
    async with serving(store) as host:
        client = await connect_websocket(host)
        with counted_calls() as calls:
            await stream_of(client).stream.send_all(b"\x82\x80\0\0\0\0" * 5000)
            await client.confirm()
        assert calls.total > 10 * 5000
        assert calls.longest < 5000  # a step reads 32 frames


def frame_of(octets: int) -> bytes:
    """Return a binary message of a client with this many line feeds."""
    length = bytes([0x80 | octets]) if octets < 126 else b"\xfe" + octets.to_bytes(2, "big")
    return b"\x82" + length + b"\0\0\0\0" + b"\n" * octets


async def test_tiny_frames_are_read_no_faster_than_they_are_decoded() -> None:
    ours, theirs = trio.socket.socketpair()
    async with trio.SocketStream(ours) as server, trio.SocketStream(theirs) as client:
        plain = Transport(server)
        transport = WebSocketTransport(plain, WebSocket())
        large, tiny = frame_of(60_000), frame_of(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, large + tiny * 200_000)
            assert await transport.receive()
            for _ in range(1000):
                arrived = transport.arrived()
                assert 0 < arrived <= MOST_OCTETS
                await trio.lowlevel.checkpoint()
                transport.receive_arrived(arrived)
                decoded = transport.received
                if decoded > 60_000:
                    decoded = len(large) + (decoded - 60_000) * len(tiny)
                assert plain.received - decoded <= MOST_OCTETS
            nursery.cancel_scope.cancel()


async def test_each_read_lets_the_other_tasks_run() -> None:
    ours, theirs = trio.socket.socketpair()
    async with trio.SocketStream(ours) as server, trio.SocketStream(theirs) as client:
        transport = WebSocketTransport(Transport(server), WebSocket())
        await client.send_all(frame_of(10))
        for _ in range(10):
            with trio.testing.assert_checkpoints():
                assert await transport.receive(1) == b"\n"


async def test_another_protocol_inside_is_refused(store: Path) -> None:
    async with serving(store) as host:
        client = await open_websocket(host)
        await client.send(b"AMQP\x00\x00\x09\x01")
        assert await client.octets(8) == b"\xff" * 8
        await client.ended()


async def test_the_first_octets_have_a_time(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await open_websocket(host)
        await client.send(VERSION_ONE[:4])
        await eventually(lambda: host.handshakes == 1)
        clock.jump(11)
        with pytest.raises(AssertionError, match="without Close"):
            await client.rest()


async def test_a_silent_client_is_pinged_and_given_up(store: Path, clock: MockClock) -> None:
    async with serving(store, ping_seconds=40, missed_pings=1) as host:
        client = await connect_websocket(host)
        await client.settle()
        await pass_time(clock, 100)
        (error,) = await client.rest()
        assert isinstance(error, Error)
        assert b"not answered" in error.text
        assert len(client.pings) == 1


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
async def test_a_client_that_stops_reading_delays_no_other_client(store: Path, persistence: bytes) -> None:
    async with serving(store, memory_bytes=4 << 20, spool_bytes=0) as host:
        slow = await connect_websocket(host, receive_octets=4096)
        fast = await connect_websocket(host)
        for client in (slow, fast):
            await client.say(b"(Declare prices Broadcast %s)" % persistence)
            await client.say(b"(Subscribe prices From_current)")
            await client.settle()
            for _ in range(2):
                await client.frame()  # Declared, Subscribed
        writer = await host.connect()
        bodies = [body * 200 for body in numbered(10_000, 17_999)]
        for first in range(0, len(bodies), 500):
            some = bodies[first : first + 500]
            await writer.send(publish(b"prices", some))
            assert await fast.bodies(len(some)) == some
        await slow.say(b"(Confirm 1)")
        received: list[bytes] = []
        missed = 0
        while len(received) + missed < len(bodies):
            match await slow.frame():
                case Message(id=id, body=body):
                    received.append(body)
                    assert body == bodies[id - 1]
                case Error(text):
                    assert persistence == b"Transient"
                    first, last = re.findall(rb"\d+", text)[:2]
                    missed += int(last) - int(first) + 1
                case frame:
                    assert frame == Confirmed(1)
        assert missed > 0 or persistence != b"Transient"


async def test_a_stalled_reader_continues_in_the_middle_of_a_large_message(
    store: Path, clock: MockClock
) -> None:
    """Nothing is lost or sent twice of the messages of the WebSocket that were begun."""
    bodies = [b"".join(b"%d %07d " % (number, place) for place in range(MIB)) for number in range(2)]
    async with serving(store, max_message_bytes=64 * MIB, missed_pings=0) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send_all(host, client, bodies)
        slow = await connect_websocket(host, receive_octets=4096)
        await slow.ask(b"(Subscribe t From_beginning)")
        await reads_although_stalled(host, clock, slow, bodies)


async def test_a_websocket_inside_tls(store: Path, authority: Authority) -> None:
    shown = authority.issue("127.0.0.1")
    async with serving(store, tls_cert=str(shown.cert), tls_key=str(shown.key)) as host:
        plain = await host.open()
        secure = trio.SSLStream(
            plain.stream, client_context(authority.file, None, None), server_hostname="127.0.0.1"
        )
        stream = WebSocketStream(secure, "https://127.0.0.1")
        await stream.open("127.0.0.1")
        client = Conversation(stream)  # type: ignore[arg-type]  # it has the methods of a SocketStream that are used
        await client.send(VERSION_ONE + CONNECT)
        assert await client.octets(8) == VERSION_ONE
        await client.say(b"(Subscribe prices From_current)")
        await client.frame()
        bodies = [b"x" * 1000] * 3000
        writer = await host.connect()
        await writer.send(publish(b"prices", bodies))
        assert await client.bodies(len(bodies)) == bodies
        (seen,) = [each.statistics() for each in host.server.terminals() if each.subscriptions()]
        assert seen.is_encrypted


async def test_a_page_of_another_site_is_refused(store: Path) -> None:
    async with serving(store, http_origins=["https://console.example"]) as host:
        for origin in (
            "https://evil.example",
            "null",
            f"https://127.0.0.1:{host.port}",
            "http://127.0.0.1:1",
        ):
            with pytest.raises(Rejected) as raised:
                await open_websocket(host, origin)
            assert raised.value.args == (403,)
        for origin in (f"http://127.0.0.1:{host.port}", "https://console.example"):
            await (await open_websocket(host, origin)).send(VERSION_ONE)
