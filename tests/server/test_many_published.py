"""Publish lines of one read for many topics: other connections have their turns between the topics."""

from pathlib import Path

import pytest
from counted_steps import counted_calls, watched

from omq.drivers import slices

from .conversation import InProcess, serving

TOPICS = 1000

MOST_CALLS = 6 * TOPICS
"""More calls of functions than any step has; to read and to push the messages of all topics takes more."""


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Async)"])
async def test_messages_for_many_queues_are_published_in_short_steps(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        client, other = await host.connect(), await host.connect()
        await client.ask_all(
            [b"(Declare q%d Round_robin %b)" % (number, persistence) for number in range(TOPICS)]
        )
        lines = [b"(Publish q%d %d)" % (number, number) for number in range(TOPICS)]
        await client.say(*lines)  # the first messages reserve ids
        await client.confirm(1)
        with counted_calls() as calls:
            await client.say(*lines)
            await client.confirm(2)
        assert calls.longest < MOST_CALLS
        await other.ask(b"(Subscribe q7 From_current)")
        assert [(await other.message()).body for _ in range(2)] == [b"7", b"7"]


def messages_in(host: InProcess) -> int:
    """Return the number of messages that came into all topics."""
    return sum(driver.statistics().messages_in for driver in host.server.catalogue)


async def test_messages_for_many_queues_are_posted_in_slices(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask_all([b"(Declare q%d Round_robin Transient)" % number for number in range(10)])
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1)
        with watched(lambda: messages_in(host)) as posted:
            await client.say(*[b"(Publish q%d x)" % number for number in range(10)])
            await client.confirm(1)
        assert messages_in(host) == 10
        assert posted.largest_rise() == 1
