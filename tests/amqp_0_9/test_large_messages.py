"""Messages of many frames, in both directions, by raw octets."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from quietness import pass_until, quiet
from server.conversation import eventually
from server_command import configured_server
from trio.testing import MockClock

from omq.client import Delivery, Transient, connect
from omq.config import Config
from omq.server import open_server

from .broker import Broker
from .raw_client import Client, until
from .wire import (
    ack,
    bind,
    body,
    close_channel,
    consume,
    declare_queue,
    delete_queue,
    get,
    header,
    properties,
    publish,
    publishing,
    select_confirms,
)

SIZE = 3_000_000

SECONDS = 60

HELD = 16 << 20
"""More than the sockets take."""

FRAME = 131_072 - 8

BODY = 3
"""The type of a body frame."""

HEARTBEAT = 10
"""Seconds between the heartbeats of a client."""


def large(number: int) -> bytes:
    return bytes([number]) * SIZE


def frames(channel: int, data: bytes) -> list[bytes]:
    """Return the body frames of a message."""
    return [body(channel, data[begin : begin + FRAME]) for begin in range(0, len(data), FRAME)]


def publish_large(client: Client, queue: str, data: bytes, exchange: str = "") -> None:
    props = properties(message_id="large")
    client.send(publishing(1, exchange, queue), header(1, len(data), props), *frames(1, data))


@pytest.mark.parametrize("durable", [1, 0], ids=["durable", "transient"])
def test_a_large_message_is_confirmed_got_and_consumed(broker: Broker, durable: int) -> None:
    queue = f"large {durable}"
    client = broker.channel()
    client.call(declare_queue(1, queue, durable=durable))
    client.call(select_confirms(1))
    for number in (1, 2):
        publish_large(client, queue, large(number))
        assert client.wait().told() == f"ack tag={number} bits=0"
    got = client.call(get(1, queue))
    assert (got.body == large(1), got.properties["message_id"]) == (True, "large")
    client.send(consume(1, queue, "t"))
    assert client.wait().name == "consume-ok"
    delivered = client.wait()
    assert (delivered.name, delivered.body == large(2)) == ("deliver", True)
    client.send(ack(1, 1), ack(1, 2))
    assert client.call(declare_queue(1, queue, durable=durable)).told().endswith("messages=0 consumers=1")


def test_a_large_message_goes_to_all_queues_of_an_exchange(broker: Broker) -> None:
    client = broker.channel()
    queues = {"large a": 1, "large b": 1, "large c": 0}  # one of them has no store
    for queue, durable in queues.items():
        client.call(declare_queue(1, queue, durable=durable))
        if durable:
            client.call(bind(1, queue, "amq.fanout"))
    publish_large(client, "", large(1), "amq.fanout")
    client.call(bind(1, "large c", "amq.fanout"))
    publish_large(client, "", large(2), "amq.fanout")
    for queue, durable in queues.items():
        bodies = [client.call(get(1, queue, 1)).body for _ in range(1 + durable)]
        assert bodies == ([large(1), large(2)] if durable else [large(2)])


async def test_a_message_that_the_memory_cannot_hold_goes_to_a_transient_broadcast_topic(
    tmp_path: Path,
) -> None:
    """Consumers and subscribers get it. A route with a queue that has a limit cannot take it."""
    data = bytes(range(250)) * 30_000
    assert len(data) > 4 << 20
    with configured_server(tmp_path, "memory_bytes = 4_194_304\n") as server, trio.fail_after(SECONDS):
        broker = Broker(("127.0.0.1", server.port))
        async with connect(f"omq://127.0.0.1:{server.port}") as other:
            await other.declare("all", Delivery.BROADCAST, Transient())
            consumer, client = broker.channel(), broker.channel()
            assert consumer.call(consume(1, "all", "t")).name == "consume-ok"
            async with other.subscribe("all") as subscription:
                client.call(select_confirms(1))
                publish_large(client, "all", data)
                message = await subscription.__anext__()
                assert message.body == data
                assert client.wait().told() == "ack tag=1 bits=0"
            delivered = consumer.wait()
            assert (delivered.name, delivered.body == data) == ("deliver", True)
            assert delivered.properties["message_id"] == "large"
            client.call(declare_queue(1, "one", **{"x-max-length": 3}))
            publish_large(client, "one", data)
            assert client.wait().told().startswith("channel.close 406")
        broker.close()


def test_a_large_message_in_memory_goes_to_several_queues(broker: Broker) -> None:
    client = broker.channel()
    queues = ["held a", "held b", "held c"]
    for queue in queues:
        client.call(declare_queue(1, queue, exclusive=1))
        client.call(bind(1, queue, "amq.direct", "held"))
    client.call(select_confirms(1))
    publish_large(client, "held", large(1), "amq.direct")
    assert client.wait().told() == "ack tag=1 bits=0"
    for queue in queues:
        got = client.call(get(1, queue, 1))
        assert (got.body == large(1), got.properties["message_id"]) == (True, "large")


def test_a_large_message_without_a_route_comes_back(broker: Broker) -> None:
    client = broker.channel()
    client.call(select_confirms(1))
    client.send(publishing(1, "", "nowhere", mandatory=1), header(1, SIZE), *frames(1, large(1)))
    returned = client.wait()
    assert (returned.told(), returned.body == large(1)) == ("return 312 NO_ROUTE", True)
    assert client.wait().told() == "ack tag=1 bits=0"


def test_frames_of_other_channels_come_between_those_of_a_body(broker: Broker) -> None:
    client = broker.channel()
    client.open(2)
    for queue in ("between 1", "between 2"):
        client.call(declare_queue(1, queue, durable=1))
    first, second = frames(1, large(1)), frames(2, large(2))
    client.send(
        publishing(1, "", "between 1"), header(1, SIZE), publishing(2, "", "between 2"), header(2, SIZE)
    )
    for one, other in zip(first, second, strict=True):
        client.send(one, other)
    assert client.call(get(1, "between 1", 1)).body == large(1)
    # A get waits for what was published on its own channel.
    assert client.call(get(2, "between 2", 1)).body == large(2)


@pytest.fixture
def clock() -> MockClock:
    """Return a clock that runs as usual, and jumps when it is told to."""
    return MockClock(rate=1.0)


async def test_a_client_that_reads_slowly_is_not_silent(tmp_path: Path, clock: MockClock) -> None:
    data = bytes(30_000_000)

    def ask(broker: Broker) -> Client:
        client = broker.connect(heartbeat=HEARTBEAT)
        client.open()
        client.call(declare_queue(1, "slowly", durable=1))
        client.call(select_confirms(1))
        client.send(publishing(1, "", "slowly"), header(1, len(data)), *frames(1, data))
        assert client.wait().name == "ack"
        client.send(get(1, "slowly", 1))
        assert client.frame() is not None, "the message begins"
        return client

    def read(client: Client) -> None:
        octets = 0
        while octets < len(data):
            frame = client.frame()
            assert frame is not None, "the connection ended in the middle of the message"
            if frame[0] == BODY:
                octets += len(frame) - 8
        assert client.call(declare_queue(1, "slowly", durable=1)).name == "queue.declare-ok"

    async with open_server(Config(listen=["127.0.0.1:0"], store=str(tmp_path / "store"))) as server:
        broker = Broker(("127.0.0.1", server.port))
        try:
            client = await trio.to_thread.run_sync(ask, broker)
            for _ in range(5 * HEARTBEAT):  # after three intervals a silent client counts as gone
                clock.jump(1)
                await quiet()
            await trio.to_thread.run_sync(read, client)
        finally:
            broker.close()


@pytest.fixture
def stopped_clock() -> MockClock:
    """Return a clock that stands still, so that no client is stalled."""
    return MockClock()


def begin_transient(broker: Broker, no_ack: int, frame_max: int) -> Client:
    """Publish a message to a transient queue, and read the first frame of its delivery on channel 1."""
    client = broker.channel(frame_max=frame_max)
    client.open(2)
    client.call(declare_queue(1, "held"))
    client.call(select_confirms(1))
    data = bytes(HELD)
    parts = [body(1, data[begin : begin + 4088]) for begin in range(0, HELD, 4088)]
    client.send(publishing(1, "", "held"), header(1, HELD), *parts)
    assert client.wait().name == "ack"
    client.send(consume(1, "held", "t", no_ack=no_ack))
    assert client.wait().name == "consume-ok"
    assert client.frame() is not None, "the message begins"
    return client


def rest_of(client: Client) -> tuple[int, list[int]]:
    """Read the begun message to its end. Return the octets of its body, and at how many of them a frame of
    channel 2 came.
    """
    octets, others = 0, []
    while octets < HELD:
        frame = client.frame()
        assert frame is not None, "the connection ended in the middle of the message"
        if frame[2] == 2:
            others.append(octets)
        elif frame[0] == BODY:
            octets += len(frame) - 8
    return octets, others


async def run_with_server(tmp_path: Path, talk: Callable[[Broker], None], spool_bytes: int) -> None:
    """Call `talk` in a thread, with a server in this one, which has no defect then."""
    config = Config(listen=["127.0.0.1:0"], store=str(tmp_path / "store"), spool_bytes=spool_bytes)
    async with open_server(config) as server:
        broker = Broker(("127.0.0.1", server.port))
        try:
            await trio.to_thread.run_sync(talk, broker)
        finally:
            broker.close()
        assert server.statistics().defects == 0


IN_MEMORY = pytest.mark.parametrize("spool_bytes", [0, 64 << 20], ids=["memory", "spool"])
"""Whether the message is in memory or on the spool."""


@IN_MEMORY
@pytest.mark.parametrize("frame_max", [131_072, 4096])
@pytest.mark.parametrize("no_ack", [0, 1])
async def test_other_channels_send_within_a_long_transient_message(
    tmp_path: Path, stopped_clock: MockClock, no_ack: int, frame_max: int, spool_bytes: int
) -> None:
    def talk(broker: Broker) -> None:
        client = begin_transient(broker, no_ack, frame_max)
        client.send(declare_queue(2, "", exclusive=1))
        octets, others = rest_of(client)
        assert octets == HELD
        assert len(others) == 1, "the answer comes within the message"
        left = "messages=0 consumers=1"
        assert client.call(declare_queue(2, "held", passive=1)).told().endswith(left)

    await run_with_server(tmp_path, talk, spool_bytes)


@IN_MEMORY
@pytest.mark.parametrize("end", ["channel", "queue", "connection"])
async def test_ends_within_a_long_transient_message(
    tmp_path: Path, stopped_clock: MockClock, end: str, spool_bytes: int
) -> None:
    """The message is completed, unless the connection ends. Without an acknowledgement it returns. One on the
    spool is gone with its queue, and so is the connection that has a part of it.
    """

    def talk(broker: Broker) -> None:
        client, other = begin_transient(broker, 0, 131_072), broker.channel()
        match end:
            case "channel":
                client.send(close_channel(1))
                rest_of(client)
                assert client.wait().name == "channel.close-ok"
            case "queue":
                assert other.call(delete_queue(1, "held")).name == "delete-ok"
                if spool_bytes:
                    while client.frame() is not None:
                        pass
                    return
                rest_of(client)
                assert client.wait().name == "basic.cancel"
                return
            case _:
                client.close()
        answer = until("get-ok", lambda: other.call(get(1, "held")))
        assert (answer.told()[:22], len(answer.body)) == ("get-ok 1 redelivered=1", HELD)

    await run_with_server(tmp_path, talk, spool_bytes)


def test_half_a_message_is_dropped_with_its_channel(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "half", durable=1))
    client.open(2)
    client.send(publishing(2, "", "half"), header(2, SIZE), *frames(2, large(1))[:-1])
    assert client.call(declare_queue(1, "half", passive=1)).told().endswith("messages=0 consumers=0")
    # The client cannot close the channel in the middle of a message, but it can close the connection.
    assert client.call(close_channel(2)).told().startswith("connection.close 505")
    other = broker.channel()
    assert other.call(declare_queue(1, "half", passive=1)).told().endswith("messages=0 consumers=0")


@pytest.mark.parametrize("confirms", [True, False])
def test_a_queue_that_is_deleted_drops_the_message_that_arrives(broker: Broker, confirms: bool) -> None:
    client = broker.channel()
    client.open(2)
    if confirms:
        client.call(select_confirms(1))
    client.call(declare_queue(2, "large and gone", durable=1))
    data = frames(1, large(1))
    client.send(publishing(1, "", "large and gone"), header(1, SIZE), *data[:2])
    assert client.call(delete_queue(2, "large and gone")).name == "delete-ok"
    client.send(*data[2:])
    if confirms:
        assert client.wait().told() == "ack tag=1 bits=0"
    assert client.call(declare_queue(1, "", exclusive=1)).name == "queue.declare-ok"


def test_a_message_that_is_too_long_ends_its_channel(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "too long", durable=1))
    answer = client.call(publishing(1, "", "too long"), header(1, 1 << 40))
    assert answer.told() == "channel.close 406 PRECONDITION_FAILED (60,40)"


def test_other_channels_have_their_turns_between_the_pieces_of_a_long_body(broker: Broker) -> None:
    """A client gets the small messages of another channel in the middle of it."""
    client = broker.channel()
    for queue, durable in (("long", 1), ("short", 0)):
        client.call(declare_queue(1, queue, durable=durable))
    client.call(select_confirms(1))
    data = bytes(48 << 20)
    publish_large(client, "long", data)
    assert client.wait().name == "ack"
    reader = broker.channel()
    reader.open(2)
    assert reader.call(consume(2, "short", "s", no_ack=1)).name == "consume-ok"
    reader.send(consume(1, "long", "l"))
    kinds: list[tuple[int, int]] = []  # the type and the channel of each frame
    octets = 0
    while octets < len(data):
        frame = reader.frame()
        assert frame is not None
        kind, channel = frame[0], int.from_bytes(frame[1:3], "big")
        kinds.append((kind, channel))
        if (kind, channel) == (3, 1):
            octets += len(frame) - 8
            if len([each for each in kinds if each == (3, 1)]) == 8:
                client.send(publish(1, "", "short", b"short"))
                reader.send(declare_queue(1, "long", durable=1))
    body_at = [index for index, each in enumerate(kinds) if each == (3, 1)]
    between = kinds[body_at[0] : body_at[-1] + 1]
    assert (3, 2) in between, "the small message came in the middle of the long one"
    assert (1, 1) not in between, "nothing of the same channel comes between"
    assert reader.wait().name == "queue.declare-ok"


@pytest.mark.parametrize("no_ack", [0, 1])
async def test_a_get_is_answered_after_its_client_has_stalled(
    tmp_path: Path, clock: MockClock, no_ack: int
) -> None:
    """The message goes back to its queue meanwhile, where others may take it."""
    count, octets = 200, 100_000

    def ask(broker: Broker) -> Client:
        client = broker.channel()
        client.open(2)
        client.call(declare_queue(1, "many"))
        client.call(declare_queue(1, "one"))
        for _ in range(count):
            client.send(publishing(1, "", "many"), header(1, octets), *frames(1, bytes(octets)))
        client.send(publishing(1, "", "one"), header(1, 3), body(1, b"got"))
        assert client.call(declare_queue(1, "one", passive=1)).name == "queue.declare-ok"
        client.send(consume(2, "many", "t", no_ack=1))
        assert client.wait().name == "consume-ok"
        return client

    def read(client: Client) -> list[str]:
        names = [client.wait().name for _ in range(count + 1)]
        assert client.call(declare_queue(1, "one", passive=1)).name == "queue.declare-ok"
        return sorted(set(names))

    async with open_server(Config(listen=["127.0.0.1:0"], store=str(tmp_path / "store"))) as server:
        broker = Broker(("127.0.0.1", server.port))
        sent = -1

        def waits_for_its_client() -> bool:
            nonlocal sent
            (connection,) = [each.statistics() for each in server.terminals()]
            before, sent = sent, connection.octets_out
            return connection.is_sending and sent == before

        try:
            client = await trio.to_thread.run_sync(ask, broker)
            # Then the socket is full, and the answer to basic.get must wait.
            await eventually(waits_for_its_client)
            client.send(get(1, "one", no_ack))
            queue = server.catalogue.lookup(b"one")
            assert queue is not None
            await eventually(lambda: queue.statistics().unsettled == 1)
            await pass_until(lambda: queue.statistics().unsettled == 0, clock)
            assert await trio.to_thread.run_sync(read, client) == ["deliver", "get-ok"]
        finally:
            broker.close()
