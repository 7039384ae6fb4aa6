"""The messages of a round-robin topic that are not done, found in slices while messages move.

A topic may have thousands of channels, so that all of them cannot be asked in one step. Between two slices
messages move: a subscriber releases one that another one gets, or leaves. None may be missed, since a message
that is missing from the stored position is lost when the server is killed. A message that is found although
it is done meanwhile is only delivered again then, as is everything that was done since the last position.

So this has

- what waited at the beginning to be assigned again, since it may go at once to a channel that was asked;
- what every channel has when it is asked;
- what is assigned again meanwhile, which a channel that was asked may get;
- what is in no channel at the end: set aside, or on its way to somewhere else.

A message that has moved may be found twice. All but the channels' ones are in one set (`_moved`), and what
the channels had is taken only as far as it is not in it.
"""

from collections.abc import Iterable

from omq.drivers.slices import Slices
from omq.drivers.unsettled import DeliveredIds, ranges
from omq_storage.runs import Run

FILTERED_IDS = 64
"""The number of ids that are looked up between two slices."""


class UndoneMessages:
    """The messages below a cursor that are not done, as far as they were found."""

    def __init__(self, cursor: int, waiting: Iterable[Run]) -> None:
        self._cursor = cursor
        self._moved = list(waiting)
        self._channels: list[Run] = []

    def add_outstanding(self, messages: Iterable[Run]) -> None:
        """Add the messages of one channel."""
        self._channels += messages

    def add_moved(self, messages: Iterable[Run]) -> None:
        """Add messages that are in no channel now, though they may have been in one when it was asked. Their
        numbers of deliveries replace those with which they were added before.
        """
        self._moved += messages

    def at_once(self) -> tuple[Run, ...]:
        """Return the messages, if all were found in one slice: then none was found twice."""
        return (*self._moved, *self._channels)

    async def in_slices(self, slices: Slices) -> tuple[Run, ...]:
        """Return the messages, each once, in the order of the channels."""
        moved = DeliveredIds()
        for run in self._moved:
            for ids in ranges(run):
                moved.take(ids)  # it moved again
                moved.add(ids, run.deliveries)
            await slices.step()
        found: list[Run] = []
        lowest, last = self._cursor, -1
        for run in moved.runs():
            await slices.step()
            below = run.below(self._cursor)
            if below is not None:
                found.append(below)
                lowest, last = min(lowest, below.lowest), max(last, below.last)
        for run in self._channels:
            await slices.step()
            below = run if run.last < self._cursor else run.below(self._cursor)
            if below is None:
                continue  # they were assigned since the beginning
            if below.last < lowest or below.first > last:
                found.append(below)
                continue
            bits = below.bits
            for count, id in enumerate(below.ids(), 1):
                if id in moved:
                    bits ^= 1 << (id - below.first) // below.step
                if not count % FILTERED_IDS:
                    await slices.step()
            if bits:
                found.append(below._replace(bits=bits))
        return tuple(found)
