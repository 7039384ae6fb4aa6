"""What a connection held is free as soon as it is over: no garbage collection has to find it.

A collection keeps everybody waiting, and until it comes what is held stays held.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from omq.drivers.broadcast_channel import BroadcastChannel
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.terminals.connection.transport import Transport
from omq.terminals.dmp.terminal import DmpTerminal
from omq.terminals.omq.subscriptions import OmqSubscription, Subscriptions
from omq.terminals.omq.terminal import OmqTerminal

from . import dmp_conversation as dmp
from .conversation import InProcess, eventually, serving

KINDS = (
    OmqTerminal,
    DmpTerminal,
    OmqSubscription,
    Subscriptions,
    Transport,
    BroadcastChannel,
    RoundRobinChannel,
)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing is collected meanwhile."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[object]:
    return [found for found in gc.get_objects() if isinstance(found, KINDS)]


def stuck_answers(host: InProcess) -> int:
    """How many octets of answers wait, over all connections."""
    return sum(terminal.statistics().held.answers for terminal in host.server.terminals())


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_connections_leave_nothing_behind(store: Path, how: str) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast (Persistent Weak))")
        await client.ask(b"(Declare work Round_robin Transient)")
        await client.ask(b"(Subscribe t From_beginning)")
        await client.ask(b"(Subscribe work From_current)")
        await client.ask(b"(Put t)")
        await client.ask(b"(Get t From_current)")
        others = [await dmp.sink(host, client), (await dmp.feed(host, client)).connection]
        await others[0].send(dmp.envelopes([b"a", b"b"]) + b"\0\0\1")
        stuck = await host.connect(receive_octets=4096)
        # Answers that wait, of each kind, and a line that is not complete.
        await stuck.say(b"(Publish t x)")
        while not stuck_answers(host):  # the kernel decides how much it takes for a client that does not read
            await stuck.say(*[b"(Declare t Broadcast (Persistent Weak))"] * 500)
            await trio.testing.wait_all_tasks_blocked(0.01)
        await stuck.say(
            b"(Fetch t 1 5)", b"(Confirm 1)", b"Topics", b"(Nonsense)", b"(Subscribe t From_current)"
        )
        await stuck.send(b"(Publish t " + b"x" * 1000)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert stuck_answers(host) > 0
        for each in (client, stuck, *others):
            if how == "reset":
                each.reset()
            else:
                each.close()
        await eventually(lambda: host.server.connections == 0)
        await eventually(lambda: not left())
