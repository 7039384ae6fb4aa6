"""Long messages that are routed: from AMQP 0-9-1 producers and sinks of exchanges to any kinds of queues."""

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio
from quietness import quiet

from omq.config import Config
from omq.connections import Terminal
from omq.drivers.queue_options import QueueOptions
from omq.server import Server, open_server

from .broker import Broker
from .raw_client import Client, until
from .test_direct import MANDATORY, Dmp, envelope, lease
from .test_large_messages import frames
from .wire import (
    ack,
    bind,
    body,
    close_channel,
    consume,
    declare_queue,
    delete_queue,
    get,
    header,
    properties,
    publish,
    publishing,
    reject,
    select_confirms,
)

MIB = 1 << 20

LONG = bytes(range(250)) * 30_000
"""A message that is larger than the memory."""

QUEUES = {"stored": 1, "one": 0, "other": 0}
"""Queues, and whether they are durable."""

SECONDS = 60

Work = Callable[[Broker, Server], None]


def run(folder: Path, work: Work, spool_bytes: int = 64 * MIB, patience: float = 0.05) -> None:
    """Run a server with little memory, and in a thread this work with it. It waits N seconds (`patience`) for
    subscribers, and for room on the spool.
    """

    async def serve() -> None:
        config = Config(
            listen=["127.0.0.1:0"],
            store=str(folder / "store"),
            memory_bytes=4 * MIB,
            spool_bytes=spool_bytes,
            stall_seconds=patience,
            spool_seconds=patience,
        )
        async with open_server(config) as server:
            broker = Broker(("127.0.0.1", server.port))
            try:
                with trio.fail_after(SECONDS):
                    await trio.to_thread.run_sync(work, broker, server, abandon_on_cancel=True)
                    while server.statistics().spool.used or server.memory.statistics().uploaded:
                        await quiet()
            finally:
                broker.close()

    trio.run(serve)


def used(server: Server) -> int:
    """Return the octets that are on the spool."""
    statistics = trio.from_thread.run_sync(server.statistics)
    return statistics.spool.used


def spooled(server: Server) -> int:
    """Return the octets that have come to the spool."""
    statistics = trio.from_thread.run_sync(server.statistics)
    return statistics.spool.written


def until_spooled(server: Server) -> None:
    """Wait until something is on the spool."""
    while not used(server):
        trio.from_thread.check_cancelled()


def bound(broker: Broker) -> Client:
    """Return a client that has bound the queues to the fanout exchange."""
    client = broker.channel()
    for queue, durable in QUEUES.items():
        client.call(declare_queue(1, queue, durable=durable))
        client.call(bind(1, queue, "amq.fanout"))
    return client


def begin_long(client: Client, queue: str, exchange: str = "", data: bytes = LONG) -> list[bytes]:
    """Publish the first half of the frames of a message. Return the others."""
    found = frames(1, data)
    half = len(found) // 2
    client.send(
        publishing(1, exchange, queue), header(1, len(data), properties(message_id="l")), *found[:half]
    )
    return found[half:]


def test_a_message_for_several_queues_is_on_the_spool_once(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client = bound(broker)
        client.call(select_confirms(1))
        client.send(*begin_long(client, "", "amq.fanout"))
        assert client.wait().told() == "ack tag=1 bits=0"
        assert spooled(server) == len(LONG)
        for queue in QUEUES:
            got = client.call(get(1, queue))
            assert (got.body == LONG, got.properties["message_id"]) == (True, "l")
            assert used(server) >= len(LONG)
        client.send(ack(1, 0, multiple=1))

    run(tmp_path, work)


def test_a_rejected_message_comes_again(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client = broker.channel()
        client.call(declare_queue(1, "one"))
        client.call(select_confirms(1))
        client.send(*begin_long(client, "one"))
        assert client.wait().told() == "ack tag=1 bits=0"
        client.send(consume(1, "one", "t"))
        assert client.wait().name == "consume-ok"
        assert client.wait().body == LONG
        client.send(reject(1, 1, requeue=1))
        again = client.wait()
        assert again.body == LONG
        client.send(ack(1, 2))

    run(tmp_path, work)


@pytest.mark.parametrize("queue", ["stored", "one"])
def test_one_from_before_a_dead_letter_exchange_is_dropped(
    tmp_path: Path, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = QueueOptions(dead_letter_exchange=b"", dead_letter_key=b"other")

    def work(broker: Broker, server: Server) -> None:
        client = bound(broker)
        client.call(select_confirms(1))
        client.send(*begin_long(client, queue))
        assert client.wait().told() == "ack tag=1 bits=0"
        client.send(publishing(1, "", queue), header(1, 5), body(1, b"short"))
        assert client.wait().told() == "ack tag=2 bits=0"
        trio.from_thread.run(server.catalogue.changes.change_queue, queue.encode(), options)
        assert client.call(get(1, queue)).body == LONG
        assert client.call(get(1, queue)).body == b"short"
        client.send(reject(1, 1, requeue=0), reject(1, 2, requeue=0))
        while (dead := client.call(get(1, "other", 1))).told() == "get-empty":
            trio.from_thread.check_cancelled()
        assert dead.body == b"short"
        assert client.call(get(1, "other", 1)).told() == "get-empty"

    run(tmp_path, work)
    assert "messages 1 to 1: " in caplog.text
    assert "a dead letter" in caplog.text


def test_it_keeps_its_place_between_messages_that_are_spilled(tmp_path: Path) -> None:
    """Those before it may be on their way to the disk when it is complete."""
    small = 2000

    def work(broker: Broker, server: Server) -> None:
        client = broker.channel()
        client.call(declare_queue(1, "one"))
        client.call(select_confirms(1))
        for part in range(3):
            some = [publish(1, "", "one", b"%d" % at + bytes(1000)) for at in range(part, 3 * small, 3)]
            client.send(b"".join(some))
            client.send(*begin_long(client, "one"))
        tags = 0
        while tags < 3 * (small + 1):
            tags = int(client.wait().told().split()[1].removeprefix("tag="))
        client.send(consume(1, "one", "t", no_ack=1))
        assert client.wait().name == "consume-ok"
        for part in range(3):
            for at in range(part, 3 * small, 3):
                assert client.wait().body == b"%d" % at + bytes(1000)
            assert client.wait().body == LONG
        assert spooled(server) == 3 * len(LONG)

    run(tmp_path, work)


@pytest.mark.parametrize("queue", ["one", "stored"])
@pytest.mark.parametrize("how", ["method", "cut"])
def test_a_publisher_that_ends_in_the_middle_leaves_nothing(tmp_path: Path, how: str, queue: str) -> None:
    def work(broker: Broker, server: Server) -> None:
        client, other = bound(broker), broker.channel()
        begin_long(client, queue)
        if queue == "one":
            until_spooled(server)
        if how == "method":
            client.send(close_channel(1))  # which may not come within a content
            assert client.wait().name == "connection.close"
        else:
            client.close()
        assert other.call(get(1, queue)).name == "get-empty"

    run(tmp_path, work)


def waiting(server: Server, topic: bytes) -> int:
    """Return the number of publishers that wait for room in a topic."""

    def found() -> int:
        driver = server.catalogue.by_name.get(topic)
        return 0 if driver is None else driver.statistics().waiting_publishers

    return trio.from_thread.run_sync(found)


def until_waiting(server: Server, topic: bytes, count: int) -> None:
    """Wait until N (`count`) publishers wait for room in a topic."""
    while waiting(server, topic) != count:
        trio.from_thread.check_cancelled()


def of(server: Server, name: bytes) -> list[Terminal]:
    """Return the terminals of a client."""
    return [each for each in server.terminals() if each.statistics().client == name]


def until_gone(server: Server, name: bytes) -> None:
    """Wait until a client has no connection any more."""
    while trio.from_thread.run_sync(of, server, name):
        trio.from_thread.check_cancelled()


def disconnect(server: Server, name: bytes) -> None:
    """End the connection of a client, as an operator does."""
    (found,) = of(server, name)
    found.disconnect("an operator ended the connection")


def test_a_publisher_that_ends_while_its_complete_message_waits_leaves_nothing(tmp_path: Path) -> None:
    """The message follows what the connection published before to a topic that has no room."""

    def work(broker: Broker, server: Server) -> None:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that room never comes later
            stalled.connect(broker.address)
            stalled.sendall(bytes(7) + b"\1(Connect 1 stalled)\n(Declare full Broadcast Transient)\n")
            stalled.sendall(b"(Subscribe full From_current)\n")
            client, other = broker.channel(user="ended"), broker.channel()
            client.open(2)
            client.call(declare_queue(1, "one"))
            *rest, last = begin_long(client, "one")
            client.send(*rest, body(1, last[7:-2]))
            until("queue.declare-ok", lambda: client.call(declare_queue(2, "full", passive=1)))
            some = publish(1, "", "full", bytes(50_000))
            while not waiting(server, b"full"):
                other.send(some)
            client.send(publish(2, "", "full", bytes(5_000)), body(1, last[-2:-1]))
            until_waiting(server, b"full", 2)
            trio.from_thread.run_sync(disconnect, server, b"ended")
            until_gone(server, b"ended")
            assert waiting(server, b"full") == 1
            other.close()
            declared = broker.channel().call(declare_queue(1, "one", passive=1))
            assert declared.told() == "queue.declare-ok messages=0 consumers=0"

    run(tmp_path, work, patience=SECONDS)


def test_queues_that_are_deleted_in_the_middle_do_not_count(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client, other = bound(broker), broker.channel()
        client.call(select_confirms(1))
        rest = begin_long(client, "", "amq.fanout")
        until_spooled(server)
        for queue in ("stored", "one"):
            other.call(delete_queue(1, queue))
        client.send(*rest)
        assert client.wait().told() == "ack tag=1 bits=0"
        assert client.call(get(1, "other", 1)).body == LONG
        rest = begin_long(client, "other")
        until_spooled(server)
        other.call(delete_queue(1, "other"))
        client.send(*rest)
        assert client.wait().told() == "ack tag=2 bits=0"

    run(tmp_path, work)


def test_a_message_for_which_the_spool_has_no_room_is_refused(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client = broker.channel()
        client.call(declare_queue(1, "one"))
        begin_long(client, "one")
        assert client.wait().told().startswith("channel.close 506")
        assert spooled(server) == 0

    run(tmp_path, work, spool_bytes=5 * MIB)


def test_a_producer_does_not_wait_for_a_queue_that_is_deleted(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client, other = broker.channel(), broker.channel()
        for queue in ("one", "other"):
            other.call(declare_queue(1, queue))
        for each in (client, other):
            each.call(select_confirms(1))
        other.send(*begin_long(other, "one"))
        assert other.wait().told() == "ack tag=1 bits=0"
        rest = begin_long(client, "other")
        while trio.from_thread.run_sync(lambda: server.catalogue.spool.room.waiting) != 1:
            trio.from_thread.check_cancelled()
        assert other.call(delete_queue(1, "other")).told() == "delete-ok 0"
        client.send(*rest)
        assert client.wait().told() == "ack tag=1 bits=0"
        assert other.call(get(1, "one", 1)).body == LONG

    run(tmp_path, work, spool_bytes=8 * MIB)


def test_a_channel_does_not_wait_for_room_that_another_one_needs(tmp_path: Path) -> None:
    """The spool has a part of a message on the other channel, whose rest cannot come meanwhile."""

    def work(broker: Broker, server: Server) -> None:
        client = broker.channel()
        client.open(2)
        client.call(declare_queue(1, "one"))
        client.call(select_confirms(1))
        rest = begin_long(client, "one")
        until_spooled(server)
        client.send(publishing(2, "", "one"), header(2, len(LONG)), frames(2, LONG)[0], *rest)
        answers = {reply.channel: reply.told() for reply in (client.wait(), client.wait())}
        assert answers[1] == "ack tag=1 bits=0"
        assert answers[2].startswith("channel.close 506")
        assert client.call(get(1, "one", 1)).body == LONG

    run(tmp_path, work, spool_bytes=8 * MIB)


def test_a_producer_waits_until_a_consumer_has_made_room(tmp_path: Path) -> None:
    """One that consumes does not: the room may depend on its acknowledgements."""

    def work(broker: Broker, server: Server) -> None:
        first, second, both = broker.channel(), broker.channel(), broker.channel()
        for client in (first, second):
            client.call(declare_queue(1, "one"))
            client.call(select_confirms(1))
        first.send(*begin_long(first, "one"))
        assert first.wait().told() == "ack tag=1 bits=0"
        begin, *rest = frames(1, LONG)
        second.send(publishing(1, "", "one"), header(1, len(LONG)), begin)
        while trio.from_thread.run_sync(lambda: server.catalogue.spool.room.waiting) != 1:
            trio.from_thread.check_cancelled()
        assert both.call(consume(1, "one", "t")).name == "consume-ok"
        assert both.wait().body == LONG
        both.send(publishing(1, "", "one"), header(1, len(LONG)))
        assert both.wait().told().startswith("channel.close 506")  # so it gives the message back
        assert until("get-ok", lambda: first.call(get(1, "one"))).body == LONG
        first.send(ack(1, 1))
        second.send(*rest)
        assert second.wait().told() == "ack tag=1 bits=0"
        assert first.call(get(1, "one", 1)).body == LONG

    run(tmp_path, work, spool_bytes=8 * MIB)


def test_a_queue_with_a_limit_takes_none_that_the_memory_cannot_hold(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client = broker.channel()
        client.call(declare_queue(1, "limited", **{"x-max-length": 10}))
        client.send(publishing(1, "", "limited"), header(1, len(LONG)))
        assert client.wait().told().startswith("channel.close 406")

    run(tmp_path, work)


# -- sinks of exchanges -------------------------------------------------------------------------------------


def sink(broker: Broker, client: Client) -> Dmp:
    return Dmp(broker, lease(client, 10, "amq.fanout"))


def answer(connection: Dmp) -> bytes:
    connection.socket.shutdown(socket.SHUT_WR)
    return connection.short()


def test_a_sink_of_an_exchange_sends_it_to_all_queues(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client = bound(broker)
        with closing(sink(broker, client)) as connection:
            connection.socket.sendall(envelope("k", b"a") + envelope("k", LONG) + envelope("k", b"b"))
            assert answer(connection) == b"200 OK 3 messages stored"
        assert spooled(server) == len(LONG)
        for queue in QUEUES:
            for expected in (b"a", LONG, b"b"):
                got = client.call(get(1, queue, no_ack=1))
                assert got.body == expected
                assert b"\x04kept" in got.args

    run(tmp_path, work)


def test_a_sink_of_an_exchange_whose_queues_go_in_the_middle(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client = bound(broker)
        octets = envelope("k", LONG)
        with closing(sink(broker, client)) as connection:
            connection.socket.sendall(octets[: 3 * MIB])
            until_spooled(server)
            for queue in ("stored", "one"):
                client.call(delete_queue(1, queue))
            connection.socket.sendall(octets[3 * MIB :])
            assert answer(connection) == b"200 OK 1 messages stored"
        assert client.call(get(1, "other", no_ack=1)).body == LONG

    run(tmp_path, work)


def test_a_sink_of_an_exchange_that_ends_in_the_middle(tmp_path: Path) -> None:
    def work(broker: Broker, server: Server) -> None:
        client = bound(broker)
        with closing(sink(broker, client)) as connection:
            connection.socket.sendall(envelope("k", LONG)[: 3 * MIB])
            until_spooled(server)
        while used(server):
            trio.from_thread.check_cancelled()
        assert client.call(get(1, "one")).name == "get-empty"

    run(tmp_path, work)


def test_a_sink_of_an_exchange_for_which_the_spool_has_no_room(tmp_path: Path) -> None:
    """It does not wait for ever for one that can never have the room."""

    def work(broker: Broker, server: Server) -> None:
        client = bound(broker)
        with closing(sink(broker, client)) as connection:
            connection.socket.sendall(envelope("k", LONG)[: MIB // 8])
            assert connection.short() == b"541 INTERNAL-ERROR 0 messages stored; the spool is full"

    run(tmp_path, work, spool_bytes=5 * MIB)


def test_a_sink_of_an_exchange_with_a_long_message_without_a_route(tmp_path: Path) -> None:
    """It is held if the memory can hold it: the client may want it back."""
    fitting = LONG[: 3 * MIB]

    def work(broker: Broker, server: Server) -> None:
        client = broker.channel()
        with closing(sink(broker, client)) as connection:
            connection.socket.sendall(envelope("k", fitting, MANDATORY) + envelope("k", fitting))
            returned = client.wait()
            assert returned.body == fitting
            assert answer(connection) == b"200 OK 0 messages stored"
        with closing(sink(broker, client)) as connection:
            connection.socket.sendall(envelope("k", LONG)[: MIB // 8])
            why = b"502 SYNTAX-ERROR 0 messages stored; a body of 7500000 octets "
            assert connection.short().startswith(why)
        assert spooled(server) == 0

    run(tmp_path, work)
