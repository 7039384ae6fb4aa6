"""However many connections have much to send, the sockets are looked at again soon."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise

import trio
from trio.testing import wait_all_tasks_blocked

from omq.drivers.errands import Errands
from omq.drivers.seam import CursorChannel
from omq.drivers.stalled import Stalled
from omq.drivers.tail import TailMemory
from omq.terminals.connection.pace import FEW_WAITING, OF_FEW, OF_MANY, ROUND_OCTETS, TURN_OCTETS, Pace
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.shared_turns import LEAST_SHARED_OCTETS, MOST_SHARED_OCTETS
from omq.terminals.connection.transport import Transport

from .conversation import PATIENCE
from .test_sender import Terminal
from .transports import connected

BEGUN = ROUND_OCTETS // TURN_OCTETS
"""The most turns that begin in a round before others wait."""

CROWD = 4 * BEGUN


class Flood:
    """A source that has always something to send."""

    is_exempt = False
    flow: CursorChannel | None = None
    work = None
    after = 0

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
        sender = Sender(
            transport, Stalled(0), TailMemory(1 << 20), self.pace, self._nursery.cancel_scope, Errands().begin
        )
        sender.ready(Flood(sender, octets, turns))
        self._nursery.start_soon(drained, stream)
        self._nursery.start_soon(sender.run, Terminal(), self._nursery)
        return sender

    @property
    def sent(self) -> int:
        return sum(transport.sent for transport in self.transports)

    async def rounds(self, is_over: Callable[[], bool]) -> list[int]:
        """Return the octets sent before each round, until it is over."""
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
        assert most <= ROUND_OCTETS + OF_FEW.turns * MOST_SHARED_OCTETS < CROWD * MOST_SHARED_OCTETS
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


async def test_a_round_has_few_turns_however_little_they_send() -> None:
    pace = Pace()
    async with crowd_of(pace) as crowd:
        for _ in range(CROWD):
            await crowd.add(1, 4)
        seen = await crowd.rounds(lambda: crowd.sent == CROWD * 4)
        # This task sees a part of two rounds at most.
        most = max(after - before for before, after in pairwise(seen))
        assert most <= 2 * max(BEGUN, OF_FEW.turns) < CROWD
        assert pace.waiting == 0


async def test_a_waiting_connection_is_woken_when_it_may_send() -> None:
    pace = Pace()
    async with crowd_of(pace) as crowd:
        senders = [await crowd.add(1, 1) for _ in range(CROWD)]
        await crowd.rounds(lambda: crowd.sent == CROWD)
        await wait_all_tasks_blocked()
        for sender in senders:
            sender.ready(Flood(sender, 1, 1))
        woken = sum(sender.signal.is_set for sender in senders)
        assert (woken, pace.waiting) == (BEGUN, CROWD - woken)
        await crowd.rounds(lambda: crowd.sent == 2 * CROWD)
        assert pace.waiting == 0


async def test_connections_whose_clients_take_more_at_the_same_time_go_on_in_turns() -> None:
    pace = Pace()
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        nursery.start_soon(pace.run)
        pairs = [await stack.enter_async_context(connected()) for _ in range(CROWD)]
        for transport, _ in pairs:
            transport.pace = pace
            nursery.start_soon(transport.send, bytes(MOST_SHARED_OCTETS))
        await wait_all_tasks_blocked()
        before = [transport.sent for transport, _ in pairs]
        for _, stream in pairs:
            os.read(stream.socket.fileno(), MOST_SHARED_OCTETS)
        seen = [0]
        with trio.fail_after(PATIENCE):
            while seen[-1] < CROWD:
                await trio.lowlevel.checkpoint()
                now = [transport.sent for transport, _ in pairs]
                seen.append(sum(after > earlier for earlier, after in zip(before, now, strict=True)))
        assert max(after - before for before, after in pairwise(seen)) <= 2 * BEGUN < CROWD
        nursery.cancel_scope.cancel()


async def test_the_turns_that_wait_begin_in_their_order_a_few_in_each_round() -> None:
    pace = Pace()
    order: list[tuple[str, int]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pace.run)
        await wait_all_tasks_blocked()
        for number in range(BEGUN):
            assert pace.begin(partial(order.append, ("none", number)), is_heavy=False)
        for number in range(2 * OF_FEW.turns):
            assert not pace.begin(partial(order.append, ("heavy", number)), is_heavy=True)
        for number in range(OF_FEW.turns + 1):
            assert not pace.begin(partial(order.append, ("light", number)), is_heavy=False)
        whole = pace.waiting
        seen = [0]
        with trio.fail_after(PATIENCE):
            while len(order) < whole:
                await trio.lowlevel.checkpoint()
                seen.append(len(order))
        # Trio runs the tasks of one round in any order: this one saw a part of two rounds at most.
        assert max(after - before for before, after in pairwise(seen)) <= 3 * OF_FEW.turns
        for kind in ("heavy", "light"):
            numbers = [number for which, number in order if which == kind]
            assert numbers == sorted(numbers)
        assert order.index(("light", OF_FEW.turns)) < order.index(("heavy", 2 * OF_FEW.turns - 1))
        await wait_all_tasks_blocked()
        assert pace.waiting == 0
        assert pace.begin(lambda: None, is_heavy=True)
        nursery.cancel_scope.cancel()


async def test_fewer_turns_begin_in_a_round_while_many_wait() -> None:
    """Otherwise the input of all clients waits longer, between the rounds of 200 subscribers."""
    pace = Pace()
    begun: list[bool] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pace.run)
        await wait_all_tasks_blocked()
        while pace.left > 0:
            pace.spend(TURN_OCTETS)
        for is_heavy in (True, False) * FEW_WAITING * 2:
            assert not pace.begin(partial(begun.append, is_heavy), is_heavy=is_heavy)
        rounds = 0
        with trio.fail_after(PATIENCE):
            while pace.waiting > FEW_WAITING:
                await trio.lowlevel.checkpoint()
                rounds += 1
            assert rounds >= len(begun) // (OF_MANY.turns + OF_MANY.turns // 2)
            while pace.waiting:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
