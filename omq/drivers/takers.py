"""The subscribers of a round-robin topic that may have room for messages, in turn.

A subscriber without room leaves the turns when it is found so. When it may have room again, it comes back as
the last one. So a message costs as little where thousands of others are busy.

What several subscribers have together may be spent: a window that they share, or the memory for the ids of
unconfirmed messages. Then they wait apart, and only as many come back as there is room for. As long as a
window has room, at least one of those that share it and have room is among the turns.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from omq.drivers.shared_window import SharedWindow
from omq.drivers.unconfirmed import Unconfirmed

if TYPE_CHECKING:
    from omq.drivers.round_robin_channel import RoundRobinChannel

MOST_ASKED = 64
"""The greatest number of subscribers without room that are asked at a time."""

RESTORED = 64
"""The number of subscribers that come back at a time when the memory has room again."""

Turns: TypeAlias = "OrderedDict[RoundRobinChannel, None]"


class Takers:
    """The subscribers of one topic, the next one first."""

    __slots__ = ("_freed", "_parked", "_ranked", "_share", "_short", "_turns")

    def __init__(self, share: Unconfirmed, freed: Callable[[SharedWindow], None]) -> None:
        """Create an empty set of subscribers. `share` is the memory for the ids of their messages. `freed` is
        called when a window that some of them wait for has room; it must call `window_freed`.
        """
        self._share = share
        self._freed = freed
        self._turns: Turns = OrderedDict()
        """The turns of all of them, as long as none has a priority."""
        # These exist only when they are needed: there may be many topics.
        self._ranked: _Ranked | None = None
        self._parked: dict[SharedWindow, Turns] | None = None
        """The subscribers that wait for room in a window that they share."""
        self._short: Turns | None = None
        """The subscribers that wait for memory."""

    # -- which of them there are ---------------------------------------------------------------------------

    def add(self, channel: "RoundRobinChannel", priority: int = 0) -> None:
        """Add a subscriber, which may have room."""
        if priority:
            if self._ranked is None:
                self._ranked = _Ranked(self._turns)
            self._ranked.priorities[channel] = priority
        self._enter(channel)

    def remove(self, channel: "RoundRobinChannel") -> None:
        """Remove a subscriber."""
        self.leave(channel)
        if self._ranked is not None:
            self._ranked.priorities.pop(channel, None)
        if not self._turns:
            self._turns.clear()  # it keeps the memory of all that it had otherwise

    def come_back(self, channel: "RoundRobinChannel") -> None:
        """Note that a subscriber which is not asked may have room again. One that waits for a window keeps
        its place there.
        """
        window = channel.window
        if self._parked and window in self._parked and channel in self._parked[window]:
            return
        if self._short:
            self._short.pop(channel, None)
        self._enter(channel)

    def leave(self, channel: "RoundRobinChannel") -> None:
        """Note that a subscriber has no room, until `come_back`."""
        if channel.is_asked:
            self._withdraw(channel)
            self._unpark_next(channel.window)
            return
        if self._short:
            self._short.pop(channel, None)
        window = channel.window
        if self._parked and window in self._parked:
            self._parked[window].pop(channel, None)
            self._look_for_end(window)

    def _enter(self, channel: "RoundRobinChannel") -> None:
        channel.is_asked = True
        if self._ranked is None:
            self._turns[channel] = None
        else:
            self._ranked.enter(channel)

    def _withdraw(self, channel: "RoundRobinChannel") -> None:
        channel.is_asked = False
        if self._ranked is None:
            del self._turns[channel]
        else:
            self._ranked.withdraw(channel)

    # -- those with room -----------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether none of them gets messages any more."""
        return self._share.is_closed

    def able(self, most: int) -> list["RoundRobinChannel"]:
        """Return the first N (`most`) subscribers with room, of the highest priority that any of these has.
        One that shares a window is alone, because a message changes the room of the others.

        If the first MOST_ASKED have no room, it returns none, and `has_unasked` tells whether to go on.
        """
        found: list[RoundRobinChannel] = []
        if self._share.is_closed:
            return found
        left = MOST_ASKED
        while left > 0 and not found:
            turns = self._turns if self._ranked is None else self._ranked.highest()
            if turns:
                left -= self._ask(turns, most, left, found)
            elif not self._restore():
                break
        return found

    def has_unasked(self) -> bool:
        """Return whether there may be others with room after those that `able` has asked."""
        if self._share.is_closed:
            return False
        turns = self._turns if self._ranked is None else self._ranked.highest()
        return bool(turns) or self._restore()

    def are_all(self, able: list["RoundRobinChannel"]) -> bool:
        """Return whether these are all with room that have their priority, as `able` returned them."""
        turns = self._turns if self._ranked is None else self._ranked.highest()
        return len(able) == len(turns)

    def in_turn(self) -> list["RoundRobinChannel"]:
        """Return those that are asked, the next one first; none if something but their turns decides who gets
        a message.
        """
        return [] if self._share.is_closed or self._ranked is not None else list(self._turns)

    def each(self) -> Iterator["RoundRobinChannel"]:
        """Yield the subscribers with room, by priority and in turn. Nothing may change meanwhile."""
        if self._share.is_closed:
            return
        lines = (self._turns,) if self._ranked is None else self._ranked.lines()
        for turns in lines:
            for channel in turns:
                if channel.room(1):
                    yield channel

    def turn_after(self, channel: "RoundRobinChannel") -> None:
        """Pass the turn to the subscriber after this one, which got a message."""
        if not channel.is_asked:
            return
        self._unpark_next(channel.window)  # before the turn passes: its own message may count in no window
        turns = self._turns if self._ranked is None else self._ranked.turns_of(channel)
        passed: RoundRobinChannel | None = None
        while len(turns) > 1 and passed is not channel:
            passed = next(iter(turns))
            turns.move_to_end(passed)

    def _ask(self, turns: Turns, most: int, asked: int, found: list["RoundRobinChannel"]) -> int:
        """Find those with room among the first N (`asked`). Let the others leave. Return their number."""
        full: list[RoundRobinChannel] = []
        for channel in turns:
            if not channel.room(1):
                full.append(channel)
                if len(full) == asked:
                    break
            elif channel.is_sharing:
                if not found:
                    found.append(channel)
                break
            else:
                found.append(channel)
                if len(found) == most:
                    break
        for channel in full:
            self._withdraw(channel)
            window = channel.window
            if window is not None and window.room() <= 0:
                self._park(channel, window)
                continue
            if not channel.has_memory():
                if self._short is None:
                    self._short = OrderedDict()
                self._short[channel] = None
            self._unpark_next(window)
        return len(full)

    def _restore(self) -> bool:
        """Let some come back that wait for memory, if there is any. Return whether there are some."""
        if not self._short or self._share.is_spent:
            return False
        for _ in range(min(RESTORED, len(self._short))):
            self._enter(self._short.popitem(last=False)[0])
        return True

    # -- windows that several share ------------------------------------------------------------------------

    def _park(self, channel: "RoundRobinChannel", window: SharedWindow) -> None:
        """Let a subscriber wait until the window that it shares has room."""
        if self._parked is None:
            self._parked = {}
        waiting = self._parked.get(window)
        if waiting is None:
            waiting = self._parked[window] = OrderedDict()
            window.call_when_freed(self._freed)
        waiting[channel] = None

    def window_freed(self, window: SharedWindow) -> None:
        """Let as many come back as a window has room for."""
        if self._parked and (waiting := self._parked.get(window)):
            for _ in range(min(len(waiting), window.room())):
                self._enter(waiting.popitem(last=False)[0])
            if waiting:
                window.call_when_freed(self._freed)
            else:
                del self._parked[window]

    def _unpark_next(self, window: SharedWindow | None) -> None:
        """Let one more come back if a window has room."""
        if self._parked and window in self._parked and window.room() > 0:
            self._enter(self._parked[window].popitem(last=False)[0])
            self._look_for_end(window)

    def _look_for_end(self, window: SharedWindow) -> None:
        assert self._parked is not None
        if not self._parked[window]:
            del self._parked[window]
            window.forget(self._freed)


class _Ranked:
    """The turns of subscribers of which some have a priority."""

    __slots__ = ("_levels", "_order", "priorities")

    def __init__(self, turns: Turns) -> None:
        """Create the turns. Those that there were until now have no priority."""
        self.priorities: dict[RoundRobinChannel, int] = {}
        """The priorities other than 0."""
        self._levels = {0: turns} if turns else {}
        self._order = list(self._levels)  # the highest last

    def _priority(self, channel: "RoundRobinChannel") -> int:
        return self.priorities.get(channel, 0)

    def turns_of(self, channel: "RoundRobinChannel") -> Turns:
        """Return the turns of this subscriber, which is among them."""
        return self._levels[self._priority(channel)]

    def highest(self) -> Turns:
        """Return the turns of the highest priority; they are empty if there are none."""
        return self._levels[self._order[-1]] if self._order else OrderedDict()

    def lines(self) -> Iterator[Turns]:
        """Yield the turns of each priority, the highest first."""
        return (self._levels[priority] for priority in reversed(self._order))

    def enter(self, channel: "RoundRobinChannel") -> None:
        """Add a subscriber as the last one of its priority."""
        priority = self._priority(channel)
        turns = self._levels.get(priority)
        if turns is None:
            turns = self._levels[priority] = OrderedDict()
            insort(self._order, priority)
        turns[channel] = None

    def withdraw(self, channel: "RoundRobinChannel") -> None:
        """Remove a subscriber from the turns."""
        priority = self._priority(channel)
        turns = self._levels[priority]
        del turns[channel]
        if not turns:
            del self._levels[priority]
            self._order.remove(priority)
