"""Long messages of transient topics of either delivery: what both do with them on the spool.

What only broadcast topics do is in `test_long_transient_messages.py`, and what only round-robin topics do in
`test_long_work_messages.py`.
"""

import os
from pathlib import Path

import pytest
import trio

from omq.client import connect
from omq.protocol.omq.types import Deleted

from .conversation import Conversation, InProcess, declared, serving
from .dmp_conversation import envelopes, news, said, sink
from .large_messages import MIB, body, send
from .spooled_messages import LONG, SETTINGS, begun, done, spool, subscribed
from .test_spool import spool_names

pytestmark = pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])


class Audience:
    """The only subscriber of a topic: of a broadcast topic from the beginning, so that its messages are kept;
    of a round-robin topic from the first use on, so that they wait until then.
    """

    def __init__(self, host: InProcess, early: Conversation | None) -> None:
        self._host = host
        self._subscriber = early

    @classmethod
    async def of(cls, host: InProcess, delivery: bytes) -> "Audience":
        return cls(host, await subscribed(host) if delivery == b"Broadcast" else None)

    async def subscriber(self) -> Conversation:
        if self._subscriber is None:
            self._subscriber = await subscribed(self._host)
        return self._subscriber


async def topic(host: InProcess, delivery: bytes) -> tuple[Conversation, Audience]:
    """Return a client that has declared a transient topic, and its subscriber."""
    client = await declared(host, delivery + b" Transient")
    return client, await Audience.of(host, delivery)


@pytest.mark.parametrize("how", ["done", "reset"])
async def test_a_sink_that_ends_in_the_middle_leaves_nothing(store: Path, delivery: bytes, how: str) -> None:
    async with serving(store, **SETTINGS) as host:
        client, audience = await topic(host, delivery)
        connection = await begun(host, client)
        assert not list(spool_names(store))
        if how == "done":
            await connection.done()
            (answer,) = await said(connection)
            assert answer.startswith(b"502 SYNTAX-ERROR 0 messages stored; the connection ended "), answer
        else:
            connection.reset()
        await done(host)
        await send(host, await host.connect(), [b"next"])
        message = await (await audience.subscriber()).message()
        assert (message.id, message.body) == (1, b"next")


async def test_a_topic_that_is_deleted_in_the_middle(store: Path, delivery: bytes) -> None:
    async with serving(store, **SETTINGS) as host:
        client, _ = await topic(host, delivery)
        connection = await begun(host, client)
        other = await host.connect()
        assert isinstance(await other.ask(b"(Delete t)"), Deleted)
        await connection.send(envelopes([LONG])[2 * MIB : 4 * MIB])
        (answer,) = await said(connection)
        assert answer == b"404 NOT-FOUND 0 messages stored; the topic was deleted", answer
        await done(host)


async def test_a_topic_that_is_deleted_while_a_subscriber_is_in_the_middle(
    store: Path, delivery: bytes
) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await declared(host, delivery + b" Transient")
        late = await subscribed(host, 4096)
        await send(host, client, [LONG])
        assert spool(host).used >= len(LONG)
        assert await late.receive()
        other = await host.connect()
        assert isinstance(await other.ask(b"(Delete t)"), Deleted)
        while await late.receive():
            pass
        assert late.unfinished
        await done(host)


async def test_a_message_that_the_spool_cannot_hold(
    store: Path, delivery: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store, **SETTINGS, spool_bytes=5 * MIB) as host:
        client, audience = await topic(host, delivery)
        connection = await sink(host, client)
        await connection.send(envelopes([LONG])[: 2 * MIB])
        (answer,) = await said(connection)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the spool is full", answer
        assert await news(client) == b"Sink t: " + answer
        await done(host)
        await send(host, client, [LONG[: 4 * MIB]])
        assert (await (await audience.subscriber()).message()).body == LONG[: 4 * MIB]
    assert "long messages were refused: a message of 6291473 octets: the spool is full" in caplog.messages


async def test_the_disk_has_only_its_reserve_free(store: Path, delivery: bytes) -> None:
    async with serving(store, **SETTINGS, disk_reserve_bytes=1 << 60) as host:
        client, audience = await topic(host, delivery)
        connection = await sink(host, client)
        await connection.send(envelopes([LONG])[: 2 * MIB])
        (answer,) = await said(connection)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the disk is full", answer
        await send(host, await host.connect(), [body(3 * MIB)])
        assert (await (await audience.subscriber()).message()).body == body(3 * MIB)
        assert spool(host).written == 0


async def test_a_disk_that_becomes_full_in_the_middle(
    store: Path, delivery: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = os.fstatvfs

    def full(file: int) -> os.statvfs_result:
        found = list(actual(file))
        found[4] = 0
        return os.statvfs_result(found)

    async with serving(store, **SETTINGS) as host:
        client, audience = await topic(host, delivery)
        connection = await begun(host, client)
        with monkeypatch.context() as filled:
            filled.setattr(os, "fstatvfs", full)
            await connection.send(envelopes([LONG])[2 * MIB : 4 * MIB])
            (answer,) = await said(connection)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the disk is full", answer
        await done(host)
        await send(host, await host.connect(), [LONG])
        assert (await (await audience.subscriber()).message()).body == LONG


async def test_without_a_spool_the_memory_is_the_limit(store: Path, delivery: bytes) -> None:
    async with serving(store, **SETTINGS, spool_bytes=0) as host:
        client = await declared(host, delivery + b" Transient")
        connection = await sink(host, client)
        await connection.send(envelopes([LONG])[:300_000])
        (answer,) = await said(connection)
        assert b"no message may take more than" in answer, answer


async def test_a_repeated_long_message_is_sent_once(store: Path, delivery: bytes) -> None:
    async with serving(store, **SETTINGS) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        _, audience = await topic(host, delivery)

        async def publish() -> None:
            for _ in range(2):
                async with client.sink("t", producer="p") as numbered:
                    await numbered.publish(LONG)
            async with client.sink("t") as plain:
                await plain.publish(b"last")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            assert await (await audience.subscriber()).bodies(2) == [LONG, b"last"]
        await done(host)
