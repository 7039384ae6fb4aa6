"""The backlog of round-robin topics: what of it is done, as clients see it and as it is saved."""

import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq_storage.blocks import encode
from omq_storage.environment import Environment, Position
from omq_storage.levels import Level
from omq_storage.merging import MergeStep
from omq_storage.runs import runs_of
from omq_storage.store import Store

from .conversation import (
    PATIENCE,
    PERSISTENCES,
    Conversation,
    declared,
    eventually,
    numbered,
    publish,
    serving,
)


@pytest.mark.parametrize("persistence", PERSISTENCES)
async def test_the_backlog_counts_messages_that_are_not_done(
    store: Path, clock: MockClock, persistence: str
) -> None:
    """Message by message, though messages are stored and deleted by whole blocks."""

    async def backlog(client: Conversation) -> tuple[int, int]:
        info = (await client.topics())[b"t"]
        return info.messages, info.last

    async with serving(store, missed_pings=0) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Round_robin %s)" % PERSISTENCES[persistence])
        await client.send(publish(b"t", numbered(1, 100)))
        await client.confirm()
        assert await backlog(client) == (100, 100)
        worker = await host.connect()
        await worker.say(b"(Request t 10)", b"(Subscribe t From_current)")
        await worker.frame()
        await worker.messages(10)
        assert await backlog(client) == (100, 100)
        await worker.say(*(b"(Received t %d)" % id for id in (1, 2, 3, 7)))
        await worker.settle()
        assert await backlog(client) == (96, 100)
        await worker.messages(4)  # in the place of those
        plain = await host.connect()
        await plain.say(b"(Subscribe t From_current)")
        await plain.frame()
        await plain.messages(86)
        await eventually_backlog(client, 10)
        worker.close()  # what it had goes to the other one
        await plain.messages(10)
        await eventually_backlog(client, 0)
        info = (await client.topics())[b"t"]
        assert (info.bytes if persistence != "Transient" else 0, info.first, info.last) == (0, 101, 100)
        plain.close()
        await eventually(lambda: host.connections == 1)
        await client.send(publish(b"t", numbered(101, 150)))
        await client.confirm()
        await eventually_backlog(client, 50)


async def eventually_backlog(client: Conversation, count: int) -> None:
    """Wait until N (`count`) messages of t are not done."""
    with trio.fail_after(PATIENCE):
        while (await client.topics())[b"t"].messages != count:  # noqa: ASYNC110 - it asks the server, which has no event for it
            await trio.sleep(0.002)


async def test_the_backlog_is_exact_after_a_restart_and_over_gaps(store: Path, clock: MockClock) -> None:
    with Store.open(store) as opened:
        topic = opened.catalogue.create(b"t", "Round_robin", "Strong", True, reserved=1000).id
        environment = opened.level(Level.STRONG)
        # Ids 51 to 99 were lost with a power failure.
        for first, count in ((1, 50), (100, 50), (150, 50)):
            bodies = [b"%d" % id for id in range(first, first + count)]
            environment.append([encode(topic, first, bodies, 1_700_000_000_000_000)])
        environment.set_positions({topic: Position(120, runs_of((10, 40, 101)))})
    async with serving(store) as host:
        client = await host.connect()
        assert (await client.topics())[b"t"].messages == 3 + 80
        await client.say(b"(Request t 5)", b"(Subscribe t From_current)")
        await client.frame()
        assert await client.ids(5) == [10, 40, 101, 120, 121]
        await client.say(b"(Received t 40)")
        assert await client.ids(1) == [122]
        assert (await client.topics())[b"t"].messages == 82
        await client.say(b"(Request t 1000)")
        await client.messages(77)
        assert (await client.topics())[b"t"].messages == 82
    async with serving(store) as host:
        client = await host.connect()
        assert (await client.topics())[b"t"].messages == 82


async def test_positions_are_saved_while_a_level_is_tidied(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merging the blocks of another topic that has many can take seconds."""
    merging = threading.Event()
    finish = threading.Event()
    merge_small = Environment.merge_small

    def slow(self: Environment, topic: int, start: int, span: int) -> MergeStep:
        merging.set()
        finish.wait(PATIENCE)
        return merge_small(self, topic, start, span)

    monkeypatch.setattr(Environment, "merge_small", slow)
    async with serving(store, missed_pings=0) as host:
        environment = host.server.catalogue.writers[Level.WEAK].environment
        client = await declared(host, b"Round_robin (Persistent Weak)")
        await client.send(publish(b"t", numbered(1, 10)))
        await client.confirm()
        try:
            clock.jump(2)
            await eventually(merging.is_set)
            await client.say(b"(Request t 10)", b"(Subscribe t From_current)")
            await client.frame()
            await client.messages(10)
            for id in range(1, 11):
                await client.say(b"(Received t %d)" % id)
                await client.settle()
                await wait_all_tasks_blocked()
                clock.jump(0.2)
                await eventually(lambda: environment.positions().get(0, Position(0)).lowest == id + 1)  # noqa: B023 - it is called before the next round of the loop
            await client.send(publish(b"t", numbered(11, 20)))
            await client.confirm(2)
        finally:
            finish.set()
