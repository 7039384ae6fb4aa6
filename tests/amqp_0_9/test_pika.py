"""RabbitMQ's seven tutorials with pika: hello world, work queues, publish and subscribe, routing, topics,
remote procedure calls, and publisher confirms.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .serving import serving_guest

Connect = Callable[[], BlockingChannel]

SECONDS = 60


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving_guest(tmp_path_factory.mktemp("pika")) as server:
        yield server.port


@pytest.fixture
def connect(port: int) -> Iterator[Connect]:
    """Open a channel on a connection of its own."""
    connections: list[pika.BlockingConnection] = []

    def opened() -> BlockingChannel:
        connections.append(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)))
        return connections[-1].channel()

    yield opened
    for connection in connections:
        if connection.is_open:
            connection.close()


def bodies(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """Consume N (`count`) messages, and acknowledge each."""
    found: list[bytes] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=SECONDS):
        assert method is not None, f"nothing came after {found}"
        channel.basic_ack(method.delivery_tag)
        found.append(body)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_hello_world(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    sender.queue_declare("hello")
    sender.basic_publish("", "hello", b"Hello World!")
    assert bodies(receiver, "hello", 1) == [b"Hello World!"]


def test_work_queues(connect: Connect) -> None:
    """Each task goes to one worker, and to another one when that is gone before it has acknowledged."""
    sender, first, second = connect(), connect(), connect()
    sender.queue_declare("task_queue", durable=True)
    persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
    for number in range(4):
        sender.basic_publish("", "task_queue", b"%d" % number, persistent)
    got: dict[str, list[tuple[bytes, bool, int | None]]] = {"first": [], "second": []}
    for name, worker in (("first", first), ("second", second)):
        worker.basic_qos(prefetch_count=1)

        def work(channel: Any, method: Any, properties: Any, body: bytes, name: str = name) -> None:
            got[name].append((body, method.redelivered, properties.delivery_mode))
            if name == "second":
                channel.basic_ack(method.delivery_tag)

        worker.basic_consume("task_queue", work)
        while not got[name]:
            worker.connection.process_data_events(1)
    first.connection.close()  # with a task that it has not acknowledged
    while len(got["second"]) < 4:
        second.connection.process_data_events(1)
    assert got["first"] == [(b"0", False, 2)]
    assert sorted(got["second"]) == [(b"0", True, 2), (b"1", False, 2), (b"2", False, 2), (b"3", False, 2)]


def test_publish_and_subscribe(connect: Connect) -> None:
    sender = connect()
    sender.exchange_declare("logs", "fanout")
    sender.basic_publish("logs", "", b"to nobody")
    queues = []
    for _ in range(2):
        receiver = connect()
        queue = receiver.queue_declare("", exclusive=True).method.queue
        receiver.queue_bind(queue, "logs")
        queues.append((receiver, queue))
    sender.basic_publish("logs", "", b"to all")
    for receiver, queue in queues:
        assert bodies(receiver, queue, 1) == [b"to all"]


def test_routing(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    sender.exchange_declare("direct_logs", "direct")
    queue = receiver.queue_declare("", exclusive=True).method.queue
    for severity in ("warning", "error"):
        receiver.queue_bind(queue, "direct_logs", routing_key=severity)
    for severity in ("info", "error", "warning"):
        sender.basic_publish("direct_logs", severity, severity.encode())
    assert bodies(receiver, queue, 2) == [b"error", b"warning"]


def test_topics(connect: Connect) -> None:
    sender, receiver = connect(), connect()
    sender.exchange_declare("topic_logs", "topic")
    queue = receiver.queue_declare("", exclusive=True).method.queue
    for pattern in ("*.orange.*", "*.*.rabbit", "lazy.#"):
        receiver.queue_bind(queue, "topic_logs", routing_key=pattern)
    keys = ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox", "lazy.brown.fox"]
    for key in [*keys, "quick.brown.fox", "orange", "quick.orange.new.rabbit"]:
        sender.basic_publish("topic_logs", key, key.encode())
    sender.basic_publish("topic_logs", "lazy.orange.new.rabbit", b"lazy.orange.new.rabbit")
    assert bodies(receiver, queue, 5) == [*(key.encode() for key in keys), b"lazy.orange.new.rabbit"]


def test_remote_procedure_calls(connect: Connect) -> None:
    client, server = connect(), connect()
    server.queue_declare("rpc_queue")

    def serve(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        reply = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, b"%d" % (int(body) * 2), reply)
        channel.basic_ack(method.delivery_tag)

    server.basic_qos(prefetch_count=1)
    server.basic_consume("rpc_queue", serve)
    replies: dict[str, bytes] = {}

    def note(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        replies[properties.correlation_id] = body

    callback = client.queue_declare("", exclusive=True).method.queue
    client.basic_consume(callback, note, auto_ack=True)
    calls = {str(uuid.uuid4()): number for number in range(3)}
    for identity, number in calls.items():
        asked = pika.BasicProperties(reply_to=callback, correlation_id=identity)
        client.basic_publish("", "rpc_queue", b"%d" % number, asked)
    while len(replies) < len(calls):
        server.connection.process_data_events(0.05)
        client.connection.process_data_events(0.05)
    assert replies == {identity: b"%d" % (2 * number) for identity, number in calls.items()}


def test_publisher_confirms(connect: Connect) -> None:
    channel = connect()
    queue = channel.queue_declare("confirmed", durable=True).method.queue
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, mandatory=True)
    assert channel.queue_declare(queue, passive=True).method.message_count == 20
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "there is no such queue", b"", mandatory=True)


def test_publisher_confirms_without_waiting_for_each(port: int) -> None:
    """With the asynchronous connection, as many as the broker takes."""
    confirmed: set[int] = set()
    count = 500

    def acknowledged(frame: Any) -> None:
        tag, multiple = frame.method.delivery_tag, frame.method.multiple
        confirmed.update(range(1, tag + 1) if multiple else [tag])
        if len(confirmed) == count:
            connection.close()

    def declared(channel: Any) -> None:
        for number in range(count):
            channel.basic_publish("", "asynchronous", b"%d" % number)

    def opened(channel: Any) -> None:
        channel.confirm_delivery(acknowledged)
        channel.queue_declare("asynchronous", durable=True, callback=lambda _: declared(channel))

    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", port),
        on_open_callback=lambda connection: connection.channel(on_open_callback=opened),
        on_close_callback=lambda connection, reason: connection.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    assert confirmed == set(range(1, count + 1))


def test_properties_of_a_durable_queue_come_back(connect: Connect) -> None:
    channel = connect()
    channel.queue_declare("with properties", durable=True)
    given = pika.BasicProperties(
        content_type="text/plain", headers={"a": 1, "b": "x"}, priority=3, app_id="tests", message_id="m1"
    )
    channel.basic_publish("", "with properties", b"body", given)
    _, properties, body = channel.basic_get("with properties", auto_ack=True)
    assert (properties, body) == (given, b"body")
