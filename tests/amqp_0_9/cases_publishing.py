"""Cases for a broker: publishing."""

from .broker import Broker, case
from .wire import (
    Long,
    Timestamp,
    ack,
    body,
    commit,
    consume,
    declare_queue,
    get,
    header,
    properties,
    publish,
    publishing,
    recover,
    rollback,
    select_confirms,
    select_tx,
)


@case
def publish_missing_exchange(broker: Broker) -> str:
    return broker.channel().said(publish(1, "p.none", "", b"x"))


@case
def publish_immediate(broker: Broker) -> str:
    return broker.channel().said(publish(1, "", "q", b"x", immediate=1))


@case
def publish_unroutable(broker: Broker) -> str:
    client = broker.channel()
    return client.said(publish(1, "", "p.none", b"x") + declare_queue(1, "", exclusive=1))


@case
def publish_mandatory_unroutable(broker: Broker) -> str:
    return broker.channel().said(publish(1, "", "p.none", b"x", mandatory=1))


@case
def confirm_and_return(broker: Broker) -> str:
    client = broker.channel()
    selected = client.call(select_confirms(1)).told()
    client.send(publish(1, "", "p.none", b"x", mandatory=1))
    return " | ".join([selected, client.wait().told(), client.wait().told()])


@case
def confirm_counts_2(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.c", exclusive=1))
    client.call(select_confirms(1))
    client.send(*[publish(1, "", "p.c", b"x") for _ in range(10)])
    got: set[int] = set()
    while len(got) < 10:
        reply = client.wait()
        got |= set(range(1, reply.tag + 1)) if reply.args[8] & 1 else {reply.tag}
    return "1 to 10 acknowledged"


@case
def confirm_select_twice(broker: Broker) -> str:
    return broker.channel().said(select_confirms(1), select_confirms(1))


@case
def confirm_after_tx(broker: Broker) -> str:
    return broker.channel().said(select_tx(1), select_confirms(1))


@case
def tx_after_confirm(broker: Broker) -> str:
    return broker.channel().said(select_confirms(1), select_tx(1))


@case
def tx_commit_and_rollback(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.tx", exclusive=1),
        select_tx(1),
        publish(1, "", "p.tx", b"a") + declare_queue(1, "p.tx", exclusive=1),
        commit(1),
        declare_queue(1, "p.tx", exclusive=1),
        publish(1, "", "p.tx", b"b") + rollback(1),
        declare_queue(1, "p.tx", exclusive=1),
    )


@case
def tx_commit_of_a_refused_message(broker: Broker) -> str:
    client = broker.channel()
    return client.said(
        declare_queue(1, "p.txr", exclusive=1, x_max_length=1, x_overflow="reject-publish"),
        select_tx(1),
        publish(1, "", "p.txr", b"a") + publish(1, "", "p.txr", b"b") + commit(1),
    )


@case
def tx_recover(broker: Broker) -> str:
    """Show that a recover does not wait for the commit, and spares what was acknowledged before it."""
    client = broker.channel()
    client.call(declare_queue(1, "p.txv", exclusive=1))
    client.open(2)
    client.call(select_tx(2))
    client.call(consume(2, "p.txv", "t"))
    client.send(publish(1, "", "p.txv", b"a"), publish(1, "", "p.txv", b"b"))
    first = client.deliveries(2)
    told = [client.said(ack(2, first[0].tag) + recover(2, 1))]
    told += [reply.told() for reply in client.deliveries(1)]
    told.append(client.said(rollback(2), recover(2, 1)))
    return " | ".join([*told, *sorted(reply.body.decode() for reply in client.deliveries(2))])


@case
def publish_expiration_of_ten_years(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.ex", exclusive=1))
    said = [
        client.said(publish(1, "", "p.ex", b"x", properties(expiration=years)) + get(1, "p.ex", 1))
        for years in ("315360000000", "315360000001")
    ]
    return " | ".join(said)


@case
def tx_commit_without_select(broker: Broker) -> str:
    return broker.channel().said(commit(1))


@case
def user_id_of_somebody_else(broker: Broker) -> str:
    return broker.channel().said(publish(1, "", "q", b"x", properties(user_id="bob")))


@case
def user_id_own(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.u", exclusive=1))
    return client.said(publish(1, "", "p.u", b"x", properties(user_id=broker.user)) + get(1, "p.u", 1))


@case
def expiration_bad(broker: Broker) -> str:
    return broker.channel().said(publish(1, "", "q", b"x", properties(expiration="abc")))


@case
def expiration_0(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.ex0", exclusive=1))
    return client.said(publish(1, "", "p.ex0", b"x", properties(expiration="0")) + get(1, "p.ex0", 1))


@case
def properties_come_back(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.pr", exclusive=1))
    pr = properties(
        content_type="a",
        content_encoding="b",
        headers={
            "k": 1,
            "l": Long(2),
            "t": True,
            "n": None,
            "f": {"x": "y"},
            "a": [1, "z"],
            "ts": Timestamp(5),
        },
        delivery_mode=1,
        priority=0,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=7,
        type="t",
        user_id=broker.user,
        app_id="ap",
        cluster_id="cl",
    )
    reply = client.call(publish(1, "", "p.pr", b"x", pr) + get(1, "p.pr", 1))
    return "same octets" if reply.raw_properties == pr else f"other octets {reply.properties}"


@case
def priority_0_comes_back(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.pr", exclusive=1))
    reply = client.call(publish(1, "", "p.pr", b"x", properties(priority=0)) + get(1, "p.pr", 1))
    return str(reply.properties)


@case
def cc_header(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.cc1", exclusive=1))
    client.call(declare_queue(1, "p.cc2", exclusive=1))
    return client.said(
        publish(1, "", "p.cc1", b"x", properties(headers={"CC": ["p.cc2"]})) + get(1, "p.cc1", 1),
        get(1, "p.cc2", 1),
    )


@case
def body_split_at_frame_max(broker: Broker) -> str:
    client = broker.connect(frame_max=4096)
    client.open()
    client.call(declare_queue(1, "p.b", exclusive=1))
    data = b"z" * 10000
    client.send(
        publishing(1, "", "p.b"),
        header(1, len(data)),
        *[body(1, data[i : i + 4088]) for i in range(0, 10000, 4088)],
        get(1, "p.b", 1),
    )
    client.frame()
    client.frame()
    sizes: list[int] = []
    while sum(sizes) < 10000:
        sizes.append(len(client.frame() or bytes(10008)) - 8)
    return str(sizes)


@case
def empty_body(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.eb", exclusive=1))
    return client.said(publish(1, "", "p.eb", b"") + get(1, "p.eb", 1), get(1, "p.eb", 1))


@case
def empty_body_frame_before_body(broker: Broker) -> str:
    client = broker.channel()
    client.call(declare_queue(1, "p.eb2", exclusive=1))
    return client.said(
        publishing(1, "", "p.eb2") + header(1, 2) + body(1, b"") + body(1, b"hi") + get(1, "p.eb2", 1),
    )
