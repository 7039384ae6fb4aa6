"""One window for several channels: a prefetch that the consumers of an AMQP channel have together."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

TOLD_AT_ONCE = 16
"""The number of topics that are told of room in one step. More of them are told while there is still room."""


class SharedWindow:
    """A window that several channels share: the number of unsettled messages of all of them together."""

    __slots__ = ("_begin", "_is_freed", "_is_telling", "_limit", "_members", "_used", "_waiting")

    def __init__(self, limit: int, begin: Callable[[Iterator[None]], None]) -> None:
        """Create a window for N (`limit`) messages. `begin` does long work, in steps (`Errands.begin`)."""
        self._begin = begin
        self._limit = limit
        self._used = 0
        self._members: dict[object, int] = {}
        """The number of unsettled messages of each channel."""
        self._waiting: OrderedDict[Callable[[SharedWindow], None], None] = OrderedDict()
        """The functions to call when there is room, the one that waits longest first."""
        self._is_freed = False
        """Whether there is room since the last call of `freed`, where there was none."""
        self._is_telling = False
        """Whether those that were too many for one step are being told."""

    def join(self, member: object, unsettled: int) -> None:
        """Add a channel with N `unsettled` messages."""
        self._members[member] = 0
        self.count(member, unsettled)

    def count(self, member: object, unsettled: int) -> None:
        """Note the number of unsettled messages of a channel. `freed` must follow where it is lower."""
        before = self._members[member]
        self._members[member] = unsettled
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

    def call_when_freed(self, freed: Callable[["SharedWindow"], None]) -> None:
        """Call a function, once, when there is room again. There is none now, or less than is wanted."""
        self._waiting[freed] = None

    def forget(self, freed: Callable[["SharedWindow"], None]) -> None:
        """Cancel `call_when_freed`."""
        self._waiting.pop(freed, None)

    def freed(self) -> None:
        """Let the channels get more if there was no room before, and there is some now.

        Each function wakes the task of a topic, and the first task that runs takes the room. Trio runs them
        in this order or in the reverse one, by chance; the task of the topic whose message is settled was
        woken before. So the function that waits longest is the last one: otherwise the same topics would
        be between the others again and again, and get nothing.

        Of thousands of topics most would find no room any more, each time. So those that wait longest are
        told, and the others soon after, one by one, until there is no room.
        """
        if not self._is_freed:
            return
        self._is_freed = False
        if len(self._waiting) <= TOLD_AT_ONCE:
            waiting, self._waiting = self._waiting, OrderedDict()
        else:
            waiting = OrderedDict([self._waiting.popitem(last=False) for _ in range(TOLD_AT_ONCE)])
            if not self._is_telling:
                self._is_telling = True
                self._begin(self._tell_others())
        for call in reversed(waiting):
            call(self)

    def _tell_others(self) -> Iterator[None]:
        while self._waiting and self.room() > 0:
            call, _ = self._waiting.popitem(last=False)
            call(self)
            yield
        self._is_telling = False
