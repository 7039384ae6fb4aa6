"""Feeds: messages out as envelopes, live, replayed and shared out (6-DMP)."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from quietness import pass_time, quiet
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.drivers.seam import SLOW_SECONDS
from omq.protocol.amqp.head import Head
from omq.protocol.dmp.envelopes import NULL_MESSAGE
from omq.protocol.omq.types import Deleted, Error

from .conversation import EVERY, Conversation, declared, eventually, numbered, publish, serving
from .dmp_conversation import Consumer, envelopes, feed, lease, news, response, show, sink, stored

KEPT = pytest.mark.parametrize("persistence", [b"(Persistent Weak)", b"(Persistent Strong)"])

MIB = 1 << 20


@EVERY
async def test_every_feed_gets_every_message_in_order(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast " + persistence)
        consumers = [await feed(host, client) for _ in range(3)]
        await client.send(publish(b"t", numbered(1, 3000)))
        connection = await sink(host, client)
        await connection.send(envelopes(numbered(3001, 5000)))
        assert await stored(connection) == 2000
        bodies = await consumers[0].bodies(5000)
        assert sorted(bodies) == sorted(numbered(1, 5000))
        for first, last in ((1, 3000), (3001, 5000)):
            own = set(numbered(first, last))
            assert [body for body in bodies if body in own] == numbered(first, last)
        for consumer in consumers[1:]:
            assert await consumer.bodies(5000) == bodies


async def test_a_message_without_a_head_has_the_topic_for_its_key(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        consumer = await feed(host, client)
        await client.say(b'(Publish t "a body")')
        (envelope,) = await consumer.take(1)
        assert envelope.body == b"a body"
        assert envelope.head == Head(exchange=b"", routing_key=b"t")
        assert not envelope.mandatory
        assert not envelope.immediate
        assert consumer.octets == bytes.fromhex("0000000f 00 0174 0000 00 000006") + b"a body"


async def test_no_envelope_is_too_small_for_openamqs_receivers(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        consumer = await feed(host, client)
        await client.say(b'(Publish t "")')
        assert await consumer.bodies(1) == [b""]
        assert int.from_bytes(consumer.octets[:4], "big") == len(consumer.octets) - 4 >= 12


@EVERY
async def test_a_feed_misses_no_message_after_the_get(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast " + persistence)
        await client.say(b"(Publish t before)")
        await client.confirm()
        one = await lease(client, b"(Get t From_current)")
        await client.send(publish(b"t", numbered(1, 500)))
        await client.confirm()
        connection = await show(host, one)
        assert await response(connection) == b"200 OK Feed 't' ready"
        assert await Consumer(connection).bodies(500) == numbered(1, 500)


@KEPT
async def test_replay_and_live_join(store: Path, persistence: bytes) -> None:
    count = 20_000
    async with serving(store) as host:
        client = await declared(host, b"Broadcast " + persistence)
        connection = await sink(host, client)
        published = 0

        async def keep_publishing() -> None:
            nonlocal published
            while published < count:
                await connection.send(envelopes(numbered(published + 1, published + 100)))
                published += 100
                await trio.sleep(0.001)
            assert await stored(connection) == count

        async def replay(begin_at: int, get: bytes, first: int) -> None:
            driver = host.server.catalogue.lookup(b"t")
            assert driver is not None
            await eventually(lambda: driver.next_id > begin_at)
            consumer = await feed(host, await host.connect(), get)
            assert await consumer.bodies(count + 1 - first) == numbered(first, count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_publishing)
            for begin_at in (100, 7000, 15_000):
                nursery.start_soon(replay, begin_at, b"(Get t From_beginning)", 1)
                nursery.start_soon(
                    replay, begin_at, b"(Get t (From_message %d))" % (begin_at - 7), begin_at - 7
                )


@EVERY
async def test_round_robin_feeds_share_messages(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin " + persistence)
        consumers = [await feed(host, client) for _ in range(3)]
        connection = await sink(host, client)
        await connection.send(envelopes(numbered(1, 3000)))
        assert await stored(connection) == 3000
        received = [await consumer.bodies(1000) for consumer in consumers]
        assert sorted(int(body) for bodies in received for body in bodies) == list(range(1, 3001))
        for bodies in received:
            assert sorted(bodies, key=int) == bodies
        assert (await host.topics())[b"t"].subscribers == 3


def octets_on_their_way(connection: Conversation) -> tuple[int, int]:
    """Return the number of unread octets in this end's socket, and the greatest number of further ones in the
    server's end.

    The kernel shows the queues of both (proc_pid_net(5), `tx_queue:rx_queue`). Octets may be in both queues:
    the server's end has them until they are acknowledged.
    """
    assert isinstance(connection.stream, trio.SocketStream)
    socket = connection.stream.socket
    own, other = socket.getsockname()[1], socket.getpeername()[1]
    queues = {}
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        local, remote, _, both = line.split()[1:5]
        ports = tuple(int(end.partition(":")[2], 16) for end in (local, remote))
        queues[ports] = [int(queue, 16) for queue in both.split(":")]
    return queues[own, other][1], queues[other, own][0]


@EVERY
async def test_others_get_the_messages_that_were_not_written_to_a_lost_round_robin_feed(
    store: Path, persistence: bytes
) -> None:
    messages = [b"%06d" % n + b"x" * 2000 for n in range(500)]
    size = len(envelopes(messages[:1]))
    async with serving(store, memory_bytes=256 * MIB) as host:
        client = await declared(host, b"Round_robin " + persistence)
        lost = await feed(host, client, receive_octets=4096)
        connection = await sink(host, client)
        await connection.send(envelopes(messages))
        read = await lost.bodies(3)
        consumer = await feed(host, client)
        await quiet()  # the server has written as much as the lost feed's sockets take
        arrived, sent = octets_on_their_way(lost.connection)
        connections = host.connections
        lost.connection.reset()
        await eventually(lambda: host.connections == connections - 1)
        # Messages that go back to the topic are dealt before new ones: so this one is the last.
        await connection.send(envelopes([b"last"]))
        others: list[bytes] = []
        while b"last" not in others:
            others += await consumer.bodies(1)
        del others[-1]
        # Nothing comes twice, and only what was written is missing. That may end in the middle of a message.
        assert len(set(others)) == len(others)
        missing = sorted(set(messages) - set(others))
        assert missing[:3] == read
        least = len(lost.octets) + arrived
        assert least // size <= len(missing) <= (least + sent) // size + 1


async def test_an_unserved_round_robin_feed_keeps_no_message_from_others(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin Transient")
        one = await lease(client, b"(Get t From_current)")
        consumer = await feed(host, client)
        await client.send(publish(b"t", numbered(1, 100)))
        assert await consumer.bodies(100) == numbered(1, 100)
        consumer.connection.close()
        await eventually(lambda: host.connections == 1)
        await client.send(publish(b"t", numbered(101, 200)))
        late = await show(host, one)
        await response(late)
        assert await Consumer(late).bodies(100) == numbered(101, 200)


async def test_null_messages_also_while_data_flows(store: Path, clock: MockClock) -> None:
    async with serving(store, ping_seconds=50) as host:
        client = await host.connect()
        began = trio.current_time()
        consumer = await feed(host, client)
        for number in range(1, 21):
            await client.say(b"(Publish t %d)" % number)
            assert await consumer.bodies(1) == [b"%d" % number]
            await pass_time(clock, 1)
        nulls = 0
        octets = consumer.octets
        while octets:
            size = int.from_bytes(octets[:4], "big")
            nulls += not size
            octets = octets[4 + size :]
        assert 3 <= nulls <= (trio.current_time() - began) // 5


async def test_null_messages_while_nothing_happens(store: Path, clock: MockClock) -> None:
    async with serving(store, feed_null_seconds=2) as host:
        consumer = await feed(host, await host.connect())
        clock.rate = 0
        for count in range(1, 6):
            clock.jump(2.1)
            assert await consumer.receive()
            assert consumer.octets == NULL_MESSAGE * count


async def test_a_client_may_send_null_messages_to_its_feed(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        consumer = await feed(host, client)
        await consumer.connection.send(NULL_MESSAGE * 10 + b"\x00")
        await client.say(b"(Publish t 1)")
        assert await consumer.bodies(1) == [b"1"]


@pytest.mark.parametrize("together", [True, False], ids=["with the lease", "later"])
async def test_a_feed_takes_no_messages(store: Path, together: bool) -> None:
    async with serving(store) as host:
        client = await host.connect()
        if together:
            one = await lease(client, b"(Get t From_current)")
            connection = await host.open()
            await connection.send(b"AMQP\x0a\x01\x00\x01" + bytes([len(one)]) + one + envelopes([b"1"]))
            await response(connection)
            await response(connection)
            consumer = Consumer(connection)
        else:
            consumer = await feed(host, client)
            await consumer.connection.send(envelopes([b"1"]))
        assert await consumer.rest() == []
        assert await news(client) == b"Feed t: 503 INVALID a feed takes no messages"
        assert (await host.topics())[b"t"].subscribers == 0


@EVERY
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_deleting_the_topic_ends_its_feeds(store: Path, delivery: bytes, persistence: bytes) -> None:
    async with serving(store) as host:
        client = await declared(host, delivery + b" " + persistence)
        consumer = await feed(host, client)
        await client.say(b"(Publish t 1)")
        assert await consumer.bodies(1) == [b"1"]
        await client.say(b"(Delete t)")
        assert await consumer.rest() == []
        said = [await client.frame(), await client.frame()]
        assert Error(b"Feed t: 404 NOT-FOUND the topic was deleted") in said
        assert any(isinstance(frame, Deleted) for frame in said)


GONE = re.compile(rb"Feed t: messages (\d+) to (\d+) are gone: the subscriber was too slow")


async def test_a_feed_that_stops_reading_loses_messages_beyond_memory(store: Path) -> None:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB, spool_bytes=0) as host:
        client = await declared(host, b"Broadcast Transient")
        slow = await feed(host, client, receive_octets=4096)
        quick = await feed(host, client)
        connection = await sink(host, client)
        count = 15_000
        bodies = [b"%06d" % n + b"x" * 1000 for n in range(1, count + 1)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, envelopes(bodies))
            # It slows nobody.
            assert await quick.bodies(count) == bodies
        assert await stored(connection) == count
        with trio.fail_after(60):
            received = [int(body[:6]) for body in await slow.bodies(1)]
            while received[-1] < count:
                received += [int(body[:6]) for body in await slow.bodies(1)]
        gaps = [(a + 1, b - 1) for a, b in pairwise(received) if b != a + 1]
        assert gaps
        for first, last in gaps:
            reported = first
            while reported <= last:  # the server reports what is gone, which may grow before the next message
                found = GONE.fullmatch(await news(client))
                assert found is not None
                assert int(found[1]) == reported
                reported = int(found[2]) + 1
            assert reported == last + 1
        await client.confirm()


async def test_a_slow_feed_of_a_kept_topic_loses_nothing(store: Path, clock: MockClock) -> None:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        slow = await feed(host, client, receive_octets=4096)
        connection = await sink(host, client)
        bodies = [b"%06d" % n + b"x" * 1000 for n in range(10_000)]
        await connection.send(envelopes(bodies))
        assert await stored(connection) == 10_000
        received: list[bytes] = []
        for _ in range(100):
            clock.jump(SLOW_SECONDS)  # what is on its way to it counts as stalled
            received += await slow.bodies(100)
        assert received == bodies


async def test_a_broadcast_feed_that_half_closes_gets_the_present_messages(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.send(publish(b"t", numbered(1, 5000)))
        await client.confirm()
        consumer = await feed(host, client, b"(Get t From_beginning)")
        await consumer.connection.done()
        assert await consumer.rest() == numbered(1, 5000)
        assert (await host.topics())[b"t"].subscribers == 0


async def test_a_broadcast_feed_that_half_closes_gets_no_later_messages(store: Path) -> None:
    """However long it takes to send it what there was."""
    count = 200
    async with serving(store, memory_bytes=64 * MIB) as host:
        client = await host.connect()
        await client.send(publish(b"t", [b"x" * 100_000] * count))
        await client.confirm()
        consumer = await feed(host, client, b"(Get t From_beginning)", receive_octets=4096)
        await consumer.connection.done()
        await wait_all_tasks_blocked()  # the server, too, has seen the end of what the client sends
        await client.say(b"(Publish t later)")
        await client.confirm()
        assert await consumer.rest() == [b"x" * 100_000] * count


async def test_a_round_robin_feed_that_half_closes_is_dealt_nothing_more(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin Transient")
        consumer, other = await feed(host, client), await feed(host, client)
        await consumer.connection.done()
        assert await consumer.rest() == []
        await client.send(publish(b"t", numbered(1, 100)))
        assert await other.bodies(100) == numbered(1, 100)


async def test_a_server_that_stops_ends_feeds_between_two_envelopes(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.send(publish(b"t", numbered(1, 20_000)))
        await client.confirm()
        consumer = await feed(host, client, b"(Get t From_beginning)")
        await consumer.receive()
        await host.server.stop()
        bodies = await consumer.rest()
        assert bodies == numbered(1, len(bodies))


async def test_a_feed_whose_client_is_gone_is_closed(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        consumers = [await feed(host, client) for _ in range(4)]
        consumers[0].connection.close()
        consumers[1].connection.reset()
        await eventually(lambda: host.connections == 3)
        assert (await host.topics())[b"t"].subscribers == 2
        await client.say(b"(Publish t 1)")
        for consumer in consumers[2:]:
            assert await consumer.bodies(1) == [b"1"]
