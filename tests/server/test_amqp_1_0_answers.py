"""The answers of AMQP 1.0 to clients that ask for something else than they can have, or for a full topic."""

from pathlib import Path

import pytest

from omq.protocol.amqp_1_0 import connection, frames, performatives
from omq.protocol.amqp_1_0.performatives import Attach, Begin, Close, Detach, Source

from .amqp_1_0_peer import condition, data, opened, source, target
from .conversation import serving


async def test_a_client_that_wants_to_settle_second_settles_first(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.say(Attach("in", 0, True, 0, 1, source("q"), target("here")))
        assert (await client.until(Attach)).rcv_settle_mode == 0
        await client.say(Attach("out", 1, False, 0, 1, source("here"), target("q"), initial_delivery_count=0))
        assert (await client.until(Attach)).rcv_settle_mode == 0


@pytest.mark.parametrize("mode", ["copy", "move", None])
async def test_the_distribution_mode_of_a_queue_is_told(store: Path, mode: str | None) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        answer = await client.receiver("q", distribution_mode=mode)
        answered = performatives.read_all(answer.source)
        assert isinstance(answered, Source)
        assert answered.distribution_mode == (mode or "move")


async def test_a_link_that_is_detached_and_not_closed_is_over(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await client.receiver("q", credit=1)
        await client.publish(data(b"x"))
        await client.message()
        await client.say(Detach(0, closed=False))
        assert (await client.until(Detach)).closed
        await client.receiver("q", 2, credit=1)
        assert (await client.message()).octets.endswith(data(b"x"))


@pytest.mark.parametrize("setting", ["max_subscriptions", "max_topics"])
async def test_a_link_beyond_what_there_may_be_is_refused(store: Path, setting: str) -> None:
    async with serving(store, client_share=1.0, **{setting: 1}) as host, opened(host.port) as client:
        await client.receiver("one")
        await client.say(Attach("two", 1, True, source=source("two"), target=target("here")))
        assert (await client.until(Attach)).source == b"\x40"
        assert condition(await client.until(Detach)) == "amqp:resource-limit-exceeded"
        await client.credit(1)
        await client.settle()


async def test_the_sessions_of_a_connection_are_limited(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_SESSIONS", 3)
    async with serving(store) as host, opened(host.port) as client:
        said = [frames.write(channel, performatives.write(Begin(None, 0, 9, 9))) for channel in (1, 2, 3)]
        await client.send(b"".join(said))
        assert condition(await client.until(Close)) == "amqp:resource-limit-exceeded"
