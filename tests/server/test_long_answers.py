"""Answers to Topics and Blocks: made in slices, within a share of the memory."""

from pathlib import Path

import pytest
import trio
from quietness import pass_until
from trio.testing import MockClock

from omq.protocol.omq.types import BlockList, TopicList

from .client_accounts import client as configured
from .client_accounts import enter, passing
from .conversation import Conversation, InProcess, eventually, serving
from .counted_turns import counted_turns


async def asked(host: InProcess, count: int) -> list[Conversation]:
    """Return connections that have asked for the topics and read nothing of the answer."""
    found = []
    for _ in range(count):
        conversation = await host.open(receive_octets=4096)
        conversation.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
        await conversation.send(bytes.fromhex("0000000000000001") + b"(Connect 1 x)\nTopics\n")
        found.append(conversation)
    return found


async def declare(conversation: Conversation, count: int) -> None:
    for first in range(0, count, 500):
        names = range(first, min(first + 500, count))
        await conversation.send(b"".join(b"(Declare topic-%05d Broadcast Transient)\n" % n for n in names))
        for _ in names:
            await conversation.frame()


async def test_the_order_and_number_of_topics(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await declare(client, 1200)
        await client.ask(b"(Delete topic-00007)")
        await client.ask(b"(Declare topic-00007 Broadcast Transient)")
        answer = await client.ask(b"Topics")
        assert isinstance(answer, TopicList)
        ids = [info.id for info in answer.topics]
        assert ids == sorted(ids)
        assert len(ids) == 1200


async def test_others_are_served_while_the_topics_are_listed(store: Path) -> None:
    """A task that only asks for its turn gets it, however many topics there are."""
    async with serving(store) as host:
        client, other = await host.connect(), await host.connect()
        await declare(client, 1200)
        async with counted_turns() as turns:
            await other.say(b"Topics")
            before = turns()
            await other.stream.receive_some(1)  # its length is known when all of it is made
            assert turns() - before >= 8


async def test_simultaneous_requests_share_an_answer_and_stalled_ones_give_way(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(store, memory_bytes=4 << 20, max_message_bytes=1 << 20) as host:
        client = await host.connect()
        await declare(client, 2500)
        budget = host.server.memory.listed
        stalled = await asked(host, 20)
        await eventually(lambda: budget.used > budget.limit)
        held = budget.used
        later = await asked(host, 20)
        # However many ask, no more is held than the share, or one answer.
        assert budget.used <= held
        await client.say(b"Topics")
        why = "it took too long to read an answer while others wait for its memory"
        await pass_until(lambda: any(line.endswith(f": closed: {why}") for line in caplog.messages), clock)
        assert isinstance(await client.frame(), TopicList)
        del later, stalled
    assert budget.used == 0


@pytest.mark.parametrize("what", ["Topics", "Fetch"])
async def test_octets_a_second_count_them_too(store: Path, clock: MockClock, what: str) -> None:
    clients = [configured("some", max_bytes_per_second=20_000), configured("other")]
    async with serving(store, clients=clients) as host:
        other, some = await enter(host, "other"), await enter(host, "some")
        if what == "Topics":
            await declare(other, 400)
            octets = 10 * 400 * 120
            await some.send(b"Topics\n" * 10 + b"(Confirm 1)\n")
        else:
            for _ in range(6):
                await other.send(b'(Publish t "%s")\n' % (b"x" * 200_000))
                await other.confirm()
            octets = 6 * 200_000
            await some.send(b"(Fetch t 1 6)\n")
        received = 0
        began = trio.current_time()
        async with passing(clock):
            while received < octets:
                data = await some.stream.receive_some(65536)
                assert data, "the connection ended"
                received += len(data)
        assert received >= octets
        # The last of it may come at once: a block, or an answer.
        last = 100_000 if what == "Topics" else 600_000
        assert trio.current_time() - began >= (octets - last) / 20_000 - 2


async def test_blocks_are_listed_behind_earlier_messages(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Publish t 1)", b"(Publish t 2)", b"(Blocks t 1 10)")
        answer = await client.frame()
        assert isinstance(answer, BlockList)
        assert sum(block.count for block in answer.blocks) == 2
        await eventually(lambda: not host.server.memory.listed.used)
