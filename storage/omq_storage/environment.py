"""One LMDB environment with the blocks of all the topics of one sync level.

Its tables: ``blocks`` holds one value a block; ``index`` a short record under the same key, so that looking
for a message, listing, deleting and merging need not touch the messages; ``extents`` and ``positions`` one
record a topic; those of ``omq_storage.producers`` the last sequence of each idempotent producer; ``identity``
one record, which says what environment it is.  All change in one transaction, so that after a power failure
they agree: neither a position nor a sequence ever points past what survived.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import TypeVar

from omq_storage.blocks import SPAN_LIMIT, Block, merge, pack
from omq_storage.checkpoint import Checkpoints, prepare
from omq_storage.database import Database, Writing
from omq_storage.errors import DamagedBlock, Limit, NewerFormat, StoreError, StoreFull
from omq_storage.identity import IDENTITY, IDENTITY_KEY, Identity, pack_identity, unpack_identity
from omq_storage.levels import Level
from omq_storage.lookup import StoredBlock, extent_of, infos_from, read_stored, verified
from omq_storage.merging import plan
from omq_storage.pieces import LargeMessage, look_at, read_piece
from omq_storage.producers import PRODUCER_TABLES, forget_producers, keep_sequences, last_sequences
from omq_storage.records import (
    BLOCKS,
    EXTENTS,
    INDEX,
    POSITIONS,
    BlockInfo,
    Extent,
    Position,
    TooOld,
    Usage,
    block_info,
    block_key,
    key_topic,
    pack_extent,
    pack_info,
    pack_position,
    topic_key,
    unpack_extent,
    unpack_position,
)

__all__ = ["BlockInfo", "Environment", "Extent", "Position", "Usage"]

TABLES_OF_FORMAT_1 = (BLOCKS, INDEX, EXTENTS, POSITIONS, *PRODUCER_TABLES)
TABLES = (*TABLES_OF_FORMAT_1, IDENTITY)
_DELETED_AT_ONCE = 256
_DELETED_OCTETS_AT_ONCE = 64 << 20
_FORGOTTEN_AT_ONCE = 4096
_IN_NEED = 64
"""How many times less is deleted at once where there is no room for the pages that a deletion writes."""
_SCANNED_AT_ONCE = 4096
_MERGED_AT_ONCE = 8 << 20
_GROWTH = 8 << 20
_SPARE = 256 << 10
_NO_SEQUENCES: Mapping[int, Mapping[bytes, int]] = {}

T = TypeVar("T")


class Environment:
    """The stored blocks of one level.  Any call may come from any thread; writing calls take turns."""

    level: Level

    def __init__(self, path: Path, level: Level, *, map_size: int, boot_id: str) -> None:
        """Opens the environment in this directory, which exists and was recovered; see
        ``checkpoint.recover``.

        Raises StoreError, and OSError when the checkpoint file cannot be used.
        """
        self.level = level
        self._one_writer = RLock()
        self._closed = False
        self._checkpoints: Checkpoints | None = None
        durable = level is Level.STRONG
        if not durable:
            prepare(path)
        self._database = Database(
            path, TABLES_OF_FORMAT_1, map_size=map_size, sync=durable, added=(IDENTITY,)
        )
        with self._database.reading() as transaction:
            known = transaction.get(IDENTITY, IDENTITY_KEY) if transaction.has(IDENTITY) else None
            self._identity = None if known is None else unpack_identity(IDENTITY_KEY, known)
        if not durable:
            self._checkpoints = Checkpoints(self._database, boot_id, self._identity)
        self._database.make_tables()

    def identify(self, identity: Identity) -> None:
        """Lets the environment say this of itself; durable on return, for every level.

        Raises StoreFull, StoreFailed and StoreError.
        """
        if identity != self._identity:
            self._database.make_tables(added=True)
            with self._writing() as transaction:
                transaction.put(IDENTITY, IDENTITY_KEY, pack_identity(identity))
            self._identity = identity
        if self._checkpoints is not None:
            self._checkpoints.identify(identity)

    def append(
        self, blocks: Sequence[Block], sequences: Mapping[int, Mapping[bytes, int]] = _NO_SEQUENCES
    ) -> None:
        """Stores blocks, of any topics, in one transaction: all of them or, when it raises, none.

        ``sequences``: for ids of topics among the blocks, the last sequence (0 to 2^64 - 1) that they have of
        each idempotent producer (up to 255 octets); kept in the same transaction, in the place of what was
        known of that producer.  65,536 producers of a topic are kept; with more, those used longest ago are
        forgotten, and their messages would be taken for new ones.

        Durable on return for Level.STRONG, else after the next ``checkpoint``.  In each topic the ids must
        increase from block to block; gaps are allowed.

        Raises StoreFull, StoreFailed, StoreError when a block does not lie after what is stored, and
        ValueError for sequences that are not as above.  A full
        environment has room again after ``trim``, ``retain`` or ``drop``; for Level.WEAK and Level.ASYNC only
        once a ``checkpoint`` has let go of what they deleted.
        """
        if not sequences.keys() <= {block.topic for block in blocks}:
            raise ValueError("Sequences are kept only together with a block of their topic.")
        values = [pack(block) for block in blocks]
        if not blocks:
            return
        extents: dict[int, Extent] = {}
        with self._writing() as transaction:
            newest = transaction.cursor(INDEX)
            highest = newest.key() if newest.last() else b""
            for block, value in zip(blocks, values, strict=True):
                topic = block.topic
                extent = extents[topic] if topic in extents else extent_of(transaction, topic)
                if block.first < extent.next:
                    raise StoreError(
                        f"Message {block.first} of topic {topic} cannot be stored after {extent.last}."
                    )
                key = block_key(topic, block.first)
                info = block_info(block, value)
                at_end = key > highest
                transaction.put(BLOCKS, key, value, at_end=at_end)
                transaction.put(INDEX, key, pack_info(key, info), at_end=at_end)
                highest = max(highest, key)
                extents[topic] = Extent(
                    first=extent.first if extent.messages else block.first,
                    last=block.last,
                    messages=extent.messages + block.count,
                    bytes=extent.bytes + len(value),
                )
            for topic, extent in extents.items():
                _put_extent(transaction, topic, extent)
            for topic, last in sequences.items():
                keep_sequences(transaction, topic, last)

    def sequences(self, topic: int, producers: Iterable[bytes]) -> dict[bytes, int]:
        """The last sequence of each of these producers of a topic; those of which none is known are left out.

        They stay when the messages are deleted, until ``drop``.  Raises StoreError for a damaged record.
        """
        with self._database.reading() as transaction:
            return last_sequences(transaction, topic, producers)

    def set_sequences(self, topic: int, sequences: Mapping[bytes, int]) -> None:
        """Keeps these last sequences of producers, the last of them as the one used last, without any block.

        As durable as ``append``.  Raises as ``append`` does.
        """
        if sequences:
            with self._writing() as transaction:
                keep_sequences(transaction, topic, sequences)

    def read(self, topic: int, first: int, max_bytes: int = 1 << 20, max_blocks: int = 64) -> list[Block]:
        """The block that contains message ``first``, or else the next after it, and those that follow, in
        order.

        Whole blocks, not trimmed; at least one if there is any, and more as long as their stored values stay
        within ``max_bytes`` together.  They are copies, verified, and stay good for ever.  The first one may
        begin before ``first`` even where the call before ended there, because merging goes on meanwhile; so
        send ``block.after(first)``.

        Raises DamagedBlock (with its ``last``; reading goes on at ``last + 1``) or NewerFormat for the first
        of them; a damaged one further on only ends the list before it.
        """
        return [stored.block for stored in self.read_stored(topic, first, max_bytes, max_blocks)]

    def read_stored(
        self,
        topic: int,
        first: int,
        max_bytes: int = 1 << 20,
        max_blocks: int = 64,
        largest: int | None = None,
    ) -> list[StoredBlock]:
        """What ``read`` gives, each block with the stored value that it is a view of.

        Raises lookup.LargeBlock when the first of them has more than ``largest`` octets.
        """
        return read_stored(self._database.reading(), topic, first, max_bytes, max_blocks, largest)

    def look_at(self, topic: int, message: int) -> LargeMessage | None:
        """A message that is to be read piece by piece; None when it is not stored any more.

        Raises DamagedBlock and NewerFormat when its block cannot be used.
        """
        return look_at(self._database, topic, message)

    def read_piece(self, message: LargeMessage, begin: int, octets: int) -> bytes | None:
        """A piece of its body, a copy; see ``pieces.read_piece``."""
        return read_piece(self._database, message, begin, octets)

    def blocks(self, topic: int, first: int, limit: int = 1024) -> list[BlockInfo]:
        """What ``read`` would find, as a list of up to ``limit``, without touching the messages."""
        with self._database.reading() as transaction:
            return list(islice(infos_from(transaction, topic, first), limit))

    def extent(self, topic: int) -> Extent:
        """What is stored of this topic."""
        with self._database.reading() as transaction:
            return extent_of(transaction, topic)

    def extents(self) -> dict[int, Extent]:
        """What is stored of every topic that has, or had, messages here."""
        with self._database.reading() as transaction:
            return {key_topic(key): unpack_extent(key, sealed) for key, sealed in transaction.cursor(EXTENTS)}

    def trim(self, topic: int, before: int) -> Extent:
        """Deletes the blocks that lie wholly below message ``before``, in bounded transactions."""
        while True:
            extent, more = self._freeing(topic, lambda info, _: info.next > before)
            if not more:
                return extent

    def retain(
        self, topic: int, max_bytes: int | None, too_old: TooOld | None, keep_from: int | None
    ) -> Extent:
        """Deletes the oldest blocks until what is left keeps to the limits; None is no limit.

        ``max_bytes``: octets of stored values; the newest block is kept even when it alone has more.
        ``too_old``: blocks with nothing but such messages go, the newest block too.
        ``keep_from``: blocks with this message id or later ones are never deleted.

        At most 256 blocks a call, in one transaction: call again while the extent changes.
        """

        def kept(info: BlockInfo, extent: Extent) -> bool:
            if keep_from is not None and info.next > keep_from:
                return True
            too_many = max_bytes is not None and extent.bytes > max_bytes and info.last != extent.last
            return not (too_many or (too_old is not None and _is_too_old(info, too_old)))

        return self._freeing(topic, kept)[0]

    def drop(self, topic: int) -> None:
        """Deletes everything of a topic, its extent, position and sequences too, in bounded transactions.

        One that was interrupted leaves a topic with fewer blocks; dropping it again completes it.
        """
        while self.drop_some(topic):
            pass

    def drop_some(self, topic: int) -> bool:
        """One transaction of ``drop``; whether there is more to be deleted."""

        # Producers before the extent, which tells that something is left.
        def forget(writing: Writing, share: int) -> bool:
            return forget_producers(writing, topic, _FORGOTTEN_AT_ONCE // share)

        return self._with_room(forget) or self._freeing(topic, lambda _, __: False, forget=True)[1]

    def merge_small(self, topic: int, start: int, span: int = SPAN_LIMIT) -> int | None:
        """Merges small blocks that follow one another, from message ``start`` on, in one bounded transaction.

        Merged blocks have up to 4,096 messages and 512 KiB.  Blocks are merged only when the result is at
        least twice its largest part, so that a growing topic is rewritten a few times at most.  Never across
        a gap of ids, nor over 71 minutes or ``span`` microseconds: a block is deleted only when all of its
        messages are too old.

        Returns the message id to go on at, or None when nothing further can be merged now; remember the last
        id returned as the place to begin next time.
        """
        with self._database.reading() as transaction:
            found = list(islice(infos_from(transaction, topic, start), _SCANNED_AT_ONCE + 1))
            beyond = len(found) > _SCANNED_AT_ONCE
            scanned = found[:_SCANNED_AT_ONCE]
            if not scanned:
                return None
            planned = plan(scanned, min(span, SPAN_LIMIT))
            runs = list(_within(planned.runs, _MERGED_AT_ONCE))
            # Everything is copied and merged before the write transaction, which others wait for.
            values = [
                [(info, transaction.get(BLOCKS, block_key(topic, info.first))) for info in run]
                for run in runs
            ]
        merged = []
        for run, parts in zip(runs, values, strict=True):
            block = _merged(topic, parts)
            if block is not None:
                merged.append((run, block, pack(block)))
        if merged:
            with self._writing() as writing:
                for run, block, value in merged:
                    _replace(writing, run, block, value)
        if len(runs) < len(planned.runs):
            return runs[-1][-1].next
        if beyond:
            return planned.growing if planned.growing > scanned[0].first else scanned[-1].next
        return planned.growing if merged else None

    def positions(self) -> dict[int, Position]:
        """The position of every topic that has one."""
        with self._database.reading() as transaction:
            return {
                key_topic(key): unpack_position(key, sealed) for key, sealed in transaction.cursor(POSITIONS)
            }

    def set_positions(self, positions: Mapping[int, Position]) -> None:
        """Keeps these positions, in one transaction; as durable as ``append``."""
        if not positions:
            return
        with self._writing() as transaction:
            for topic, position in positions.items():
                key = topic_key(topic)
                transaction.put(POSITIONS, key, pack_position(key, position))

    def checkpoint(self) -> None:
        """Makes everything stored until now survive a power failure; nothing to do for Level.STRONG.

        Appending goes on meanwhile.  Raises StoreFailed when the disk refuses.
        """
        if self._checkpoints is not None:
            self._checkpoints.take()

    def reader_check(self) -> int:
        """Clears the readers of processes that died, whose snapshots hold room; how many there were."""
        return self._database.reader_check()

    def usage(self) -> Usage:
        """How much room is used, and how much of it is durable."""
        room = self._database.room()
        durable = room.transaction if self._checkpoints is None else self._checkpoints.durable
        return Usage(room.map_size, room.used, room.readers, room.transaction, durable)

    def close(self, clean: bool = True) -> None:
        """Waits for the calls under way, makes a last checkpoint, and closes.

        Without ``clean`` nothing is made durable: what a killed process would leave.
        """
        with self._one_writer:
            if self._closed:
                return
            self._closed = True
            try:
                if clean and self._checkpoints is not None:
                    self._checkpoints.take(clean=True)
            finally:
                if self._checkpoints is not None:
                    self._checkpoints.close()
                self._database.close()

    @contextmanager
    def _writing(self) -> Iterator[Writing]:
        with self._one_writer:
            if self._database.panicked():
                self._renew()
            if self._checkpoints is not None:
                self._checkpoints.require_held()
            with self._database.writing() as transaction:
                yield transaction

    def _renew(self, growth: int = 0) -> None:
        if self._checkpoints is None:
            self._database.reopen(growth)
        else:
            self._checkpoints.renew(growth)

    def _freeing(
        self, topic: int, kept: Callable[[BlockInfo, Extent], bool], forget: bool = False
    ) -> tuple[Extent, bool]:
        """Deletes oldest blocks in one transaction; see ``_delete``."""
        return self._with_room(lambda transaction, share: _delete(transaction, topic, kept, forget, share))

    def _with_room(self, delete: Callable[[Writing, int], T]) -> T:
        """Runs what deletes in one transaction.  Gets by in a full environment too.

        Deleting takes a few pages before it gives any back.  A checkpoint makes those free that the one
        before held; where that is not enough, the map grows a little, or less is deleted at once:
        ``delete`` is told by how much its usual portion is to be divided.  Raises StoreFull when the disk has
        no room even so.
        """

        def attempt(share: int = 1) -> T:
            with self._writing() as transaction:
                return delete(transaction, share)

        with self._one_writer:
            try:
                result = attempt()
            except StoreFull:
                self.checkpoint()
                try:
                    result = attempt()
                except StoreFull as full:
                    if full.limit is Limit.MAP:
                        self._renew(_GROWTH)
                    result = attempt(_IN_NEED)
            room = self._database.room()
            if room.map_size - room.used < _SPARE:
                # What was freed can be used by the commit after the next one. If this one took the last pages
                # there were, the next one would have none, and so for ever.
                self._renew(_SPARE)
            return result


def _put_extent(transaction: Writing, topic: int, extent: Extent) -> None:
    key = topic_key(topic)
    transaction.put(EXTENTS, key, pack_extent(key, extent))


def _delete(
    transaction: Writing, topic: int, kept: Callable[[BlockInfo, Extent], bool], forget: bool, share: int
) -> tuple[Extent, bool]:
    """Deletes oldest blocks until one is ``kept``, of 256 and 64 MiB at most the ``share``th part, but one at
    the least; the new extent, and whether it stopped for that.

    ``kept`` is asked with the record of the oldest block and the extent as it then is.  ``forget``: when
    nothing is left, the extent and the position go too.
    """
    extent = extent_of(transaction, topic)
    doomed: list[BlockInfo] = []
    following: BlockInfo | None = None
    freed = 0
    is_portion = False
    for info in infos_from(transaction, topic, 0):
        is_portion = (
            len(doomed) == _DELETED_AT_ONCE // share or freed + info.bytes > _DELETED_OCTETS_AT_ONCE // share
        ) and bool(doomed)
        if is_portion or kept(info, extent):
            following = info
            break
        doomed.append(info)
        freed += info.bytes
        # Where a record was damaged these are estimates.
        messages, octets = max(0, extent.messages - info.count), max(0, extent.bytes - info.bytes)
        extent = Extent(info.next, extent.last, messages, octets)
    for info in doomed:
        key = block_key(topic, info.first)
        transaction.delete(INDEX, key)
        transaction.delete(BLOCKS, key)
    if following is not None:
        extent = Extent(following.first, extent.last, extent.messages, extent.bytes)
    elif doomed:
        extent = Extent(extent.last + 1, extent.last, 0, 0)
    more = following is not None and is_portion
    if forget and following is None:
        transaction.delete(EXTENTS, topic_key(topic))
        transaction.delete(POSITIONS, topic_key(topic))
    elif doomed:
        _put_extent(transaction, topic, extent)
    return extent, more


def _within(runs: Sequence[Sequence[BlockInfo]], limit: int) -> Iterator[Sequence[BlockInfo]]:
    """The first of these runs, as many as have ``limit`` octets together; at least one if there is any."""
    size = 0
    for run in runs:
        size += sum(info.bytes for info in run)
        if size > limit and run is not runs[0]:
            return
        yield run


def _merged(topic: int, run: Sequence[tuple[BlockInfo, bytes | None]]) -> Block | None:
    """One block for a run; None when a part cannot be read, and stays as it is for ``read`` to report."""
    try:
        return merge([verified(topic, info, value).block for info, value in run])
    except (DamagedBlock, NewerFormat):
        return None


def _replace(transaction: Writing, run: Sequence[BlockInfo], block: Block, value: bytes) -> None:
    """Stores a merged block in the place of its parts, unless some of them were deleted meanwhile.

    The parts were read before this transaction began.  A server lets no deletion of a level come between, but
    threads that use an environment without a server may.
    """
    topic = block.topic
    keys = [block_key(topic, info.first) for info in run]
    if any(transaction.get(INDEX, key) != pack_info(key, info) for key, info in zip(keys, run, strict=True)):
        return
    for key in keys[1:]:
        transaction.delete(INDEX, key)
        transaction.delete(BLOCKS, key)
    info = block_info(block, value)
    transaction.put(INDEX, keys[0], pack_info(keys[0], info))
    transaction.put(BLOCKS, keys[0], value)
    extent = extent_of(transaction, topic)
    saved = sum(part.bytes for part in run) - info.bytes
    _put_extent(transaction, topic, Extent(extent.first, extent.last, extent.messages, extent.bytes - saved))


def _is_too_old(info: BlockInfo, too_old: TooOld) -> bool:
    by_time = info.next <= too_old.time_below and info.time + info.span < too_old.time
    return by_time or info.next <= too_old.below
