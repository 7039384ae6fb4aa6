"""Cases for a broker: direct reply-to, and streams."""

import time
from functools import partial
from typing import Any

from .broker import Broker, case, named
from .cases_consuming import delivered
from .raw_client import until
from .wire import (
    Long,
    Timestamp,
    ack,
    bits,
    consume,
    declare_queue,
    get,
    method,
    nack,
    properties,
    publish,
    purge,
    qos,
    select_confirms,
    short,
    table,
)


@case
def direct_reply_to(broker: Broker) -> str:
    client = broker.channel()
    reply = client.call(consume(1, "amq.rabbitmq.reply-to", "", no_ack=1))
    server = broker.channel()
    server.call(declare_queue(1, "p.rpc", exclusive=1))
    client.send(publish(1, "", "p.rpc", b"ask", properties(reply_to="amq.rabbitmq.reply-to")))
    asked = until("get-ok", lambda: server.call(get(1, "p.rpc", 1)))
    reply_to = asked.properties.get("reply_to", "?")
    server.send(publish(1, "", reply_to, b"answer"))
    answer = client.wait()
    return f"{reply.name} {reply_to[:22]} {answer.name} {answer.body!r}"


@case
def direct_reply_to_with_ack(broker: Broker) -> str:
    return broker.channel().said(consume(1, "amq.rabbitmq.reply-to", ""))


@case
def stream_not_durable(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.s0", x_queue_type="stream"))


def stream(broker: Broker, count: int = 10) -> str:
    """Make a stream with messages, and return its name."""
    client = broker.channel()
    queue = f"p.st{time.time_ns()}"
    client.call(declare_queue(1, queue, durable=1, x_queue_type="stream"))
    client.call(select_confirms(1))
    client.send(*[publish(1, "", queue, b"%d" % index) for index in range(count)])
    confirmed = 0
    while confirmed < count:
        confirmed = max(confirmed, client.wait().tag)
    return queue


@case
def stream_get(broker: Broker) -> str:
    queue = stream(broker)
    return broker.channel().said(get(1, queue))


@case
def stream_without_qos(broker: Broker) -> str:
    queue = stream(broker)
    return broker.channel().said(consume(1, queue, "s"))


@case
def stream_no_ack(broker: Broker) -> str:
    queue = stream(broker)
    client = broker.channel()
    client.call(qos(1, 5))
    return client.said(consume(1, queue, "s", no_ack=1))


@case
def stream_purge(broker: Broker) -> str:
    queue = stream(broker)
    return broker.channel().said(purge(1, queue))


def consume_from(queue: str, offset: Any) -> bytes:
    """Return a consume with the argument x-stream-offset; None for no argument."""
    args = {} if offset is None else {"x-stream-offset": offset}
    return method(1, 60, 20, b"\0\0" + short(queue) + short("s") + bits() + table(args))


def read_from(offset: Any, count: int, broker: Broker) -> str:
    queue = stream(broker)
    client = broker.channel()
    client.call(qos(1, 50))
    reply = client.call(consume_from(queue, offset))
    if reply.name != "consume-ok":
        return reply.told()
    got = client.deliveries(count)
    if not got:
        return "nothing"
    first, last = got[0].body.decode(), got[-1].body.decode()
    return f"{first}..{last} headers {got[-1].properties.get('headers')}"


OFFSETS: dict[str, tuple[Any, int]] = {
    "str first": ("first", 10),
    "str last": ("last", 1),
    "str next": ("next", 0),
    "int 4": (4, 7),
    "L 7": (Long(7), 4),
    "L 100": (Long(100), 0),
    "Ts -": (Timestamp(int(time.time()) - 3600), 10),
    "Ts +": (Timestamp(int(time.time()) + 3600), 0),
    "str 1h": ("1h", 10),
    "str nonsense": ("nonsense", 0),
    "NoneType None": (None, 0),
    "int -1": (-1, 0),
}
"""The offsets, and how many messages omq sends from there on."""

for what, (offset, count) in OFFSETS.items():
    named(f"stream offset {what}")(partial(read_from, offset, count))


@case
def stream_prefetch(broker: Broker) -> str:
    queue = stream(broker, 20)
    client = broker.channel()
    client.call(qos(1, 5))
    client.call(consume_from(queue, "first"))
    first = delivered(client, 5)
    client.send(ack(1, 3, 1))
    second = delivered(client, 3)
    client.send(nack(1, 5, 0, 1))
    third = delivered(client, 1)
    return f"{first}, after ack of 3 multiple {second}, after nack requeue {third} nothing"
