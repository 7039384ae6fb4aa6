"""Connections with many subscriptions: these end in slices."""

from pathlib import Path

import pytest
import trio

from omq.drivers import slices

from .conversation import InProcess, eventually, serving

TOPICS = 40


class LargestFall(trio.abc.Instrument):
    """The greatest decrease of the number of subscriptions in one step of a task."""

    def __init__(self, host: InProcess) -> None:
        self._host = host
        self._before = host.server.statistics().subscriptions
        self.most = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        count = self._host.server.statistics().subscriptions
        self.most = max(self.most, self._before - count)
        self._before = count


@pytest.mark.parametrize("delivery", [b"Round_robin", b"Broadcast"])
@pytest.mark.parametrize("how", ["closed", "reset"])
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
        fall = LargestFall(host)
        trio.lowlevel.add_instrument(fall)
        if how == "closed":
            leaving.close()
        else:
            leaving.reset()
        await eventually(lambda: not host.server.statistics().subscriptions)
        trio.lowlevel.remove_instrument(fall)
        assert fall.most == 1
        for number in range(TOPICS if delivery == b"Round_robin" else 0):
            await staying.ask(b"(Subscribe t%d From_current)" % number)
            assert (await staying.message()).body == b"%d" % number
