"""HTTP at the server's ports: see docs/HTTP.md."""

from pathlib import Path

import pytest
import trio
import trio.testing
from certificates import Authority
from quietness import quiet
from trio.testing import MockClock

import omq
from omq.credentials import client_context
from omq.terminals.connection.statistics import Kind

from .conversation import PATIENCE, Conversation, InProcess, eventually, serving
from .http_conversation import ask, read_answer, request


async def ended(client: Conversation) -> None:
    """Wait until the server ends the connection without another octet."""
    with trio.fail_after(PATIENCE):
        assert await client.stream.receive_some(1) == b""


async def test_the_server_says_that_it_is_alive(store: Path) -> None:
    async with serving(store) as host:
        answered = await ask(host, request("/healthz"))
        assert (answered.status, answered.body) == (200, b"ok\n")
        assert answered.fields["cache-control"] == "no-store"


async def test_every_answer_forbids_features_pages_do_not_need(store: Path) -> None:
    async with serving(store) as host:
        for path in ("/healthz", "/nothing"):
            fields = (await ask(host, request(path))).fields
            policy = fields["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert fields["x-content-type-options"] == "nosniff"
            assert fields["referrer-policy"] == "no-referrer"
            assert "access-control-allow-origin" not in fields


async def test_requests_may_come_together_and_in_parts(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        buffered = bytearray()
        await client.send(request("/healthz") + request("/nothing") + request("/healthz", "HEAD")[:20])
        assert (await read_answer(client.stream, buffered)).status == 200
        assert (await read_answer(client.stream, buffered)).status == 404
        assert [each.statistics().kind for each in host.server.terminals()] == [Kind.HTTP]
        assert host.server.statistics().served[Kind.HTTP] == 1
        await client.send(request("/healthz", "HEAD")[20:] + request("/healthz"))
        answered = await read_answer(client.stream, buffered, head=True)
        assert answered.fields["content-length"] == "3"
        assert (await read_answer(client.stream, buffered)).body == b"ok\n"
        await client.done()
        await ended(client)
        await eventually(lambda: host.connections == 0)


async def test_a_request_may_offer_another_protocol(store: Path) -> None:
    """As curl does for HTTP/2: the server stays with HTTP/1.1."""
    async with serving(store) as host:
        client = await host.open()
        buffered = bytearray()
        offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAAQ"}
        await client.send(request("/healthz", **offer) + request("/healthz"))
        for _ in range(2):
            assert (await read_answer(client.stream, buffered)).body == b"ok\n"


@pytest.mark.parametrize(
    "octets",
    [
        request("/ws"),
        b"GET http://127.0.0.1/ws HTTP/1.0\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: \xff\r\nUpgrade: \xff\r\n\r\n",
        request("/ws", Upgrade="websocket", Connection="Upgrade"),
        request("/ws", Upgrade="h2c", Connection="Upgrade"),
        request(
            "/ws",
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Version="12",
            Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
        ),
        request(
            "/ws",
            "HEAD",
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
        ),
    ],
)
async def test_a_request_that_opens_no_websocket_is_told_how(store: Path, octets: bytes) -> None:
    async with serving(store) as host:
        answered = await ask(host, octets)
        assert answered.status == 426
        assert (answered.fields["upgrade"], answered.fields["sec-websocket-version"]) == ("websocket", "13")


async def test_a_client_that_reads_nothing_is_given_up(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await host.open(receive_octets=4096)
        await client.send(b"".join([request("/client/lib/client.js")] * 400))
        await quiet()
        (connection,) = host.server.terminals()
        assert connection.statistics().is_sending
        clock.jump(31)
        await eventually(lambda: host.connections == 0)


async def test_http_1_0_ends_the_connection(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert (await read_answer(client.stream, bytearray())).status == 200
        await ended(client)


async def test_an_absolute_target_names_the_host(store: Path) -> None:
    async with serving(store) as host:
        octets = request("http://127.0.0.1/healthz?x", host="evil.example")
        assert (await ask(host, octets)).status == 200
        assert (await ask(host, request("http://evil.example/healthz"))).status == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
async def test_other_methods_are_refused(store: Path, method: str) -> None:
    async with serving(store) as host:
        answered = await ask(host, request("/healthz", method))
        assert (answered.status, answered.fields["allow"]) == (405, "GET, HEAD")
        assert (await ask(host, request("/healthz"))).status == 200


BAD = {
    "no version": (b"GET /healthz\r\n\r\n", 400),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "an empty host": (b"GET /healthz HTTP/1.0\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
    "a folded field": (b"GET / HTTP/1.1\r\n folded\r\n\r\n", 400),
    "two lengths": (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1, 2\r\n\r\n", 400),
    "a bad authority": (b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a bad authority of a head": (b"HEAD http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "CONNECT": (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "many fields": (request("/healthz")[:-2] + b"a: b\r\n" * 64 + b"\r\n", 431),
    "a long field": (request("/healthz", X="x" * 8192), 431),
    "an endless head": (request("/healthz", X="x" * 8192)[:-4], 431),
    "a long target": (request("/" + "x" * 8192), 414),
    "an endless target": (b"GET /" + b"x" * 8192, 414),
    "a body": (request("/healthz", Content_Length="3") + b"abc", 413),
    "a body in chunks": (request("/healthz", Transfer_Encoding="chunked") + b"0\r\n\r\n", 413),
    "a body without end": (request("/healthz", "POST", Content_Length="99999999999") + b"abc", 405),
    "a body for nobody": (request("/x", "POST", Content_Length="99999999999") + b"abc", 404),
}


@pytest.mark.parametrize(("octets", "status"), BAD.values(), ids=BAD.keys())
async def test_a_bad_request_ends_its_connection_and_nothing_else(
    store: Path, octets: bytes, status: int
) -> None:
    async with serving(store) as host:
        other = await host.connect()
        client = await host.open()
        await client.send(octets)
        answered = await read_answer(client.stream, bytearray(), head=octets.startswith(b"HEAD"))
        assert answered.status == status
        assert b"bytearray" not in answered.body
        if status != 404 or b"CONNECT" not in octets:
            assert answered.fields["connection"] == "close"
            await ended(client)
        await other.confirm()
        assert host.server.statistics().defects == 0


async def test_a_head_has_a_time(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(request("/healthz")[:-1])
        await eventually(lambda: host.server.statistics().served[Kind.HTTP] == 1)
        clock.jump(10.1)
        assert (await read_answer(client.stream, bytearray())).status == 408
        await ended(client)


async def test_an_idle_connection_ends(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(request("/healthz"))
        await read_answer(client.stream, bytearray())
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):  # together these are longer than a connection may be idle
            clock.jump(31)
            await client.send(request("/healthz"))
            await read_answer(client.stream, bytearray())
            await trio.testing.wait_all_tasks_blocked()
        clock.jump(60.1)
        await ended(client)


async def test_an_idle_connection_ends_when_the_server_stops(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(request("/healthz"))
        await read_answer(client.stream, bytearray())
        await host.server.stop()
        await ended(client)


async def test_connections_of_http_give_way_to_clients(store: Path) -> None:
    async with serving(store, max_connections=2) as host:
        idle = [await host.open() for _ in range(2)]
        for client in idle:
            await client.send(request("/healthz"))
            await read_answer(client.stream, bytearray())
        known = await host.connect()
        await known.confirm()
        await ended(idle[0])


# -- Host and Origin ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9999", 200),
        ("localhost", 200),
        ("LOCALHOST:7730", 200),
        ("localhost.", 200),
        ("omq.example", 200),
        ("127.0.0.2", 421),
        ("[::1]", 421),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil@localhost", 400),
        ("local host", 400),
        ("", 400),
    ],
)
async def test_a_host_is_an_address_of_the_server_or_configured(store: Path, name: str, status: int) -> None:
    async with serving(store, http_hosts=["OMQ.example"]) as host:
        for path in ("/healthz", "/ws", "/nothing"):
            answered = await ask(host, request(path, host=name))
            assert answered.status in ({200, 404, 426} if status == 200 else {status}), path


async def test_an_origin_is_the_servers_own_or_configured(store: Path) -> None:
    async with serving(store, http_origins=["https://console.example"]) as host:
        own = f"127.0.0.1:{host.port}"
        answered = await ask(host, request("/healthz", host=own, Origin=f"http://{own}"))
        assert answered.status == 200
        assert "access-control-allow-origin" not in answered.fields
        answered = await ask(host, request("/healthz", host=own, Origin="https://console.example"))
        assert answered.status == 200
        assert answered.fields["access-control-allow-origin"] == "https://console.example"
        assert answered.fields["vary"] == "Origin"
        others = ("http://127.0.0.1:1", "http://evil.example", "null", "")
        for origin in (f"https://{own}", f"http://{own}/", *others):
            assert (await ask(host, request("/healthz", host=own, Origin=origin))).status == 403, origin


async def test_pages_of_other_sites_load_nothing_without_origin(store: Path) -> None:
    async with serving(store, http_origins=["https://console.example"]) as host:
        for path in ("/metrics", "/readyz", "/ws"):
            for site in ("cross-site", "same-site"):
                assert (await ask(host, request(path, Sec_Fetch_Site=site))).status == 403, path
                octets = request(path, Sec_Fetch_Site=site, Origin="https://console.example")
                assert (await ask(host, octets)).status != 403, path
            for site in ("same-origin", "none"):
                assert (await ask(host, request(path, Sec_Fetch_Site=site))).status != 403, path
        assert (await ask(host, request("/", Sec_Fetch_Site="cross-site"))).status == 200


# -- where HTTP is spoken ----------------------------------------------------------------------------------


async def test_http_can_be_off(store: Path) -> None:
    async with serving(store, http=False) as host:
        client = await host.open()
        await client.send(request("/healthz"))
        assert await client.octets(8) == b"\xff" * 8
        await client.ended()


async def test_http_can_have_addresses_of_its_own(store: Path) -> None:
    async with serving(store, listen_http=["127.0.0.1:0"]) as host:
        own = InProcess(host.server)
        own.port = host.server.http_addresses[0][1]
        assert (await ask(own, request("/healthz"))).status == 200
        client = await host.open()
        await client.send(request("/healthz"))
        assert await client.octets(8) == b"\xff" * 8
        client = await own.open()
        await client.send(b"\0\0\0\0\0\0\0\1(Connect 1 test)\n")
        await ended(client)
        own.hang_up()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that issues the server's certificate."""
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_http_inside_tls(store: Path, authority: Authority) -> None:
    shown = authority.issue("127.0.0.1")
    async with serving(store, tls_cert=str(shown.cert), tls_key=str(shown.key)) as host:
        plain = await host.open()
        context = client_context(authority.file, None, None)
        stream = trio.SSLStream(plain.stream, context, server_hostname="127.0.0.1", https_compatible=True)
        await stream.send_all(request("/healthz", Origin="https://127.0.0.1"))
        assert (await read_answer(stream, bytearray())).status == 200
        await stream.send_all(request("/healthz", Origin="http://127.0.0.1"))
        assert (await read_answer(stream, bytearray())).status == 403


# -- files -------------------------------------------------------------------------------------------------


async def test_files_are_served_with_their_types_and_tags(store: Path) -> None:
    file = Path(omq.__file__).parent / "console" / "client" / "omq.js"
    async with serving(store) as host:
        answered = await ask(host, request("/client/omq.js"))
        assert (answered.status, answered.body) == (200, file.read_bytes())
        assert answered.fields["content-type"] == "text/javascript; charset=utf-8"
        assert answered.fields["cache-control"] == "no-cache"
        tag = answered.fields["etag"]
        for condition in (tag, f'"other", W/{tag}', "*"):
            client = await host.open()
            octets = request("/client/omq.js", If_None_Match=condition)
            await client.send(octets + request("/client/omq.js", If_None_Match='"other"'))
            buffered = bytearray()
            unchanged = await read_answer(client.stream, buffered)
            assert (unchanged.status, unchanged.body, unchanged.fields["etag"]) == (304, b"", tag)
            assert (await read_answer(client.stream, buffered)).body == file.read_bytes()
        answered = await ask(host, request("/client/omq.js", "HEAD"))
        assert answered.fields["content-length"] == str(file.stat().st_size)
        assert (await ask(host, request("/client/omq.js", "POST"))).status == 405


async def test_files_outside_the_folder_are_not_served(store: Path) -> None:
    async with serving(store) as host:
        climbing = ("/../server.py", "/..%2fserver.py", "/%2e%2e/server.py")
        for path in (*climbing, "//etc/passwd", "/__init__.py", "/.", "/client", "/client/package.json"):
            assert (await ask(host, request(path))).status == 404, path
