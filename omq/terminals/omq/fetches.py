"""Answer the Fetch commands of one connection with stored blocks, one command after another.

See docs/PROTOCOL.md, "Fetch and Blocks".

A task reads the store piece by piece. The sender of the connection sends the blocks of a piece in turn with
the subscriptions: in each turn one block, or several small ones. A piece is read when there is memory for it,
and when the previous one was sent. So a connection holds one piece, no matter how much it fetches and how
slowly it reads.
"""

from collections.abc import Sequence

import trio
from msgspec import Struct

from omq import refusal_words
from omq.access.archive import Archive, StoredMessages
from omq.access.limits import RateLimit
from omq.drivers.memory import Memory
from omq.drivers.problems import for_clients
from omq.drivers.reasons import DELETED, Refused
from omq.drivers.seam import Unavailable
from omq.drivers.signal import Signal
from omq.drivers.stored_reads import READ_OCTETS
from omq.gap_reasons import ONE_NOT_KEPT, damage, too_large
from omq.protocol.omq import types
from omq.protocol.omq.frames import block_header, encode
from omq.protocol.omq.sentences import gone, sentence
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.transport import MOST_PARTS
from omq.terminals.omq.replies import Replies
from omq_storage.blocks import Octets, end
from omq_storage.errors import DamagedBlock, StoreError
from omq_storage.fragments import Fragmented, TooLargeToHold, packed_beginning
from omq_storage.lookup import LargeBlock
from omq_storage.pieces import LargeMessage

PIECE_OCTETS = 4 << 20
"""The size of a piece if there is memory for two of this size. Each piece costs one turn of a thread."""

TURN_OCTETS = 1100 << 10
TURN_BLOCKS = MOST_PARTS // 2
"""The greatest size and number of blocks that are sent in one turn, unless one block is larger: two of those
that a busy sink makes. A block has two parts. A socket takes a MiB in some 0.1 ms, and each turn takes two
steps of the server's loop.
"""

PATIENCE_SECONDS = 10.0
"""The number of seconds that a client may take to read a piece while other connections wait for its memory.
"""


class _Asked(Struct, frozen=True):
    """A Fetch, and the archive that its client may read."""

    command: types.Fetch
    archive: Archive


class _Large(Struct, frozen=True):
    """A message in fragments, which is sent as a block without being held."""

    topic: StoredMessages
    message: Fragmented
    beginning: bytes
    """The octets of the frame before the body."""


class Fetches:
    """The Fetch commands of a connection, a `MessageSource` of its sender.

    A task answers them. It begins with the first command, because most connections never send one.
    """

    __slots__ = (
        "_budget",
        "_commands",
        "_frames",
        "_held",
        "_is_sending",
        "_is_stopped",
        "_nursery",
        "_piece",
        "_replies",
        "_scope",
        "_sender",
        "_since",
        "_wake",
        "rate_limit",
    )

    is_exempt = True
    flow = None
    work = None
    after = 0

    def __init__(self, memory: Memory, sender: Sender, replies: Replies, nursery: trio.Nursery) -> None:
        """Answer nothing yet. `nursery` has the tasks of the connection."""
        self._budget = memory.fetched
        self._piece = max(READ_OCTETS, min(PIECE_OCTETS, memory.fetched.limit // 2))
        self._sender = sender
        self._replies = replies
        self.rate_limit: RateLimit | None = None
        """The rate limit of the client: a piece is read when the limit allows to send it."""
        self._nursery = nursery
        # Lists, because an empty deque takes 700 octets.
        self._commands: list[_Asked] = []
        self._frames: list[tuple[Octets, ...] | _Large] | None = None  # from the first answer on
        self._is_sending = False
        self._wake = Signal()
        """Set when a command was added, and when all blocks of a piece were sent."""
        self._held = 0
        self._since: float | None = None
        self._is_stopped = False
        self._scope: trio.CancelScope | None = None  # of the task, from the first command on

    def __len__(self) -> int:
        """Return the number of commands that are not completely answered."""
        return len(self._commands)

    @property
    def octets(self) -> int:
        """The octets of the memory for fetched pieces that this connection holds."""
        return self._held

    def add(self, command: types.Fetch, archive: Archive) -> None:
        """Answer a command from this archive, after the commands before it; not at all after `stop`."""
        if self._is_stopped:
            return
        self._commands.append(_Asked(command, archive))
        self._replies.fetches += 1
        self._wake.set()
        if self._scope is None:
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._run, self._scope)

    # -- for the sender ------------------------------------------------------------------------------------

    async def take_turn(self) -> bool:
        """Send one block, or several small ones. Raises trio.BrokenResourceError."""
        if self._frames:
            self._is_sending = True
            try:
                first = self._frames[0]
                if isinstance(first, _Large):
                    del self._frames[0]
                    await self._send_pieces(first)
                else:
                    await self._sender.forwarder.send(self._next_parts())
            finally:
                self._is_sending = False
            if not self._frames:
                self._wake.set()
        return bool(self._frames)

    def _next_parts(self) -> Sequence[Octets]:
        """Take the parts of the next block, or of the next blocks if they are small."""
        assert self._frames
        parts: list[Octets] = []
        octets = taken = 0
        for frame in self._frames[:TURN_BLOCKS]:
            if isinstance(frame, _Large):
                break
            octets += sum(map(len, frame))
            if parts and octets > TURN_OCTETS:
                break
            parts += frame
            taken += 1
        del self._frames[:taken]
        return parts

    def delays_others(self, now: float) -> bool:
        """Return whether the client has taken too long to read a piece while others wait for memory."""
        return self._since is not None and now - self._since > PATIENCE_SECONDS and self._budget.is_wanted

    def reason_to_close(self) -> bytes:
        """Return the sentence for a client that delays others."""
        topic = self._commands[0].command.topic
        return sentence("Fetch", topic, f"it took too long to read {refusal_words.OTHERS_WAIT}")

    def stop(self) -> None:
        """Drop all commands."""
        self._replies.fetches -= len(self._commands)
        self._commands.clear()
        self._frames = None
        self._is_stopped = True
        if self._scope is not None:
            self._scope.cancel()

    # -- the task ------------------------------------------------------------------------------------------

    async def _run(self, scope: trio.CancelScope) -> None:
        """Answer the commands one after another, until `stop` is called."""
        with scope:
            while True:
                while not self._commands:
                    await self._wake.wait()
                asked = self._commands[0]
                command = asked.command
                await self._wait_for_rate_limit()
                try:
                    await self._answer(command, asked.archive)
                except Refused as refused:
                    await self._send([_error(command, str(refused))])
                except StoreError as problem:
                    await self._send([_error(command, for_clients(problem).text)])
                if self._is_stopped:
                    return  # `stop` has dropped the command, after the last wait here was over
                self._commands.pop(0)
                self._replies.fetches -= 1
                self._replies.has_room()
                self._sender.signal.set()

    async def _answer(self, command: types.Fetch, archive: Archive) -> None:
        """Send the blocks that the command asks for, and the end of the list. Raise Refused and
        StoreError.
        """
        stored = archive.find(command.first, command.count)
        position = command.first
        until = min(command.first + command.count, stored.next_id)
        while position < until:
            try:
                position = await self._send_piece(stored, archive, command, position, until)
            finally:
                self._hold(0)
        await self._send([(encode(types.StoredBlock(end(stored.topic.id, position))),)])

    async def _send_piece(
        self, topic: StoredMessages, archive: Archive, command: types.Fetch, position: int, until: int
    ) -> int:
        """Send one piece from `position` on, or the Error that its messages are gone; return the next
        position. Raise Refused when the topic was deleted, or the client lost the right to read it.

        The memory of the piece is still held on return.
        """
        await self._wait_for_rate_limit()
        piece = (
            self._piece if self.rate_limit is None else min(self._piece, self.rate_limit.octets_per_second)
        )
        await self._budget.take(piece)
        self._held = piece
        archive.check()  # the waits may have taken long
        try:
            found = await topic.replay(position, piece)
        except LargeBlock as block:
            large = block.message
            assert large is not None, "without another limit, only messages in fragments are too large"
            return await self._send_large(topic, command, large)
        if topic.deleted:
            raise Refused.of(DELETED)
        if isinstance(found, Unavailable):
            self._hold(0)
            last = min(found.last, until - 1)
            await self._send([_error(command, gone(position, last, found.reason))])
            return last + 1
        frames: list[tuple[Octets, ...]] = []
        for stored in found:
            # Only whole blocks are sent, so the first one may begin before `position`. Stop at a gap: the
            # next piece begins with the Error about it.
            if stored.block.first >= until or (frames and stored.block.first > position):
                break
            frames.append((block_header(len(stored.value)), stored.value))
            position = stored.block.next
        del found
        self._hold(sum(len(value) for _, value in frames))
        await self._send(frames)
        return position

    async def _send_large(self, topic: StoredMessages, command: types.Fetch, message: Fragmented) -> int:
        """Send a message in fragments as a block, or the Error that it is too large for one; return the id
        after it.
        """
        try:
            beginning = packed_beginning(message)
        except TooLargeToHold:
            why = too_large(message.size, "a block")
            await self._send([_error(command, gone(message.first, message.first, why))])
            return message.next
        octets = len(beginning) + message.size + len(message.own_head)
        self._hold(READ_OCTETS)
        await self._send([_Large(topic, message, block_header(octets) + beginning)])
        return message.next

    async def _send_pieces(self, large: "_Large") -> None:
        """Send a block in pieces, as one frame. Raises trio.BrokenResourceError."""
        forwarder = self._sender.forwarder
        message = large.message
        looked_at = LargeMessage(
            message.topic, message.first, message.time, message.own_head, message.size, message
        )
        sent = 0
        parts: tuple[Octets, ...] = (large.beginning,)
        while True:
            await forwarder.send(parts)
            if sent == message.size:
                break
            try:
                piece = await large.topic.read_piece(looked_at, sent, READ_OCTETS)
                why = ONE_NOT_KEPT
            except DamagedBlock as damaged:
                piece, why = None, damage(damaged)
            except StoreError as problem:
                piece, why = None, for_clients(problem).text
            if piece is None:
                await forwarder.break_off(large.topic.topic.topic, why)
            else:
                sent += len(piece)
                parts = (piece, message.own_head) if sent == message.size else (piece,)

    async def _wait_for_rate_limit(self) -> None:
        if self.rate_limit is not None:
            await self.rate_limit.wait()

    def _hold(self, octets: int) -> None:
        """Change the number of octets of the memory for fetched pieces that this connection holds."""
        if octets > self._held:
            self._budget.force(octets - self._held)
        else:
            self._budget.give(self._held - octets)
        self._held = octets

    async def _send(self, frames: Sequence["tuple[Octets, ...] | _Large"]) -> None:
        """Give frames to the sender, and wait until it has sent them."""
        self._frames = list(frames)
        self._since = trio.current_time()
        self._sender.ready(self)
        try:
            while self._frames or self._is_sending:
                await self._wake.wait()
        finally:
            self._since = None


def _error(command: types.Fetch, what: str) -> tuple[Octets, ...]:
    return (encode(types.Error(sentence("Fetch", command.topic, what))),)
