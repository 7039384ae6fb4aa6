"""AMQP 1.0: messages that a consumer returns to their queue."""

from pathlib import Path

import pytest

from omq.drivers import slices
from omq.protocol.amqp_1_0.performatives import Modified, write
from omq.protocol.amqp_1_0.unsettled import RUNS_A_STEP

from .amqp_1_0_peer import RELEASED, data, opened
from .conversation import serving


@pytest.mark.parametrize("outcome", [RELEASED, write(Modified(delivery_failed=True)), b"\x40"])
@pytest.mark.parametrize("count", [RUNS_A_STEP // 4, RUNS_A_STEP * 2])
async def test_messages_return_in_their_order(
    outcome: bytes, count: int, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One disposition returns messages whose deliveries have the other order, and the first ones are assigned
    again meanwhile.
    """
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    bodies = [data(b"%d" % number) for number in range(count)]
    async with serving(store, default_persistence="transient") as host, opened(host.port) as client:
        await client.receiver("queue://q", credit=3 * count)
        await client.sender("queue://q")
        deliveries = []
        for body in bodies:
            await client.publish(body, settled=True)
            deliveries.append((await client.message()).delivery)
        for delivery in reversed(deliveries):  # each comes again before the next one returns
            await client.told(delivery, delivery, RELEASED)
            last = await client.message()
        assert last.octets.endswith(bodies[0])
        await client.told(last.delivery - count + 1, last.delivery, outcome)
        again = [(await client.message()).octets[-len(body) :] for body in bodies]
        assert again == bodies
