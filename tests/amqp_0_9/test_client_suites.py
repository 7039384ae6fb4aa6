"""Answers of RabbitMQ that the test suites of its client libraries ask for, beyond the probe."""

import re

import pytest

from .broker import Broker
from .raw_client import Reply
from .wire import (
    consume,
    declare_exchange,
    declare_queue,
    delete_exchange,
    delete_queue,
    frame,
    method,
    properties,
    publish,
    select_confirms,
    short,
    unbind,
    unbind_exchange,
)


def test_a_consumer_cannot_turn_the_flow_off(broker: Broker) -> None:
    client = broker.channel()
    assert client.call(method(1, 20, 20, b"\1")).told() == "flow-ok"
    assert client.call(method(1, 20, 20, b"\0")).told() == "connection.close 540 NOT_IMPLEMENTED (20,20)"


@pytest.mark.parametrize("first", [0, 1])
def test_a_queue_is_declared_again_as_exclusive_as_it_is(broker: Broker, first: int) -> None:
    client = broker.channel()
    client.call(declare_queue(1, f"locked {first}", auto_delete=1, exclusive=first))
    again = client.call(declare_queue(1, f"locked {first}", auto_delete=1, exclusive=1 - first))
    assert again.told() == "channel.close 405 RESOURCE_LOCKED (50,10)"


def test_a_binding_of_something_that_does_not_exist_is_removed(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "bound", exclusive=1))
    for queue, source in (("bound", "none"), ("none", "amq.topic"), ("none", "none")):
        assert client.call(unbind(1, queue, source, "k")).told() == "unbind-ok"
    for destination, source in (("amq.topic", "none"), ("none", "amq.topic")):
        assert client.call(unbind_exchange(1, destination, source, "k")).told() == "exchange.unbind-ok"


def test_names_are_declared_and_deleted_without_the_ends_of_lines(broker: Broker) -> None:
    client = broker.channel()
    assert client.call(declare_queue(1, "a\nqueue\r\n", auto_delete=1)).text == "aqueue"
    assert client.call(declare_queue(1, "aqueue", passive=1)).text == "aqueue"
    assert client.call(delete_queue(1, "a\r\nqueue")).told() == "delete-ok 0"
    assert client.call(declare_queue(1, "aqueue", passive=1)).told().startswith("channel.close 404")
    client = broker.channel()
    assert client.call(declare_exchange(1, "an\nexchange")).told() == "exchange.declare-ok"
    assert client.call(declare_exchange(1, "anexchange", passive=1)).told() == "exchange.declare-ok"
    assert client.call(delete_exchange(1, "an\rexchange")).told() == "exchange.delete-ok"
    assert client.call(declare_exchange(1, "anexchange", passive=1)).told().startswith("channel.close 404")


def test_a_heartbeat_belongs_to_no_channel(broker: Broker) -> None:
    client = broker.channel()
    assert client.call(frame(8, 1, b"")).told() == "connection.close 505 UNEXPECTED_FRAME (0,0)"


def test_the_name_of_a_reply_queue_has_two_parts_in_base64(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "asked", exclusive=1))
    client.call(consume(1, "amq.rabbitmq.reply-to", "replies", no_ack=1))
    client.call(consume(1, "asked", "questions", no_ack=1))
    client.send(publish(1, "", "asked", b"?", properties(reply_to="amq.rabbitmq.reply-to")))
    reply: Reply = client.wait()
    part = "[A-Za-z0-9+/]+={0,2}"
    reply_to = str(reply.properties["reply_to"])
    assert re.fullmatch(rf"amq\.rabbitmq\.reply-to\.{part}\.{part}==", reply_to)
    client.send(publish(1, "", reply_to, b"!"))
    assert client.wait().body == b"!"


def test_the_client_that_closes_a_connection_closes_the_socket(broker: Broker) -> None:
    client = broker.channel()
    assert client.call(method(0, 10, 50, b"\0\xc8" + short("bye") + b"\0\0\0\0")).told() == "close-ok"
    assert client.wait(0.3).told() == "nothing"
    assert client.wait().told() == "EOF"  # not for ever


def test_confirms_and_returned_messages_come_in_the_order_of_publishing(broker: Broker) -> None:
    client = broker.channel()
    client.call(select_confirms(1))
    client.send(publish(1, "amq.fanout", "k", b"1") + publish(1, "amq.fanout", "k", b"2", mandatory=1))
    replies = [client.wait().told() for _ in range(3)]
    assert replies == ["ack tag=1 bits=0", "return 312 NO_ROUTE", "ack tag=2 bits=0"]
