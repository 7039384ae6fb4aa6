"""Cases for a broker: queues and bindings."""

from .broker import Broker, case
from .raw_client import Reply, until
from .wire import (
    Long,
    bind,
    bind_by,
    cancel,
    consume,
    declare_queue,
    delete_queue,
    get,
    nack,
    properties,
    publish,
    purge,
    unbind,
)


@case
def queue_server_named(broker: Broker) -> str:
    client = broker.channel()
    reply = client.call(declare_queue(1, "", exclusive=1))
    return f"{reply.text[:8]} {len(reply.text)} octets"


@case
def queue_empty_name_is_last(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "", exclusive=1))
    return client.said(
        publish(1, "", "x", b"") + bind(1, "", "amq.direct", "kk"), get(1, ""), delete_queue(1, "")
    )


@case
def queue_empty_name_without_last(broker: Broker) -> str:
    return broker.channel().said(bind(1, "", "amq.direct"))


@case
def queue_passive_missing(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.none", passive=1))


@case
def queue_amq_prefix(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "amq.mine"))


@case
def queue_other_durable(broker: Broker) -> str:
    return broker.channel().said(
        declare_queue(1, "p.q1", auto_delete=1), declare_queue(1, "p.q1", auto_delete=1, durable=1)
    )


@case
def queue_other_exclusive(broker: Broker) -> str:
    return broker.channel().said(
        declare_queue(1, "p.q1x", auto_delete=1), declare_queue(1, "p.q1x", auto_delete=1, exclusive=1)
    )


@case
def queue_other_arguments(broker: Broker) -> str:
    return broker.channel().said(
        declare_queue(1, "p.q2", exclusive=1), declare_queue(1, "p.q2", exclusive=1, x_message_ttl=1000)
    )


@case
def queue_unknown_argument(broker: Broker) -> str:
    return broker.channel().said(
        declare_queue(1, "p.qu", exclusive=1, x_whatever=1),
        declare_queue(1, "p.qu", exclusive=1, x_whatever=2),
    )


@case
def queue_bad_ttl(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.q2b", exclusive=1, x_message_ttl="abc"))


@case
def queue_negative_ttl(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.q2c", exclusive=1, x_message_ttl=-1))


@case
def queue_type_unknown(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.q2d", x_queue_type="nosuch"))


@case
def queue_type_quorum_not_durable(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.q2e", x_queue_type="quorum"))


@case
def queue_dlx_key_without_dlx(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.q2f", exclusive=1, x_dead_letter_routing_key="x"))


@case
def queue_locked_by_other(broker: Broker) -> str:
    a = broker.channel()
    a.call(declare_queue(1, "p.ex", exclusive=1))
    return " ; ".join(
        broker.channel().said(s)
        for s in (
            declare_queue(1, "p.ex", passive=1),
            declare_queue(1, "p.ex", exclusive=1),
            get(1, "p.ex"),
            consume(1, "p.ex"),
            bind(1, "p.ex", "amq.direct"),
            purge(1, "p.ex"),
            delete_queue(1, "p.ex"),
        )
    )


@case
def queue_exclusive_ends_with_connection(broker: Broker) -> str:
    a = broker.channel()
    a.call(declare_queue(1, "p.ex2", exclusive=1))
    a.close()
    return gone(broker, "p.ex2").told()


def gone(broker: Broker, queue: str) -> Reply:
    """Wait until an exclusive queue is gone with its connection. As long as it is there it is locked for
    others, and asking for it ends a channel.
    """
    return until("channel.close 404", lambda: broker.channel().call(declare_queue(1, queue, passive=1)))


@case
def queue_auto_delete_after_last_consumer(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.ad", auto_delete=1),
        consume(1, "p.ad", "t"),
        cancel(1, "t"),
        declare_queue(1, "p.ad", passive=1),
    )


@case
def queue_auto_delete_never_consumed(broker: Broker) -> str:
    a = broker.channel()
    a.call(declare_queue(1, "p.ad2", auto_delete=1))
    a.call(declare_queue(1, "p.ad2ex", exclusive=1))
    a.close()
    gone(broker, "p.ad2ex")
    client = broker.channel()
    return client.said(declare_queue(1, "p.ad2", passive=1), delete_queue(1, "p.ad2"))


@case
def queue_delete_missing(broker: Broker) -> str:
    return broker.channel().said(delete_queue(1, "p.none"))


@case
def queue_delete_if_empty(broker: Broker) -> str:
    return broker.channel().said(
        declare_queue(1, "p.q4", exclusive=1), publish(1, "", "p.q4", b"x") + delete_queue(1, "p.q4", 0, 1)
    )


@case
def queue_delete_if_unused(broker: Broker) -> str:
    return broker.channel().said(
        declare_queue(1, "p.q4b", exclusive=1), consume(1, "p.q4b"), delete_queue(1, "p.q4b", 1, 0)
    )


@case
def queue_purge_missing(broker: Broker) -> str:
    return broker.channel().said(purge(1, "p.none"))


@case
def queue_purge_keeps_unacked(broker: Broker) -> str:
    return broker.channel().said(
        declare_queue(1, "p.q5b", exclusive=1),
        publish(1, "", "p.q5b", b"a") + publish(1, "", "p.q5b", b"b") + get(1, "p.q5b"),
        purge(1, "p.q5b"),
        nack(1, 1) + get(1, "p.q5b"),
    )


@case
def queue_bind_missing_queue(broker: Broker) -> str:
    return broker.channel().said(bind(1, "p.none", "amq.direct"))


@case
def queue_bind_missing_exchange(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.q6", exclusive=1), bind(1, "p.q6", "p.none"))


@case
def queue_bind_default_exchange(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.q7", exclusive=1), bind(1, "p.q7", "", "x"))


@case
def queue_unbind_missing_binding(broker: Broker) -> str:
    return broker.channel().said(declare_queue(1, "p.q8", exclusive=1), unbind(1, "p.q8", "amq.direct", "x"))


@case
def queue_bound_twice_gets_once(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.q9", exclusive=1),
        bind(1, "p.q9", "amq.topic", "#"),
        bind(1, "p.q9", "amq.topic", "a.*"),
        publish(1, "amq.topic", "a.b", b"x") + get(1, "p.q9", 1),
        get(1, "p.q9", 1),
    )


@case
def topic_patterns(broker: Broker) -> str:
    client = broker.channel()
    out = []
    for pat in ("#", "*", "a.*", "a.#", "#.b", "*.*", "a.b", "a.#.b", "", "a..b", "*.b.#"):
        queue = "p.t"
        client.call(declare_queue(1, queue, exclusive=1))
        client.call(bind(1, queue, "amq.topic", pat))
        hit = [
            key
            for key in ("", "a", "a.b", "a.b.c", "b", "a..b", ".", "a.b.b")
            if client.call(publish(1, "amq.topic", key, b"x") + get(1, queue, 1)).name == "get-ok"
        ]
        out.append(f"{pat!r}:{hit}")
        client.call(delete_queue(1, queue))
    return "; ".join(out)


@case
def headers_match(broker: Broker) -> str:
    out = []
    for args in (
        {"x-match": "all", "a": 1, "b": "s"},
        {"x-match": "any", "a": 1, "b": "s"},
        {"a": 1},
        {},
        {"x-match": "any"},
        {"a": None},
        {"x-match": "all-with-x", "x-a": 1},
        {"x-match": "all", "x-a": 1},
    ):
        client = broker.channel()
        client.call(declare_queue(1, "p.h", exclusive=1))
        reply = client.call(bind_by(1, "p.h", "amq.headers", args))
        if reply.name != "bind-ok":
            out.append(f"{args}:{reply.told()}")
            continue
        hit = []
        for index, headers in enumerate(
            ({"a": 1, "b": "s"}, {"a": 1}, {"b": "s"}, {"a": Long(1)}, {"a": "1"}, {}, {"x-a": 1}, {"a": 1.0})
        ):
            message = publish(1, "amq.headers", "", b"x", properties(headers=headers))
            if client.call(message + get(1, "p.h", 1)).name == "get-ok":
                hit.append(index)
        out.append(f"{args}:{hit}")
        client.call(delete_queue(1, "p.h"))
    return "; ".join(out)


@case
def headers_bad_x_match(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.h2", exclusive=1))
    return client.call(bind(1, "p.h2", "amq.headers", "", x_match="some")).told()
