"""Log lines that clients can cause: a few are written, and the rest counted."""

import logging
from pathlib import Path

import pytest
from trio.testing import MockClock

from omq.access.repeats import LINES, SECONDS, Repeats
from omq.drivers.complaints import COMPLAIN_SECONDS
from omq_storage.environment import BlockInfo, Environment
from omq_storage.errors import StoreError

from . import dmp_conversation as dmp
from .conversation import eventually, publish, serving


async def test_news_that_find_no_principal_are_counted(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(store) as host:
        for _ in range(30):
            client = await host.connect()
            sink = await dmp.sink(host, client)
            client.close()
            await eventually(lambda: host.connections == 1)
            await sink.send(b"\0\0\1")
            await sink.done()
            assert (await dmp.said(sink))[0].startswith(b"502 SYNTAX-ERROR 0 messages stored")
            await eventually(lambda: host.connections == 0)
        told = [line for line in caplog.messages if "sink b't': 502 SYNTAX-ERROR" in line]
        assert len(told) == LINES
        clock.jump(SECONDS)
        more = f"{30 - LINES} more news of sinks and feeds found no principal"
        await eventually(lambda: more in caplog.messages)


@pytest.mark.parametrize("command", [b"(Blocks t 1 10)", b"(Fetch t 1 10)"])
async def test_a_topic_that_cannot_be_read_is_told_now_and_then(
    store: Path,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    command: bytes,
) -> None:
    def refuse(self: Environment, *_: object, **__: object) -> list[BlockInfo]:
        raise StoreError("The disk is gone.")

    monkeypatch.setattr(Environment, "blocks", refuse)
    monkeypatch.setattr(Environment, "read_stored", refuse)
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast (Persistent Strong))")
        await client.send(publish(b"t", [b"x"]))
        await client.confirm()
        caplog.clear()
        for _ in range(50):
            await client.refusal(command)
        clock.jump(COMPLAIN_SECONDS)
        await client.refusal(command)
        told = [line for line in caplog.messages if "cannot be read" in line]
        assert told == [
            "b't' cannot be read: The disk is gone.",
            "b't' cannot be read (50 times): The disk is gone.",
        ]


async def test_of_a_flood_that_goes_on_one_line_is_written_and_the_rest_counted(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    repeats = Repeats(logging.getLogger("test"), logging.ERROR, "strange things")

    def flood() -> list[str]:
        caplog.clear()
        for number in range(100):
            repeats.add(f"thing {number}")
        clock.jump(SECONDS)
        repeats.look()
        return list(caplog.messages)

    assert flood() == [*(f"thing {number}" for number in range(LINES)), f"{100 - LINES} more strange things"]
    for _ in range(3):
        assert flood() == ["thing 0", "99 more strange things"]
    clock.jump(SECONDS)
    assert len(flood()) == LINES + 1
