"""Ends a connection in the middle of a message that cannot be completed."""

import trio

from omq.drivers.stalled import Stalled
from omq.logs import quoted
from omq.terminals.connection.transport import Transport


class AbruptEnd:
    """The abrupt end of one connection."""

    __slots__ = ("_scope", "_stalled", "_transport", "reason")

    def __init__(self, transport: Transport, stalled: Stalled, scope: trio.CancelScope) -> None:
        """Do nothing yet. `scope` is the connection."""
        self._transport = transport
        self._stalled = stalled
        self._scope = scope
        self.reason: str | None = None
        """The reason, if the connection was ended."""

    def cut_off(self, topic: bytes, why: str) -> None:
        """End the connection, in the middle of a message of this topic."""
        peer = self._transport.peer()
        line = f"{peer}: {quoted(topic)}: closed in the middle of a message: {why}"
        self._stalled.tell(line, peer=peer, topic=topic)
        self.reason = why
        self._transport.ends(why)
        self._scope.cancel()
