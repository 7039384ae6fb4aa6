"""Sinks: envelopes in, as safe as their topic promises once the server says so (6-DMP)."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from quietness import quiet

from omq.drivers.queue_options import Overflow, QueueOptions
from omq.model import Sync
from omq.protocol.amqp.head import PLAIN_HEAD, Head, encode
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.envelopes import IMMEDIATE, MANDATORY, NULL_MESSAGE
from omq.protocol.omq.types import Declared, Error
from omq.terminals.connection.statistics import Kind

from .conversation import (
    EVERY,
    PATIENCE,
    Conversation,
    Host,
    answers_pile_up,
    declared,
    eventually,
    numbered,
    serving,
    serving_process,
)
from .dmp_conversation import (
    GREETING,
    HEADER,
    envelopes,
    lease,
    news,
    response,
    said,
    short,
    show,
    sink,
    stored,
)

MIB = 1 << 20


async def kept(host: Host, count: int, topic: bytes = b"t") -> list[bytes]:
    """Return the bodies of all messages of a persistent topic, which must be so many."""
    reader = await host.connect()
    await reader.ask(b"(Subscribe %s From_beginning)" % topic)
    bodies = await reader.bodies(count)
    assert (await reader.topics())[topic].messages == count
    return bodies


@EVERY
async def test_a_whole_sink_dialogue_may_come_in_one_segment(store: Path, persistence: bytes) -> None:
    bodies = numbered(1, 5000)
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast %s)" % persistence)
        await client.ask(b"(Subscribe t From_current)")
        one = await lease(client, b"(Put t)")
        connection = await host.open()
        await connection.send(HEADER + short(one) + envelopes(bodies))
        await connection.done()
        assert await said(connection) == [
            GREETING[1:],
            b"200 OK Sink 't' ready",
            b"200 OK 5000 messages stored",
        ]
        assert await client.bodies(5000) == bodies


async def test_one_octet_at_a_time(store: Path) -> None:
    bodies = [b"", b"1", b"22", b"x" * 100]
    async with serving(store) as host:
        client = await host.connect()
        octets = HEADER + short(await lease(client, b"(Put t)"))
        octets += (
            NULL_MESSAGE + envelopes(bodies[:2]) + NULL_MESSAGE * 2 + envelopes(bodies[2:]) + NULL_MESSAGE
        )
        connection = await host.open()
        connection.stream.setsockopt(6, 1, 1)  # TCP_NODELAY: each octet travels alone
        for index in range(len(octets)):
            await connection.send(octets[index : index + 1])
            await trio.sleep(0.0005)
        await connection.done()
        assert (await said(connection))[1:] == [b"200 OK Sink 't' ready", b"200 OK 4 messages stored"]
        assert await kept(host, 4) == bodies


async def test_null_messages_alone(store: Path) -> None:
    async with serving(store) as host:
        connection = await sink(host, await host.connect())
        await connection.send(NULL_MESSAGE * 1000)
        assert await stored(connection) == 0
        assert (await host.topics())[b"t"].messages == 0


async def test_splits_anywhere(store: Path) -> None:
    bodies = [b"%d" % number * (number % 50) for number in range(2000)]
    octets = b"".join(envelopes([body]) + NULL_MESSAGE * (len(body) % 3) for body in bodies)
    chance = random.Random(7)
    async with serving(store) as host:
        connection = await sink(host, await host.connect())
        at = 0
        while at < len(octets):
            size = chance.choice([1, 3, 40, 1000, 70_000])
            await connection.send(octets[at : at + size])
            at += size
            await trio.lowlevel.checkpoint()
        assert await stored(connection) == 2000
        assert await kept(host, 2000) == bodies


async def test_sinks_of_one_topic_are_shared(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        sinks = [await sink(host, client) for _ in range(4)]
        counts = []

        async def send(number: int) -> None:
            for start in range(0, 300, 30):
                await sinks[number].send(
                    envelopes([b"%d-%03d" % (number, n) for n in range(start, start + 30)])
                )
                await trio.lowlevel.checkpoint()
            counts.append(await stored(sinks[number]))

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(send, number)
        assert counts == [300] * 4
        bodies = await kept(host, 1200)
        for number in range(4):
            own = [body for body in bodies if body.startswith(b"%d-" % number)]
            assert own == [b"%d-%03d" % (number, n) for n in range(300)]


BAD = {
    "a size that leaves no room": bytes.fromhex("00000007 0000 0000 000000"),
    "sizes that contradict one another": bytes.fromhex("0000000a 00 00 0000 00 000005 7878"),
    "flags without their fields": bytes.fromhex("00000008 00 00 8000 00 000000"),
    "a name longer than the envelope": bytes.fromhex("00000008 ff 00 0000 00 000000"),
    "a truncated table": bytes.fromhex("0000000c 00 00 2000 00000009 00 000000"),
    "options that do not exist": bytes.fromhex("00000008 00 00 0000 04 000000"),
    "text": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("octets", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("together", [True, False], ids=["in one read", "by itself"])
async def test_a_malformed_envelope_ends_the_connection(store: Path, octets: bytes, together: bool) -> None:
    async with serving(store) as host:
        client = await host.connect()
        connection = await sink(host, client)
        await connection.send(envelopes(numbered(1, 100)) + (octets if together else b""))
        if not together:
            await eventually(lambda: host.server.catalogue.lookup(b"t").next_id == 101)  # type: ignore[union-attr]  # there is such a topic
            await connection.send(octets)
        (answer,) = await said(connection)
        assert answer.startswith(b"502 SYNTAX-ERROR 100 messages stored; envelope 101: "), answer
        assert await news(client) == b"Sink t: " + answer
        assert await kept(host, 100) == numbered(1, 100)
        await client.confirm()


async def test_an_envelope_that_is_cut_off(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        connection = await sink(host, client)
        await connection.send(envelopes([b"whole", b"cut"])[:-1])
        await connection.done()
        answer = b"502 SYNTAX-ERROR 1 messages stored; the connection ended 14 octets into an envelope"
        assert await said(connection) == [answer]
        assert await news(client) == b"Sink t: " + answer


async def test_the_longest_message_is_taken_and_one_octet_more_is_not(store: Path) -> None:
    async with serving(store, max_message_bytes=100_000) as host:
        client = await host.connect()
        connection = await sink(host, client)
        await connection.send(envelopes([b"x" * 100_000]) + envelopes([b"x" * 100_001]))
        (answer,) = await said(connection)
        assert answer.startswith(b"502 SYNTAX-ERROR 1 messages stored; envelope 2: "), answer
        assert (await news(client)).endswith(answer)


async def test_a_length_that_is_only_claimed(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        connection = await sink(host, client)
        await connection.send(bytes.fromhex("ffffffff 00 00 0000"))
        (answer,) = await said(connection)
        assert answer.startswith(b"502 SYNTAX-ERROR 0 messages stored; envelope 1: its size is 4294967295")


async def test_large_messages_at_once(store: Path) -> None:
    """More of them than the memory for unfinished ones can hold: each gets its turn."""
    async with serving(store, memory_bytes=8 * MIB, max_message_bytes=3 * MIB) as host:
        client = await host.connect()
        sinks = [await sink(host, client) for _ in range(12)]
        octets = envelopes([b"x" * 2 * MIB])
        for connection in sinks:
            await connection.send(octets[:200_000])
        counts = []

        async def send_rest(connection: Conversation) -> None:
            await connection.send(octets[200_000:])
            counts.append(await stored(connection))

        async with trio.open_nursery() as nursery:
            for connection in sinks:
                nursery.start_soon(send_rest, connection)
        assert counts == [1] * 12
        assert host.memory_used == host.server.memory.unfinished.used == 0


async def test_an_end_without_half_close_confirms_nothing_and_keeps_messages(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        closed, reset = await sink(host, client), await sink(host, client)
        await closed.send(envelopes(numbered(1, 50)))
        closed.close()
        await eventually(lambda: host.server.catalogue.lookup(b"t").next_id == 51)  # type: ignore[union-attr]  # there is such a topic
        await reset.send(envelopes(numbered(51, 100)))
        await eventually(lambda: host.server.catalogue.lookup(b"t").next_id == 101)  # type: ignore[union-attr]  # there is such a topic
        reset.reset()
        await eventually(lambda: host.connections == 1)
        assert await kept(host, 100) == numbered(1, 100)


async def test_the_topic_is_deleted_while_a_sink_is_open(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        connection = await sink(host, client)
        await connection.send(envelopes([b"1"]))
        await eventually(lambda: host.server.catalogue.lookup(b"t").next_id == 2)  # type: ignore[union-attr]  # there is such a topic
        await client.ask(b"(Delete t)")
        await client.ask(b"(Declare t Broadcast Transient)")
        await connection.send(envelopes([b"2"]))
        answer = b"404 NOT-FOUND 1 messages stored; the topic was deleted"
        assert await said(connection) == [answer]
        assert await news(client) == b"Sink t: " + answer


@pytest.mark.parametrize("persistence", [b"(Persistent Weak)", b"(Persistent Strong)"])
async def test_a_store_that_is_full(store: Path, persistence: bytes) -> None:
    async with serving(store, map_bytes=MIB) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast %s)" % persistence)
        connection = await sink(host, client)
        sent = envelopes([b"x" * 1000] * 3000)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    await connection.stream.send_all(sent)
                    await connection.done()
                except trio.BrokenResourceError:
                    pass  # the server has had enough

            nursery.start_soon(send)
            (answer,) = await said(connection)
        assert answer.startswith(b"541 INTERNAL-ERROR "), answer
        assert answer.endswith(b" messages stored; the store is full"), answer
        assert await news(client) == b"Sink t: " + answer
        assert (await host.topics())[b"t"].messages == int(answer.split()[2]) > 0


async def test_a_topic_that_is_declared_meanwhile_is_not_deleted(store: Path) -> None:
    """Its sinks wait until it has its types, those that are leased and those that are in use."""
    async with serving(store) as host:
        client = await host.connect()
        for name in [b"t%d" % number for number in range(20)]:
            in_use = await sink(host, client, name)
            leased = await lease(client, b"(Put %s)" % name)
            await client.say(b"(Declare %s Broadcast (Persistent Strong))" % name)
            await in_use.send(envelopes([b"1"]))
            shown = await show(host, leased)
            assert (await response(shown)).startswith(b"200 OK Sink '")
            assert (await stored(in_use), await stored(shown)) == (1, 0)
            # The message may have come before the Declare, which is refused then.
            assert isinstance(await client.frame(), (Declared, Error))


async def test_a_message_that_is_not_stored_outweighs_a_malformed_one_after_it(store: Path) -> None:
    async with serving(store, map_bytes=MIB) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        connection = await sink(host, client)
        await connection.send(envelopes([b"x" * 2 * MIB]) + b"\0\0\0\1")
        (answer,) = await said(connection)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the store is full"


@pytest.mark.parametrize(
    ("options", "persistence", "taken", "expected"),
    [
        (MANDATORY, b"Transient", False, b"mandatory messages without a subscriber or a store: 3"),
        (MANDATORY, b"Transient", True, None),
        (MANDATORY, b"(Persistent Weak)", False, None),
        (IMMEDIATE, b"(Persistent Weak)", False, b"immediate messages that no subscriber could take: 3"),
        (IMMEDIATE, b"Transient", True, None),
        (
            MANDATORY | IMMEDIATE,
            b"Transient",
            False,
            b"mandatory messages without a subscriber or a store: 3, "
            b"immediate messages that no subscriber could take: 3",
        ),
        (0, b"Transient", False, None),
    ],
)
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_messages_that_want_a_taker(
    store: Path, delivery: bytes, options: int, persistence: bytes, taken: bool, expected: bytes | None
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t %s %s)" % (delivery, persistence))
        if taken:
            await (await host.connect()).ask(b"(Subscribe t From_current)")
        connection = await sink(host, client)
        # Only those that ask for it are counted.
        await connection.send(dmp_writer.for_sink([b"x"] * 5, (), [options, 0, options, 0, options]))
        assert await stored(connection) == 5
        if expected is not None:
            assert await news(client) == b"Sink t: " + expected
        await client.confirm()  # and nothing else came


@EVERY
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_a_few_messages_of_all_kinds_keep_their_order(
    store: Path, delivery: bytes, persistence: bytes
) -> None:
    """Those with a head, or with options, take another way than plain ones of the same read."""
    head = encode(Head(routing_key=b"k"))
    async with serving(store) as host:
        client, subscriber = await host.connect(), await host.connect()
        await client.ask(b"(Declare t %s %s)" % (delivery, persistence))
        await subscriber.ask(b"(Subscribe t From_current)")
        connection = await sink(host, client)
        for first in range(1, 61, 6):
            bodies = numbered(first, first + 5)
            heads = [PLAIN_HEAD, PLAIN_HEAD, head, PLAIN_HEAD, PLAIN_HEAD, PLAIN_HEAD]
            await connection.send(dmp_writer.for_sink(bodies, heads, [0, 0, 0, 0, MANDATORY, 0]))
            assert await subscriber.bodies(6) == bodies
        assert await stored(connection) == 60
        (topic,) = [driver.statistics() for driver in host.server.catalogue]
        assert (topic.messages_in, topic.messages_out) == (60, 60)


async def test_a_few_messages_wait_for_a_slow_subscriber(store: Path) -> None:
    """They are sent to its connection while that has room; after that it must take them from memory."""
    async with serving(store) as host:
        client, slow = await host.connect(), await host.connect()
        await client.ask(b"(Declare t Broadcast Transient)")
        await slow.ask(b"(Subscribe t From_current)")
        connection = await sink(host, client)
        bodies = [b"%05d" % number + b"x" * 5000 for number in range(2000)]
        for body in bodies:
            await connection.send(envelopes([body]))
        assert await stored(connection) == len(bodies)
        assert await slow.bodies(len(bodies)) == bodies


async def test_a_feed_without_a_connection_takes_no_messages(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        one = await lease(client, b"(Get t From_current)")
        connection = await sink(host, client)
        await connection.send(dmp_writer.for_sink([b"x"], (), [IMMEDIATE]))
        assert (await news(client)).startswith(b"Sink t: immediate messages that no subscriber")
        assert one


async def test_a_full_transient_topic_holds_a_sink_back(store: Path) -> None:
    async with serving(store, memory_bytes=8 * MIB, max_message_bytes=MIB) as host:
        client = await declared(host, b"Round_robin Transient")
        connection = await sink(host, client)
        octets = envelopes([b"x" * 1000] * 100)

        async def send() -> None:
            while True:
                await connection.stream.send_all(octets)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await eventually(lambda: host.memory_used > host.server.memory.waiting_octets // 2)
            with trio.fail_after(PATIENCE):
                await quiet()  # the server reads no more of it
            assert host.memory_used < 4 * MIB
            nursery.cancel_scope.cancel()
        connection.close()
        # Messages that wait for room there give way when the topic goes.
        await client.ask(b"(Delete t)")
        assert (await news(client)).startswith(b"Sink t: 404 NOT-FOUND ")
        await eventually(lambda: host.connections == 1 and host.memory_used == 0)


async def test_a_principal_that_reads_nothing_takes_no_memory(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect(receive_octets=4096)
        await client.ask(b"(Declare t Broadcast Transient)")
        connection = await sink(host, client)
        octets = dmp_writer.for_sink([b""], (), [MANDATORY]) * 100

        async def send() -> None:
            while True:
                await connection.stream.send_all(octets)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            principal = await answers_pile_up(host)
            assert principal.kind is Kind.OMQ
            assert principal.waiting_answers <= 1000
            nursery.cancel_scope.cancel()
        client.close()
        await eventually(lambda: host.connections == 1)


@EVERY
async def test_a_stopping_server_stores_and_reports_its_messages(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast %s)" % persistence)
        connection = await sink(host, client)
        await connection.send(envelopes(numbered(1, 1000)))
        await eventually(lambda: host.server.catalogue.lookup(b"t").next_id == 1001)  # type: ignore[union-attr]  # there is such a topic
        host.leave_open(connection)
    (answer,) = await said(connection)
    assert answer == b"530 NOT-ALLOWED 1000 messages stored; the server is stopping"
    connection.close()
    if persistence != b"Transient":
        async with serving(store) as host:
            assert await kept(host, 1000) == numbered(1, 1000)


@pytest.mark.parametrize("persistence", [b"Strong", b"Weak", b"Async"])
@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1, math.inf])
async def test_a_process_killed_during_a_drain_keeps_confirmed_messages(
    store: Path, persistence: bytes, delay: float
) -> None:
    bodies = [b"%07d" % number + b"x" * 100 for number in range(30_000)]
    answers: list[bytes] = []
    async with serving_process(store) as process:
        client = await process.connect()
        await client.ask(b"(Declare t Broadcast (Persistent %s))" % persistence)
        connection = await sink(process, client)
        octets = envelopes(bodies)
        await connection.send(octets[: len(octets) // 2])

        async def finish() -> None:
            try:
                await connection.stream.send_all(octets[len(octets) // 2 :])
                await connection.done()
                answers.extend(await said(connection))
            except (trio.BrokenResourceError, AssertionError):
                pass  # killed before it said all

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            if math.isinf(delay):
                await eventually(lambda: bool(answers))
            else:
                await trio.sleep(delay)
            await process.kill()
    async with serving_process(store) as host:
        count = (await host.topics())[b"t"].messages
        if answers:
            assert answers == [b"200 OK 30000 messages stored"]
            assert count == 30_000
        assert await kept(host, count) == bodies[:count]


async def test_nothing_is_stored_after_messages_that_a_full_queue_refused(store: Path) -> None:
    """The messages that are safe are the first ones, even if the queue has room again for later ones."""
    async with serving(store) as host:
        client = await host.connect()
        options = QueueOptions(durable=True, sync=Sync.STRONG, max_length=1, overflow=Overflow.REJECT_PUBLISH)
        queue = await host.server.catalogue.declare_queue(b"q", options)
        connection = await sink(host, client, b"q")
        assert queue.writer is not None
        async with queue.writer.paused():
            await connection.send(envelopes([b"a", b"b"]))
            await quiet()
            await host.server.catalogue.changes.change_queue(b"q", replace(options, max_length=9))
            await connection.send(envelopes([b"c"]))
            await quiet()
        expected = b"541 INTERNAL-ERROR 1 messages stored; the queue has its greatest length"
        assert await said(connection) == [expected]
        assert queue.ready == 1
