"""The Statistics frames for a connection that watches: one after another, as its client takes them."""

from omq.access.administration import Administration
from omq.access.watches import Watcher
from omq.protocol.omq import types
from omq.protocol.omq.frames import encode
from omq.terminals.connection.sender import Sender
from omq.terminals.omq.replies import Replies
from omq.watching import Began


class Watching:
    """The Watch command of one connection."""

    __slots__ = ("_replies", "_sender", "watcher")

    def __init__(self, sender: Sender, replies: Replies) -> None:
        self._sender = sender
        self._replies = replies
        self.watcher: Watcher | None = None
        """None while the client watches nothing: to look here is no call."""

    def watch(self, administration: Administration, period: int) -> None:
        """Begin to watch, in place of an earlier watch; the period 0 ends it. Raises Refused."""
        watcher = administration.watch(period, self._sender.signal.set, self.watcher)
        self.close()
        self.watcher = watcher
        self._replies.add(types.Watched(Began(period)), None if watcher is None else watcher.start)

    def take(self) -> bytes:
        """Return the next frame; nothing until there is one."""
        watcher = self.watcher
        if watcher is None or watcher.is_idle:
            return b""
        statistics = watcher.take()
        if not watcher.is_idle:
            # The sender lets the other tasks run before it asks for the next frame.
            self._sender.signal.set()
        return b"" if statistics is None else encode(types.Watched(statistics))

    def close(self) -> None:
        """Watch no more."""
        if self.watcher is not None:
            self.watcher.close()
            self.watcher = None
