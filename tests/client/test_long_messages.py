"""A subscription gets messages that are too long for it: nothing else of its client is affected."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from client_helpers import OpenServer, connect_to

from omq.client import BodyTooLong, Client, Delivery, FromBeginning, Persistent, Sync, Transient
from omq.client.errors import Gap
from omq.model import DEFAULT_MAX_BODY

LENGTH = DEFAULT_MAX_BODY + 1
WHY = f"its body of {LENGTH} octets is longer than {DEFAULT_MAX_BODY}: receive it by a feed"


async def zeros() -> AsyncIterator[bytes]:
    piece = bytes(1 << 20)
    for _ in range(LENGTH >> 20):
        yield piece
    yield piece[: LENGTH % (1 << 20)]


async def send(client: Client, topic: str) -> None:
    """Send a message that is too long for a subscription between two others."""
    async with client.sink(topic) as sink:
        await sink.publish(b"before")
        await sink.publish_from(zeros(), LENGTH)
        await sink.publish(b"after")


@pytest.mark.parametrize("reconnect", [False, True])
async def test_a_message_that_is_too_long_to_be_held_is_a_gap(open_omq: OpenServer, reconnect: bool) -> None:
    gaps: list[Gap] = []
    async with (
        open_omq(max_message_bytes=LENGTH) as server,
        connect_to(server, on_gap=gaps.append, reconnect=reconnect) as client,
        client.subscribe("other") as other,
    ):
        await send(client, "t")
        async with client.subscribe("t", FromBeginning()) as subscription:
            assert [(await anext(subscription)).body for _ in range(2)] == [b"before", b"after"]
        assert gaps == [Gap(b"t", 2, 2, WHY)]
        await client.publish_confirmed("other", b"small")
        assert (await anext(other)).body == b"small"


@pytest.mark.parametrize("persistence", [Persistent(Sync.WEAK), Transient()])
async def test_a_worker_that_cannot_hold_a_message_leaves_it_to_others(
    open_omq: OpenServer, persistence: Persistent | Transient
) -> None:
    async with open_omq(max_message_bytes=LENGTH) as server, connect_to(server) as client:
        await client.declare("t", Delivery.ROUND_ROBIN, persistence)
        async with client.subscribe("other") as other:
            await send(client, "t")
            async with client.subscribe("t", credit=3) as work:
                assert (await anext(work)).body == b"before"
                with pytest.raises(BodyTooLong, match=f"message 2 of 't': {WHY}"):
                    await anext(work)
            await client.publish_confirmed("other", b"small")
            assert (await anext(other)).body == b"small"
        async with client.feed("t") as feed, aclosing(feed.opened()) as messages:
            assert (await anext(messages)).size == LENGTH
            assert await (await anext(messages)).body() == b"after"


@pytest.mark.parametrize("key", [b"k", bytes(200)], ids=len)
async def test_a_feed_that_holds_messages_refuses_one_that_is_too_long(
    open_omq: OpenServer, key: bytes
) -> None:
    why = f"the next message of 't' has a body of {LENGTH} octets, longer than {DEFAULT_MAX_BODY}"
    async with open_omq(max_message_bytes=LENGTH) as server, connect_to(server) as client:
        async with client.sink("t") as sink:
            await sink.publish(b"before")
            await sink.publish_from(zeros(), LENGTH, routing_key=key)
            await sink.publish(b"after")
        async with client.feed("t", FromBeginning()) as feed:
            assert (await anext(feed)).body == b"before"
            for _ in range(2):
                with pytest.raises(BodyTooLong, match=why):
                    await anext(feed)
            message = await anext(feed.opened())
            assert (message.size, message.head.routing_key) == (LENGTH, key)
            async with message.open() as pieces:
                assert sum([len(piece) async for piece in pieces]) == LENGTH
            assert (await anext(feed)).body == b"after"
        async with client.feed("t", FromBeginning()) as feed:
            assert (await feed.next_run()).bodies == [b"before"]
            with pytest.raises(BodyTooLong, match=why):
                await anext(feed.runs())
            await anext(feed.opened())  # which is skipped
            assert await (await anext(feed.opened())).body() == b"after"


async def test_a_feed_holds_a_body_of_64_mib(open_omq: OpenServer) -> None:
    async with open_omq() as server, connect_to(server) as client:
        async with client.sink("t") as sink:
            await sink.publish(bytes(DEFAULT_MAX_BODY), routing_key=bytes(200))
        async with client.feed("t", FromBeginning()) as feed:
            assert len((await anext(feed)).body) == DEFAULT_MAX_BODY
