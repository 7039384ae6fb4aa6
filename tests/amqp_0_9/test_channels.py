"""Channels beyond the probe: logins, transactions, flow, windows, cancellations and ends, by raw octets."""

import struct
import time
from pathlib import Path

import pytest
from measuring import unmeasured
from server_command import running_server

from .broker import Broker
from .raw_client import Client
from .serving import configuration, serving_guest
from .test_long_ends import OPENAMQ
from .wire import (
    ack,
    bind,
    bind_by,
    cancel,
    close_channel,
    commit,
    consume,
    declare_queue,
    delete_queue,
    frame,
    get,
    header,
    long,
    method,
    nack,
    open_channel,
    properties,
    publish,
    publishing,
    qos,
    recover,
    reject,
    rollback,
    select_confirms,
    select_tx,
    short,
    table,
)

LONG_BODY = 100 << 20
"""The octets of a body that a consumer does not read to its end."""


def fill(client: Client, queue: str, count: int = 5) -> None:
    client.call(declare_queue(1, queue))
    client.send(*[publish(1, "", queue, b"%d" % i) for i in range(count)])
    client.call(declare_queue(1, queue))


def flow(channel: int, active: int) -> bytes:
    return method(channel, 20, 20, bytes([active]))


def log_in(broker: Broker, mechanism: str, response: bytes) -> str:
    client = broker.reach()
    client.send(b"AMQP\0\0\x09\1")
    client.wait()
    capabilities = {"capabilities": {"authentication_failure_close": True}}
    answer = client.call(
        method(0, 10, 11, table(capabilities) + short(mechanism) + long(response) + short("en_US"))
    )
    return answer.told()


# -- logins -------------------------------------------------------------------------------------------------


def test_amqplain(broker: Broker) -> None:
    response = table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    assert log_in(broker, "AMQPLAIN", response) == "tune"
    wrong = table({"LOGIN": "guest", "PASSWORD": "wrong"})[4:]
    assert log_in(broker, "AMQPLAIN", wrong) == "connection.close 403 ACCESS_REFUSED (0,0)"


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("AMQPLAIN", b"\5LOGIN"),
        ("AMQPLAIN", table({"LOGIN": "guest"})[4:]),
        ("AMQPLAIN", table({"LOGIN": "guest", "PASSWORD": "guest"})[4:] + b"\0V" * 60_000),
        ("PLAIN", b"guest"),
        ("PLAIN", b"\0guest:x\0guest"),
        ("PLAIN", b"other\0guest\0guest"),
        ("EXTERNAL", b""),
    ],
)
def test_responses_that_cannot_be_read(broker: Broker, mechanism: str, response: bytes) -> None:
    assert log_in(broker, mechanism, response) == "connection.close 403 ACCESS_REFUSED (0,0)"


def test_plain_of_openamq_ends_with_a_zero(broker: Broker) -> None:
    assert log_in(broker, "PLAIN", b"\0guest\0guest\0") == "tune"


def test_a_secret_is_renewed(broker: Broker) -> None:
    assert broker.connect().call(method(0, 10, 70, long(b"guest") + short("why"))).name == "update-secret-ok"


# -- publishing ---------------------------------------------------------------------------------------------


def test_a_returned_message_comes_back_as_it_was(broker: Broker) -> None:
    props = properties(app_id="a", headers={"k": 1})
    reply = broker.channel().call(publish(1, "amq.direct", "nowhere", b"body", props, mandatory=1))
    assert (reply.name, reply.body, reply.raw_properties) == ("return", b"body", props)
    assert reply.args[2:] == short("NO_ROUTE") + short("amq.direct") + short("nowhere")


def test_a_queue_that_may_not_be_longer_refuses_silently_without_confirms(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "short", exclusive=1, x_max_length=1, x_overflow="reject-publish"))
    client.send(publish(1, "", "short", b"a"), publish(1, "", "short", b"b"))
    assert client.said(get(1, "short", 1), get(1, "short", 1)) == (
        "get-ok 1 redelivered=0 left=0 b'a' | get-empty"
    )


def test_confirms_name_each_refused_message(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "short c", exclusive=1, x_max_length=2, x_overflow="reject-publish"))
    client.call(select_confirms(1))
    client.send(*[publish(1, "", "short c", b"%d" % i) for i in range(4)])
    acked: set[int] = set()
    nacked: set[int] = set()
    while len(acked | nacked) < 4:
        reply = client.wait()
        tags = set(range(1, reply.tag + 1)) - acked - nacked if reply.args[8] & 1 else {reply.tag}
        (acked if reply.name == "ack" else nacked).update(tags)
    assert (acked, nacked) == ({1, 2}, {3, 4})


def test_names_and_properties_have_a_limit(broker: Broker) -> None:
    client = broker.channel()
    props = properties(headers={f"h{i}": "x" * 1000 for i in range(70)})
    assert client.call(publishing(1, "", "q"), header(1, 1, props)).told() == (
        "channel.close 311 CONTENT_TOO_LARGE (60,40)"
    )


def test_a_deep_table_ends_the_connection_and_nothing_else(broker: Broker) -> None:
    deep = b""
    for _ in range(2000):
        deep = b"\1k" + b"F" + long(deep)
    payload = struct.pack(">HHQH", 60, 0, 1, 0x2000) + long(deep)
    client = broker.channel()
    answer = client.call(publishing(1, "", "q"), frame(2, 1, payload))
    assert answer.told().startswith(("connection.close 501", "connection.close 502", "channel.close"))
    assert broker.channel().call(declare_queue(1, "", exclusive=1)).name == "queue.declare-ok"


@pytest.mark.parametrize("exchange", ["amq.headers", "amq.topic"])
def test_messages_with_very_many_headers(broker: Broker, exchange: str) -> None:
    """They are routed unless the server must look into them."""
    few, many = properties(headers={"k": [None] * 509}), properties(headers={"k": [None] * 510, "CC": ["q"]})
    client = broker.channel()
    client.call(declare_queue(1, "many headers", exclusive=1))
    client.call(bind_by(1, "many headers", "amq.headers", {"x-match": "any", "k": None}))
    client.call(select_confirms(1))
    assert client.call(publish(1, "amq.headers", "", b"few", few)).told() == "ack tag=1 bits=0"
    client.send(publish(1, exchange, "", b"many", many))
    assert client.wait().told() == "channel.close 406 PRECONDITION_FAILED (60,40)"
    other = broker.channel()
    plain = properties(headers={"k": [None] * 5_000})
    other.call(declare_queue(1, "by name", exclusive=1))
    got = other.call(publish(1, "", "by name", b"many", plain), get(1, "by name", 1))
    assert (got.body, got.raw_properties) == (b"many", plain)
    # Only the names of the headers themselves count: no value, and no name in a table.
    texts = properties(headers={"verdict": "ACCEPT", "k": [None] * 510, "inner": {"CC": ["q"]}, "CCS": ""})
    got = other.call(publish(1, "", "by name", b"texts", texts), get(1, "by name", 1))
    assert (got.body, got.raw_properties) == (b"texts", texts)


# -- what cannot be stored, or goes to a queue that is deleted ----------------------------------------------


def test_messages_of_a_queue_that_is_deleted_meanwhile_are_confirmed(broker: Broker) -> None:
    client = broker.channel()
    client.open(2)
    client.call(select_confirms(1))
    for number in range(1, 11):
        client.call(declare_queue(2, "fleeting", durable=1))
        client.send(publish(1, "", "fleeting", b"1"), delete_queue(2, "fleeting"))
        told = {client.wait().told().split(" bits")[0], client.wait().told().split(" ")[0]}
        assert told & {f"ack tag={number}"}, told


def test_a_channel_outlives_the_queue_to_which_it_publishes(broker: Broker) -> None:
    client = broker.channel()
    client.open(2)
    for _ in range(10):
        client.call(declare_queue(2, "short-lived", durable=1))
        assert (
            client.call(publish(1, "", "short-lived", b"1"), delete_queue(2, "short-lived")).name
            == "delete-ok"
        )
        assert client.call(declare_queue(1, "", exclusive=1)).name == "queue.declare-ok"


def test_a_commit_outlives_a_queue_to_which_it_publishes(broker: Broker) -> None:
    client, other = broker.channel(), broker.channel()
    client.call(select_tx(1))
    for _ in range(30):
        other.call(declare_queue(1, "of tx", durable=1))
        client.send(*[publish(1, "", "of tx", b"1") for _ in range(20)], commit(1))
        assert other.call(delete_queue(1, "of tx")).name == "delete-ok"
        assert client.wait().name == "commit-ok"


def test_a_get_waits_for_messages_published_before_confirm_select(broker: Broker) -> None:
    client = broker.channel()
    for _ in range(5):
        client.open(2)
        client.call(declare_queue(2, "before confirms", durable=1))
        published = publish(2, "", "before confirms", b"1")
        assert client.call(published, select_confirms(2), get(2, "before confirms", 1)).name == "confirm-ok"
        assert client.wait().body == b"1"
        client.call(close_channel(2))


def test_every_channel_gets_its_own_confirms(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "of channels", durable=1))
    channels = range(2, 200)
    for channel in channels:
        client.open(channel)
        client.call(select_confirms(channel))
    for tag in (1, 2):
        client.send(*[publish(channel, "", "of channels", b"1") for channel in channels])
        replies = [client.wait() for _ in channels]
        assert sorted(reply.channel for reply in replies) == list(channels)
        assert {(reply.name, reply.tag) for reply in replies} == {("ack", tag)}


def test_a_channel_that_failed_leaves_no_confirms_to_its_successor(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "of failed channels", durable=1))
    for _ in range(20):
        client.open(2)
        client.call(select_confirms(2))
        good, bad = publish(2, "", "of failed channels", b"1"), publish(2, "missing", "", b"1")
        client.send(good, bad)
        while (reply := client.wait()).name != "channel.close":
            assert reply.name == "ack"
        client.send(method(2, 20, 41), open_channel(2))
        assert client.wait().name == "channel.open-ok"
        assert client.call(declare_queue(1, "of failed channels", durable=1)).name == "queue.declare-ok"
        assert client.call(close_channel(2)).name == "channel.close-ok"


def test_a_message_is_not_lost_to_a_channel_that_fails_while_it_is_got(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    (tmp_path / "omq.toml").write_text("map_bytes = 2097152\n" + configuration())
    options = ("--config", tmp_path / "omq.toml", "--listen", "127.0.0.1:0", "--store", folder)
    with running_server(*options) as server:
        broker = Broker(("127.0.0.1", server.port))
        client = broker.channel()
        client.call(declare_queue(1, "stored", durable=1))
        client.call(declare_queue(1, "kept"))
        client.call(publish(1, "", "kept", b"message"), declare_queue(1, "kept"))
        for _ in range(10):
            too_much = [publish(1, "", "stored", bytes(100_000)) for _ in range(40)]
            client.send(*too_much, get(1, "kept"))
            while (reply := client.wait()).name != "channel.close":
                assert reply.name == "get-ok"
            client.send(method(1, 20, 41))
            assert client.open(1).name == "channel.open-ok"
        assert client.call(get(1, "kept")).body == b"message"
        broker.close()


# -- acknowledgements ---------------------------------------------------------------------------------------


def test_a_nack_of_several_returns_all_of_them(broker: Broker) -> None:
    client = broker.channel()
    fill(client, "nacked")
    client.call(consume(1, "nacked", "t"))
    assert client.bodies(5) == [b"%d" % i for i in range(5)]
    client.send(ack(1, 2), nack(1, 4, multiple=1))
    again = [client.wait() for _ in range(3)]
    assert [(reply.body, reply.args[10]) for reply in again] == [(b"0", 1), (b"2", 1), (b"3", 1)]
    assert [reply.properties for reply in again] == [{"headers": {"x-delivery-count": "I:1"}}] * 3


@pytest.mark.parametrize("count", [2, 1_000])
def test_recover_gives_a_consumer_everything_again(broker: Broker, count: int) -> None:
    """The client knows by the answer which deliveries are void: those before it, and no others."""
    client = broker.channel()
    fill(client, f"recovered {count}", 2 * count)
    client.call(consume(1, f"recovered {count}", "t"))
    first = client.deliveries(2 * count)
    client.send(*[ack(1, reply.tag) for reply in first[::2]], recover(1, 1))
    assert client.wait().name == "recover-ok"
    assert client.bodies(count) == [reply.body for reply in first[1::2]]


def test_a_window_of_all_consumers(broker: Broker) -> None:
    client = broker.channel()
    fill(client, "window", 10)
    client.call(qos(1, 3, is_global=1))
    client.send(consume(1, "window", "a"), consume(1, "window", "b"))
    replies = [client.wait() for _ in range(5)]
    assert sorted(reply.name for reply in replies) == ["consume-ok"] * 2 + ["deliver"] * 3
    assert client.bodies() == []
    client.send(qos(1, 0, is_global=1))
    assert client.wait().name == "qos-ok"
    assert len(client.bodies(7)) == 7


def test_each_queue_has_its_share_of_a_window_of_all_consumers(broker: Broker) -> None:
    client = broker.channel()
    client.call(qos(1, 1, is_global=1))
    for queue in ("first", "second", "third"):
        client.call(declare_queue(1, queue, exclusive=1))
        client.call(bind(1, queue, "amq.fanout"))
        client.call(consume(1, queue, queue))
    client.send(*[publish(1, "amq.fanout", "", b"") for _ in range(100)])
    tags = set()
    for _ in range(99):
        reply = client.wait()
        tags.add(reply.text)
        client.call(declare_queue(1, "first", passive=1))  # meanwhile all queues find that there is no room
        client.send(ack(1, reply.tag))
    assert tags == {"first", "second", "third"}


def test_no_message_comes_while_the_flow_is_off(broker: Broker) -> None:
    client = broker.channel(product=OPENAMQ)
    client.said(declare_queue(1, "flowing", exclusive=1), consume(1, "flowing", "t", no_ack=1))
    assert client.call(flow(1, 0)).told() == "flow-ok"
    client.send(publish(1, "", "flowing", b"1"))
    assert client.bodies() == []
    client.send(flow(1, 1))
    replies = [client.wait(), client.wait()]
    assert sorted(reply.name for reply in replies) == ["deliver", "flow-ok"]


def test_messages_of_a_cancelled_consumer_return_with_the_channel(broker: Broker) -> None:
    client = broker.channel()
    fill(client, "cancelled", 3)
    client.open(2)
    client.call(consume(2, "cancelled", "t"))
    assert len(client.bodies(3)) == 3
    assert client.said(cancel(2, "t"), declare_queue(1, "cancelled", passive=1)) == (
        "cancel-ok | queue.declare-ok messages=0 consumers=0"
    )
    client.send(ack(2, 1))
    assert client.call(close_channel(2)).name == "channel.close-ok"
    assert client.call(get(1, "cancelled", 1)).told() == "get-ok 1 redelivered=1 left=1 b'1'"


def test_a_consumer_learns_that_another_connection_deleted_its_queue(broker: Broker) -> None:
    client, other = broker.channel(), broker.channel()
    client.said(declare_queue(1, "deleted"), consume(1, "deleted", "t"))
    assert other.call(delete_queue(1, "deleted")).name == "delete-ok"
    told = client.wait()
    assert (told.name, told.text) == ("basic.cancel", "t")
    assert client.call(declare_queue(1, "", exclusive=1)).name == "queue.declare-ok"


def test_rejected_messages_of_get_and_of_a_consumer_share_the_tags(broker: Broker) -> None:
    client = broker.channel()
    fill(client, "mixed", 3)
    assert client.call(get(1, "mixed")).tag == 1
    client.call(consume(1, "mixed", "t"))
    assert [client.wait().tag, client.wait().tag] == [2, 3]
    client.send(reject(1, 2, requeue=0), ack(1, 3, multiple=1))
    assert client.said(cancel(1, "t"), get(1, "mixed")) == "cancel-ok | get-empty"


# -- transactions -------------------------------------------------------------------------------------------


def test_acknowledgements_of_a_transaction_take_effect_at_its_commit(broker: Broker) -> None:
    client = broker.channel()
    fill(client, "in tx", 2)
    client.open(2)
    client.call(select_tx(2))
    assert client.call(get(2, "in tx")).tag == 1
    assert client.call(get(2, "in tx")).tag == 2
    client.send(ack(2, 1, multiple=1))
    assert client.call(rollback(2)).name == "rollback-ok"
    client.send(ack(2, 2))  # it is not acknowledged after the rollback, so this is right
    client.send(publish(2, "", "in tx", b"published"))
    assert client.call(declare_queue(1, "in tx", passive=1)).told().endswith("messages=0 consumers=0")
    assert client.call(commit(2)).name == "commit-ok"
    client.call(close_channel(2))
    assert client.said(get(1, "in tx", 1), get(1, "in tx", 1), get(1, "in tx", 1)) == (
        "get-ok 1 redelivered=1 left=1 b'0' | get-ok 2 redelivered=0 left=0 b'published' | get-empty"
    )


def test_a_transaction_has_a_limit(broker: Broker) -> None:
    client = broker.channel()
    client.said(declare_queue(1, "much", exclusive=1), select_tx(1))
    client.send(*[publish(1, "", "much", bytes(60_000)) for _ in range(200)])
    assert client.wait().told() == "channel.close 506 RESOURCE_ERROR (0,0)"


def test_the_end_of_a_transaction_frees_its_memory(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "freed", exclusive=1))
    some = [
        publish(2, "", "freed", bytes(60_000)) for _ in range(70)
    ]  # a third of what a transaction may hold
    client.open(2)
    client.call(select_tx(2))
    for end, name in 2 * [(commit, "commit-ok"), (rollback, "rollback-ok")]:
        client.send(*some)
        assert client.call(end(2)).name == name
    for _ in range(4):
        client.send(*some)
        assert client.call(close_channel(2)).name == "channel.close-ok"
        client.open(2)
        client.call(select_tx(2))


# -- many, and ends -----------------------------------------------------------------------------------------


def test_as_many_channels_as_there_may_be(broker: Broker) -> None:
    client = broker.connect()
    for channel in range(1, 2048):
        client.send(method(channel, 20, 10, b"\0"))
    assert {client.wait().name for _ in range(2047)} == {"channel.open-ok"}
    assert client.call(declare_queue(2047, "", exclusive=1)).name == "queue.declare-ok"
    assert client.open(2048).told() == "connection.close 530 NOT_ALLOWED (20,10)"


def test_many_exclusive_queues_end_with_their_connection(broker: Broker) -> None:
    client = broker.channel()
    count = 2000
    client.send(*[declare_queue(1, f"many {i}", exclusive=1) for i in range(count)])
    assert {client.wait().name for _ in range(count)} == {"queue.declare-ok"}
    client.close()
    other = broker.channel()
    deadline = time.monotonic() + 60
    while other.call(declare_queue(1, f"many {count - 1}", passive=1)).name != "channel.close":
        assert time.monotonic() < deadline
        other.close()
        other = broker.channel()


def test_a_consumer_that_stops_reading_a_long_body_delays_no_other_consumer(tmp_path: Path) -> None:
    # A process that measures its coverage takes several times as long for such a body.
    with unmeasured(), serving_guest(tmp_path, f"max_message_bytes = {LONG_BODY}\n") as server:
        broker = Broker(("127.0.0.1", server.port))
        stop_reading_a_long_body(broker)
        broker.close()


def stop_reading_a_long_body(broker: Broker) -> None:
    stopped = broker.channel()
    stopped.call(declare_queue(1, "endless", durable=1))
    stopped.call(select_confirms(1))
    data = bytes(LONG_BODY)
    stopped.send(publishing(1, "", "endless"), header(1, len(data)))
    for begin in range(0, len(data), 131_064):
        stopped.send(frame(3, 1, data[begin : begin + 131_064]))
    assert stopped.wait().name == "ack"
    stopped.send(consume(1, "endless", "t"))
    assert stopped.wait().name == "consume-ok"
    assert stopped.frame() is not None  # and nothing more is read
    other = broker.channel()
    other.call(declare_queue(1, "quick", exclusive=1))
    for _ in range(20):
        assert other.call(publish(1, "", "quick", b"x") + get(1, "quick", 1)).name == "get-ok"
    stopped.close()
    deadline = time.monotonic() + 60
    while (reply := other.call(get(1, "endless", 1))).name != "get-ok":
        assert time.monotonic() < deadline
    assert len(reply.body) == len(data)
