"""Streams: broadcast topics that are replayed with the argument x-stream-offset, by raw octets."""

from typing import Any

import trio

from omq.client import connect

from .broker import Broker
from .cases_streams import consume_from, stream
from .raw_client import Client
from .wire import Long, Timestamp, ack, declare_queue, publish, qos, select_confirms

SECONDS = 60


def consumer(broker: Broker, queue: str, offset: Any, prefetch: int = 0) -> Client:
    """Consume a stream from there."""
    client = broker.channel()
    if prefetch:
        client.call(qos(1, prefetch))
    assert client.call(consume_from(queue, offset)).name == "consume-ok"
    return client


def publish_all(broker: Broker, queue: str, bodies: list[bytes]) -> None:
    client = broker.channel()
    client.call(select_confirms(1))
    client.send(*[publish(1, "", queue, body) for body in bodies])
    confirmed = 0
    while confirmed < len(bodies):
        confirmed = client.wait().tag


async def test_a_consumer_begins_at_a_time(broker: Broker) -> None:
    queue = "since"
    host, port = broker.address
    broker.channel().call(declare_queue(1, queue, durable=1, x_queue_type="stream"))
    bodies = [b"early", b"too"]
    for body in bodies:
        publish_all(broker, queue, [body])  # each is a block of its own, with its own time
    with trio.fail_after(SECONDS):
        async with connect(f"omq://{host}:{port}", id="guest:guest") as other:

            async def time_of_last() -> int:
                return (await other.blocks(queue))[-1].time

            middle = await time_of_last() // 1_000_000 + 1  # the first whole second after them
            while await time_of_last() < middle * 1_000_000:
                bodies.append(b"%d" % len(bodies))
                publish_all(broker, queue, bodies[-1:])
    bodies.append(b"late")
    publish_all(broker, queue, [b"late"])
    assert consumer(broker, queue, Timestamp(middle)).bodies(2) == bodies[-2:]
    assert consumer(broker, queue, Timestamp(middle - 60)).bodies(len(bodies)) == bodies
    assert consumer(broker, queue, Timestamp(middle + 60)).bodies() == []


def test_a_consumer_begins_some_time_ago(broker: Broker) -> None:
    queue = stream(broker)
    assert len(consumer(broker, queue, "30s").bodies(10)) == 10
    assert len(consumer(broker, queue, "1Y").bodies(10)) == 10


def test_a_consumer_waits_for_a_message_that_is_not_there_yet(broker: Broker) -> None:
    queue = stream(broker)
    client = consumer(broker, queue, Long(13), prefetch=5)
    other = consumer(broker, queue, "next")
    publish_all(broker, queue, [b"eleven", b"twelve", b"thirteen", b"fourteen"])
    assert client.bodies(2) == [b"thirteen", b"fourteen"]
    assert other.bodies(4) == [b"eleven", b"twelve", b"thirteen", b"fourteen"]


def test_the_prefetch_is_exact_until_the_end(broker: Broker) -> None:
    queue = stream(broker, 20)
    client = consumer(broker, queue, "first", prefetch=3)
    got: list[bytes] = []
    while len(got) < 20:
        found = client.bodies(min(3, 20 - len(got)), quiet=0.3)
        assert 0 < len(found) <= 3
        got += found
        client.send(ack(1, len(got), 1))
    assert got == [b"%d" % index for index in range(20)]
