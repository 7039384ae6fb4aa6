"""Clients of AMQP 1.0 that prove with a TLS certificate who they are: the SASL mechanism EXTERNAL."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import trio
from certificates import Authority

from omq.config import ClientConfig
from omq.credentials import client_context
from omq.protocol.amqp_1_0.performatives import Close, Detach, SaslInit, SaslMechanisms, SaslOutcome
from omq.protocol.amqp_1_0.types import NULL

from .amqp_1_0_peer import SASL_HEADER, Peer, condition, peer
from .client_accounts import HASH, SECRET
from .conversation import Host, InProcess, serving
from .test_reloading import reload


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def client(name: str, certificate: str | None, publish: Sequence[str] = ("*",)) -> ClientConfig:
    return ClientConfig(name=name, secret=HASH, declare=["*"], publish=list(publish), certificate=certificate)


@asynccontextmanager
async def serving_tls(
    store: Path, authority: Authority, *clients: ClientConfig, client_ca: Path | None = None
) -> AsyncIterator[InProcess]:
    """Yield a server that wants certificates of its TLS clients, by this authority or those in
    `client_ca`.
    """
    own = authority.issue("127.0.0.1", "server")
    async with serving(
        store,
        tls_cert=str(own.cert),
        tls_key=str(own.key),
        tls_client_ca=str(client_ca or authority.file),
        clients=list(clients),
    ) as host:
        yield host


@asynccontextmanager
async def certified(host: Host, authority: Authority, common_name: str | None) -> AsyncIterator[Peer]:
    """Yield a connection with TLS, and with a client's certificate that has this name."""
    shown = authority.issue("feeder.example", "client", common_name=common_name)
    context = client_context(authority.file, shown.cert, shown.key)
    plain = await trio.open_tcp_stream("127.0.0.1", host.port)
    async with trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=True) as stream:
        yield Peer(stream)


async def mechanisms(made: Peer) -> tuple[str, ...]:
    """Return the mechanisms that the server offers."""
    await made.send(SASL_HEADER)
    assert await made.header() == SASL_HEADER
    return (await made.heard(SaslMechanisms)).sasl_server_mechanisms


async def external(made: Peer, response: bytes | None = None) -> int:
    """Authenticate with the certificate; the code of the outcome."""
    await made.sasl(SaslInit("EXTERNAL", response))
    return (await made.heard(SaslOutcome)).code


@pytest.mark.parametrize("response", [None, b"", b"feeder"])
async def test_a_certificate_proves_a_client(
    store: Path, authority: Authority, response: bytes | None
) -> None:
    feeder = client("feeder", "feeder.example", publish=["prices"])
    async with (
        serving_tls(store, authority, feeder) as host,
        certified(host, authority, "feeder.example") as made,
    ):
        assert await mechanisms(made) == ("EXTERNAL", "PLAIN")
        assert await external(made, response) == 0
        await made.open()
        assert host.server.terminals()[0].statistics().client == b"feeder"
        assert (await made.sender("prices", 1)).target != NULL
        assert (await made.sender("wages", 2)).target == NULL
        assert condition(await made.until(Detach)) == "amqp:unauthorized-access"


@pytest.mark.parametrize("common_name", [None, "stranger.example", "feeder"])
async def test_external_is_offered_only_to_the_certificate_of_a_client(
    store: Path, authority: Authority, common_name: str | None
) -> None:
    async with serving_tls(store, authority, client("feeder", "feeder.example")) as host:
        async with certified(host, authority, common_name) as made:
            assert await mechanisms(made) == ("PLAIN",)
            assert await external(made) == 1
            with pytest.raises(EOFError):
                await made.next()
        async with certified(host, authority, common_name) as made:
            assert (await made.authenticate("PLAIN", b"\0feeder\0" + SECRET.encode())).code == 0


async def test_external_needs_tls(store: Path, authority: Authority) -> None:
    async with (
        serving_tls(store, authority, client("feeder", "feeder.example")) as host,
        peer(host.port) as made,
    ):
        assert await mechanisms(made) == ("PLAIN",)
        assert await external(made, b"feeder") == 1


async def test_a_certificate_names_no_other_client(
    store: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    clients = client("feeder", "feeder.example"), client("reader", "reader.example")
    async with (
        serving_tls(store, authority, *clients) as host,
        certified(host, authority, "feeder.example") as made,
    ):
        assert await mechanisms(made) == ("EXTERNAL", "PLAIN")
        assert await external(made, b"reader") == 1
        assert "it has not the certificate of this client" in caplog.text


async def test_a_certificate_that_is_not_configured_any_more_ends_its_connections(
    store: Path, authority: Authority
) -> None:
    async with (
        serving_tls(store, authority, client("feeder", "feeder.example")) as host,
        certified(host, authority, "feeder.example") as made,
    ):
        assert await mechanisms(made) == ("EXTERNAL", "PLAIN")
        assert await external(made) == 0
        await made.open()
        await reload(host.server, lambda _: {"clients": [client("feeder", "feeder.example", ["prices"])]})
        await made.settle()  # it is still the certificate of this client
        await reload(host.server, lambda _: {"clients": [client("feeder", None)]})
        assert condition(await made.heard(Close)) == "amqp:connection:forced"
        async with certified(host, authority, "feeder.example") as later:
            assert await mechanisms(later) == ("PLAIN",)
        await reload(host.server, lambda _: {"clients": [client("other", "feeder.example")]})
        async with certified(host, authority, "feeder.example") as later:
            assert await mechanisms(later) == ("EXTERNAL", "PLAIN")
            assert await external(later, b"feeder") == 1


async def test_an_authority_that_is_removed_ends_no_connection_and_admits_no_other(
    store: Path, authority: Authority, tmp_path: Path
) -> None:
    client_ca = tmp_path / "clients.pem"
    client_ca.write_bytes(authority.file.read_bytes())
    feeder = client("feeder", "feeder.example")
    async with (
        serving_tls(store, authority, feeder, client_ca=client_ca) as host,
        certified(host, authority, "feeder.example") as made,
    ):
        assert await mechanisms(made) == ("EXTERNAL", "PLAIN")
        assert await external(made) == 0
        await made.open()
        assert host.server.certificates is not None
        for authorities, is_accepted in ((Authority(tmp_path / "other"), False), (authority, True)):
            client_ca.write_bytes(authorities.file.read_bytes())
            host.server.certificates.reload()
            await reload(host.server, lambda _: {})
            await made.settle()
            # The server may close before it has read everything, so the alert does not always arrive.
            refusal = pytest.raises((trio.BrokenResourceError, EOFError))
            with nullcontext() if is_accepted else refusal:
                async with certified(host, authority, "feeder.example") as later:
                    assert await mechanisms(later) == ("EXTERNAL", "PLAIN")
