"""The statistics of a server and its connections say what there is, and asking for them changes nothing."""

from pathlib import Path

from trio.testing import MockClock

from omq.model import Topic
from omq.terminals.connection.statistics import ConnectionStatistics, HeldOctets, Kind
from omq_storage.levels import Level

from .conversation import CONNECT, InProcess, declared, eventually, numbered, publish, serving
from .dmp_conversation import HEADER, envelopes, feed, lease, sink, stored

MIB = 1 << 20


def only(host: InProcess, kind: Kind) -> ConnectionStatistics:
    """Return the one connection of this kind."""
    (found,) = [each for terminal in host.server.terminals() if (each := terminal.statistics()).kind is kind]
    return found


async def test_connections_are_counted_by_how_far_they_are(store: Path) -> None:
    async with serving(store, max_connections=7, client_share=1.0) as host:
        statistics = host.server.statistics
        assert (statistics().connections, statistics().max_connections) == (0, 7)
        silent = await host.open()
        await eventually(lambda: statistics().handshakes == 1)
        client = await host.connect()
        await client.settle()
        unknown = await host.open()
        await unknown.send(HEADER)
        await eventually(lambda: statistics().served[Kind.DMP] == 1)
        await sink(host, client)
        await feed(host, client)
        found = statistics()
        assert (found.connections, found.handshakes) == (5, 1)
        assert found.served == {Kind.OMQ: 1, Kind.DMP: 3}
        assert (found.newcomers, found.dmp_leased, found.subscriptions, found.topics) == (2, 2, 1, 1)
        for connection in (silent, unknown):
            connection.close()
        await eventually(lambda: statistics().newcomers == 0)
        assert (statistics().connections, statistics().unrecognized) == (3, 0)
        stranger = await host.open()
        await stranger.send(b"PRI * HTTP/2.0\r\n\r\n")
        while await stranger.stream.receive_some(100):
            pass
        await eventually(lambda: statistics().connections == 3)
        assert statistics().unrecognized == 1
        for _ in range(4):
            await host.connect()
        await eventually(lambda: statistics().newcomers == 0)
        assert statistics().turned_away == 0
        await (await host.open()).ended()
        assert statistics().turned_away == 1
        assert statistics().defects == 0


async def test_quotas_and_writers(store: Path, clock: MockClock) -> None:
    async with serving(store, max_leases=3, client_share=1.0, lease_seconds=10) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_current)")
        await lease(client, b"(Put t)")
        await lease(client, b"(Get t From_current)")
        found = host.server.statistics()
        assert (found.leases, found.max_leases, found.subscriptions) == (2, 3, 2)
        clock.jump(11)
        await eventually(lambda: host.server.statistics().leases == 0)
        found = host.server.statistics()
        assert 11 <= found.seconds < 100
        assert found.subscriptions == 1
        assert [writer.level for writer in found.writers] == list(Level)
        assert found.memory == host.server.memory.statistics()


async def test_an_omq_connection(store: Path, clock: MockClock) -> None:
    async with serving(store, missed_pings=0) as host:
        client = await host.open()
        await client.send(b"\0\0\0\0\0\0\0\1" + b"(Connect 1 ann:secret)\n(Confirm 1)\n")
        assert await client.octets(8)
        await client.frame()
        await eventually(lambda: not only(host, Kind.OMQ).is_sending)
        before = only(host, Kind.OMQ)
        assert before == ConnectionStatistics(
            kind=Kind.OMQ,
            client=b"ann",
            peer="{}:{}".format(*client.stream.socket.getsockname()),
            is_encrypted=False,
            seconds=before.seconds,
            octets_in=8 + 23 + 12,
            octets_out=before.octets_out,
            messages_in=0,
            messages_out=0,
            unconfirmed=0,
            waiting_answers=0,
            subscriptions=0,
            is_sending=False,
            stalled_seconds=None,
            held=HeldOctets(),
        )
        clock.jump(20)
        assert 20 <= only(host, Kind.OMQ).seconds < 60
        await client.ask(b"(Subscribe t From_current)")
        (terminal,) = host.server.terminals()
        ((topic, channel),) = [(each.topic, each.channel) for each in terminal.subscriptions()]
        assert (topic, channel.behind) == (Topic(0, b"t"), 0)
        assert only(host, Kind.OMQ).subscriptions == 1
        await eventually(lambda: not only(host, Kind.OMQ).is_sending)
        octets_out = only(host, Kind.OMQ).octets_out
        await client.send(publish(b"t", [b"x" * 1000] * 3))
        await client.messages(3)
        driver = host.server.catalogue.lookup(b"t")
        assert driver is not None
        await eventually(lambda: driver.statistics().octets_out >= 3000)
        sent = driver.statistics()
        assert sent.messages_out == 3
        assert (only(host, Kind.OMQ).messages_in, only(host, Kind.OMQ).messages_out) == (3, 3)
        assert only(host, Kind.OMQ).octets_out - octets_out == sent.octets_out == sent.octets_in


async def test_refused_messages_count_among_those_that_a_connection_published(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.send(b'(Publish t x)\n(Publish "" x)\n(Publish)\n(Publish t "x)\n')
        await client.say(b"(Confirm 1)")
        refusals = [await client.error() for _ in range(4)]
        assert refusals[-1].startswith(b"Confirm 1: 3 published before it")
        assert only(host, Kind.OMQ).messages_in == 4


async def test_messages_that_wait_for_a_commit_are_unconfirmed(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        connection = await sink(host, client)
        writer = host.server.catalogue.writers[Level.STRONG]
        async with writer.paused():
            await client.send(publish(b"t", numbered(1, 10)))
            await connection.send(envelopes(numbered(11, 17)))
            await eventually(lambda: only(host, Kind.OMQ).unconfirmed == 10)
            await eventually(lambda: only(host, Kind.SINK).unconfirmed == 7)
            assert only(host, Kind.OMQ).waiting_answers == 1
            assert only(host, Kind.SINK).client == CONNECT.split()[2].rstrip(b")")
        await client.confirm()
        assert only(host, Kind.OMQ).unconfirmed == 0
        await eventually(lambda: only(host, Kind.SINK).unconfirmed == 0)
        assert await stored(connection) == 7


async def test_a_client_that_reads_nothing_is_stalled(store: Path, clock: MockClock) -> None:
    async with serving(store, missed_pings=0, feed_null_seconds=1000, max_message_bytes=8 * MIB) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        consumer = await feed(host, client, receive_octets=4096)
        assert only(host, Kind.FEED).is_sending is False
        connection = await sink(host, client)
        await connection.send(envelopes([b"x" * 6 * MIB, b"y"]))
        assert await stored(connection) == 2
        await eventually(lambda: only(host, Kind.FEED).is_sending)
        assert only(host, Kind.FEED).stalled_seconds is None
        while only(host, Kind.FEED).stalled_seconds is None:
            clock.jump(0.5)
            await client.settle()
        clock.jump(30)
        seconds = only(host, Kind.FEED).stalled_seconds
        assert seconds is not None
        assert 30 <= seconds < 60
        (subscription,) = [each for terminal in host.server.terminals() for each in terminal.subscriptions()]
        assert (subscription.topic, subscription.channel.behind) == (Topic(0, b"t"), 2)
        assert subscription.channel.is_held
        consumer.connection.stream.setsockopt(1, 8, MIB)  # SOL_SOCKET, SO_RCVBUF: it reads fast now
        assert await consumer.bodies(2) == [b"x" * 6 * MIB, b"y"]
        await eventually(lambda: not only(host, Kind.FEED).is_sending)
        assert only(host, Kind.FEED).stalled_seconds is None
        await eventually(lambda: host.server.terminals()[1].subscriptions()[0].channel.behind == 0)
        driver = host.server.catalogue.lookup(b"t")
        assert driver is not None
        assert driver.statistics().messages_out == 2
        assert driver.statistics().octets_out == len(consumer.octets)


async def test_memory_that_a_connection_holds_is_told_by_its_purpose(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.send(b"(Publish t " + b"x" * 100_000)
        await eventually(lambda: only(host, Kind.OMQ).held.unfinished > 0)
        assert only(host, Kind.OMQ).held.unfinished == host.server.statistics().memory.unfinished
        await client.send(b")\n")
        await client.confirm()
        assert only(host, Kind.OMQ).held == HeldOctets()
