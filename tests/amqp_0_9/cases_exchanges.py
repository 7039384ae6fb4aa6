"""Cases for a broker: exchanges."""

from functools import partial

from .broker import Broker, case, named
from .wire import (
    bind,
    declare_exchange,
    declare_queue,
    delete_exchange,
    delete_queue,
    get,
    method,
    publish,
    short,
    table,
)


@case
def exchange_declare_twice(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_exchange(1, "p.e1"), declare_exchange(1, "p.e1"), declare_exchange(1, "p.e1", durable=1)
    )


@case
def exchange_other_type(broker: Broker) -> str:
    client = broker.channel()
    return client.said(declare_exchange(1, "p.e1b"), declare_exchange(1, "p.e1b", "fanout"))


@case
def exchange_type_unknown(broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, "p.e2", "nosuch"))


@case
def exchange_passive_missing(broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, "p.none", passive=1))


@case
def exchange_amq_prefix(broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, "amq.mine"))


@case
def exchange_amq_direct_again(broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, "amq.direct", durable=1))


@case
def exchange_amq_direct_other_flags(broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, "amq.direct", auto_delete=1))


@case
def exchange_amq_direct_passive(broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, "amq.direct", passive=1))


def exists(exchange: str, broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, exchange, passive=1))


for exchange in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "amq.rabbitmq.trace"):
    named(f"exists {exchange}")(partial(exists, exchange))


@case
def exchange_default_declare(broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, ""))


@case
def exchange_default_passive(broker: Broker) -> str:
    return broker.channel().said(declare_exchange(1, "", passive=1))


@case
def exchange_delete_missing(broker: Broker) -> str:
    return broker.channel().said(delete_exchange(1, "p.none"))


@case
def exchange_delete_amq(broker: Broker) -> str:
    return broker.channel().said(delete_exchange(1, "amq.direct"))


@case
def exchange_delete_if_unused(broker: Broker) -> str:
    return broker.channel().said(
        declare_exchange(1, "p.e3"),
        declare_queue(1, "p.q3", auto_delete=1),
        bind(1, "p.q3", "p.e3"),
        delete_exchange(1, "p.e3", 1),
    )


@case
def exchange_internal_publish(broker: Broker) -> str:
    client = broker.channel()
    return client.said(declare_exchange(1, "p.e4", internal=1), publish(1, "p.e4", "", b"x"))


@case
def exchange_auto_delete(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_exchange(1, "p.e5", auto_delete=1),
        declare_queue(1, "p.q5", exclusive=1),
        bind(1, "p.q5", "p.e5"),
        delete_queue(1, "p.q5"),
        declare_exchange(1, "p.e5", passive=1),
    )


@case
def exchange_alternate(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_exchange(1, "p.alt", "fanout", auto_delete=1),
        declare_queue(1, "p.qa", exclusive=1),
        bind(1, "p.qa", "p.alt"),
        declare_exchange(1, "p.e6", alternate_exchange="p.alt"),
        publish(1, "p.e6", "no", b"x") + get(1, "p.qa", 1),
        delete_exchange(1, "p.e6"),
    )


@case
def exchange_to_exchange(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_exchange(1, "p.s"),
        declare_exchange(1, "p.d", "fanout"),
        method(1, 40, 30, b"\0\0" + short("p.d") + short("p.s") + short("k") + b"\0" + table({})),
        declare_queue(1, "p.qee", exclusive=1),
        bind(1, "p.qee", "p.d"),
        publish(1, "p.s", "k", b"x") + get(1, "p.qee", 1),
        method(1, 40, 40, b"\0\0" + short("p.d") + short("p.s") + short("k") + b"\0" + table({})),
        delete_exchange(1, "p.s"),
        delete_exchange(1, "p.d"),
    )
