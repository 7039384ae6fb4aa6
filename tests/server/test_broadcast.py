"""Broadcast topics: every subscriber gets every message, in order, replayed and live.

See docs/PROTOCOL.md, "Broadcast".
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from omq.drivers.seam import SLOW_SECONDS
from omq.model import Topic
from omq.protocol.omq.types import Error, Message, Subscribed, Unsubscribed

from .conversation import (
    EVERY,
    STORED,
    Conversation,
    InProcess,
    declared,
    eventually,
    numbered,
    publish,
    serving,
    tidied,
)

MIB = 1 << 20


async def subscribed(
    host: InProcess, replay: bytes = b"From_current", topic: bytes = b"t", receive_octets: int | None = None
) -> Conversation:
    """Return a connection whose subscription was answered."""
    client = await host.connect(receive_octets)
    answer = await client.ask(b"(Subscribe %s %s)" % (topic, replay))
    assert isinstance(answer, Subscribed), answer
    return client


@EVERY
async def test_every_subscriber_gets_every_message_in_order(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        subscribers = [await subscribed(host) for _ in range(3)]
        bodies = numbered(1, 3000)
        for start in range(0, 3000, 700):
            await publisher.send(publish(b"t", bodies[start : start + 700]))
        await publisher.confirm()
        for subscriber in subscribers:
            received = await subscriber.messages(3000)
            assert [message.id for message in received] == list(range(1, 3001))
            assert [message.body for message in received] == bodies


@EVERY
async def test_publishers_keep_their_order_and_share_the_ids(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publishers = [await declared(host, b"Broadcast " + persistence) for _ in range(4)]
        subscriber = await subscribed(host)

        async def publish_some(number: int) -> None:
            for index in range(100):
                await publishers[number].send(b"(Publish t %d-%03d)\n" % (number, index))
                await trio.lowlevel.checkpoint()
            await publishers[number].confirm()

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(publish_some, number)
        received = await subscriber.messages(400)
        assert [message.id for message in received] == list(range(1, 401))
        for number in range(4):
            own = [message.body for message in received if message.body.startswith(b"%d-" % number)]
            assert own == [b"%d-%03d" % (number, index) for index in range(100)]


async def test_topics_of_one_connection_have_ids_and_orders_of_their_own(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        names: dict[int, bytes] = {}
        for name in (b"a", b"b", b"c"):
            answer = await client.ask(b"(Subscribe %s From_current)" % name)
            assert isinstance(answer, Subscribed)
            names[answer.topic.id] = answer.topic.topic
        assert list(names.values()) == [b"a", b"b", b"c"]
        await client.send(
            b"".join(b"(Publish %s %d)\n" % (name, n) for n in range(50) for name in names.values())
        )
        received = await client.messages(150)
        for topic in names:
            own = [(message.id, message.body) for message in received if message.topic == topic]
            assert own == [(n + 1, b"%d" % n) for n in range(50)]


@EVERY
async def test_from_current_begins_with_the_next_message(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        await publisher.say(b"(Publish t before)")
        await publisher.confirm()
        subscriber = await subscribed(host)
        await publisher.say(b"(Publish t after)")
        assert await subscriber.message() == Message(2, 0, b"after")


@STORED
async def test_replay_begins_where_it_is_asked_to(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        for first in (1, 101, 201):  # several blocks, so that a replay begins at, in and after one
            await publisher.send(publish(b"t", numbered(first, first + 99)))
            await publisher.confirm()
        for replay, first in (
            (b"From_beginning", 1),
            (b"(From_message 1)", 1),
            (b"(From_message 100)", 100),
            (b"(From_message 101)", 101),
            (b"(From_message 150)", 150),
            (b"(From_message 300)", 300),
        ):
            subscriber = await subscribed(host, replay)
            received = await subscriber.messages(301 - first)
            assert [message.id for message in received] == list(range(first, 301)), replay
            assert [message.body for message in received] == numbered(first, 300), replay
        waiting = await subscribed(host, b"(From_message 301)")
        await publisher.say(b"(Publish t 301)")
        assert await waiting.message() == Message(301, 0, b"301")


@STORED
async def test_an_empty_topic_can_be_replayed(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        subscribers = [await subscribed(host, replay) for replay in (b"From_beginning", b"(From_message 1)")]
        await publisher.say(b"(Publish t first)")
        for subscriber in subscribers:
            assert await subscriber.message() == Message(1, 0, b"first")


@pytest.mark.parametrize("message", [0, -1, 12, 1 << 62, -(1 << 63)])
async def test_replay_from_no_message_is_refused(store: Path, message: int) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await client.send(publish(b"t", numbered(1, 10)))
        await client.confirm()
        refusal = await client.refusal(b"(Subscribe t (From_message %d))" % message)
        assert refusal.startswith(b"Subscribe t: "), refusal
        assert (await client.topics())[b"t"].subscribers == 0
        # The connection is as good as before.
        assert isinstance(await client.ask(b"(Subscribe t (From_message 11))"), Subscribed)


@pytest.mark.parametrize("replay", [b"From_beginning", b"(From_message 1)"])
async def test_a_transient_topic_cannot_be_replayed(store: Path, replay: bytes) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast Transient")
        await client.say(b"(Publish t 1)")
        refusal = await client.refusal(b"(Subscribe t %s)" % replay)
        assert refusal.startswith(b"Subscribe t: ")
        assert (await client.topics())[b"t"].subscribers == 0
        await client.say(b"(Publish t 2)")
        await client.confirm()  # and no message came first


@STORED
async def test_replay_and_live_join_while_a_publisher_is_running(store: Path, persistence: bytes) -> None:
    count = 4000
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        published = 0

        async def keep_publishing() -> None:
            nonlocal published
            while published < count:
                await publisher.send(publish(b"t", numbered(published + 1, published + 20)))
                await publisher.confirm()
                published += 20

        async def replay(begin_at: int, command: bytes, first: int) -> None:
            await eventually(lambda: published >= begin_at)
            subscriber = await subscribed(host, command)
            received = await subscriber.messages(count + 1 - first)
            assert [message.id for message in received] == list(range(first, count + 1))
            assert [message.body for message in received] == numbered(first, count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_publishing)
            for begin_at in (100, 1000, 2000, 3500):
                nursery.start_soon(replay, begin_at, b"From_beginning", 1)
                nursery.start_soon(replay, begin_at, b"(From_message %d)" % (begin_at - 7), begin_at - 7)


async def publish_numbered(publisher: Conversation, count: int, body: bytes) -> None:
    """Publish messages that begin with their number in five digits, and wait until they are confirmed."""
    for first in range(0, count, 50):
        await publisher.send(publish(b"t", [b"%05d" % n + body for n in range(first, first + 50)]))
    await publisher.confirm()


async def receive_numbered(subscriber: Conversation, count: int) -> None:
    """Receive the messages that `publish_numbered` publishes."""
    for number in range(count):
        message = await subscriber.message()
        assert (message.id, message.body[:5]) == (number + 1, b"%05d" % number)


@pytest.mark.parametrize("persistence", [b"(Persistent Weak)", b"(Persistent Strong)"])
async def test_a_subscriber_that_stops_reading_finds_everything_in_the_store(
    store: Path, persistence: bytes
) -> None:
    count, size = 1600, 16 << 10  # six times what the server may hold in memory
    body = b"x" * (size - 5)
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        slow = await subscribed(host, receive_octets=4096)
        quick = await subscribed(host)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_numbered, publisher, count, body)
            # The others get everything while the slow one reads nothing at all.
            await receive_numbered(quick, count)
        assert host.memory_used == 0
        for number in range(count):
            message = await slow.message()
            assert (message.id, message.body) == (number + 1, b"%05d" % number + body)
        await publisher.say(b"(Publish t live)")
        assert (await slow.message()).body == (await quick.message()).body == b"live"


async def test_messages_to_one_subscriber_do_not_count_for_another_in_the_middle_of_its_own(
    store: Path,
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        for topic, bodies in ((b"many", [b"%d" % n * 1000 for n in range(1000)]), (b"few", [b"x"] * 5)):
            await client.ask(b"(Declare %s Broadcast (Persistent Weak))" % topic)
            await client.send(publish(topic, bodies))
        await client.confirm()
        slow = await host.connect(receive_octets=4096)
        assert isinstance(await slow.ask(b"(Subscribe many From_beginning)"), Subscribed)
        await eventually(
            lambda: any(terminal.statistics().is_sending for terminal in host.server.terminals())
        )
        fast = await host.connect()
        assert isinstance(await fast.ask(b"(Subscribe few From_beginning)"), Subscribed)
        assert await fast.ids(5) == [1, 2, 3, 4, 5]
        assert await slow.ids(1000) == list(range(1, 1001))
        await client.send(publish(b"many", [b"last"]))
        assert await slow.ids(1) == [1001]
        assert sorted(terminal.statistics().messages_out for terminal in host.server.terminals()) == [
            0, 5, 1001,
        ]  # fmt: skip


async def test_stalled_replays_hold_none_of_the_memory_for_replays(store: Path, clock: MockClock) -> None:
    """They go on where they were, in the middle of a message, when they read again."""
    count = 20_000
    bodies = [b"%d " % n + b"x" * (n % 997) for n in range(count)]
    async with serving(store, memory_bytes=64 * MIB, missed_pings=0) as host:
        publisher = await declared(host, b"Broadcast (Persistent Weak)")
        await publisher.send(publish(b"t", bodies))
        await publisher.confirm()
        replayed = host.server.memory.replayed
        stalled = [await host.connect(receive_octets=4096) for _ in range(5)]
        for client in stalled:
            await client.say(b"(Subscribe t From_beginning)")
        await eventually(lambda: replayed.used > 0)
        await stall(clock, lambda: replayed.used == 0)

        async def read_all(client: Conversation) -> None:
            await client.frame()
            for number, body in enumerate(bodies, 1):
                message = await client.message()
                assert (message.id, message.body) == (number, body)
                if number == count // 2:
                    clock.jump(SLOW_SECONDS)  # a client in the middle of a message stalls again

        async with trio.open_nursery() as nursery:
            for client in stalled:
                nursery.start_soon(read_all, client)
        await eventually(lambda: replayed.used == 0)


async def stall(clock: MockClock, is_over: Callable[[], bool]) -> None:
    """Let time pass for those who wait for somebody that does not read, until that is over."""
    while not is_over():
        clock.jump(SLOW_SECONDS)
        await trio.testing.wait_all_tasks_blocked()


async def test_a_slow_subscriber_of_a_transient_topic_hears_of_missed_messages(store: Path) -> None:
    count, size = 1600, 16 << 10
    body = b"x" * (size - 5)
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB, spool_bytes=0) as host:
        publisher = await declared(host, b"Broadcast Transient")
        slow = await subscribed(host, receive_octets=4096)
        quick = await subscribed(host)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_numbered, publisher, count, body)
            # One that keeps reading loses nothing.
            await receive_numbered(quick, count)
        next_id, gaps = 1, 0
        while next_id <= count:
            frame = await slow.frame()
            match frame:
                case Message(id, _, received):
                    assert (id, received[:5]) == (next_id, b"%05d" % (id - 1))
                    next_id += 1
                case Error(text):
                    # Subscribe t: messages FIRST to LAST are gone: ...
                    assert text.startswith(b"Subscribe t: messages %d to " % next_id), text
                    next_id = int(text.split()[5]) + 1
                    gaps += 1
                case _:
                    pytest.fail(f"{frame}")
        assert gaps >= 1
        await publisher.say(b"(Publish t live)")
        assert (await slow.message()).body == (await quick.message()).body == b"live"


async def test_a_stalled_subscriber_does_not_hold_a_lone_publisher_for_ever(store: Path) -> None:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        publisher = await declared(host, b"Broadcast Transient")
        await subscribed(host, receive_octets=4096)
        for first in range(0, 1000, 50):
            await publisher.send(publish(b"t", [b"%05d" % n + bytes(8000) for n in range(first, first + 50)]))
        await publisher.confirm()


async def test_unsubscribed_is_the_last_that_is_heard_of_a_topic(store: Path) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast (Persistent Weak)")
        client = await subscribed(host)
        await publisher.send(publish(b"t", numbered(1, 1000)))
        await client.message()
        await client.say(b"(Unsubscribe t)")
        while isinstance(frame := await client.frame(), Message):
            pass
        assert frame == Unsubscribed(Topic(0, b"t"))
        await publisher.send(publish(b"t", numbered(1001, 1100)))
        await publisher.confirm()
        await client.confirm()
        assert (await client.topics())[b"t"].subscribers == 0
        # And it may come back.
        assert await client.ask(b"(Subscribe t (From_message 1100))") == Subscribed(Topic(0, b"t"))
        assert await client.message() == Message(1100, 0, b"1100")


async def test_a_second_subscription_to_the_same_topic_is_refused(store: Path) -> None:
    async with serving(store) as host:
        client = await subscribed(host)
        refusal = await client.refusal(b"(Subscribe t From_current)")
        assert refusal.startswith(b"Subscribe t: ")
        await client.say(b"(Publish t once)")
        assert await client.message() == Message(1, 0, b"once")
        await client.confirm()


async def test_a_publisher_hears_of_its_own_messages_only_when_it_subscribes(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.send(publish(b"t", numbered(1, 10)))
        await client.confirm()
        await client.done()
        await client.ended()


@STORED
async def test_replay_below_the_oldest_kept_says_which_messages_are_gone(
    store: Path, persistence: bytes, clock: MockClock
) -> None:
    async with serving(store, retention_bytes=MIB, missed_pings=0) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        for first in range(1, 201, 10):
            await publisher.send(publish(b"t", [b"%d " % n + b"x" * 16000 for n in range(first, first + 10)]))
            await publisher.confirm()
        info = await tidied(publisher, clock, b"t", lambda info: info.bytes <= MIB)
        assert info.last == 200
        assert 1 < info.first <= 200
        assert info.messages == 201 - info.first
        early = await subscribed(host, b"(From_message 1)")
        text = await early.error()
        assert text.startswith(b"Subscribe t: messages 1 to %d are gone" % (info.first - 1)), text
        assert await early.ids(info.messages) == list(range(info.first, 201))
        beginning = await subscribed(host, b"From_beginning")
        assert await beginning.ids(info.messages) == list(range(info.first, 201))
