"""The frames that wait for the windows of a client's sessions, in the memory for stalled clients.

A message, or a piece of a long one, that is longer than the window waits in memory from its first frame on,
until all of it has left. A connection has one of them at a time. When all connections together have too many,
those whose clients have taken nothing for the longest time are closed (`omq.drivers.stalled`).
"""

from contextlib import ExitStack

import trio

from omq.drivers.stalled import FRAMES, HeldReader, Stalled
from omq.terminals.connection.transport import Transport


class WaitingFrames:
    """The frames of one connection that wait for windows. Always call `close` at the end."""

    def __init__(self, stalled: Stalled, transport: Transport, scope: trio.CancelScope) -> None:
        """Count nothing yet. `scope` is the connection: it is cancelled if others need the memory."""
        self._stalled = stalled
        self._transport = transport
        self._scope = scope
        self._counted: ExitStack | None = None  # while it counts: an empty one takes 800 octets
        self._holder: HeldReader | None = None
        self._octets = 0

    def look(self, octets: int) -> None:
        """Count that N `octets` wait now."""
        if octets == self._octets:
            return
        before, self._octets = self._octets, octets
        if not octets:
            self.close()
        elif self._holder is None:
            holding = self._stalled.holding(FRAMES, id(self), octets, self._cut_off, self._scope)
            self._counted = ExitStack()
            self._holder = self._counted.enter_context(holding)
        elif octets < before:
            self._holder.moved()

    def close(self) -> None:
        """Count nothing any more."""
        self._octets = 0
        self._holder = None
        counted, self._counted = self._counted, None
        if counted is not None:
            counted.close()

    def _cut_off(self, why: str) -> None:
        peer = self._transport.peer()
        self._stalled.tell(f"{peer}: closed in the middle of a message: {why}", peer=peer, topic=b"")
        self._transport.ends(why)
        self._scope.cancel()
