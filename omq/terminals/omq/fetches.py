"""The Fetch commands of one connection: stored blocks as they are, one command after another.

See docs/PROTOCOL.md, "Fetch and Blocks".

A task reads the store, a piece at a time; the connection's sender sends the blocks of the piece one by one,
in turn with the subscriptions. A piece is read only when there is memory for it, and the next one only when
it was sent. So a connection holds one piece, however much it asked for and however slowly it reads.
"""

from collections import deque
from dataclasses import dataclass

import trio

from omq.access.limits import RateLimit
from omq.access.session import Archive, StoredMessages
from omq.drivers.driver import READ_OCTETS
from omq.drivers.memory import Memory
from omq.drivers.problems import for_clients
from omq.drivers.reasons import DELETED, Refused
from omq.drivers.seam import Gone
from omq.drivers.signal import Signal
from omq.protocol.omq import types
from omq.protocol.omq.frames import block_header, encode
from omq.protocol.omq.sentences import gone, sentence
from omq.terminals.connection.sender import Sender
from omq.terminals.omq.replies import Replies
from omq_storage.blocks import Octets, end
from omq_storage.errors import StoreError

PIECE_OCTETS = 4 << 20
"""How much is read at a time where there is memory for two such pieces: each takes a turn of a thread."""

PATIENCE_SECONDS = 10.0
"""How long a client may take to read a piece while others wait for the memory that it takes."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A Fetch, and where its client may read."""

    command: types.Fetch
    archive: Archive


class Fetches:
    """The Fetch commands of a connection, and their turns to send (`Source`). `run` is a task of it."""

    is_exempt = True
    flow = None

    def __init__(self, memory: Memory, sender: Sender, replies: Replies) -> None:
        self._budget = memory.fetched
        self._piece = max(READ_OCTETS, min(PIECE_OCTETS, memory.fetched.limit // 2))
        self._sender = sender
        self._replies = replies
        self.rate_limit: RateLimit | None = None
        """The octets a second of the client: a piece is read when they allow it to be sent."""
        self._commands: deque[_Asked] = deque()
        self._frames: deque[tuple[Octets, ...]] = deque()
        self._is_sending = False
        self._added = Signal()
        self._sent = Signal()
        self._held = 0
        self._since: float | None = None
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        """How many commands are not answered to their end."""
        return len(self._commands)

    @property
    def octets(self) -> int:
        """How many octets of the memory for what was read it holds."""
        return self._held

    def add(self, command: types.Fetch, archive: Archive) -> None:
        """Answer a command after those before it, from this archive."""
        self._commands.append(_Asked(command, archive))
        self._replies.fetches += 1
        self._added.set()

    # -- for the sender ------------------------------------------------------------------------------------

    async def take_turn(self) -> bool:
        """Send one block. Raises trio.BrokenResourceError."""
        if self._frames:
            self._is_sending = True
            try:
                await self._sender.forwarder.send(self._frames.popleft())
            finally:
                self._is_sending = False
            self._sent.set()
        return bool(self._frames)

    def hinders(self, now: float) -> bool:
        """Whether the client takes long to read a piece, and others wait for the memory of theirs."""
        return self._since is not None and now - self._since > PATIENCE_SECONDS and self._budget.is_wanted

    def complaint(self) -> bytes:
        """What a client is told that hinders others."""
        topic = self._commands[0].command.topic
        return sentence("Fetch", topic, "it took too long to read while others wait for its memory")

    def stop(self) -> None:
        """Answer nothing more."""
        self._replies.fetches -= len(self._commands)
        self._commands.clear()
        self._frames.clear()
        self._scope.cancel()

    # -- the task ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer one command after another, until `stop`."""
        with self._scope:
            while True:
                while not self._commands:
                    await self._added.wait()
                asked = self._commands[0]
                command = asked.command
                await self._wait_for_rate_limit()
                try:
                    await self._answer(command, asked.archive)
                except Refused as refused:
                    await self._send([_error(command, str(refused))])
                except StoreError as problem:
                    await self._send([_error(command, for_clients(problem).text)])
                self._commands.popleft()
                self._replies.fetches -= 1
                self._replies.has_room()
                self._sender.signal.set()

    async def _answer(self, command: types.Fetch, archive: Archive) -> None:
        """Raises Refused and StoreError."""
        stored = archive.find(command.first, command.count)
        position = command.first
        until = min(command.first + command.count, stored.next_id)
        while position < until:
            try:
                position = await self._send_piece(stored, command, position, until)
            finally:
                self._hold(0)
        await self._send([(encode(types.StoredBlock(end(stored.topic.id, position))),)])

    async def _send_piece(
        self, topic: StoredMessages, command: types.Fetch, position: int, until: int
    ) -> int:
        """Send blocks from `position` on, or the news that there are none; where to go on. The piece's memory
        is held when this returns.
        """
        await self._wait_for_rate_limit()
        piece = (
            self._piece if self.rate_limit is None else min(self._piece, self.rate_limit.octets_per_second)
        )
        await self._budget.take(piece)
        self._held = piece
        found = await topic.replay(position, piece)
        if topic.deleted:
            raise Refused.of(DELETED)
        if isinstance(found, Gone):
            self._hold(0)
            last = min(found.last, until - 1)
            await self._send([_error(command, gone(position, last, found.reason))])
            return last + 1
        frames: list[tuple[Octets, ...]] = []
        for stored in found:
            # Whole blocks, so the first may begin before. What lies behind a gap comes after the news of it.
            if stored.block.first >= until or (frames and stored.block.first > position):
                break
            frames.append((block_header(len(stored.value)), stored.value))
            position = stored.block.next
        del found
        self._hold(sum(len(value) for _, value in frames))
        await self._send(frames)
        return position

    async def _wait_for_rate_limit(self) -> None:
        if self.rate_limit is not None:
            await trio.sleep_until(self.rate_limit.until)

    def _hold(self, octets: int) -> None:
        """Hold so much of the memory for pieces, more or less than before."""
        if octets > self._held:
            self._budget.force(octets - self._held)
        else:
            self._budget.give(self._held - octets)
        self._held = octets

    async def _send(self, frames: list[tuple[Octets, ...]]) -> None:
        """Hand frames to the writer, and wait until it has sent them."""
        self._frames += frames
        self._since = trio.current_time()
        self._sender.ready(self)
        try:
            while self._frames or self._is_sending:
                await self._sent.wait()
        finally:
            self._since = None


def _error(command: types.Fetch, what: str) -> tuple[Octets, ...]:
    return (encode(types.Error(sentence("Fetch", command.topic, what))),)
