"""What a connection has read: bounded, and taken from the server's memory (docs/ARCHITECTURE.md, "Memory").

Every connection may read a little at any time. More at once, and more of something that is not complete yet,
needs a share of what the server has for that; so no number of connections can fill the memory.
"""

from collections.abc import Callable

from omq.drivers.memory import Memory
from omq.drivers.unfinished import Holding
from omq.terminals.connection.transport import FIRST_OCTETS, Transport

FREE_OCTETS = 64 << 10
"""How much of something unfinished a connection may hold before it needs a share of the memory budget."""


class Intake:
    """The reading side of one connection. `close` it at the end, whatever the reason."""

    def __init__(self, transport: Transport, memory: Memory, give_way: Callable[[], None]) -> None:
        """`give_way` ends the connection: others wait for memory that it holds, and it does not go on."""
        self._transport = transport
        self._memory = memory
        self._reading = 0
        self._is_streaming = False
        self._holding = Holding(give_way)

    async def receive(self, most: int | None = None) -> bytes:
        """Read the socket: as much as there is, as far as the memory for it goes, else a little; or at `most`
        so much.

        Nothing when the other side has finished sending. Raises trio.BrokenResourceError when it broke.
        """
        if self._holding.is_empty:
            return await self._receive(most)
        received = b""
        self._holding.begin_wait()
        try:
            received = await self._receive(most)
        finally:
            self._holding.end_wait(len(received))
        return received

    async def _receive(self, most: int | None) -> bytes:
        if most is not None:
            return await self._transport.receive(most)
        if self._is_streaming:
            # There was much the last time: where there is much again, all of it is one read.
            octets = self._take_arrived()
            if octets and (received := await self._transport.receive_arrived(octets)):
                return received
            self.done()
        received = await self._transport.receive()
        self._is_streaming = len(received) == FIRST_OCTETS
        if self._is_streaming:
            octets = self._take_arrived()
            if octets:
                received += await self._transport.receive_arrived(octets)
        return received

    def _take_arrived(self) -> int:
        """How much more can be read at once, as far as the memory for it goes; it is held then."""
        arrived = self._transport.arrived()
        if not self._memory.reading.try_take(arrived):
            return 0
        self._reading = arrived
        return arrived

    @property
    def reading(self) -> int:
        """How many octets of the memory for reading it holds."""
        return self._reading

    @property
    def unfinished(self) -> int:
        """How many octets of the memory for what is unfinished it holds."""
        return self._holding.octets

    def done(self) -> None:
        """What was received is acted on, and kept no longer."""
        self._memory.reading.give(self._reading)
        self._reading = 0

    def finished(self) -> None:
        """Something is complete: its share goes back."""
        self._memory.unfinished.release(self._holding)

    async def hold(self, octets: int) -> None:
        """So many octets belong to something unfinished: hold their share, or wait for a turn without one.

        Whoever knows beforehand how long it will be asks for all of it at once.
        """
        if octets <= FREE_OCTETS:
            self.finished()
            return
        await self._memory.unfinished.hold(self._holding, -(-octets // FREE_OCTETS) * FREE_OCTETS)

    def close(self) -> None:
        """Give everything back. Nothing here points back at the connection afterwards."""
        self.done()
        self.finished()
        self._holding.give_way = _nothing


def _nothing() -> None:
    """Is to be ended any more."""
