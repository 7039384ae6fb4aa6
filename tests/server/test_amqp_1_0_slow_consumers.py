"""AMQP 1.0: slow consumers hold up only their own producers."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from omq.drivers.direct import SHORT_CREDIT
from omq.protocol.amqp_1_0.performatives import Attach, Flow

from .amqp_1_0_peer import ACCEPTED, data, opened, source, target
from .conversation import InProcess, serving

LONG = data(bytes(10_000))


async def fill_node(host: InProcess, stack: AsyncExitStack) -> None:
    """Send messages to a consumer of a node that settles nothing."""
    consumer = await stack.enter_async_context(opened(host.port))
    await consumer.receiver("unicast.slow", credit=1000)
    await consumer.settle()
    producer = await stack.enter_async_context(opened(host.port))
    await producer.sender("unicast.slow")
    for _ in range(40):
        await producer.publish(LONG)
    await producer.settle()


async def fill_queues(host: InProcess, stack: AsyncExitStack) -> None:
    """Send messages to transient queues that nobody consumes, more than the memory holds."""
    for number in range(12):
        producer = await stack.enter_async_context(opened(host.port))
        await producer.sender(f"queue-{number}")
        for _ in range(8):
            last = await producer.publish(LONG)
        if number < 6:
            await producer.accepted(last)


@pytest.mark.parametrize("fill", [fill_node, fill_queues])
async def test_slow_consumers_leave_memory_to_calls(
    fill: Callable[[InProcess, AsyncExitStack], Awaitable[None]], store: Path
) -> None:
    """The messages for them fill the memory from which those of the calls take theirs, too."""
    async with (
        serving(store, memory_bytes=4 << 20, default_persistence="transient") as host,
        AsyncExitStack() as stack,
    ):
        await fill(host, stack)
        server = await stack.enter_async_context(opened(host.port))
        await server.receiver("unicast.calls", credit=100)
        await server.settle()
        client = await stack.enter_async_context(opened(host.port))
        termini = {"source": source("x"), "target": target("unicast.calls")}
        await client.say(Attach("s", 1, False, initial_delivery_count=0, **termini))
        assert (await client.until(Flow)).link_credit == SHORT_CREDIT
        for _ in range(100):
            await client.publish(data(b"call"))
            call = await server.message()
            await server.told(call.delivery, call.delivery)
            assert (await client.outcome()).state == ACCEPTED
