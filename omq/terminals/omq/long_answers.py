"""The answers to Topics and Blocks, which can be too large to make at once, and to hold without a bound.

The memory of an answer is taken before the answer is made, and given back when its frame is sent. An answer
is made when everything before it is answered, in short slices, and sent in parts. One list of topics is made
for all connections that request it at about the same time with the same rights. So its memory and time do not
grow with the number of these connections.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import trio

from omq.access.archive import Archive
from omq.access.control import AccessControl
from omq.access.rights import Rights
from omq.drivers.budget import Budget
from omq.drivers.problems import for_clients
from omq.drivers.reasons import Refused
from omq.drivers.signal import Signal
from omq.protocol.omq import block_lists, types
from omq.protocol.omq.frames import FrameType, encode, header
from omq.protocol.omq.sentences import sentence
from omq.protocol.omq.topics import topic_info_sexp
from omq_storage.errors import StoreError

SLICE_SECONDS = 0.0003
"""The number of seconds in which records are made on the Trio thread before other tasks may run."""

PART_OCTETS = 64 << 10
"""The approximate size of the parts in which an answer is sent."""

RECORD_OCTETS = 256
"""An upper bound for the record of a topic without the name."""

ESCAPED = 4
"""The most octets that one octet of a name takes when it is escaped: `\\255`."""

MOST_BLOCKS = 4096
"""The most blocks that the answer to one Blocks lists: about 300 KiB."""

BLOCK_OCTETS = 128
"""An upper bound for the record of a block."""

STALLED_SECONDS = 2.0
"""The number of seconds in which a client may read nothing of an answer while other answers wait for memory.
"""

PATIENCE_SECONDS = 10.0
"""The number of seconds that a client may take to read a whole answer while other answers wait for memory."""


class LongAnswer:
    """A frame in parts, ready to be sent. Its owner calls `close` when it is sent, or dropped."""

    def __init__(self, parts: Sequence[bytes], close: Callable[[], None], budget: Budget) -> None:
        self.parts = parts
        self._close: Callable[[], None] | None = close
        self._budget = budget
        self._since = self._moved = trio.current_time()
        self._sent = 0

    def delays_others(self, now: float, sent: int) -> bool:
        """Return whether its client reads too slowly while other answers wait for memory.

        Called about every second while it is sent. `sent` is the number of octets sent on the connection.
        """
        if sent != self._sent:
            self._sent = sent
            self._moved = now
        lasting = now - self._moved >= STALLED_SECONDS or now - self._since >= PATIENCE_SECONDS
        return lasting and self._budget.is_wanted

    def close(self) -> None:
        """Give its memory back. Further calls do nothing."""
        close, self._close = self._close, None
        if close is not None:
            close()


class _Listing:
    """One list of topics, shared by the connections that wait for it or send it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0
        self.askers = 0
        self.parts: Sequence[bytes] = ()
        self.made = trio.Event()

    def hold(self, octets: int) -> None:
        """Note the number of octets of the budget that it holds. The last `leave` gives them back."""
        self._held = octets

    def leave(self) -> None:
        """Count one asker less. The last one gives the memory back."""
        self.askers -= 1
        if not self.askers and self._held:
            held, self._held = self._held, 0
            self.parts = ()
            self._budget.give(held)


class LongAnswers:
    """Makes the long answers of all connections. The server runs `run` as a task."""

    def __init__(self, access: AccessControl, budget: Budget) -> None:
        self._access = access
        self._budget = budget
        self._waiting: dict[Rights, _Listing] = {}
        """Lists that are not started yet, so they are up to date for every connection that waits for them."""
        self._signal = Signal()

    async def blocks(self, command: types.Blocks, archive: Archive) -> LongAnswer:
        """Return the answer to this command, which may be an Error."""
        try:
            return await self._blocks(command, archive)
        except Refused as refused:
            text = sentence("Blocks", command.topic, str(refused))
            return LongAnswer([encode(types.Error(text))], _nothing, self._budget)

    async def _blocks(self, command: types.Blocks, archive: Archive) -> LongAnswer:
        """Return the answer to this command. Raise Refused."""
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
        """Return the answer to a Topics from a client with these rights."""
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
        """Make one list of topics after another, until cancelled."""
        while True:
            while not self._waiting:
                await self._signal.wait()
            rights, listing = next(iter(self._waiting.items()))
            most = self._most_octets()
            await self._budget.take(most)
            # All connections that have asked by now share this list.
            del self._waiting[rights]
            if not listing.askers:
                self._budget.give(most)
                continue
            listing.hold(most)
            parts = await self._make(rights)
            if listing.askers:  # otherwise the last of them gave all memory back
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
    """Return the frame of a list, in parts, from the parts with its records."""
    return header(kind, 2 + sum(map(len, parts))) + b"(", *parts, b")"


def _nothing() -> None:
    """Do nothing: there is no memory to give back."""
