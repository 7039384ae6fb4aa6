"""Connections with many subscriptions: these end in slices."""

from pathlib import Path

import pytest
from counted_steps import watched

from omq.drivers import slices

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
                (terminal,) = [each for each in host.server.terminals() if each.open_channels()]
                terminal.disconnect("go away")
                assert await leaving.error() == b"Connect: go away"
                assert not host.server.statistics().subscriptions  # the client is told when they have ended
            await eventually(lambda: not host.server.statistics().subscriptions)
        assert subscriptions.largest_fall() == 1
        for number in range(TOPICS if delivery == b"Round_robin" else 0):
            await staying.ask(b"(Subscribe t%d From_current)" % number)
            assert (await staying.message()).body == b"%d" % number
