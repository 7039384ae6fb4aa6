"""One LMDB environment with the blocks of all topics of one sync level.

Its tables:

- ``blocks``: one value for each block.
- ``index``: a short record for each block, under the same key.  Searching, listing, deleting and planning a
  merge read the index only, and not the messages.
- ``extents`` and ``positions``: one record for each topic.
- the tables of ``omq_storage.producers``: the last sequence number of each idempotent producer.
- the tables of ``omq_storage.fragments``: the bodies of large messages, which ``blocks`` and ``index`` only
  describe.
- ``identity``: one record that names the store and the level, see ``omq_storage.identity``.

A write changes all tables in one transaction.  So they agree after a power failure: no position and no
sequence number refers to a message that was lost.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

from omq_storage.appending import append_blocks, packed
from omq_storage.blocks import SPAN_LIMIT, Block
from omq_storage.bodies import LargeBodies
from omq_storage.checkpoint import Checkpoints, prepare
from omq_storage.database import Database, Writing
from omq_storage.deleting import Kept, delete_oldest, drop_some, within
from omq_storage.errors import StoreError, StoreFull
from omq_storage.extents import extent_of
from omq_storage.fragments import (
    FRAGMENT_OCTETS,
    FRAGMENT_TABLES,
    Fragmented,
    Fragments,
    put_fragments,
    sweep,
)
from omq_storage.full import delete_when_full
from omq_storage.identity import IDENTITY, IDENTITY_KEY, LevelIdentity, pack_identity, unpack_identity
from omq_storage.journal import has_records
from omq_storage.journaled import JournaledCommits
from omq_storage.levels import Level
from omq_storage.lookup import VerifiedBlock, infos_from, read_stored, sizes_of
from omq_storage.merging import MergeStep, merge_small
from omq_storage.producers import PRODUCER_TABLES, keep_sequences, last_sequences
from omq_storage.records import (
    BLOCKS,
    EXTENTS,
    INDEX,
    POSITIONS,
    BlockRecord,
    Extent,
    Position,
    TooOld,
    Usage,
    key_topic,
    pack_position,
    topic_key,
    unpack_extent,
    unpack_position,
)
from omq_storage.topics import TOPIC_IDS

if TYPE_CHECKING:
    from omq_storage._codec import StoreCommit

__all__ = ["BlockRecord", "Environment", "Extent", "Position", "Usage"]

TABLES_OF_FORMAT_1 = (BLOCKS, INDEX, EXTENTS, POSITIONS, *PRODUCER_TABLES)
ADDED_TABLES = (IDENTITY, *FRAGMENT_TABLES)
"""Tables that older stores may lack.  The next start adds them."""
TABLES = (*TABLES_OF_FORMAT_1, *ADDED_TABLES)

_NO_TOPIC = TOPIC_IDS
"""A number that no topic has."""

_NO_SEQUENCES: Mapping[int, Mapping[bytes, int]] = {}

T = TypeVar("T")


class Environment:
    """The stored blocks of one sync level.  Any call may come from any thread; one call writes at a time.

    Every call may raise StoreError; the docstrings name the subclasses that a caller may want to handle.
    """

    level: Level
    path: Path

    def __init__(
        self, path: Path, level: Level, *, map_size: int, boot_id: str, journaled: bool = True
    ) -> None:
        """Open the environment in this existing directory, after ``checkpoint.recover``.

        ``map_size``: limit of the data file in octets.  ``boot_id``: names this start of the machine.
        ``journaled``: whether Level.STRONG has checkpoints and a journal, as since format 4; without them
        each of its commits is synced.  The other levels always have checkpoints.

        Raises StoreError, and OSError when the checkpoint file cannot be used.
        """
        self.level = level
        self.path = path
        # Reentrant: a deletion holds it from its first attempt to its last, see _with_room.
        self._write_lock = RLock()
        self._closed = False
        self._checkpoints: Checkpoints | None = None
        self._journaled: JournaledCommits | None = None
        has_checkpoints = journaled or level is not Level.STRONG
        if has_checkpoints:
            prepare(path)
        self._database = Database(
            path, TABLES_OF_FORMAT_1, map_size=map_size, sync=not has_checkpoints, added=ADDED_TABLES
        )
        self.bodies = LargeBodies(self._database)
        """The bodies of its large messages."""
        with ExitStack() as failed:
            failed.callback(self._database.close)
            with self._database.reading() as transaction:
                known = transaction.get(IDENTITY, IDENTITY_KEY) if transaction.has(IDENTITY) else None
                self._identity = None if known is None else unpack_identity(IDENTITY_KEY, known)
            if has_checkpoints:
                self._checkpoints = Checkpoints(self._database, boot_id, self._identity)
                failed.callback(self._checkpoints.close)
                if level is Level.STRONG:
                    self._journaled = JournaledCommits(self._database, self._checkpoints, self._identity)
                    failed.callback(self._journaled.close)
            self._database.make_tables()
            if self._journaled is not None:
                self._journaled.checkpoint()  # has no commits, or those that have made tables
            failed.pop_all()

    @property
    def replayed(self) -> int:
        """The number of commits of the last start before that the journal had and the data file had not."""
        return 0 if self._journaled is None else self._journaled.replayed

    def identify(self, identity: LevelIdentity) -> None:
        """Store the identity of this environment; durable on return at every level.

        Raises StoreFull and StoreFailed.
        """
        if identity != self._identity:
            with self._write_lock:
                self._make_ready()
                try:
                    self._database.make_tables(added=True)
                    with self._database.writing() as transaction:
                        transaction.put(IDENTITY, IDENTITY_KEY, pack_identity(identity))
                except StoreFull:
                    self.checkpoint()  # some tables may be there
                    raise
            self._identity = identity
        if self._checkpoints is not None:
            self._checkpoints.identify(identity)
        if self._journaled is not None:
            self._journaled.identify(identity)

    def append(
        self,
        blocks: Sequence[Block | Fragmented],
        sequences: Mapping[int, Mapping[bytes, int]] = _NO_SEQUENCES,
    ) -> dict[int, Extent]:
        """Store blocks of any topics in one transaction: all of them, or none when the call raises. Return
        what is stored of each of these topics now.

        ``sequences``: topic id -> producer name (up to 255 octets) -> last sequence number of that producer
        (0 to 2^64 - 1).  Every topic must have a block in the same call.  They are stored in the same
        transaction and replace the earlier numbers.  The store keeps 65,536 producers of a topic; beyond
        that it forgets the ones used longest ago, and their repeated messages would be stored again.

        Durable on return for Level.STRONG, otherwise after the next ``checkpoint``.  The message ids of a
        topic must increase from block to block; gaps are allowed.

        Raises StoreFull, StoreFailed, StoreError when a block does not lie after the stored ones, and
        ValueError when ``sequences`` is not as described.  A full environment has room again after ``trim``,
        ``retain`` or ``drop``; at Level.WEAK and Level.ASYNC only after the next ``checkpoint``, because the
        last checkpoint still needs the deleted pages.
        """
        if not sequences.keys() <= {block.topic for block in blocks}:
            raise ValueError("Sequences are kept only together with a block of their topic.")
        values = [packed(block) for block in blocks]
        if not blocks:
            return {}
        extents = self._write(lambda transaction: append_blocks(transaction, blocks, values, sequences))
        for block in blocks:
            if isinstance(block, Fragmented):
                self.bodies.became_message(block.body)
        return extents

    def append_commit(self, commit: "StoreCommit") -> None:
        """Store the messages of many topics that the compiled codec has collected, as ``append`` does.

        Raises what ``append`` raises. Then the messages must be stored topic by topic.
        """

        def put(transaction: Writing) -> None:
            if not commit.put(transaction):
                raise StoreError("A topic of this commit has other stored messages than expected.")

        self._write(put)

    def put_fragments(self, parts: Sequence[Fragments]) -> None:
        """Store parts of bodies in one transaction; invisible until ``append``.

        Raises what ``append`` raises.
        """
        self._write(lambda transaction: put_fragments(transaction, parts))

    def try_storing(self) -> None:
        """Store a fragment of no message, and delete it again.  If the process ends in between, ``sweep``
        deletes it after the next start.

        Raises what ``append`` raises for a message of this size.
        """
        # The short one finds a page where the long one does not.  LMDB reuses deleted pages not in the next
        # commit but in the one after it.
        for octets in (1, FRAGMENT_OCTETS):
            body = self.bodies.begin()
            try:
                self.put_fragments([Fragments(_NO_TOPIC, body, 0, bytes(octets))])
            finally:
                self.bodies.abandon(body)
            self.sweep(_NO_TOPIC)

    def sweep(self, topic: int | None = None) -> bool:
        """Delete fragments that belong to no message (of this topic), except those of bodies that are being
        written: up to 64 MiB in one transaction.  Return whether there may be more.
        """
        if not self.bodies.are_loose():
            return False
        return self._with_room(lambda writing, divisor: self._sweep(writing, topic, divisor))

    def _sweep(self, transaction: Writing, topic: int | None, divisor: int) -> bool:
        return sweep(transaction, self.bodies.begun(), topic, divisor)

    def sequences(self, topic: int, producers: Iterable[bytes]) -> dict[bytes, int]:
        """Return the last sequence number of each of these producers of a topic that has one.

        Sequence numbers outlive the messages; only ``drop`` deletes them.  Raises StoreError for a damaged
        record.
        """
        with self._database.reading() as transaction:
            return last_sequences(transaction, topic, producers)

    def set_sequences(self, topic: int, sequences: Mapping[bytes, int]) -> None:
        """Store last sequence numbers of producers without a block; the last producer counts as used last.

        Durable as ``append`` is, and raises what ``append`` raises.
        """
        if sequences:
            self._write(lambda transaction: keep_sequences(transaction, topic, sequences))

    def read(self, topic: int, first: int, max_bytes: int = 1 << 20, max_blocks: int = 64) -> list[Block]:
        """Return the block that contains message ``first``, or else the next one, and blocks that follow it.

        Returns whole blocks, copied and verified: at least one if any is stored, and further ones while their
        stored values have at most ``max_bytes`` octets together and there are at most ``max_blocks``.  The
        first block may begin before ``first``, even if the call before ended there: merging may have joined
        the two blocks meanwhile.  So send ``block.after(first)``.

        Raises DamagedBlock (its ``last`` tells where to go on: at ``last + 1``) or NewerFormat for the first
        block.  A later block that is damaged ends the list before it; the next call raises.
        """
        return [stored.block for stored in self.read_stored(topic, first, max_bytes, max_blocks)]

    def read_stored(
        self,
        topic: int,
        first: int,
        max_bytes: int = 1 << 20,
        max_blocks: int = 64,
        largest: int | None = None,
    ) -> list[VerifiedBlock]:
        """Return the blocks that ``read`` returns, each with the stored value of which it is a view.

        Raises lookup.LargeBlock when the first stored value has more than ``largest`` octets, or is a message
        in fragments.
        """
        return read_stored(self._database.reading(), topic, first, max_bytes, max_blocks, largest)

    def blocks(self, topic: int, first: int, limit: int = 1024) -> list[BlockRecord]:
        """Return the index records of up to ``limit`` blocks that ``read`` would find, without their
        messages.
        """
        with self._database.reading() as transaction:
            return list(islice(infos_from(transaction, topic, first), limit))

    def sizes(self, topic: int, infos: Iterable[BlockRecord]) -> list[tuple[range, int]]:
        """Return the ids of blocks, and the octets of their bodies: see ``lookup.sizes_of``."""
        return sizes_of(self._database.viewing(), topic, infos)

    def extent(self, topic: int) -> Extent:
        """Return the extent of a topic: first and last id, number of messages and of octets."""
        with self._database.reading() as transaction:
            return extent_of(transaction, topic)

    def extents(self) -> dict[int, Extent]:
        """Return the extent of every topic that has, or had, messages in this environment, by topic id."""
        with self._database.reading() as transaction:
            return {key_topic(key): unpack_extent(key, stored) for key, stored in transaction.cursor(EXTENTS)}

    def trim(self, topic: int, before: int) -> Extent:
        """Delete the blocks whose messages are all below ``before``, and return the new extent.

        Deletes at most 256 blocks and 64 MiB in one transaction, so that other writers can come between.
        """
        while True:
            extent, more = self._freeing(topic, lambda info, _: info.next > before)
            if not more:
                return extent

    def retain(
        self, topic: int, max_bytes: int | None, too_old: TooOld | None, keep_from: int | None
    ) -> Extent:
        """Delete the oldest blocks until the topic is within its limits, and return the new extent.

        ``max_bytes``: limit of the octets of stored values.  The newest block stays even if it alone has
        more. ``too_old``: deletes blocks all of whose messages are too old, also the newest block.
        ``keep_from``: keeps blocks that contain this message id or later ones.  None means no limit.

        Deletes at most 256 blocks in one transaction: call again while the extent changes.
        """
        return self._freeing(topic, within(max_bytes, too_old, keep_from))[0]

    def drop(self, topic: int) -> None:
        """Delete a topic with its extent, position and sequence numbers, in bounded transactions.

        If it is interrupted the topic has fewer blocks; another call completes it.
        """
        while self.drop_some([topic]):
            pass

    def drop_some(self, topics: Sequence[int]) -> list[int]:
        """Delete some of each of these topics in one transaction, and perhaps some fragments of each in one
        more. Return the topics of which there is more to delete.
        """
        left = self._with_room(lambda writing, divisor: drop_some(writing, topics, divisor))
        if self.bodies.are_loose():
            # A body that is still being written is abandoned by its writer soon, and then deleted.
            left += [topic for topic in topics if topic not in left and self.sweep(topic)]
        return left

    def merge_small(self, topic: int, start: int, span: int = SPAN_LIMIT) -> MergeStep:
        """Merge small consecutive blocks from message ``start`` on: one step of at most 64 blocks and 1 MiB,
        in one transaction.  ``omq_storage.merging.SmallBlocks`` takes all steps.

        A merged block has up to 4,096 messages and 512 KiB.  Blocks are merged only if the result is at least
        twice as large as its largest part, so that a growing topic is rewritten a few times at most.  No
        merge crosses a gap of ids.  A merged block spans at most 71 minutes (2^32 microseconds), or ``span``
        microseconds, because retention deletes a block only when all of its messages are too old.
        """
        return merge_small(self._database.reading, self._writing, topic, start, span)

    def positions(self) -> dict[int, Position]:
        """Return the position of every topic that has one, by topic id."""
        with self._database.reading() as transaction:
            return {
                key_topic(key): unpack_position(key, stored) for key, stored in transaction.cursor(POSITIONS)
            }

    def set_positions(self, positions: Mapping[int, Position]) -> None:
        """Store these positions in one transaction; durable as ``append`` is."""

        def put(transaction: Writing) -> None:
            for topic, position in positions.items():
                key = topic_key(topic)
                transaction.put(POSITIONS, key, pack_position(key, position))

        if positions:
            self._write(put)

    def checkpoint(self) -> None:
        """Make all commits so far survive a power failure, and free the pages that only an earlier state
        needs.

        Other threads may append meanwhile.  Raises StoreFailed when the disk refuses to sync.
        """
        if self._journaled is not None:
            self._journaled.checkpoint()
        elif self._checkpoints is not None:
            self._checkpoints.take()

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a call of ``checkpoint`` would save a commit of Level.STRONG from having to take one."""
        return self._journaled is not None and self._journaled.is_checkpoint_due

    def reader_check(self) -> int:
        """Free the reader slots of processes that died, and return their number.

        The snapshot of a dead reader would keep LMDB from reusing pages.
        """
        return self._database.reader_check()

    def usage(self) -> Usage:
        """Return the used part of the map, and the last transaction that is durable."""
        room = self._database.room()
        durable = room.transaction
        if self._checkpoints is not None and self._journaled is None:
            durable = self._checkpoints.durable
        return Usage(room.map_size, room.used, room.readers, room.transaction, durable)

    def close(self, clean: bool = True) -> None:
        """Wait for running calls, take a last checkpoint, and close.  A second call does nothing.

        ``clean=False`` takes no checkpoint: the files are then as a killed process leaves them.
        """
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            try:
                if clean and self._checkpoints is not None:
                    self._checkpoints.take(clean=True)
            finally:
                if self._journaled is not None:
                    self._journaled.close()
                if self._checkpoints is not None:
                    self._checkpoints.close()
                self._database.close()

    @contextmanager
    def _writing(self) -> Iterator[Writing]:
        with self._write_lock:
            self._make_ready()
            if self._journaled is None:
                with self._database.writing() as transaction:
                    yield transaction
            else:
                with self._journaled.writing() as transaction:
                    yield transaction

    def _make_ready(self) -> None:
        """Call this before every write.  Raises StoreError."""
        if self._database.panicked():
            self.reopen()
        if self._checkpoints is not None and not self._checkpoints.is_held:
            self._checkpoints.hold()

    def _write(self, change: Callable[[Writing], T]) -> T:
        """Run a change in one transaction.  Level.STRONG tries it again where it had no room but a checkpoint
        frees some: nobody takes its checkpoints at regular times.
        """
        with self._write_lock:
            try:
                with self._writing() as transaction:
                    return change(transaction)
            except StoreFull:
                if self._journaled is None or not self._journaled.has_commits:
                    raise
                self.checkpoint()
                with self._writing() as transaction:
                    return change(transaction)

    def reopen(self, growth: int = 0) -> None:
        """Close LMDB and open it again, as after a failure, with a map larger by ``growth``.

        No other call may write meanwhile.  Raises StoreError.
        """
        if self._journaled is not None:
            self._journaled.renew(growth)
        elif self._checkpoints is not None:
            self._checkpoints.renew(growth)
        else:
            self._database.reopen(growth)

    def _freeing(self, topic: int, kept: Kept) -> tuple[Extent, bool]:
        """Delete the oldest blocks in one transaction; see ``delete_oldest``."""
        return self._with_room(lambda writing, divisor: delete_oldest(writing, topic, kept, divisor))

    def _with_room(self, delete: Callable[[Writing, int], T]) -> T:
        """Run a deletion in one transaction, also in a full environment; see ``delete_when_full``."""
        with self._write_lock:
            return delete_when_full(delete, self._writing, self.checkpoint, self.reopen, self._database.room)


def replay(path: Path, boot_id: str, map_size: int) -> None:
    """Make the commits again that the journal of Level.STRONG has and its data file has not.  The directory
    was recovered, its data file is intact, and nothing uses it.

    Raises what ``Environment`` raises.
    """
    if has_records(path):
        Environment(path, Level.STRONG, map_size=map_size, boot_id=boot_id).close()
