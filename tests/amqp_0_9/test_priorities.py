"""Queues with priorities, and their other limits, as RabbitMQ 3.10 has them."""

from typing import Any

import pytest

from .broker import Broker
from .wire import consume, declare_queue, get, properties, publish


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
