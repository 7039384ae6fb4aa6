"""A subscriber that stalls delays none of the others: messages are pushed to them all the same."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from omq_storage import codec

from .conversation import PATIENCE, Conversation, InProcess, publish, serving

SIZE = 10_000
PULLS = {"at_hand", "passed", "take"}
"""The methods of a channel with which a connection pulls messages."""


@pytest.fixture(
    params=[
        pytest.param(
            True, id="compiled", marks=pytest.mark.skipif(not codec.COMPILED, reason="it is not built here")
        ),
        pytest.param(False, id="plain"),
    ],
    autouse=True,
)
def is_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether the server routes messages with the compiled codec."""
    is_compiled: bool = request.param
    monkeypatch.setattr(codec, "COMPILED", is_compiled)
    return is_compiled


@contextmanager
def pulls(found: list[str]) -> Iterator[None]:
    """Note each call for messages of a broadcast channel."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name in PULLS and code.co_filename.endswith("broadcast_channel.py"):
            found.append(code.co_name)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


async def subscribed(host: InProcess, **options: int) -> Conversation:
    client = await host.connect(**options)
    await client.ask(b"(Subscribe t From_current)")
    return client


class Publisher:
    """It publishes to some subscribers and waits until they have each message, and remembers all."""

    def __init__(self, client: Conversation) -> None:
        self.client = client
        self.bodies: list[bytes] = []

    async def publish(self, body: bytes, readers: list[Conversation]) -> None:
        self.bodies.append(body)
        await self.client.send(publish(b"t", [body]))
        for reader in readers:
            message = await reader.message()
            assert (message.id, message.body) == (len(self.bodies), body)

    async def is_kept(self) -> bool:
        """Return whether the server keeps messages for a subscriber that is behind."""
        return (await self.client.topics())[b"t"].messages > 0

    async def stall(self, readers: list[Conversation]) -> None:
        """Publish until another subscriber is behind."""
        with trio.fail_after(PATIENCE):
            while not await self.is_kept():
                await self.publish(b"." * SIZE, readers)

    async def publish_pushed(self, readers: list[Conversation]) -> list[str]:
        """Publish a few messages; return the calls with which they were pulled."""
        found: list[str] = []
        await wait_all_tasks_blocked()
        for number in range(10):
            with pulls(found):
                await self.publish(b"%d" % number, readers)
                await wait_all_tasks_blocked()
        return found


async def test_messages_are_pushed_past_a_stalled_subscriber(store: Path) -> None:
    """It gets them all when it reads again, and then they are pushed to it, too."""
    async with serving(store, ping_seconds=1000, stall_seconds=PATIENCE) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast Transient)")
        late = await subscribed(host, receive_octets=4096)
        quick = [await subscribed(host) for _ in range(3)]
        publisher = Publisher(client)
        for _ in range(2):
            begin = len(publisher.bodies)
            await publisher.stall(quick)
            assert await publisher.publish_pushed(quick) == []
            assert await publisher.is_kept()
            for number, body in enumerate(publisher.bodies[begin:], begin + 1):
                message = await late.message()
                assert (message.id, message.body) == (number, body)
            await wait_all_tasks_blocked()
            assert not await publisher.is_kept()
            assert await publisher.publish_pushed([*quick, late]) == []
            assert host.server.memory.statistics().tails == 0
        sums = [terminal.statistics().messages_out for terminal in host.server.terminals()]
        assert sorted(sums) == [0] + [len(publisher.bodies)] * 4
