"""A post that fails by a defect of the server: it alone fails, and everybody else goes on."""

from pathlib import Path

import pytest

from omq.protocol.omq.types import Declared, Subscribed
from omq_storage.store import Store

from .conversation import PERSISTENCES, serving
from .dmp_conversation import envelopes, lease, response, said, show

DEFECT = b"a defect of the server, whose log has more"

SPENT = (1 << 64) - 3
"""No more ids can be reserved from here on: there are none above 2^64."""


async def with_spent_ids(store: Path, persistence: str) -> None:
    """Make a store with a topic `spent` and a topic `fine` of the same level."""
    async with serving(store) as host:
        client = await host.connect()
        for name in (b"spent", b"fine"):
            declared = await client.ask(b"(Declare %s Broadcast %s)" % (name, PERSISTENCES[persistence]))
            assert isinstance(declared, Declared)
    with Store.open(store, map_size=1 << 28) as opened:
        (spent,) = (record.id for record in opened.catalogue.topics() if record.name == b"spent")
        opened.catalogue.resume({spent: SPENT})
        opened.catalogue.reserve({spent: SPENT})


@pytest.mark.parametrize("persistence", PERSISTENCES)
async def test_a_post_that_fails_by_a_defect_fails_alone(
    store: Path, caplog: pytest.LogCaptureFixture, persistence: str
) -> None:
    await with_spent_ids(store, persistence)
    async with serving(store) as host:
        client, other = await host.connect(), await host.connect()
        await client.say(b"(Publish fine 1)", b"(Publish spent x)", b"(Publish fine 2)", b"(Confirm 1)")
        assert await client.error() == b"Publish spent: " + DEFECT
        assert (await client.error()).startswith(b"Confirm 1: 1 published before it")
        # The sink is answered.
        sink = await show(host, await lease(client, b"(Put spent)"))
        assert await response(sink) == b"200 OK Sink 'spent' ready"
        await sink.send(envelopes([b"x"]))
        await sink.done()
        assert (await said(sink))[-1] == b"541 INTERNAL-ERROR 0 messages stored; " + DEFECT
        assert (await client.error()).startswith(b"Sink spent: 541 INTERNAL-ERROR")
        # And nobody else noticed.
        await other.say(b"(Publish fine 3)")
        await other.confirm()
        if persistence != "Transient":
            assert isinstance(await other.ask(b"(Subscribe fine From_beginning)"), Subscribed)
            assert await other.bodies(3) == [b"1", b"2", b"3"]
    assert "a post failed by a defect of the server" in caplog.text
    assert "Traceback" in caplog.text
