"""The order of messages of one queue on one channel, which may have several consumers of it (AMQP 0-9-1
specification, section 4.7, "Content Ordering Guarantee").
"""

import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from measuring import unmeasured
from server_command import RunningServer

from .broker import Broker
from .raw_client import Client, Reply
from .serving import serving_guest
from .wire import (
    Long,
    ack,
    body,
    cancel,
    close_channel,
    consume,
    declare_queue,
    delete_queue,
    header,
    nack,
    publishing,
    qos,
    select_confirms,
)

COUNT = 3_000

LONG_OCTETS = 300 << 10
"""A message of this size is sent in pieces."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server with one client, who is called guest, at its usual speed: it has many messages."""
    with unmeasured(), serving_guest(tmp_path_factory.mktemp("guest")) as server:
        yield server


def number(reply: Reply) -> int:
    """Return the number with which a body begins."""
    return int(struct.unpack_from(">I", reply.body)[0])


def message(queue: str, value: int, octets: int = 4) -> bytes:
    """Return a message that begins with a number, in frames of 100,000 octets at most."""
    data = struct.pack(">I", value).ljust(octets, b"x")
    parts = [body(1, data[begin : begin + 100_000]) for begin in range(0, octets, 100_000)]
    return b"".join([publishing(1, "", queue), header(1, octets), *parts])


def fill(client: Client, queue: str, count: int = COUNT, octets: int = 4) -> None:
    client.send(*[message(queue, value, octets) for value in range(count)])
    assert (
        client.call(declare_queue(1, queue, passive=1))
        .told()
        .startswith(f"queue.declare-ok messages={count} ")
    )


def consumers(client: Client, queue: str, count: int, no_ack: int = 0) -> list[str]:
    """Begin consumers, and return their tags. Nothing is delivered before they are all there."""
    tags = [f"{queue} {each}" for each in range(count)]
    client.send(*[consume(1, queue, tag, no_ack=no_ack) for tag in tags])
    return tags


def delivered(client: Client, count: int, acks: int = 0) -> list[Reply]:
    """Return N (`count`) deliveries, each of which is acknowledged with `acks`."""
    found: list[Reply] = []
    while len(found) < count:
        reply = client.wait()
        if reply.name == "deliver":
            found.append(reply)
            if acks:
                client.send(ack(1, reply.tag))
        else:
            assert reply.name in ("consume-ok", "qos-ok"), reply.told()
    return found


@pytest.mark.parametrize("durable", [0, 1])
@pytest.mark.parametrize("no_ack", [0, 1])
def test_a_backlog_leaves_in_order(durable: int, no_ack: int, broker: Broker) -> None:
    client = broker.channel()
    queue = f"backlog {durable} {no_ack}"
    client.call(declare_queue(1, queue, durable=durable))
    fill(client, queue)
    tags = consumers(client, queue, 3, no_ack=no_ack)
    found = delivered(client, COUNT)
    assert [number(reply) for reply in found] == list(range(COUNT))
    assert [reply.tag for reply in found] == sorted(reply.tag for reply in found)
    # The first consumer may have got all of it before the second one begins.
    assert {reply.text for reply in found} <= set(tags)


@pytest.mark.parametrize("prefetch", [1, 7])
@pytest.mark.parametrize("is_global", [0, 1])
def test_messages_leave_in_order_with_a_prefetch(prefetch: int, is_global: int, broker: Broker) -> None:
    client = broker.channel()
    queue = f"prefetch {prefetch} {is_global}"
    client.call(declare_queue(1, queue))
    fill(client, queue)
    client.send(qos(1, prefetch, is_global=is_global))
    tags = consumers(client, queue, 3)
    found = delivered(client, COUNT, acks=1)
    assert [number(reply) for reply in found] == list(range(COUNT))
    assert {reply.text for reply in found} == set(tags)


def test_new_messages_leave_in_order_and_each_consumer_gets_as_many(broker: Broker) -> None:
    client, other = broker.channel(), broker.channel()
    client.call(declare_queue(1, "new"))
    tags = consumers(client, "new", 4, no_ack=1)
    assert {client.wait().name for _ in tags} == {"consume-ok"}
    other.send(*[message("new", value) for value in range(COUNT)])
    found = delivered(client, COUNT)
    assert [number(reply) for reply in found] == list(range(COUNT))
    counts = Counter(reply.text for reply in found)
    assert max(counts.values()) - min(counts.values()) <= COUNT // 100, counts


@pytest.mark.parametrize("durable", [0, 1])
def test_long_messages_leave_in_order_with_others(durable: int, broker: Broker) -> None:
    client, other = broker.channel(), broker.channel()
    queue = f"long {durable}"
    client.call(declare_queue(1, queue, durable=durable))
    sizes = [4, LONG_OCTETS, 4, 4, 5 << 20, 4, LONG_OCTETS, LONG_OCTETS] * 3
    other.send(*[message(queue, value, size) for value, size in enumerate(sizes)])
    other.call(declare_queue(1, queue, passive=1))
    consumers(client, queue, 3)
    found = delivered(client, len(sizes))
    assert [(number(reply), len(reply.body)) for reply in found] == list(enumerate(sizes))


def test_the_others_continue_after_a_consumer_is_cancelled(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "cancelled"))
    fill(client, "cancelled")
    client.send(qos(1, 5))
    tags = consumers(client, "cancelled", 3)
    first = delivered(client, 15)
    assert [number(reply) for reply in first] == list(range(15))
    client.send(cancel(1, tags[0]), cancel(1, tags[2]), ack(1, 0, multiple=1))
    rest = [number(reply) for reply in _rest(client, COUNT - 15)]
    assert rest == list(range(15, COUNT))


def _rest(client: Client, count: int) -> list[Reply]:
    found: list[Reply] = []
    while len(found) < count:
        reply = client.wait()
        if reply.name == "deliver":
            found.append(reply)
            client.send(ack(1, reply.tag))
        else:
            assert reply.name == "cancel-ok", reply.told()
    return found


def test_returned_messages_come_first(broker: Broker) -> None:
    """They are at their places in the queue again, before those that were not delivered."""
    client = broker.channel()
    client.call(declare_queue(1, "returned"))
    fill(client, "returned", 100)
    client.send(qos(1, 10, is_global=1))
    consumers(client, "returned", 3)
    first = delivered(client, 10)
    assert [number(reply) for reply in first] == list(range(10))
    client.send(nack(1, first[-1].tag, multiple=1, requeue=1))
    found = delivered(client, 100, acks=1)
    assert [number(reply) for reply in found] == list(range(100))


def test_messages_that_return_from_the_last_on_need_little_memory(tmp_path: Path) -> None:
    """Their consumer gets each one again, and nothing waits for memory for their ids."""
    with (
        serving_guest(tmp_path, f"memory_bytes = {4 << 20}\n") as server,
        closing(Broker(("127.0.0.1", server.port))) as broker,
    ):
        client = broker.channel()
        client.call(declare_queue(1, "falling"))
        fill(client, "falling", 600)
        consumers(client, "falling", 1)
        for reply in reversed(delivered(client, 600)):
            client.send(nack(1, reply.tag))
            (again,) = delivered(client, 1)
            assert number(again) == number(reply)


def test_each_of_several_queues_has_its_order(broker: Broker) -> None:
    client, other = broker.channel(), broker.channel()
    queues = [f"one of several {each}" for each in range(3)]
    for queue in queues:
        client.call(declare_queue(1, queue, exclusive=0))
        fill(client, queue)
    for queue in queues:
        consumers(client, queue, 2, no_ack=1)
    found = delivered(client, len(queues) * COUNT)
    for queue in queues:
        assert [number(reply) for reply in found if reply.text.startswith(queue)] == list(range(COUNT))
    assert [other.call(delete_queue(1, queue)).told() for queue in queues] == ["delete-ok 0"] * len(queues)


def test_a_client_that_stalls_gets_the_rest_in_order(broker: Broker) -> None:
    """The messages that it has not taken return to their places in the queue meanwhile."""
    client, other = broker.channel(), broker.channel()
    client.call(declare_queue(1, "stalled"))
    count = 200
    other.call(select_confirms(1))
    consumers(client, "stalled", 3, no_ack=1)
    other.send(*[message("stalled", value, 100_000) for value in range(count)])
    last = 0
    while last < count:
        last = other.wait().tag
    # The server waits a second for a client that takes nothing; then everything that is not begun is ready.
    while (
        other.call(declare_queue(1, "stalled", passive=1)).told().startswith("queue.declare-ok messages=0 ")
    ):
        pass
    found = delivered(client, count)
    assert [number(reply) for reply in found] == list(range(count))


def test_the_messages_of_a_closed_channel_go_to_another_in_order(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "closed", x_max_length=Long(COUNT)))
    fill(client, "closed")
    client.open(2)
    tags = [f"closed {each}" for each in range(3)]
    client.send(*[consume(2, "closed", tag) for tag in tags])
    while client.wait().name != "deliver":
        pass
    client.send(close_channel(2))
    while client.wait().name != "channel.close-ok":
        pass
    consumers(client, "closed", 2)
    found = delivered(client, COUNT)
    assert [number(reply) for reply in found] == list(range(COUNT))
