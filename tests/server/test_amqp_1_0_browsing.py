"""AMQP 1.0: a source with the distribution mode copy at a queue gets copies, and takes no message."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.performatives import Detach, Flow, Modified, Source, Transfer

from .amqp_1_0_peer import ACCEPTED, RELEASED, Peer, condition, data, opened
from .conversation import InProcess, eventually, serving

PERSISTENCES = ["Transient", "(Persistent Weak)", "(Persistent Strong)"]
BODIES = [b"%d" % number for number in range(250)]
"""More messages than are listed at once."""


async def filled(host: InProcess, client: Peer, persistence: str, bodies: Sequence[bytes] = BODIES) -> None:
    """Declare a queue, attach a producer to it, and publish messages."""
    omq = await host.connect()
    await omq.ask(b"(Declare q Round_robin %s)" % persistence.encode())
    await client.sender("q")
    await published(client, bodies)


async def published(client: Peer, bodies: Sequence[bytes]) -> None:
    """Publish messages, and wait until they are accepted."""
    for begin in range(0, len(bodies), 50):
        for body in bodies[begin : begin + 50]:
            last = await client.publish_long(data(body))
        await client.accepted(last)


async def browser(client: Peer, credit: int, **fields: object) -> Source:
    """Attach a browser on the handle 0, and return its source as the server answers it."""
    attach = await client.receiver("q", credit=credit, distribution_mode="copy", **fields)
    answered = performatives.read_all(attach.source)
    assert isinstance(answered, Source)
    return answered


async def copies(client: Peer, bodies: Sequence[bytes], outcome: bytes = ACCEPTED) -> None:
    """Receive these messages, and tell the outcome of each."""
    for body in bodies:
        message = await client.message()
        assert message.octets.endswith(data(body))
        assert not message.settled
        await client.told(message.delivery, message.delivery, outcome)


@pytest.mark.parametrize("persistence", PERSISTENCES)
@pytest.mark.parametrize("outcome", [ACCEPTED, RELEASED, performatives.write(Modified(True, True))])
async def test_a_browser_takes_nothing(store: Path, persistence: str, outcome: bytes) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, persistence)
        assert (await browser(client, 1000)).distribution_mode == "copy"
        await copies(client, BODIES, outcome)
        await other.receiver("q", 2, credit=1000)
        await copies(other, BODIES)  # as if they were never delivered before


@pytest.mark.parametrize("persistence", PERSISTENCES)
async def test_a_browser_gets_as_many_as_it_has_credit_for(store: Path, persistence: str) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, persistence)
        await browser(client, 3)
        await copies(client, BODIES[:3])
        await client.credit(120, count=3)
        await copies(client, BODIES[3:123])
        await client.settle()
        await client.credit(200, count=123, drain=True)
        await copies(client, BODIES[123:])
        flow = await client.until(Flow)
        assert (flow.delivery_count, flow.link_credit, flow.drain) == (323, 0, True)


@pytest.mark.parametrize("persistence", PERSISTENCES)
async def test_a_browser_at_the_end_gets_later_messages(store: Path, persistence: str) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, persistence, BODIES[:2])
        await browser(client, 1000)
        await copies(client, BODIES[:2])
        await client.settle()
        for body in BODIES[2:5]:
            await published(other, [body])
            await copies(client, [body])


@pytest.mark.parametrize("persistence", PERSISTENCES)
async def test_a_browser_gets_what_is_not_done(store: Path, persistence: str) -> None:
    """It gets messages of other consumers, too, which may return, with the number of their deliveries."""
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, persistence, BODIES[:6])
        await other.receiver("q", 2, credit=4)
        await copies(other, BODIES[:2])
        last = [await other.message() for _ in range(2)]
        failed = performatives.write(Modified(True))
        await other.told(last[0].delivery, last[0].delivery, failed)
        await other.settle()
        await browser(client, 10)
        message = await client.message()
        assert message.octets.startswith(b"\x00\x53\x70")  # the header says that it was delivered
        assert message.octets.endswith(data(BODIES[2]))
        await copies(client, BODIES[3:6])


@pytest.mark.parametrize("persistence", PERSISTENCES)
async def test_long_messages_are_browsed(store: Path, persistence: str) -> None:
    long = [bytes([number]) * (5 << 20) for number in range(2)]  # a transient queue has it on the spool
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, persistence, [b"x", *long, b"y"])
        await browser(client, 10)
        await copies(client, [b"x", *long, b"y"])
        await other.receiver("q", 2, credit=10)
        await copies(other, [b"x", *long, b"y"])


@pytest.mark.parametrize("persistence", PERSISTENCES)
async def test_the_window_of_a_session_delays_copies(store: Path, persistence: str) -> None:
    long = b"l" * (1 << 20)
    async with serving(store) as host, opened(host.port, window=3) as client, opened(host.port) as other:
        await filled(host, other, persistence, [long, long])
        await browser(client, 10)  # states a wider window
        await copies(client, [long, long])
        assert host.server.memory.statistics().replayed == 0


@pytest.mark.parametrize("persistence", PERSISTENCES)
async def test_a_browser_of_a_queue_that_is_deleted_is_detached(store: Path, persistence: str) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, persistence, BODIES[:3])
        await browser(client, 10)
        await copies(client, BODIES[:3])
        await (await host.connect()).ask(b"(Delete q)")
        assert condition(await client.until(Detach)) == "amqp:resource-deleted"


async def test_a_browser_of_a_queue_that_becomes_a_topic_is_detached(store: Path) -> None:
    async with serving(store, default_delivery="round-robin") as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.ask(b"(Subscribe q From_current)")
        await browser(client, 10)
        await omq.ask(b"(Declare q Broadcast (Persistent Strong))")
        assert condition(await client.until(Detach)) == "amqp:resource-deleted"


async def test_a_browser_is_no_consumer(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, "Transient", BODIES[:3])
        await browser(client, 10)
        await copies(client, BODIES[:3])
        queue = host.server.catalogue.lookup(b"q")
        assert queue is not None
        assert queue.statistics().subscribers == 0
        await client.stream.aclose()
        await eventually(lambda: host.server.memory.statistics().replayed == 0)
        await other.receiver("q", 2, credit=10)
        await copies(other, BODIES[:3])


@pytest.mark.parametrize("size", [300_000, 5 << 20])
async def test_a_message_that_is_done_while_it_is_copied(store: Path, size: int) -> None:
    """The rest of one in memory is held. One on the spool is gone: its delivery is aborted."""
    body = b"l" * size
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, "Transient", [body])
        await browser(client, 0)
        await client.say(Flow(0, 2, 0, 1 << 20, 0, 0, 10))
        received = 0
        for _ in range(2):
            await client.until(Transfer)
            received += 1
        await other.receiver("q", 2, credit=10)
        await copies(other, [body])
        await other.settle()
        await client.say(Flow(received, 1 << 20, 0, 1 << 20))
        while (transfer := await client.until(Transfer)).more:
            pass
        assert transfer.aborted == (size > 4 << 20)
        await published(other, [b"after"])
        await copies(other, [b"after"])
        await published(other, [b"last"])
        assert (await other.message()).octets.endswith(data(b"last"))
        assert (await client.message()).octets.endswith((data(b"after"), data(b"last")))


async def test_a_browser_that_reads_nothing_delays_no_consumer(store: Path) -> None:
    """The memory for the message that it has begun is given back when it ends."""
    long = [b"%d" % number + b"x" * 2_000_000 for number in range(8)]
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await filled(host, other, "(Persistent Weak)", long)
        await browser(client, 10)
        await other.receiver("q", 2, credit=10)
        await copies(other, long)
        await client.stream.aclose()
        await eventually(lambda: len(host.server.terminals()) == 2)
        memory = host.server.memory.statistics()
        assert (memory.replayed, memory.stalled) == (0, 0)
