"""Many messages whose outcomes come together: other connections have their turns between."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from counted_steps import watched

from omq.drivers import slices
from omq.drivers.queue import QueueDriver
from omq.protocol.amqp_1_0.performatives import Disposition
from omq.protocol.omq.types import Declared, Deleted, Error, Frame, Subscribed, Unsubscribed
from omq.terminals.omq.commands import RECEIVED_IN_STEP

from .amqp_1_0_peer import ACCEPTED, Peer, data, opened
from .conversation import Conversation, InProcess, eventually, serving

COUNT = 4 * RECEIVED_IN_STEP


@asynccontextmanager
async def hosting(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[InProcess, QueueDriver]]:
    """Yield a server, in which each slice has one step, and its queue."""
    async with serving(store) as host:
        await (await host.connect()).ask(b"(Declare q Round_robin Transient)")
        (driver,) = [each for each in host.server.catalogue if each.topic.topic == b"q"]
        assert isinstance(driver, QueueDriver)
        monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
        yield host, driver


async def delivered(host: InProcess, client: Peer) -> list[int]:
    """Return the deliveries of messages that go in turn to two links: each is a run of its own."""
    for handle in range(2):
        await client.receiver("q", handle, credit=COUNT, snd=0)
    await client.settle()
    found = []
    async with opened(host.port) as producer:
        await producer.sender("q")
        for _ in range(COUNT):
            await producer.accepted(await producer.publish(data(b"x")))
            found.append((await client.message()).delivery)
    return found


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "as one"])
async def test_deliveries_of_amqp_1_0_are_settled_in_turn_with_others(
    together: bool, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch) as (host, driver), opened(host.port) as client:
        ids = await delivered(host, client)
        ranges = [(ids[0], ids[-1])] if together else [(each, each) for each in ids]
        with watched(lambda: driver.unacknowledged) as unsettled:
            await client.say(*[Disposition(True, *each, True, ACCEPTED) for each in ranges])
            await eventually(lambda: not driver.unacknowledged)
        assert (unsettled.all[0], unsettled.largest_fall()) == (COUNT, 1)


async def test_outcomes_of_a_link_that_ends_meanwhile_are_ignored(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch) as (host, driver), opened(host.port) as client:
        ids = await delivered(host, client)
        await client.say(Disposition(True, ids[0], ids[-1], True, ACCEPTED))
        await eventually(lambda: driver.unacknowledged < COUNT)
        assert isinstance(await (await host.connect()).ask(b"(Delete q)"), Deleted)
        await client.settle()
        assert host.server.statistics().subscriptions == 0


async def worker(host: InProcess) -> Conversation:
    """Return a client that has messages of the queue, from 1 to COUNT."""
    client = await host.connect()
    assert isinstance(await client.ask(b"(Subscribe q From_current)"), Subscribed)
    await client.say(b"(Request q %d)" % COUNT, *[b"(Publish q x)"] * COUNT)
    assert await client.ids(COUNT) == list(range(1, COUNT + 1))
    return client


RECEIVED = [b"(Received q %d)" % id for id in range(1, COUNT + 1)]


async def test_messages_of_omq_are_confirmed_in_turn_with_others(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch) as (host, driver):
        client = await worker(host)
        with watched(lambda: driver.unacknowledged) as unsettled:
            await client.say(*RECEIVED, RECEIVED[-1])
            assert (
                await client.error() == b"Received q: message %d is not waiting to be confirmed here" % COUNT
            )
        assert (unsettled.all[0], unsettled.all[-1]) == (COUNT, 0)
        assert unsettled.largest_fall() == RECEIVED_IN_STEP


async def test_a_topic_is_deleted_while_its_messages_are_confirmed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch) as (host, _):
        client, other = await worker(host), await host.connect()
        await other.say(b"(Delete q)")
        await client.say(*RECEIVED)
        await client.say(b"(Declare r Broadcast Transient)")
        assert isinstance(await other.frame(), Deleted)
        told: list[Frame] = []
        while not (told and isinstance(told[-1], Declared)):
            told.append(await client.frame())
        errors = {each.text for each in told if isinstance(each, Error)}
        assert sum(isinstance(each, Unsubscribed) for each in told) == 1
        assert errors <= {b"Received q: this connection is not subscribed"}
