"""A connection that publishes and consumes never waits for itself: docs/PROTOCOL.md, "When the server waits".

All of this is done with the least memory that a server may have.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from garbage import uncollected

from omq.model import Topic
from omq.protocol.omq.types import Confirmed, Declared, Error, Frame, Message, Subscribed

from .conversation import PATIENCE, Conversation, InProcess, declared, eventually, numbered, publish, serving

MIB = 1 << 20
FULL = b"the topic is full, and its workers wait for room themselves"
REFUSED = re.compile(rb"Publish (\w+): (?:(\d+) messages: )?" + FULL)


@asynccontextmanager
async def host_of(store: Path) -> AsyncIterator[InProcess]:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        yield host
        host.hang_up()
        with trio.fail_after(PATIENCE):
            await eventually(lambda: host.connections == 0)
        assert host.server.memory.statistics().reading == 0


FILLING, HELD = 250, 80
"""Messages of 1,000 octets that fill a topic, and that are held beyond that."""


async def fill(client: Conversation, topic: bytes) -> None:
    """Publish until a round-robin topic is full: nothing of that is done."""
    await client.send(publish(topic, [b"x" * 1000] * FILLING))
    await client.settle()


async def hold(client: Conversation, topic: bytes) -> None:
    """Publish some more, for which there is no room."""
    await client.send(publish(topic, [b"x" * 1000] * HELD))


async def worker_of_full_topic(host: InProcess) -> Conversation:
    """Return a connection that filled a topic, and works on it with credit for one message."""
    client = await declared(host, b"Round_robin Transient")
    await client.say(b"(Request t 1)")
    await client.ask(b"(Subscribe t From_current)")
    await fill(client, b"t")
    return client


def held(host: InProcess) -> int:
    """Return the octets that the connections hold."""
    return sum(terminal.statistics().held.publishes for terminal in host.server.terminals())


class Worker:
    """A client that publishes to one topic and works on another one, perhaps the same, on one connection.

    It sends all its Publishes at once, and a Received for each message as soon as the socket takes it: behind
    everything that it sent before.
    """

    def __init__(self, client: Conversation, to: bytes, count: int, *, is_plain: bool = False) -> None:
        self.client = client
        self.to = to
        self.count = count
        self.is_plain = is_plain
        self.topics: dict[int, bytes] = {}
        self.bodies: list[bytes] = []
        self.refused = 0
        self.is_confirmed = trio.Event()
        self._received, self._to_send = trio.open_memory_channel[bytes](100_000)

    async def subscribe(self, topic: bytes, credit: int = 10) -> None:
        if not self.is_plain:
            await self.client.say(b"(Request %s %d)" % (topic, credit))
        subscribed = await self.client.ask(b"(Subscribe %s From_current)" % topic)
        assert isinstance(subscribed, Subscribed)
        self.topics[subscribed.topic.id] = topic

    async def run(self) -> None:
        """Publish, and work until the Publishes are confirmed or refused; go on working until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send)
            while True:
                match await self.client.frame():
                    case Message(id, topic, body):
                        self.bodies.append(body)
                        if not self.is_plain:
                            self._received.send_nowait(b"(Received %s %d)" % (self.topics[topic], id))
                    case Confirmed():
                        assert not self.refused
                        self.is_confirmed.set()
                    case Error(text) if found := REFUSED.fullmatch(text):
                        self.refused += int(found[2] or 1)
                    case Error(text):
                        what = b"Confirm 1: %d published before it and after the last Confirm were refused"
                        assert text == what % self.refused
                        self.is_confirmed.set()
                    case other:
                        raise AssertionError(other)

    async def _send(self) -> None:
        filling = b"x" * 990
        lines = publish(self.to, [body + filling for body in numbered(1, self.count)])
        await self.client.stream.send_all(lines + b"(Confirm 1)\n")
        async for command in self._to_send:
            await self.client.stream.send_all(command + b"\n")


async def until_all_done(host: InProcess, *workers: Worker) -> None:
    """Run workers until all they published is refused, or was received by one of them."""
    async with trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(worker.run)
        with trio.fail_after(3 * PATIENCE):
            for worker in workers:
                await worker.is_confirmed.wait()
            taken = sum(worker.count - worker.refused for worker in workers)
            await eventually(lambda: sum(len(worker.bodies) for worker in workers) == taken)
            await eventually(lambda: host.server.memory.statistics().waiting == 0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
@pytest.mark.parametrize("is_plain", [True, False])
async def test_the_only_worker_of_a_topic_may_fill_it(
    tmp_path: Path, persistence: bytes, is_plain: bool
) -> None:
    async with host_of(tmp_path / "store") as host:
        client = await host.connect()
        await client.ask(b"(Declare t Round_robin %s)" % persistence)
        worker = Worker(client, b"t", 4000, is_plain=is_plain)
        await worker.subscribe(b"t")
        await until_all_done(host, worker)
        ids = [int(body.rstrip(b"x")) for body in worker.bodies]
        assert ids == sorted(set(ids))
        # It confirms nothing before all 4 MB are read, and a transient topic takes an eighth of that. Who is
        # done with what is sent to it, or has a store, need only read.
        assert bool(worker.refused) == (persistence == b"Transient" and not is_plain)


async def test_workers_that_wait_for_each_other_go_on(tmp_path: Path) -> None:
    async with host_of(tmp_path / "store") as host:
        first, second = await host.connect(), await host.connect()
        for topic in (b"x", b"y"):
            await first.ask(b"(Declare %s Round_robin Transient)" % topic)
        one, other = Worker(first, b"y", 3000), Worker(second, b"x", 3000)
        await one.subscribe(b"x")
        await other.subscribe(b"y")
        await until_all_done(host, one, other)
        assert one.refused or other.refused


async def test_workers_that_fill_the_memory_of_all_topics_go_on(tmp_path: Path) -> None:
    """None of the topics is full by itself."""
    async with host_of(tmp_path / "store") as host:
        workers = []
        for number in range(6):
            client = await host.connect()
            name = b"t%d" % number
            await client.ask(b"(Declare %s Round_robin Transient)" % name)
            worker = Worker(client, name, 1000)
            await worker.subscribe(name)
            workers.append(worker)
        await until_all_done(host, *workers)


async def test_held_messages_are_taken_when_their_connection_makes_room(tmp_path: Path) -> None:
    async with host_of(tmp_path / "store") as host:
        client = await worker_of_full_topic(host)
        await hold(client, b"t")
        for expected in range(1, FILLING + HELD + 1):
            assert (await client.message()).id == expected
            await client.say(b"(Received t %d)" % expected)
        await client.confirm(2)


async def test_commands_behind_held_publishes_are_answered_in_order(
    tmp_path: Path,
) -> None:
    async with host_of(tmp_path / "store") as host:
        client, watcher = await host.connect(), await host.connect()
        full = await client.ask(b"(Declare full Round_robin Transient)")
        await client.ask(b"(Declare other Broadcast Transient)")
        await watcher.ask(b"(Subscribe other From_current)")
        await client.say(b"(Request full 1)")
        await client.ask(b"(Subscribe full From_current)")
        await fill(client, b"full")
        await hold(client, b"full")
        await client.say(b"(Publish other 1)", b"(Confirm 1)", b"(Declare another Broadcast Transient)")
        assert (await watcher.message()).body == b"1"
        await client.say(b"(Subscribe other From_current)", b"(Publish other 2)")
        assert (await watcher.message()).body == b"2"
        assert b"another" in await host.topics()
        frames: list[Frame] = []
        while len(frames) < FILLING + HELD + 4:
            frame = await client.frame()
            frames.append(frame)
            if isinstance(frame, Message) and Declared(Topic(frame.topic, b"full")) == full:
                await client.say(b"(Received full %d)" % frame.id)
        others = [frame for frame in frames if not (isinstance(frame, Message) and frame.topic == 0)]
        assert others[:3] == [Confirmed(1), Declared(Topic(2, b"another")), Subscribed(Topic(1, b"other"))]
        assert [frame.body for frame in others[3:] if isinstance(frame, Message)] == [b"2"]
        assert [frame.id for frame in frames if frame not in others and isinstance(frame, Message)] == [
            *range(1, FILLING + HELD + 1)
        ]


@pytest.mark.parametrize("credit", [b"(Request t 1)", b""])
async def test_a_subscription_behind_publishes_is_answered_at_once(tmp_path: Path, credit: bytes) -> None:
    async with host_of(tmp_path / "store") as host:
        client = await host.connect()
        for topic in (b"t", b"mine"):
            await client.ask(b"(Declare %s Round_robin Transient)" % topic)
        await client.ask(b"(Subscribe mine From_current)")
        await fill(client, b"t")
        await hold(client, b"t")
        await client.say(credit, b"(Subscribe t From_current)")
        frame = await client.frame()
        while isinstance(frame, Error):
            assert REFUSED.fullmatch(frame.text)
            frame = await client.frame()
        assert frame == Subscribed(Topic(0, b"t"))
        assert (await client.message()).id == 1


async def test_a_worker_whose_results_are_not_taken_yet_is_slowed_down_and_loses_nothing(
    tmp_path: Path,
) -> None:
    """Waiting is right where others make room: such as workers that come later, or take long."""
    async with host_of(tmp_path / "store") as host:
        client, taker = await host.connect(), await host.connect()
        for topic in (b"jobs", b"results"):
            await client.ask(b"(Declare %s Round_robin Transient)" % topic)
        stage = Worker(client, b"results", 2000)
        await stage.subscribe(b"jobs")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.run)
            await eventually(lambda: held(host) > 0)
            for _ in range(3):
                with trio.move_on_after(1.1) as looked:  # longer than the server takes to look again
                    await stage.is_confirmed.wait()
                assert looked.cancelled_caught
            results = Worker(taker, b"", 0)
            await results.subscribe(b"results", 1)
            nursery.start_soon(results.run)
            with trio.fail_after(3 * PATIENCE):
                await stage.is_confirmed.wait()
                await eventually(lambda: len(results.bodies) == 2000)
            nursery.cancel_scope.cancel()
        assert stage.refused == 0
        assert [int(body.rstrip(b"x")) for body in results.bodies] == [*range(1, 2001)]


async def test_a_circle_that_closes_when_another_worker_leaves_is_found(tmp_path: Path) -> None:
    async with host_of(tmp_path / "store") as host:
        client, other = await host.connect(), await host.connect()
        await client.ask(b"(Declare t Round_robin Transient)")
        helper = Worker(other, b"", 0)
        await helper.subscribe(b"t", 1)  # it takes one message, and never confirms it
        worker = Worker(client, b"t", 2000)
        await worker.subscribe(b"t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            with trio.move_on_after(2.5) as looked:
                await worker.is_confirmed.wait()
            assert looked.cancelled_caught
            assert worker.refused == 0
            other.close()
            with trio.fail_after(PATIENCE):
                await worker.is_confirmed.wait()
            nursery.cancel_scope.cancel()
        assert worker.refused


async def test_more_answers_than_may_wait_do_not_keep_it_from_being_read(tmp_path: Path) -> None:
    async with host_of(tmp_path / "store") as host:
        client = await worker_of_full_topic(host)
        to_send, received = trio.open_memory_channel[int](1)

        async def send() -> None:
            lines = [b"(Publish t a)\n(Confirm %d)\n" % number for number in range(2000)]
            await client.stream.send_all(b"".join(lines))
            async for message in received:
                await client.say(b"(Received t %d)" % message)

        confirmed = refused = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while confirmed + refused < 2000:
                match await client.frame():
                    case Confirmed():
                        confirmed += 1
                    case Error(text):
                        refused += text.startswith(b"Confirm ")
                    case Message(id):
                        nursery.start_soon(to_send.send, id)
                    case other:
                        raise AssertionError(other)
            nursery.cancel_scope.cancel()
        assert confirmed
        assert refused


@pytest.mark.parametrize("end", ["half-close", "close", "reset", "stop"])
async def test_held_messages_end_with_their_connection(tmp_path: Path, end: str) -> None:
    async with serving(tmp_path / "store", memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        client = await worker_of_full_topic(host)
        await hold(client, b"t")
        await client.say(b"(Confirm 2)", b"(Declare last Broadcast Transient)")
        with trio.fail_after(PATIENCE):
            while b"last" not in await host.topics():
                pass  # not everything is read yet
        assert held(host) > HELD * 1000
        match end:
            case "half-close":
                await client.done()
            case "close":
                client.close()
            case "reset":
                client.reset()
            case _:
                await host.server.stop()
        if end in ("half-close", "stop"):
            frames = [frame for frame in await client.rest() if not isinstance(frame, Message)]
            assert frames.pop() == Declared(Topic(1, b"last"))
            assert all(isinstance(frame, Error) for frame in frames)
            texts = [frame.text for frame in frames if isinstance(frame, Error)]
            assert texts[-1].startswith(b"Confirm 2: %d published" % HELD)
            assert all(b"the topic is full" in text for text in texts[:-1])
        await eventually(lambda: host.connections == 0)
        assert host.server.memory.statistics().reading == 0


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_client_that_reads_nothing_before_it_has_sent_everything_goes_on(
    tmp_path: Path, is_plain: bool
) -> None:
    async with host_of(tmp_path / "store") as host:
        client = await host.connect(receive_octets=4096)
        await client.ask(b"(Declare t Round_robin Transient)")
        if not is_plain:
            await client.say(b"(Request t 10)")
        await client.ask(b"(Subscribe t From_current)")
        octets = publish(b"t", [body + b"x" * 990 for body in numbered(1, 6000)]) + b"(Confirm 1)\n"
        (terminal,) = host.server.terminals()
        read = terminal.statistics().octets_in + len(octets)
        await client.send(octets)
        # Sockets may take all that for a server that waits for room: it goes on reading nevertheless.
        await eventually(lambda: terminal.statistics().octets_in == read)
        got, refused, is_confirmed = 0, 0, False
        while not is_confirmed or got + refused < 6000:
            match await client.frame():
                case Message(id):
                    got += 1
                    if not is_plain:
                        await client.say(b"(Received t %d)" % id)
                case Error(text) if found := REFUSED.fullmatch(text):
                    refused += int(found[2] or 1)
                case Error(text):
                    assert text.startswith(b"Confirm 1: %d published" % refused)
                    is_confirmed = True
                case other:
                    raise AssertionError(other)
        assert got
        assert refused


async def test_the_only_subscriber_of_a_broadcast_topic_may_publish_more_than_the_server_keeps(
    tmp_path: Path,
) -> None:
    async with host_of(tmp_path / "store") as host:
        client = await host.connect(receive_octets=4096)
        await client.ask(b"(Declare t Broadcast Transient)")
        await client.ask(b"(Subscribe t From_current)")
        await client.send(publish(b"t", [body + b"x" * 990 for body in numbered(1, 6000)]) + b"(Confirm 1)\n")
        ids: list[int] = []
        while not ids or ids[-1] < 6000:
            frame = await client.frame()
            if isinstance(frame, Message):
                ids.append(frame.id)
            else:
                assert frame == Confirmed(1) or (isinstance(frame, Error) and b"too slow" in frame.text)
        assert ids == sorted(set(ids))


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_a_connection_that_holds_messages_leaves_nothing_behind(store: Path, how: str) -> None:
    with uncollected() as left:
        async with host_of(store) as host:
            client = await worker_of_full_topic(host)
            await hold(client, b"t")
            await eventually(lambda: held(host) > 0)
            if how == "reset":
                client.reset()
            else:
                client.close()
            await eventually(lambda: host.connections == 0)
            await eventually(lambda: not left())
