"""Round-robin topics: every message goes to exactly one subscriber, in turn.

See docs/PROTOCOL.md, "Round-robin".
"""

from pathlib import Path

import pytest
import trio
from quietness import quiet
from trio.testing import MockClock

from omq.model import Topic
from omq.protocol.omq.types import Confirmed, Deleted, Error, Message, Unsubscribed

from .conversation import (
    EVERY,
    Conversation,
    declared,
    eventually,
    numbered,
    publish,
    serving,
)
from .dmp_conversation import envelopes, sink, stored
from .round_robin_workers import received, worker
from .stalled_readers import sending_little, stall

MIB = 1 << 20


@EVERY
async def test_plain_subscribers_get_messages_strictly_in_turn(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        workers = [await worker(host) for _ in range(3)]
        # In one segment and in many: the turn goes on over the end of a block.
        await publisher.send(publish(b"t", numbered(1, 100)))
        await publisher.confirm()
        for number in range(101, 121):
            await publisher.send(publish(b"t", numbered(number, number)))
            await publisher.confirm()
        for index, client in enumerate(workers):
            mine = list(range(index + 1, 121, 3))
            messages = await client.messages(len(mine))
            assert [message.id for message in messages] == mine
            assert [message.body for message in messages] == [b"%d" % id for id in mine]


@EVERY
async def test_workers_with_credit_get_messages_strictly_in_turn(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        workers = [await worker(host, credit=2) for _ in range(3)]
        await publisher.send(publish(b"t", numbered(1, 30)))
        for start in range(1, 31, 3):
            for index, client in enumerate(workers):
                message = await client.message()
                assert (message.id, message.body) == (start + index, b"%d" % (start + index))
            for index, client in enumerate(workers):
                await received(client, [start + index])


@EVERY
async def test_credit_bounds_unconfirmed_messages(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        client = await worker(host, credit=3)
        await publisher.send(publish(b"t", numbered(1, 10)))
        await publisher.confirm()
        assert await client.ids(3) == [1, 2, 3]
        await client.confirm()  # nothing more came: this is the next frame
        await client.say(b"(Received t 2)")
        assert await client.ids(1) == [4]
        await client.confirm()
        await client.say(b"(Received t 1)", b"(Received t 3)")
        assert await client.ids(2) == [5, 6]
        # Less credit than is outstanding: nothing more until enough is confirmed.
        await client.say(b"(Request t 1)", b"(Received t 4)", b"(Received t 5)")
        await client.confirm()
        await client.say(b"(Received t 6)")
        assert await client.ids(1) == [7]
        await client.say(b"(Request t 0)", b"(Received t 7)")
        await client.confirm()
        await client.say(b"(Request t 100)")
        assert await client.ids(3) == [8, 9, 10]


async def test_request_after_subscribe_makes_written_messages_unconfirmed(
    store: Path,
) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin (Persistent Weak)")
        client = await worker(host)
        await publisher.send(publish(b"t", numbered(1, 2)))
        assert await client.ids(2) == [1, 2]
        await client.say(b"(Request t 1)")
        await client.confirm()
        await publisher.send(publish(b"t", numbered(3, 4)))
        assert await client.ids(1) == [3]
        await client.confirm()
        # Messages that were written before the Request were done then.
        assert (await client.refusal(b"(Received t 1)")).startswith(b"Received t: ")
        await client.say(b"(Received t 3)")
        assert await client.ids(1) == [4]


@pytest.mark.parametrize("id", [4, 0, -1, 1 << 40])
async def test_received_for_a_message_not_outstanding_is_refused(store: Path, id: int) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin Transient")
        first, second = await worker(host, credit=2), await worker(host, credit=2)
        await publisher.send(publish(b"t", numbered(1, 4)))
        assert await first.ids(2) == [1, 3]
        assert await second.ids(2) == [2, 4]
        refusal = await first.refusal(b"(Received t %d)" % id)
        assert refusal.startswith(b"Received t: ")
        assert str(id).encode() in refusal
        await received(first, [1])
        assert (await first.refusal(b"(Received t 1)")).startswith(b"Received t: ")  # twice
        await received(second, [4])


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
async def test_many_receiveds_in_one_read_are_answered_one_by_one(store: Path, persistence: bytes) -> None:
    count = 3000
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        client = await worker(host, credit=count)
        await publisher.send(publish(b"t", numbered(1, count + 2)))
        assert await client.ids(count) == list(range(1, count + 1))
        unknown = range(2 * count, 3 * count - 1)
        pairs = zip(range(1, count), unknown, strict=True)
        await client.send(b"".join(b"(Received t %d)\n(Received t %d)\n" % pair for pair in pairs))
        freed = []
        for id in unknown:
            frame = await client.frame()
            while isinstance(frame, Message):
                freed.append(frame.id)
                frame = await client.frame()
            assert isinstance(frame, Error)
            assert frame.text == b"Received t: message %d is not waiting to be confirmed here" % id
        assert freed + await client.ids(2 - len(freed)) == [count + 1, count + 2]
        await client.send(b"".join(b"(Received nobody %d)\n" % id for id in range(100)))
        for _ in range(100):
            assert await client.error() == b"Received nobody: this connection is not subscribed"
        assert (await client.topics())[b"t"].messages == 3


async def test_request_and_received_where_they_do_not_belong(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin (Persistent Weak)")
        await client.ask(b"(Declare everybody Broadcast (Persistent Weak))")
        await client.ask(b"(Subscribe everybody From_current)")
        for command, start in (
            (b"(Request nobody 1)", b"Request nobody: "),
            (b"(Request everybody 1)", b"Request everybody: "),
            (b"(Request t -1)", b"Request t: "),
            (b"(Received nobody 1)", b"Received nobody: "),
            (b"(Received everybody 1)", b"Received everybody: "),
            (b"(Received t 1)", b"Received t: "),
        ):
            assert (await client.refusal(command)).startswith(start), command
        await client.ask(b"(Subscribe t From_current)")
        await client.say(b"(Publish t 1)")
        assert await client.ids(1) == [1]
        assert (await client.refusal(b"(Received t 1)")).startswith(b"Received t: ")  # without a Request


@pytest.mark.parametrize("replay", [b"From_beginning", b"(From_message 1)"])
@EVERY
async def test_a_round_robin_topic_cannot_be_replayed(store: Path, persistence: bytes, replay: bytes) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin " + persistence)
        await client.say(b"(Publish t 1)")
        assert (await client.refusal(b"(Subscribe t %s)" % replay)).startswith(b"Subscribe t: ")
        assert (await client.topics())[b"t"].subscribers == 0
        # The message still waits for one who may have it.
        await client.ask(b"(Subscribe t From_current)")
        assert await client.ids(1) == [1]


@EVERY
async def test_messages_wait_for_a_subscriber(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        await publisher.send(publish(b"t", numbered(1, 500)))
        await publisher.confirm()
        client = await worker(host)
        assert await client.bodies(500) == numbered(1, 500)
        await publisher.send(publish(b"t", numbered(501, 510)))
        assert await client.bodies(10) == numbered(501, 510)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@EVERY
async def test_a_lost_worker_returns_its_unconfirmed_messages_to_others(
    store: Path, persistence: bytes, reset: bool
) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        lost = await worker(host, credit=10)
        await publisher.send(publish(b"t", numbered(1, 10)))
        assert await lost.ids(10) == list(range(1, 11))
        await received(lost, [1, 2, 5])
        other = await worker(host, credit=100)
        await other.confirm()
        if reset:
            lost.reset()
        else:
            lost.close()
        messages = await other.messages(7)
        assert sorted(message.id for message in messages) == [3, 4, 6, 7, 8, 9, 10]
        assert all(message.body == b"%d" % message.id for message in messages)
        await other.confirm()  # and nothing else


@EVERY
async def test_unsubscribing_gives_back_unconfirmed_messages(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        leaving, other = await worker(host, credit=2), await worker(host, credit=2)
        await publisher.send(publish(b"t", numbered(1, 4)))
        assert await leaving.ids(2) == [1, 3]
        assert await other.ids(2) == [2, 4]
        assert await leaving.ask(b"(Unsubscribe t)") == Unsubscribed(Topic(0, b"t"))
        assert (await leaving.refusal(b"(Received t 1)")).startswith(b"Received t: ")
        await other.say(b"(Received t 2)", b"(Received t 4)")
        assert sorted(await other.ids(2)) == [1, 3]


@EVERY
async def test_a_plain_subscriber_gets_a_message_at_most_once(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        first = await worker(host)
        await publisher.send(publish(b"t", numbered(1, 10)))
        assert await first.ids(10) == list(range(1, 11))
        first.close()
        await eventually(lambda: host.connections == 1)
        second = await worker(host)
        await publisher.send(publish(b"t", numbered(11, 12)))
        assert await second.ids(2) == [11, 12]


async def publish_all(publisher: Conversation, count: int, together: int) -> None:
    """Publish N `count` messages of 16 KB, some `together`, and wait until all are confirmed."""
    for first in range(1, count + 1, together):
        bodies = [b"%d " % n + b"x" * 16000 for n in range(first, first + together)]
        await publisher.send(publish(b"t", bodies))
    await publisher.confirm()


@EVERY
async def test_a_plain_subscriber_that_stops_reading_loses_only_written_messages(
    store: Path, persistence: bytes
) -> None:
    count = 1500
    async with serving(store, memory_bytes=256 * MIB) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        stuck = await worker(host, receive_octets=4096)
        other = await worker(host)
        got: list[int] = []

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_all, publisher, count, 50)
            # Half of what is dealt at first waits for the stuck one; all the rest must come here.
            while len(got) < count // 2:
                got.append((await other.message()).id)
        for _ in range(5):
            await stuck.message()
        # It is reset with much unread: what did not go to its socket whole comes here.
        stuck.reset()
        while not got or max(got) < count:
            got.append((await other.message()).id)
        await eventually(lambda: host.connections == 2)
        await publisher.say(b"(Publish t last)")
        while (message := await other.message()).body != b"last":
            got.append(message.id)
        assert len(set(got)) == len(got), "a message came twice"
        # Its kernel buffers hold a few MiB at the most.
        missing = set(range(1, count + 1)) - set(got)
        assert 5 <= len(missing) < count // 2


async def test_what_a_client_has_not_taken_when_it_unsubscribed_goes_to_others(
    store: Path, clock: MockClock
) -> None:
    """The messages that were sent at once go, too: its connection has them, and no subscription any more."""
    count = 10_000
    async with sending_little(store) as host:
        publisher = await declared(host, b"Round_robin Transient")
        stuck = await worker(host, receive_octets=4096)
        await publisher.send(publish(b"t", numbered(1, count)))
        await publisher.confirm()
        await stuck.say(b"(Unsubscribe t)")
        while (await publisher.topics())[b"t"].subscribers:
            await trio.lowlevel.checkpoint()
        other = await worker(host)
        await stall(clock, host, 1)
        got = [(await other.message()).id]
        while got[-1] < count:
            got.append((await other.message()).id)
        first = got[0]
        assert got == list(range(first, count + 1))
        assert [message.id for message in await stuck.messages(first - 1)] == list(range(1, first))
        assert isinstance(await stuck.frame(), Unsubscribed)


@EVERY
async def test_a_long_job_of_one_worker_does_not_stop_the_others(store: Path, persistence: bytes) -> None:
    count = 600
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        busy, other = await worker(host, credit=1), await worker(host, credit=10)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_all, publisher, count, 20)
            assert await busy.ids(1) == [1]
            # More than fits into memory passes, while message 1 is being worked on.
            for expected in range(2, count + 1):
                assert await other.ids(1) == [expected]
                await other.say(b"(Received t %d)" % expected)
        busy.close()
        assert await other.ids(1) == [1]


async def test_jobs_at_work_in_many_topics_are_bounded(store: Path) -> None:
    topics, body = 12, b"x" * (MIB // 2)
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        publisher, client = await host.connect(), await host.connect()
        for number in range(topics):
            await publisher.ask(b"(Declare t%d Round_robin Transient)" % number)
            await client.ask(b"(Subscribe t%d From_current)" % number)
            await client.say(b"(Request t%d 1)" % number)
        await client.confirm()
        waiting = host.server.memory.waiting
        async with trio.open_nursery() as nursery:
            for number in range(topics):
                another = await host.connect()
                nursery.start_soon(another.send, publish(b"t%d" % number, [body]))
            for _ in range(topics):
                message = await client.message()
                assert waiting.used <= 2 * waiting.limit + len(body) + 17
                await client.say(b"(Received t%d %d)" % (message.topic, message.id))


async def test_a_publisher_that_ends_while_it_waits_is_noticed_when_there_is_room(store: Path) -> None:
    count = 0
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        publisher = await declared(host, b"Round_robin Transient")
        driver = host.server.catalogue.by_name[b"t"]
        while not driver.statistics().waiting_publishers:
            await publisher.send(publish(b"t", [b"x" * 16_000]))
            await quiet()
            count += 1
        publisher.close()
        other = await host.connect()
        await other.settle()
        assert host.connections == 2
        assert await (await worker(host)).ids(count) == [*range(1, count + 1)]
        await eventually(lambda: host.connections == 2)


async def test_a_transient_topic_holds_publishers_back_while_it_is_full(store: Path) -> None:
    count = 2000
    bodies = [b"%d " % n + b"x" * 16000 for n in range(1, count + 1)]
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        publisher = await declared(host, b"Round_robin Transient")
        observer = await host.connect()
        confirmed = False

        async def publish_all() -> None:
            nonlocal confirmed
            for first in range(0, count, 20):
                await publisher.send(publish(b"t", bodies[first : first + 20]))
            await publisher.confirm()
            confirmed = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_all)
            await eventually(lambda: host.memory_used > host.server.memory.waiting_octets // 2)
            # Others publish meanwhile.
            await observer.say(b"(Publish elsewhere 1)")
            await observer.confirm()
            info = (await observer.topics())[b"t"]
            assert 0 < info.messages < count
            assert info.bytes <= 4 * MIB
            client = await worker(host)
            for n in range(count):
                assert (await client.message()).body == bodies[n]
        assert confirmed
        await eventually(lambda: host.memory_used == 0)
        assert (await observer.topics())[b"t"].messages == 0


async def test_publishers_of_a_full_transient_topic_may_leave(store: Path) -> None:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        observer = await declared(host, b"Round_robin Transient")
        publishers = [await host.connect() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for publisher in publishers:
                nursery.start_soon(_publish_until_stopped, publisher)
            await eventually(lambda: host.memory_used > host.server.memory.waiting_octets // 2)
            assert await observer.ask(b"(Delete t)") == Deleted(Topic(0, b"t"))
            nursery.cancel_scope.cancel()
        for publisher in publishers:
            publisher.reset()
        await eventually(lambda: host.connections == 1)
        await observer.ask(b"(Delete t)")  # one of them may have made it again
        await eventually(lambda: host.memory_used == 0)


async def _publish_until_stopped(publisher: Conversation) -> None:
    while True:
        await publisher.stream.send_all(publish(b"t", [b"x" * 16000] * 20))


@EVERY
async def test_deleting_ends_the_workers_subscriptions(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        workers = [await worker(host, credit=1), await worker(host)]
        await publisher.send(publish(b"t", numbered(1, 50)))
        for client in workers:
            await client.message()
        assert await publisher.ask(b"(Delete t)") == Deleted(Topic(0, b"t"))
        while not isinstance(frame := await workers[1].frame(), Unsubscribed):
            pass
        assert frame == await workers[0].frame() == Unsubscribed(Topic(0, b"t"))
        assert await publisher.topics() == {}
        assert host.memory_used == 0


async def check_that_credit_ended(publisher: Conversation, client: Conversation) -> None:
    """Check that another topic of the name gives a client more messages than its earlier credit allowed."""
    await publisher.ask(b"(Declare t Round_robin Transient)")
    await client.ask(b"(Subscribe t From_current)")
    await publisher.send(publish(b"t", numbered(1, 3)))
    assert await client.ids(3) == [1, 2, 3]


async def test_credit_ends_with_the_topic_it_was_given_for(store: Path) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin Transient")
        client = await worker(host, credit=1)
        await publisher.ask(b"(Delete t)")
        assert isinstance(await client.frame(), Unsubscribed)
        await check_that_credit_ended(publisher, client)


async def test_credit_given_before_subscribing_ends_with_its_topic_too(store: Path) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin Transient")
        client = await host.connect()
        await client.say(b"(Request t 1)")
        await client.confirm()
        assert isinstance(await publisher.ask(b"(Delete t)"), Deleted)
        await check_that_credit_ended(publisher, client)


async def test_a_worker_that_half_closes_gets_its_dealt_messages(store: Path) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin (Persistent Weak)")
        client = await worker(host, credit=5)
        await publisher.send(publish(b"t", numbered(1, 10)))
        await publisher.confirm()
        assert await client.ids(5) == [1, 2, 3, 4, 5]
        await client.say(b"(Received t 1)", b"(Confirm 9)")
        await client.done()
        assert Confirmed(9) in await client.rest()
        other = await worker(host, credit=100)
        assert sorted(await other.ids(9)) == [2, 3, 4, 5, 6, 7, 8, 9, 10]


async def test_a_topic_without_workers_leaves_room_for_others(store: Path) -> None:
    """However much waits there, a message to another with a worker passes, also a large one."""
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=2 * MIB) as host:
        client = await declared(host, b"Round_robin Transient")
        worker_of_t = await worker(host)
        async with trio.open_nursery() as nursery:
            for name in (b"full", b"brimful", b"filled", b"packed", b"crammed"):
                publisher = await host.connect()
                await publisher.ask(b"(Declare %s Round_robin Transient)" % name)
                nursery.start_soon(publisher.send, publish(name, [b"x" * 1000] * 20_000))
            memory = host.server.memory
            await eventually(lambda: bool(memory.publisher_queues))
            await client.send(publish(b"t", [b"y" * 700_000, b"z"]))
            assert len((await worker_of_t.message()).body) == 700_000
            assert (await worker_of_t.message()).body == b"z"
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ends", ["the worker leaves", "the server stops"])
async def test_large_messages_that_a_worker_did_not_take_go_to_others(store: Path, ends: str) -> None:
    """Messages that were dealt to it stay in the store until they are sent. Messages of another topic fill
    its socket.
    """
    async with serving(store) as host:
        client = await declared(host, b"Round_robin (Persistent Weak)")
        connection = await sink(host, client)
        await connection.send(envelopes([b"%d" % number * (3 * MIB // 2) for number in range(5)]))
        assert await stored(connection) == 5
        await client.send(publish(b"other", [b"x" * (MIB // 2)] * 20))
        await client.confirm()
    async with serving(store) as host:
        client, slow = await host.connect(), await host.connect(receive_octets=4096)
        await slow.say(b"(Subscribe other From_beginning)")
        await slow.stream.receive_some(1)
        await slow.say(b"(Request t 5)", b"(Subscribe t From_current)")
        while not (await client.topics())[b"t"].subscribers:
            pass
        if ends == "the worker leaves":
            slow.close()
            eager = await worker(host, 5)
            assert sorted(await eager.ids(5)) == [1, 2, 3, 4, 5]
    async with serving(store) as host:
        eager = await worker(host, 5)
        assert sorted(await eager.ids(5)) == [1, 2, 3, 4, 5]
