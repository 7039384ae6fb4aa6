"""Cases for a broker: consuming."""

from .broker import Broker, case
from .raw_client import Client, until
from .wire import (
    ack,
    cancel,
    close_channel,
    consume,
    declare_queue,
    delete_queue,
    get,
    method,
    nack,
    publish,
    qos,
    recover,
    reject,
)


@case
def consume_missing(broker: Broker) -> str:
    return broker.channel().said(consume(1, "p.none"))


@case
def consume_server_tag(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.ct", exclusive=1))
    reply = client.call(consume(1, "p.ct"))
    return f"{reply.text[:9]} {len(reply.text)} octets"


@case
def consume_tag_in_use(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.ct2", exclusive=1), consume(1, "p.ct2", "t"), consume(1, "p.ct2", "t")
    )


@case
def consume_exclusive_conflict(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.ce", exclusive=1), consume(1, "p.ce", "a"), consume(1, "p.ce", "b", exclusive=1)
    )


@case
def consume_beside_exclusive(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.ce2", exclusive=1),
        consume(1, "p.ce2", "a", exclusive=1),
        consume(1, "p.ce2", "b"),
    )


@case
def cancel_unknown(broker: Broker) -> str:
    return broker.channel().said(cancel(1, "nosuch"))


@case
def cancel_keeps_unacked(broker: Broker) -> str:
    client = broker.channel()
    return (
        client.said(
            declare_queue(1, "p.ck", exclusive=1), publish(1, "", "p.ck", b"a") + consume(1, "p.ck", "t")
        )
        + " | "
        + client.wait().told()
        + " | "
        + client.said(
            cancel(1, "t"),
            declare_queue(1, "p.ck", exclusive=1),
            ack(1, 1) + declare_queue(1, "p.ck", exclusive=1),
        )
    )


@case
def cancel_by_queue_delete(broker: Broker) -> str:
    client = broker.channel()
    return (
        client.said(declare_queue(1, "p.cd", exclusive=1), consume(1, "p.cd", "t"))
        + " | "
        + client.said(delete_queue(1, "p.cd"))
        + " | "
        + client.wait().told()
    )


@case
def cancel_by_queue_delete_without_capability(broker: Broker) -> str:
    client = broker.connect(capabilities={})
    client.open()
    return (
        client.said(declare_queue(1, "p.cd", exclusive=1), consume(1, "p.cd", "t"))
        + " | "
        + client.said(delete_queue(1, "p.cd"))
        + " | "
        + client.wait(1).told()
    )


@case
def get_empty(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.g", exclusive=1), get(1, "p.g"))


@case
def get_counts(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.g2", exclusive=1),
        publish(1, "", "p.g2", b"a") + publish(1, "", "p.g2", b"b") + get(1, "p.g2"),
        get(1, "p.g2", 1),
        get(1, "p.g2"),
    )


@case
def get_missing(broker: Broker) -> str:
    return broker.channel().said(get(1, "p.none"))


@case
def ack_unknown_tag(broker: Broker) -> str:
    client = broker.channel()
    return client.said(ack(1, 5))


@case
def ack_twice(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.a2", exclusive=1),
        publish(1, "", "p.a2", b"a") + get(1, "p.a2"),
        ack(1, 1) + ack(1, 1),
    )


@case
def ack_0(broker: Broker) -> str:
    return broker.channel().said(ack(1, 0))


@case
def ack_0_multiple_with_none(broker: Broker) -> str:
    client = broker.channel()
    return client.said(ack(1, 0, 1) + declare_queue(1, "", exclusive=1))


@case
def ack_multiple_of_future(broker: Broker) -> str:
    client = broker.channel()
    return client.said(ack(1, 7, 1))


@case
def ack_on_other_channel(broker: Broker) -> str:
    client = broker.channel()
    client.open(2)
    return client.said(
        declare_queue(1, "p.ao", exclusive=1), publish(1, "", "p.ao", b"a") + get(1, "p.ao"), ack(2, 1)
    )


@case
def ack_of_no_ack_delivery(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.an", exclusive=1), publish(1, "", "p.an", b"a") + get(1, "p.an", 1), ack(1, 1)
    )


@case
def requeue_at_its_place(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.r", exclusive=1))
    client.send(*[publish(1, "", "p.r", b"%d" % i) for i in range(5)])
    return client.said(
        get(1, "p.r"),
        get(1, "p.r"),
        nack(1, 1, 0, 1) + get(1, "p.r"),
        get(1, "p.r"),
        nack(1, 0, 1, 1) + get(1, "p.r"),
        get(1, "p.r"),
    )


@case
def reject_without_requeue(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.rj", exclusive=1))
    return client.said(publish(1, "", "p.rj", b"a") + get(1, "p.rj"), reject(1, 1, 0) + get(1, "p.rj"))


@case
def requeue_on_connection_loss(broker: Broker) -> str:
    client = broker.channel()
    queue = "p.rc"
    client.call(declare_queue(1, queue))
    client.send(*[publish(1, "", queue, b"%d" % i) for i in range(3)])
    a = broker.channel()
    a.call(get(1, queue))
    a.call(get(1, queue))
    a.close()
    until("queue.declare-ok messages=3", lambda: client.call(declare_queue(1, queue, passive=1)))
    return client.said(get(1, queue), get(1, queue), get(1, queue), delete_queue(1, queue))


@case
def requeue_on_channel_close(broker: Broker) -> str:
    client = broker.channel()
    client.open(2)
    queue = "p.rcc"
    client.call(declare_queue(1, queue, exclusive=1))
    client.send(publish(1, "", queue, b"a"))
    client.call(get(2, queue))
    client.call(close_channel(2))
    return client.said(get(1, queue))


@case
def recover_requeue(broker: Broker) -> str:
    client = broker.channel()
    queue = "p.rv"
    client.call(declare_queue(1, queue, exclusive=1))
    client.send(publish(1, "", queue, b"a"))
    return client.said(get(1, queue), recover(1, 1), get(1, queue))


@case
def recover_to_the_same(broker: Broker) -> str:
    return broker.channel().said(recover(1, 0))


@case
def recover_async(broker: Broker) -> str:
    client = broker.channel()
    return client.said(method(1, 60, 100, b"\1") + declare_queue(1, "", exclusive=1))


@case
def qos_size(broker: Broker) -> str:
    return broker.channel().said(qos(1, 1, 1))


@case
def qos_global(broker: Broker) -> str:
    return broker.channel().said(qos(1, 1, 0, 1))


def delivered(client: Client, count: int) -> int:
    """Return the number of messages that come; the first `count` may take as long as they want."""
    return len(client.bodies(count))


def fill(client: Client, queue: str) -> None:
    client.call(declare_queue(1, queue, exclusive=1))
    client.send(*[publish(1, "", queue, b"%d" % i) for i in range(20)])
    client.call(declare_queue(1, queue, exclusive=1))


@case
def qos_of_each_consumer(broker: Broker) -> str:
    client = broker.channel()
    fill(client, "p.qa")
    client.call(qos(1, 3))
    client.send(consume(1, "p.qa", "a"), consume(1, "p.qa", "b"))
    found = [client.wait().name for _ in range(8)]
    count = found.count("deliver") + delivered(client, 0)
    return f"{count} of 20 to two consumers"


@case
def qos_changed_while_consuming(broker: Broker) -> str:
    client = broker.channel()
    fill(client, "p.qb")
    client.call(qos(1, 3))
    client.send(consume(1, "p.qb", "a"))
    client.wait()
    before = delivered(client, 3)
    client.call(qos(1, 8))
    return f"{before}, then {delivered(client, 5)} more after qos 8"


@case
def qos_changed_globally(broker: Broker) -> str:
    client = broker.channel()
    fill(client, "p.qc")
    client.call(qos(1, 3, 0, 1))
    client.send(consume(1, "p.qc", "a"))
    client.wait()
    before = delivered(client, 3)
    client.send(qos(1, 8, 0, 1))
    found = [client.wait().name for _ in range(6)]
    count = found.count("deliver") + delivered(client, 0)
    return f"{before}, then {count} more after global qos 8"


@case
def qos_and_no_ack(broker: Broker) -> str:
    client = broker.channel()
    fill(client, "p.qd")
    client.call(qos(1, 3))
    client.send(consume(1, "p.qd", "a", no_ack=1))
    client.wait()
    return f"{delivered(client, 20)} of 20"


@case
def qos_and_get(broker: Broker) -> str:
    client = broker.channel()
    fill(client, "p.qg")
    client.call(qos(1, 1))
    return client.said(get(1, "p.qg"), get(1, "p.qg"))


@case
def round_robin(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.rr", exclusive=1))
    client.call(consume(1, "p.rr", "a", no_ack=1))
    client.call(consume(1, "p.rr", "b", no_ack=1))
    client.send(*[publish(1, "", "p.rr", b"%d" % i) for i in range(6)])
    got: dict[str, list[str]] = {"a": [], "b": []}
    for _ in range(6):
        reply = client.wait()
        got[reply.text].append(reply.body.decode())
    return str(got)


@case
def consumer_priority(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.cp", exclusive=1))
    client.call(consume(1, "p.cp", "a", no_ack=1))
    client.call(consume(1, "p.cp", "b", no_ack=1, x_priority=5))
    client.send(*[publish(1, "", "p.cp", b"%d" % i) for i in range(4)])
    return " ".join(client.wait().text for _ in range(4))


@case
def single_active_consumer(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.sa", exclusive=1, x_single_active_consumer=True))
    client.call(consume(1, "p.sa", "a", no_ack=1))
    client.call(consume(1, "p.sa", "b", no_ack=1))
    client.send(*[publish(1, "", "p.sa", b"%d" % i) for i in range(4)])
    return " ".join(client.wait().text for _ in range(4))


@case
def no_local(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.nl", exclusive=1))
    client.call(consume(1, "p.nl", "a", no_ack=1, no_local=1))
    return client.said(publish(1, "", "p.nl", b"x"))
