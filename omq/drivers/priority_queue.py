"""A queue with priorities: its messages with the highest priority are dealt first, each level in order."""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import trio

from omq.drivers.driver import InitialState
from omq.drivers.message_expiry import PRIORITY
from omq.drivers.queue import QueueDriver
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import Unavailable
from omq.drivers.stored_reads import READ_OCTETS
from omq.drivers.unsettled import number_of, ranges
from omq.gap_reasons import damage
from omq_storage.blocks import Block
from omq_storage.errors import DamagedBlock, StoreError
from omq_storage.runs import Ids, ReturnedIds, Run

_CHUNK_IDS = 1024
"""The number of neighbouring ids whose priorities are kept together."""

SORTED_IDS = 1024
"""The greatest number of ids of a run that are sorted at a time."""

SORTED_LEVELS = 32
"""The approximate number of priorities of runs that are sorted at a time: this takes some tenths of a
millisecond.
"""

FEW_LEVELS = 16
"""The number of priorities above which it is faster to look at each message."""


class _Priorities:
    """The priorities of messages but 0: one octet for each id of a chunk that has any."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        self._left: dict[int, int] = {}  # for each chunk, how many priorities it has

    def learn(self, first: int, levels: bytes) -> None:
        """Record the priorities of consecutive messages, an octet each. `first`: the id of the first one."""
        for chunk, places, count in _within_chunks(range(first, first + len(levels))):
            here, levels = levels[:count], levels[count:]
            if known := count - here.count(0):
                self._chunks.setdefault(chunk, bytearray(_CHUNK_IDS))[places] = here
                self._left[chunk] = self._left.get(chunk, 0) + known

    def forget(self, ids: range) -> None:
        """Forget the priorities of messages that need them no longer."""
        for chunk, places, count in _within_chunks(ids) if self._chunks else ():
            levels = self._chunks.get(chunk)
            if levels is None:
                continue
            self._left[chunk] -= count - levels[places].count(0)
            levels[places] = bytes(count)
            if not self._left[chunk]:
                del self._chunks[chunk], self._left[chunk]

    def of(self, ids: range) -> bytes:
        """Return the priorities of these messages, an octet each."""
        parts = []
        for chunk, places, count in _within_chunks(ids):
            levels = self._chunks.get(chunk)
            parts.append(bytes(count) if levels is None else levels[places])
        return b"".join(parts)


def _within_chunks(ids: range) -> Iterator[tuple[int, slice, int]]:
    """Yield each chunk with any of these ids, their places there, and their number."""
    while ids:
        chunk, place = divmod(ids.start, _CHUNK_IDS)
        here = ids[: -((place - _CHUNK_IDS) // ids.step)]
        yield chunk, slice(place, place + here[-1] - here[0] + 1, ids.step), len(here)
        ids = ids[len(here) :]


def _bitmaps(levels: bytes) -> dict[int, int]:
    """Return for each level a bitmap with a bit set for each place where it is."""
    found = set(levels)
    if len(found) <= FEW_LEVELS:
        return {level: _places(levels, level) for level in found}
    bitmaps = dict.fromkeys(found, 0)
    for place, level in enumerate(levels):
        bitmaps[level] |= 1 << place
    return bitmaps


def _places(levels: bytes, level: int) -> int:
    """Return a bitmap with a bit set for each place where this level is."""
    digits = bytearray(b"0" * 256)
    digits[level] = ord("1")
    return int(levels[::-1].translate(digits), 2)


class Levels(ReturnedIds):
    """Ids of messages that are ready: the highest priority leaves first, and there the lowest id.

    The priority of a message is known from its arrival until it is done.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ready: dict[int, ReturnedIds] = {}
        self._order: list[int] = []  # the priorities of `_ready`, the highest last
        self._known = _Priorities()
        self._unsorted: deque[Run] = deque()
        """Ids that are not in `_ready` yet: a client may give back a hundred thousand of them at once."""
        self._unsorted_count = 0

    def __len__(self) -> int:
        return sum(map(len, self._ready.values())) + self._unsorted_count

    @property
    def lowest(self) -> int:
        """The id that leaves next. There must be one."""
        return self._next().lowest

    @property
    def deliveries(self) -> int:
        """The number of times that this message was delivered before."""
        return self._next().deliveries

    def together(self, limit: int) -> int:
        """See `ReturnedIds.together`."""
        return self._next().together(limit)

    def _next(self) -> ReturnedIds:
        """Return the ids with the highest priority."""
        while self._unsorted:
            self.sort()
        return self._ready[self._order[-1]]

    def learn(self, first: int, levels: bytes) -> None:
        """Record the priorities of consecutive messages that arrive, an octet each. `first`: the id of the
        first one.
        """
        self._known.learn(first, levels)

    def forget(self, ids: range) -> None:
        """Forget messages that are done."""
        self._known.forget(ids)

    def add(self, runs: Iterable[Run]) -> None:
        """Add ids that are not in the queue. If they are many, `sort` must follow before one leaves, or else
        all of them are sorted then.
        """
        before = len(self._unsorted)
        self._unsorted += runs
        self._unsorted_count += number_of(islice(self._unsorted, before, None))
        self.sort()

    @property
    def is_sorting(self) -> bool:
        """Whether `sort` has something to do."""
        return bool(self._unsorted)

    def sort(self) -> None:
        """Sort some of the ids that were added."""
        left = SORTED_LEVELS
        while self._unsorted and left > 0:
            left -= self._sort(self._unsorted.popleft())
        self._measure()

    def _sort(self, run: Run) -> int:
        """Sort the first ids of a run. Return the number of their priorities."""
        if run.bits.bit_length() > SORTED_IDS:
            rest = run._replace(first=run.first + SORTED_IDS * run.step, bits=run.bits >> SORTED_IDS)
            self._unsorted.appendleft(rest)
            run = run._replace(bits=run.bits & ((1 << SORTED_IDS) - 1))
        self._unsorted_count -= run.bits.bit_count()
        levels = self._known.of(range(run.first, run.last + 1, run.step)) if run.bits else b""
        bitmaps = _bitmaps(levels)
        for level, places in bitmaps.items():
            if bits := run.bits & places:
                self._add(level, [run._replace(bits=bits)])
        return max(1, len(bitmaps))

    def _add(self, level: int, runs: Iterable[Run]) -> None:
        ready = self._ready.get(level)
        if ready is None:
            ready = self._ready[level] = ReturnedIds()
            insort(self._order, level)
        ready.add(runs)

    def pop(self, count: int = 1) -> int:
        """Remove the N (`count`) ids that leave next, and return the first. There must be one."""
        ready = self._next()
        level = self._order[-1]
        id = ready.pop(count)
        if not ready:
            del self._ready[level]
            self._order.pop()
        self._measure()
        return id

    def runs(self) -> Sequence[Run]:
        """Return all ids as runs, in no particular order."""
        return [*(run for ready in self._ready.values() for run in ready.runs()), *self._unsorted]

    def clear(self) -> None:
        """Remove all ids."""
        self._ready.clear()
        self._order.clear()
        self._unsorted.clear()
        self._unsorted_count = 0
        self._measure()

    def _measure(self) -> None:
        self.octets = sum(ready.octets for ready in self._ready.values())
        self.octets += sum(run.octets for run in self._unsorted)


class PriorityQueueDriver(QueueDriver):
    """One queue with priorities. All its messages that are ready are in `_returned`, and the cursor is behind
    them; what the store has is read at the start, since the heads have the priorities.
    """

    def __init__(self, opening: InitialState) -> None:
        assert opening.options.max_priority is not None
        self._capped = bytes(min(level, opening.options.max_priority) for level in range(256))
        self._is_loaded = trio.Event()
        self._levels = Levels()
        super().__init__(opening)
        if not self.ready:
            self._is_loaded.set()
        self._stored = list(self._returned.runs())
        if self._is_loaded.is_set():
            self._returned = self._levels

    async def run(self) -> None:
        """See `RoundRobinDriver.run`."""
        if not self._is_loaded.is_set():
            await self._load()
        await super().run()

    async def deal_one(self, getter: RoundRobinChannel) -> bool:
        """See `QueueDriver.deal_one`."""
        await self._is_loaded.wait()
        return await super().deal_one(getter)

    def done(self, ids: range) -> None:
        """See `RoundRobinDriver.done`."""
        super().done(ids)
        self._forget(ids)

    def _settle(self, run: Run) -> None:
        super()._settle(run)
        for ids in ranges(run):
            self._forget(ids)

    @property
    def _settles_by_range(self) -> bool:
        return True

    def _forget(self, ids: range) -> None:
        """Forget messages that are done. Keep the others in memory: they may return."""
        self._levels.forget(ids)
        if not self.assigned and not self._returned:
            self.tail.clear()

    def _keep(self, block: Block) -> None:
        if not self._is_loaded.is_set():
            super()._keep(block)  # it is read with the others
            return
        self._learn(block)
        super()._keep(block)
        if self._cursor < block.next:
            self._sort(block)
            self._signal.set()
            if self._excess():
                self._shorten()

    def _excess(self) -> int:
        """See `LimitedDriver._excess`. Nothing is dropped before all messages are sorted: the first one that
        is dropped has the highest priority.
        """
        is_sorted = self._is_loaded.is_set() and self._cursor >= self.next_id
        return super()._excess() if is_sorted else 0

    def _shorten(self) -> None:
        if self._levels.is_sorting:
            self.is_perishable = True  # `_watch_head` is called, and does it
            self._signal.set()
        else:
            super()._shorten()

    async def _deal_returned(self, taker: RoundRobinChannel | None = None) -> bool:
        if self._levels.is_sorting:
            self._levels.sort()
            await trio.lowlevel.checkpoint()
            return False
        return await super()._deal_returned(taker)

    async def _watch_head(self) -> None:
        while self._levels.is_sorting:
            self._levels.sort()
            await trio.lowlevel.checkpoint()
        await super()._watch_head()

    def _learn(self, block: Block) -> None:
        """Read the priorities of a block."""
        if block.heads is not None and self._flags(block) & PRIORITY:
            self._levels.learn(block.first, block.heads.priorities().translate(self._capped))

    def _sort(self, block: Block) -> None:
        """Move the cursor over a block: its messages are ready by their priorities."""
        ids = range(max(self._cursor, block.first), block.next)
        self._undealt -= len(ids)
        self._cursor = block.next
        every = Ids()
        every.add(ids)
        self._return(every.runs())
        self._note_move()

    async def _load(self) -> None:
        """Read the priorities of the stored messages."""
        message = min([self._cursor, *(run.lowest for run in self._stored)])
        while message < self.next_id and not self.deleted:
            known = self.next_id  # messages from there on may be stored during the read
            try:
                stored = await self.read(message, READ_OCTETS)
            except DamagedBlock as damaged:
                last = max(message, min(damaged.last_known, known - 1))
                first = max(message, self._cursor)  # those below it are reported when they are dealt
                if first <= last:
                    self._report(Unavailable(first, last, damage(damaged)))
                message = last + 1
                continue
            except StoreError:
                await self._wait_to_retry()
                continue
            if not stored:
                message = known  # ids that were lost before they were durable
            for each in stored:
                self._learn(each.block)
                if each.block.next > self._cursor:
                    self._sort(each.block)
                message = each.block.next
        self._undealt = 0
        self._cursor = max(self._cursor, self.next_id)
        waiting, self._returned = list(self._returned.runs()), self._levels
        self._return(waiting)
        self._is_loaded.set()
        self._signal.set()
        if self._excess():
            self._shorten()
