"""Sinks and feeds of the client library, against a real server."""

import gc
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from client_helpers import OpenServer, Running, connect_to

from omq.client import (
    BodyTooLong,
    Client,
    ConnectionLost,
    Delivery,
    Envelope,
    FeedFailed,
    FromBeginning,
    FromMessage,
    Head,
    Persistent,
    Properties,
    ServerError,
    Sink,
    SinkClosed,
    SinkFailed,
    Sync,
    Transient,
)
from omq.client.errors import Gap
from omq.client.fast import OpenStreams
from omq.client.feed import Feed
from omq.server import Server
from omq_storage.levels import Level


async def bodies_of(client: Client, topic: str, count: int) -> list[bytes]:
    async with client.feed(topic, FromBeginning()) as feed:
        return [(await anext(feed)).body for _ in range(count)]


async def messages_in(client: Client, topic: bytes) -> int:
    return next(info.messages for info in await client.topics() if info.topic == topic)


# -- sinks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", list(Sync))
async def test_leaving_a_sink_confirms(client: Client, sync: Sync) -> None:
    await client.declare("t", Delivery.BROADCAST, Persistent(sync))
    bodies = [b"%d" % n * (n % 7) for n in range(30_000)]
    async with client.sink("t") as sink:
        for body in bodies[:5_000]:
            await sink.publish(body)
        assert await sink.publish_many(iter(bodies[5_000:])) == 25_000
        assert sink.stored is None
    assert (sink.sent, sink.stored) == (30_000, 30_000)
    assert await bodies_of(client, "t", 30_000) == bodies


async def test_a_sink_that_sends_nothing_stores_nothing(client: Client) -> None:
    async with client.sink("t") as sink:
        assert await sink.publish_many([]) == 0
    assert sink.stored == 0


async def test_close_confirms_and_ends_the_sink(client: Client) -> None:
    async with client.sink("t") as sink:
        await sink.publish(b"one")
        assert await sink.close() == 1
        assert await sink.close() == 1
        with pytest.raises(SinkClosed):
            await sink.publish(b"two")
        with pytest.raises(anyio.ClosedResourceError):
            await sink.publish_many([b"two"])
    assert await messages_in(client, b"t") == 1


async def test_a_cancelled_close_goes_on(client: Client) -> None:
    async with client.sink("t") as sink:
        await sink.publish(b"x")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await sink.close()
        assert scope.cancelled_caught
        with pytest.raises(SinkClosed):
            await sink.publish(b"y")
        assert await sink.close() == 1


async def test_a_lone_message_leaves_at_once(client: Client) -> None:
    async with client.subscribe("t") as subscription, client.sink("t") as sink:
        for body in (b"one", b"two"):
            await sink.publish(body)
            assert (await anext(subscription)).body == body


async def test_an_exception_in_the_block_confirms_nothing(client: Client) -> None:
    kept: list[Sink] = []
    with pytest.raises(LookupError):  # noqa: PT012 - the block of the sink ends with the exception
        async with client.sink("t") as sink:
            kept.append(sink)
            await sink.publish(b"one")
            raise LookupError
    assert kept[0].stored is None
    with pytest.raises(ConnectionLost):
        await kept[0].publish(b"two")
    await client.confirm()  # the client goes on


async def test_many_tasks_may_use_a_sink_at_a_time(client: Client) -> None:
    async def publish(sink: Sink, mark: bytes) -> None:
        for n in range(500):
            await sink.publish(mark + b"%d" % n)

    async with client.sink("t", producer="p") as sink, anyio.create_task_group() as nursery:
        for mark in (b"a", b"b", b"c"):
            nursery.start_soon(publish, sink, mark)
    # Had a number overtaken another, the server would have dropped the message.
    assert sink.stored == await messages_in(client, b"t") == 1_500


async def test_a_producer_may_send_messages_in_doubt_again(client: Client) -> None:
    async with client.sink("t", producer=b"p", first=5) as sink:
        await sink.publish_many([b"a", b"b"])
        await sink.publish(b"c", properties=Properties(type=b"x"), routing_key=b"k")
        assert sink.next == 8
    async with client.sink("t", producer=b"p", first=6) as sink:
        assert await sink.publish_many([b"b", b"c", b"d"]) == 3
    assert sink.stored == 3
    async with client.feed("t", FromBeginning()) as feed:
        envelopes = [await anext(feed) for _ in range(4)]
    assert [envelope.body for envelope in envelopes] == [b"a", b"b", b"c", b"d"]
    assert envelopes[0].head.properties == Properties(app_id=b"p", message_id=b"5")
    assert envelopes[2].head == Head(b"", b"k", Properties(app_id=b"p", message_id=b"7", type=b"x"))


@pytest.mark.parametrize(
    ("producer", "first"), [(b"", 1), (b"p" * 256, 1), (b"p", -1), (b"p", 2**64)], ids=repr
)
async def test_an_invalid_producer_is_refused(client: Client, producer: bytes, first: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence is not part of the interface
        client.sink("t", producer=producer, first=first)


async def test_a_message_that_does_not_fit_is_refused_and_not_counted(client: Client) -> None:
    async with client.sink("t", producer=b"p", first=2**64 - 1) as sink:
        with pytest.raises(ValueError, match="message-id and app-id"):
            await sink.publish(b"x", properties=Properties(app_id=b"q"))
        with pytest.raises(ValueError, match="longer than 255"):
            await sink.publish(b"x", exchange=b"e" * 256)
        with pytest.raises(ValueError, match="used up"):
            await sink.publish_many([b"x", b"y"])
        await sink.publish(b"good")
        with pytest.raises(ValueError, match="used up"):
            await sink.publish(b"one more")
    assert sink.stored == 1


async def test_messages_without_a_subscriber_are_reported(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await client.declare("t", Delivery.BROADCAST, Transient())
    async with client.sink("t") as sink:
        await sink.publish(b"x", mandatory=True)
        await sink.publish(b"y", immediate=True)
    assert sink.stored == 2
    await client.topics()  # the news stands before this answer, and is not taken for it
    # The sink has what came while it was open, and the log what came later.
    told = [*sink.notices, *caplog.messages]
    assert any("Sink t: mandatory messages without a subscriber or a store: 1" in each for each in told)


async def test_a_deleted_topic_ends_its_sink(server: Server, client: Client) -> None:
    async with connect_to(server) as other:
        with pytest.raises(SinkFailed) as caught:  # noqa: PT012 - any of the calls may fail first
            async with client.sink("t") as sink:
                await sink.publish(b"one")
                await other.delete("t")
                await sink.publish(b"two")
        # The second message may be on its way to the store when the topic goes, which is the store's failure.
        assert caught.value.response.code in (404, 541)
        assert caught.value.sent in (1, 2)  # the server may have ended the sink before the second one
        assert caught.value.stored <= 1
        assert (await other.declare("t")).topic == b"t"
    assert await client.declare("t")  # the news of it was not taken for the answer


async def test_a_message_that_is_too_long(open_omq: OpenServer) -> None:
    async with open_omq(max_message_bytes=1000) as server, connect_to(server) as client:
        with pytest.raises(SinkFailed, match=r"messages stored: 2 of 3; .*502") as caught:
            async with client.sink("t") as sink:
                await sink.publish_many([b"one", b"two", b"x" * 1001])
        assert (caught.value.sent, caught.value.stored) == (3, 2)


async def test_a_server_that_stops_confirms_nothing(open_omq: OpenServer, nursery: TaskGroup) -> None:
    running = await Running.start(nursery, open_omq())
    with pytest.raises((ConnectionLost, SinkFailed)):  # noqa: PT012 - any of the calls may fail first
        async with running.connect() as client, client.sink("t") as sink:
            await sink.publish(b"one")
            await running.stop()
            await sink.close()


async def test_a_server_that_does_not_read_delays_the_publisher(open_omq: OpenServer) -> None:
    total = 100
    sent = 0
    async with open_omq(memory_bytes=8 << 20) as server, connect_to(server) as client:
        await client.declare("t", Delivery.BROADCAST, Persistent(Sync.STRONG))
        async with client.sink("t") as sink, anyio.create_task_group() as nursery:

            async def publish() -> None:
                nonlocal sent
                for _ in range(total):
                    await sink.publish(b"x" * (1 << 20))
                    sent += 1

            # The server stores nothing, so it reads no further than its memory for posts reaches.
            async with server.catalogue.writers[Level.STRONG].paused():
                nursery.start_soon(publish)
                await trio.testing.wait_all_tasks_blocked(0.1)
                assert 0 < sent < total / 2
    assert (sent, sink.stored) == (total, total)


async def test_a_lease_that_is_refused(open_omq: OpenServer) -> None:
    async with open_omq(max_dmp_connections=1) as server, connect_to(server) as client, client.sink("t"):
        with pytest.raises(SinkFailed, match="530 NOT-ALLOWED"):
            async with client.sink("t"):
                pass
        with pytest.raises(FeedFailed, match="530 NOT-ALLOWED") as caught:
            async with client.feed("t"):
                pass
        assert caught.value.response is not None


# -- feeds --------------------------------------------------------------------------------------------------


async def test_a_feed_delivers_the_heads_of_messages(client: Client) -> None:
    properties = Properties(content_type=b"text/plain", priority=3)
    async with client.feed("t") as feed:
        async with client.sink("t") as sink:
            await sink.publish(b"one")
            await sink.publish(b"two", exchange=b"e", routing_key=b"k", properties=properties)
            await sink.publish_many([b"three"] * 2, routing_key=b"m")
        assert [await anext(feed) for _ in range(4)] == [
            Envelope(b"one", Head(b"", b"t")),
            Envelope(b"two", Head(b"e", b"k", properties)),
            Envelope(b"three", Head(b"", b"m")),
            Envelope(b"three", Head(b"", b"m")),
        ]


async def test_runs_and_replay(client: Client) -> None:
    bodies = [b"%d" % n for n in range(20_000)]
    async with client.sink("t") as sink:
        await sink.publish_many(bodies)
    found: list[bytes] = []
    async with client.feed("t", FromMessage(101)) as feed:
        async for run in feed.runs():
            found += run.bodies
            if len(found) == 19_900:
                break
    assert found == bodies[100:]


async def test_null_messages_are_skipped(open_omq: OpenServer) -> None:
    async with open_omq(feed_null_seconds=0.001) as server, connect_to(server) as client:  # noqa: SIM117 - one line would be too long
        async with client.feed("t") as feed, client.sink("t") as sink:
            for n in range(200):
                await sink.publish(b"%d" % n)
                assert (await anext(feed)).body == b"%d" % n


async def test_a_deleted_topic_ends_its_feed(client: Client) -> None:
    async with client.feed("t", FromBeginning()) as feed:
        async with client.sink("t") as sink:
            await sink.publish(b"one")
        assert (await anext(feed)).body == b"one"
        await client.delete("t")
        assert [envelope async for envelope in feed] == []
        assert await feed.next_run() is None


async def test_a_server_that_stops_ends_a_feed_with_an_error(
    open_omq: OpenServer, nursery: TaskGroup
) -> None:
    running = await Running.start(nursery, open_omq())
    async with running.connect() as client, client.feed("t") as feed:
        await running.stop()
        with pytest.raises(ConnectionLost):
            await anext(feed)
        with pytest.raises(ConnectionLost):
            await anext(feed)


async def test_feeds_share_a_round_robin_topic(client: Client) -> None:
    await client.declare("jobs", Delivery.ROUND_ROBIN, Transient())
    found: list[bytes] = []

    async def work(feed: Feed, scope: anyio.CancelScope) -> None:
        async for envelope in feed:
            found.append(envelope.body)
            if len(found) == 1000:
                scope.cancel()

    async with client.feed("jobs") as one, client.feed("jobs") as two, client.sink("jobs") as sink:
        await sink.publish_many([b"%d" % n for n in range(1000)])
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(work, one, nursery.cancel_scope)
            nursery.start_soon(work, two, nursery.cancel_scope)
    assert sorted(map(int, found)) == list(range(1000))


async def test_a_command_is_still_refused_by_its_own_error(client: Client) -> None:
    await client.declare("jobs", Delivery.ROUND_ROBIN)
    with pytest.raises(ServerError) as caught:
        async with client.feed("jobs", FromBeginning()):
            pass
    assert (caught.value.command, caught.value.argument) == ("Get", b"jobs")


async def test_a_gap_in_a_feed_is_reported(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    gaps: list[Gap] = []
    opened = OpenStreams(gaps.append, 1.0)
    async with client.feed("a topic") as feed:
        opened.feeds.add(feed)
        opened.news(b'Feed "a topic": messages 3 to 7 are gone: too old')
        assert gaps == [Gap(b"a topic", 3, 7, "too old")]
        assert caplog.text == ""
        opened.news(b'Feed "a topic": 541 INTERNAL-ERROR the disk')
        assert feed.notices == ['Feed "a topic": 541 INTERNAL-ERROR the disk']
        assert "541 INTERNAL-ERROR" in caplog.text


async def test_a_mistake_in_on_gap_is_logged_for_a_feed(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(gap: Gap) -> None:
        raise ZeroDivisionError

    opened = OpenStreams(mistaken, 1.0)
    async with client.feed("a topic") as feed:
        opened.feeds.add(feed)
        opened.news(b'Feed "a topic": messages 3 to 7 are gone: too old')
    assert "on_gap raised for a feed of 'a topic'" in caplog.text
    assert "ZeroDivisionError" in caplog.text


# -- bodies in pieces ---------------------------------------------------------------------------------------

LONG = b"".join(b"%07d\n" % n for n in range(200_000))


async def pieces_of(body: bytes, octets: int) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), octets):
        await checkpoint()
        yield body[begin : begin + octets]


async def test_a_body_in_pieces(client: Client) -> None:
    properties = Properties(content_type=b"text/plain")
    async with client.sink("t", producer="p") as sink:
        await sink.publish(b"first")
        await sink.publish_from(pieces_of(LONG, 10_007), len(LONG), properties=properties)
        await sink.publish(b"last")
        await sink.publish_from(pieces_of(b"", 1), 0)
        assert sink.next == 5
    assert sink.stored == 4
    async with client.feed("t", FromBeginning()) as feed:
        found = [await anext(feed) for _ in range(4)]
    assert [message.body for message in found] == [b"first", LONG, b"last", b""]
    assert found[1].head.properties.content_type == b"text/plain"


async def test_other_tasks_publish_before_and_after_a_body_in_pieces(client: Client) -> None:
    async with client.sink("t") as sink, anyio.create_task_group() as nursery:
        for body in (LONG[:900_000], LONG[100:900_000]):
            nursery.start_soon(sink.publish_from, pieces_of(body, 10_007), len(body))
        for _ in range(20):
            nursery.start_soon(sink.publish, b"little")
        nursery.start_soon(sink.publish_many, [b"many"] * 100)
    found = await bodies_of(client, "t", 122)
    assert sorted(map(len, found)) == sorted([900_000, 899_900, *[6] * 20, *[4] * 100])


@pytest.mark.parametrize("length", [len(LONG) - 1, len(LONG) + 1])
async def test_pieces_of_another_length_end_the_sink(client: Client, length: int) -> None:
    with pytest.raises(ValueError, match=f"do not have {length} octets together"):
        async with client.sink("t") as sink:
            await sink.publish_from(pieces_of(LONG, 10_007), length)
    with pytest.raises(ConnectionLost, match="in the middle of a message"):
        await sink.publish(b"more")
    assert await messages_in(client, b"t") == 0


async def test_a_body_that_is_given_up_ends_the_sink(client: Client) -> None:
    with anyio.CancelScope() as limit:
        async with client.sink("t") as sink:

            async def endless() -> AsyncIterator[bytes]:
                yield LONG
                limit.cancel()
                await anyio.sleep_forever()

            await sink.publish_from(endless(), 1 << 30)
    assert await messages_in(client, b"t") == 0
    with pytest.raises(ValueError, match="does not fit into an envelope"):
        async with client.sink("t") as sink:
            await sink.publish_from(pieces_of(b"", 1), 1 << 32)


# -- messages that are received in pieces -------------------------------------------------------------------


async def test_messages_of_any_size_are_received_in_pieces(client: Client) -> None:
    bodies = [b"first", LONG, b"", LONG + LONG, LONG[: 1 << 20], b"last"]
    async with client.sink("t") as sink:
        for body in bodies:
            await sink.publish(body, routing_key=b"key")
    found: list[bytes] = []
    async with client.feed("t", FromBeginning()) as feed, aclosing(feed.opened()) as messages:
        async for message in messages:
            assert message.head.routing_key == b"key"
            pieces_found = []
            async with message.open() as pieces:
                async for piece in pieces:
                    assert 0 < len(piece) <= 1 << 20 | 1 << 16
                    pieces_found.append(piece)
            found.append(b"".join(pieces_found))
            assert len(found[-1]) == message.size
            with pytest.raises(RuntimeError, match="received already"):
                await message.body()
            if len(found) == len(bodies):
                break
    assert found == bodies


async def test_messages_of_any_size_go_on_after_a_cancelled_iteration(client: Client) -> None:
    async with client.feed("t") as feed:
        async with aclosing(feed.opened()) as messages:
            with anyio.move_on_after(0):
                await anext(messages)
        async with client.sink("t") as sink:
            await sink.publish_many([LONG, b"after"])
        async with aclosing(feed.opened()) as messages:
            message = await anext(messages)
            async with message.open() as pieces:
                assert 0 < len(await anext(pieces)) < len(LONG)
        async with aclosing(feed.opened()) as messages:
            assert await (await anext(messages)).body() == b"after"


@pytest.mark.filterwarnings("error")
async def test_an_iteration_over_open_messages_may_be_abandoned(client: Client) -> None:
    async with client.sink("t") as sink:
        for _ in range(2):
            await sink.publish(b"x" * 3_000_000)
    async with client.feed("t", FromBeginning()) as feed:
        for _ in range(2):
            async for message in feed.opened():
                async with message.open() as pieces:
                    async for piece in pieces:
                        assert piece
                        break
                break
    del message, pieces
    gc.collect()


async def test_the_unread_rest_of_a_body_is_skipped(client: Client) -> None:
    bodies = [LONG, b"between", LONG, LONG + LONG, b"last"]
    async with client.sink("t") as sink:
        await sink.publish_many(bodies)
    found: list[bytes | int] = []
    async with client.feed("t", FromBeginning()) as feed, aclosing(feed.opened()) as messages:
        async for message in messages:
            match len(found):
                case 0:
                    found.append(message.size)  # not opened at all
                case 2:
                    async with message.open() as pieces:
                        found.append(len(await anext(pieces)) > 0)
                case 3:
                    with pytest.raises(BodyTooLong, match="has 3200000 octets, more than the 1000000"):
                        await message.body(longest=1_000_000)
                    found.append(message.size)
                case _:
                    found.append(await message.body())
            if len(found) == len(bodies):
                break
    assert found == [len(LONG), b"between", True, 2 * len(LONG), b"last"]


async def test_the_end_of_a_feed_between_messages_and_in_one(client: Client, server: Server) -> None:
    async with client.sink("t") as sink:
        await sink.publish(LONG)
    async with client.feed("t", FromBeginning()) as feed, aclosing(feed.opened()) as messages:
        assert await (await anext(messages)).body() == LONG
        await client.delete("t")
        with pytest.raises(StopAsyncIteration):
            await anext(messages)
