"""Queues with priorities, and their other limits, as RabbitMQ 3.10 has them."""

from typing import Any

import pytest

from .broker import Broker
from .wire import bind, consume, declare_queue, delete_queue, get, properties, publish


def test_a_queue_that_is_too_long_drops_the_highest_priority(broker: Broker) -> None:
    """However many messages the server reads together."""
    client = broker.channel()
    client.call(declare_queue(1, "dead", exclusive=1))
    target: dict[str, Any] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    client.call(declare_queue(1, "q", exclusive=1, x_max_priority=5, x_max_length=4, **target))
    priorities = [0, 5, 1, 5, 2, 9, 0]
    client.send(*(publish(1, "", "q", b"%d" % each, properties(priority=each)) for each in priorities))
    client.call(consume(1, "dead"))
    assert client.bodies(3) == [b"5", b"5", b"9"]
    assert [client.call(get(1, "q", 1)).body for _ in range(4)] == [b"2", b"1", b"0", b"0"]


MADE = "queue.declare-ok messages=0 consumers=0"
REFUSED = "channel.close 406 PRECONDITION_FAILED (50,10)"


@pytest.mark.parametrize(("most", "answer"), [(0, MADE), (255, MADE), (256, REFUSED), (-1, REFUSED)])
def test_the_highest_priority_is_an_octet(broker: Broker, most: int, answer: str) -> None:
    assert broker.channel().said(declare_queue(1, "", exclusive=1, x_max_priority=most)) == answer


def test_a_consumer_gets_the_highest_priority_of_what_was_published_before(broker: Broker) -> None:
    """Also while they are stored. Those of two exchanges in turn are stored each by itself."""
    client = broker.channel()
    client.call(declare_queue(1, "durable", durable=1, x_max_priority=9))
    client.call(bind(1, "durable", "amq.direct", "durable"))
    client.send(
        *(
            publish(1, exchange, "durable", b"%d" % each, properties(priority=each))
            for each, exchange in ((1, ""), (5, "amq.direct"), (3, ""), (9, "amq.direct"), (0, ""))
        ),
        consume(1, "durable"),
    )
    assert client.wait().name == "consume-ok"
    assert client.bodies(5) == [b"9", b"5", b"3", b"1", b"0"]
    client.call(delete_queue(1, "durable"))
