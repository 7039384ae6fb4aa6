"""`omqs://`: the client library over TLS, at a real server with a real certificate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from certificates import Authority
from client_helpers import OpenServer, Running

from omq.client import ConnectionFailed, ConnectionLost, FromBeginning, connect
from omq.server import Server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def serving(open_omq: OpenServer, authority: Authority, port: int = 0) -> AsyncIterator[Server]:
    shown = authority.issue("127.0.0.1")
    async with open_omq(port, tls_cert=str(shown.cert), tls_key=str(shown.key)) as server:
        yield server


def url(server: Server, host: str = "127.0.0.1") -> str:
    return f"omqs://{host}:{server.port}"


async def test_publish_and_subscribe(open_omq: OpenServer, authority: Authority) -> None:
    bodies = [b"%d" % number * 50 for number in range(20_000)]
    async with (
        serving(open_omq, authority) as server,
        connect(url(server), ca=authority.file) as client,
        client.subscribe("t") as messages,
    ):
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(client.publish_many, "t", bodies)
            got = [(await anext(messages)).body for _ in bodies]
        assert got == bodies
        await client.confirm()


async def test_the_last_published_messages_arrive(open_omq: OpenServer, authority: Authority) -> None:
    """The end of the block closes one direction, with close_notify."""
    async with serving(open_omq, authority) as server:
        async with connect(url(server), ca=authority.file) as client:
            await client.publish_many("t", [b"x" * 1000] * 1000)
        async with connect(url(server), ca=authority.file) as client:
            assert (await client.topics())[0].messages == 1000


async def test_sinks_and_feeds(open_omq: OpenServer, authority: Authority) -> None:
    async with (
        serving(open_omq, authority) as server,
        connect(url(server), ca=authority.file) as client,
        client.feed("t") as feed,
    ):
        async with client.sink("t") as sink:
            assert await sink.publish_many([b"x" * 3000] * 2000) == 2000
        assert sink.stored == 2000
        count = 0
        while count < 2000:
            run = await feed.next_run()
            assert run is not None
            count += len(run.bodies)
        await client.delete("t")
        assert await feed.next_run() is None


async def test_a_lost_connection_is_opened_again(open_omq: OpenServer, authority: Authority) -> None:
    async with anyio.create_task_group() as nursery:
        first = await Running.start(nursery, serving(open_omq, authority))
        port = first.server.port
        async with connect(url(first.server), ca=authority.file, reconnect=True) as client:
            await client.publish_confirmed("t", b"1")
            await first.stop()
            second = await Running.start(nursery, serving(open_omq, authority, port))
            async with client.subscribe("t", FromBeginning()) as messages:
                assert (await anext(messages)).body == b"1"
                await client.publish_confirmed("t", b"2")
                assert (await anext(messages)).body == b"2"
        await second.stop()


async def test_the_certificate_must_belong_to_the_host(
    open_omq: OpenServer, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    async with serving(open_omq, authority) as server:
        with pytest.raises(ConnectionFailed, match="TLS: the certificate is not accepted: "):
            async with connect(url(server), ca=stranger.file):
                pass
        with pytest.raises(ConnectionFailed, match="TLS: the certificate is not accepted: "):
            async with connect(url(server)):  # of those that the system trusts
                pass
        with pytest.raises(ConnectionFailed, match=r"TLS: the certificate .*: Hostname mismatch"):
            async with connect(url(server, "localhost"), ca=authority.file):
                pass


async def test_a_server_without_tls(server: Server, authority: Authority) -> None:
    with pytest.raises(ConnectionFailed, match=r"TLS: the connection ended .*; perhaps the port .* omq://"):
        async with connect(url(server), ca=authority.file):
            pass


async def test_a_client_without_the_required_certificate(
    open_omq: OpenServer, authority: Authority, tmp_path: Path
) -> None:
    shown = authority.issue("127.0.0.1")
    settings = {"tls_cert": str(shown.cert), "tls_key": str(shown.key), "tls_client_ca": str(authority.file)}
    own = authority.issue("client", "client")
    (tmp_path / "both.pem").write_bytes(own.key.read_bytes() + own.cert.read_bytes())
    async with open_omq(**settings) as server:
        with pytest.raises((ConnectionFailed, ConnectionLost), match="certificate required"):
            async with connect(url(server), ca=authority.file) as client:
                await client.ping()
        async with connect(url(server), ca=authority.file, certificate=own.cert, key=own.key) as client:
            await client.ping()
        async with connect(url(server), ca=authority.file, certificate=tmp_path / "both.pem") as client:
            await client.ping()
