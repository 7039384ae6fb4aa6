"""The order in which several channels of one connection give the messages of a queue."""

from collections import deque
from typing import Protocol


class OrderedChannel(Protocol):
    """A channel as its order sees it."""

    def in_turn(self) -> None:
        """Note that it may give its next message."""


class DeliveryOrder:
    """Lets channels give messages in the order in which these were assigned to them, as the consumers of one
    queue on a channel of AMQP must (AMQP 0-9-1 specification, section 4.7).
    """

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: deque[OrderedChannel] = deque()
        """The channels of the assigned selections that are not taken, the first one first."""

    def is_next(self, channel: OrderedChannel) -> bool:
        """Return whether the next selection to take is one of this channel."""
        return bool(self._turns) and self._turns[0] is channel

    def add(self, channel: OrderedChannel, count: int = 1) -> None:
        """Add selections that were assigned to a channel, behind all others."""
        self._turns.extend([channel] * count)

    def take(self) -> None:
        """Remove the next selection, which its channel takes."""
        self._turns.popleft()

    def give_back(self, channel: OrderedChannel, count: int) -> None:
        """Add selections again that a channel has taken, before all others."""
        self._turns.extendleft([channel] * count)

    def keep(self, channel: OrderedChannel, count: int) -> None:
        """Remove the selections of a channel behind its first N (`count`)."""
        kept: deque[OrderedChannel] = deque()
        for each in self._turns:
            if each is not channel:
                kept.append(each)
            elif count:
                kept.append(each)
                count -= 1
        self._turns = kept
        self.pass_on(channel)

    def pass_on(self, channel: OrderedChannel) -> None:
        """Tell the channel whose turn it is now, if it is another one than this."""
        if self._turns and self._turns[0] is not channel:
            self._turns[0].in_turn()
