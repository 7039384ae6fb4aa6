"""What can still be read of an environment, whatever happened to its data file.

Nothing is given to LMDB here.  The trees are walked as far as they hold together.  Where they do not, every
page that neither they nor the list of free pages account for is looked at: such pages are what hung on the
branches that were lost.  Everything that is found proves by its own checksum what it is and where it belongs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omq_storage.blocks import MAGIC, Block, unpack
from omq_storage.catalogue import NEXT, TopicRecord, decode_next_id, decode_topic
from omq_storage.errors import DamagedBlock, DamagedRecord
from omq_storage.identity import IDENTITY, Identity, Lineage, unpack_identity, unpack_lineage
from omq_storage.pages import Entry, Pages
from omq_storage.producers import check_use, decode_sequence
from omq_storage.records import (
    BlockInfo,
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
from omq_storage.soundness import DATA, problems


@dataclass(slots=True)
class Salvage:
    """What was found of one environment, by topic id."""

    problems: list[str] = field(default_factory=list)
    """What is wrong with the data file as a whole."""
    damaged: int = 0
    """How many records and blocks were found that are not what was written."""
    index: dict[int, dict[int, BlockInfo]] = field(default_factory=dict)
    """What the index says, by first message id."""
    blocks: dict[int, dict[int, tuple[BlockInfo, int]]] = field(default_factory=dict)
    """The blocks that are whole, by first message id, each with the page that leads to it."""
    extents: dict[int, Extent] = field(default_factory=dict)
    positions: dict[int, Position] = field(default_factory=dict)
    sequences: dict[int, dict[bytes, tuple[int, int]]] = field(default_factory=dict)
    """For each idempotent producer: the number of its last use, and its last sequence."""
    topics: dict[int, TopicRecord] = field(default_factory=dict)
    older_topics: dict[int, TopicRecord] = field(default_factory=dict)
    """What was found of topics on pages that are not used any more; some of them may have been deleted."""
    next_topic: int | None = None
    identity: Identity | None = None
    """What a level says of itself."""
    lineage: Lineage | None = None
    """What a catalogue knows of its store."""

    @property
    def known(self) -> set[int]:
        """Every topic of which there is a trace."""
        return {*self.index, *self.blocks, *self.extents, *self.positions, *self.sequences}

    def read(self, path: Path, topic: int) -> Iterator[Block]:
        """The whole blocks of a topic, in order and without any message twice."""
        with Pages(path / DATA) as pages:
            for info, page in self.in_order(topic):
                key = block_key(topic, info.first)
                for entry in pages.remains(page):
                    block = _block_of(entry, key, info)
                    if block is not None:
                        yield block
                        break

    def in_order(self, topic: int) -> list[tuple[BlockInfo, int]]:
        """The whole blocks of a topic that do not lie within one another, by ascending ids."""
        chosen: list[tuple[BlockInfo, int]] = []
        extent = self.extents.get(topic)
        for first in sorted(self.blocks.get(topic, {})):
            info, page = self.blocks[topic][first]
            if extent is not None and info.last < extent.first:
                continue  # deleted, and its page not used again yet
            if chosen and info.first <= chosen[-1][0].last:
                continue  # its messages were merged into the one before
            chosen.append((info, page))
        return chosen

    def missing(self, topic: int) -> list[tuple[int, int]]:
        """The runs of message ids of a topic, first and last, that were stored and cannot be read."""
        whole = [info for info, _ in self.in_order(topic)]
        extent = self.extents.get(topic)
        known = [(info.first, info.last) for info in self.index.get(topic, {}).values()]
        if extent is not None and extent.messages != sum(info.count for info in whole):
            # More is gone than the index tells: whatever lies between is taken for lost.
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


def _block_of(entry: Entry, key: bytes, info: BlockInfo) -> Block | None:
    """The block in an entry, if it is the one with this key and record."""
    # What a page was used for before can look like an entry too, under the same key.
    if entry.key != key or not entry.value.startswith(MAGIC):
        return None
    try:
        block = unpack(*key_block(key), entry.value)
    except DamagedBlock:
        return None
    return block if block_info(block, entry.value) == info else None


def _without(begin: int, end: int, whole: list[BlockInfo]) -> Iterator[tuple[int, int]]:
    """What is left of the ids from ``begin`` to ``end`` without those of these blocks, which are in order."""
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
    """What can be read of the environment in this directory, which was made with these tables;
    ``older_topics`` only if they are asked for.

    Raises NewerFormat for blocks of a later version, and OSError when a file cannot be read at all.
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
        inside = bytearray(pages.count)  # 1 for each page of a large value that is whole
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
            # Their names and orders have no checksum. A start may be cut short before the first is made.
            names = {tree.key for tree in trees} | {IDENTITY} & {*tables}  # it is not there in format 1
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
        # Where nothing is missing, what else can be found was deleted, or written over.
        missing = bool(found.problems) and not complete
        for number in range(2, pages.count) if missing else ():
            if number not in seen and number not in free and not inside[number]:
                for entry in pages.remains(number):
                    _take(found, entry, number)
        if older_topics and (found.problems or found.damaged):
            older = Salvage()
            for number in free:
                for entry in pages.remains(number):
                    _take_older_topic(older, entry)
            found.older_topics = older.topics
    return found


def _take(found: Salvage, entry: Entry, page: int) -> bool:
    """Adds an entry to what was found, unless something better is there; whether it is whole.

    What it is shows in its checksum, which knows the table.
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


def _take_index(found: Salvage, entry: Entry, page: int) -> bool:
    topic, first = key_block(entry.key)
    info = unpack_info(entry.key, entry.value)
    found.index.setdefault(topic, {}).setdefault(first, info)
    return True


# Of the following only the newest counts, and a page that was lost may have older ones on it.


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
    return True  # the sequences tell it too


def _take_topic(found: Salvage, entry: Entry, page: int) -> bool:
    record = decode_topic(entry.key, entry.value)
    known = found.topics.setdefault(record.id, record)
    if (record.reserved, record.resume, record.declared) > (known.reserved, known.resume, known.declared):
        found.topics[record.id] = record
    return True


def _take_older_topic(found: Salvage, entry: Entry) -> None:
    try:
        _take_topic(found, entry, 0)
    except DamagedRecord:
        pass


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
    _take_index,
    _take_extent,
    _take_position,
    _take_sequence,
    _take_use,
    _take_topic,
    _take_next_topic,
    _take_identity,
    _take_lineage,
)
