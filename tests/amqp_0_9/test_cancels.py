"""The last messages of a consumer, before Cancel-Ok: within limits, and not for a client that takes none.

`cases_cancels` has the cases in which RabbitMQ does the same.
"""

import re
import socket

import pytest

from .broker import Broker
from .cases_cancels import left, replies_until
from .raw_client import Client, Reply, until
from .test_channels import flow
from .test_long_ends import OPENAMQ
from .wire import cancel, consume, declare_queue, publish, select_confirms

BODY = b"x" * 2_000
WAITING = 5_000
MOST = 200 + (256 << 10) // len(BODY)
"""The greatest number of messages: those that the queue gives last, and those that were on their way."""


def fill(client: Client, queue: str, **options: int) -> None:
    """Make a queue with more messages than a consumer gets before its end."""
    client.call(declare_queue(1, queue, **options))
    client.call(select_confirms(1))
    client.send(*[publish(1, "", queue, BODY) for _ in range(WAITING)])
    confirmed = 0
    while confirmed < WAITING:
        confirmed = client.wait().tag


@pytest.mark.parametrize("no_ack", [0, 1])
def test_a_cancelled_consumer_gets_no_more_than_some_messages(no_ack: int, broker: Broker) -> None:
    client = broker.channel()
    fill(client, f"long-{no_ack}", durable=1)
    client.send(consume(1, f"long-{no_ack}", "t", no_ack) + cancel(1, "t"))
    got = replies_until(client, "cancel-ok")
    count = [reply.name for reply in got].count("deliver")
    assert 200 <= count <= MOST
    rest = f"queue.declare-ok messages={WAITING - count} consumers=0"
    assert left(client, f"long-{no_ack}") == rest
    assert client.deliveries() == []


def test_a_client_that_does_not_read_is_cancelled_all_the_same(broker: Broker) -> None:
    """The messages that it has not taken are in the queue again, and its connection goes on."""
    other, client = broker.channel(), broker.reach()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.shake_hands("guest", "guest")
    client.open()
    other.call(declare_queue(1, "unread", durable=1))
    other.send(*[publish(1, "", "unread", bytes(100_000)) for _ in range(300)])
    assert left(other, "unread") == "queue.declare-ok messages=300 consumers=0"
    assert client.call(consume(1, "unread", "t", no_ack=1)).name == "consume-ok"
    client.send(cancel(1, "t") + declare_queue(1, "behind"))

    def look() -> Reply:
        with broker.channel() as looking:
            return looking.call(declare_queue(1, "behind", passive=1))

    assert until("queue.declare-ok", look).name == "queue.declare-ok"
    messages, consumers = map(int, re.findall(r"=(\d+)", left(other, "unread")))
    assert messages > 0
    assert consumers == 0
    got = replies_until(client, "cancel-ok")
    assert [reply.name for reply in got].count("deliver") + messages == 300


def test_a_consumer_whose_flow_is_off_gets_nothing_before_its_end(broker: Broker) -> None:
    client = broker.channel(product=OPENAMQ)
    client.said(declare_queue(1, "off", durable=1), consume(1, "off", "t"), flow(1, 0))
    client.send(publish(1, "", "off", b"1") + cancel(1, "t"))
    assert [reply.name for reply in replies_until(client, "cancel-ok")] == ["cancel-ok"]
    assert left(client, "off") == "queue.declare-ok messages=1 consumers=0"
