"""The messages of one channel that the client has not acknowledged yet, by their delivery tags.

Consumers and Basic.Get of a channel share its tags. They increase, and some are never used: those of messages
that were framed and then given back, because the client stalled.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from operator import attrgetter

import msgspec

from omq.drivers.seam import Channel, Outcome

MOST_GONE = 1024
"""The number of runs at the beginning of the list that may be used up before it is shortened."""


PORTION = 64
"""The number of runs that are taken at a time. Between two portions other connections have their turn."""


class UnknownTag(Exception):
    """No message with this delivery tag waits to be acknowledged on the channel."""

    def __init__(self, tag: int, taken: "Sequence[Settled]" = ()) -> None:
        """Create the error for this tag. `taken` are the messages with the tags before it."""
        super().__init__(f"unknown delivery tag {tag}")
        self.taken = taken


class _Run(msgspec.Struct):
    """Messages with consecutive tags that one channel of the seam delivered."""

    first: int
    """The tag of the first message."""
    ids: range
    channel: Channel

    @property
    def next(self) -> int:
        """The tag after the last message."""
        return self.first + len(self.ids)


class Settled(msgspec.Struct, frozen=True):
    """Messages that leave the unacknowledged ones: to be settled on their channel."""

    tag: int
    """The tag of the first one."""
    channel: Channel
    ids: range

    def settle(self, outcome: Outcome) -> None:
        """Settle them. Their channel may be closed already: then they were returned."""
        self.channel.settle(self.ids, outcome)


class Returning:
    """Messages that return to their queues together, whatever the order of their tags: those with lower ids
    leave first. A queue assigns the first ones again while the others are still here, so in another order
    they would be delivered in another order, too.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Settled]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, settled: Settled) -> None:
        """Add messages. No others of the same channel of AMQP have their tag."""
        heappush(self._heap, (settled.ids.start, settled.tag, settled))

    def take(self) -> Settled:
        """Remove and return the messages that return next."""
        return heappop(self._heap)[2]


_first = attrgetter("first")


class Unacknowledged:
    """The unacknowledged messages of one channel."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._gone = 0  # the number of runs at the beginning that are used up

    def __bool__(self) -> bool:
        return self._gone < len(self._runs)

    def __len__(self) -> int:
        return sum(len(run.ids) for run in self._runs[self._gone :])

    def add(self, tag: int, ids: range, channel: Channel) -> None:
        """Add messages that are sent with tags from `tag` on."""
        run = _Run(tag, ids, channel)
        if self._runs and self._runs[-1].first > tag:
            insort(self._runs, run, lo=self._gone, key=_first)
        else:
            self._runs.append(run)

    def drop(self, tag: int, count: int) -> None:
        """Remove messages with these tags, which are not sent after all."""
        self._take(tag, tag + count)

    def take(self, first: int, last: int) -> Iterator[Sequence[Settled]]:
        """Take the messages with each of these tags, and yield them in portions. Raises UnknownTag if one of
        them is missing.
        """
        expected = first
        while expected <= last:
            beyond = max(self._gone, self._index(expected)) + PORTION
            end = last + 1
            if beyond < len(self._runs):
                end = min(end, self._runs[beyond].first)
            taken = self._take(expected, end)
            for place, settled in enumerate(taken):
                if settled.tag != expected:
                    raise UnknownTag(expected, taken[:place])
                expected += len(settled.ids)
            if expected != end:
                raise UnknownTag(expected, taken)
            yield taken

    def take_until(self, last: int) -> Iterator[Sequence[Settled]]:
        """Take all messages up to this tag, or all that there are for 0, and yield them in portions. Raises
        UnknownTag if there is no message with this tag; for 0 there need not be any.
        """
        if not last:
            if self._gone == len(self._runs):
                return
            last = self._runs[-1].next - 1
        elif not self._has(last):
            raise UnknownTag(last)
        while self._gone < len(self._runs) and self._runs[self._gone].first <= last:
            behind = self._gone + PORTION
            is_last = behind >= len(self._runs)
            yield self._take(0, last + 1 if is_last else min(last + 1, self._runs[behind].first))

    def without_included(self, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield these ranges of an `AckRun` without those that the next one includes. The caller takes each
        before it asks for the next one.
        """
        known = end = 0  # the tags from `known` to before `end` are known to be there
        for (first, last), (next_first, next_last) in pairwise((*ranges, (1, 0))):
            if not (first or next_first) and 0 < last < next_last:
                if not known <= last < end:
                    known, end = last, self._end(last)
                if last < end <= next_last:
                    known, end = next_last, self._end(next_last)
                if next_last < end:
                    continue
            yield first, last
            known = end = 0

    def restore(self, settled: Settled) -> None:
        """Add these messages again after they were taken out."""
        self.add(settled.tag, settled.ids, settled.channel)

    def free(self) -> Iterator[None]:
        """Forget all of them, in steps."""
        self._gone = 0
        while self._runs:
            del self._runs[-PORTION:]
            yield

    def _has(self, tag: int) -> bool:
        return tag < self._end(tag)

    def _end(self, tag: int) -> int:
        """Return the tag after the run with this tag; if there is none, this tag or a lower one."""
        index = self._index(tag)
        return self._runs[index].next if index >= self._gone else 0

    def _index(self, tag: int) -> int:
        """Return the index of the last run that begins at this tag or before; less than `_gone` if there is
        none.
        """
        return bisect_right(self._runs, tag, lo=self._gone, key=_first) - 1

    def _take(self, begin: int, end: int) -> list[Settled]:
        """Take the messages whose tags are from `begin` to before `end`."""
        start = self._index(begin)
        if start < self._gone or self._runs[start].next <= begin:
            start += 1
        stop = bisect_left(self._runs, end, lo=start, key=_first)
        taken: list[Settled] = []
        left: list[_Run] = []
        for run in self._runs[start:stop]:
            low, high = max(begin, run.first), min(end, run.next)
            ids = run.ids
            taken.append(Settled(low, run.channel, ids[low - run.first : high - run.first]))
            if run.first < low:
                left.append(_Run(run.first, ids[: low - run.first], run.channel))
            if high < run.next:
                left.append(_Run(high, ids[high - run.first :], run.channel))
        if start == self._gone and not left:
            self._gone = stop
            if stop > MOST_GONE:
                del self._runs[:stop]
                self._gone = 0
        else:
            self._runs[start:stop] = left
        return taken
