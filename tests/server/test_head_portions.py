"""Messages whose heads are translated for another protocol: one step translates only some of them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from amqp_0_9 import raw_client, wire

from omq.drivers.seam import Selection
from omq.protocol.amqp.head import PLAIN_HEAD, Head
from omq.protocol.amqp.head import encode as encoded
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp_0_9.delivery import ConsumerFraming, deliveries, deliveries_plain
from omq.protocol.amqp_1_0 import encoding, frames, performatives
from omq.protocol.amqp_1_0.performatives import Detach, Flow, Transfer
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import List
from omq.terminals.amqp_0_9.forms import ConsumerForm, Tags
from omq.terminals.connection.forms import Form, selections_behind
from omq.terminals.dmp.forms import FeedForm
from omq_storage.blocks import Block, encode

from .amqp_1_0_peer import Peer, data, opened
from .conversation import InProcess, serving
from .dmp_conversation import feed

COUNT = 60
"""No more than the window of a session of AMQP 1.0 lets a client send in one write."""
GOT = 3
A_STEP = 24
"""The most short heads that a step translates."""
CONSUMER = ConsumerFraming(1, b"tag", 131_072, PLAIN_HEAD)
BODIES = [b"%d" % number for number in range(COUNT)]


class Steps(trio.abc.Instrument):
    """Counts the heads that each step of a task translates."""

    def __init__(self) -> None:
        self.counts = [0]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts.append(0)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Yield the number of heads that each step of the test translates. It must be registered as an
    instrument.
    """
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
        properties = encoding.write(List((f"{name}-{number}",)))
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
    framed = form.whole([Selection(encode(7, 1, BODIES, 0, heads), range(1, COUNT + 1))])
    assert 0 < form.framed < A_STEP if to_openamq else form.framed == COUNT
    assert (time in framed[0]) is not to_openamq


def framed_by_dmp(block: Block) -> int:
    form = FeedForm(PLAIN_HEAD)
    form.whole([Selection(block, range(block.first, block.next))])
    return form.framed


def framed_by_amqp_0_9(block: Block, frame: Callable[..., tuple[bytes, int]] = deliveries) -> int:
    return frame(CONSUMER, 1, block, range(block.first, block.next), Portion())[1]


@pytest.mark.parametrize(
    "framed", [framed_by_dmp, framed_by_amqp_0_9, partial(framed_by_amqp_0_9, frame=deliveries_plain)]
)
def test_many_heads_that_are_sent_as_they_are(framed: Callable[[Block], int]) -> None:
    """However many heads a block has, a step frames the same number of them; and all messages of one head."""

    def of(count: int, size: int) -> int:
        heads = [
            encoded(Head(b"", b"q", Properties(message_id=b"%06d" % number, user_id=b"u" * size)))
            for number in range(count)
        ]
        return framed(encode(7, 1, [b"x"] * count, 0, heads))

    assert A_STEP < of(1000, 0) == of(4000, 0) < 250
    assert of(1000, 250) < of(1000, 0)
    assert framed(encode(7, 1, [b"x"] * 4000, 0, [PLAIN_HEAD] * 4000)) == 4000


class Counted(list[Selection]):
    """Counts the selections that are looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[Selection]:
        for selection in super().__iter__():
            self.looked_at += 1
            yield selection


@pytest.mark.parametrize("form", [FeedForm(PLAIN_HEAD), ConsumerForm(CONSUMER, Tags(), no_ack=True)])
def test_a_step_looks_at_the_cuts_that_it_frames_only(form: Form) -> None:
    count = 512
    heads = [encoded(Head(b"", b"q", Properties(message_id=b"%d" % number))) for number in range(2 * count)]
    block = encode(7, 1, [b"x"] * 2 * count, 0, heads)
    selections: Sequence[Selection] = [
        Selection(block, range(first, first + 2)) for first in range(1, 2 * count, 2)
    ]
    ids: list[int] = []
    while selections:
        counted = Counted(selections)
        form.whole(counted)
        assert form.framed > A_STEP
        assert counted.looked_at <= form.framed // 2 + 2
        ids += [message for selection in selections for message in selection.ids][: form.framed]
        behind = selections_behind(selections, form.framed)
        assert all(
            new is old
            for new, old in zip(behind[1:], selections[len(selections) - len(behind) + 1 :], strict=True)
        )
        selections = behind
    assert ids == list(range(1, 2 * count + 1))


def connected(host: InProcess) -> raw_client.Client:
    client = raw_client.Client(("127.0.0.1", host.port))
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
    """Return the number of messages that come before the server states the credit of the link, and its
    statement.
    """
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
