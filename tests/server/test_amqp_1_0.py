"""AMQP 1.0 on a real socket: queues, topics, credit, outcomes, and what other protocols see."""

from pathlib import Path

import pytest
import trio

from omq.drivers.queue_options import QueueOptions
from omq.model import Delivery, Persistence, Persistent, Sync, Transient
from omq.protocol.amqp_1_0 import decoding, encoding, performatives, sections, types
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Modified,
    Transfer,
)
from omq.protocol.amqp_1_0.types import Number, NumberType, Symbol, Value
from omq_storage.levels import Level

from .amqp_1_0_peer import (
    ACCEPTED,
    REJECTED,
    RELEASED,
    data,
    from_filter,
    opened,
    source,
    target,
    text,
)
from .conversation import declared, eventually, publish, serving
from .test_amqp_1_0_statistics import links


async def test_a_queue_gives_each_message_to_one_consumer(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as one, opened(host.port) as other:
        await one.receiver("q", credit=2)
        await other.receiver("q", credit=2)
        await one.sender("q")
        for number in range(4):
            await one.publish(data(b"%d" % number))
        first = [await one.message(), await one.message()]
        second = [await other.message(), await other.message()]
        assert sorted(message.octets for message in first + second) == [data(b"%d" % n) for n in range(4)]
        assert not any(message.settled for message in first + second)


async def test_a_published_message_is_accepted_when_it_is_stored(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        attach = await client.sender("q")
        assert attach.max_message_size == host.server.config.max_message_bytes
        deliveries = [await client.publish(data(b"x")) for _ in range(3)]
        told: set[int] = set()
        while told != set(deliveries):
            outcome = await client.outcome()
            assert outcome.role
            assert outcome.settled
            assert outcome.state == ACCEPTED
            last = outcome.first if outcome.last is None else outcome.last
            told |= set(range(outcome.first, last + 1))
        await client.publish(data(b"x"), settled=True)  # nobody waits for its outcome
        last_one = await client.publish(data(b"x"))
        assert (await client.outcome()).first == last_one


async def test_a_producer_gets_credit_back_when_its_messages_are_stored(store: Path) -> None:
    """Not when they are received: messages that wait for a commit would have no limit.

    The writer may have taken some of them before it waited. If it took three, these give the client more than
    half of its credit, and the last one gives it no more.
    """
    async with serving(store, amqp1_credit=4) as host, opened(host.port) as client:
        await host.server.catalogue.declare(b"t", Delivery.BROADCAST, Persistent(Sync.STRONG))
        await client.sender("t")
        async with host.server.catalogue.writers[Level.STRONG].paused():
            for _ in range(4):
                last = await client.publish(data(b"x"))
            await client.settle()
            (link,) = links(host).values()
            assert (link.credit, link.unconfirmed) == (0, 4)
        told = {"outcome", "credit"}
        while told:
            match (await client.next())[0]:
                case Disposition(state=state) as outcome if last in (outcome.first, outcome.last):
                    assert state == ACCEPTED
                    told.discard("outcome")
                case Flow(delivery_count=4, link_credit=3 | 4):
                    told.discard("credit")


async def test_credit_is_kept_exactly(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await client.receiver("q")
        for number in range(10):
            await client.publish(data(b"%d" % number), settled=True)
        await client.credit(3)
        assert [(await client.message()).octets for _ in range(3)] == [data(b"0"), data(b"1"), data(b"2")]
        await client.settle()
        await client.credit(2, count=2)  # it has not seen the third
        assert (await client.message()).octets == data(b"3")
        await client.settle()
        await client.credit(0, count=4)
        await client.told(0, 3)
        await client.settle()
        await client.credit(1, count=4)
        assert (await client.message()).octets == data(b"4")


@pytest.mark.parametrize("address", ["q", "topic://t", "unicast.node"])
@pytest.mark.parametrize("credit", [2**31 - 1, 2**31, 2**32 - 1])
async def test_a_client_may_give_all_credit_that_there_is(store: Path, address: str, credit: int) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver(address, credit=credit)
        await client.sender(address)
        for count in range(3):
            await client.publish(data(b"%d" % count))
            assert (await client.message()).octets == data(b"%d" % count)
            await client.told(count, count)
            await client.credit(credit, count=count + 1)


async def test_a_drained_link_gives_the_messages_and_returns_its_credit(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        link = await client.receiver("q")
        for _ in range(3):
            last = await client.publish(data(b"x"))
        await client.accepted(last)
        await client.credit(10, drain=True)
        for _ in range(3):
            await client.message()
        flow = await client.until(Flow)
        while flow.handle != link.handle:
            flow = await client.until(Flow)
        assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)
        await client.publish(data(b"later"))
        await client.settle()
        await client.credit(1, count=10)
        assert (await client.message()).octets == data(b"later")


@pytest.mark.parametrize(
    ("state", "again"),
    [
        (ACCEPTED, None),
        (REJECTED, None),
        (RELEASED, None),
        (performatives.write(Modified()), None),
        (performatives.write(Modified(delivery_failed=True)), 1),
        (b"\x40", None),
    ],
)
async def test_outcomes(store: Path, state: bytes, again: int | None) -> None:
    done = state in (ACCEPTED, REJECTED)
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await client.receiver("q", credit=1)
        await client.publish(text("first"))
        await client.publish(text("second"))
        message = await client.message()
        assert message.octets == text("first")
        await client.told(message.delivery, message.delivery, state)
        await client.credit(1, count=1)
        message = await client.message()
        if done:
            assert message.octets == text("second")
        else:
            first, *rest = sections.find(message.octets)
            if again is None:
                assert message.octets == text("first")
            else:
                header, _ = decoding.read(message.octets, first.value)
                assert isinstance(header, types.List)
                assert header.values[4] == Number(NumberType.UINT, again)
                assert message.octets[rest[0].begin :] == text("first")


async def test_a_message_that_may_not_come_back_goes_to_another_consumer(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as one, opened(host.port) as other:
        await one.sender("q")
        await one.receiver("q", credit=5)
        await one.publish(text("x"))
        message = await one.message()
        state = performatives.write(Modified(undeliverable_here=True))
        await one.told(message.delivery, message.delivery, state, settled=False)
        answer = await one.until(Disposition)
        while answer.role:
            answer = await one.until(Disposition)
        assert (answer.settled, answer.state) == (True, state)
        await other.receiver("q", credit=1)
        assert (await other.message()).octets.endswith(text("x"))


async def test_unsettled_messages_return_when_their_link_or_connection_ends(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as other:
        async with opened(host.port) as client:
            await client.sender("q")
            await client.receiver("q", credit=2)
            await client.publish(text("x"))
            await client.publish(text("y"))
            await client.message()
            await client.message()
            await client.say(Detach(0, closed=True))
            assert (await client.until(Detach)).closed
            await client.receiver("q", handle=2, credit=1)
            assert (await client.message()).octets.endswith(text("x"))
        await other.receiver("q", credit=2)
        found = sorted([(await other.message()).octets[-1:], (await other.message()).octets[-1:]])
        assert found == [b"x", b"y"]


async def test_a_consumer_that_wants_messages_settled_gets_each_once(store: Path) -> None:
    async with serving(store) as host:
        async with opened(host.port) as client:
            await client.sender("q")
            await client.receiver("q", credit=1, snd=1)
            await client.publish(text("x"))
            await client.publish(text("y"))
            message = await client.message()
            assert message.settled
            await client.settle()
        async with opened(host.port) as client:
            await client.receiver("q", credit=2)
            assert (await client.message()).octets == text("y")


async def test_a_topic_gives_each_message_to_all(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as one, opened(host.port) as other:
        for client in (one, other):
            attach = await client.receiver("t", credit=5, capabilities=("topic",))
            origin = performatives.read_all(attach.source)
            assert isinstance(origin, performatives.Source)
            assert origin.distribution_mode == "copy"
            assert attach.snd_settle_mode == 1
        await one.sender("t", capabilities=("topic",))
        await one.publish(text("x"))
        for client in (one, other):
            assert (await client.message()).settled


@pytest.mark.parametrize(
    ("name", "value", "first"),
    [
        ("omq:from", Symbol("beginning"), b"1"), ("omq:from", Number(NumberType.ULONG, 3), b"3"),
        ("rabbitmq:stream-offset-spec", "first", b"1"),
        ("rabbitmq:stream-offset-spec", Number(NumberType.ULONG, 1), b"2"),
    ],
)  # fmt: skip
async def test_a_stored_topic_is_replayed(store: Path, name: str, value: Value, first: bytes) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.say(b"(Declare t Broadcast (Persistent Weak))")
        await omq.settle()
        await client.sender("t")
        for number in range(1, 5):
            last = await client.publish(data(b"%d" % number))
        await client.accepted(last)
        attach = await client.receiver("t", credit=1, filter=from_filter(name, value))
        origin = performatives.read_all(attach.source)
        assert isinstance(origin, performatives.Source)
        assert origin.filter == from_filter(name, value)
        assert (await client.message()).octets.endswith(data(first))


async def test_other_protocols_see_the_body(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await declared(host, b"Broadcast Transient")
        await omq.ask(b"(Subscribe t From_current)")
        await omq.settle()
        await client.sender("t")
        properties = b"\x00\x53\x73" + encoding.write(types.List((None, None, "somewhere")))
        await client.publish(properties + text("hello"))
        assert (await omq.message()).body == b"hello"
        await client.receiver("t", credit=2)
        await omq.send(publish(b"t", [b"from omq"]))
        assert (await client.message()).octets == data(b"from omq")


async def test_long_messages_take_several_frames(store: Path) -> None:
    body = bytes(range(256)) * 2000
    async with serving(store) as host, opened(host.port, max_frame=4096) as client:
        await client.receiver("q", credit=3)
        await client.sender("q")
        message = data(body)
        await client.publish_long(message)
        arrived = await client.message()
        assert arrived.octets == message
        assert arrived.frames > len(message) // 4096
        await client.told(0, 0)
        await client.publish(data(b"small"))
        assert (await client.message()).octets == data(b"small")


async def test_a_stalled_consumer_gets_the_rest_of_its_message(store: Path) -> None:
    messages = [data(bytes([number]) * 3_000_000) for number in range(4)]
    async with serving(store) as host, opened(host.port) as client, opened(host.port, max_frame=8192) as slow:
        await client.sender("q")
        for message in messages:
            await client.publish_long(message, settled=True)
        await client.settle()
        await slow.receiver("q", credit=4)
        with trio.fail_after(60):
            await eventually(lambda: any(one.statistics().stalled_seconds for one in host.server.terminals()))
        found = [(await slow.message()).octets for _ in range(4)]
        assert found == messages


async def test_the_window_of_the_client_is_kept(store: Path) -> None:
    async with serving(store) as host, opened(host.port, max_frame=1024, window=3) as client:
        await client.sender("q")
        await client.say(Attach("r", 0, True, source=source("q"), target=target("here")))
        await client.until(Attach)
        await client.publish(data(b"x" * 5000), settled=True)
        await client.publish(data(b"y"), settled=True)
        await client.say(Flow(0, 3, 0, 1 << 20, 0, 0, 10))
        octets = b""
        for _ in range(3):
            said, payload = await client.next()
            assert isinstance(said, Transfer)
            octets += payload
        await client.say(Flow(3, 0, 0, 1 << 20, echo=True))
        assert isinstance((await client.next())[0], Flow)
        await client.say(Flow(3, 100, 0, 1 << 20))
        more = True
        while more:
            said, payload = await client.next()
            assert isinstance(said, Transfer)
            octets, more = octets + payload, said.more
        assert octets == data(b"x" * 5000)
        assert (await client.message()).octets == data(b"y")


@pytest.mark.parametrize(
    ("settings", "mode"),
    [({}, "move"), ({"amqp1_default": "queue"}, "move"), ({"amqp1_default": "multicast"}, "copy")],
)
async def test_what_an_address_is_by_default(store: Path, settings: dict[str, str], mode: str) -> None:
    async with serving(store, **settings) as host, opened(host.port) as client:
        answer = performatives.read_all((await client.receiver("anything")).source)
        assert isinstance(answer, performatives.Source)
        assert answer.distribution_mode == mode


@pytest.mark.parametrize(
    ("configured", "durable", "expected"),
    [
        ("transient", 0, Transient()),
        ("transient", 1, Persistent(Sync.WEAK)),
        ("strong", 0, Persistent(Sync.STRONG)),
        ("strong", 2, Persistent(Sync.STRONG)),
    ],
)
async def test_a_durable_target_is_stored(
    store: Path, configured: str, durable: int, expected: Persistence
) -> None:
    async with serving(store, default_persistence=configured) as host, opened(host.port) as client:
        await client.sender("anything", durable=durable)
        driver = await host.server.catalogue.find(b"anything")
        assert driver is not None
        assert driver.persistence == expected


async def test_what_has_no_effect_on_a_consumer(store: Path) -> None:
    """The priority of messages, and the greatest size that it states."""
    async with serving(store) as host, opened(host.port) as client:
        await host.server.catalogue.declare_queue(b"q", QueueOptions(max_priority=9))
        await client.sender("q")
        sent = []
        for number in range(3):
            header = types.List((None, Number(NumberType.UBYTE, number)))
            sent.append(b"\x00\x53\x70%s" % encoding.write(header) + data(bytes(100)))
            await client.accepted(await client.publish(sent[-1]))
        said = Attach("small", 0, True, source=source("q"), target=target("here"), max_message_size=10)
        await client.say(said)
        await client.until(Attach)
        await client.credit(3)
        assert [(await client.message()).octets for _ in sent] == sent
