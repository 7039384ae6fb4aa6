"""One window for several channels: a prefetch that the consumers of an AMQP channel have together."""

from collections.abc import Callable


class SharedWindow:
    """A window that several channels share: the number of unsettled messages of all of them together."""

    __slots__ = ("_is_freed", "_limit", "_members", "_used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._members: dict[object, tuple[int, Callable[[], None]]] = {}
        """The number of unsettled messages of each channel, and the function to call when it may get more."""
        self._is_freed = False
        """Whether there is room since the last call of these functions, where there was none."""

    def join(self, member: object, unsettled: int, can_take: Callable[[], None]) -> None:
        """Add a channel with N `unsettled` messages. `can_take` is called when it may get more."""
        self._members[member] = 0, can_take
        self.count(member, unsettled)

    def count(self, member: object, unsettled: int) -> None:
        """Note the number of unsettled messages of a channel. `freed` must follow where it is lower."""
        before, can_take = self._members[member]
        self._members[member] = unsettled, can_take
        self._change(self._limit, self._used + unsettled - before)

    def leave(self, member: object) -> None:
        """Remove a channel, which is closed: it has no unsettled messages any more."""
        if member in self._members:
            self.count(member, 0)
            del self._members[member]
            self.freed()

    def set(self, limit: int) -> None:
        """Change the window."""
        self._change(limit, self._used)
        self.freed()

    def _change(self, limit: int, used: int) -> None:
        self._is_freed |= self.room() <= 0 < limit - used
        self._limit, self._used = limit, used

    def room(self) -> int:
        """Return the number of messages that the channels may still have."""
        return self._limit - self._used

    def freed(self) -> None:
        """Let the channels get more if there was no room before, and there is some now."""
        if self._is_freed:
            self._is_freed = False
            # The channels of one topic have the same function.
            for can_take in {can_take for _, can_take in self._members.values()}:
                can_take()
