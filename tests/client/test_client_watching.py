"""The calls of the client that watch and control a server."""

import pytest
import trio
from client_helpers import OpenServer, url_of

from omq.access.hashes import hash_of
from omq.client import Client, ConnectionLost, ServerError, connect
from omq.config import ClientConfig
from omq.model import FromMessage
from omq.watching import Configured, Limits

SECRET = "hush-4711"
HASH = str(hash_of(SECRET.encode()))


async def test_rounds_have_all_topics_and_tell_changes(client: Client) -> None:
    await client.declare("quiet")
    async with client.watch(0.1) as rounds:
        first = await anext(rounds)
        assert first.server is not None
        assert [numbers.topic.topic for numbers in first.topics.values()] == [b"quiet"]
        await client.publish_confirmed("prices", b"1")
        later = await anext(rounds)
        while not later.changed:
            later = await anext(rounds)
        (id,) = later.changed
        assert later.topics[id].topic.topic == b"prices"
        assert len(later.topics) == 2
        await client.delete("prices")
        while not later.gone:
            later = await anext(rounds)
        assert (later.gone, len(later.topics)) == ((id,), 1)


class _CancelsWhenItRuns(trio.abc.Instrument):
    """Cancels a scope of a task as soon as the task is about to run."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self._task = task
        self.scope = trio.CancelScope()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """See `trio.abc.Instrument`."""
        if task is self._task:
            self.scope.cancel()


async def test_a_watch_that_is_cancelled_at_the_moment_of_a_ping_answers_it(open_omq: OpenServer) -> None:
    async with (
        open_omq(ping_seconds=0.4, missed_pings=2) as server,
        connect(url_of(server), id="watching") as client,
        client.watch(3600) as rounds,
    ):
        await anext(rounds)
        for _ in range(6):
            cancels = _CancelsWhenItRuns(trio.lowlevel.current_task())
            trio.lowlevel.add_instrument(cancels)
            with cancels.scope:
                await anext(rounds)
            trio.lowlevel.remove_instrument(cancels)
            assert cancels.scope.cancelled_caught
        assert len(await client.connections()) == 2


async def test_control(client: Client) -> None:
    await client.publish_confirmed("prices", b"1")
    async with client.subscribe("prices", FromMessage(1)) as subscription:
        await anext(subscription)
        (subscriber,) = await client.subscribers("prices")
        (connection,) = await client.connections()
        assert subscriber.connection == connection.id
    assert await client.purge("prices") == 1
    await client.retain("prices", Limits(1_000_000, None))
    await client.retain("prices", Configured())
    assert not await client.disconnect(1000)
    with pytest.raises(ServerError, match="there is no such topic"):
        await client.purge("news")


async def test_a_refused_watch_and_one_that_the_server_ends(open_omq: OpenServer) -> None:
    rights = {"watch": ["*"], "administer": ["*"]}
    clients = [ClientConfig(name="some", secret=HASH), ClientConfig(name="all", secret=HASH, **rights)]
    async with open_omq(clients=clients) as server:
        async with connect(url_of(server), id=f"some:{SECRET}") as client, client.watch() as rounds:
            with pytest.raises(ServerError, match="Watch 1000: this client may not watch anything"):
                await anext(rounds)
        async with connect(url_of(server), id=f"all:{SECRET}") as client, client.watch(3600) as rounds:
            await anext(rounds)
            watcher = (await client.connections())[-1]
            assert watcher.client == b"all"
            assert await client.disconnect(watcher.id)
            with trio.fail_after(60), pytest.raises(ConnectionLost, match="an operator ended"):
                await anext(rounds)
