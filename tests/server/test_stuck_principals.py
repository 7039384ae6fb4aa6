"""Sinks and feeds whose principal reads none of its answers: that is no reason to keep them waiting."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from quietness import pass_until
from trio.testing import MockClock

from .conversation import PATIENCE, Conversation, InProcess, answers_pile_up, declared, eventually, publish
from .dmp_conversation import Consumer, envelopes, lease, response, said, show
from .stalled_readers import sending_little

MALFORMED = b"\x00\x00\x00\x01x"


@asynccontextmanager
async def stuck(host: InProcess, principal: Conversation) -> AsyncIterator[None]:
    """Let the principal ask without reading, until the server has no room for one more of its answers."""

    async def ask_and_ask() -> None:
        while True:
            await principal.stream.send_all(b"(Nonsense)\n" * 1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_and_ask)
        await answers_pile_up(host)
        with trio.fail_after(PATIENCE):
            yield
        nursery.cancel_scope.cancel()


async def test_a_sink_that_fails_is_closed(store: Path) -> None:
    async with sending_little(store) as host:
        principal = await host.connect(receive_octets=4096)
        shown = await lease(principal, b"(Put t)")
        async with stuck(host, principal):
            sink = await show(host, shown)
            assert await response(sink) == b"200 OK Sink 't' ready"
            await sink.send(envelopes([b"good"]) + MALFORMED)
            (answer,) = await said(sink)
            assert answer.startswith(b"502 SYNTAX-ERROR 1 messages stored; ")


@pytest.mark.parametrize("says", [b"what for", b""])
async def test_a_feed_that_ends_is_closed(store: Path, says: bytes) -> None:
    async with sending_little(store) as host:
        client = await declared(host, b"Broadcast Transient")
        principal = await host.connect(receive_octets=4096)
        shown = await lease(principal, b"(Get t From_current)")
        async with stuck(host, principal):
            feed = await show(host, shown)
            assert await response(feed) == b"200 OK Feed 't' ready"
            if says:
                await feed.send(envelopes([says]))
            else:
                await client.say(b"(Delete t)")
            assert await Consumer(feed).rest() == []


async def test_null_messages_continue_while_a_gap_is_not_reported(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.server")
    async with sending_little(store, feed_null_seconds=5) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await client.send(publish(b"t", [b"gone"] * 3))
        await client.confirm(3)
        principal = await host.connect(receive_octets=4096)
        shown = await lease(principal, b"(Get t From_beginning)")
        async with stuck(host, principal):
            await client.ask(b"(Purge t)")
            await client.send(publish(b"t", [b"kept"]))
            await client.confirm(4)
            feed = Consumer(await show(host, shown))
            assert await response(feed.connection) == b"200 OK Feed 't' ready"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_on, feed)
                await pass_until(lambda: len(feed.octets) >= 12, clock)
                nursery.cancel_scope.cancel()
            assert feed.octets == bytes(12)  # null messages
        principal.close()
        assert await feed.bodies(1) == [b"kept"]
        await eventually(lambda: "feed 't': messages 1 to 3: " in caplog.text)


async def read_on(feed: Consumer) -> None:
    while await feed.receive():
        pass
