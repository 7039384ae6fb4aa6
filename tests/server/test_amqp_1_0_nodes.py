"""Nodes of AMQP 1.0 without queues: messages go from producers to consumers, and outcomes back."""

import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Transfer,
)
from omq.protocol.amqp_1_0.types import NULL
from omq_storage import codec

from .amqp_1_0_peer import (
    ACCEPTED,
    RELEASED,
    Peer,
    condition,
    data,
    opened,
    source,
    target,
    text,
)
from .conversation import eventually, serving
from .test_amqp_1_0_relay import relay, to


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
        said = await server.until(Detach)
        assert said.closed
        assert said.error == NULL  # to leave after a reply is no error: it would end many servers
        await server.sender(address, handle=3)
        assert condition(await server.until(Detach)) == "amqp:not-found"
        assert not host.server.memory.waiting.used


@pytest.mark.parametrize("leaving", [Detach(0, closed=True), End(), Close(), None])
async def test_producers_know_the_outcomes_before_a_dynamic_node_ends(
    leaving: Detach | End | Close | None, store: Path
) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as server:
        address = await client.made()
        await client.credit(2)
        await client.settle()
        await server.sender(address)
        last = [await server.publish(text("reply")) for _ in range(2)][-1]
        assert [(await client.message()).octets for _ in range(2)] == [text("reply")] * 2
        if leaving is None:
            await client.stream.aclose()
        else:
            await client.say(leaving)
        told: list[Disposition] = []
        while not isinstance(said := (await server.next())[0], Detach):
            told += [said] if isinstance(said, Disposition) else []
        assert {each.state for each in told} == {performatives.write(Modified(delivery_failed=True))}
        assert (told[-1].last or told[-1].first) == last


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


@pytest.mark.parametrize("address", ["unicast.x", "broadcast.x"])
async def test_a_stalled_consumer_that_goes_on_gets_the_rest_in_pieces(store: Path, address: str) -> None:
    """To frame all of it at once takes its memory three times, and keeps all connections waiting."""
    if not codec.COMPILED:
        pytest.skip("the plain codec joins the parts of the message")
    message = data(bytes(16 << 20))
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as slow:
        await slow.receiver(address, credit=1)
        await slow.settle()
        await client.sender(address)
        octets, more = 0, True
        tracemalloc.start()
        try:
            await client.publish_long(message)
            await eventually(lambda: any(one.statistics().stalled_seconds for one in host.server.terminals()))
            await client.settle()
            while more:
                said, payload = await slow.next()
                assert isinstance(said, Transfer)
                octets, more = octets + len(payload), said.more
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert octets == len(message)
        assert peak < 24 << 20


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
        assert (await server.until(Detach)).error == NULL
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


async def consume_without_window(client: Peer) -> None:
    """Attach a consumer with credit for three messages; the session lets none of them leave."""
    await client.say(Attach("r", 0, True, source=source("unicast.x"), target=target("here")))
    await client.heard(Attach)
    await client.say(Flow(0, 0, 0, 1 << 20, 0, 0, 3, echo=True))
    await client.heard(Flow)


async def test_messages_that_a_leaving_consumer_had_come_before_those_that_wait(store: Path) -> None:
    async with (
        serving(store) as host,
        opened(host.port) as client,
        opened(host.port, window=0) as leaving,
        opened(host.port) as other,
    ):
        await consume_without_window(leaving)
        await other.receiver("unicast.x")
        await client.sender("unicast.x")
        await leaving.say(Flow(0, 0, 0, 1 << 20, 0, 0, 2, echo=True))
        await leaving.heard(Flow)
        for number in range(3):
            await client.publish(text(f"{number}"))
        await client.settle()
        await leaving.say(Detach(0, True))
        await leaving.heard(Detach)
        await other.credit(3)
        assert [(await other.message()).octets for _ in range(3)] == [text(f"{n}") for n in range(3)]


async def test_messages_whose_consumer_takes_its_credit_back_keep_their_order(store: Path) -> None:
    async with (
        serving(store) as host,
        opened(host.port) as client,
        opened(host.port, window=0) as first,
        opened(host.port) as other,
    ):
        await consume_without_window(first)
        await client.sender("unicast.x")
        for number in range(3):
            await client.publish(text(f"{number}"))
        await client.settle()
        await other.receiver("unicast.x", credit=3)
        await other.settle()
        await first.say(Flow(0, 0, 0, 1 << 20, 0, 0, 0))
        assert [(await other.message()).octets for _ in range(3)] == [text(f"{n}") for n in range(3)]


async def test_a_consumer_that_has_drained_its_credit_gives_the_producer_none(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as worker:
        await worker.receiver("unicast.x")
        await client.sender("unicast.x")
        await worker.credit(5, drain=True)
        assert (await worker.heard(Flow)).link_credit == 0
        await client.settle()
        await worker.credit(2, count=5)
        assert (await client.heard(Flow)).link_credit == 2


@pytest.mark.parametrize("is_relayed", [False, True])
async def test_a_server_that_stops_releases_what_no_consumer_was_sent(store: Path, is_relayed: bool) -> None:
    """The outcome of a message that a consumer has got is unknown."""
    failed = performatives.write(Modified(delivery_failed=True))
    message = to("unicast.x")
    async with AsyncExitStack() as stack:
        async with serving(store) as host:
            client = await stack.enter_async_context(opened(host.port))
            worker = await stack.enter_async_context(opened(host.port))
            await worker.receiver("unicast.x")
            one_in_the_window = Flow(0, 1, 0, 1 << 20, 0, 0, link_credit=3, echo=True)
            await worker.say(one_in_the_window)
            await worker.until(Flow)
            await (relay(client) if is_relayed else client.sender("unicast.x"))
            for _ in range(3):
                await client.publish(message)
            assert (await worker.message()).octets == message
            await client.settle()
        assert [await told(client) for _ in range(2)] == [(0, 0, failed), (1, 2, RELEASED)]
        assert condition(await client.until(Close)) == "amqp:connection:forced"


async def told(client: Peer) -> tuple[int, int, bytes]:
    """Return the ids and the state of the next outcome."""
    outcome = await client.outcome()
    return outcome.first, outcome.first if outcome.last is None else outcome.last, outcome.state
