"""Long runs of publishes whose messages the server looks at one by one: it publishes them in slices."""

from pathlib import Path

import pytest
import trio
from counted_steps import watched
from server.conversation import InProcess, answers_pile_up, eventually, serving

from omq.drivers import slices
from omq.terminals.amqp_0_9.outbox import MOST_ANSWERS
from omq.terminals.amqp_0_9.publishing import MESSAGES_A_SLICE
from omq.terminals.connection.routing import TARGETS_IN_TURN
from omq.terminals.connection.statistics import Kind

from .broker import Broker
from .raw_client import Client
from .wire import (
    bind,
    bind_by,
    commit,
    consume,
    declare_exchange,
    declare_queue,
    long,
    method,
    open_channel,
    properties,
    publish,
    select_confirms,
    select_tx,
    short,
    table,
)

COUNT = 3_000

OURS, FORGED = properties(user_id="guest"), properties(user_id="somebody")

FORGERY = "channel.close 406 PRECONDITION_FAILED (60,40)"


def numbers(client: Client, queue: str, count: int) -> list[int]:
    """Return at least N (`count`) messages of a queue as numbers."""
    client.call(consume(1, queue, queue, no_ack=1))
    return [int(body) for body in client.bodies(count)]


def confirmed(client: Client, count: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Read until N (`count`) messages are confirmed. Return the tag of each acknowledgement, with how many
    messages were returned before it, and the messages that were returned.
    """
    acks: list[tuple[int, int]] = []
    returned: list[int] = []
    while not acks or acks[-1][0] < count:
        match (reply := client.wait()).name:
            case "return":
                returned.append(int(reply.body))
            case "ack":
                acks.append((reply.tag, len(returned)))
            case other:
                pytest.fail(other)
    return acks, returned


def test_a_long_run_keeps_its_order_and_its_confirms(broker: Broker) -> None:
    client = broker.channel()
    client.said(declare_queue(1, "long", exclusive=1), select_confirms(1))
    client.send(*[publish(1, "", "long", b"%d" % i, OURS, mandatory=1) for i in range(COUNT)])
    acks, returned = confirmed(client, COUNT)
    assert acks == sorted(set(acks))
    assert acks[-1] == (COUNT, 0)
    assert not returned
    assert numbers(client, "long", COUNT) == list(range(COUNT))


def test_a_run_with_several_routes_is_divided_and_returned_in_order(broker: Broker) -> None:
    client = broker.channel()
    client.said(declare_queue(1, "zero", exclusive=1), declare_queue(1, "one", exclusive=1))
    client.said(
        declare_exchange(1, "by headers", "headers", auto_delete=1),
        bind_by(1, "zero", "by headers", {"k": 0}),
        bind_by(1, "one", "by headers", {"k": 1}),
        select_confirms(1),
    )
    kinds = [properties(headers={"k": kind}) for kind in range(3)]
    client.send(*[publish(1, "by headers", "", b"%d" % i, kinds[i % 3], mandatory=1) for i in range(COUNT)])
    acks, returned = confirmed(client, COUNT)
    assert returned == list(range(2, COUNT, 3))
    assert acks == sorted(set(acks))
    assert acks[-1][0] == COUNT
    for tag, returned_before in acks:
        assert returned_before >= tag // 3  # what is confirmed was returned before
    assert numbers(client, "zero", COUNT // 3) == list(range(0, COUNT, 3))
    assert numbers(client, "one", COUNT // 3) == list(range(1, COUNT, 3))


def test_a_run_with_long_heads_keeps_its_order(broker: Broker) -> None:
    client = broker.channel()
    client.said(declare_queue(1, "heads", exclusive=1), select_confirms(1))
    heads = [properties(headers={"k": str(i % 3) * (i % 5) * 1000}) for i in range(200)]
    client.send(*[publish(1, "", "heads", b"%d" % i, head) for i, head in enumerate(heads)])
    acks, _ = confirmed(client, len(heads))
    assert acks[-1][0] == len(heads)
    assert numbers(client, "heads", len(heads)) == list(range(len(heads)))


def test_a_message_that_fails_ends_its_run(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "until"))
    bad = 1_000
    client.send(*[publish(1, "", "until", b"%d" % i, FORGED if i == bad else OURS) for i in range(COUNT)])
    assert client.wait().told() == FORGERY
    found = numbers(broker.channel(), "until", bad - MESSAGES_A_SLICE + 1)
    assert found == list(range(len(found)))
    assert bad - MESSAGES_A_SLICE < len(found) <= bad


def test_a_transaction_that_fails_publishes_nothing(broker: Broker) -> None:
    client = broker.channel()
    client.said(declare_queue(1, "in tx"), select_tx(1))
    client.send(publish(1, "", "in tx", b"0"))
    client.send(*[publish(1, "", "in tx", b"0", OURS) for _ in range(COUNT)])
    assert client.call(publish(1, "", "in tx", b"0", FORGED), commit(1)).told() == FORGERY
    other = broker.channel()
    assert other.call(declare_queue(1, "in tx", passive=1)).told().endswith("messages=0 consumers=0")


async def connected(host: InProcess) -> trio.SocketStream:
    """Return a connection with channel 1 that reads nothing after its handshake."""
    client = await host.open(receive_octets=4096)
    await client.send(b"AMQP\0\0\x09\1")
    response = short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
    await client.send(method(0, 10, 11, table({}) + response))
    await client.send(method(0, 10, 31, b"\0\0\0\2\0\0\0\0") + method(0, 10, 40, short("/") + b"\0\0"))
    await client.send(open_channel(1))
    return client.stream


async def test_a_client_that_reads_no_returns_takes_no_memory(tmp_path: Path) -> None:
    async with serving(tmp_path) as host:
        stream = await connected(host)
        await stream.send_all(publish(1, "", "nowhere", b"") * 50_000)  # the server reads more at a time
        message = publish(1, "", "nowhere", b"", mandatory=1)

        async def send() -> None:
            while True:
                await stream.send_all(message * COUNT)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            publisher = await answers_pile_up(host)
            assert publisher.kind is Kind.AMQP_0_9
            assert publisher.waiting_answers <= MOST_ANSWERS + MESSAGES_A_SLICE
            nursery.cancel_scope.cancel()


def messages_in(host: InProcess) -> list[int]:
    """Return the number of messages that came into each topic."""
    return [driver.statistics().messages_in for driver in host.server.catalogue]


async def test_a_message_for_many_queues_is_posted_in_turn_with_others(tmp_path: Path) -> None:
    queues = 3 * TARGETS_IN_TURN
    async with serving(tmp_path) as host:
        stream = await connected(host)
        for number in range(queues):
            await stream.send_all(declare_queue(1, f"q{number}") + bind(1, f"q{number}", "amq.fanout", ""))
        await eventually(lambda: len(messages_in(host)) == queues)
        with watched(lambda: sum(messages_in(host))) as posted:
            await stream.send_all(publish(1, "amq.fanout", "", b"x"))
            await eventually(lambda: all(messages_in(host)))
        assert 0 < posted.largest_rise() <= TARGETS_IN_TURN


async def test_a_message_for_many_queues_is_posted_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as host:
        stream = await connected(host)
        for number in range(TARGETS_IN_TURN):
            await stream.send_all(declare_queue(1, f"q{number}") + bind(1, f"q{number}", "amq.fanout", ""))
        await eventually(lambda: len(messages_in(host)) == TARGETS_IN_TURN)
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1)
        with watched(lambda: sum(messages_in(host))) as posted:
            await stream.send_all(publish(1, "amq.fanout", "", b"x"))
            await eventually(lambda: all(messages_in(host)))
        assert posted.largest_rise() == 1


async def test_consumers_of_one_read_are_opened_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as host:
        stream = await connected(host)
        await stream.send_all(declare_queue(1, "q"))
        await eventually(lambda: len(messages_in(host)) == 1)
        (driver,) = host.server.catalogue
        monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
        with watched(driver.subscriber_count) as opened:
            await stream.send_all(b"".join(consume(1, "q", str(number)) for number in range(40)))
            await eventually(lambda: driver.subscriber_count() == 40)
        assert opened.largest_rise() == 1
