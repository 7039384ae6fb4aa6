"""The limit of the cursor of a broadcast channel: the end of the channel, and its credit."""

from omq.drivers.credit import ChannelCredit
from omq.drivers.seam import CreditKind
from omq.drivers.unconfirmed import Unconfirmed
from omq.drivers.unsettled import Unsettled, number_of


class CursorLimit:
    """The lowest of all limits is one id, `bound`. It stays while the cursor moves, and moves when messages
    are settled; call `bind` after every change.
    """

    __slots__ = ("_share", "_unsettled", "bound", "credit", "end")

    def __init__(self, share: Unconfirmed) -> None:
        """Create a limit without credit, where `share` counts the memory for unsettled messages."""
        self.bound = 0
        """The id of the first message that the subscriber may not have yet."""
        self.credit = ChannelCredit()
        self.end: int | None = None
        """The id of the first message that the channel never delivers."""
        self._share = share
        self._unsettled: Unsettled | None = None
        """The messages that were taken and are not settled; None without a window."""

    @property
    def unsettled(self) -> int:
        """The number of messages in the window."""
        return 0 if self._unsettled is None else len(self._unsettled)

    def grant(self, n: int, kind: CreditKind, outstanding: range) -> None:
        """Grant credit to a subscriber to which these messages are being sent."""
        self.credit.grant(n, kind)
        if kind is CreditKind.WINDOW and self._unsettled is None:
            self._unsettled = Unsettled(self._share)
            self.give(outstanding)

    def give(self, ids: range) -> None:
        """Count messages that the subscriber gets: with a window they are unsettled from now on."""
        if self._unsettled is not None and ids:
            self._unsettled.add(ids)

    def take_back(self, ids: range) -> None:
        """Take back messages that the subscriber did not get, or gets again."""
        if self._unsettled is not None and ids:
            self._unsettled.take(ids)

    def settle(self, ids: range) -> int:
        """Settle messages. Return the number of those that were unsettled."""
        return 0 if self._unsettled is None else number_of(self._unsettled.take(ids))

    def bind(self, unwritten: int, given: int) -> None:
        """Compute `bound`, when `unwritten` is the first message that is not sent, and `given` the first one
        of which the subscriber was given nothing. There is an end or credit.
        """
        bounds = [] if self.end is None else [self.end]
        if self.credit.count is not None:
            bounds.append(unwritten + self.credit.count)
        if self.credit.window is not None:
            bounds.append(given + self.credit.window - self.unsettled)
        self.bound = min(bounds)

    def close(self) -> None:
        """Free the memory of the unsettled messages of a channel that is closed."""
        self.credit.forget_drain()
        if self._unsettled is not None:
            self._unsettled.clear()
