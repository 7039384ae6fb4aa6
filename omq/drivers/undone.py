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

from collections.abc import Iterable, Iterator

from omq.drivers.slices import Slices
from omq_storage.runs import RUN_IDS, Run, chunked

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
        moved = _MovedIds()
        for run in self._moved:
            below = run.below(self._cursor)  # others were assigned since the beginning
            await slices.step()
            if below is None:
                continue
            if below.step == 1:
                moved.add(below.first, below.bits, below.deliveries)
                continue
            for count, id in enumerate(below.ids(), 1):
                moved.add(id, 1, below.deliveries)
                if not count % FILTERED_IDS:
                    await slices.step()
        found: list[Run] = []
        lowest, last = self._cursor, -1
        for run in moved.runs():
            await slices.step()
            found.append(run)
            lowest, last = min(lowest, run.lowest), max(last, run.last)
        for run in self._channels:
            await slices.step()
            below = run if run.last < self._cursor else run.below(self._cursor)
            if below is None:
                continue
            if below.last < lowest or below.first > last:
                found.append(below)
                continue
            if below.step == 1:
                bits = moved.others(below.first, below.bits)
            else:
                bits = below.bits
                for count, id in enumerate(below.ids(), 1):
                    if not moved.others(id, 1):
                        bits ^= 1 << (id - below.first) // below.step
                    if not count % FILTERED_IDS:
                        await slices.step()
            if bits:
                found.append(below._replace(bits=bits))
        return tuple(found)


class _MovedIds:
    """Ids as bitmaps of RUN_IDS neighbours, each with the number of deliveries with which it was added last.
    A run of very many ids is added in one step, in whatever order the runs come.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, dict[int, int]] = {}
        """A bitmap for each number of deliveries, by the number of the chunk."""

    def add(self, first: int, bits: int, deliveries: int) -> None:
        """Add the ids `first + i` for which bit `i` is set."""
        for chunk, part in chunked(first, bits):
            bitmaps = self._chunks.setdefault(chunk, {})
            for before, bitmap in bitmaps.items():
                bitmaps[before] = bitmap & ~part
            bitmaps[deliveries] = bitmaps.get(deliveries, 0) | part

    def others(self, first: int, bits: int) -> int:
        """Return these bits without those of the ids that were added."""
        for chunk, _ in chunked(first, bits):
            for bitmap in self._chunks.get(chunk, {}).values():
                place = chunk * RUN_IDS - first
                bits &= ~(bitmap << place if place >= 0 else bitmap >> -place)
        return bits

    def runs(self) -> Iterator[Run]:
        """Yield them as runs."""
        for chunk, bitmaps in self._chunks.items():
            for deliveries, bitmap in bitmaps.items():
                if bitmap:
                    yield Run(chunk * RUN_IDS, 1, bitmap, deliveries)
