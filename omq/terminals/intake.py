"""What a connection has read: bounded, and taken from the server's memory (design, section 2).

Every connection may read a little at any time. More at once, and more of something that is not complete yet,
needs a share of what the server has for that; so no number of connections can fill the memory.
"""

import trio

from omq.drivers.memory import Memory
from omq.terminals.transport import FIRST_OCTETS, Transport

FREE_OCTETS = 64 << 10
"""How much of something unfinished a connection may hold before it needs a share of the memory budget."""

LASTING_SECONDS = 10.0
"""How long something large may stay unfinished when other connections wait for memory for theirs."""


class Intake:
    """The reading side of one connection. `close` it at the end, whatever the reason."""

    def __init__(self, transport: Transport, memory: Memory) -> None:
        self._transport = transport
        self._memory = memory
        self._reading = 0
        self._held = 0
        self._since: float | None = None

    async def receive(self) -> bytes:
        """Read the socket: as much as there is, as far as the memory for it goes, else a little.

        Nothing when the other side has finished sending. Raises trio.BrokenResourceError when it broke.
        """
        received = await self._transport.receive()
        if len(received) == FIRST_OCTETS:
            more = self._transport.more()
            if more and self._memory.reading.try_take(more):
                self._reading = more
                received += await self._transport.receive_more(more)
        return received

    def done(self) -> None:
        """What was received is acted on, and kept no longer."""
        self._memory.reading.give(self._reading)
        self._reading = 0

    def finished(self) -> None:
        """Something is complete: its share goes back."""
        self._memory.lines.give(self._held)
        self._held = 0
        self._since = None

    async def hold(self, octets: int) -> None:
        """So many octets belong to something unfinished: hold their share, or wait for it.

        Whoever knows beforehand how long it will be asks for all of it at once: those who wait with a part
        in their hands can wait for one another.
        """
        if octets <= FREE_OCTETS:
            self.finished()
        elif octets > self._held:
            more = -(-octets // FREE_OCTETS) * FREE_OCTETS - self._held
            await self._memory.lines.take(more, self._held)
            self._held += more
            if self._since is None:
                self._since = trio.current_time()

    def hinders(self, now: float) -> bool:
        """Whether it has held a share for long, and others wait for one."""
        lasting = self._since is not None and now - self._since > LASTING_SECONDS
        return lasting and self._memory.lines.is_wanted

    def close(self) -> None:
        """Give everything back."""
        self.done()
        self.finished()
