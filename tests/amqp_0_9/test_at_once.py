"""Deliveries and confirms, which leave in the task that reads the publish: in order, and without losses."""

import socket
import struct
from pathlib import Path

import pytest
import trio
from counted_steps import looked_at
from server.conversation import eventually
from trio.testing import wait_all_tasks_blocked

from omq.drivers.immediate_sends import AT_ONCE_OCTETS, MOST_CONNECTIONS
from omq_storage.batches import Framed
from omq_storage.blocks import Block

from .broker import Broker
from .served_broker import brokered
from .wire import (
    ack,
    bind,
    consume,
    declare_exchange,
    declare_queue,
    open_channel,
    publish,
    qos,
    select_confirms,
)

in_thread = trio.to_thread.run_sync


def connect(broker: Broker, no_ack: int) -> None:
    """Connect a publisher and a consumer of the queue q."""
    publisher, consumer = broker.channel(), broker.channel()
    publisher.said(declare_queue(1, "q"), select_confirms(1))
    consumer.call(consume(1, "q", no_ack=no_ack))


@pytest.mark.parametrize("no_ack", [0, 1])
async def test_the_step_that_reads_a_message_delivers_and_confirms_it(
    tmp_path: Path, no_ack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 10
    monkeypatch.setattr("omq.drivers.immediate_sends.SLICE_SECONDS", 60.0)  # also on a slow machine
    async with brokered(tmp_path) as (host, broker):

        def exchange(first: int) -> None:
            publisher, consumer = broker.clients
            for number in range(first, first + count):
                assert publisher.call(publish(1, "", "q", b"%d" % number)).name == "ack"
                assert consumer.wait().body == b"%d" % number

        await in_thread(connect, broker, no_ack)
        await in_thread(exchange, 0)  # the first message reserves ids, which takes another task
        await wait_all_tasks_blocked()
        publishing, consuming = host.server.terminals()

        def behind() -> tuple[int, int]:
            publisher, consumer = publishing.statistics(), consuming.statistics()
            return publisher.messages_in - consumer.messages_out, publisher.unconfirmed

        with looked_at(behind) as seen:
            await in_thread(exchange, count)
        assert seen == {(0, 0)}


@pytest.mark.parametrize("no_ack", [0, 1])
async def test_a_client_that_reads_late_gets_everything_in_order(tmp_path: Path, no_ack: int) -> None:
    async with brokered(tmp_path) as (host, broker):
        await in_thread(connect, broker, no_ack)
        publisher, consumer = broker.clients
        _, consuming = host.server.terminals()
        sizes = [10, 3_000, AT_ONCE_OCTETS - 1_000, AT_ONCE_OCTETS + 1_000, 100_000]
        bodies: list[bytes] = []

        def send() -> None:
            bodies.append(b"%d " % len(bodies) + bytes(sizes[len(bodies) % len(sizes)]))
            assert publisher.call(publish(1, "", "q", bodies[-1])).name == "ack"

        while not consuming.statistics().is_sending:
            await in_thread(send)
        for _ in sizes:
            await in_thread(send)
        replies = await in_thread(consumer.deliveries, len(bodies), 0.0)
        assert [reply.body for reply in replies] == bodies
        if not no_ack:
            consumer.send(ack(1, replies[-1].tag, 1))
        await eventually(lambda: not host.memory_used)
        told = await in_thread(publisher.call, declare_queue(1, "q", passive=1))
        assert told.told() == "queue.declare-ok messages=0 consumers=1"


async def test_a_lost_client_returns_its_unsent_messages_to_others(tmp_path: Path) -> None:
    count = 40
    async with brokered(tmp_path) as (_, broker):

        def connect() -> None:
            publisher, gone, other = (broker.channel() for _ in range(3))
            publisher.said(declare_queue(1, "q"), select_confirms(1))
            for consumer in (gone, other):
                consumer.call(consume(1, "q"))

        await in_thread(connect)
        publisher, gone, other = broker.clients
        for number in range(count):
            if number == count // 2:
                # The server finds both at the same time: the reset, and the next message.
                gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                gone.close()
            publisher.send(publish(1, "", "q", b"%d" % number))
            assert (await in_thread(publisher.wait)).name == "ack"
        bodies = await in_thread(other.bodies, count, 0.0)
        assert sorted(map(int, bodies)) == list(range(count))


async def test_more_connections_than_are_sent_to_at_once(tmp_path: Path) -> None:
    consumers, count = MOST_CONNECTIONS + 4, 5
    async with brokered(tmp_path) as (_, broker):

        def run() -> None:
            publisher = broker.channel()
            publisher.said(declare_exchange(1, "all", "fanout", auto_delete=1), select_confirms(1))
            for number in range(consumers):
                consumer = broker.channel()
                consumer.said(
                    declare_queue(1, f"q{number}", exclusive=1), bind(1, f"q{number}", "all"), qos(1, count)
                )
                consumer.call(consume(1, f"q{number}"))
            for number in range(count):
                assert publisher.call(publish(1, "all", "", b"%d" % number)).name == "ack"
            for consumer in broker.clients[1:]:
                assert [int(consumer.wait().body) for _ in range(count)] == list(range(count))

        await in_thread(run)


async def test_several_consumers_of_a_connection_share_its_window(tmp_path: Path) -> None:
    window, consumers = 3, 4
    async with brokered(tmp_path) as (_, broker):

        def run() -> None:
            publisher, client = broker.channel(), broker.channel()
            publisher.said(declare_queue(1, "q"), select_confirms(1))
            client.call(qos(1, window))
            for number in range(consumers):
                client.call(consume(1, "q", f"c{number}"))
            for number in range(window * consumers + 2):
                assert publisher.call(publish(1, "", "q", b"%d" % number)).name == "ack"
            replies = [client.wait() for _ in range(window * consumers)]
            assert [reply.tag for reply in replies] == list(range(1, window * consumers + 1))
            # Each has its turn. Where they wait for the connection, one may pass another.
            assert sorted(int(reply.body) for reply in replies) == list(range(window * consumers))
            for number in range(consumers):
                bodies = [int(reply.body) for reply in replies if reply.text == f"c{number}"]
                assert len(bodies) == window
                assert bodies == sorted(bodies)
            client.send(ack(1, 1), ack(1, 2))
            assert sorted(int(client.wait().body) for _ in range(2)) == [12, 13]

        await in_thread(run)


async def test_a_message_that_a_lost_client_was_not_sent_goes_to_the_next_one(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, broker):

        def connect() -> None:
            publisher, gone, _ = (broker.channel() for _ in range(3))
            publisher.said(declare_queue(1, "q"), select_confirms(1))
            gone.call(consume(1, "q", no_ack=1))

        await in_thread(connect)
        publisher, gone, other = broker.clients
        for number in range(3):  # the first one reserves ids
            assert (await in_thread(publisher.call, publish(1, "", "q", b"%d" % number))).name == "ack"
            assert (await in_thread(gone.wait)).body == b"%d" % number
        gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        publisher.send(publish(1, "", "q", b"3"))
        assert (await in_thread(publisher.wait)).name == "ack"
        await in_thread(other.call, consume(1, "q", no_ack=1))
        assert await in_thread(other.bodies, 1, 0.0) == [b"3"]


async def test_tags_of_a_consumer_that_does_not_acknowledge_have_no_gap(tmp_path: Path) -> None:
    count = 20
    async with brokered(tmp_path) as (_, broker):

        def run() -> list[int]:
            client = broker.channel()
            client.said(declare_queue(1, "q"))
            client.call(consume(1, "q", no_ack=1))
            tags = []
            for number in range(count):  # alone, and several at a time, on the connection that consumes
                client.send(*[publish(1, "", "q", b"x") for _ in range(1 + number % 3)])
                tags += [client.wait().tag for _ in range(1 + number % 3)]
            return tags

        tags = await in_thread(run)
        assert tags == list(range(1, len(tags) + 1))


async def test_a_defect_ends_the_channel_of_its_message_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Block:
        raise RuntimeError("a defect")

    async with brokered(tmp_path) as (_, broker):

        def connect() -> None:
            client, consumer = broker.channel(), broker.channel()
            client.said(declare_queue(1, "q"))
            consumer.call(consume(1, "q", no_ack=1))
            client.send(publish(1, "", "q", b"first"))
            assert consumer.wait().body == b"first"

        def publish_again() -> bytes:
            client, consumer = broker.clients
            client.call(open_channel(2))
            client.send(publish(2, "", "q", b"second"))
            return consumer.wait().body

        await in_thread(connect)
        client, _ = broker.clients
        with monkeypatch.context() as patch:
            patch.setattr(Framed, "encode", fail)
            ended = await in_thread(client.call, publish(1, "", "q", b"lost"))
        assert ended.told() == "channel.close 541 INTERNAL_ERROR (60,40)"
        assert await in_thread(publish_again) == b"second"
