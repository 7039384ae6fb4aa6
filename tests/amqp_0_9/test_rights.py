"""The rights that the operations of AMQP 0-9-1 take (docs/AMQP.md, "Rights"), by raw octets.

The table is complete: the server refuses every other method that the codec knows.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import get_type_hints

import pytest
from server_command import RunningServer, running_server

from omq.access.rights import Right
from omq.protocol.amqp_0_9 import methods

from .broker import Broker
from .raw_client import Client, until
from .serving import client_table
from .test_direct import DIRECT, Dmp, envelope
from .wire import (
    ack,
    bind,
    bind_exchange,
    cancel,
    close_channel,
    commit,
    consume,
    declare_exchange,
    declare_queue,
    delete_exchange,
    delete_queue,
    frame,
    get,
    long,
    method,
    nack,
    open_channel,
    properties,
    publish,
    purge,
    qos,
    recover,
    reject,
    rollback,
    select_confirms,
    select_tx,
    short,
    unbind,
    unbind_exchange,
)

D, P, S, X = Right.DECLARE, Right.PUBLISH, Right.SUBSCRIBE, Right.DELETE
EVERY = (D, P, S, X)
"""The rights that AMQP 0-9-1 has operations for."""


@dataclass(frozen=True)
class Operation:
    """The request of a client, and the rights that it takes."""

    octets: bytes
    rights: frozenset[Right] = frozenset()
    answer: str | None = None
    """The beginning of the answer that it gets with its rights; None if there is none."""
    takes_any: bool = False
    """Whether it takes one right, no matter which."""


def operation(octets: bytes, *rights: Right, answer: str | None = None) -> Operation:
    return Operation(octets, frozenset(rights), answer)


def direct(method_id: int, name: str) -> bytes:
    """Put (10) or Get (20) of class Direct."""
    return method(1, DIRECT, method_id, short(name))


OPERATIONS = {
    "exchange.declare": operation(declare_exchange(1, "new"), D, answer="exchange.declare-ok"),
    "exchange.declare of amq.*": operation(declare_exchange(1, "amq.direct"), answer="exchange.declare-ok"),
    "exchange.declare passive": replace(
        operation(declare_exchange(1, "x", passive=1), answer="exchange.declare-ok"), takes_any=True
    ),
    "exchange.delete": operation(delete_exchange(1, "gone"), X, answer="exchange.delete-ok"),
    "exchange.bind": operation(bind_exchange(1, "x", "amq.fanout", ""), P, S, answer="exchange.bind-ok"),
    "exchange.unbind": operation(
        unbind_exchange(1, "x", "amq.fanout", ""), P, S, answer="exchange.unbind-ok"
    ),
    "queue.declare": operation(declare_queue(1, "new", auto_delete=1), D, answer="queue.declare-ok"),
    "queue.declare stream": operation(
        declare_queue(1, "s", durable=1, x_queue_type="stream"), D, answer="queue.declare-ok"
    ),
    "queue.declare passive": replace(
        operation(declare_queue(1, "q", passive=1), answer="queue.declare-ok"), takes_any=True
    ),
    "queue.declare server-named": operation(declare_queue(1, "", exclusive=1), answer="queue.declare-ok"),
    "queue.bind": operation(bind(1, "q", "amq.topic", "a"), P, S, answer="bind-ok"),
    "queue.unbind": operation(unbind(1, "q", "amq.topic", "a"), P, S, answer="unbind-ok"),
    "queue.purge": operation(purge(1, "q"), S, answer="purge-ok"),
    "queue.delete": operation(delete_queue(1, "gone"), X, answer="delete-ok"),
    "basic.consume": operation(consume(1, "q", "t"), S, answer="consume-ok"),
    "basic.get": operation(get(1, "q"), S, answer="get-empty"),
    "basic.publish to the default exchange": operation(publish(1, "", "elsewhere", b"x"), P),
    "basic.publish to an exchange": operation(publish(1, "x", "key", b"x"), P),
    "basic.qos": operation(qos(1, 1), answer="qos-ok"),
    "basic.cancel": operation(cancel(1, "t"), answer="cancel-ok"),
    "basic.cancel-ok": operation(method(1, 60, 31, short("t"))),
    "basic.recover": operation(recover(1, 1), answer="recover-ok"),
    "basic.recover-async": operation(method(1, 60, 100, b"\1")),
    "basic.ack": operation(ack(1, 0, 1)),
    "basic.nack": operation(nack(1, 0, 1)),
    "basic.reject of a tag that nothing has": operation(reject(1, 1), answer="channel.close 406"),
    "confirm.select": operation(select_confirms(1), answer="confirm-ok"),
    "tx.select": operation(select_tx(1), answer="tx.select-ok"),
    "tx.commit": operation(select_tx(1) + commit(1), answer="tx.select-ok"),
    "tx.rollback": operation(select_tx(1) + rollback(1), answer="tx.select-ok"),
    "direct.put of an exchange": operation(direct(10, "x"), P, answer="put-ok"),
    "direct.put of a topic": operation(direct(10, "log"), P, answer="put-ok"),
    "direct.put of the default exchange": operation(direct(10, ""), answer="put-ok"),
    "direct.get": operation(direct(20, "log"), S, answer="get-ok(direct)"),
    "access.request": operation(method(1, 30, 10, short("/data") + b"\0"), answer="access.request-ok"),
    "channel.open": operation(open_channel(2), answer="channel.open-ok"),
    "channel.flow": operation(method(1, 20, 20, b"\1"), answer="flow-ok"),
    "channel.flow-ok": operation(method(1, 20, 21, b"\1")),
    "channel.close": operation(close_channel(1), answer="channel.close-ok"),
    "connection.close": operation(method(0, 10, 50, struct.pack(">HBHH", 200, 0, 0, 0)), answer="close-ok"),
    "connection.update-secret": operation(
        method(0, 10, 70, long(b"new") + short("")), answer="update-secret-ok"
    ),
}

SUBSETS = [frozenset(some) for count in range(5) for some in combinations(EVERY, count)]


METHODS = {(kind.CLASS, kind.METHOD): kind for kind in vars(methods).values() if hasattr(kind, "METHOD")}
"""Every method that the codec knows, by its numbers on the wire."""


def methods_of(octets: bytes) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the methods in these frames."""
    at = 0
    while at < len(octets):
        kind, _, size = struct.unpack_from(">BHI", octets, at)
        if kind == 1:
            yield methods.ids(octets[at + 7 : at + 7 + size])
        at += size + 8


CALLED = {ids for operation in OPERATIONS.values() for ids in methods_of(operation.octets)}


def name_of(rights: frozenset[Right]) -> str:
    return "-".join(sorted(right.name for right in rights)) or "none"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server with a client for each set of rights."""
    folder = tmp_path_factory.mktemp("rights")
    tables = [client_table(name_of(some), {right.name.lower(): ["*"] for right in some}) for some in SUBSETS]
    tables.append(client_table("a", {right.name.lower(): ["a.*"] for right in Right}))
    (folder / "omq.toml").write_text("".join(tables))
    options = ("--config", folder / "omq.toml", "--listen", "127.0.0.1:0", "--store", folder / "store")
    with running_server(*options) as server:
        broker = Broker(("127.0.0.1", server.port))
        client = enter(broker, frozenset(EVERY))
        client.said(declare_queue(1, "q"), declare_exchange(1, "x"))
        client.said(declare_queue(1, "log", durable=1, x_queue_type="stream"))
        yield server
        broker.close()


def enter(broker: Broker, rights: frozenset[Right]) -> Client:
    """Return a channel of the client with these rights."""
    client = broker.channel(user=name_of(rights))
    assert client.opened.name == "open-ok"
    return client


def answer(client: Client, operation: Operation) -> str:
    """Return the answer to an operation; nothing if another method behind it is answered first."""
    client.send(operation.octets)
    if operation.answer is not None:
        return client.wait().told()
    behind = client.call(declare_exchange(1, "amq.direct", passive=1)).told()
    return "" if behind == "exchange.declare-ok" else behind


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_takes_exactly_its_rights(broker: Broker, name: str) -> None:
    operation = OPERATIONS[name]
    if operation.takes_any:
        enough = [frozenset({right}) for right in EVERY]
        too_few = [frozenset[Right]()]
    else:
        enough = [operation.rights]
        too_few = [frozenset(EVERY) - {missing} for missing in operation.rights]
    for rights in enough:
        with_rights = answer(enter(broker, rights), operation)
        assert with_rights.startswith(operation.answer or "")
        assert operation.answer is not None or not with_rights
    for rights in too_few:
        refused = answer(enter(broker, rights), operation)
        assert refused.startswith("channel.close 403 ACCESS_REFUSED")


@pytest.mark.parametrize(("name", "missing"), [("q", "z"), ("log", "nil")], ids=["queue", "stream"])
@pytest.mark.parametrize(
    "asked",
    [
        lambda name: consume(1, name, "t"),
        lambda name: consume(1, name, "t", x_stream_offset="last"),
        lambda name: get(1, name),
        lambda name: purge(1, name),
        lambda name: declare_queue(1, name, passive=1),
        lambda name: delete_queue(1, name),
    ],
    ids=["consume", "consume from the last", "get", "purge", "declare passively", "delete"],
)
def test_a_refusal_does_not_say_whether_there_is_a_queue(
    broker: Broker, asked: Callable[[str], bytes], name: str, missing: str
) -> None:
    there, not_there = (enter(broker, frozenset()).call(asked(each)) for each in (name, missing))
    assert there.told().startswith("channel.close 403 ACCESS_REFUSED")
    assert there.args == not_there.args.replace(missing.encode(), name.encode())


@pytest.mark.parametrize("ids", sorted(METHODS.keys() - CALLED), ids=lambda ids: METHODS[ids].__name__)
def test_every_other_method_is_refused(broker: Broker, ids: tuple[int, int]) -> None:
    """So that a method which the server executes must be in the table above."""
    kind = METHODS[ids]
    hints = get_type_hints(kind)
    payload = methods.encode(kind(*(hints[field.name]() for field in fields(kind))))
    client = enter(broker, frozenset(EVERY))
    of_connection = ids[0] == methods.ConnectionStart.CLASS
    told = client.call(frame(1, 0 if of_connection else 1, payload)).told()
    assert told == f"connection.close 503 COMMAND_INVALID ({ids[0]},{ids[1]})"


def test_a_sink_of_the_default_exchange_takes_the_right_to_each_key(broker: Broker) -> None:
    every, one = enter(broker, frozenset(EVERY)), broker.channel(user="a")
    every.said(declare_queue(1, "q"), declare_queue(1, "a.q"), purge(1, "q"), purge(1, "a.q"))
    for key, response in (("a.q", b"200 OK 1 messages stored"), ("q", b"530 NOT-ALLOWED")):
        lease = one.call(direct(10, "")).args[1:]
        with closing(Dmp(broker, lease)) as sink:
            sink.socket.sendall(envelope(key, b"x"))
            sink.socket.shutdown(socket.SHUT_WR)
            assert sink.short().startswith(response)
    assert every.call(get(1, "a.q", 1)).body == b"x"
    assert every.call(get(1, "q", 1)).name == "get-empty"


def test_an_exclusive_queue_of_the_server_needs_no_right_but_that_to_the_exchange(broker: Broker) -> None:
    client = enter(broker, frozenset({S, P}))
    queue = client.call(declare_queue(1, "", exclusive=1)).text
    steps = (bind(1, queue, "x", "k"), publish(1, "x", "k", b"1") + get(1, queue, 1), purge(1, queue))
    told = client.said(*steps, delete_queue(1, queue))
    assert told == "bind-ok | get-ok 1 redelivered=0 left=0 b'1' | purge-ok 0 | delete-ok 0"


def test_a_server_named_queue_can_be_consumed_without_rights(broker: Broker) -> None:
    client = enter(broker, frozenset())
    queue = client.call(declare_queue(1, "", exclusive=1)).text
    assert client.said(consume(1, queue, "t"), publish(1, "", queue, b"to myself")) == (
        "consume-ok | deliver 1 redelivered=0 b'to myself'"
    )


def test_direct_replies_need_no_right_to_the_reply_queue(broker: Broker) -> None:
    asking, serving = enter(broker, frozenset({P})), enter(broker, frozenset({P, S}))
    reply_to = "amq.rabbitmq.reply-to"
    assert asking.call(consume(1, reply_to, "t", no_ack=1)).name == "consume-ok"
    asking.call(publish(1, "", "q", b"ask", properties(reply_to=reply_to)) + declare_queue(1, "q", passive=1))
    asked = serving.call(get(1, "q", 1))
    serving.send(publish(1, "", asked.properties["reply_to"], b"answer"))
    assert asking.wait().body == b"answer"


BEHIND = declare_queue(1, "a.q", passive=1)
"""A method behind a publish that is answered if the publish succeeds."""


@pytest.mark.parametrize(
    ("refused", "allowed"),
    [
        (
            publish(1, "", "a.q", b"x", properties(headers={name: [key]})) + BEHIND,
            publish(1, "", "a.q", b"x", properties(headers={name: ["a.r"]})) + BEHIND,
        )
        for name in ("CC", "BCC")
        for key in ("q", "")
    ]
    + [
        (
            declare_exchange(1, "a.x", alternate_exchange=name),
            declare_exchange(1, "a.x1", alternate_exchange="a.y"),
        )
        for name in ("", "x")
    ]
    + [
        (
            declare_queue(1, "a.d", x_dead_letter_exchange=name, **key),
            declare_queue(1, "a.d1", x_dead_letter_exchange="", x_dead_letter_routing_key="a.r"),
        )
        for name, key in (
            ("", {"x_dead_letter_routing_key": "q"}),
            ("", {}),
            ("x", {}),
            ("x", {"x_dead_letter_routing_key": "a.r"}),
        )
    ],
    ids=[
        *("CC", "CC to nowhere", "BCC", "BCC to nowhere"),
        *("alternate default", "alternate"),
        *("dead letters to a queue", "dead letters by their keys", "dead letters", "dead letters with a key"),
    ],
)
def test_messages_are_forwarded_only_to_where_the_client_may_publish(
    broker: Broker, refused: bytes, allowed: bytes
) -> None:
    every = enter(broker, frozenset(EVERY))
    every.said(declare_queue(1, "q"), declare_queue(1, "a.q"), declare_queue(1, "a.r"), purge(1, "q"))
    one = broker.channel(user="a")
    assert one.call(allowed).name.endswith("declare-ok")
    # The right to the first does not allow the next.
    assert one.call(refused).told().startswith("channel.close 403 ACCESS_REFUSED")
    assert every.call(get(1, "q", 1)).name == "get-empty"


def test_any_client_may_ask_whether_a_reply_queue_exists(broker: Broker) -> None:
    found = "queue.declare-ok messages=0 consumers=1"
    client, server = enter(broker, frozenset({D, P, S})), enter(broker, frozenset())
    for passive in (0, 1):
        there = server.call(declare_queue(1, "amq.rabbitmq.reply-to", passive=passive))
        assert (there.text, there.told()) == ("amq.rabbitmq.reply-to", found)
    client.call(consume(1, "amq.rabbitmq.reply-to", "t", no_ack=1))
    client.call(declare_queue(1, "asked", exclusive=1))
    client.send(publish(1, "", "asked", b"ask", properties(reply_to="amq.rabbitmq.reply-to")))
    asked = until("get-ok", lambda: client.call(get(1, "asked", 1)))
    name = asked.properties["reply_to"]
    there = server.call(declare_queue(1, name, passive=1))
    assert (there.text, there.told()) == (name, found)
    told = server.call(declare_queue(1, name + "x")).told()
    assert told.startswith("channel.close 404 NOT_FOUND")


def test_the_names_of_generated_queues_that_have_gone_are_not_remembered(broker: Broker) -> None:
    client = enter(broker, frozenset({S}))
    names = []
    for _ in range(70):
        names.append(client.call(declare_queue(1, "", exclusive=1, auto_delete=1)).text)
        if names[1:]:
            client.said(consume(1, names[-1], "t"), cancel(1, "t"))
    # The first one is still there, and the client may use it although it has no right to its name.
    assert client.call(bind(1, names[0], "amq.topic", "a")).name == "bind-ok"
    refused = client.call(declare_queue(1, names[1], exclusive=1)).told()
    assert refused.startswith("channel.close 403 ACCESS_REFUSED")


def test_direct_replies_can_be_consumed_again(broker: Broker) -> None:
    client = enter(broker, frozenset())
    for _ in range(3):
        again = consume(1, "amq.rabbitmq.reply-to", "t", no_ack=1)
        assert client.said(again, cancel(1, "t")) == "consume-ok | cancel-ok"
