"""AMQP 1.0: messages for which the window of the client's session is closed."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from garbage import uncollected
from quietness import pass_time
from trio.testing import MockClock

from omq.drivers.seam import SLOW_SECONDS
from omq.protocol.amqp_1_0.link import SendingLink
from omq.protocol.amqp_1_0.performatives import Attach, Begin, Close, Detach, Flow, Transfer
from omq_storage.bodies import LargeBodies
from omq_storage.pieces import LargeMessage

from .amqp_1_0_peer import Peer, condition, data, opened, source, target
from .conversation import Host, eventually, serving
from .stalled_readers import sending_little

LONG = data(b"x" * 3000)
"""A message of four frames of 1,024 octets."""


@asynccontextmanager
async def narrow(host: Host) -> AsyncIterator[Peer]:
    """Yield a client that takes short frames, and one transfer."""
    async with opened(host.port, max_frame=1024, window=1) as client:
        yield client


async def attach(client: Peer, address: str, name: str = "r", channel: int = 0, handle: int = 0) -> Attach:
    """Attach a link with credit for ten messages."""
    said = Attach(name, handle, True, 0, source=source(address), target=target("here"))
    await client.say(said, channel=channel)
    attached = await client.until(Attach)
    await client.say(Flow(0, 1, 0, 100, handle, 0, 10), channel=channel)
    return attached


async def echoed(client: Peer, flow: Flow, channel: int = 0) -> list[object]:
    """Say this flow, which wants an echo; return what the server says before it."""
    await client.say(flow, channel=channel)
    heard: list[object] = []
    while True:
        said, _ = await client.next()
        if isinstance(said, Flow) and said.handle is None:
            return heard
        heard.append(said)


async def transfer(client: Peer) -> Transfer:
    said, _ = await client.next()
    assert isinstance(said, Transfer), said
    return said


async def begin_long(other: Peer, client: Peer) -> None:
    """Publish a message to jobs, and receive the beginning of it: the client has no window for more."""
    await other.sender("jobs")
    await other.accepted(await other.publish(LONG))
    await attach(client, "jobs")
    assert (await transfer(client)).more


async def test_a_detached_link_gets_no_messages(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as other, narrow(host) as client:
        await other.sender("jobs")
        for number in range(3):
            await other.publish(data(b"%d" % number))
        await other.accepted(2)
        await attach(client, "jobs")
        assert (await transfer(client)).delivery_id == 0
        await client.say(Detach(0, closed=True))
        await client.heard(Detach)
        await attach(client, "log", "r2")
        assert await echoed(client, Flow(1, 100, 0, 100, echo=True)) == []
        await other.receiver("jobs", credit=3)
        assert [(await other.message()).octets[-1:] for _ in range(3)] == [b"0", b"1", b"2"]


async def test_the_rest_of_a_message_goes_with_its_link(store: Path) -> None:
    """A link that is attached with the handle of another one gets none of its frames."""
    async with serving(store) as host, opened(host.port) as other, narrow(host) as client:
        await begin_long(other, client)
        await client.say(Detach(0, closed=True))
        await client.heard(Detach)
        await attach(client, "log", "r2")
        assert await echoed(client, Flow(1, 100, 0, 100, echo=True)) == []
        await other.receiver("jobs", credit=1)
        assert (await other.message()).octets.endswith(LONG)


async def test_the_rest_of_a_message_goes_with_its_topic(store: Path) -> None:
    """The server detaches the link, and the next one sends at once."""
    async with serving(store) as host, opened(host.port) as other, narrow(host) as client:
        omq = await host.connect()
        await omq.say(b"(Declare jobs Round_robin (Persistent Weak))")
        await omq.settle()
        await other.sender("jobs")
        await other.accepted(await other.publish(LONG))
        await other.sender("more", 2)
        await other.accepted(await other.publish(data(b"y"), 2))
        await attach(client, "jobs")
        assert (await transfer(client)).more
        await omq.say(b"(Delete jobs)")
        assert condition(await client.heard(Detach)) == "amqp:resource-deleted"
        await attach(client, "more", "r2", handle=1)
        heard = await echoed(client, Flow(1, 100, 0, 100, echo=True))
        heard += [] if heard else [await transfer(client)]
        assert [each.handle for each in heard if isinstance(each, Transfer)] == [1]


async def test_one_message_of_a_connection_waits_for_the_windows_of_its_sessions(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as other, narrow(host) as client:
        await other.sender("log", capabilities=("topic",))
        await client.say(Begin(None, 0, 1, 100), channel=1)
        await client.until(Begin)
        await attach(client, "log")
        await attach(client, "log", "r2", 1)
        await client.settle()
        await client.say(Flow(0, 1, 0, 100, echo=True))
        await client.heard(Flow)
        await other.accepted(await other.publish(LONG))
        assert (await transfer(client)).more
        # The other session waits, though its window is as wide, until nothing of this one does.
        assert await echoed(client, Flow(1, 0, 0, 100, echo=True)) == []
        assert await echoed(client, Flow(0, 1, 0, 100, echo=True), 1) == []
        await client.say(Flow(1, 100, 0, 100))
        assert [(await transfer(client)).more for _ in range(3)] == [True, True, False]
        assert (await transfer(client)).more
        await client.say(Flow(1, 100, 0, 100), channel=1)
        assert [(await transfer(client)).more for _ in range(3)] == [True, True, False]


async def test_a_drain_is_answered_behind_waiting_transfers(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as other, narrow(host) as client:
        await begin_long(other, client)
        await client.say(Flow(1, 1, 0, 100, 0, 1, 9, drain=True))
        assert (await transfer(client)).more
        await client.say(Flow(2, 100, 0, 100))
        assert [(await transfer(client)).more for _ in range(2)] == [True, False]
        flow = await client.heard(Flow)
        assert (flow.delivery_count, flow.link_credit) == (10, 0)


async def test_frames_that_wait_take_a_share_of_the_memory(store: Path) -> None:
    """When they exceed it, the client that has taken nothing for the longest time is closed."""
    size = 200_000
    async with (
        serving(store, memory_bytes=4 << 20) as host,
        opened(host.port) as other,
        narrow(host) as first,
        narrow(host) as second,
    ):
        memory = host.server.memory
        for handle, queue in enumerate(("first", "second")):
            await other.sender(queue, handle)
            await other.accepted(await other.publish_long(data(bytes(size)), handle))
        assert memory.stalled.limit < 2 * size
        await attach(first, "first")
        assert (await transfer(first)).more
        await eventually(lambda: memory.stalled.used > size - 2048)
        await attach(second, "second")
        assert (await transfer(second)).more
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await first.next()
        await eventually(lambda: size - 2048 < memory.stalled.used < memory.stalled.limit)
        await second.say(Flow(1, 1 << 20, 0, 100))
        while (await transfer(second)).more:
            pass
        await eventually(lambda: not memory.stalled.used)
        await second.settle()


async def test_a_window_that_ends_with_a_message_frees_its_share(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as other, narrow(host) as client:
        await begin_long(other, client)
        stalled = host.server.memory.stalled
        await eventually(lambda: stalled.used > 0)
        await client.say(Flow(1, 3, 0, 100))
        assert [(await transfer(client)).more for _ in range(3)] == [True, True, False]
        await eventually(lambda: not stalled.used)


async def test_frames_keep_their_share_until_they_have_left(store: Path) -> None:
    """A client opens its window, and reads nothing. The link that it detaches then frees the share."""
    size = 16 << 20  # more than the sockets take
    async with serving(store, fragment_octets=64 << 20) as host, opened(host.port) as other:  # in memory
        client = Peer((await host.open(receive_octets=4096)).stream)
        await client.open(window=1)
        await other.sender("short", 2)
        await other.accepted(await other.publish(data(b"y"), 2))
        await (await host.connect()).ask(
            b"(Declare long Broadcast Transient)"
        )  # the topic cannot give it again
        await other.sender("long", 1)
        await attach(client, "long")
        await client.settle()
        await client.say(Flow(0, 1, 0, 100))
        await other.accepted(await other.publish_long(data(bytes(size)), 1))
        assert (await transfer(client)).more
        await attach(client, "short", "r2", handle=1)
        stalled = host.server.memory.stalled
        await eventually(lambda: stalled.used >= size)
        await client.say(Flow(1, 1 << 20, 0, 100))
        terminals = host.server.terminals()
        await eventually(lambda: any(each.statistics().stalled_seconds for each in terminals))
        await eventually(lambda: stalled.used >= size)
        await client.say(Detach(0, closed=True))
        await client.until(Detach)
        assert (await transfer(client)).handle == 1
        await eventually(lambda: not stalled.used)


async def test_a_connection_that_is_cut_off_leaves_nothing_behind(store: Path) -> None:
    """The frames that waited are free at once."""
    with uncollected() as left:
        async with serving(store, memory_bytes=4 << 20) as host:
            async with opened(host.port) as other, narrow(host) as first, narrow(host) as second:
                for handle, (queue, client) in enumerate((("first", first), ("second", second))):
                    await other.sender(queue, handle)
                    await other.accepted(await other.publish_long(data(bytes(200_000)), handle))
                    await attach(client, queue)
                    assert (await transfer(client)).more
                with pytest.raises((EOFError, trio.BrokenResourceError)):
                    await first.next()
                await second.say(Close())
                await second.until(Close)
                await other.say(Close())
                await other.until(Close)
            await eventually(lambda: host.server.connections == 0)
            await eventually(lambda: not left())


@pytest.mark.parametrize("size", [900, 3000])
async def test_a_client_lowers_its_window_in_the_middle_of_a_message(
    store: Path, clock: MockClock, size: int
) -> None:
    """It takes nothing for a while then. What has left of the message is not sent again, and its rest
    follows.
    """
    bodies = [b"%03d" % number * (size // 3) for number in range(200)]
    async with sending_little(store) as host:
        client = Peer((await host.open(receive_octets=4096)).stream)
        await client.open(max_frame=1024)
        await client.receiver("jobs")
        omq = await host.connect()
        await omq.say(b"\n".join(b"(Publish jobs %s)" % body for body in bodies))
        await omq.settle()
        (reader,) = [each for each in host.server.terminals() if each.subscriptions()]
        await client.credit(len(bodies))
        await eventually(lambda: reader.statistics().is_sending)
        before = reader.statistics().octets_in
        await client.say(Flow(0, 1, 0, 1 << 20))
        await eventually(lambda: reader.statistics().octets_in > before)
        await pass_time(clock, 2 * SLOW_SECONDS)
        await client.say(Flow(0, 1 << 20, 0, 1 << 20))
        arrived = [await client.message() for _ in bodies]
    assert [each.delivery for each in arrived] == list(range(len(bodies)))
    assert [each.octets for each in arrived] == [data(body) for body in bodies]


async def test_a_client_drains_a_link_while_frames_of_another_one_wait(store: Path, clock: MockClock) -> None:
    """It takes nothing for a while, so these frames are made again: each is sent once, and the drain is
    answered.
    """
    body = b"".join([b"%05d" % number for number in range(40_000)])
    async with sending_little(store) as host:
        client = Peer((await host.open(receive_octets=4096)).stream)
        await client.open(max_frame=1024)
        await client.receiver("jobs")
        await client.receiver("empty", 1)
        omq = await host.connect()
        await omq.say(b"(Publish jobs %s)" % body)
        await omq.settle()
        (reader,) = [each for each in host.server.terminals() if each.subscriptions()]
        await client.say(Flow(0, 140, 0, 1 << 20, 0, 0, 1))  # a window for two thirds of the message
        await eventually(lambda: reader.statistics().is_sending)
        before = reader.statistics().octets_in
        await client.say(Flow(0, 140, 0, 1 << 20, 1, 0, 9, drain=True))
        await eventually(lambda: reader.statistics().octets_in > before)
        await pass_time(clock, 2 * SLOW_SECONDS)
        await client.say(Flow(0, 1 << 20, 0, 1 << 20))
        message, drained, more = b"", [], True
        while more or not drained:
            said, octets = await client.next()
            if isinstance(said, Flow):
                drained.append((said.handle, said.delivery_count, said.link_credit, said.drain))
            else:
                assert isinstance(said, Transfer)
                message, more = message + octets, said.more
    assert message == data(body)
    assert drained == [(1, 9, 0, True)]


async def test_a_flow_tells_the_transfers_that_have_left_before_it(store: Path, clock: MockClock) -> None:
    """The client asks for it while it takes nothing, and some of the messages return to their queue."""
    async with sending_little(store) as host:
        client = Peer((await host.open(receive_octets=4096)).stream)
        await client.open()
        await client.receiver("jobs")
        omq = await host.connect()
        await omq.say(b"\n".join([b"(Publish jobs %s)" % (b"x" * 3000)] * 200))
        await omq.settle()
        (reader,) = [each for each in host.server.terminals() if each.subscriptions()]
        await client.credit(200)
        await eventually(lambda: reader.statistics().is_sending)
        before = reader.statistics().octets_in
        await client.say(Flow(0, 1 << 20, 0, 1 << 20, 0, 0, 200, echo=True))
        await eventually(lambda: reader.statistics().octets_in > before)
        await pass_time(clock, 2 * SLOW_SECONDS)
        heard: list[object] = []
        while not isinstance(said := (await client.next())[0], Flow):
            heard.append(said)
        assert all(isinstance(each, Transfer) for each in heard)
        assert (said.next_outgoing_id, said.delivery_count) == (len(heard), len(heard))


async def test_a_client_lowers_its_credit_while_a_long_message_is_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = data(bytes(2 << 20))
    reads, has_flowed = trio.Event(), threading.Event()
    open_message, flowed = LargeBodies.open_message, SendingLink.flowed

    def slow(self: LargeBodies, topic: int, message: int) -> LargeMessage | None:
        trio.from_thread.run_sync(reads.set)
        assert has_flowed.wait(60)
        return open_message(self, topic, message)

    def note(self: SendingLink, flow: Flow) -> None:
        flowed(self, flow)
        if not flow.link_credit:
            has_flowed.set()

    async with serving(store) as host, opened(host.port) as client:
        principal = await host.connect()
        await principal.ask(b"(Declare long Round_robin (Persistent Weak))")
        await client.sender("long")
        await client.accepted(await client.publish_long(message))
    # Not in memory after a restart.
    async with serving(store) as host, opened(host.port) as client:
        monkeypatch.setattr(LargeBodies, "open_message", slow)
        monkeypatch.setattr(SendingLink, "flowed", note)
        await client.receiver("long", credit=1)
        await reads.wait()
        await client.say(Flow(0, 1 << 20, 0, 1 << 20, 0, 0, 0, echo=True))
        said, _ = await client.next()
        assert isinstance(said, Flow)
        assert (said.delivery_count, said.link_credit) == (0, 0)
        await client.credit(1)
        assert (await client.message()).octets == message


@pytest.mark.parametrize("drains", [True, False])
async def test_a_client_states_its_credit_again_while_a_drain_is_in_progress(
    store: Path, *, drains: bool
) -> None:
    """It gets all messages of the later credit: the end of the earlier drain gives nothing of it back."""
    async with serving(store) as host, opened(host.port) as other, opened(host.port) as client:
        await other.sender("q")
        await other.publish_long(data(b"x" * 16_000_000))
        for _ in range(4):
            last = await other.publish(data(b"x"))
        await other.accepted(last)
        await client.receiver("q")
        await client.credit(1, drain=True)
        assert (await client.until(Transfer)).more
        await client.credit(6 if drains else 5, drain=drains)
        whole = 0
        while whole < 5:
            whole += not (await client.heard(Transfer)).more
        if drains:
            flow = await client.heard(Flow)
            assert (flow.delivery_count, flow.link_credit, flow.drain) == (6, 0, True)
