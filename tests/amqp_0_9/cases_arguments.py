"""Cases for a broker: the arguments of queues."""

import json
from collections.abc import Callable
from typing import Any

from .broker import Broker, case
from .raw_client import Client, Reply, until
from .wire import (
    bind,
    consume,
    declare_queue,
    delete_queue,
    get,
    nack,
    properties,
    publish,
    purge,
    reject,
    select_confirms,
)


@case
def priority_queue(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.pq", exclusive=1, x_max_priority=10))
    client.send(*[publish(1, "", "p.pq", b"%d" % p, properties(priority=p)) for p in (0, 5, 20, 3, 10)])
    return " ".join(client.call(get(1, "p.pq", 1)).body.decode() for _ in range(5))


@case
def message_ttl_of_queue(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.mt", exclusive=1, x_message_ttl=300))
    client.call(select_confirms(1))
    client.call(publish(1, "", "p.mt", b"a"))
    left = until("queue.declare-ok messages=0", lambda: client.call(declare_queue(1, "p.mt", passive=1)))
    return f"{left.told()} | {client.said(get(1, 'p.mt', 1))}"


@case
def queue_expires(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.qe", x_expires=400))
    until("channel.close", lambda: client.call(bind(1, "p.qe", "amq.direct")))  # a bind is no use of a queue
    return broker.channel().said(declare_queue(1, "p.qe", passive=1))


@case
def max_length_drops_head(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.ml", exclusive=1, x_max_length=2))
    client.send(*[publish(1, "", "p.ml", b"%d" % i) for i in range(5)])
    return client.said(get(1, "p.ml", 1), get(1, "p.ml", 1), get(1, "p.ml", 1))


@case
def max_length_reject_publish(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.mr", exclusive=1, x_max_length=1, x_overflow="reject-publish"))
    client.call(select_confirms(1))
    return client.said(publish(1, "", "p.mr", b"a"), publish(1, "", "p.mr", b"b"))


@case
def max_length_bytes_reject_publish(broker: Broker) -> str:
    """Show that the queue takes no message with which it would be too long, not even for a consumer."""
    client = broker.channel()
    client.call(declare_queue(1, "p.mb", exclusive=1, x_max_length_bytes=5, x_overflow="reject-publish"))
    client.call(select_confirms(1))
    said = [client.said(*[publish(1, "", "p.mb", b"x" * octets) for octets in (3, 3, 2, 1)])]
    client.call(purge(1, "p.mb"))
    client.call(consume(1, "p.mb", "t", no_ack=1))
    return " | ".join([*said, client.said(publish(1, "", "p.mb", b"x" * 6))])


def dead(client: Client, cause: Callable[[], object], **args: Any) -> str:
    """Describe a message that became a dead letter by this cause."""
    client.call(declare_queue(1, "p.dl", exclusive=1))
    client.call(
        declare_queue(
            1, "p.dq", exclusive=1, x_dead_letter_exchange="", x_dead_letter_routing_key="p.dl", **args
        )
    )
    cause()
    return shown(until("get-ok", lambda: client.call(get(1, "p.dl", 1))))


def shown(reply: Reply) -> str:
    properties = json.dumps(reply.properties or None, sort_keys=True).replace("p.", "P.")
    return f"{reply.name} {properties}"


@case
def dead_letter_rejected(broker: Broker) -> str:
    client = broker.channel()

    def reject_it() -> None:
        client.call(publish(1, "", "p.dq", b"a", properties(expiration="60000")) + get(1, "p.dq"))
        client.send(reject(1, 1, 0))

    return dead(client, reject_it)


@case
def dead_letter_expired(broker: Broker) -> str:
    client = broker.channel()
    return dead(client, lambda: client.send(publish(1, "", "p.dq", b"a", properties(expiration="100"))))


@case
def dead_letter_refused(broker: Broker) -> str:
    client = broker.channel()
    client.call(select_confirms(1))

    def refuse() -> None:
        client.call(publish(1, "", "p.dq", b"a"))
        assert client.call(publish(1, "", "p.dq", b"b")).name == "nack"

    return dead(client, refuse, x_max_length=1, x_overflow="reject-publish-dlx")


@case
def dead_letter_with_deaths_of_the_publisher(broker: Broker) -> str:
    client = broker.channel()
    names = ("p.a", "p.dq", "p.a", "p.dq", "p.a")
    deaths = [{"queue": name, "reason": "rejected"} for name in names]

    def reject_it() -> None:
        headers = {"x-death": deaths, "x-first-death-queue": "p.b"}
        client.call(publish(1, "", "p.dq", b"a", properties(headers=headers)) + get(1, "p.dq"))
        client.send(reject(1, 1, 0))

    return dead(client, reject_it)


@case
def dead_letter_without_deaths_but_a_first_one(broker: Broker) -> str:
    client = broker.channel()

    def reject_it() -> None:
        props = properties(headers={"x-first-death-queue": "p.b"})
        client.call(publish(1, "", "p.dq", b"a", props) + get(1, "p.dq"))
        client.send(reject(1, 1, 0))

    return dead(client, reject_it)


@case
def dead_letter_maxlen(broker: Broker) -> str:
    client = broker.channel()
    return dead(
        client,
        lambda: client.send(publish(1, "", "p.dq", b"a"), publish(1, "", "p.dq", b"b")),
        x_max_length=1,
    )


@case
def dead_letter_twice_counts(broker: Broker) -> str:
    client = broker.channel()
    client.call(
        declare_queue(
            1,
            "p.d1",
            exclusive=1,
            x_message_ttl=100,
            x_dead_letter_exchange="",
            x_dead_letter_routing_key="p.d2",
        )
    )
    client.call(
        declare_queue(1, "p.d2", exclusive=1, x_dead_letter_exchange="", x_dead_letter_routing_key="p.d1")
    )
    client.send(publish(1, "", "p.d1", b"a"))
    until("get-ok", lambda: client.call(get(1, "p.d2")))
    client.send(reject(1, 1, 0))
    return shown(until("get-ok", lambda: client.call(get(1, "p.d2", 1))))


@case
def delivery_limit_quorum(broker: Broker) -> str:
    client = broker.channel()
    queue = "p.qq"
    client.call(declare_queue(1, "p.qqdl", exclusive=1))
    reply = client.call(
        declare_queue(
            1,
            queue,
            durable=1,
            x_queue_type="quorum",
            x_delivery_limit=2,
            x_dead_letter_exchange="",
            x_dead_letter_routing_key="p.qqdl",
        )
    )
    out = [reply.told()]
    client.send(publish(1, "", queue, b"a"))
    for _ in range(3):
        reply = until("get-ok", lambda: client.call(get(1, queue)))
        out.append(reply.told()[:24] + (str(reply.properties.get("headers")) if reply.properties else ""))
        client.send(nack(1, reply.tag))
    until("get-ok", lambda: client.call(get(1, "p.qqdl", 1)))  # then the message has left its queue
    out.append(client.said(get(1, queue)))
    client.call(delete_queue(1, queue))
    return " | ".join(out)
