"""Large messages of sinks are stored in fragments as they arrive, and read piece by piece."""

import errno
import os
import tracemalloc
from pathlib import Path

import lmdb
import pytest
import trio
from trio.testing import MockClock

from omq.client import Client, FromBeginning, connect
from omq.model import LONGEST_BODY
from omq.protocol.amqp.head import Head, encode
from omq.protocol.dmp.envelopes import MANDATORY, NUMBER
from omq.protocol.dmp.writer import for_sink
from omq.protocol.omq.types import Deleted, Error, StoredBlock, Subscribed
from omq.terminals.dmp.forms import FeedForm
from omq_storage import codec
from omq_storage import fragments as fragments_module
from omq_storage.batches import LARGE_OCTETS
from omq_storage.blocks import FRAME_HEADER, unpack_sent
from omq_storage.fragments import FRAGMENT_OCTETS, FRAGMENTS, LOOSE

from .conversation import Conversation, InProcess, declared, eventually, serving, serving_process
from .dmp_conversation import envelopes, feed, news, said, sink, stored

MIB = 1 << 20


def body(size: int, salt: int = 0) -> bytes:
    """Return octets in which no two fragments are equal."""
    return b"".join(b"%d-%07d " % (salt, n) for n in range(size // 10 + 1))[:size]


LARGE = [body(MIB, 1), body(700_000, 2), body(3 * MIB + 17, 3)]


async def send(host: InProcess, client: Conversation, bodies: list[bytes]) -> None:
    """Send bodies through a sink, in pieces that have nothing to do with them."""
    connection = await sink(host, client)
    octets = envelopes(bodies)
    for begin in range(0, len(octets), 70_001):
        await connection.send(octets[begin : begin + 70_001])
    assert await stored(connection) == len(bodies)


async def everything(host: InProcess, client: Conversation, count: int) -> list[bytes]:
    assert isinstance(await client.ask(b"(Subscribe t From_beginning)"), Subscribed)
    return await client.bodies(count)


def leftovers(store: Path, level: str = "weak") -> tuple[int, int]:
    """Return the numbers of fragments and of loose bodies of a stopped server."""
    with lmdb.open(str(store / level), max_dbs=16, readonly=True, lock=False) as environment:
        tables = [environment.open_db(name, create=False) for name in (FRAGMENTS, LOOSE)]
        with environment.begin() as transaction:
            found = [transaction.stat(table)["entries"] for table in tables]
    return found[0], found[1]


def fragments(bodies: list[bytes]) -> int:
    return sum(-(-len(each) // FRAGMENT_OCTETS) for each in bodies)


@pytest.mark.parametrize("level", [b"Strong", b"Weak", b"Async"])
async def test_large_and_small_messages_keep_their_order(store: Path, level: bytes) -> None:
    bodies = [b"first", LARGE[0], b"second", b"third", LARGE[1], LARGE[2], b"last"]
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent %s)" % level)
        live = await host.connect()
        await live.ask(b"(Subscribe t From_current)")
        consumer = await feed(host, client)
        await send(host, client, bodies)
        messages = await live.messages(len(bodies))
        assert [message.id for message in messages] == list(range(1, 8))
        assert [message.body for message in messages] == bodies
        assert await consumer.bodies(len(bodies)) == bodies
        assert await everything(host, client, len(bodies)) == bodies
        info = (await host.connect()).topics()
        assert (await info)[b"t"].messages == 7
        assert host.memory_used == 0
        assert host.server.memory.uploaded.used == 0
    assert leftovers(store, level.decode().lower()) == (fragments(LARGE), 0)
    async with serving(store) as host:  # and from the store, after a start
        assert await everything(host, await host.connect(), len(bodies)) == bodies


async def test_the_plain_codec_stores_the_same(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "COMPILED", False)
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, [b"first", *LARGE, b"last"])
        assert await everything(host, client, 5) == [b"first", *LARGE, b"last"]
    assert leftovers(store) == (fragments(LARGE), 0)


async def test_workers_get_large_messages(store: Path) -> None:
    bodies = [b"first", *LARGE, b"last"]
    async with serving(store) as host:
        client = await declared(host, b"Round_robin (Persistent Weak)")
        await send(host, client, bodies)
        await client.say(b"(Request t 10)")
        assert isinstance(await client.ask(b"(Subscribe t From_current)"), Subscribed)
        assert await client.bodies(5) == bodies
        # Unconfirmed messages go to another worker.
        await client.say(b"(Received t 1)", b"(Received t 2)")
        await client.settle()
        client.close()
        other = await host.connect()
        await other.say(b"(Request t 10)")
        assert isinstance(await other.ask(b"(Subscribe t From_current)"), Subscribed)
        assert await other.bodies(3) == bodies[2:]


async def test_fetch_gives_large_messages_as_blocks(store: Path) -> None:
    bodies = [b"first", *LARGE, b"last"]
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, bodies)
        await client.say(b"(Fetch t 1 100)")
        found: list[bytes] = []
        while True:
            frame = await client.frame()
            assert isinstance(frame, StoredBlock)
            block = unpack_sent(frame.value)
            if not block.count:
                break
            found += [bytes(each)[FRAME_HEADER:] for each in block.slices(block.first)]
        assert found == bodies
        assert host.server.memory.fetched.used == 0


async def test_fetch_tells_of_a_message_that_no_block_can_hold(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send(host, client, LARGE)
        monkeypatch.setattr(fragments_module, "FRAMES_LIMIT", 3 * MIB)  # 1 GiB is too much for a test
        await client.say(b"(Fetch t 1 100)")
        frames = [await client.frame() for _ in range(4)]
        blocks = [unpack_sent(frame.value) for frame in frames if isinstance(frame, StoredBlock)]
        assert [(block.first, block.count) for block in blocks] == [(1, 1), (2, 1), (4, 0)]
        text = b"Fetch t: messages 3 to 3 are gone: it has 3145745 octets, too many for a block"
        assert frames[2] == Error(text)


async def test_a_repeated_large_message_is_stored_once(store: Path) -> None:
    async with serving(store) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        for _ in range(2):
            async with client.sink("t", producer="p") as numbered:
                for each in LARGE:
                    await numbered.publish(each)
        (info,) = [info for info in await client.topics() if info.topic == b"t"]
        assert info.messages == 3
        assert await bodies_of(client, 3) == LARGE
    await swept(store)


async def bodies_of(client: Client, count: int) -> list[bytes]:
    async with client.subscribe("t", FromBeginning()) as messages:
        return [(await messages.__anext__()).body for _ in range(count)]


async def swept(store: Path) -> None:
    """Check that a server that runs for a moment leaves only the fragments of the messages."""
    async with serving(store) as host:
        writer = next(each for level, each in host.server.catalogue.writers.items() if level.value == "weak")
        await eventually(lambda: not writer.environment.sweep())
    assert leftovers(store) == (fragments(LARGE), 0)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_large_messages_of_a_transient_topic(
    store: Path, monkeypatch: pytest.MonkeyPatch, delivery: bytes, is_compiled: bool
) -> None:
    monkeypatch.setattr(codec, "COMPILED", is_compiled and codec.COMPILED)
    bodies = [b"first", LARGE[0], b"second", LARGE[1], LARGE[2], body(LARGE_OCTETS, 4), b"last"]
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t %s Transient)" % delivery)
        live = await host.connect()
        await live.ask(b"(Subscribe t From_current)")
        connection = await sink(host, client)
        heads = [encode(Head(b"", b"key"))] * 3
        octets = for_sink(bodies[:3], heads) + envelopes(bodies[3:])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_in_parts, connection, octets)
            assert await live.bodies(len(bodies)) == bodies
        assert await stored(connection) == len(bodies)
        await eventually(lambda: not host.server.memory.unfinished.used)


async def send_in_parts(connection: Conversation, octets: bytes) -> None:
    for begin in range(0, len(octets), 70_001):
        await connection.send(octets[begin : begin + 70_001])


async def test_a_large_message_is_copied_once(store: Path) -> None:
    """To copy one of 60 MiB keeps all connections waiting for tens of milliseconds."""
    if not codec.COMPILED:
        pytest.skip("the plain codec joins the parts at the end")
    async with serving(store) as host:
        client = await declared(host, b"Broadcast Transient")
        connection = await sink(host, client)
        octets = envelopes([b"x" * (16 * MIB)])
        await connection.send(octets[:MIB])
        tracemalloc.start()
        try:
            for begin in range(MIB, len(octets), MIB):
                await connection.send(octets[begin : begin + MIB])
            assert await stored(connection) == 1
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 16 * MIB


# -- bad input and trouble ---------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["compiled", "plain"])
def codecs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with either codec."""
    monkeypatch.setattr(codec, "COMPILED", request.param and codec.COMPILED)


CODECS = pytest.mark.usefixtures("codecs")


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


async def test_a_transient_topic_has_the_limit_of_the_memory(store: Path) -> None:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=1 << 30) as host:
        client = await declared(host, b"Broadcast Transient")
        connection = await sink(host, client)
        await connection.send(envelopes([b"x" * (5 * MIB)])[:300_000])
        (answer,) = await said(connection)
        assert b"no message may take more than" in answer


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


def test_the_longest_body_fits_into_the_envelope_of_a_feed() -> None:
    """Also with a default head that has a long name: then the envelope has a plain head."""
    head = encode(Head(routing_key=b"n" * 255))
    assert FeedForm(head).begin(1, 1, 0, b"", LONGEST_BODY, 0)
    with pytest.raises(ValueError, match="does not fit"):
        FeedForm(head).begin(1, 1, 0, head, LONGEST_BODY, 0)
