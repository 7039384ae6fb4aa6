"""Random mixes from several connections: what was confirmed is stored, in the order of each publisher."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from omq.protocol.omq.types import Confirmed, Declared, Message, Subscribed

from .conversation import PATIENCE, PERSISTENCES, Conversation, InProcess, serving

PUBLISHERS = 3
STEPS = 60
TOPICS = {
    b"%s-%d" % (level.lower().encode(), number): persistence
    for level, persistence in PERSISTENCES.items()
    if level != "Transient"
    for number in range(6)
}


class Publisher:
    """One connection that publishes numbered messages to all topics."""

    def __init__(self, name: bytes, chance: random.Random) -> None:
        self.published = dict.fromkeys(TOPICS, 0)
        self.confirms = 0
        self.name = name
        self._chance = chance

    def script(self) -> Iterator[bytes]:
        """Yield the octets to send, in pieces."""
        chance = self._chance
        names = list(TOPICS)
        for _ in range(STEPS):
            match chance.randrange(8):
                case 0:
                    topic = chance.choice(names)
                    yield b"(Declare %s Broadcast %s)\n" % (topic, TOPICS[topic])
                case 1:
                    self.confirms += 1
                    yield b"(Confirm %d)\n" % self.confirms
                case 2:  # too long for the quick way
                    topic = chance.choice(names)
                    yield self._line(topic, 70_000)
                case 3:  # written with an escape: a topic in each read
                    topic = chance.choice(names)
                    yield b"".join(
                        self._line(topic, 10, b'"\\%03d%s"' % (topic[0], topic[1:])) for _ in range(3)
                    )
                case _:
                    most = chance.choice([1, 10, 100])
                    yield b"".join(
                        self._line(topic, chance.choice([0, 100, 3000]))
                        for topic in chance.choices(names, k=chance.randint(1, most))
                    )
        self.confirms += 1
        yield b"(Confirm %d)\n" % self.confirms

    def _line(self, topic: bytes, octets: int, written: bytes | None = None) -> bytes:
        self.published[topic] += 1
        body = b"%s %d %s" % (self.name, self.published[topic], b"." * octets)
        return b'(Publish %s "%s")\n' % (written or topic, body)

    async def run(self, client: Conversation) -> None:
        async with trio.open_nursery() as nursery:
            pieces = list(self.script())
            nursery.start_soon(self._until_confirmed, client)
            for piece in pieces:
                await client.send(piece)

    async def _until_confirmed(self, client: Conversation) -> None:
        seen = 0
        while seen < self.confirms:
            match await client.frame():
                case Confirmed(n):
                    seen += 1
                    assert n == seen
                case frame:
                    assert isinstance(frame, Declared), frame


async def follow(host: InProcess, chance: random.Random, found: dict[bytes, list[Message]]) -> None:
    """Subscribe to all topics, one after another, from now on or from the first message on."""
    client = await host.connect()
    names: dict[int, bytes] = {}
    topics = list(TOPICS)
    chance.shuffle(topics)
    for topic in topics:
        start = chance.choice([b"From_current", b"From_beginning"])
        await client.say(b"(Subscribe %s %s)" % (topic, start))
        while not isinstance(frame := await client.frame(), Subscribed):
            assert isinstance(frame, Message), frame
            found[names[frame.topic]].append(frame)
        names[frame.topic.id] = topic
        found[topic] = []
    while True:
        message = await client.message()
        found[names[message.topic]].append(message)


async def replayed(host: InProcess, topic: bytes) -> list[Message]:
    client = await host.connect()
    info = (await client.topics())[topic]
    assert isinstance(await client.ask(b"(Subscribe %s From_beginning)" % topic), Subscribed)
    messages = await client.messages(info.messages)
    client.reset()
    return messages


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_replayed_is_what_was_confirmed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    publishers = [Publisher(b"%d" % number, chance) for number in range(PUBLISHERS)]
    followed: list[dict[bytes, list[Message]]] = [{}, {}]
    stored: dict[bytes, list[Message]] = {}
    async with serving(tmp_path / "store", memory_bytes=4 << 20) as host:
        client = await host.connect()
        for topic, persistence in TOPICS.items():
            await client.ask(b"(Declare %s Broadcast %s)" % (topic, persistence))
        async with trio.open_nursery() as following:
            async with trio.open_nursery() as publishing:
                for publisher in publishers:
                    publishing.start_soon(publisher.run, await host.connect())
                for found in followed:
                    following.start_soon(follow, host, chance, found)
            for topic in TOPICS:
                stored[topic] = await replayed(host, topic)
            with trio.fail_after(PATIENCE):
                while any(
                    topic not in found or (found[topic] and found[topic][-1].id != len(stored[topic]))
                    for found in followed
                    for topic in TOPICS
                ):
                    await trio.testing.wait_all_tasks_blocked()
            following.cancel_scope.cancel()
        assert host.memory_used == 0
    for topic, messages in stored.items():
        assert [message.id for message in messages] == list(range(1, len(messages) + 1))
        numbers: dict[bytes, list[int]] = {}
        for message in messages:
            name, number, _ = message.body.split(b" ")
            numbers.setdefault(name, []).append(int(number))
        assert numbers == {
            publisher.name: list(range(1, publisher.published[topic] + 1))
            for publisher in publishers
            if publisher.published[topic]
        }
        for found in followed:
            assert found[topic] == messages[len(messages) - len(found[topic]) :]
    async with serving(tmp_path / "store") as host:
        for topic in chance.sample(list(TOPICS), 3):
            assert await replayed(host, topic) == stored[topic]
