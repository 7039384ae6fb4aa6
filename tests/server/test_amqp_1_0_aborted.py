"""AMQP 1.0: the server gives up a message whose rest it cannot read, and the connection goes on."""

from pathlib import Path

import pytest

from omq.protocol.amqp_1_0.performatives import Detach, Transfer
from omq.protocol.amqp_1_0.types import NULL, Symbol
from omq.terminals.connection.statistics import SubscriptionStatistics
from omq_storage.bodies import LargeBodies
from omq_storage.errors import StoreError

from .amqp_1_0_peer import Peer, condition, data, from_filter, opened
from .conversation import InProcess, serving
from .dmp_conversation import envelopes, sink, stored
from .large_messages import MIB, body

SIZE = 16 << 20
"""More than the sockets take."""

BODY = body(SIZE)
LATE = BODY[-MIB:][:16]
"""A part of it that has not left when the sockets are full."""

MEMORY = 64 << 20
"""So little that the message is read from the store."""


pytestmark = pytest.mark.usefixtures("patience")


def damage(store: Path) -> None:
    """Change an octet near the end of the message."""
    file = store / "weak" / "data.mdb"
    at = file.read_bytes().index(LATE)
    with file.open("r+b") as opened_file:
        opened_file.seek(at)
        opened_file.write(b"X")


async def begin(host: InProcess, client: Peer, other: Peer, delivery: bytes, filter: bytes = NULL) -> None:
    """Publish a long message, and receive the first frame of it. Others are received by the handle 1."""
    principal = await host.connect()
    await principal.ask(b"(Declare t %s (Persistent Weak))" % delivery)
    await client.receiver("t", credit=10, snd=0, filter=filter)
    await client.receiver("short", handle=1, credit=10)
    await other.sender("t", 1)
    await other.sender("short", 2)
    connection = await sink(host, principal)  # which stores it in fragments
    await connection.send(envelopes([BODY]))
    assert await stored(connection) == 1
    said, _ = await client.next()
    assert isinstance(said, Transfer)
    assert (said.handle, said.delivery_id, said.more) == (0, 0, True)


async def aborted(client: Peer) -> int:
    """Wait until the server gives the message up; return the octets of it that came."""
    octets = 0
    while True:
        said, payload = await client.next()
        assert isinstance(said, Transfer)
        assert said.handle == 0
        if said.aborted:
            assert (said.delivery_id, said.more, payload) == (None, False, b"")
            return octets
        assert said.more
        octets += len(payload)


def fail(*_: object) -> None:
    raise StoreError("no file system answers")


def subscriptions(host: InProcess) -> list[SubscriptionStatistics]:
    """Return the subscriptions of all connections."""
    return [each for terminal in host.server.terminals() for each in terminal.subscriptions()]


async def go_on(client: Peer, other: Peer, delivery: int) -> None:
    """See that the connection goes on, with this delivery-id."""
    await other.accepted(await other.publish(data(b"short"), 2))
    said, payload = await client.next()
    assert isinstance(said, Transfer)
    assert (said.handle, said.delivery_id, payload) == (1, delivery, data(b"short"))


@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_a_message_that_is_damaged_in_its_middle_is_given_up(
    store: Path, delivery: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(store, memory_bytes=MEMORY) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        await begin(host, client, other, delivery)
        damage(store)
        assert await aborted(client) < SIZE
        await go_on(client, other, 1)
        await other.accepted(await other.publish(data(b"next"), 1))
        arrived = await client.message()
        assert (arrived.delivery, arrived.octets) == (2, data(b"next"))
        await client.told(1, 2)
        await client.settle()
        assert all(each.channel.unsettled == 0 for each in subscriptions(host))
        line = "'t': messages 1 to 1 are gone: the store is damaged there"
        assert any(line in message for message in caplog.messages)


async def test_a_replay_of_a_damaged_message_ends_with_the_reason(store: Path) -> None:
    async with (
        serving(store, memory_bytes=MEMORY) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        await begin(host, client, other, b"Broadcast", from_filter("omq:from", Symbol("current")))
        damage(store)
        await aborted(client)
        assert condition(await client.heard(Detach)) == "amqp:precondition-failed"
        await go_on(client, other, 1)


async def test_a_message_stays_in_its_queue_when_the_store_fails(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(store, memory_bytes=MEMORY) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        await begin(host, client, other, b"Round_robin")
        with monkeypatch.context() as failing:
            failing.setattr(LargeBodies, "read_piece", fail)
            await aborted(client)
            assert condition(await client.heard(Detach)) == "amqp:internal-error"
        await go_on(client, other, 1)
        await client.receiver("t", handle=2, credit=1)
        assert (await client.message()).octets.endswith(data(BODY))


async def test_a_topic_that_is_deleted_in_the_middle_of_a_message(store: Path) -> None:
    """The detach ends its delivery, also while the window of the session is closed."""
    async with (
        serving(store, memory_bytes=MEMORY) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        await begin(host, client, other, b"Round_robin")
        await (await host.connect()).ask(b"(Delete t)")
        assert condition(await client.until(Detach)) == "amqp:resource-deleted"
        await go_on(client, other, 1)
