"""One window for several channels: a prefetch that the consumers of an AMQP channel have together."""

from collections.abc import Callable


class SharedWindow:
    """A window that several channels share: the number of unsettled messages of all of them together."""

    __slots__ = ("_members", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._members: dict[object, tuple[Callable[[], int], Callable[[], None]]] = {}

    def join(self, member: object, unsettled: Callable[[], int], can_take: Callable[[], None]) -> None:
        """Add a channel. `unsettled` counts its messages; `can_take` is called when it may get more."""
        self._members[member] = unsettled, can_take

    def leave(self, member: object) -> None:
        """Remove a channel, which is closed: it has no unsettled messages any more."""
        if self._members.pop(member, None) is not None:
            self.freed()

    def set(self, limit: int) -> None:
        """Change the window."""
        self.limit = limit
        self.freed()

    def room(self) -> int:
        """Return the number of messages that the channels may still have."""
        return self.limit - sum(unsettled() for unsettled, _ in self._members.values())

    def freed(self) -> None:
        """Let every channel get more, because messages of one channel are settled."""
        for _, can_take in list(self._members.values()):
            can_take()
