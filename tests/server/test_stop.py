"""The outcomes of publishes that clients of omq are told before the server ends their connections."""

from pathlib import Path

import pytest
from quietness import pass_time, quiet
from trio.testing import MockClock

from omq.model import Topic
from omq.protocol.omq.types import Confirmed, Deleted, Done, Error, Frame
from omq.terminals.connection.last_outcomes import CONFIRMING_SECONDS
from omq_storage.levels import Level

from .conversation import InProcess, declared, serving

DISCONNECTED = b"Connect: for a test"


async def end(host: InProcess, ended: str) -> None:
    """End the connections: as a server that stops, or one by one."""
    if ended == "stop":
        await host.server.stop()
    else:
        for terminal in host.server.terminals():
            terminal.disconnect("for a test")


def last(ended: str) -> list[Error]:
    """Return the frames that end a connection."""
    return [] if ended == "stop" else [Error(DISCONNECTED)]


ENDED = pytest.mark.parametrize("ended", ["stop", "disconnect"])


@ENDED
async def test_confirms_come_before_the_end(store: Path, ended: str, slow_clock: MockClock) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        async with host.server.catalogue.writers[Level.STRONG].paused():
            await client.say(b"(Publish t first)", b"(Confirm 1)", b"(Publish t second)", b"(Confirm 2)")
            await quiet()
            await end(host, ended)
            await client.say(b"(Publish t late)", b"(Confirm 3)")
            await quiet()
        assert await client.rest() == [Confirmed(1), Confirmed(2), *last(ended)]


@ENDED
@pytest.mark.parametrize(
    ("command", "answer"), [(b"(Delete u)", Deleted(Topic(1, b"u"))), (b"(Purge u)", Done(0))]
)
async def test_the_command_that_is_being_executed_is_answered(
    store: Path, ended: str, command: bytes, answer: Frame, slow_clock: MockClock
) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        await client.ask(b"(Declare u Broadcast (Persistent Strong))")
        async with host.server.catalogue.writers[Level.STRONG].paused():
            await client.say(b"(Publish t first)", command, b"(Declare v Broadcast Transient)")
            await quiet()
            await end(host, ended)
            await quiet()
        assert await client.rest() == [answer, *last(ended)]


@ENDED
async def test_the_end_does_not_wait_for_long(store: Path, slow_clock: MockClock, ended: str) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        async with host.server.catalogue.writers[Level.STRONG].paused():
            await client.say(b"(Confirm 1)", b"(Publish t first)", b"(Confirm 2)", b"Topics")
            await quiet()
            await end(host, ended)
            await quiet()
            await pass_time(slow_clock, CONFIRMING_SECONDS)
            assert await client.rest() == [Confirmed(1), *last(ended)]
