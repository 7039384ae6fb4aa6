"""A server under test that serves other clients meanwhile, and must not keep them waiting."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel
from trio.testing import MockClock

from omq.model import Delivery
from omq.protocol.omq.types import Error, Message, Subscribed

from .conversation import (
    Conversation,
    InProcess,
    eventually,
    serving,
)

MIB = 1 << 20

NOTICEABLE_SECONDS = 1.0
"""The number of seconds that the server may work on something else while one message of the others is on its
way. This is the processor time of its thread: other programs of a busy machine do not count.
"""


class ServerUnderLoad(InProcess):
    """A server in this process, beside whose test others exchange messages."""

    exchanged = 0
    """The number of messages that they have exchanged."""

    async def pass_time(self, clock: MockClock, seconds: float) -> None:
        """Let time pass, and then the others exchange a message. Without that, a test that jumps again and
        again takes away the time in which their message, which is stored, must arrive.
        """
        clock.jump(seconds)
        before = self.exchanged
        await eventually(lambda: self.exchanged > before)


@asynccontextmanager
async def undisturbed(store: Path, **settings: Any) -> AsyncIterator[ServerUnderLoad]:
    """Yield a server with a publisher and a subscriber, who must notice nothing of what a test does
    meanwhile.

    At the end nothing may be left of the test's connections: no task, no subscription, no memory.
    """
    async with serving(store, **settings) as served, AsyncExitStack() as stack:
        host = ServerUnderLoad(served.server)
        stack.callback(host.hang_up)
        subscriber, publisher = await host.connect(), await host.connect()
        answer = await subscriber.ask(b"(Subscribe others From_current)")
        assert isinstance(answer, Subscribed)
        await publisher.say(b"(Publish others 0)")
        assert await subscriber.message() == Message(1, answer.topic.id, b"0")
        number = 0
        stopping = False
        tasks = trio.lowlevel.current_statistics().tasks_living

        async def exchange() -> None:
            nonlocal number
            number += 1
            began = time.thread_time()
            await publisher.say(b"(Publish others %d)" % number, b"(Ack (2026-01-01 00:00:00Z))")
            assert await subscriber.message() == Message(number + 1, answer.topic.id, b"%d" % number)
            assert time.thread_time() - began < NOTICEABLE_SECONDS
            await subscriber.say(b"(Ack (2026-01-01 00:00:00Z))")
            host.exchanged += 1

        async def keep_exchanging() -> None:
            while not stopping:
                await exchange()
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_exchanging)
            yield host
            stopping = True
        host.hang_up(subscriber, publisher)
        await eventually(lambda: host.connections == 2 and host.handshakes == 0)
        await exchange()
        await publisher.confirm()
        topics = await publisher.topics()
        # Each round-robin topic has a task of its own.
        tasks += sum(info.delivery is Delivery.ROUND_ROBIN for info in topics.values())
        await eventually(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)
        assert {name: info.subscribers for name, info in topics.items() if info.subscribers} == {b"others": 1}
        assert host.memory_used == 0


async def still_good(client: Conversation) -> None:
    """Check that the connection goes on as if nothing had happened."""
    await client.confirm(77)


async def only_error(client: Conversation) -> bytes:
    """Return the sentence of the Error that is the last thing the server says before it ends the
    connection.
    """
    (frame,) = await client.rest()
    assert isinstance(frame, Error)
    return frame.text
