"""Messages that a queue passes on to its consumer without keeping them, and those that it must keep."""

import pytest
from served_drivers import Client, Drivers, messages_of, post

from omq.drivers.competing import FREE_OCTETS
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import DEFAULT, QueueOptions
from omq.drivers.reasons import Refused
from omq.drivers.seam import DirectSender, Selection, TakenMessages
from omq.model import Sync
from omq_storage.batches import Bodies
from omq_storage.blocks import Block


class Direct(Client):
    """A client that can be sent to at once."""

    may_send = True
    takes = True

    @property
    def direct(self) -> DirectSender:
        return self

    def may_send_now(self) -> bool:
        return self.may_send

    def send_now(self, block: Block) -> bool:
        if self.takes:
            whole = TakenMessages((Selection(block, range(block.first, block.next)),))
            self.got += messages_of(whole, self.topic)
        return self.takes


async def used(drivers: Drivers, options: QueueOptions = DEFAULT) -> tuple[QueueDriver, Direct]:
    """Return a queue whose first message, which reserves ids, has been read by its consumer."""
    queue = await drivers.catalogue.declare_queue(b"q", options)
    client = Direct(queue, priority=0)
    await post(queue, b"first")
    await client.read()
    assert client.bodies == [b"first"]
    return queue, client


def passed(queue: QueueDriver, body: bytes) -> bool:
    return queue.pass_on(Bodies([body]), (b"",))


async def test_a_message_that_is_passed_on_is_counted_and_not_kept(drivers: Drivers) -> None:
    queue, client = await used(drivers)
    traffic = queue.traffic
    before = traffic.messages_in, traffic.messages_out
    assert passed(queue, b"second")
    await post(queue, b"third")
    await client.read()
    assert passed(queue, b"fourth")
    assert client.bodies == [b"first", b"second", b"third", b"fourth"]
    assert client.ids == [1, 2, 3, 4]
    assert (traffic.messages_in - before[0], traffic.messages_out - before[1]) == (3, 3)
    assert (queue.ready, queue.resources.memory.waiting.used) == (0, 0)


async def test_a_message_that_the_consumer_did_not_send_is_offered(drivers: Drivers) -> None:
    queue, client = await used(drivers)
    client.takes = False
    assert not passed(queue, b"second")
    await post(queue, b"second")
    assert queue.traffic.messages_in == 2
    await client.read()
    assert (client.bodies, client.ids) == ([b"first", b"second"], [1, 2])


async def test_a_message_does_not_pass_one_that_waits(drivers: Drivers) -> None:
    queue, client = await used(drivers)
    await post(queue, b"second")  # the consumer has not taken it yet
    assert not passed(queue, b"third")
    await client.read()
    client.channel.hold()
    assert not passed(queue, b"third")
    await post(queue, b"third")
    client.channel.release()
    assert not passed(queue, b"fourth")
    await client.read()
    assert client.bodies == [b"first", b"second", b"third"]


async def test_a_consumer_that_acknowledges_or_has_others_beside_it_is_assigned_messages(
    drivers: Drivers,
) -> None:
    queue, client = await used(drivers)
    client.may_send = False
    assert not passed(queue, b"second")
    client.may_send = True
    other = Direct(queue, priority=0)
    assert not passed(queue, b"second")
    other.channel.close()
    assert passed(queue, b"second")
    client.request(10)
    assert not passed(queue, b"third")
    client.channel.close()
    assert not passed(queue, b"third")  # nobody is there


@pytest.mark.parametrize(
    "options",
    [
        QueueOptions(durable=True, sync=Sync.ASYNC),
        QueueOptions(max_octets=1000),
        QueueOptions(max_priority=3),
    ],
    ids=["durable", "measured", "priorities"],
)
async def test_queues_that_need_to_keep_their_messages(options: QueueOptions, drivers: Drivers) -> None:
    queue, client = await used(drivers, options)
    assert not passed(queue, b"second")
    assert client.bodies == [b"first"]


async def test_long_messages_are_kept(drivers: Drivers) -> None:
    queue, _ = await used(drivers)
    assert not passed(queue, bytes(FREE_OCTETS))


async def test_a_defect_fails_the_message_alone(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, client = await used(drivers)

    def fail(*arguments: object) -> Block:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(Bodies, "encode", fail)
        with pytest.raises(Refused):
            passed(queue, b"second")
    assert passed(queue, b"third")
    assert (client.bodies, client.ids) == ([b"first", b"third"], [1, 2])
