"""However many connections have much to send, the sockets are looked at again soon."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import trio
from trio.testing import wait_all_tasks_blocked

from omq.drivers.seam import Flow
from omq.drivers.stalled import Stalled
from omq.drivers.tail import TailMemory
from omq.terminals.connection.pace import ROUND_OCTETS, ROUND_TURNS, Pace
from omq.terminals.connection.sender import LEAST_SHARED_OCTETS, MOST_SHARED_OCTETS, Sender
from omq.terminals.connection.transport import Transport

from .conversation import PATIENCE
from .test_sender import Terminal

CROWD = 8 * ROUND_TURNS


class Flood:
    """A source that has always something to send."""

    is_exempt = False
    flow: Flow | None = None

    def __init__(self, sender: Sender, octets: int, turns: int) -> None:
        self.sender = sender
        self.octets = octets
        self.turns = turns

    async def take_turn(self) -> bool:
        self.turns -= 1
        await self.sender.forwarder.send([bytes(self.octets)])
        return self.turns > 0


async def drained(stream: trio.SocketStream) -> None:
    """Read all there is, as a client does that is quick."""
    while await stream.receive_some(1 << 20):
        pass


class BusyConnections:
    """Connections that all have much to send, and what they have sent after each round of the scheduler."""

    def __init__(
        self, pace: Pace, nursery: trio.Nursery, stack: AsyncExitStack, listener: trio.SocketListener
    ) -> None:
        self.pace = pace
        self._listener = listener
        self.port: int = listener.socket.getsockname()[1]
        self.transports: list[Transport] = []
        self._nursery = nursery
        self._stack = stack

    async def add(self, octets: int, turns: int) -> Sender:
        client = await trio.open_tcp_stream("127.0.0.1", self.port)
        transport = Transport(await self._listener.accept())
        self._stack.callback(transport.close)
        stream = await self._stack.enter_async_context(client)
        self.transports.append(transport)
        sender = Sender(transport, Stalled(0), TailMemory(1 << 20), self.pace, self._nursery.cancel_scope)
        sender.ready(Flood(sender, octets, turns))
        self._nursery.start_soon(drained, stream)
        self._nursery.start_soon(sender.run, Terminal())
        return sender

    @property
    def sent(self) -> int:
        return sum(transport.sent for transport in self.transports)

    async def rounds(self, is_over: Callable[[], bool]) -> list[int]:
        """Return what was sent before each round, until it is over."""
        seen = [self.sent]
        with trio.fail_after(PATIENCE):
            while not is_over():
                await trio.lowlevel.checkpoint()
                seen.append(self.sent)
        return seen


@asynccontextmanager
async def crowd_of(pace: Pace) -> AsyncIterator[BusyConnections]:
    """Yield a crowd without connections, whose rounds are paced."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        nursery.start_soon(pace.run)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        yield BusyConnections(pace, nursery, stack, await stack.enter_async_context(listener))
        nursery.cancel_scope.cancel()


async def test_a_round_sends_no_more_than_its_octets() -> None:
    pace = Pace()
    async with crowd_of(pace) as crowd:
        for _ in range(CROWD):
            await crowd.add(MOST_SHARED_OCTETS, 4)
        whole = CROWD * 4 * MOST_SHARED_OCTETS
        seen = await crowd.rounds(lambda: crowd.sent == whole)
        # In the first round nobody is known to send much. A turn that has begun is completed.
        most = max(after - before for before, after in pairwise(seen[len(seen) // 4 :]))
        assert most <= ROUND_OCTETS + 2 * ROUND_TURNS * MOST_SHARED_OCTETS < CROWD * MOST_SHARED_OCTETS
        assert pace.waiting == 0


async def test_a_light_sender_does_not_wait_for_heavy_ones() -> None:
    pace = Pace()
    async with crowd_of(pace) as crowd:
        for _ in range(CROWD):
            await crowd.add(MOST_SHARED_OCTETS, 1000)
        await crowd.rounds(lambda: pace.waiting >= CROWD // 2)
        little = await crowd.add(LEAST_SHARED_OCTETS, 20)
        rounds = await crowd.rounds(lambda: little.sent == 20 * LEAST_SHARED_OCTETS)
        # A turn takes a round or two, and the reader of the other end some more.
        assert len(rounds) < 20 * 4
        assert pace.waiting >= 1


async def test_the_turns_that_wait_continue_in_their_order_a_few_in_each_round() -> None:
    pace = Pace()
    order: list[int] = []

    async def turn(number: int) -> None:
        await pace.wait()
        order.append(number)
        pace.spend(1)

    async with trio.open_nursery() as nursery:
        pace.spend(ROUND_OCTETS - 1)
        assert not pace.is_spent
        pace.spend(1)
        assert pace.is_spent
        for number in range(3 * ROUND_TURNS + 1):
            nursery.start_soon(turn, number)
            await wait_all_tasks_blocked()
        assert (pace.waiting, order) == (3 * ROUND_TURNS + 1, [])
        nursery.start_soon(pace.run)
        seen = [0]
        with trio.fail_after(PATIENCE):
            while len(order) < 3 * ROUND_TURNS + 1:
                await trio.lowlevel.checkpoint()
                seen.append(len(order))
        # Trio runs the tasks of one round in any order: this one saw a part of two rounds at most.
        assert max(after - before for before, after in pairwise(seen)) <= 2 * ROUND_TURNS
        for first in range(0, 3 * ROUND_TURNS, ROUND_TURNS):
            assert sorted(order[first : first + ROUND_TURNS]) == [*range(first, first + ROUND_TURNS)]
        await wait_all_tasks_blocked()
        assert (pace.waiting, pace.is_spent) == (0, False)
        nursery.cancel_scope.cancel()
