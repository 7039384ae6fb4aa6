"""Reads the rest of an environment with a damaged data file.

This module does not use LMDB.  It walks the trees as far as their links are right.  If a tree is damaged, it
also reads every page that is neither in a tree nor in the list of free pages: such pages belonged to the
branches that were lost.  Each entry that is found has a checksum over its table, its key and its content; the
checksum proves what the entry is and where it belongs.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omq_storage.blocks import MAGIC, Block, unpack
from omq_storage.errors import DamagedBlock, DamagedRecord
from omq_storage.fragments import (
    FRAGMENT_OCTETS,
    FRAGMENT_TABLES,
    Fragmented,
    fragment_count,
    info_of,
    unpack_fragment,
    unpack_fragmented,
    unpack_loose,
)
from omq_storage.fragments import MAGIC as LARGE_MAGIC
from omq_storage.identity import IDENTITY, LevelIdentity, Lineage, unpack_identity, unpack_lineage
from omq_storage.integrity import DATA, problems
from omq_storage.pages import Entry, Pages
from omq_storage.producers import check_use, decode_sequence
from omq_storage.records import (
    BlockRecord,
    Extent,
    Position,
    block_info,
    block_key,
    key_block,
    key_topic,
    unpack_extent,
    unpack_info,
    unpack_position,
)
from omq_storage.topics import NEXT, TopicRecord, decode_next_id, decode_topic
from omq_storage.topology import (
    TOPOLOGY_TABLES,
    BindingRecord,
    ExchangeRecord,
    decode_binding,
    decode_exchange,
    decode_queue,
)

_ADDED = {IDENTITY, *FRAGMENT_TABLES, *TOPOLOGY_TABLES}


@dataclass(slots=True)
class Salvage:
    """The contents of one environment, by topic id."""

    problems: list[str] = field(default_factory=list)
    """Faults of the data file as a whole, a clause for each."""
    damaged: int = 0
    """Number of records and blocks with a wrong checksum."""
    index: dict[int, dict[int, BlockRecord]] = field(default_factory=dict)
    """The index records, by first message id."""
    blocks: dict[int, dict[int, tuple[BlockRecord, int]]] = field(default_factory=dict)
    """The intact blocks by first message id, each with the leaf page of its entry."""
    large: dict[int, dict[int, Fragmented]] = field(default_factory=dict)
    """The messages in fragments among ``blocks``."""
    fragments: dict[int, "Body"] = field(default_factory=dict)
    """The fragments that were found of each body."""
    extents: dict[int, Extent] = field(default_factory=dict)
    positions: dict[int, Position] = field(default_factory=dict)
    sequences: dict[int, dict[bytes, tuple[int, int]]] = field(default_factory=dict)
    """The number of the last use and the last sequence number of each idempotent producer."""
    topics: dict[int, TopicRecord] = field(default_factory=dict)
    older_topics: dict[int, TopicRecord] = field(default_factory=dict)
    """Records of topics on free pages; some of these topics may have been deleted."""
    exchanges: dict[bytes, ExchangeRecord] = field(default_factory=dict)
    bindings: dict[int, BindingRecord] = field(default_factory=dict)
    """The bindings, by number."""
    queues: dict[int, bytes] = field(default_factory=dict)
    """The options of queues, by topic id."""
    older_exchanges: dict[bytes, ExchangeRecord] = field(default_factory=dict)
    older_queues: dict[int, bytes] = field(default_factory=dict)
    """Records on free pages, as ``older_topics``."""
    next_topic: int | None = None
    identity: LevelIdentity | None = None
    """The identity of a level."""
    lineage: Lineage | None = None
    """The lineage in a catalogue."""

    @property
    def known(self) -> set[int]:
        """The ids of all topics with any record or block here."""
        return {*self.index, *self.blocks, *self.extents, *self.positions, *self.sequences}

    def read(self, path: Path, topic: int) -> Iterator[Block | Fragmented]:
        """Yield the intact blocks of a topic in order; no message comes twice.

        For the body of a message in fragments see ``body``.
        """
        with Pages(path / DATA) as pages:
            for info, page in self.in_order(topic):
                if info.body:
                    yield self.large[topic][info.first]
                    continue
                key = block_key(topic, info.first)
                for entry in pages.remains(page):
                    block = _block_of(entry, key, info)
                    if block is not None:
                        yield block
                        break

    def body(self, path: Path, message: Fragmented) -> Iterator[bytes]:
        """Yield the fragments of a message in order.  Raises DamagedRecord when one cannot be read again."""
        with Pages(path / DATA) as pages:
            for index in range(fragment_count(message.size)):
                yield _fragment_of(pages, self.fragments[message.body].pages[index], message.body, index)

    def _is_whole(self, info: BlockRecord, topic: int) -> bool:
        """Return whether all fragments of a message were found; always for a block."""
        if not info.body:
            return True
        message = self.large[topic][info.first]
        body = self.fragments.get(message.body)
        return body is not None and body.is_complete(message.size)

    def in_order(self, topic: int) -> list[tuple[BlockRecord, int]]:
        """Return index record and page of the intact blocks of a topic that do not overlap, by
        ascending ids.
        """
        chosen: list[tuple[BlockRecord, int]] = []
        extent = self.extents.get(topic)
        for first in sorted(self.blocks.get(topic, {})):
            info, page = self.blocks[topic][first]
            if extent is not None and info.last < extent.first:
                continue  # the block was deleted, and LMDB has not reused its page yet
            if chosen and info.first <= chosen[-1][0].last:
                continue  # the block was merged into the previous one
            if not self._is_whole(info, topic):
                continue
            chosen.append((info, page))
        return chosen

    def missing(self, topic: int) -> list[tuple[int, int]]:
        """Return the ranges of message ids (first, last) that were stored and cannot be read."""
        whole = [info for info, _ in self.in_order(topic)]
        extent = self.extents.get(topic)
        known = [(info.first, info.last) for info in self.index.get(topic, {}).values()]
        if extent is not None and extent.messages != sum(info.count for info in whole):
            # The extent has more messages than the index. So report every id of the topic that is in no
            # intact block as lost.
            known.append((extent.first, extent.last))
        lost: list[tuple[int, int]] = []
        for begin, end in sorted(known):
            for first, last in _without(begin, end, whole):
                if extent is not None and last < extent.first:
                    continue
                if lost and first <= lost[-1][1] + 1:
                    lost[-1] = (lost[-1][0], max(last, lost[-1][1]))
                else:
                    lost.append((first, last))
        return lost


@dataclass(slots=True)
class Body:
    """The fragments of one body."""

    pages: "array[int]" = field(default_factory=lambda: array("Q"))
    """The leaf page of the entry of each fragment, by its index; 0 where none was found."""
    shorter: dict[int, int] = field(default_factory=dict)
    """The octets of the fragments that have fewer than FRAGMENT_OCTETS."""

    def take(self, index: int, page: int, octets: int) -> None:
        """Add a fragment that was found, unless it is known."""
        self.pages.extend([0] * (index + 1 - len(self.pages)))
        if not self.pages[index]:
            self.pages[index] = page
            if octets < FRAGMENT_OCTETS:
                self.shorter[index] = octets

    def is_complete(self, size: int) -> bool:
        """Return whether these are all fragments of a body of this size."""
        count = fragment_count(size)
        if len(self.pages) != count or not all(self.pages):
            return False
        rest = size - (count - 1) * FRAGMENT_OCTETS
        return self.shorter == ({count - 1: rest} if rest < FRAGMENT_OCTETS else {})


def _fragment_of(pages: Pages, page: int, body: int, index: int) -> bytes:
    """Return the content of a fragment in this leaf page.  Raises DamagedRecord."""
    for entry in pages.remains(page):
        try:
            found = unpack_fragment(entry.key, entry.value)
        except DamagedRecord:
            continue
        if found[:2] == (body, index):
            return bytes(found[2])
    raise DamagedRecord(f"Fragment {index} of body {body} cannot be read again.")


def _block_of(entry: Entry, key: bytes, info: BlockRecord) -> Block | None:
    """Return the block in an entry if it has this key and fits this index record, otherwise None."""
    # An earlier use of the page may have left octets that look like an entry with the same key.
    if entry.key != key or not entry.value.startswith(MAGIC):
        return None
    try:
        block = unpack(*key_block(key), entry.value)
    except DamagedBlock:
        return None
    return block if block_info(block, entry.value) == info else None


def _without(begin: int, end: int, whole: list[BlockRecord]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of ids from ``begin`` to ``end`` that are in none of these blocks, which are
    in order.
    """
    for info in whole:
        if info.last < begin:
            continue
        if info.first > end:
            break
        if info.first > begin:
            yield begin, info.first - 1
        begin = info.last + 1
    if begin <= end:
        yield begin, end


def salvage(path: Path, tables: Sequence[bytes], *, older_topics: bool = False) -> Salvage:
    """Read the readable part of the environment in this directory.

    ``tables``: the tables that an intact one has.  ``older_topics``: also search free pages for records of
    topics, exchanges and queues.  Raises NewerFormat for blocks of a later version, and OSError when a file
    cannot be read at all.
    """
    found = Salvage()
    file = path / DATA
    if not file.exists():
        found.problems = ["it is missing"]
        return found
    found.problems = problems(path, thorough=True)
    with Pages(file) as pages:
        seen: set[int] = set()
        complete = False
        inside = bytearray(pages.count)  # 1 for each overflow page of an intact value
        if pages.metas:
            root = pages.newest.main_root
            if found.problems:
                root = pages.root_of_tables(pages.newest)
                complete = len(pages.metas) == 2 and pages.has_all_tables(pages.newest, root)
            trees = [
                entry
                for _, entries in pages.leaves(root, seen)
                for entry in entries
                if entry.tree is not None
            ]
            # Names and orders of the tables have no checksum, so compare them with the expected ones. There
            # may be no table at all, after a first start that was interrupted.
            names = {tree.key for tree in trees} | _ADDED & {*tables}  # an older format may lack these
            if not found.problems and trees and names != {*tables}:
                found.problems = ["its tables do not have the names that they were given"]
            if not found.problems and any(tree.order for tree in trees):
                found.problems = ["a table has another order"]
            for root in [tree.tree for tree in trees if tree.tree is not None]:
                for number, entries in pages.leaves(root, seen):
                    for entry in entries:
                        if _take(found, entry, number):
                            inside[entry.outside.start : entry.outside.stop] = b"\1" * len(entry.outside)
                        else:
                            found.damaged += 1
        free = pages.freed(pages.newest) if pages.metas else set()
        # In a file without damage, other pages have only entries that were deleted or replaced.
        missing = bool(found.problems) and not complete
        for number in range(2, pages.count) if missing else ():
            if number not in seen and number not in free and not inside[number]:
                for entry in pages.remains(number):
                    _take(found, entry, number)
        if older_topics and (found.problems or found.damaged):
            older = Salvage()
            for number in free:
                for entry in pages.remains(number):
                    _take_older(older, entry)
            found.older_topics = older.topics
            found.older_exchanges = older.exchanges
            found.older_queues = older.queues
    return found


def _take(found: Salvage, entry: Entry, page: int) -> bool:
    """Add an entry to ``found``, unless a newer one is there.  Return whether its checksum is right.

    The checksum covers the name of the table, so it also tells the kind of the entry: each kind is tried in
    turn.
    """
    for take in _TAKERS:
        try:
            if take(found, entry, page):
                return True
        except (DamagedRecord, DamagedBlock):
            pass
    return False


def _take_block(found: Salvage, entry: Entry, page: int) -> bool:
    topic, first = key_block(entry.key)
    info = block_info(unpack(topic, first, entry.value), entry.value)
    found.blocks.setdefault(topic, {}).setdefault(first, (info, page))
    return True


def _take_large(found: Salvage, entry: Entry, page: int) -> bool:
    if not entry.value.startswith(LARGE_MAGIC):
        return False
    message = unpack_fragmented(entry.key, entry.value)
    known = found.blocks.setdefault(message.topic, {})
    if message.first not in known:
        known[message.first] = (info_of(message), page)
        found.large.setdefault(message.topic, {})[message.first] = message
    return True


def _take_fragment(found: Salvage, entry: Entry, page: int) -> bool:
    number, index, content = unpack_fragment(entry.key, entry.value)
    found.fragments.setdefault(number, Body()).take(index, page, len(content))
    return True


def _take_loose(found: Salvage, entry: Entry, page: int) -> bool:
    unpack_loose(entry.key, entry.value)
    return True  # not needed: a repair copies only the bodies of messages


def _take_index(found: Salvage, entry: Entry, page: int) -> bool:
    topic, first = key_block(entry.key)
    info = unpack_info(entry.key, entry.value)
    found.index.setdefault(topic, {}).setdefault(first, info)
    return True


# Of each of the following records only the newest counts. A page that is in no tree may have an older one.


def _take_extent(found: Salvage, entry: Entry, page: int) -> bool:
    extent = unpack_extent(entry.key, entry.value)
    known = found.extents.setdefault(key_topic(entry.key), extent)
    if (extent.last, extent.first) > (known.last, known.first):
        found.extents[key_topic(entry.key)] = extent
    return True


def _take_position(found: Salvage, entry: Entry, page: int) -> bool:
    position = unpack_position(entry.key, entry.value)
    if position.cursor >= found.positions.setdefault(key_topic(entry.key), position).cursor:
        found.positions[key_topic(entry.key)] = position
    return True


def _take_sequence(found: Salvage, entry: Entry, page: int) -> bool:
    topic, producer, sequence, use = decode_sequence(entry.key, entry.value)
    known = found.sequences.setdefault(topic, {})
    known[producer] = max((use, sequence), known.get(producer, (0, 0)))
    return True


def _take_use(found: Salvage, entry: Entry, page: int) -> bool:
    check_use(entry.key, entry.value)
    return True  # not needed: each sequence record has the number of its use, too


def _take_topic(found: Salvage, entry: Entry, page: int) -> bool:
    record = decode_topic(entry.key, entry.value)
    known = found.topics.setdefault(record.id, record)
    if (record.reserved, record.resume, record.declared) > (known.reserved, known.resume, known.declared):
        found.topics[record.id] = record
    return True


def _take_older(found: Salvage, entry: Entry) -> None:
    for take in (_take_topic, _take_exchange, _take_queue):
        try:
            if take(found, entry, 0):
                return
        except DamagedRecord:
            pass


# An exchange and a binding never change. Options of a queue may, and do not tell which are newer: so those in
# the table count, which are read first.


def _take_exchange(found: Salvage, entry: Entry, page: int) -> bool:
    found.exchanges.setdefault(entry.key, decode_exchange(entry.key, entry.value))
    return True


def _take_binding(found: Salvage, entry: Entry, page: int) -> bool:
    number, record = decode_binding(entry.key, entry.value)
    found.bindings.setdefault(number, record)
    return True


def _take_queue(found: Salvage, entry: Entry, page: int) -> bool:
    topic, options = decode_queue(entry.key, entry.value)
    found.queues.setdefault(topic, options)
    return True


def _take_next_topic(found: Salvage, entry: Entry, page: int) -> bool:
    if entry.key != NEXT:
        return False
    found.next_topic = max(found.next_topic or 0, decode_next_id(entry.key, entry.value))
    return True


def _take_identity(found: Salvage, entry: Entry, page: int) -> bool:
    identity = unpack_identity(entry.key, entry.value)
    if found.identity is None or identity.generation > found.identity.generation:
        found.identity = identity
    return True


def _take_lineage(found: Salvage, entry: Entry, page: int) -> bool:
    lineage = unpack_lineage(entry.key, entry.value)
    known = found.lineage
    if known is None or (lineage.generation, lineage.since) > (known.generation, known.since):
        found.lineage = lineage
    return True


_TAKERS = (
    _take_block,
    _take_large,
    _take_fragment,
    _take_index,
    _take_extent,
    _take_position,
    _take_sequence,
    _take_use,
    _take_topic,
    _take_exchange,
    _take_binding,
    _take_queue,
    _take_next_topic,
    _take_identity,
    _take_lineage,
    _take_loose,
)
