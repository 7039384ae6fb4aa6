"""AMQP 1.0: work of one connection for many links at once is divided into short steps."""

from pathlib import Path

import pytest
from counted_steps import counted_calls, watched

from omq.drivers import slices
from omq.protocol.amqp_1_0 import frames
from omq.protocol.amqp_1_0.connection import FLOWS_AT_ONCE
from omq.protocol.amqp_1_0.performatives import Attach, Flow, Transfer, write

from .amqp_1_0_peer import data, opened, source, target
from .conversation import InProcess, serving

LINKS = 1000

SHORT_STEP = 4 * LINKS
"""A number of calls of functions that no step makes; the credit of all links takes more."""

QUEUES = 30


def messages_in(host: InProcess) -> int:
    """Return the number of messages that came into all queues."""
    return sum(driver.statistics().messages_in for driver in host.server.catalogue)


def producers(links: int) -> list[Attach]:
    """Return the attaches of links on which the client sends."""
    return [
        Attach(
            f"{each}",
            each,
            False,
            source=source("here"),
            target=target("unicast.x"),
            initial_delivery_count=0,
        )
        for each in range(links)
    ]


async def test_the_credit_of_many_links_leaves_in_short_steps(store: Path) -> None:
    """Links that are attached in one read, and get their credit together, each after its attach."""
    async with serving(store) as host, opened(host.port) as client:
        with counted_calls() as calls:
            await client.say(*producers(LINKS))
            attached: list[int] = []
            credited: list[int | None] = []
            while len(credited) < LINKS:
                said, _ = await client.next()
                if isinstance(said, Attach):
                    attached.append(said.handle)
                else:
                    assert isinstance(said, Flow)
                    assert said.handle == attached[-1]
                    assert said.link_credit
                    credited.append(said.handle)
        assert attached == credited == list(range(LINKS))
        assert calls.longest < SHORT_STEP


async def test_a_message_follows_the_attach_of_its_link_behind_much_credit(store: Path) -> None:
    """The connection sends to itself, and the message is ready before the attach of its consumer leaves."""
    links = 3 * FLOWS_AT_ONCE
    async with serving(store) as host, opened(host.port) as client:
        consumer = Attach("consumer", links, True, source=source("unicast.x"), target=target("here"))
        credit = Flow(0, 1 << 20, 0, 1 << 20, links, 0, 1)
        said = [frames.write(0, write(each)) for each in (*producers(links), consumer, credit)]
        said.append(frames.write(0, write(Transfer(0, 0, b"0", 0, settled=True)), data(b"x")))
        await client.send(b"".join(said))
        names = []
        while not isinstance((heard := await client.next())[0], Transfer):
            if isinstance(heard[0], Attach):
                names.append(heard[0].name)
        assert names[-1] == "consumer"
        assert heard[1] == data(b"x")


async def test_messages_on_many_links_are_posted_in_slices(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        declaring = await host.connect()
        for each in range(QUEUES):
            await declaring.ask(b"(Declare q%d Round_robin Transient)" % each)
            await client.sender(f"q{each}", each)
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1)
        transfers = [Transfer(each, each, b"%d" % each, 0) for each in range(QUEUES)]
        with watched(lambda: messages_in(host)) as posted:
            await client.say(*transfers, payload=data(b"x"))
            await client.accepted(QUEUES - 1)
        assert messages_in(host) == QUEUES
        assert posted.largest_rise() == 1
