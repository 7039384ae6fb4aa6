"""Messages of nodes, which leave in the task that reads them: to clients that are slow, limited, or gone."""

from pathlib import Path

import pytest
import trio
from quietness import pass_until, stopped
from trio.testing import MockClock

from omq.config import ClientConfig
from omq.protocol.amqp_1_0 import encoding, types
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import Number, NumberType
from omq.terminals.connection.duplex import WRITER_NAME

from .amqp_1_0_peer import ACCEPTED, Peer, data, opened, peer
from .client_accounts import HASH, SECRET
from .conversation import serving
from .test_reloading import reload

SIZE = 2000


def properties(*values: types.Value) -> bytes:
    return b"\x00\x53%c%s" % (Section.PROPERTIES, encoding.write(types.List(values)))


def body(number: int) -> bytes:
    return b"%d" % number + bytes(SIZE)


async def test_a_client_that_reads_late_gets_everything_in_order(store: Path, clock: MockClock) -> None:
    count = 2500
    async with serving(store, amqp1_credit=count) as host, opened(host.port) as client:
        stream = await trio.open_tcp_stream("127.0.0.1", host.port)
        async with stream:
            late = Peer(stream)
            await late.open()
            await late.receiver("unicast.late", credit=count)
            await late.settle()
            await client.sender("unicast.late")
            with stopped(clock):  # a client that takes nothing for a second would be stalled
                for number in range(count):
                    await client.publish(data(body(number)), settled=True)
                terminal = host.server.terminals()[-1]
                await pass_until(lambda: terminal.statistics().is_sending, clock, 0.001)
                for number in range(count):
                    message = await late.message()
                    assert (message.delivery, message.octets) == (number, data(body(number)))
            await late.told(0, count - 1)
            await late.settle()


def slow_client(rate: int) -> ClientConfig:
    return ClientConfig(name="slow", secret=HASH, subscribe=["*"], max_bytes_per_second=rate)


async def test_a_rate_limit_holds_back_messages_of_nodes(store: Path, clock: MockClock) -> None:
    fast_client = ClientConfig(name="fast", secret=HASH, publish=["*"])
    clients = [slow_client(1_000_000), fast_client]
    async with serving(store, clients=clients) as host, peer(host.port) as slow, peer(host.port) as fast:
        for client, name in ((slow, b"slow"), (fast, b"fast")):
            plain = b"\0" + name + b"\0" + SECRET.encode()
            assert (await client.authenticate("PLAIN", plain)).code == 0
            await client.open()
        await slow.receiver("unicast.slow", credit=100)
        await slow.settle()
        await fast.sender("unicast.slow")
        await reload(host.server, lambda _: {"clients": [slow_client(50), fast_client]})
        await fast.publish(data(body(0)))
        assert (await slow.message()).octets == data(body(0))
        await fast.publish(data(body(1)))
        await fast.settle()
        (node,) = host.server.nodes()
        assert (node.messages_in, node.messages_out) == (2, 1)
        clock.jump(60)
        assert (await slow.message()).octets == data(body(1))


async def test_messages_to_a_client_that_is_gone_are_told(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        async with opened(host.port) as gone:
            await gone.receiver("unicast.gone", credit=100)
            await gone.settle()
            await client.sender("unicast.gone")
        for _ in range(3):
            await client.publish(data(b"x"))
            assert (await client.outcome()).state != ACCEPTED


async def test_more_connections_than_are_sent_to_at_once(store: Path) -> None:
    count = 40
    async with serving(store) as host, opened(host.port) as client, trio.open_nursery() as nursery:

        async def consume(number: int, task_status: trio.TaskStatus[None]) -> None:
            async with opened(host.port) as consumer:
                await consumer.receiver(f"unicast.{number}", credit=1)
                await consumer.settle()
                task_status.started()
                assert (await consumer.message()).octets == data(b"%d" % number)

        for number in range(count):
            await nursery.start(consume, number)
            await client.sender(f"unicast.{number}", number)
        for number in range(count):
            await client.publish(data(b"%d" % number), number)


@pytest.mark.parametrize("snd", [0, 1])
async def test_calls_and_answers(store: Path, snd: int) -> None:
    async with serving(store) as host, opened(host.port) as caller, opened(host.port) as server:
        await server.receiver("unicast.calls", 0, credit=100, snd=snd)
        await caller.receiver("unicast.answers", 0, credit=100)
        await caller.sender("unicast.calls", 1)
        await server.sender("unicast.answers", 1)
        for number in range(20):
            sent = await caller.publish(data(b"call %d" % number))
            call = await server.message()
            assert (call.octets, call.settled) == (data(b"call %d" % number), snd == 1)
            if not call.settled:
                await server.told(call.delivery, call.delivery)
            await caller.accepted(sent)
            await server.publish(data(b"answer %d" % number), settled=True)
            answer = await caller.message()
            assert answer.octets == data(b"answer %d" % number)
            await caller.told(answer.delivery, answer.delivery)


@pytest.mark.parametrize(("snd", "settled"), [(2, True), (1, True), (0, False)])
@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_settled_message_stays_settled(store: Path, snd: int, size: int, *, settled: bool) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as consumer:
        await consumer.receiver("unicast.x", credit=10, snd=snd)
        await consumer.settle()
        await client.sender("unicast.x")
        await client.publish_long(data(bytes(size)), settled=True)
        message = await consumer.message()
        assert (len(message.octets) > size, message.settled) == (True, settled)
        delivery = await client.publish_long(data(bytes(size)))
        message = await consumer.message()
        assert message.settled is (snd == 1)
        if not message.settled:
            await consumer.told(message.delivery, message.delivery)
        await client.accepted(delivery)


async def test_settled_messages_take_no_memory_when_they_are_sent(store: Path) -> None:
    count, credit = 1000, 20  # the octets of all are several times those that may wait
    async with (
        serving(store, memory_bytes=4 << 20) as host,
        opened(host.port) as client,
        opened(host.port) as consumer,
    ):
        await consumer.receiver("unicast.x", credit=credit)
        await consumer.settle()
        await client.sender("unicast.x")
        for number in range(count):
            await client.publish(data(body(number)), settled=True)
            assert (await consumer.message()).octets == data(body(number))
            if not number % (credit // 2):
                await consumer.credit(credit, count=number + 1)
                await consumer.settle()
        (node,) = host.server.nodes()
        assert (node.messages_out, node.undelivered) == (count, 0)


class WritingSteps(trio.abc.Instrument):
    """Counts the steps of the sending tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name == WRITER_NAME


EXPIRING = properties(*(None,) * 8, Number(NumberType.TIMESTAMP, 9))


@pytest.mark.parametrize(
    "message", [data(b"x"), data(b"one") + data(b"two"), EXPIRING + data(b"x")],
    ids=["in common form", "with two sections", "with an absolute time"],
)  # fmt: skip
async def test_no_sending_task_is_woken_for_a_message_and_its_outcome(
    store: Path, message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would take another round of the scheduler."""
    monkeypatch.setattr("omq.drivers.immediate_sends.SLICE_SECONDS", 60.0)  # also on a slow machine
    steps = WritingSteps()
    trio.lowlevel.add_instrument(steps)
    try:
        async with serving(store) as host, opened(host.port) as client, opened(host.port) as worker:
            await worker.receiver("unicast.x", credit=100)
            await worker.settle()
            await client.sender("unicast.x")
            await client.settle()
            before = steps.count
            assert before, "a sending task begins with each connection"
            for _ in range(10):
                await client.publish(message)
                arrived = await worker.message()
                assert arrived.octets == message
                await worker.told(arrived.delivery, arrived.delivery)
                assert (await client.outcome()).state == ACCEPTED
            assert steps.count == before
    finally:
        trio.lowlevel.remove_instrument(steps)
