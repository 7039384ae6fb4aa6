"""AMQP 1.0: links take turns while a long message is sent."""

from itertools import pairwise
from pathlib import Path

import pytest
from quietness import pass_until, quiet
from trio.testing import MockClock

from omq.protocol.amqp_1_0.performatives import Detach, Flow, Transfer
from omq_storage.batches import Bodies

from .amqp_1_0_peer import Peer, condition, data, opened, peer
from .client_accounts import SECRET
from .client_accounts import client as account
from .conversation import Host, eventually, serving

SIZE = 16 << 20
"""More than the sockets take."""

BODY = data(bytes(SIZE))

EVERY = pytest.mark.parametrize(
    ("persistence", "memory"),
    [(b"(Persistent Weak)", 1 << 30), (b"(Persistent Weak)", 64 << 20), (b"Transient", 1 << 30)],
    ids=["in memory", "stored", "transient"],
)
"""The place of the long message: with little memory it is read from the store."""


pytestmark = pytest.mark.usefixtures("patience")


async def attach_both(host: Host, client: Peer, other: Peer, persistence: bytes) -> None:
    """Publish a long message to a queue, and attach links to that queue and to another one."""
    await (await host.connect()).ask(b"(Declare long Round_robin %s)" % persistence)
    await client.receiver("long", snd=0)
    await client.receiver("short", handle=1, credit=10)
    await other.sender("long", 1)
    await other.sender("short", 2)
    await other.accepted(await other.publish_long(BODY, 1))


async def begin(client: Peer) -> bytes:
    """Give credit for the long message, and return the beginning of it."""
    await client.credit(1)
    said, payload = await client.next()
    assert isinstance(said, Transfer)
    assert (said.handle, said.delivery_id, said.more) == (0, 0, True)
    return payload


@EVERY
async def test_other_links_of_a_session_send_within_a_long_message(
    store: Path, persistence: bytes, memory: int
) -> None:
    """The client stops reading in its middle, so that the small messages are there by then."""
    async with (
        serving(store, memory_bytes=memory) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        await attach_both(host, client, other, persistence)
        long = bytearray(await begin(client))
        for number in range(3):
            await other.accepted(await other.publish(data(b"%d" % number), 2))
        short: list[bytes] = []
        ids: list[int | None] = []
        more = True
        while more:
            said, payload = await client.next()
            assert isinstance(said, Transfer)
            if said.handle == 0:
                long += payload
                more = said.more
                assert said.delivery_id is None
            else:
                short.append(payload)
                ids.append(said.delivery_id)
        assert long.endswith(BODY)
        assert short == [data(b"%d" % number) for number in range(3)]
        assert ids == [1, 2, 3]
        # The long message counts once in the credit, and its frames in the window.
        await client.credit(2, count=1)
        for _ in range(3):
            await other.publish(data(b"next"), 1)
        assert [(await client.message()).octets for _ in range(2)] == [data(b"next")] * 2
        await client.say(Flow(0, 1 << 20, 0, 1 << 20, echo=True))
        told = await client.heard(Flow)
        assert told.next_outgoing_id is not None
        assert told.next_outgoing_id > len(BODY) // 65536 + 5


@EVERY
async def test_a_piece_of_a_long_message_is_about_one_frame(
    store: Path, persistence: bytes, memory: int
) -> None:
    """Other links wait for no more of it, although the store reads more at a time."""
    async with (
        serving(store, memory_bytes=memory) as host,
        opened(host.port, window=3) as client,
        opened(host.port) as other,
    ):
        await attach_both(host, client, other, persistence)
        await client.say(Flow(0, 3, 0, 1 << 20, 0, 0, 1), Flow(0, 3, 0, 1 << 20, 1, 0, 10))
        for _ in range(3):
            said, _ = await client.next()
            assert isinstance(said, Transfer)
            assert said.handle == 0
        await other.accepted(await other.publish(data(b"short"), 2))
        await quiet()
        await client.say(Flow(3, 2, 0, 1 << 20))
        handles = []
        for _ in range(2):
            said, _ = await client.next()
            assert isinstance(said, Transfer)
            handles.append(said.handle)
        assert sorted(handles) == [0, 1]


@EVERY
async def test_a_detached_link_ends_its_long_message(store: Path, persistence: bytes, memory: int) -> None:
    """Its message goes to another consumer, and the other links of the session go on."""
    async with (
        serving(store, memory_bytes=memory) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        await attach_both(host, client, other, persistence)
        begun = await begin(client)
        await client.say(Detach(0, closed=True))
        octets = len(begun)
        while True:
            said, payload = await client.next()
            if isinstance(said, Detach):
                break
            octets += len(payload)
        assert octets < SIZE
        await other.accepted(await other.publish(data(b"after"), 2))
        said, payload = await client.next()
        assert isinstance(said, Transfer)
        assert (said.handle, said.delivery_id, payload) == (1, 1, data(b"after"))
        await client.receiver("long", handle=2, credit=1, snd=0)
        assert (await client.message()).octets.endswith(BODY)


@pytest.mark.parametrize("types", [b"Round_robin Transient", b"Broadcast (Persistent Weak)"])
async def test_links_take_turns_within_long_messages_behind_small_ones(store: Path, types: bytes) -> None:
    """They were published together, and are in one block."""
    long = b"x" * (1 << 20)
    bodies = [b"a", b"b", long, b"c", long, b"d"]
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        for handle, topic in enumerate((b"left", b"right")):
            await omq.ask(b"(Declare %s %s)" % (topic, types))
            await client.receiver(topic.decode(), handle)
        for topic in (b"left", b"right"):
            driver = host.server.catalogue.lookup(topic)
            assert driver is not None
            await driver.post(Bodies(bodies))
        await client.say(*(Flow(0, 1 << 20, 0, 1 << 20, handle, 0, 10) for handle in (0, 1)))
        octets = {0: bytearray(), 1: bytearray()}
        handles: list[int] = []
        ends = 0
        while ends < 2 * len(bodies):
            said, payload = await client.next()
            assert isinstance(said, Transfer)
            octets[said.handle] += payload
            handles.append(said.handle)
            ends += not said.more
        assert octets[0] == octets[1] == b"".join(map(data, bodies))
        assert sum(left != right for left, right in pairwise(handles)) > 10


async def test_a_long_message_waits_for_the_window_in_the_store(store: Path) -> None:
    """Almost nothing of it is held. Each of its frames uses up the window, and other links wait, too."""
    async with (
        serving(store) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        await attach_both(host, client, other, b"(Persistent Weak)")
        await client.say(Flow(0, 3, 0, 1 << 20, 0, 0, 1))
        long = bytearray()
        for _ in range(3):
            said, payload = await client.next()
            assert isinstance(said, Transfer)
            long += payload
        await other.accepted(await other.publish(data(b"short"), 2))
        await quiet()
        assert host.server.memory.stalled.used < 2 << 20
        await client.say(Flow(3, 1 << 20, 0, 1 << 20))
        is_short_within = False
        more = True
        while more:
            said, payload = await client.next()
            assert isinstance(said, Transfer)
            if said.handle:
                is_short_within = True
            else:
                long += payload
                more = said.more
        assert is_short_within
        assert long.endswith(BODY)
        await eventually(lambda: not host.server.memory.stalled.used)


@pytest.mark.parametrize("settled", [False, True])
async def test_other_links_send_within_a_long_message_of_a_node(store: Path, settled: bool) -> None:
    """The node's link sends nothing else before its end."""
    async with (
        serving(store, memory_bytes=1 << 30) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        address = await client.made()
        await client.receiver("short", handle=1, credit=10)
        await client.credit(10)
        await client.settle()
        await other.sender(address, 1)
        await other.sender("short", 2)
        await other.publish_long(BODY, 1, settled=settled)
        said, payload = await client.next()
        assert isinstance(said, Transfer)
        assert (said.handle, said.settled, said.more) == (0, settled, True)
        long = bytearray(payload)
        await other.publish(data(b"behind"), 1)
        await other.accepted(await other.publish(data(b"short"), 2))
        handles: list[int] = []
        while said.more or said.handle != 0:
            said, payload = await client.next()
            assert isinstance(said, Transfer)
            handles.append(said.handle)
            if not said.handle:
                long += payload
        assert 1 in handles
        assert long == BODY
        assert (await client.message()).octets == data(b"behind")
        if settled:
            await eventually(lambda: host.server.memory.waiting.used < SIZE)


async def begin_transient(client: Peer, other: Peer, window: int = 1 << 20) -> bytes:
    """Publish a long message to a transient broadcast topic, and return the beginning of it. Nobody but the
    sender has it then.
    """
    await client.receiver("broadcast.long")
    await client.receiver("short", handle=1, credit=10)
    await client.say(Flow(0, window, 0, 1 << 20, 0, 0, 10))
    await client.settle()
    if window < 1 << 20:
        await client.say(Flow(0, window, 0, 1 << 20))
    await other.sender("broadcast.long", 1)
    await other.sender("short", 2)
    await other.publish_long(BODY, 1)
    said, payload = await client.next()
    assert isinstance(said, Transfer)
    assert (said.handle, said.settled, said.more) == (0, True, True)
    return payload


async def test_other_links_send_within_a_long_message_of_a_transient_topic(store: Path) -> None:
    async with (
        serving(store, memory_bytes=1 << 30) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        long = bytearray(await begin_transient(client, other))
        await other.accepted(await other.publish(data(b"short"), 2))
        handles = [0]
        while True:
            said, payload = await client.next()
            assert isinstance(said, Transfer)
            handles.append(said.handle)
            if said.handle:
                assert payload == data(b"short")
                continue
            long += payload
            if not said.more:
                break
        assert 1 in handles
        assert long == BODY
        assert not host.server.memory.stalled.used
        await other.publish(data(b"next"), 1)
        assert (await client.message()).octets == data(b"next")


@pytest.mark.parametrize("end", ["window", "detach", "delete", "close"])
async def test_a_long_message_of_a_transient_topic_waits_for_the_window(store: Path, end: str) -> None:
    """It takes a share of the memory meanwhile, until it goes on or its link ends."""
    async with (
        serving(store, memory_bytes=1 << 30) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        stalled = host.server.memory.stalled
        long = bytearray(await begin_transient(client, other, window=1))
        await eventually(lambda: stalled.used >= SIZE)
        match end:
            case "detach":
                await client.say(Detach(0, closed=True))
                await client.heard(Detach)
            case "delete":
                await (await host.connect()).ask(b"(Delete broadcast.long)")
                assert condition(await client.heard(Detach)) == "amqp:resource-deleted"
            case "close":
                await client.stream.aclose()
            case _:
                await client.say(Flow(1, 1 << 20, 0, 1 << 20))
                more = True
                while more:
                    said, payload = await client.next()
                    assert isinstance(said, Transfer)
                    long += payload
                    more = said.more
                assert long == BODY
        await eventually(lambda: not stalled.used)
        assert host.server.statistics().defects == 0


async def test_a_deleted_transient_topic_ends_its_long_message(store: Path) -> None:
    async with (
        serving(store, memory_bytes=1 << 30) as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        octets = len(await begin_transient(client, other))
        await (await host.connect()).ask(b"(Delete broadcast.long)")
        while True:
            said, payload = await client.next()
            if isinstance(said, Detach):
                break
            octets += len(payload)
        assert condition(said) == "amqp:resource-deleted"
        assert octets < SIZE
        await other.accepted(await other.publish(data(b"after"), 2))
        assert (await client.message()).octets == data(b"after")
        assert host.server.statistics().defects == 0


async def test_a_rate_limit_within_a_long_message_of_a_transient_topic(store: Path, clock: MockClock) -> None:
    """It takes a share of the memory after a second in which none of it left."""
    clients = [account("slow", max_bytes_per_second=10_000), account("other")]
    async with (
        serving(store, memory_bytes=1 << 30, clients=clients) as host,
        peer(host.port) as client,
        peer(host.port) as other,
    ):
        for each, name in ((client, "slow"), (other, "other")):
            assert (await each.authenticate("PLAIN", f"\0{name}\0{SECRET}".encode())).code == 0
            await each.open()
        stalled = host.server.memory.stalled
        await begin_transient(client, other)
        await pass_until(lambda: stalled.used >= SIZE, clock)
        await client.say(Detach(0, closed=True))
        await client.until(Detach)
        assert not stalled.used
