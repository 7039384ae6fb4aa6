"""Finding messages by their time, for all that can list blocks: a server, a reader of its store, a client.

Times never decrease within a topic, so a binary search over its blocks leaves one block to look into.
"""

from typing import Generic, Protocol, TypeVar


class TimedBlock(Protocol):
    """The data about a block that are known without a read of it."""

    @property
    def first(self) -> int:
        """Id of the first message."""

    @property
    def next(self) -> int:
        """Id after that of the last message."""

    @property
    def time(self) -> int:
        """Time of the first message, in microseconds since the epoch."""


B = TypeVar("B", bound=TimedBlock)


class TimeSearch(Generic[B]):
    """Searches the messages in a range of ids for the first one that was not taken before a time.

    While ``is_open``, look up the block that contains message ``middle``, or else the next block that begins
    below ``high``, and call ``found`` with it; with None if there is no such block.  In the end the searched
    message is in the block ``before``, if that has a message as late as the time.  Otherwise it is the first
    message after that block whose id is at least ``high``.
    """

    def __init__(self, first: int, end: int, time: int) -> None:
        """Search from message ``first`` to before ``end``.  ``time``: microseconds since the epoch."""
        self._low = first
        self._time = time
        self.high = end
        self.before: B | None = None
        """The last block that begins before the time."""

    @property
    def is_open(self) -> bool:
        """Whether there is more to look at."""
        return self._low < self.high

    @property
    def middle(self) -> int:
        """The message whose block is wanted next."""
        return (self._low + self.high) // 2

    def found(self, block: B | None) -> None:
        """Continue with the blocks from ``middle`` on."""
        if block is None:
            self.high = self.middle
        elif block.time >= self._time:
            self.high = max(self._low, min(self.high, block.first))
        else:
            self.before = block
            self._low = block.next
