"""AMQP 1.0 on a real socket: queues, topics, credit, outcomes, and what other protocols see."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from omq.config import ClientConfig
from omq.protocol.amqp_1_0 import frames, performatives, sections, types
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Transfer,
)
from omq.protocol.amqp_1_0.types import NULL, Described, Map, Number, NumberType, Symbol, Value
from omq_storage.batches import Bodies

from .amqp_1_0_peer import (
    ACCEPTED,
    HEADER,
    REJECTED,
    RELEASED,
    SASL_HEADER,
    condition,
    data,
    opened,
    peer,
    source,
    target,
    text,
)
from .conversation import eventually, publish, serving
from .test_clients import HASH, SECRET
from .test_liveness import pass_time

NINE = Number(NumberType.UINT, 9)


def from_filter(name: str, value: Value) -> bytes:
    """Return a filter set with the beginning of a replay."""
    return types.write(Map(((Symbol("from"), Described(Symbol(name), value)),)))


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
                header, _ = types.read(message.octets, first.value)
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
        assert (await client.message()).octets == data(first)


async def test_other_protocols_see_the_body(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.ask(b"(Declare t Broadcast Transient)")
        await omq.ask(b"(Subscribe t From_current)")
        await omq.settle()
        await client.sender("t")
        properties = b"\x00\x53\x73" + types.write(types.List((None, None, "somewhere")))
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


# -- nodes without queues -----------------------------------------------------------------------------------


async def test_a_direct_message_goes_to_a_consumer_and_its_outcome_comes_back(store: Path) -> None:
    error = performatives.write(performatives.Error("app:no", "not today"))
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as worker:
        await worker.receiver("exclusive.work", credit=10)
        await client.sender("exclusive.work")
        for state in (ACCEPTED, performatives.write(performatives.Rejected(error)), RELEASED):
            delivery = await client.publish(text("x"))
            message = await worker.message()
            assert message.octets == text("x")
            await worker.told(message.delivery, message.delivery, state)
            outcome = await client.outcome()
            assert (outcome.first, outcome.settled, outcome.state) == (delivery, True, state)


async def test_a_direct_message_without_a_consumer_is_released(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("exclusive.work")
        for _ in range(30):
            await client.publish(text("x"))
            assert (await client.outcome()).state == RELEASED
        statistics = host.server.statistics()
        assert (statistics.direct_nodes, statistics.undelivered) == (1, 30)


async def test_a_released_direct_message_goes_to_a_consumer_that_has_not_had_it(store: Path) -> None:
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(serving(store))
        client, one, two = [await stack.enter_async_context(opened(host.port)) for _ in range(3)]
        await one.receiver("unicast.x", credit=1)
        await one.settle()
        await client.sender("unicast.x")
        await client.publish(text("x"))
        first = await one.message()
        await two.receiver("unicast.x", credit=1)
        await two.settle()
        await one.told(first.delivery, first.delivery, RELEASED)
        second = await two.message()
        assert second.octets == text("x")
        failed = performatives.write(Modified(delivery_failed=True))
        await two.told(second.delivery, second.delivery, failed)
        assert (await client.outcome()).state == failed


async def test_the_consumers_credit_is_the_producers(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as worker:
        await worker.receiver("unicast.x", credit=3)
        await worker.settle()
        await client.say(
            Attach("s", 1, False, source=source("here"), target=target("unicast.x"), initial_delivery_count=0)
        )
        await client.heard(Attach)
        assert (await client.heard(Flow)).link_credit == 3
        for _ in range(3):
            await client.publish(text("x"), settled=True)
        messages = [await worker.message() for _ in range(3)]
        await worker.told(messages[0].delivery, messages[-1].delivery)
        await worker.credit(5, count=3)
        flow = await client.heard(Flow)
        assert (flow.delivery_count, flow.link_credit) == (3, 5)


async def test_settled_direct_messages_wait_for_credit_that_was_withdrawn(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as worker:
        await worker.receiver("unicast.x", credit=5)
        await worker.settle()
        await client.sender("unicast.x")
        await worker.credit(0)
        await worker.settle()
        for number in range(5):
            await client.publish(text(f"{number}"), settled=True)
        await client.settle()
        await worker.credit(5)
        assert [(await worker.message()).octets for _ in range(5)] == [text(f"{n}") for n in range(5)]


async def test_a_direct_message_whose_consumer_goes_away_is_in_doubt(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        async with opened(host.port) as worker:
            await worker.receiver("unicast.x", credit=5)
            await worker.settle()
            await client.sender("unicast.x")
            await client.publish(text("x"))
            await worker.message()
        assert (await client.outcome()).state == performatives.write(Modified(delivery_failed=True))


async def test_a_dynamic_node_lives_with_its_link(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as server:
        address = await client.made()
        await client.credit(1)
        await client.settle()
        await server.sender(address)
        await server.publish(text("reply"), settled=True)
        assert (await client.message()).octets == text("reply")
        await client.say(Detach(0, closed=True))
        assert condition(await server.until(Detach)) == "amqp:resource-deleted"
        await server.sender(address, handle=3)
        assert condition(await server.until(Detach)) == "amqp:not-found"
        assert not host.server.memory.waiting.used


async def test_a_stalled_consumer_of_a_node_leaves_messages_to_others(store: Path) -> None:
    body = text("x" * 2_000_000)
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as slow:
        await slow.receiver("unicast.x", credit=100)
        await slow.settle()
        await client.sender("unicast.x")
        for _ in range(4):
            await client.publish_long(body)
        await client.settle()
        await eventually(lambda: any(one.statistics().stalled_seconds for one in host.server.terminals()))
        async with opened(host.port) as other:
            await other.receiver("unicast.x", credit=100)
            found = [(await other.message()).octets for _ in range(2)]
            assert found == [body, body]


async def test_outcomes_may_come_before_a_take_is_written_completely(store: Path) -> None:
    small, large = text("x" * 40_000), text("x" * 6_000_000)
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as worker:
        await client.sender("unicast.x")
        await worker.receiver("unicast.x", credit=4)
        await worker.settle()
        deliveries = [await client.publish_long(message) for message in (small, small, small, large)]
        told: set[int] = set()
        for _ in range(4):
            message = await worker.message()
            await worker.told(message.delivery, message.delivery)
        while told != set(deliveries):
            outcome = await client.outcome()
            assert outcome.state == ACCEPTED
            told |= set(range(outcome.first, (outcome.last or outcome.first) + 1))
        assert not host.server.memory.waiting.used


async def test_a_node_whose_maker_leaves_in_the_middle_of_a_send(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as server:
        address = await client.made()
        await client.credit(10)
        await client.settle()
        await server.sender(address)
        for _ in range(4):
            await server.publish_long(text("x" * 2_000_000), settled=True)
        await server.settle()
        await client.say(Detach(0, closed=True))
        assert (await client.until(Detach)).closed
        assert condition(await server.until(Detach)) == "amqp:resource-deleted"
        assert not host.server.memory.waiting.used
        assert host.server.statistics().defects == 0


async def test_a_producer_without_credit_gets_some_when_the_last_consumer_leaves(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        async with opened(host.port) as worker:
            await worker.receiver("unicast.x")
            await worker.settle()
            said = Attach("s", 1, False, target=target("unicast.x"), initial_delivery_count=0)
            await client.say(said)
            await client.heard(Attach)
            assert (await client.heard(Flow)).link_credit == 0
        assert (await client.heard(Flow)).link_credit > 0
        await client.publish(text("x"))
        assert (await client.outcome()).state == RELEASED


async def test_a_message_that_waits_for_a_consumer_that_leaves_is_told(store: Path) -> None:
    failed = performatives.write(Modified(delivery_failed=True))
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as one:
        await one.receiver("unicast.x", credit=50)
        await one.settle()
        await client.sender("unicast.x")
        async with opened(host.port) as other:
            await other.receiver("unicast.x")
            await other.settle()
            await client.publish(text("x"))
            message = await one.message()
            await one.told(message.delivery, message.delivery, failed)
            await one.settle()
        assert (await client.outcome()).state == failed


async def test_a_dynamic_node_is_consumed_by_its_connection_alone(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        address = await client.made()
        await other.receiver(address)
        assert condition(await other.until(Detach)) == "amqp:not-found"
        await client.receiver(address, handle=3)
        await client.settle()


async def test_a_topic_with_the_name_of_a_node_comes_first(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.ask(b"(Declare unicast.x Round_robin Transient)")
        await client.sender("unicast.x")
        await client.publish(text("x"))
        assert (await client.outcome()).state == ACCEPTED
        await client.receiver("unicast.x", credit=1)
        assert (await client.message()).octets == text("x")


async def test_malformed_sections_are_rejected_and_forged_ones_hurt_nobody(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await client.publish(b"\x00\x53\x70\x40" + text("x"))  # a header that is no list
        assert isinstance(performatives.read_all((await client.outcome()).state), performatives.Rejected)
        # A client of another protocol writes what it likes into a head.
        forged = b"\x01" + (4).to_bytes(4, "big") + b"\x00\x53\x70\x40"
        table = b"\x08amqp-1.0x" + len(forged).to_bytes(4, "big") + forged
        head = b"\x00\x00\x20\x00" + len(table).to_bytes(4, "big") + table
        driver = host.server.catalogue.lookup(b"q")
        assert driver is not None
        await driver.post(Bodies([b"x"]), [head])
        await client.receiver("q", credit=1)
        state = performatives.write(Modified(delivery_failed=True))
        for count in range(3):
            message = await client.message()
            assert message.octets.endswith(text("x"))
            await client.told(message.delivery, message.delivery, state)
            await client.credit(1, count=count + 1)
        assert host.server.statistics().defects == 0


async def test_a_flow_in_the_middle_of_a_blocked_send(store: Path) -> None:
    body = text("x" * 8_000_000)
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await client.accepted(await client.publish_long(body))
        async with opened(host.port, max_frame=8192, window=900) as slow:
            said = Attach("r", 0, True, source=source("q"), target=target("here"))
            await slow.say(said)
            await slow.until(Attach)
            await slow.say(Flow(0, 900, 0, 1 << 20, 0, 0, 1))
            await eventually(lambda: any(one.statistics().is_sending for one in host.server.terminals()))
            await slow.say(Flow(0, 5000, 0, 1 << 20))
            await eventually(lambda: any(one.statistics().stalled_seconds for one in host.server.terminals()))
            assert (await slow.message()).octets == body
        assert host.server.statistics().defects == 0


async def test_messages_before_a_too_long_one_are_kept(store: Path) -> None:
    async with serving(store, max_message_bytes=1000) as host, opened(host.port) as client:
        await client.sender("q")
        good = frames.write(0, performatives.write(Transfer(1, 0, b"a", 0, True)), text("good"))
        bad = frames.write(0, performatives.write(Transfer(1, 1, b"b", 0, True)), text("x" * 2000))
        await client.send(good + bad)
        assert condition(await client.until(Detach)) == "amqp:link:message-size-exceeded"
        await client.receiver("q", credit=1)
        assert (await client.message()).octets == text("good")


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attach", "expected"),
    [
        (Attach("n", 0, True), "amqp:not-found"),
        (Attach("n", 0, True, source=source(None)), "amqp:not-found"),
        (Attach("n", 0, True, source=source("")), "amqp:not-found"),
        (Attach("n", 0, True, source=source("a" * 256)), "amqp:not-found"),
        (Attach("n", 0, True, source=source("$management")), "amqp:not-found"),
        (Attach("n", 0, True, source=performatives.write(performatives.Source(b"\x41"))),
         "amqp:invalid-field"),
        (Attach("n", 0, True, source=source("amqp:/_omq/temp.nobody")), "amqp:not-found"),
        (Attach("n", 0, True, source=source("queue", capabilities=("topic",))), "amqp:precondition-failed"),
        (Attach("n", 0, True, source=source("topic", capabilities=("queue",))), "amqp:precondition-failed"),
        (Attach("n", 0, True, source=source("queue", filter=from_filter("omq:from", "first"))),
         "amqp:precondition-failed"),
        (Attach("n", 0, True, source=source("topic", filter=from_filter("omq:from", "never"))),
         "amqp:invalid-field"),
        (Attach("n", 0, True, source=source("topic", filter=b"\x41")), "amqp:invalid-field"),
        (Attach("n", 0, True, source=source("topic", filter=types.write(Map(((Symbol("x"), True),))))),
         "amqp:invalid-field"),
        (Attach("n", 0, True, source=source("topic", durable=2, expiry_policy="never")),
         "amqp:not-implemented"),
        (Attach("n", 0, True, source=source("topic", filter=from_filter("omq:from", NINE))),
         "amqp:precondition-failed"),
        (Attach("n", 0, False, target=performatives.write(Coordinator()), initial_delivery_count=0),
         "amqp:not-implemented"),
    ],
)  # fmt: skip
async def test_links_that_are_refused(store: Path, attach: Attach, expected: str) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.say(b"(Declare queue Round_robin Transient)", b"(Declare topic Broadcast Transient)")
        await omq.settle()
        await client.say(attach)
        answer = await client.heard(Attach)
        assert (answer.source if attach.role else answer.target) == b"\x40"
        detach = await client.heard(Detach)
        assert detach.closed
        assert condition(detach) == expected
        await client.say(Detach(0, closed=True))
        await client.sender("q")  # the session goes on
        assert await client.publish(data(b"x")) == 0


async def test_a_topic_that_is_deleted_detaches_its_links(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await client.receiver("q", credit=1)
        await omq.say(b"(Delete q)")
        assert condition(await client.until(Detach)) == "amqp:resource-deleted"
        await client.sender("p")
        await omq.say(b"(Delete p)")
        await omq.settle()
        await client.publish(data(b"x"))
        assert condition(await client.until(Detach)) == "amqp:resource-deleted"


async def test_a_message_that_is_too_long_detaches_its_link(store: Path) -> None:
    async with serving(store, max_message_bytes=1000) as host, opened(host.port) as client:
        await client.sender("q")
        await client.say(Transfer(1, 0, b"t", 0, False, True), payload=b"x" * 600)
        await client.say(Transfer(1, more=True), payload=b"x" * 600)
        assert condition(await client.until(Detach)) == "amqp:link:message-size-exceeded"
        await client.sender("q", handle=2)


async def test_a_malformed_message_is_rejected_and_the_link_goes_on(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        bad = await client.publish(b"\x41")
        outcome = await client.outcome()
        state = performatives.read_all(outcome.state)
        assert outcome.first == bad
        assert isinstance(state, performatives.Rejected)
        good = await client.publish(data(b"x"))
        outcome = await client.outcome()
        assert (outcome.first, outcome.state) == (good, ACCEPTED)


async def test_problems_end_their_session_or_connection(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.say(Begin(None, 0, 10, 10), channel=1)
        await client.heard(Begin)
        await client.say(Transfer(7, 0, b"t"), channel=1)
        assert condition(await client.heard(End)) == "amqp:session:unattached-handle"
        await client.sender("q")
        await client.say(Open("again"))
        assert condition(await client.until(Close)) == "amqp:illegal-state"
        await client.say(Close())
        with pytest.raises(EOFError):
            await client.next()


async def test_a_producer_that_ignores_its_credit_is_detached(store: Path) -> None:
    async with serving(store, amqp1_credit=2) as host, opened(host.port) as client:
        await client.sender("q")
        octets = [Transfer(1, number, b"t", 0, True) for number in range(3)]
        await client.say(*octets, payload=data(b"x"))
        assert condition(await client.until(Detach)) == "amqp:link:transfer-limit-exceeded"


# -- the connection -----------------------------------------------------------------------------------------


async def test_the_server_stops(store: Path) -> None:
    async with AsyncExitStack() as stack:
        async with serving(store) as host:
            client = await stack.enter_async_context(opened(host.port))
            await client.receiver("q", credit=1)
        assert condition(await client.until(Close)) == "amqp:connection:forced"


async def test_a_client_that_says_nothing_is_closed(store: Path, clock: MockClock) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await pass_time(clock, 100)
        await client.heartbeat()
        await client.settle()
        await pass_time(clock, 115)
        await client.settle()
        await pass_time(clock, 125)
        assert condition(await client.until(Close)) == "amqp:resource-limit-exceeded"


async def test_the_server_sends_heartbeats(store: Path, clock: MockClock) -> None:
    async with serving(store) as host, peer(host.port) as client:
        await client.open(idle_ms=8000)
        before = host.server.terminals()[0].statistics().octets_out
        await pass_time(clock, 9, step=0.5)
        assert host.server.terminals()[0].statistics().octets_out - before == 16


async def test_a_client_that_does_not_open_is_closed(store: Path, clock: MockClock) -> None:
    async with serving(store) as host, peer(host.port) as client:
        await client.send(HEADER)
        assert await client.header() == HEADER
        await pass_time(clock, host.server.config.handshake_seconds + 2)
        with pytest.raises(EOFError):
            await client.next()


RIGHTS = {"declare": ["mine*"], "publish": ["mine*", "unicast.mine"], "subscribe": ["mine*", "unicast.mine"]}


async def test_links_need_the_rights_of_their_client(store: Path) -> None:
    clients = [ClientConfig(name="some", secret=HASH, **RIGHTS)]
    async with serving(store, clients=clients) as host:
        async with peer(host.port) as client:
            assert (await client.authenticate("PLAIN", b"\0some\0wrong")).code == 1
        async with peer(host.port) as client:
            await client.send(HEADER)  # without SASL
            assert await client.header() == SASL_HEADER
            with pytest.raises(EOFError):
                await client.next()
        async with peer(host.port) as client:
            assert (await client.authenticate("PLAIN", b"\0some\0" + SECRET.encode())).code == 0
            await client.open()
            allowed = ("mine", "unicast.mine")
            refused = ("yours", "unicast.yours", "openstack.org/om/notify/x")
            handle = 0
            for address in (*allowed, *refused):
                for attach in (client.sender, client.receiver):
                    handle += 1
                    answer = await attach(address, handle)
                    terminus = answer.source if answer.role is False else answer.target
                    assert (terminus != NULL) is (address in allowed), address
                    if address in refused:
                        assert condition(await client.until(Detach)) == "amqp:unauthorized-access"


async def test_clients_authenticate(store: Path) -> None:
    async with serving(store) as host:
        async with peer(host.port) as client:
            assert (await client.authenticate("ANONYMOUS")).code == 0
            await client.open()
            await client.sender("q")
        async with peer(host.port) as client:
            assert (await client.authenticate("PLAIN", b"\0me\0x")).code == 0
            await client.open()
            assert host.server.terminals()[-1].statistics().client == b"me"
        async with peer(host.port) as client:
            assert (await client.authenticate("PLAIN", b"me")).code == 1
            with pytest.raises(EOFError):
                await client.next()
        async with peer(host.port) as client:
            await client.send(SASL_HEADER + HEADER)
            assert await client.header() == SASL_HEADER
            await client.heard(performatives.SaslMechanisms)
            with pytest.raises(EOFError):
                await client.next()
