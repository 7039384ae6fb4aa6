"""Bad input, limits, full stores, defects, kills and damage while a large message is stored or read."""

import errno
import os
from pathlib import Path

import lmdb
import pytest
import trio
from trio.testing import MockClock

from omq.protocol.dmp.envelopes import MANDATORY, NUMBER
from omq.protocol.omq.types import Deleted
from omq_storage.fragments import FRAGMENTS

from .conversation import Conversation, declared, eventually, serving, serving_process
from .dmp_conversation import envelopes, news, said, sink, stored
from .large_messages import LARGE, MIB, body, everything, fragments, leftovers, send, swept

CODECS = pytest.mark.usefixtures("each_codec")


@CODECS
@pytest.mark.parametrize("sent", [10, 100_000, 400_000, 2 * MIB])
@pytest.mark.parametrize("how", ["done", "reset"])
async def test_a_length_that_is_announced_and_not_sent(store: Path, how: str, sent: int) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, LARGE)
        connection = await sink(host, client)
        await connection.send(envelopes([b"whole"]) + envelopes([body(3 * MIB)])[:sent])
        if how == "done":
            await connection.done()
            (answer,) = await said(connection)
            assert answer.startswith(b"502 SYNTAX-ERROR 1 messages stored; the connection ended "), answer
            assert await news(client) == b"Sink t: " + answer
        else:
            connection.reset()
        await eventually(lambda: host.connections == 1)
        assert (await client.topics())[b"t"].last <= 4
        assert host.server.memory.uploaded.used == 0
        # Housekeeping does the same every two seconds, and the next start.
        writer = next(each for level, each in host.server.catalogue.writers.items() if level.value == "weak")
        while await writer.call(writer.environment.sweep):
            pass
    assert leftovers(store) == (fragments(LARGE), 0)


@CODECS
async def test_a_slow_large_message_keeps_no_other_waiting(store: Path, clock: MockClock) -> None:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=1 << 32) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        slow = [await sink(host, client) for _ in range(8)]
        for connection in slow:
            await connection.send(NUMBER.pack((1 << 32) - 1 - 4) + b"\0\0\0\0" + NUMBER.pack((1 << 32) - 13))
            await connection.send(b"x" * 300_000)
        for _ in range(10):
            for connection in slow:
                await connection.send(b"x")
            clock.jump(1)
        await send(host, client, [LARGE[0], b"small"])
        for connection in slow:
            await connection.send(b"x")  # none had to give way
        assert host.server.memory.unfinished.used == 0


async def test_the_largest_size_and_one_octet_more(store: Path) -> None:
    async with serving(store, max_message_bytes=MIB) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, [b"x" * MIB])
        connection = await sink(host, client)
        await connection.send(envelopes([b"x" * (MIB + 1)])[:300_000])
        (answer,) = await said(connection)
        assert answer.startswith(b"502 SYNTAX-ERROR 0 messages stored; envelope 1: its body of "), answer


async def test_a_message_that_is_held_has_the_limit_of_the_memory(store: Path) -> None:
    limits = {"max_message_bytes": 1 << 30, "fragment_octets": 64 * MIB}
    async with serving(store, memory_bytes=4 * MIB, **limits) as host:
        client = await declared(host, b"Round_robin Transient")
        connection = await sink(host, client)
        await connection.send(envelopes([b"x" * (5 * MIB)])[:300_000])
        (answer,) = await said(connection)
        why = b"a body of 5242880 octets is above the limit of 4194304 of its topics"
        assert answer == b"502 SYNTAX-ERROR 0 messages stored; " + why


@CODECS
async def test_a_bad_head_of_a_large_message_is_told(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        connection = await sink(host, client)
        await connection.send(NUMBER.pack(MIB) + b"\xff" * 300_000)
        (answer,) = await said(connection)
        assert answer.startswith(b"502 SYNTAX-ERROR 0 messages stored; envelope 1: "), answer
    await nothing(store)


async def nothing(store: Path) -> None:
    async with serving(store):
        pass
    assert leftovers(store) == (0, 0)


async def test_options_of_a_large_message(store: Path) -> None:
    """A body whose length fits beside the options may have some: a stored message needs no subscriber."""
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        connection = await sink(host, client)
        octets = bytearray(envelopes([LARGE[0]]))
        at = octets.index(NUMBER.pack(MIB), 4)
        octets[at : at + 4] = NUMBER.pack(MANDATORY << 24 | MIB)
        await connection.send(bytes(octets))
        assert await stored(connection) == 1


@CODECS
async def test_a_topic_that_is_deleted_in_the_middle(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        connection = await sink(host, client)
        octets = envelopes([body(3 * MIB)])
        await connection.send(octets[:MIB])
        other = await host.connect()
        assert isinstance(await other.ask(b"(Delete t)"), Deleted)
        await connection.send(octets[MIB : 2 * MIB])  # not even the rest is waited for
        (answer,) = await said(connection)
        assert answer == b"404 NOT-FOUND 0 messages stored; the topic was deleted", answer
    await nothing_after_sweep(store)


async def test_a_refusal_in_the_middle_gives_the_memory_for_reading_back(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        connection = await sink(host, client)
        octets = envelopes([body(6 * MIB)])
        await connection.send(octets[:MIB])
        other = await host.connect()
        assert isinstance(await other.ask(b"(Delete t)"), Deleted)
        # More than one read takes, so the server looks for more when it has refused the message.
        await send_until_refused(connection, octets[MIB:])
        await eventually(lambda: host.connections == 2)
        assert host.server.memory.statistics().reading == 0


async def nothing_after_sweep(store: Path) -> None:
    async with serving(store) as host:
        writer = next(each for level, each in host.server.catalogue.writers.items() if level.value == "weak")
        await eventually(lambda: not writer.environment.sweep())
    assert leftovers(store) == (0, 0)


@CODECS
async def test_a_store_that_is_full_in_the_middle(store: Path) -> None:
    async with serving(store, map_bytes=8 * MIB, max_message_bytes=1 << 30) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        await send(host, client, LARGE[:1])
        connection = await sink(host, client)
        octets = envelopes([body(20 * MIB)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_until_refused, connection, octets)
            (answer,) = await said(connection)
            nursery.cancel_scope.cancel()
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the store is full", answer
        assert await news(client) == b"Sink t: " + answer
        environment = next(
            each for level, each in host.server.catalogue.writers.items() if level.value == "strong"
        ).environment
        await eventually(lambda: not environment.sweep())
        await send(host, client, LARGE[1:])
        assert await everything(host, await host.connect(), 3) == LARGE


@CODECS
async def test_two_messages_that_the_store_cannot_hold_together(store: Path) -> None:
    async with serving(store, map_bytes=8 * MIB) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        sinks = [await sink(host, client) for _ in range(2)]
        answers: list[bytes] = []

        async def send_one(connection: Conversation, salt: int) -> None:
            await send_until_refused(connection, envelopes([body(5 * MIB, salt)]))
            await connection.done()
            answers.extend(await said(connection))

        async with trio.open_nursery() as nursery:
            for salt, connection in enumerate(sinks):
                nursery.start_soon(send_one, connection, salt)
        full = answers.count(b"541 INTERNAL-ERROR 0 messages stored; the store is full")
        whole = answers.count(b"200 OK 1 messages stored")
        assert (full + whole, full >= 1) == (2, True), answers
        environment = next(
            each for level, each in host.server.catalogue.writers.items() if level.value == "strong"
        ).environment
        await eventually(lambda: not environment.sweep())
        await send(host, await host.connect(), [LARGE[0]])
        assert (await everything(host, await host.connect(), whole + 1))[-1] == LARGE[0]


async def send_until_refused(connection: Conversation, octets: bytes) -> None:
    try:
        await connection.stream.send_all(octets)
    except trio.BrokenResourceError:
        pass  # the server has answered and closed


@CODECS
async def test_the_reserve_of_the_disk_is_kept_in_the_middle(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        connection = await sink(host, client)
        octets = envelopes([body(3 * MIB)])
        await connection.send(octets[:MIB])
        for writer in host.server.catalogue.writers.values():
            writer.fragments.disk_reserve = 1 << 60
        await connection.send(octets[MIB:])
        (answer,) = await said(connection)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the disk is full", answer


async def test_a_defect_in_the_middle_ends_only_the_affected_part(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    actual = os.statvfs

    def statvfs(path: str | Path) -> os.statvfs_result:
        if Path(path) == store:
            return actual(path)  # housekeeping looks there
        raise OSError(errno.EIO, "no file system answers")

    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        sinks = [await sink(host, client) for _ in range(3)]
        octets = envelopes([body(3 * MIB)])
        with monkeypatch.context() as broken, trio.fail_after(60):
            broken.setattr(os, "statvfs", statvfs)
            async with trio.open_nursery() as nursery:
                for each in sinks:
                    nursery.start_soon(send_until_refused, each, octets)
                for each in sinks:
                    (answer,) = await said(each)
                    assert answer.startswith(b"541 INTERNAL-ERROR 0 messages stored; a defect"), answer
                nursery.cancel_scope.cancel()
        assert "no file system answers" in caplog.text
        await send(host, await host.connect(), LARGE)
        assert await everything(host, await host.connect(), 3) == LARGE


async def test_a_kill_in_the_middle_leaves_nothing_visible(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMQ_BOOT_ID", "this-boot")
    async with serving_process(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        connection = await sink(host, client)
        await connection.send(envelopes(LARGE))
        assert await stored(connection) == 3
        half = await sink(host, client)
        await half.send(envelopes([body(3 * MIB)])[: 2 * MIB])
        await client.confirm()
        await host.kill()
    await swept(store)
    async with serving(store) as again:
        assert await everything(again, await again.connect(), 3) == LARGE


async def test_another_levels_and_clients_small_messages_come_between(store: Path) -> None:
    """While large messages are sent as fast as possible, each small one is confirmed between two pieces."""
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        other = await host.connect()
        await other.ask(b"(Declare small Broadcast (Persistent Strong))")
        connection = await sink(host, client)
        octets = envelopes([body(20 * MIB)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, octets)
            for _ in range(5):
                await other.say(b'(Publish small "x")')
                await other.confirm()
            assert (await other.topics())[b"t"].messages == 0
        assert await stored(connection) == 1


@CODECS
async def test_a_fragment_that_is_damaged(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, [*LARGE, b"last"])
    with lmdb.open(str(store / "weak"), max_dbs=16) as environment:
        table = environment.open_db(FRAGMENTS, create=False)
        with environment.begin(write=True, db=table) as transaction:
            cursor = transaction.cursor()
            assert cursor.last()
            transaction.put(cursor.key(), b"damaged" + cursor.value()[7:])
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_beginning)")
        assert await client.bodies(2) == LARGE[:2]
        assert b"messages 3 to 3 are gone: the store is damaged there" in await client.error()
        assert await client.bodies(1) == [b"last"]
        fetching = await host.connect()
        await fetching.say(b"(Fetch t 3 1)")
        while await fetching.receive():
            pass
        assert fetching.unfinished
    assert any("closed in the middle of a message: the store is damaged there" in m for m in caplog.messages)
