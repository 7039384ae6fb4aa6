"""Holds the channels of a connection whose client takes nothing, in slices: there may be thousands, and other
connections have their turns between.

First all of them are suspended, so that none gets what another one gave back before. Then the backlog of
the connection gives back what was pushed to it, and the channels their messages, one after another. Few of
them do all this at once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import trio

from omq.drivers.seam import Channel
from omq.drivers.slices import Slices, in_slices


class ChannelOwner(Protocol):
    """A connection with channels."""

    def channels(self) -> Iterable[Channel]:
        """Return its open channels. Some may open and end while the result is iterated over."""


class ChannelHolds:
    """The channels of one connection, which are held together, and released. It refers to the connection
    only in the steps that are under way.
    """

    __slots__ = ("_are_held", "_changes", "_shall_be_held")

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._are_held = False
        self._shall_be_held = False
        self._changes = False  # whether the steps to make these equal are under way

    def change(
        self, owner: ChannelOwner, nursery: trio.Nursery, give_back: Callable[[], bool], *, held: bool
    ) -> None:
        """Hold the channels of the connection, or release them: as many as a slice allows at once, and the
        others in a task of its `nursery`. A change that is under way ends first. `give_back` is that of the
        backlog.
        """
        self._shall_be_held = held
        if self._changes:
            return
        self._changes = True
        steps = self._steps(owner, give_back)
        slices = Slices()
        for _ in steps:
            if slices.is_over:
                nursery.start_soon(in_slices, steps)
                return

    def _steps(self, owner: ChannelOwner, give_back: Callable[[], bool]) -> Iterator[None]:
        while self._are_held is not self._shall_be_held:
            self._are_held = self._shall_be_held
            if self._are_held:
                suspended: deque[Channel] = deque()
                for channel in owner.channels():
                    channel.suspend()
                    suspended.append(channel)
                    yield
                while give_back():
                    yield
                while suspended:
                    if not suspended[0].give_back():
                        suspended.popleft()
                    yield
            else:
                for channel in owner.channels():
                    channel.release()
                    yield
        self._changes = False
