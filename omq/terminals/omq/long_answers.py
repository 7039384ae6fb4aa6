"""Answers that are too large to be made at once and held without bound: those to Topics and Blocks.

The octets of one take a share of the memory from before it is made until its frame is sent. It is made when
everything before it is answered, a slice at a time, and sent in parts. The topics are listed once for all
connections that ask at about the same time and may see the same topics: so neither the memory nor the time
that they take grows with the number of those who ask.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import trio

from omq.access.control import AccessControl
from omq.access.rights import Rights
from omq.access.session import Archive
from omq.drivers.budget import Budget
from omq.drivers.problems import for_clients
from omq.drivers.reasons import Refused
from omq.drivers.signal import Signal
from omq.protocol.omq import block_lists, types
from omq.protocol.omq.frames import FrameType, encode, header
from omq.protocol.omq.sentences import sentence
from omq.protocol.omq.topics import topic_info_sexp
from omq_storage.errors import StoreError

SLICE_SECONDS = 0.0008
"""How long the Trio thread makes records before others have their turn."""

PART_OCTETS = 64 << 10
"""About how much of an answer is sent at once."""

RECORD_OCTETS = 256
"""More than the record of a topic takes besides the topic's name."""

ESCAPED = 4
"""How many octets an octet of a name takes at the most: `\\255`."""

MOST_BLOCKS = 4096
"""How many blocks the answer to one Blocks lists: some 300 KiB."""

BLOCK_OCTETS = 128
"""More than the record of a block takes."""

STALLED_SECONDS = 2.0
"""How long a client may take nothing of an answer while others wait for the memory of theirs."""

PATIENCE_SECONDS = 10.0
"""How long a client may take for a whole answer while others wait for the memory of theirs."""


class LongAnswer:
    """A frame in parts, ready to be sent. Whoever has it calls `close` when it is sent or not wanted."""

    def __init__(self, parts: Sequence[bytes], close: Callable[[], None], budget: Budget) -> None:
        self.parts = parts
        self._close: Callable[[], None] | None = close
        self._budget = budget
        self._since = self._moved = trio.current_time()
        self._sent = 0

    def hinders(self, now: float, sent: int) -> bool:
        """Called about every second while it is sent: whether its client takes long, and others wait for the
        memory. `sent` counts the octets that were sent on its connection so far.
        """
        if sent != self._sent:
            self._sent = sent
            self._moved = now
        lasting = now - self._moved >= STALLED_SECONDS or now - self._since >= PATIENCE_SECONDS
        return lasting and self._budget.is_wanted

    def close(self) -> None:
        """It is not needed any more."""
        close, self._close = self._close, None
        if close is not None:
            close()


class _Listing:
    """One answer to Topics, and those who have it or wait for it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0
        self.askers = 0
        self.parts: Sequence[bytes] = ()
        self.made = trio.Event()

    def hold(self, octets: int) -> None:
        """So many octets of the budget are held for it, which `leave` gives back."""
        self._held = octets

    def leave(self) -> None:
        """One of those who asked does not need it any more; the last gives its memory back."""
        self.askers -= 1
        if not self.askers and self._held:
            held, self._held = self._held, 0
            self.parts = ()
            self._budget.give(held)


class LongAnswers:
    """Makes those of all connections. `run` is a task of the server."""

    def __init__(self, access: AccessControl, budget: Budget) -> None:
        self._access = access
        self._budget = budget
        self._waiting: dict[Rights, _Listing] = {}
        """Those that are not begun yet: they tell how things are later than when they were asked for."""
        self._signal = Signal()

    async def blocks(self, command: types.Blocks, archive: Archive) -> LongAnswer:
        """The answer to this command, be it an Error."""
        try:
            return await self._blocks(command, archive)
        except Refused as refused:
            text = sentence("Blocks", command.topic, str(refused))
            return LongAnswer([encode(types.Error(text))], _nothing, self._budget)

    async def _blocks(self, command: types.Blocks, archive: Archive) -> LongAnswer:
        """Raises Refused."""
        most = min(MOST_BLOCKS, command.count) * BLOCK_OCTETS
        await self._budget.take(most)
        octets = b""
        try:
            topic = archive.find(command.first, command.count)
            octets = await topic.stored_blocks(command.first, command.count, MOST_BLOCKS, block_lists.records)
        except StoreError as problem:
            raise Refused.of(for_clients(problem)) from problem
        finally:
            self._budget.give(most - len(octets))
        parts = [octets[start : start + PART_OCTETS] for start in range(0, len(octets), PART_OCTETS)]
        close = partial(self._budget.give, len(octets))
        return LongAnswer(framed(FrameType.BLOCKS, parts), close, self._budget)

    async def topics(self, rights: Rights) -> LongAnswer:
        """The answer to a Topics of somebody with these rights."""
        listing = self._waiting.get(rights)
        if listing is None:
            listing = self._waiting[rights] = _Listing(self._budget)
            self._signal.set()
        listing.askers += 1
        try:
            await listing.made.wait()
        except trio.Cancelled:
            listing.leave()
            raise
        return LongAnswer(listing.parts, listing.leave, self._budget)

    async def run(self) -> None:
        """Make one after another, until cancelled."""
        while True:
            while not self._waiting:
                await self._signal.wait()
            rights, listing = next(iter(self._waiting.items()))
            most = self._most_octets()
            await self._budget.take(most)
            # Whoever asked up to now has this one.
            del self._waiting[rights]
            if not listing.askers:
                self._budget.give(most)
                continue
            listing.hold(most)
            parts = await self._make(rights)
            if listing.askers:  # else the last of them gave everything back
                octets = sum(map(len, parts))
                listing.parts = parts
                listing.hold(octets)
                self._budget.give(most - octets)
            listing.made.set()

    def _most_octets(self) -> int:
        topics, octets = self._access.size_of_names()
        return topics * RECORD_OCTETS + octets * ESCAPED

    async def _make(self, rights: Rights) -> Sequence[bytes]:
        parts: list[bytes] = []
        records: list[bytes] = []
        octets = 0
        until = time.perf_counter() + SLICE_SECONDS
        for info in self._access.topics(rights):
            if time.perf_counter() >= until:
                await trio.lowlevel.checkpoint()
                until = time.perf_counter() + SLICE_SECONDS
            if info is None:
                continue  # it is hidden, or was deleted meanwhile
            record = topic_info_sexp(info)
            records.append(record)
            octets += len(record)
            if octets >= PART_OCTETS:
                parts.append(b"".join(records))
                records, octets = [], 0
        parts.append(b"".join(records))
        return framed(FrameType.TOPICS, parts)


def framed(kind: FrameType, parts: Sequence[bytes]) -> Sequence[bytes]:
    """The frame of a list whose records these parts hold."""
    return header(kind, 2 + sum(map(len, parts))) + b"(", *parts, b")"


def _nothing() -> None:
    """Is to be given back."""
