"""The conformance of AMQP 0-9-1: what clients see of omq, beside what they see of RabbitMQ 3.10.8.

`tests/data/amqp_0_9/rabbitmq_3_10.json` has what RabbitMQ answered to the same octets. omq answers the same,
except for DECIDED, which docs/AMQP.md explains.
"""

import json
import re
from pathlib import Path

import pytest

from . import (
    cases_arguments,
    cases_cancels,
    cases_connection,
    cases_consuming,
    cases_exchanges,
    cases_publishing,
    cases_queues,
    cases_streams,
)
from .broker import CASES, Broker

GROUPS = (
    cases_connection,
    cases_exchanges,
    cases_queues,
    cases_publishing,
    cases_consuming,
    cases_cancels,
    cases_arguments,
    cases_streams,
)
"""The modules whose import fills CASES."""

RABBITMQ: dict[str, str] = json.loads(
    (Path(__file__).parents[1] / "data" / "amqp_0_9" / "rabbitmq_3_10.json").read_text()
)

DECIDED = {
    # The server describes itself.
    "start": (
        "version 0-9 mechanisms PLAIN AMQPLAIN properties [('capabilities', {'publisher_confirms': 't:True', "
        "'exchange_exchange_bindings': 't:True', 'basic.nack': 't:True', 'consumer_cancel_notify': 't:True', "
        "'authentication_failure_close': 't:True', 'per_consumer_qos': 't:True', "
        "'consumer_priorities': 't:True', 'direct_reply_to': 't:True'}), ('connection', 'S'), "
        "('direct', 'I'), ('platform', 'S'), ('product', 'S'), ('version', 'S')]"
    ),
    "header 01010800": "414d515000000901",  # 0-8 is not spoken
    "header 01010901": "414d515000000901",
    # A client is told why its connection ends.
    "bad mechanism": "connection.close 403 ACCESS_REFUSED (0,0)",
    "frame max too small": "connection.close 501 FRAME_ERROR (10,31)",
    "frame max too large": "connection.close 501 FRAME_ERROR (10,31)",
    "channel max 0": "open-ok",  # 0 is no limit
    "body longer than said": "connection.close 501 FRAME_ERROR (60,40)",
    "method unknown": "connection.close 503 COMMAND_INVALID (60,99)",
    "class unknown": "channel.close 404 NOT_FOUND (61500,10)",  # Direct.Put: there is no such sink
    "exchange type unknown": "channel.close 406 PRECONDITION_FAILED (40,10)",
    "exchange amq direct other flags": "exchange.declare-ok",
    "exists amq.rabbitmq.trace": "channel.close 404 NOT_FOUND (40,10)",
    "qos changed while consuming": "3, then 5 more after qos 8",
    # The first delivery has no count yet, on every kind of queue.
    "delivery limit quorum": RABBITMQ["delivery limit quorum"].replace("l{'x-delivery-count': 'l:0'}", "l"),
    # Streams: ids begin with 1, prefetch is exact, and a gap or a wrong offset ends nothing but the channel.
    "stream without qos": "consume-ok",
    "stream no ack": "consume-ok",
    "stream prefetch": "5, after ack of 3 multiple 3, after nack requeue 1 nothing",
    "stream offset str first": "0..9 headers {'x-stream-offset': 'l:10'}",
    "stream offset str last": "9..9 headers {'x-stream-offset': 'l:10'}",
    "stream offset str 1h": "0..9 headers {'x-stream-offset': 'l:10'}",
    "stream offset int 4": "3..9 headers {'x-stream-offset': 'l:10'}",
    "stream offset L 7": "6..9 headers {'x-stream-offset': 'l:10'}",
    "stream offset Ts -": "0..9 headers {'x-stream-offset': 'l:10'}",
    "stream offset str nonsense": "channel.close 406 PRECONDITION_FAILED (60,20)",
    "stream offset int -1": "channel.close 406 PRECONDITION_FAILED (60,20)",
}
"""The answers of omq that differ from those of RabbitMQ 3.10 by decision."""


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "-"))
def test_a_client_sees_what_it_sees_of_rabbitmq(name: str, broker: Broker) -> None:
    expected = DECIDED.get(name, RABBITMQ[name])
    assert re.sub(r"T:\d+", "T:now", CASES[name](broker)) == expected


def test_every_case_has_an_answer() -> None:
    assert set(CASES) == set(RABBITMQ)
    assert GROUPS
    assert not DECIDED.keys() - CASES.keys()
