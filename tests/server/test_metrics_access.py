"""The clients that may read the metrics, and the rate at which they may."""

import select
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing
from quietness import quiet
from trio.testing import MockClock

from omq.config import ClientConfig
from omq.terminals.connection.statistics import Kind

from .client_accounts import passing
from .conversation import VERSION_ONE, Conversation, Host, eventually, serving
from .http_conversation import Answered, ask, basic, read_answer, request
from .metrics_samples import CLIENTS
from .test_operations import SECRET
from .test_reloading import reload


async def test_clients_with_the_right_watch_see_it(store: Path) -> None:
    async with serving(store, clients=CLIENTS) as host:
        for path in ("/metrics", "/readyz"):
            answered = await ask(host, request(path))
            assert answered.status == 401
            assert answered.fields["www-authenticate"] == 'Basic realm="omq", charset="UTF-8"'
            assert (await ask(host, request(path, Authorization=basic("watcher:sesame")))).status == 200
            answered = await ask(host, request(path, Authorization=basic("reader:sesame")))
            assert (answered.status, answered.body) == (403, b"this client may not watch the server\n")
            for field in ("Basic", "Basic !", "Bearer x", basic("nobody")):
                assert (await ask(host, request(path, Authorization=field))).status == 401
        assert (await ask(host, request("/healthz"))).status == 200
        await eventually(lambda: host.connections == 0)


async def test_wrong_secrets_count_as_attempts(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store, clients=CLIENTS) as host:
        assert (await ask(host, request("/metrics", Authorization=basic("watcher:wrong")))).status == 401
        assert "a wrong secret for 'watcher'" in caplog.text
        clock.rate = 0
        client = await host.open()
        await client.send(request("/metrics", Authorization=basic("watcher:sesame")))
        buffered = bytearray()
        waiting: list[Answered] = []
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def read() -> None:
                waiting.append(await read_answer(client.stream, buffered))

            await quiet()
            assert not waiting  # this address waits a second
            clock.jump(1.1)
        assert [answered.status for answered in waiting] == [200]


async def test_a_secret_is_not_asked_for_where_others_can_read_it(store: Path) -> None:
    """Only Linux answers at an address that is not a loopback one without a network: its own."""
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback ones")
    async with serving(store, clients=CLIENTS, listen_http=[f"{address}:0"]) as host:
        port = host.server.http_addresses[0][1]
        stream = await trio.open_tcp_stream(address, port)
        async with stream:
            octets = request("/metrics", host=address, Authorization=basic("watcher:sesame"))
            await stream.send_all(octets + request("/healthz", host=address))
            buffered = bytearray()
            answered = await read_answer(stream, buffered)
            assert answered.status == 403
            assert b"over TLS" in answered.body
            assert (await read_answer(stream, buffered)).status == 200


def own_address() -> str | None:
    """Return an address of this machine that is no loopback one."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)
    addresses = [each for each in found.stdout.split() if ":" not in each]
    return addresses[0] if addresses else None


async def test_requests_count_as_connections_of_their_client(store: Path) -> None:
    watcher = ClientConfig(name="watcher", secret=str(SECRET), watch=["*"], max_connections=1)
    async with serving(store, clients=[watcher]) as host:
        client = await host.open()
        await client.send(VERSION_ONE + b"(Connect 1 watcher:sesame)\n")
        await client.octets(8)
        await client.confirm()
        octets = request("/metrics", Authorization=basic("watcher:sesame"))
        answered = await ask(host, octets)
        assert (answered.status, answered.body) == (
            429,
            b"this client has its 1 connection, the most it may have\n",
        )
        client.close()
        assert (await ask(host, octets)).status == 200


async def test_a_secret_that_is_not_checked_in_time_is_refused(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=CLIENTS, handshake_seconds=0.5) as host:
        clock.rate = 0  # the check of the first secret may take long
        assert (await ask(host, request("/metrics", Authorization=basic("nobody:a")))).status == 401
        client = await host.open()
        await client.send(request("/metrics", Authorization=basic("watcher:sesame")))
        await quiet()  # this address waits for a second
        clock.jump(0.6)
        clock.rate = 1
        assert (await read_answer(client.stream, bytearray())).status == 503


async def test_a_client_is_answered_within_its_rate_limit(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=CLIENTS) as host:
        octets = request("/metrics", Authorization=basic("slow:sesame"))
        assert (await ask(host, octets)).status == 200
        before = trio.current_time()
        async with passing(clock):
            assert (await ask(host, octets)).status == 200
        assert trio.current_time() - before > 5


async def wait_for_rate(host: Host, count: int) -> list[Conversation]:
    """Return connections with requests of the client `slow` that wait for its rate limit."""
    octets = request("/metrics", Authorization=basic("slow:sesame"))
    assert (await ask(host, octets)).status == 200
    waiting = [await host.open() for _ in range(count)]
    for each in waiting:
        await each.send(octets)
    await quiet()
    return waiting


async def test_a_client_at_its_rate_limit_delays_no_other(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=CLIENTS) as host:
        waiting = await wait_for_rate(host, 6)
        answered = await ask(host, request("/metrics", Authorization=basic("watcher:sesame")))
        assert answered.status == 200
        readable, _, _ = select.select([each.stream.socket.fileno() for each in waiting], [], [], 0)
        assert not readable


async def test_a_client_that_does_not_read_delays_no_other(store: Path) -> None:
    other = ClientConfig(name="other", secret=str(SECRET), declare=["*"], publish=["*"], watch=["*"])
    async with serving(store, clients=[*CLIENTS, other]) as host:
        writer = await host.open()
        await writer.send(VERSION_ONE + b"(Connect 1 other:sesame)\n")
        await writer.octets(8)
        await writer.send(b"".join(b"(Declare t%d Broadcast Transient)\n" % n for n in range(300)))
        await writer.settle()
        octets = request("/metrics", Authorization=basic("other:sesame"))
        for _ in range(5):
            await (await host.open(receive_octets=2048)).send(octets * 10)

        def sending() -> int:
            found = [each.statistics() for each in host.server.terminals()]
            return sum(each.kind is Kind.HTTP and each.is_sending for each in found)

        await eventually(lambda: sending() == 4)
        before = host.connections
        answered = await ask(host, request("/metrics", Authorization=basic("watcher:sesame")))
        assert answered.status == 200
        # A connection is sending until its task runs again, which may be after its client has the answer.
        await eventually(lambda: host.connections == before)
        assert sending() == 4


async def test_a_waiting_request_needs_its_right_when_it_is_answered(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=CLIENTS) as host:
        (first,) = await wait_for_rate(host, 1)
        fewer = ClientConfig(name="slow", secret=str(SECRET), watch=["t"], max_bytes_per_second=1000)
        await reload(host.server, lambda _: {"clients": [CLIENTS[0], fewer]})
        clock.jump(1000)
        answered = await read_answer(first.stream, bytearray())
        assert (answered.status, answered.body) == (403, b"this client may not watch the server\n")
        await reload(host.server, lambda _: {"clients": CLIENTS})
        (second,) = await wait_for_rate(host, 1)
        await reload(host.server, lambda _: {"clients": CLIENTS[:1]})
        clock.jump(1000)
        assert (await read_answer(second.stream, bytearray())).status == 401


async def test_a_disconnected_client_is_not_answered(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=CLIENTS) as host:
        (only,) = await wait_for_rate(host, 1)
        before = trio.current_time()
        async with passing(clock):
            await read_answer(only.stream, bytearray())
        once = trio.current_time() - before
        clock.jump(1000)
        for each in await wait_for_rate(host, 3):
            each.close()
        clock.jump(2 * once)
        await quiet()
        before = trio.current_time()
        octets = request("/metrics", Authorization=basic("slow:sesame"))
        async with passing(clock):
            assert (await ask(host, octets)).status == 200
        assert trio.current_time() - before < once / 2
