"""Messages of several round-robin topics that leave in one turn of a connection."""

from pathlib import Path

import pytest
from quietness import quiet

from omq.protocol.omq.types import Message, Subscribed, Unsubscribed

from .conversation import Conversation, InProcess, eventually
from .stalled_readers import body_of, sending_little

SIZES = [60_000, 200_000]
"""Octets that a socket does not take at once, of messages whose rest is in hand, or may be given again."""

TOPICS = [b"a", b"b"]


async def with_work(host: InProcess, persistence: bytes, size: int) -> None:
    """Make round-robin topics, each with a message that waits for a worker."""
    client = await host.connect()
    for number, topic in enumerate(TOPICS):
        await client.ask(b"(Declare %s Round_robin %s)" % (topic, persistence))
        await client.say(b'(Publish %s "%s")' % (topic, body_of(number, size).replace(b"\n", b".")))
    await client.confirm()


async def worker(host: InProcess, receive_octets: int | None = None) -> Conversation:
    """Return a worker of all the topics, which have been told of it."""
    client = await host.connect(receive_octets)
    await client.say(*[b"(Subscribe %s From_current)" % topic for topic in TOPICS])
    await quiet()
    return client


def bodies(frames: list[object]) -> list[bytes]:
    """Return the bodies of the messages among these frames, in order."""
    return sorted(frame.body for frame in frames if isinstance(frame, Message))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
async def test_a_message_of_which_a_part_has_left_goes_to_another_worker(
    store: Path, persistence: bytes, size: int
) -> None:
    async with sending_little(store) as host:
        await with_work(host, persistence, size)
        (await worker(host, receive_octets=4096)).reset()
        await eventually(lambda: host.server.connections == 1)
        other = await worker(host)
        frames: list[object] = [await other.frame() for _ in range(4)]
        assert sum(isinstance(frame, Subscribed) for frame in frames) == 2
        assert bodies(frames) == [body_of(number, size).replace(b"\n", b".") for number in range(2)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
async def test_a_worker_that_unsubscribes_in_the_middle_gets_the_rest(
    store: Path, persistence: bytes, size: int
) -> None:
    async with sending_little(store) as host:
        await with_work(host, persistence, size)
        first = await worker(host, receive_octets=4096)
        await first.say(*[b"(Unsubscribe %s)" % topic for topic in TOPICS])
        await quiet()
        other = await worker(host)
        frames: list[object] = [await first.frame() for _ in range(5)]
        assert sum(isinstance(frame, Unsubscribed) for frame in frames) == 2
        frames += [await other.frame() for _ in range(3)]
        assert bodies(frames) == [body_of(number, size).replace(b"\n", b".") for number in range(2)]


@pytest.mark.parametrize("size", SIZES[:1])
@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
async def test_a_message_that_was_pushed_in_part_goes_to_another_worker(
    store: Path, persistence: bytes, size: int
) -> None:
    """The task that reads a message, or stores it, sends it at once."""
    async with sending_little(store) as host:
        publisher = await host.connect()
        for topic in TOPICS:
            await publisher.ask(b"(Declare %s Round_robin %s)" % (topic, persistence))
        first = await worker(host, receive_octets=4096)
        await publisher.say(b'(Publish a "%s")' % body_of(1, size).replace(b"\n", b"."))
        await publisher.confirm()
        await quiet()
        first.reset()
        await eventually(lambda: host.server.connections == 1)
        other = await worker(host)
        frames: list[object] = [await other.frame() for _ in range(3)]
        assert bodies(frames) == [body_of(1, size).replace(b"\n", b".")]
