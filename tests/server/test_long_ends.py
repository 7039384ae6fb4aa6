"""Connections with many subscriptions: these end in slices."""

from pathlib import Path

import pytest
import trio
from counted_steps import watched

from omq.drivers import slices
from omq.protocol.omq.types import Message

from .conversation import eventually, serving

TOPICS = 40


@pytest.mark.parametrize("delivery", [b"Round_robin", b"Broadcast"])
@pytest.mark.parametrize("how", ["closed", "reset", "ended by the server"])
async def test_many_subscriptions_end_one_after_another(
    delivery: bytes, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as host:
        leaving, staying = await host.connect(), await host.connect()
        for number in range(TOPICS):
            await staying.ask(b"(Declare t%d %s Transient)" % (number, delivery))
            await leaving.ask(b"(Subscribe t%d From_current)" % number)
            if delivery == b"Round_robin":
                await leaving.say(b"(Request t%d 1)" % number)
                await staying.say(b"(Publish t%d %d)" % (number, number))
                assert (await leaving.message()).body == b"%d" % number
        monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
        with watched(lambda: host.server.statistics().subscriptions) as subscriptions:
            if how == "closed":
                leaving.close()
            elif how == "reset":
                leaving.reset()
            else:
                (terminal,) = [each for each in host.server.terminals() if any(each.open_channels())]
                terminal.disconnect("go away")
                assert await leaving.error() == b"Connect: go away"
                assert not host.server.statistics().subscriptions  # the client is told when they have ended
            await eventually(lambda: not host.server.statistics().subscriptions)
        assert subscriptions.largest_fall() == 1
        for number in range(TOPICS if delivery == b"Round_robin" else 0):
            await staying.ask(b"(Subscribe t%d From_current)" % number)
            assert (await staying.message()).body == b"%d" % number


@pytest.mark.parametrize("delivery", [b"Round_robin", b"Broadcast"])
async def test_many_subscriptions_are_told_the_end_of_the_input_one_after_another(
    delivery: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as host:
        leaving, staying = await host.connect(), await host.connect()
        for number in range(TOPICS):
            await staying.ask(b"(Declare t%d %s Transient)" % (number, delivery))
            await leaving.ask(b"(Subscribe t%d From_current)" % number)
        monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
        drivers = list(host.server.catalogue)
        with watched(lambda: sum(driver.has_taker() for driver in drivers)) as takers:
            await staying.say(*[b"(Publish t%d %d)" % (number, number) for number in range(TOPICS)])
            await staying.settle()
            await leaving.done()
            rest = await leaving.rest()
            await eventually(lambda: not host.server.statistics().subscriptions)
        assert sorted(int(each.body) for each in rest if isinstance(each, Message)) == list(range(TOPICS))
        assert len(rest) == TOPICS
        assert (takers.all[0], takers.all[-1]) == (TOPICS, 0)
        if delivery == b"Round_robin":
            assert takers.largest_fall() == 1


async def test_a_connection_that_answers_no_more_is_ended_while_its_subscriptions_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as host:
        leaving, staying = await host.connect(), await host.connect()
        for number in range(TOPICS):
            await staying.ask(b"(Declare t%d Round_robin Transient)" % number)
            await leaving.ask(b"(Subscribe t%d From_current)" % number)
        monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
        drivers = list(host.server.catalogue)
        (terminal,) = [each for each in host.server.terminals() if any(each.open_channels())]
        await leaving.done()
        while sum(driver.has_taker() for driver in drivers) == TOPICS:
            await trio.lowlevel.checkpoint()
        assert any(driver.has_taker() for driver in drivers)
        terminal.disconnect("go away")
        await leaving.rest()
        await eventually(lambda: not host.server.statistics().subscriptions)
        assert not any(driver.has_taker() for driver in drivers)
