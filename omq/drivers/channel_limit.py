"""The limit of one channel of a round-robin topic, and the unsettled messages that count in it."""

from collections.abc import Iterable

from omq.drivers.credit import ChannelCredit
from omq.drivers.shared_window import SharedWindow
from omq.drivers.unconfirmed import Unconfirmed
from omq.drivers.unsettled import Unsettled
from omq_storage.runs import Run


class ChannelLimit:
    """The credit of a channel, a window that it shares with others, and the memory for ids limit the messages
    that are assigned to its subscriber and not settled.
    """

    __slots__ = ("_share", "credit", "unsettled", "window")

    def __init__(self, share: Unconfirmed) -> None:
        """Create a limit without credit, where `share` counts the memory for unsettled messages."""
        self._share = share
        self.credit = ChannelCredit()
        self.window: SharedWindow | None = None
        """The window that it shares with others: see `share`."""
        self.unsettled = Unsettled(share)
        """The messages, which only this class changes."""

    def room(self, most: int, unsent: int) -> int:
        """Return the number of messages that may be assigned now, N (`most`) at most. Some are unsent."""
        # With few calls: of thousands of subscribers, many may be asked for each message.
        room = most
        if self._share.is_spent and not self.unsettled.may_grow():
            return 0
        credit = self.credit
        if credit.window is not None and (left := credit.window - len(self.unsettled)) < room:
            room = left
        if credit.count is not None and (left := credit.count - unsent) < room:
            room = left
        if self.window is not None:
            # One at a time, because each changes the room of the others.
            room = min(room, self.window.room(), 1)
        return room if room > 0 else 0

    def add(self, ids: range, deliveries: int) -> None:
        """Count messages that are assigned, with the same number of earlier deliveries."""
        self.unsettled.add(ids, deliveries)
        if self.window is not None:
            self.window.count(self, len(self.unsettled))

    def take_first(self, id: int) -> bool:
        """Remove one message if it was never delivered before. Return whether it was there."""
        if not self.unsettled.take_first(id):
            return False
        if self.window is not None:
            self.window.count(self, len(self.unsettled))
        return True

    def take(self, parts: Iterable[range]) -> list[Run]:
        """Remove messages, and return those that were unsettled. `SharedWindow.freed` must follow."""
        taken = [run for ids in parts for run in self.unsettled.take(ids)]
        if self.window is not None:
            self.window.count(self, len(self.unsettled))
        return taken

    def share(self, window: SharedWindow | None) -> None:
        """Let a window that other channels share limit it, too; None: no longer."""
        if self.window is not None:
            self.window.leave(self)
        self.window = window
        if window is not None:
            window.join(self, len(self.unsettled))

    def close(self) -> None:
        """Free the memory, and leave the window: the channel is closed. Its messages may still be settled by
        somebody who does not know that yet.
        """
        self.credit.forget_drain()
        self.unsettled.clear()
        self.share(None)
