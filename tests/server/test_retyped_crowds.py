"""A topic with many subscribers that gets its declared types: they move to the new topic in slices."""

from pathlib import Path

import pytest
import trio
from counted_steps import watched

from omq.drivers import slices
from omq.protocol.omq.types import Declared, Subscribed

from .conversation import PERSISTENCES, eventually, serving

SUBSCRIBERS = 30


@pytest.mark.parametrize("persistence", ["Transient", "Weak"])
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_many_subscribers_move_in_slices(
    store: Path, monkeypatch: pytest.MonkeyPatch, delivery: bytes, persistence: str
) -> None:
    async with serving(store, default_persistence="async") as host:
        clients = [await host.connect() for _ in range(SUBSCRIBERS)]
        for client in clients:
            assert isinstance(await client.ask(b"(Subscribe t From_current)"), Subscribed)
        old = host.server.catalogue.lookup(b"t")
        assert old is not None
        owner = await host.connect()
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1)
        with watched(old.subscriber_count) as left:
            await owner.say(b"(Declare t %b %b)" % (delivery, PERSISTENCES[persistence]))
            while old.subscriber_count() == SUBSCRIBERS:
                await trio.lowlevel.checkpoint()
            gone = clients.pop()
            gone.close()
            await clients[0].say(*[b"(Publish t %d)" % number for number in range(len(clients))])
            assert isinstance(await owner.frame(), Declared)
        assert old.subscriber_count() == 0
        assert left.largest_fall() == 1
        new = host.server.catalogue.lookup(b"t")
        assert new is not None
        assert new is not old
        await eventually(lambda: new.subscriber_count() == len(clients))
        if delivery == b"Broadcast":
            for client in clients:
                assert await client.bodies(len(clients)) == [b"%d" % number for number in range(len(clients))]
        else:
            got = [body for client in clients for body in await client.bodies(1)]
            assert sorted(got, key=int) == [b"%d" % number for number in range(len(clients))]
