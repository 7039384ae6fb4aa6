"""One LMDB environment with the blocks of all the topics of one sync level (design, section 6).

Its tables: ``blocks`` holds one value a block; ``index`` a short record under the same key, so that looking
for a message, listing, deleting and merging need not touch the messages; ``extents`` and ``positions`` one
record a topic; those of ``storage.producers`` the last sequence of each idempotent producer.  All change in
one transaction, so that after a power failure they agree: neither a position nor a sequence ever points past
what survived.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import TypeVar, assert_never

from storage.blocks import Block, merge, pack, unpack
from storage.checkpoint import Checkpoints, prepare
from storage.database import Cursor, Database, Reading, Writing
from storage.errors import DamagedBlock, DamagedRecord, Limit, NewerFormat, StoreError, StoreFull
from storage.levels import Level
from storage.merging import plan
from storage.producers import PRODUCER_TABLES, forget_producers, keep_sequences, last_sequences
from storage.records import (
    EXTENTS as _EXTENTS,
)
from storage.records import (
    INDEX as _INDEX,
)
from storage.records import (
    POSITIONS as _POSITIONS,
)
from storage.records import (
    BlockInfo,
    Extent,
    Position,
    Usage,
    block_info,
    block_key,
    key_block,
    key_topic,
    pack_extent,
    pack_info,
    pack_position,
    topic_key,
    unpack_extent,
    unpack_info,
    unpack_position,
)

__all__ = ["BlockInfo", "Environment", "Extent", "Position", "Usage"]

_BLOCKS = b"blocks"
_TABLES = (_BLOCKS, _INDEX, _EXTENTS, _POSITIONS, *PRODUCER_TABLES)
_DELETED_AT_ONCE = 256
_FORGOTTEN_AT_ONCE = 4096
_SCANNED_AT_ONCE = 4096
_MERGED_AT_ONCE = 8 << 20
_GROWTH = 8 << 20
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
        match level:
            case Level.STRONG:
                self._database = Database(path, _TABLES, map_size=map_size, sync=True)
            case Level.WEAK | Level.ASYNC:
                prepare(path)
                self._database = Database(path, _TABLES, map_size=map_size, sync=False)
                self._checkpoints = Checkpoints(self._database, boot_id)
            case _:
                assert_never(level)
        self._database.make_tables()

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
            newest = transaction.cursor(_INDEX)
            highest = newest.key() if newest.last() else b""
            for block, value in zip(blocks, values, strict=True):
                topic = block.topic
                extent = extents[topic] if topic in extents else _extent(transaction, topic)
                if block.first < extent.next:
                    raise StoreError(
                        f"Message {block.first} of topic {topic} cannot be stored after {extent.last}."
                    )
                key = block_key(topic, block.first)
                info = block_info(block, value)
                at_end = key > highest
                transaction.put(_BLOCKS, key, value, at_end=at_end)
                transaction.put(_INDEX, key, pack_info(key, info), at_end=at_end)
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
        found: list[tuple[BlockInfo, bytes | None]] = []
        size = 0
        with self._database.reading() as transaction:
            for info in _infos(transaction, topic, first):
                size += info.bytes
                if found and (size > max_bytes or len(found) >= max_blocks):
                    break
                found.append((info, transaction.get(_BLOCKS, block_key(topic, info.first))))
        # Verified outside of the transaction, so that it does not hold room for longer than copying takes.
        blocks: list[Block] = []
        for info, value in found:
            try:
                blocks.append(_verified(topic, info, value))
            except (DamagedBlock, NewerFormat):
                if not blocks:
                    raise
                break  # the next call begins with this block, and raises
        return blocks

    def blocks(self, topic: int, first: int, limit: int = 1024) -> list[BlockInfo]:
        """What ``read`` would find, as a list of up to ``limit``, without touching the messages."""
        with self._database.reading() as transaction:
            return list(islice(_infos(transaction, topic, first), limit))

    def extent(self, topic: int) -> Extent:
        """What is stored of this topic."""
        with self._database.reading() as transaction:
            return _extent(transaction, topic)

    def extents(self) -> dict[int, Extent]:
        """What is stored of every topic that has, or had, messages here."""
        with self._database.reading() as transaction:
            return {
                key_topic(key): unpack_extent(key, sealed) for key, sealed in transaction.cursor(_EXTENTS)
            }

    def trim(self, topic: int, before: int) -> Extent:
        """Deletes the blocks that lie wholly below message ``before``, in bounded transactions."""
        while True:
            extent, more = self._freeing(topic, lambda info, _: info.next > before)
            if not more:
                return extent

    def retain(self, topic: int, max_bytes: int | None, oldest: int | None, keep_from: int | None) -> Extent:
        """Deletes the oldest blocks until what is left keeps to the limits; None is no limit.

        ``max_bytes``: octets of stored values; the newest block is kept even when it alone has more.
        ``oldest``: microseconds since the epoch; blocks whose last message is older go, the newest block too.
        ``keep_from``: blocks with this message id or later ones are never deleted.

        At most 256 blocks a call, in one transaction: call again while the extent changes.
        """

        def kept(info: BlockInfo, extent: Extent) -> bool:
            if keep_from is not None and info.next > keep_from:
                return True
            too_many = max_bytes is not None and extent.bytes > max_bytes and info.last != extent.last
            too_old = oldest is not None and info.time + info.span < oldest
            return not (too_many or too_old)

        return self._freeing(topic, kept)[0]

    def drop(self, topic: int) -> None:
        """Deletes everything of a topic, its extent, position and sequences too, in bounded transactions.

        One that was interrupted leaves a topic with fewer blocks; dropping it again completes it.
        """
        more = True
        while more:  # before the extent, which tells that something is left
            more = self._with_room(lambda writing: forget_producers(writing, topic, _FORGOTTEN_AT_ONCE))
        more = True
        while more:
            more = self._freeing(topic, lambda _, __: False, forget=True)[1]

    def merge_small(self, topic: int, start: int) -> int | None:
        """Merges small blocks that follow one another, from message ``start`` on, in one bounded transaction.

        Merged blocks have up to 4,096 messages and 512 KiB.  Blocks are merged only when the result is at
        least twice its largest part, so that a growing topic is rewritten a few times at most.  Never across
        a gap of ids, nor over 71 minutes.

        Returns the message id to go on at, or None when nothing further can be merged now; remember the last
        id returned as the place to begin next time.
        """
        with self._database.reading() as transaction:
            found = list(islice(_infos(transaction, topic, start), _SCANNED_AT_ONCE + 1))
            beyond = len(found) > _SCANNED_AT_ONCE
            scanned = found[:_SCANNED_AT_ONCE]
            if not scanned:
                return None
            planned = plan(scanned)
            runs = list(_within(planned.runs, _MERGED_AT_ONCE))
            # Everything is copied and merged before the write transaction, which others wait for.
            values = [
                [(info, transaction.get(_BLOCKS, block_key(topic, info.first))) for info in run]
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
                key_topic(key): unpack_position(key, sealed) for key, sealed in transaction.cursor(_POSITIONS)
            }

    def set_positions(self, positions: Mapping[int, Position]) -> None:
        """Keeps these positions, in one transaction; as durable as ``append``."""
        if not positions:
            return
        with self._writing() as transaction:
            for topic, position in positions.items():
                key = topic_key(topic)
                transaction.put(_POSITIONS, key, pack_position(key, position))

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
        return self._with_room(lambda transaction: _delete(transaction, topic, kept, forget))

    def _with_room(self, delete: Callable[[Writing], T]) -> T:
        """Runs what deletes in one transaction.  Gets by in a full environment too.

        Deleting takes a few pages before it gives any back.  A checkpoint makes those free that the one
        before held; where that is not enough, the map grows a little.  Raises StoreFull when the disk has no
        room even so.
        """

        def attempt() -> T:
            with self._writing() as transaction:
                return delete(transaction)

        with self._one_writer:
            try:
                return attempt()
            except StoreFull:
                self.checkpoint()
            try:
                return attempt()
            except StoreFull as full:
                if full.limit is Limit.DISK:
                    raise
                self._renew(_GROWTH)
            return attempt()


def _extent(transaction: Reading, topic: int) -> Extent:
    key = topic_key(topic)
    sealed = transaction.get(_EXTENTS, key)
    return Extent() if sealed is None else unpack_extent(key, sealed)


def _put_extent(transaction: Writing, topic: int, extent: Extent) -> None:
    key = topic_key(topic)
    transaction.put(_EXTENTS, key, pack_extent(key, extent))


def _infos(transaction: Reading, topic: int, first: int) -> Iterator[BlockInfo]:
    """The records of the block that contains message ``first``, or else the next one, and of all after it."""
    cursor = transaction.cursor(_INDEX)
    if not _seek(transaction, cursor, topic, first):
        return
    beginning = topic_key(topic)
    for key, sealed in cursor:
        if not key.startswith(beginning):
            return
        info = _info_at(transaction, key, sealed)
        if info is not None:
            yield info


def _info_at(transaction: Reading, key: bytes, sealed: bytes) -> BlockInfo | None:
    """The record of a block.  Where it is damaged, what the block itself says, or else the ids up to the next
    block, which ``_verified`` then finds damaged.  None for a key that is none.
    """
    try:
        return unpack_info(key, sealed)
    except DamagedRecord:
        pass
    try:
        topic, first = key_block(key)
    except DamagedRecord:
        return None
    value = transaction.get(_BLOCKS, key)
    if value is not None:
        try:
            return block_info(unpack(topic, first, value), value)
        except (DamagedBlock, NewerFormat):
            pass
    cursor = transaction.cursor(_INDEX)
    end = first + 1
    if cursor.set_range(key + b"\0") and cursor.key().startswith(topic_key(topic)):
        try:
            end = key_block(cursor.key())[1]
        except DamagedRecord:
            pass
    else:
        end = max(end, _extent(transaction, topic).next)
    return BlockInfo(first, end - first, 0, 0, 0)


def _seek(transaction: Reading, cursor: Cursor, topic: int, first: int) -> bool:
    """Moves to the block that contains message ``first``, or else the next of any topic, if there is one."""
    start = block_key(topic, first)
    found = cursor.set_range(start)
    if found and cursor.key() == start:
        return True
    before = cursor.prev() if found else cursor.last()
    if before and cursor.key().startswith(topic_key(topic)):
        info = _info_at(transaction, *cursor.item())
        if info is not None and info.next > first:
            return True
    return cursor.set_range(start)


def _verified(topic: int, info: BlockInfo, value: bytes | None) -> Block:
    """The block of a stored value.  Raises DamagedBlock, with the ids the index knows, and NewerFormat."""
    if value is None:
        raise DamagedBlock(topic, info.first, info.last, "its messages are missing")
    try:
        block = unpack(topic, info.first, value)
    except DamagedBlock as damage:
        raise DamagedBlock(topic, info.first, info.last, damage.why) from damage
    if block.count != info.count:
        raise DamagedBlock(topic, info.first, info.last, f"it has {block.count} messages")
    return block


def _delete(
    transaction: Writing, topic: int, kept: Callable[[BlockInfo, Extent], bool], forget: bool
) -> tuple[Extent, bool]:
    """Deletes oldest blocks until one is ``kept``, 256 at most; the new extent, and whether it stopped for
    that.

    ``kept`` is asked with the record of the oldest block and the extent as it then is.  ``forget``: when
    nothing is left, the extent and the position go too.
    """
    extent = _extent(transaction, topic)
    doomed: list[BlockInfo] = []
    following: BlockInfo | None = None
    for info in _infos(transaction, topic, 0):
        if len(doomed) == _DELETED_AT_ONCE or kept(info, extent):
            following = info
            break
        doomed.append(info)
        # Where a record was damaged these are estimates.
        messages, octets = max(0, extent.messages - info.count), max(0, extent.bytes - info.bytes)
        extent = Extent(info.next, extent.last, messages, octets)
    for info in doomed:
        key = block_key(topic, info.first)
        transaction.delete(_INDEX, key)
        transaction.delete(_BLOCKS, key)
    if following is not None:
        extent = Extent(following.first, extent.last, extent.messages, extent.bytes)
    elif doomed:
        extent = Extent(extent.last + 1, extent.last, 0, 0)
    more = following is not None and len(doomed) == _DELETED_AT_ONCE
    if forget and following is None:
        transaction.delete(_EXTENTS, topic_key(topic))
        transaction.delete(_POSITIONS, topic_key(topic))
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
        return merge([_verified(topic, info, value) for info, value in run])
    except (DamagedBlock, NewerFormat):
        return None


def _replace(transaction: Writing, run: Sequence[BlockInfo], block: Block, value: bytes) -> None:
    """Stores a merged block in the place of its parts, unless some of them were deleted meanwhile."""
    topic = block.topic
    keys = [block_key(topic, info.first) for info in run]
    if any(transaction.get(_INDEX, key) != pack_info(key, info) for key, info in zip(keys, run, strict=True)):
        return
    for key in keys[1:]:
        transaction.delete(_INDEX, key)
        transaction.delete(_BLOCKS, key)
    info = block_info(block, value)
    transaction.put(_INDEX, keys[0], pack_info(keys[0], info))
    transaction.put(_BLOCKS, keys[0], value)
    extent = _extent(transaction, topic)
    saved = sum(part.bytes for part in run) - info.bytes
    _put_extent(transaction, topic, Extent(extent.first, extent.last, extent.messages, extent.bytes - saved))
