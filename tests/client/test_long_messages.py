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
