"""AMQP 1.0: outcomes of direct messages into which a consumer has written much."""

import socket
from pathlib import Path

import pytest
import trio

from omq.protocol.amqp_1_0.encoding import write
from omq.protocol.amqp_1_0.performatives import Attach, Error, Flow, Rejected
from omq.protocol.amqp_1_0.performatives import write as written
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import List

from .amqp_1_0_peer import REJECTED, data, opened, target
from .conversation import serving

MESSAGES = 300

LONG = written(Rejected(written(Error("test:long", "x" * 50_000))))

SENT_UNREAD = 10 << 20
"""More octets than the sockets of a client that does not read take, with those that the server keeps."""

MESSAGE = b"\x00\x53%c%s" % (Section.PROPERTIES, write(List((None, None, "unicast.x")))) + data(b"x")


@pytest.mark.parametrize("address", ["unicast.x", None], ids=["node", "relay"])
async def test_long_outcomes_take_little_memory_of_a_producer_that_reads_nothing(
    address: str | None, store: Path
) -> None:
    async with (
        serving(store, amqp1_credit=MESSAGES + 1) as host,
        opened(host.port) as producer,
        opened(host.port) as consumer,
    ):
        assert isinstance(producer.stream, trio.SocketStream)
        producer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await consumer.receiver("unicast.x", credit=MESSAGES + 1)
        await consumer.settle()
        await producer.say(Attach("sender", 1, False, target=target(address), initial_delivery_count=0))
        await producer.until(Flow)
        deliveries = []
        for _ in range(MESSAGES):
            await producer.publish(MESSAGE)
            deliveries.append((await consumer.message()).delivery)
        for delivery in deliveries:
            await consumer.told(delivery, delivery, LONG)
        await consumer.settle()
        states: list[bytes] = []
        while len(states) < MESSAGES:
            outcome = await producer.outcome()
            states += [outcome.state] * (1 + (outcome.last or outcome.first) - outcome.first)
        assert states[0] == LONG
        assert set(states) == {LONG, REJECTED}
        assert states.count(LONG) * len(LONG) < SENT_UNREAD < MESSAGES * len(LONG)
        await producer.publish(MESSAGE)
        delivery = (await consumer.message()).delivery
        await consumer.told(delivery, delivery, LONG)
        assert (await producer.outcome()).state == LONG
