"""What a connection has read: bounded, and taken from the server's memory (docs/ARCHITECTURE.md, "Memory").

Every connection may read a little at any time. More at once, and more of something that is not complete yet,
needs a share of what the server has for that; so no number of connections can fill the memory.
"""

import trio

from omq.drivers.memory import Memory
from omq.terminals.connection.transport import FIRST_OCTETS, Transport

FREE_OCTETS = 64 << 10
"""How much of something unfinished a connection may hold before it needs a share of the memory budget."""

LASTING_SECONDS = 10.0
"""How long something large may stay unfinished when other connections wait for memory for theirs."""


RETRY_SECONDS = 0.5
"""How often one that waits for its turn looks whether there is memory for it again."""


class Intake:
    """The reading side of one connection. `close` it at the end, whatever the reason."""

    def __init__(self, transport: Transport, memory: Memory) -> None:
        self._transport = transport
        self._memory = memory
        self._reading = 0
        self._is_streaming = False
        self._held = 0
        self._has_one = False
        self._since: float | None = None

    async def receive(self, most: int | None = None) -> bytes:
        """Read the socket: as much as there is, as far as the memory for it goes, else a little; or at `most`
        so much.

        Nothing when the other side has finished sending. Raises trio.BrokenResourceError when it broke.
        """
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

    def done(self) -> None:
        """What was received is acted on, and kept no longer."""
        self._memory.reading.give(self._reading)
        self._reading = 0

    def finished(self) -> None:
        """Something is complete: its share goes back."""
        self._memory.lines.give(self._held)
        self._held = 0
        self._since = None
        if self._has_one:
            self._has_one = False
            self._memory.one_line.release()

    async def hold(self, octets: int) -> None:
        """So many octets belong to something unfinished: hold their share, or wait for a turn without one.

        Whoever knows beforehand how long it will be asks for all of it at once.
        """
        if octets <= FREE_OCTETS:
            self.finished()
            return
        if self._since is None:
            self._since = trio.current_time()
        more = -(-octets // FREE_OCTETS) * FREE_OCTETS - self._held
        if more <= 0 or self._has_one:
            return
        while not self._memory.lines.try_take(more):
            self._since = None  # waiting is not the client's slowness
            with trio.move_on_after(RETRY_SECONDS):
                await self._memory.one_line.acquire()
                self._has_one = True
            if self._has_one:
                self._since = trio.current_time()
                return
        self._held += more
        self._since = trio.current_time() if self._since is None else self._since

    def hinders(self, now: float) -> bool:
        """Whether it has held a share for long, and others wait for one."""
        lasting = self._since is not None and now - self._since > LASTING_SECONDS
        return lasting and self._memory.one_line.statistics().tasks_waiting > 0

    def close(self) -> None:
        """Give everything back."""
        self.done()
        self.finished()
