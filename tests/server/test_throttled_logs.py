"""Log lines that clients can cause: a few are written, and the rest counted."""

from pathlib import Path

import pytest
from quietness import quiet
from trio.testing import MockClock

from omq.logs import LINES, PROBLEM_SECONDS, SECONDS
from omq_storage.environment import BlockRecord, Environment
from omq_storage.errors import StoreError

from . import dmp_conversation as dmp
from .conversation import declared, eventually, publish, serving


async def test_news_that_find_no_principal_are_counted(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock.rate = 0  # all of them fall into the same ten seconds
    async with serving(store) as host:
        for _ in range(30):
            client = await host.connect()
            sink = await dmp.sink(host, client)
            client.close()
            await quiet()
            assert host.connections == 1
            await sink.send(b"\0\0\1")
            await sink.done()
            assert (await dmp.said(sink))[0].startswith(b"502 SYNTAX-ERROR 0 messages stored")
            await quiet()
            assert host.connections == 0
        clock.rate = 1
        told = [line for line in caplog.messages if "sink 't': 502 SYNTAX-ERROR" in line]
        assert len(told) == LINES
        clock.jump(SECONDS)
        more = f"reports about sinks and feeds found no principal connection: {30 - LINES} more"
        await eventually(lambda: more in caplog.messages)


@pytest.mark.parametrize("command", [b"(Blocks t 1 10)", b"(Fetch t 1 10)"])
async def test_a_topic_that_cannot_be_read_is_told_now_and_then(
    store: Path,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    command: bytes,
) -> None:
    def refuse(self: Environment, *_: object, **__: object) -> list[BlockRecord]:
        raise StoreError("The disk is gone.")

    monkeypatch.setattr(Environment, "blocks", refuse)
    monkeypatch.setattr(Environment, "read_stored", refuse)
    clock.rate = 0  # all refusals fall into the same five seconds
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        await client.send(publish(b"t", [b"x"]))
        await client.confirm()
        caplog.clear()
        for _ in range(50):
            await client.refusal(command)
        clock.jump(PROBLEM_SECONDS)
        await client.refusal(command)
        told = [line for line in caplog.messages if "cannot be read" in line]
        assert told == [
            "'t' cannot be read: The disk is gone.",
            "'t' cannot be read: 49 more",
            "'t' cannot be read: The disk is gone.",
        ]
