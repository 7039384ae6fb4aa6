"""The credit of one channel, and the drain of its count (omq.drivers.seam has the rules)."""

from collections.abc import Callable

from omq.drivers.seam import CreditKind, Granted


class ChannelCredit:
    """The credit that a terminal granted to a channel: a window, a count, both, or none."""

    __slots__ = ("_drained", "count", "window")

    def __init__(self) -> None:
        self.window: int | None = None
        self.count: int | None = None
        """The remaining count."""
        self._drained: Callable[[int], None] | None = None

    def grant(self, n: int, kind: CreditKind) -> None:
        """Replace the credit of this kind. A new count ends a drain."""
        if kind is CreditKind.WINDOW:
            self.window = max(0, n)
        else:
            self.count = max(0, n)
            self._drained = None

    def granted(self) -> Granted:
        """Return the current credit."""
        return Granted(self.window, self.count)

    def use(self, count: int) -> None:
        """Reduce the count by delivered messages."""
        if self.count is not None:
            self.count = max(0, self.count - count)

    @property
    def is_draining(self) -> bool:
        """Whether the channel delivers the ready messages, and then takes back the rest of the count."""
        return self._drained is not None

    def drain(self, drained: Callable[[int], None]) -> None:
        """Begin a drain; `drained` is called with the rest of the count at its end."""
        self._drained = drained

    def end_drain(self) -> tuple[Callable[[int], None], int]:
        """End the drain in progress, and take the rest of the count back. Return the function to call at the
        end, and that rest.
        """
        drained, self._drained = self._drained, None
        assert drained is not None
        unused, self.count = self.count or 0, 0
        return drained, unused

    def forget_drain(self) -> None:
        """Forget the drain of a channel that is closed, without a call at its end."""
        self._drained = None
