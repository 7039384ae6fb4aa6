"""Many topics over few connections: every message arrives, in the order of its topic."""

import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from counted_steps import watched

from omq.drivers import slices
from omq.model import Topic
from omq.protocol.omq.types import Confirmed, Message, Subscribed, Unsubscribed
from omq_storage import codec
from omq_storage.blocks import encode

from .conversation import PATIENCE, Conversation, InProcess, publish, serving

TOPICS = 200
ROUNDS = 40
SIZE = 300
"""All of it is more than sockets take at once, and less than the server keeps for who is behind."""


def name(number: int) -> bytes:
    return b"many-%d" % number


async def declare_all(host: InProcess) -> Conversation:
    client = await host.connect()
    for number in range(TOPICS):
        await client.ask(b"(Declare %s Broadcast Transient)" % name(number))
    return client


async def subscribe_all(host: InProcess, **options: int) -> tuple[Conversation, dict[int, int]]:
    """Return a subscriber of all topics, and the numbers of the topics by their ids."""
    client = await host.connect(**options)
    numbers = {}
    for number in range(TOPICS):
        answer = await client.ask(b"(Subscribe %s From_current)" % name(number))
        assert isinstance(answer, Subscribed)
        numbers[answer.topic.id] = number
    return client, numbers


def body(number: int, turn: int) -> bytes:
    return b"%d-%d" % (number, turn) + b"." * SIZE


def one_round(turn: int) -> bytes:
    return b"".join(publish(name(number), [body(number, turn)]) for number in range(TOPICS))


async def receive_rounds(
    subscriber: Conversation, numbers: dict[int, int], rounds: int, text: Callable[[int, int], bytes]
) -> None:
    """Receive all messages of all topics, those of each topic in their order."""
    turns = dict.fromkeys(range(TOPICS), 0)
    for _ in range(TOPICS * rounds):
        frame = await subscriber.frame()
        assert isinstance(frame, Message)
        number = numbers[frame.topic]
        assert (frame.id, frame.body) == (turns[number] + 1, text(number, turns[number]))
        turns[number] += 1


async def test_a_subscriber_of_many_topics_that_reads_late_gets_everything_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path / "store", ping_seconds=1000) as host:
        publisher = await declare_all(host)
        late, numbers = await subscribe_all(host, receive_octets=4096)
        early, _ = await subscribe_all(host)
        for turn in range(ROUNDS):
            await publisher.send(one_round(turn))
        assert await publisher.ask(b"(Confirm 1)") == Confirmed(1)
        for subscriber in (early, late):
            turns = dict.fromkeys(range(TOPICS), 0)
            for _ in range(TOPICS * ROUNDS):
                frame = await subscriber.frame()
                assert isinstance(frame, Message)
                number = numbers[frame.topic]
                assert frame.id == turns[number] + 1
                assert frame.body == body(number, turns[number])
                turns[number] += 1
        # Both have caught up, and get what comes next in the same way.
        await publisher.send(publish(name(7), [b"next"]))
        for subscriber in (early, late):
            frame = await subscriber.frame()
            assert isinstance(frame, Message)
            assert frame.body == b"next"


async def test_a_broken_connection_does_not_disturb_publishers(tmp_path: Path) -> None:
    async with serving(tmp_path / "store", ping_seconds=1000) as host:
        publisher = await declare_all(host)
        broken, _ = await subscribe_all(host)
        other, numbers = await subscribe_all(host)
        broken.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.stream.socket.close()  # with a reset
        await publisher.send(one_round(0))
        assert await publisher.ask(b"(Confirm 1)") == Confirmed(1)
        for _ in range(TOPICS):
            frame = await other.frame()
            assert isinstance(frame, Message)
            assert frame.body == body(numbers[frame.topic], 0)


async def test_lines_of_one_read_take_effect_in_their_order(tmp_path: Path) -> None:
    async with serving(tmp_path / "store", ping_seconds=1000) as host:
        client, other = await host.connect(), await host.connect()
        for topic in (b"a", b"b"):
            await client.ask(b"(Declare %s Broadcast Transient)" % topic)
        await other.ask(b"(Subscribe b From_current)")
        await client.send(publish(b"a", [b"ids are reserved"]) + publish(b"b", [b"here, too"]))
        assert await client.ask(b"(Confirm 1)") == Confirmed(1)
        await client.send(
            publish(b"a", [b"before"])
            + publish(b"b", [b"first"])
            + b"(Subscribe a From_current)\n"
            + publish(b"a", [b"after"])
            + b"(Delete b)\n"
            + publish(b"b", [b"to another topic"])
            + b"(Confirm 2)\n"
        )
        answers = [await client.frame() for _ in range(4)]
        assert [answer.body for answer in answers if isinstance(answer, Message)] == [b"after"]
        assert Confirmed(2) in answers
        bodies = [await other.frame() for _ in range(3)]
        assert [each.body for each in bodies if isinstance(each, Message)] == [b"here, too", b"first"]


async def test_publishers_wait_for_a_subscriber_that_moves_and_it_loses_nothing(tmp_path: Path) -> None:
    """A subscriber that reads little at a time; what it has not read yet is more than sockets take."""
    async with serving(tmp_path / "store", ping_seconds=1000, stall_seconds=PATIENCE) as host:
        publisher = await declare_all(host)
        subscriber, numbers = await subscribe_all(host, receive_octets=4096)
        await publisher.send(one_round(0))
        assert await publisher.ask(b"(Confirm 1)") == Confirmed(1)
        published = 1 + 100
        done = trio.Event()

        async def publish_all() -> None:
            for turn in range(1, published):
                await publisher.stream.send_all(one_round(turn))
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_all)
            await receive_rounds(subscriber, numbers, published, body)
            await done.wait()
        assert host.server.memory.statistics().tails == 0


async def test_no_message_follows_the_answer_to_unsubscribe(tmp_path: Path) -> None:
    async with serving(tmp_path / "store", ping_seconds=1000, stall_seconds=0.05) as host:
        publisher = await declare_all(host)
        subscriber, numbers = await subscribe_all(host, receive_octets=4096)
        topics = {number: topic for topic, number in numbers.items()}
        for turn in range(60):
            await publisher.send(one_round(turn))
        await subscriber.say(*(b"(Unsubscribe %s)" % name(number) for number in range(0, TOPICS, 2)))
        gone = set[int]()
        while len(gone) < TOPICS // 2:
            match await subscriber.frame():
                case Message(topic=topic):
                    assert topic not in gone
                case Unsubscribed(Topic(id=topic)):
                    gone.add(topic)
        assert gone == {topics[number] for number in range(0, TOPICS, 2)}


async def test_messages_that_are_pushed_and_pulled_keep_the_order_of_their_topic(tmp_path: Path) -> None:
    """Large messages are pulled, and the small ones before and after them are pushed."""
    rounds = 30

    def text(number: int, turn: int) -> bytes:
        return body(number, turn) + b"." * (70_000 if (number + turn) % 40 == 0 else 0)

    async with serving(tmp_path / "store", ping_seconds=1000, stall_seconds=PATIENCE) as host:
        publishers = [await declare_all(host), await host.connect()]
        subscriber, numbers = await subscribe_all(host, receive_octets=4096)

        async def publish_half(half: int) -> None:
            """Publish to every second topic."""
            for turn in range(rounds):
                every = range(half, TOPICS, 2)
                lines = [publish(name(number), [text(number, turn)]) for number in every]
                await publishers[half].stream.send_all(b"".join(lines))

        async with trio.open_nursery() as nursery:
            for half in range(2):
                nursery.start_soon(publish_half, half)
            await receive_rounds(subscriber, numbers, rounds, text)


async def test_others_have_turns_between_posts_to_many_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of one read wait in the tails of their topics for a subscriber that reads nothing."""
    monkeypatch.setattr(codec, "COMPILED", False)
    async with serving(tmp_path / "store", ping_seconds=1000, stall_seconds=0.05) as host:
        publisher = await declare_all(host)
        await subscribe_all(host, receive_octets=4096)
        for _ in range(6):
            await publisher.send(publish(name(0), [b"." * 900_000]))
        assert await publisher.ask(b"(Confirm 1)") == Confirmed(1)
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1)
        tails = host.server.memory.tails
        with watched(lambda: tails.used) as used:
            await publisher.send(b"".join(publish(name(number), [b"x"]) for number in range(1, TOPICS)))
            assert await publisher.ask(b"(Confirm 2)") == Confirmed(2)
        assert used.largest_rise() == encode(1, 1, [b"x"], 0).held
