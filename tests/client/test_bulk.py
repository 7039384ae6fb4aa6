"""Stored blocks through the client library, against a real server."""

from itertools import pairwise

import pytest
from anyio.lowlevel import checkpoint
from client_helpers import OpenServer, connect_to

from omq.client import Blocks, Client, ConnectionLost, Delivery, Gap, ServerError, Transient
from omq.config import TopicConfig


async def test_blocks_of_a_topic(client: Client) -> None:
    bodies = [b"%d" % number for number in range(20_000)]
    async with client.sink("t") as sink:
        await sink.publish_many(bodies)
    found: list[bytes] = []
    async with client.fetch("t") as blocks:
        async for block in blocks:
            assert block.first == len(found) + 1
            found += [bytes(frame[17:]) for frame in block.slices(block.first)]
    assert (found, blocks.next) == (bodies, 20_001)
    listed = await client.blocks("t")
    assert listed[0].first == 1
    assert sum(info.count for info in listed) == 20_000
    middle = await client.blocks("t", 10_000, 1)
    assert [info.first <= 10_000 < info.first + info.count for info in middle] == [True]


async def test_a_fetch_that_is_left_early(client: Client) -> None:
    async with client.sink("t") as sink:
        await sink.publish_many(b"x" * 1000 for _ in range(50_000))
    for _ in range(20):
        async with client.fetch("t") as blocks:
            assert (await anext(blocks)).first == 1
    await client.confirm()


async def test_a_fetch_and_a_watch_end_with_their_blocks(client: Client) -> None:
    await client.publish_confirmed("t", b"x")
    async with client.fetch("t") as blocks, client.watch() as rounds:
        pass
    with pytest.raises(ConnectionLost, match="end of the block"):
        await anext(blocks)
    with pytest.raises(ConnectionLost, match="end of the block"):
        await anext(rounds)


async def test_fetching_a_missing_or_transient_topic_is_refused(client: Client) -> None:
    await client.declare("ticks", Delivery.BROADCAST, Transient())
    for topic, sentence in (
        ("t", "there is no such topic"),
        ("ticks", "a transient topic cannot be replayed"),
    ):
        with pytest.raises(ServerError, match=f"Fetch {topic}: {sentence}"):
            async with client.fetch(topic) as blocks:
                await anext(blocks)
        with pytest.raises(ServerError, match=f"Blocks {topic}: {sentence}"):
            await client.blocks(topic)


async def test_a_gap_is_reported_to_a_fetch(open_omq: OpenServer) -> None:
    gaps: list[Gap] = []
    topics = [TopicConfig(name="t", retention_bytes=1)]
    async with open_omq(topics=topics) as server, connect_to(server, on_gap=gaps.append) as client:
        first = 1
        while first == 1:  # until the server has deleted something
            await client.publish_confirmed("t", b"x" * 2_000)
            first = (await client.topics())[0].first
        async with client.fetch("t") as blocks:
            kept = [(block.first, block.last) async for block in blocks]
        # More may be deleted while they are fetched.
        assert gaps
        assert {gap.topic for gap in gaps} == {b"t"}
        told = sorted(kept + [(gap.first, gap.last) for gap in gaps])
        assert (gaps[0].first, told[0][0]) == (1, 1)
        assert all(following[0] == before[1] + 1 for before, following in pairwise(told))


async def test_a_server_that_stops(open_omq: OpenServer) -> None:
    async with open_omq() as server, connect_to(server) as client:
        async with client.sink("t") as sink:
            await sink.publish_many(b"x" * 10_000 for _ in range(5_000))
        async with client.fetch("t") as blocks:
            await anext(blocks)
            await server.stop()
            with pytest.raises(ConnectionLost):
                await _to_its_end(blocks)


async def _to_its_end(blocks: Blocks) -> None:
    async for _ in blocks:
        await checkpoint()
