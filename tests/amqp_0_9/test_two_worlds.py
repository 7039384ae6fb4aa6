"""AMQP 0-9-1 and the other protocols on the same topics (docs/AMQP.md, "Messages between protocols")."""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from server.amqp_1_0_peer import Peer, condition, data, opened, text
from server_command import RunningServer, running_server

from omq.client import ConnectionLost, FromBeginning, Persistent, Properties, Subscription, Sync, connect
from omq.model import Delivery
from omq.protocol.amqp_1_0 import decoding, encoding, sections
from omq.protocol.amqp_1_0.performatives import Detach
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import NULL, List, Map, Symbol, Value

from .broker import Broker
from .raw_client import Client, until
from .wire import (
    Long,
    ack,
    bind,
    bind_by,
    body,
    cancel,
    consume,
    declare_exchange,
    declare_queue,
    get,
    header,
    open_channel,
    properties,
    publish,
    publishing,
    qos,
    reject,
    select_confirms,
    short,
)

SECONDS = 60

PERSISTENT = Persistent(Sync.STRONG)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        yield server


def confirmed(client: Client, *messages: bytes) -> None:
    """Publish messages, and wait until they are safe."""
    client.call(select_confirms(1))
    client.send(*messages)
    tag = 0
    while tag < len(messages):
        tag = client.wait().tag


async def test_a_subscriber_and_a_feed_get_messages_of_amqp(server: RunningServer, broker: Broker) -> None:
    client = broker.channel()
    client.said(
        declare_queue(1, "seen", durable=1, x_queue_type="stream"), bind(1, "seen", "amq.topic", "a.*")
    )
    confirmed(client, publish(1, "amq.topic", "a.b", b"one", properties(content_type="text/plain")))
    with trio.fail_after(SECONDS):
        async with connect(f"omq://127.0.0.1:{server.port}") as other:
            async with other.subscribe("seen", FromBeginning()) as subscription:
                assert (await subscription.__anext__()).body == b"one"
            async with other.feed("seen", FromBeginning()) as feed:
                envelope = await feed.__anext__()
    head = envelope.head
    assert (head.exchange, head.routing_key, envelope.body) == (b"amq.topic", b"a.b", b"one")
    assert head.properties.content_type == b"text/plain"


async def test_an_amqp_consumer_gets_messages_of_omq_and_dmp(server: RunningServer, broker: Broker) -> None:
    with trio.fail_after(SECONDS):
        async with connect(f"omq://127.0.0.1:{server.port}") as other:
            await other.declare("theirs", Delivery.ROUND_ROBIN, PERSISTENT)
            await other.publish_confirmed("theirs", b"by omq")
            async with other.sink("theirs") as sink:
                await sink.publish(
                    b"by DMP",
                    exchange=b"an exchange",
                    routing_key=b"a key",
                    properties=Properties(app_id=b"dmp"),
                )
    client = broker.channel()
    first, second = client.call(get(1, "theirs", 1)), client.call(get(1, "theirs", 1))
    assert (first.body, first.properties) == (b"by omq", {})
    assert first.args[9:] == b"\0" + b"\6theirs" + b"\0\0\0\1"
    assert (second.body, second.properties) == (b"by DMP", {"app_id": "dmp"})
    assert second.args[9:] == b"\13an exchange" + b"\5a key" + b"\0\0\0\0"


async def test_workers_of_both_share_a_queue(server: RunningServer, broker: Broker) -> None:
    client = broker.channel()
    client.said(declare_queue(1, "shared", durable=1), qos(1, 5), consume(1, "shared", "a"))
    with trio.fail_after(SECONDS):
        async with (
            connect(f"omq://127.0.0.1:{server.port}") as other,
            other.subscribe("shared", credit=5) as work,
        ):
            confirmed(broker.channel(), *[publish(1, "", "shared", b"%d" % i) for i in range(10)])
            theirs = [await work.__anext__() for _ in range(5)]
            ours = [client.wait() for _ in range(5)]
            for message in theirs:
                await work.received(message)
            client.send(ack(1, ours[-1].tag, 1))
            await other.confirm()
    bodies = sorted([message.body for message in theirs] + [reply.body for reply in ours])
    assert bodies == [b"%d" % i for i in range(10)]
    assert client.call(get(1, "shared")).name == "get-empty"


async def until_its_end(work: Subscription) -> None:
    """Take messages for as long as there are some."""
    while True:
        await work.__anext__()


async def test_a_kill_loses_nothing_of_a_durable_queue_with_workers_of_both(tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    published = [b"%d" % i for i in range(12)]
    with running_server(*options) as server, trio.fail_after(SECONDS):
        broker = Broker(("127.0.0.1", server.port))
        client = broker.channel()
        client.said(declare_queue(1, "shared", durable=1), qos(1, 3), consume(1, "shared", "a"))
        async with (
            connect(f"omq://{server.address}") as other,
            other.subscribe("shared", credit=3) as work,
        ):
            confirmed(broker.channel(), *[publish(1, "", "shared", body) for body in published[:6]])
            for body in published[6:]:
                await other.publish("shared", body)
            await other.confirm()
            ours = [client.wait() for _ in range(3)]
            theirs = [await work.__anext__() for _ in range(3)]
            client.send(ack(1, ours[0].tag))
            await work.received(theirs[0])
            await other.confirm()
            server.process.kill()
            with pytest.raises(ConnectionLost):
                await until_its_end(work)
        broker.close()
    with running_server(*options) as server, trio.fail_after(SECONDS):
        broker = Broker(("127.0.0.1", server.port))
        client = broker.channel()
        got = [client.call(get(1, "shared", 1)).body for _ in range(3)]
        # The server may not have stored that a message was settled before the kill.
        unsettled = {*published} - {ours[0].body, theirs[0].body}
        async with connect(f"omq://{server.address}") as other, other.subscribe("shared", credit=1) as work:
            while not unsettled <= {*got}:
                message = await work.__anext__()
                got.append(message.body)
                await work.received(message)
        broker.close()
    assert len(got) == len({*got})
    assert {*got} <= {*published}


def deaths_in(annotations: bytes) -> list[Value]:
    """Return the queues in which a message died, the latest first."""
    read = decoding.read_all(annotations)
    assert isinstance(read, Map)
    headers = dict(read.entries)[Symbol("x-opt-headers")]
    assert isinstance(headers, Map)
    deaths = dict(headers.entries)["x-death"]
    assert isinstance(deaths, List)
    return [dict(each.entries)["queue"] for each in deaths.values if isinstance(each, Map)]


async def test_a_dead_letter_of_amqp_1_0_keeps_its_properties(server: RunningServer, broker: Broker) -> None:
    """It is routed by them, too. Its consumers get them, and learn of its deaths."""
    client = broker.channel()
    client.said(
        declare_exchange(1, "by color", "headers"), declare_queue(1, "red"), declare_queue(1, "twice"),
        declare_queue(1, "red too", x_dead_letter_exchange="", x_dead_letter_routing_key="twice"),
        declare_queue(1, "work", x_dead_letter_exchange="by color"),
        bind_by(1, "red", "by color", {"color": "red"}), bind_by(1, "red too", "by color", {"color": "red"}),
    )  # fmt: skip
    said = (
        (Section.PROPERTIES, List(("id", None, "to", "a subject", None, "related"))),
        (Section.APPLICATION_PROPERTIES, Map((("color", "red"),))),
    )
    own = [b"\x00\x53%c%s" % (section, encoding.write(value)) for section, value in said]
    message = b"".join(own) + text("a body")
    with trio.fail_after(SECONDS):
        async with opened(server.port) as peer:
            await peer.sender("work")
            await peer.accepted(await peer.publish(message))
            for queue in ("work", "red too"):
                arrived = until("get-ok", partial(client.call, get(1, queue)))
                client.send(reject(1, arrived.tag, requeue=0))
            for handle, (queue, exchange, key, died_in) in enumerate(
                (("red", "by color", "a subject", ["work"]), ("twice", "", "twice", ["red too", "work"])), 2
            ):
                await peer.receiver(queue, handle, credit=1)
                octets = (await peer.message()).octets
                annotations = sections.find(octets)[0]
                added = deaths_in(octets[annotations.value : annotations.end])
                assert (octets[annotations.end :], added) == (message, died_in)
                await peer.say(Detach(handle, closed=True))  # so that the message returns
                letter = until("get-ok", partial(client.call, get(1, queue)))
                assert letter.args[9:].startswith(short(exchange) + short(key))
                assert letter.body == b"a body"
                others = dict(letter.properties)
                headers = others.pop("headers")
                assert others == {"message_id": "id", "correlation_id": "related"}
                assert headers["color"] == "S:red"
                assert [each["queue"] for each in headers["x-death"]] == [f"S:{name}" for name in died_in]


async def refused(peer: Peer, queue: str, handle: int) -> str:
    """Attach a consumer that is refused, and detach it. Return the condition."""
    assert (await peer.receiver(queue, handle)).source == NULL
    told = condition(await peer.until(Detach))
    await peer.say(Detach(handle, closed=True))
    return told


async def test_a_queue_of_another_connection_is_locked_for_consumers_of_amqp_1_0(
    server: RunningServer, broker: Broker
) -> None:
    """Its producers are welcome, and it ends with its connection."""
    client = broker.channel()
    client.said(declare_queue(1, "exclusive.own", exclusive=1), consume(1, "exclusive.own", no_ack=1))
    with trio.fail_after(SECONDS):
        async with opened(server.port) as peer:
            assert await refused(peer, "exclusive.own", 1) == "amqp:resource-locked"
            await peer.sender("exclusive.own", 2)
            await peer.accepted(await peer.publish(data(b"a reply"), 2))
            assert client.bodies(1) == [b"a reply"]
            client.close()
            while "404 NOT_FOUND" not in broker.channel().said(declare_queue(1, "exclusive.own", passive=1)):
                await trio.lowlevel.checkpoint()
            await peer.publish(data(b"too late"), 2)
            assert condition(await peer.until(Detach)) == "amqp:resource-deleted"


async def test_a_consumer_that_has_a_queue_alone_locks_it(server: RunningServer, broker: Broker) -> None:
    """Until it is cancelled; and while there is one of AMQP 1.0, none of AMQP 0-9-1 has the queue alone."""
    client = broker.channel()
    client.said(declare_queue(1, "alone"), consume(1, "alone", "c", exclusive=1))
    with trio.fail_after(SECONDS):
        async with opened(server.port) as peer:
            assert await refused(peer, "alone", 1) == "amqp:resource-locked"
            client.call(cancel(1, "c"))
            await peer.receiver("alone", 1, credit=1)
            await peer.sender("alone", 2)
            await peer.publish(data(b"x"), 2)
            assert (await peer.message()).octets == data(b"x")
            told = client.said(consume(1, "alone", "c", exclusive=1))
            assert told == "channel.close 403 ACCESS_REFUSED (60,20)"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_durable_queue_and_its_binding_survive(tmp_path: Path, how: signal.Signals) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*options) as server:
        broker = Broker(("127.0.0.1", server.port))
        client = broker.channel()
        client.said(
            declare_queue(1, "kept", durable=1, x_message_ttl=Long(600_000)), declare_queue(1, "lost"),
            bind(1, "kept", "amq.direct", "k"),
        )  # fmt: skip
        confirmed(
            client, *[publish(1, "amq.direct", "k", b"%d" % i, properties(priority=3)) for i in range(3)]
        )
        assert client.call(get(1, "kept")).body == b"0"
        server.process.send_signal(how)
        server.process.wait(timeout=SECONDS)
        broker.close()
    with running_server(*options) as server:
        broker = Broker(("127.0.0.1", server.port))
        client = broker.channel()
        again = client.call(declare_queue(1, "kept", durable=1, x_message_ttl=Long(600_000)))
        assert again.told() == "queue.declare-ok messages=3 consumers=0"
        confirmed(client, publish(1, "amq.direct", "k", b"3"))
        replies = [client.call(get(1, "kept", 1)) for _ in range(4)]
        assert [reply.body for reply in replies] == [b"0", b"1", b"2", b"3"]
        assert replies[1].properties == {"priority": 3}
        assert (
            client.call(declare_queue(1, "lost", passive=1)).told() == "channel.close 404 NOT_FOUND (50,10)"
        )
        broker.close()


async def test_a_message_on_its_way_to_a_topic_that_gets_other_types_is_refused(
    server: RunningServer, broker: Broker
) -> None:
    """It is not confirmed and lost, as it may be where the topic itself has gone."""
    parts = [b"x" * 100_000] * 10
    async with connect(f"omq://127.0.0.1:{server.port}") as omq, omq.subscribe("undeclared"):
        amqp = broker.channel()
        amqp.call(select_confirms(1))
        amqp.send(publishing(1, "", "undeclared"), header(1, sum(map(len, parts))))
        amqp.send(*[body(1, part) for part in parts[:5]])
        amqp.call(open_channel(2))  # so the server has read what is before it
        await omq.declare("undeclared", Delivery.ROUND_ROBIN, PERSISTENT)
        amqp.send(*[body(1, part) for part in parts[5:]])
        assert amqp.wait().told() == "channel.close 406 PRECONDITION_FAILED (60,40)"
        assert amqp.call(declare_queue(2, "undeclared", passive=1)).told().endswith("messages=0 consumers=1")
