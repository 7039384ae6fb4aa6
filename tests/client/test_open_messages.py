"""Open messages and messages in pieces, where their caller gives up or makes a mistake."""

from collections.abc import AsyncIterator

import anyio
import pytest

from omq.client import Client, ConnectionLost, FromBeginning

LONG = b"".join(b"%07d\n" % n for n in range(1_000_000))


async def publish(client: Client, *bodies: bytes) -> None:
    async with client.sink("t") as sink:
        await sink.publish_many(bodies)


async def test_pieces_go_on_after_a_cancelled_request(client: Client) -> None:
    await publish(client, LONG, b"last")
    async with client.feed("t", FromBeginning()) as feed:
        message = await anext(feed.opened())
        come: list[bytes] = []
        cancelled = 0
        async with message.open() as pieces:
            while sum(map(len, come)) < message.size:
                with anyio.CancelScope() as limit:
                    limit.cancel()
                    come.append(await anext(pieces))
                cancelled += limit.cancelled_caught
                if sum(map(len, come)) < message.size:
                    come.append(await anext(pieces))
            assert cancelled
            with pytest.raises(StopAsyncIteration):
                await anext(pieces)
        assert b"".join(come) == LONG
        assert await (await anext(feed.opened())).body() == b"last"


async def test_the_rest_of_a_body_that_was_skipped_is_not_its_end(client: Client) -> None:
    await publish(client, LONG, b"last")
    async with client.feed("t", FromBeginning()) as feed:
        message = await anext(feed.opened())
        async with message.open() as pieces:
            await anext(pieces)
            assert await (await anext(feed.opened())).body() == b"last"
            with pytest.raises(RuntimeError, match="was skipped"):
                await anext(pieces)


async def test_a_closed_feed_has_no_more_open_messages(client: Client) -> None:
    await publish(client, LONG, LONG)
    async with client.feed("t", FromBeginning()) as feed:
        first = await anext(feed.opened())
    with pytest.raises(ConnectionLost, match="the feed was closed in the middle of a message"):
        await first.body()
    assert [message async for message in feed.opened()] == []


async def test_a_piece_that_is_no_bytes_ends_the_sink_only(client: Client) -> None:
    async def texts() -> AsyncIterator[str]:
        yield "text"

    with pytest.raises(TypeError, match="must be bytes, not str: encode it"):
        async with client.sink("t") as sink:
            await sink.publish_from(texts(), 4)
    await publish(client, b"good")
    async with client.sink("t") as sink:
        with pytest.raises(ValueError, match="a body of -1 octets does not fit"):
            await sink.publish_from(texts(), -1)
        await sink.publish(b"better")
    assert sink.stored == 1


async def test_the_end_of_the_block_completes_a_message(client: Client) -> None:
    async with client.sink("t") as sink, sink.message(8, routing_key=b"key") as send:
        await send(b"1234")
        assert sink.sent == 0
        await send(b"5678")
    assert sink.stored == 1
    with pytest.raises(ValueError, match="do not have 8 octets together"):
        async with client.sink("t") as sink, sink.message(8) as send:
            await send(b"1234")
    assert sink.sent == 0
    async with client.feed("t", FromBeginning()) as feed:
        envelope = await anext(feed)
    assert (envelope.body, envelope.head.routing_key) == (b"12345678", b"key")
