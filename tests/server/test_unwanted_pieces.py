"""A client unsubscribes while the server reads the first piece of a message for it."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from quietness import quiet

from omq.drivers.seam import EndReason, Piece
from omq.model import FromCurrent
from omq.protocol.omq.types import Unsubscribed
from omq_storage.bodies import LargeBodies

from .conversation import declared, eventually, publish, serving

MIB = 1 << 20


class Worker:
    """The terminal's side of a channel that needs to know nothing."""

    direct = None

    def wake(self) -> None:
        pass

    def replaced(self, channel: object) -> None:
        raise AssertionError

    def ended(self, end: EndReason) -> None:
        raise AssertionError


@pytest.mark.parametrize("credit", [b"", b"(Request t 5)\n"], ids=["without credit", "with credit"])
async def test_a_message_that_was_not_sent_counts_no_delivery(
    store: Path, monkeypatch: pytest.MonkeyPatch, credit: bytes
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    read = LargeBodies.open_message

    def read_slowly(self: LargeBodies, *arguments: Any) -> object:
        reading.set()
        assert go_on.wait(60)
        return read(self, *arguments)

    sizes = {"max_message_bytes": 4 * MIB, "max_line_bytes": 4 * MIB}
    async with serving(store, **sizes) as host:
        client = await declared(host, b"Round_robin (Persistent Weak)")
        await client.send(publish(b"t", [b"x" * 3 * MIB]))
        await client.confirm()
    async with serving(store, **sizes) as host:  # again, so the message is in the store only
        worker = await host.connect()
        monkeypatch.setattr(LargeBodies, "open_message", read_slowly)
        await worker.send(credit)
        await worker.ask(b"(Subscribe t From_current)")
        await eventually(reading.is_set)
        await worker.say(b"(Unsubscribe t)")
        await eventually(lambda: not any(each.statistics().subscriptions for each in host.server.terminals()))
        go_on.set()
        assert isinstance(await worker.frame(), Unsubscribed)
        await quiet()
        driver = host.server.catalogue.lookup(b"t")
        assert driver is not None
        channel = driver.open(Worker(), FromCurrent())
        with trio.fail_after(60):
            while (taken := await channel.take()) is None:
                await quiet()
        assert isinstance(taken, Piece)
        assert (taken.message, taken.deliveries) == (1, 0)
        assert driver.statistics().messages_out == 0
        channel.close()
