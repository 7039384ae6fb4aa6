"""Messages whose heads are translated for another protocol: one step translates only some of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from amqp_0_9 import wire

from omq.drivers.seam import Cut
from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_1_0 import frames, performatives, types
from omq.protocol.amqp_1_0.performatives import Detach, Flow, Transfer
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import List
from omq.terminals.dmp.forms import FeedForm
from omq_storage.blocks import encode

from .amqp_1_0_peer import Peer, data, opened
from .conversation import InProcess, serving
from .dmp_conversation import feed

COUNT = 100
GOT = 3
A_STEP = 24
"""The most short heads that a step translates."""
BODIES = [b"%d" % number for number in range(COUNT)]


class Steps(trio.abc.Instrument):
    """Counts the heads that each step of a task translates."""

    def __init__(self) -> None:
        self.counts = [0]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts.append(0)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """What the steps of the test translate. It must be registered as an instrument."""
    steps = Steps()
    spend = Portion.spend

    def counted(self: Portion, head: bytes) -> None:
        steps.counts[-1] += 1
        spend(self, head)

    monkeypatch.setattr(Portion, "spend", counted)
    yield steps
    assert sum(steps.counts) == COUNT
    assert max(steps.counts) <= A_STEP


async def publish(client: Peer, handle: int, name: str) -> None:
    """Publish messages with ids of their own, in one write."""
    made = []
    for number, body in enumerate(BODIES):
        properties = types.write(List((f"{name}-{number}",)))
        message = b"\x00\x53%c%s" % (Section.PROPERTIES, properties) + data(body)
        transfer = Transfer(handle, number, b"%d" % number, 0, settled=False)
        made.append(frames.write(0, performatives.write(transfer), message))
    await client.send(b"".join(made))


async def test_feeds_of_messages_of_amqp_1_0(store: Path, steps: Steps) -> None:
    async with serving(store) as host, opened(host.port) as client:
        principal = await host.connect()
        consumer = await feed(host, principal, b"(Get t From_current)")
        await client.sender("t")
        trio.lowlevel.add_instrument(steps)
        await publish(client, 1, "feed")
        envelopes = await consumer.take(COUNT)
        assert [envelope.body for envelope in envelopes] == BODIES
        ids = [envelope.head.properties.message_id for envelope in envelopes]
        assert ids == [b"feed-%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("to_openamq", [False, True])
def test_feeds_of_openamq_of_messages_with_times(to_openamq: bool) -> None:
    time = b"T\0\0\0\0\0\0\0\x05"
    heads = [b"\0\x01%c\x20\0\0\0\0\x0b\x01t%s" % (number, time) for number in range(COUNT)]
    form = FeedForm(PLAIN_HEAD, to_openamq=to_openamq)
    framed = form.whole([Cut(encode(7, 1, BODIES, 0, heads), range(1, COUNT + 1))])
    assert form.unframed == (COUNT - A_STEP + 1 if to_openamq else 0)
    assert (time in framed[0]) is not to_openamq


def connected(host: InProcess) -> wire.Client:
    client = wire.Client(("127.0.0.1", host.port))
    client.shake_hands("guest", "guest")
    client.said(wire.open_channel(1), wire.declare_queue(1, "q"))
    return client


async def test_consumers_of_amqp_0_9_of_messages_of_amqp_1_0(store: Path, steps: Steps) -> None:
    async with serving(store) as host, opened(host.port) as client:
        consumer = await trio.to_thread.run_sync(connected, host)
        await client.sender("q")
        await publish(client, 1, "consumer")
        await client.accepted(COUNT - 1)
        trio.lowlevel.add_instrument(steps)

        def consume() -> None:
            with consumer:
                consumer.call(wire.consume(1, "q", "tag"))
                replies = [consumer.wait() for _ in BODIES]
                assert [reply.body for reply in replies] == BODIES
                assert [reply.tag for reply in replies] == list(range(1, COUNT + 1))
                ids = [reply.properties["message_id"] for reply in replies]
                assert ids == [f"consumer-{number}" for number in range(COUNT)]
                consumer.send(wire.ack(1, COUNT, 1))
                told = consumer.call(wire.declare_queue(1, "q", passive=1)).told()
                assert told.endswith("messages=0 consumers=1")

        await trio.to_thread.run_sync(consume)


async def test_a_get_of_amqp_0_9_beside_a_consumer_has_its_tag_in_order(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        consumer = await trio.to_thread.run_sync(connected, host)
        await client.sender("q")
        await publish(client, 1, "beside")
        await client.accepted(COUNT - 1)

        def consume() -> None:
            with consumer:
                consumer.said(wire.declare_queue(1, "got"))
                consumer.send(*[wire.publish(1, "", "got", b"got")] * GOT)
                consumer.send(wire.consume(1, "q", "tag"), *[wire.get(1, "got")] * GOT)
                assert consumer.wait().name == "consume-ok"
                replies = [consumer.wait() for _ in range(COUNT + GOT)]
                assert [reply.tag for reply in replies] == list(range(1, COUNT + GOT + 1))
                assert [reply.name for reply in replies].count("get-ok") == GOT

        await trio.to_thread.run_sync(consume)


def fill(host: InProcess, name: str, bodies: Sequence[bytes] = BODIES) -> None:
    """Publish messages of AMQP 0-9-1 with ids of their own."""
    with connected(host) as publisher:
        publisher.call(wire.select_confirms(1))
        publisher.send(
            *[
                wire.publish(1, "", "q", body, wire.properties(message_id=f"{name}-{number}"))
                for number, body in enumerate(bodies)
            ]
        )
        while publisher.wait().tag < len(bodies):
            pass


@pytest.mark.parametrize("settled", [False, True])
async def test_consumers_of_amqp_1_0_of_messages_of_amqp_0_9(
    store: Path, steps: Steps, settled: bool
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await trio.to_thread.run_sync(fill, host, f"{settled}")
        trio.lowlevel.add_instrument(steps)
        await client.receiver("q", credit=COUNT, snd=int(settled))
        for number, body in enumerate(BODIES):
            arrived = await client.message()
            assert arrived.delivery == number
            assert arrived.settled == settled
            assert f"{settled}-{number}".encode() in arrived.octets
            assert arrived.octets.endswith(data(body))
        await client.say(Detach(0, closed=True))
        await client.until(Detach)
        with await trio.to_thread.run_sync(connected, host) as other:
            told = await trio.to_thread.run_sync(other.call, wire.declare_queue(1, "q", passive=1))
        assert f"messages={0 if settled else COUNT} " in told.told()


async def drained(client: Peer) -> tuple[int, Flow]:
    """Return how many messages come before the server states the credit of the link, and what it states."""
    count = 0
    while True:
        said, _ = await client.next()
        if isinstance(said, Flow):
            return count, said
        count += isinstance(said, Transfer)


@pytest.mark.parametrize("snd", [0, 1])
async def test_a_client_of_amqp_1_0_lowers_its_credit_between_portions(store: Path, snd: int) -> None:
    bodies = BODIES * 10
    async with serving(store) as host, opened(host.port) as client:
        await trio.to_thread.run_sync(fill, host, "credit", bodies)
        await client.receiver("q", credit=len(bodies), snd=snd)
        await client.message()
        await client.credit(100, count=1, drain=True)
        count, flow = await drained(client)
        assert 100 <= count < len(bodies) - 1
        assert (flow.delivery_count, flow.link_credit) == (1 + count, 0)
        await client.credit(10, count=1 + count, drain=True)
        assert (await drained(client))[0] == 10
