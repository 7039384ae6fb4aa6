"""Holds the channels of a connection whose client takes nothing, in slices: there may be thousands, and other
connections have their turns between.

First all of them are suspended, so that none gets what another one gave back before. Then they give back
their messages, one after another. Few of them do all this at once.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

import trio

from omq.drivers.seam import Channel
from omq.drivers.slices import Slices, in_slices


class ChannelOwner(Protocol):
    """A connection with channels."""

    def channels(self) -> Iterable[Channel]:
        """Return its open channels. Some may open and end while the result is iterated over."""


class ChannelHolds:
    """The channels of one connection, which are held together, and released."""

    __slots__ = ("_are_held", "_changes", "_nursery", "_owner", "_shall_be_held")

    def __init__(self, owner: ChannelOwner, nursery: trio.Nursery) -> None:
        """Hold nothing yet. `nursery` has the tasks of the connection."""
        self._owner: ChannelOwner | None = owner
        self._nursery: trio.Nursery | None = nursery
        self._are_held = False
        self._shall_be_held = False
        self._changes = False  # whether the steps to make these equal are under way

    def end(self) -> None:
        """Do nothing more, because the connection is over: all channels are closed."""
        self._owner = self._nursery = None

    def hold(self) -> None:
        """Hold the channels: as many as a slice allows at once, and the others in a task."""
        self._shall_be_held = True
        self._begin()

    def release(self) -> None:
        """Release the channels in the same way, after those that are being held."""
        self._shall_be_held = False
        self._begin()

    def _begin(self) -> None:
        if self._changes:
            return
        self._changes = True
        steps = self._steps()
        slices = Slices()
        for _ in steps:
            if slices.is_over:
                assert self._nursery is not None, "the connection is served"
                self._nursery.start_soon(in_slices, steps)
                return

    def _channels(self) -> Iterable[Channel]:
        return () if self._owner is None else self._owner.channels()

    def _steps(self) -> Iterator[None]:
        while self._are_held is not self._shall_be_held:
            self._are_held = self._shall_be_held
            if self._are_held:
                suspended: deque[Channel] = deque()
                for channel in self._channels():
                    channel.suspend()
                    suspended.append(channel)
                    yield
                while suspended:
                    if not suspended[0].give_back():
                        suspended.popleft()
                    yield
            else:
                for channel in self._channels():
                    channel.release()
                    yield
        self._changes = False
