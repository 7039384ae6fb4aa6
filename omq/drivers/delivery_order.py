"""The order in which several channels of one connection give the messages of a queue."""

from collections import deque
from typing import Protocol

MOST_DEAD = 1024
"""The number of turns that lead nowhere, besides as many as the others, that an order may keep."""


class OrderedChannel(Protocol):
    """A channel as its order sees it."""

    def in_turn(self) -> None:
        """Note that it may give its next message."""


class _Turns:
    """Turns of one channel. Its first N (`count`) turns are left: they lead to it, and later ones nowhere."""

    __slots__ = ("channel", "count")

    def __init__(self, channel: OrderedChannel) -> None:
        self.channel = channel
        self.count = 0


class DeliveryOrder:
    """Lets channels give messages in the order in which these were assigned to them, as the consumers of one
    queue on a channel of AMQP must (AMQP 0-9-1 specification, section 4.7).

    Thousands of channels may lose their selections one after another. So the turns of a channel that loses
    all of them stay, and lead nowhere.
    """

    __slots__ = ("_left", "_of", "_turns")

    def __init__(self) -> None:
        self._turns: deque[_Turns] = deque()
        """An item for each assigned selection that is not taken, the first one first."""
        self._of: dict[OrderedChannel, _Turns] = {}
        self._left = 0
        """The number of items that lead to a channel."""

    def _next(self) -> OrderedChannel | None:
        """Return the channel of the next selection to take, if there is one."""
        turns = self._turns
        while turns:
            if turns[0].count:
                return turns[0].channel
            turns.popleft()
        return None

    def is_next(self, channel: OrderedChannel) -> bool:
        """Return whether the next selection to take is one of this channel."""
        return self._next() is channel

    def add(self, channel: OrderedChannel, count: int = 1) -> None:
        """Add selections that were assigned to a channel, behind all others."""
        if count:
            self._turns.extend([self._more(channel, count)] * count)

    def _more(self, channel: OrderedChannel, count: int) -> _Turns:
        turns = self._of.get(channel)
        if turns is None:
            turns = self._of[channel] = _Turns(channel)
        turns.count += count
        self._left += count
        return turns

    def take(self) -> None:
        """Remove the next selection, which its channel takes: `is_next` said so."""
        self._turns.popleft().count -= 1
        self._left -= 1

    def give_back(self, channel: OrderedChannel, count: int) -> None:
        """Add selections again that a channel has taken, before all others."""
        if count:
            self._turns.extendleft([self._more(channel, count)] * count)

    def _remove(self, turns: _Turns, count: int) -> None:
        """Remove the last N (`count`) items of a channel."""
        left = turns.count - count
        kept: deque[_Turns] = deque()
        for each in self._turns:
            if each is not turns:
                kept.append(each)
            elif left:
                kept.append(each)
                left -= 1
        self._turns = kept

    def _clean(self) -> None:
        """Remove the items that lead nowhere, if they are all or most of them."""
        if not self._left:
            self._turns.clear()
        elif len(self._turns) > 2 * self._left + MOST_DEAD:
            self._turns = deque(each for each in self._turns if each.count)

    def keep(self, channel: OrderedChannel, count: int) -> None:
        """Remove the selections of a channel behind its first N (`count`)."""
        turns = self._of.get(channel)
        if turns is not None and turns.count > count:
            if count:
                self._remove(turns, turns.count - count)
            self._left -= turns.count - count
            turns.count = count
            self._clean()
        if not count:
            self._of.pop(channel, None)
        self.pass_on(channel)

    def pass_on(self, channel: OrderedChannel) -> None:
        """Tell the channel whose turn it is now, if it is another one than this."""
        if (following := self._next()) is not None and following is not channel:
            following.in_turn()
