"""The client library at a server with configured clients."""

import pytest
from client_helpers import OpenServer, url_of

from omq.access.hashes import hash_of
from omq.client import ConnectionLost, PublishRefused, ServerError, SinkFailed, connect
from omq.config import ClientConfig

SECRET = "hush-4711"
HASH = str(hash_of(SECRET.encode()))


async def test_a_secret_and_rights(open_omq: OpenServer) -> None:
    some = ClientConfig(
        name="some", secret=HASH, publish=["own"], declare=["own", "read"], subscribe=["read"]
    )
    async with open_omq(clients=[some]) as server, connect(url_of(server), id=f"some:{SECRET}") as client:
        await client.publish_confirmed("own", b"x")
        async with client.sink("own") as sink:
            await sink.publish(b"y")
        async with client.subscribe("read"):
            pass
        assert [info.topic for info in await client.topics()] == [b"own", b"read"]
        with pytest.raises(PublishRefused, match="this client may not publish to it"):
            await client.publish_confirmed("read", b"x")
        with pytest.raises(ServerError, match="Put read: this client may not publish to it"):
            async with client.sink("read"):
                pass
        with pytest.raises(ServerError, match="Subscribe own: this client may not subscribe to it"):
            async with client.subscribe("own"):
                pass


@pytest.mark.parametrize("reconnect", [False, True])
async def test_a_wrong_secret_is_not_tried_again(
    open_omq: OpenServer, reconnect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    some = ClientConfig(name="some", secret=HASH)
    async with (
        open_omq(clients=[some]) as server,
        connect(url_of(server), id="some:wrong", reconnect=reconnect) as client,
    ):
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="no client has this name and secret"):
                await client.ping()
    assert caplog.text.count("a wrong secret for 'some'") == 1


async def test_a_sink_above_the_quota(open_omq: OpenServer) -> None:
    some = ClientConfig(name="some", secret=HASH, publish=["*"], declare=["*"], max_connections=1)
    async with open_omq(clients=[some]) as server, connect(url_of(server), id=f"some:{SECRET}") as client:
        with pytest.raises(SinkFailed, match="as many connections as it may have"):
            async with client.sink("t"):
                pass
        await client.publish_confirmed("t", b"x")
