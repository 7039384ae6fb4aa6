"""The pages of an LMDB data file, read as octets and without LMDB, which maps them and trusts what they say.

The layout is that of LMDB 0.9 (mdb.c: MDB_page, MDB_node, MDB_meta, MDB_db) on a machine with 64-bit
little-endian numbers.  Nothing read here is believed before it was compared with the size of what it lies in,
so any octets can be given.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Self

from omq_storage.metas import META_SIZE, NO_PAGE, Counts, Meta, Tree, read_meta, read_tree

_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_OUTSIDE, _SUBTREE = 1, 2  # flags of a node: its value lies on pages of its own; its value is a tree
_PAGE = Struct("<QHHHH")
_LONG_PAGE = Struct("<QHHI")
_NODE = Struct("<HHHH")
_TREE = Struct("<IHHQQQQQ")
_NUMBER = Struct("<Q")
_USUAL_PAGE = 4096
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its value."""

    key: bytes
    value: bytes
    tree: int | None = None
    """The root of the tree that the value is, where it is one."""
    order: int = 0
    """How that tree is ordered; 0 by the octets of its keys."""
    outside: range = range(0)
    """The pages that the value has for itself."""


@dataclass(slots=True)
class Walk:
    """What was found of a tree."""

    counts: Counts = Counts()  # noqa: RUF009 (it is frozen)
    highest: int = 0
    """The number of its last page in the file."""
    trees: list[Tree] = field(default_factory=list)
    """What is said of the trees that are its values."""


class Pages:
    """An open data file.  A context manager; every method may raise OSError."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size
        first = self._meta(0)
        second = self._meta(_USUAL_PAGE if first is None else first.page_size)
        self.first_two = (self._meta(0, beside=second), self._meta_behind(first, second))
        """What the first two pages say, None for one that cannot be read."""
        self.metas = tuple(
            sorted(filter(None, self.first_two), key=lambda meta: meta.transaction, reverse=True)
        )
        """What the first two pages say, as far as they can be read; the newest first."""
        self.page_size = self.metas[0].page_size if self.metas else _USUAL_PAGE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def newest(self) -> Meta:
        """What the newest of the first two pages says.  IndexError when none can be read.

        A commit frees the root of the tables of the state before it.  That is believed before the numbers on
        the two pages, where a single bit could lead to the state before.
        """
        if len(self.metas) < 2:
            return self.metas[0]
        later, earlier = self.metas
        # Both may seem to follow the other where it is one of these roots that is damaged.
        exchanged = self._succeeds(earlier, later) and not self._succeeds(later, earlier)
        return earlier if exchanged else later

    def _succeeds(self, later: Meta, earlier: Meta) -> bool:
        """Whether one state is that of the commit behind the other, as far as its free pages tell."""
        freed = self.freed_by_commits(later)
        return bool(freed) and earlier.main_root in freed[max(freed)]

    @property
    def count(self) -> int:
        """How many pages the file has."""
        return self._size // self.page_size

    def leaves(self, root: int, seen: set[int]) -> Iterator[tuple[int, list[Entry]]]:
        """The leaf pages of a tree, in order, each with its number and its entries.

        Pages in ``seen`` are left out, and what was found is added to it; so no circle can be walked twice.
        What cannot be read is left out too.
        """
        waiting = [(root, 0)]
        while waiting:
            number, depth = waiting.pop()
            if number in seen or depth > _DEEPEST:
                continue
            page = self._page(number)
            if page is None:
                continue
            seen.add(number)
            kind = _PAGE.unpack_from(page)[2]
            if kind == _BRANCH:
                waiting += [(child, depth + 1) for child in reversed(_children(page))]
            elif kind == _LEAF:
                yield number, list(self._entries(page))

    def walk(self, root: int) -> "Walk | None":
        """The pages of a tree, counted without reading its values; None when it does not hold together."""
        found = Walk()
        branches = leaves = outside = entries = 0
        pages = [] if root == NO_PAGE else [root]
        depth = 0
        while pages:
            depth += 1
            below: list[int] = []
            for number in pages:
                page = self._page(number)
                if page is None or depth > _DEEPEST or branches + leaves > self.count:
                    return None
                found.highest = max(found.highest, number)
                kind = _PAGE.unpack_from(page)[2]
                if kind == _BRANCH:
                    branches += 1
                    below += _children(page)
                elif kind == _LEAF:
                    leaves += 1
                    for begin in _nodes(page):
                        entries += 1
                        taken = self._outside_pages(page, begin, found)
                        outside += len(taken)
                        found.highest = max(found.highest, *taken[-1:], 0)
                else:
                    return None
            pages = below
        found.counts = Counts(depth, branches, leaves, outside, entries)
        return found

    def _outside_pages(self, page: bytes, begin: int, found: "Walk") -> range:
        """The pages that the value of a node has for itself; a tree that it is goes to ``found``."""
        low, high, flags, key_length = _NODE.unpack_from(page, begin)
        length = low | high << 16
        value_at = begin + _NODE.size + key_length
        if flags & _OUTSIDE and value_at + _NUMBER.size <= len(page):
            number: int = _NUMBER.unpack_from(page, value_at)[0]
            return range(number, number + -(-(_PAGE.size + length) // self.page_size))
        if flags & _SUBTREE and length == _TREE.size and value_at + length <= len(page):
            found.trees.append(read_tree(page, value_at))
        return range(0)

    def root_of_tables(self, meta: Meta) -> int:
        """The root of the tables of a state, looked for where what is said of it cannot be true."""
        free = self.freed(meta)
        if meta.main_root not in free and self._leads_to_tables(meta.main_root):
            return meta.main_root
        found = [page for page in range(2, self.count) if page not in free and self._leads_to_tables(page)]
        return found[0] if len(found) == 1 else meta.main_root

    def _leads_to_tables(self, number: int) -> bool:
        page = self._page(number)
        if page is None or _PAGE.unpack_from(page)[2] != _LEAF:
            return False
        entries = list(self._entries(page))
        return bool(entries) and all(entry.tree is not None for entry in entries)

    def has_all_tables(self, meta: Meta, root: int) -> bool:
        """Whether every page that the tables of a state need is there, and in its place."""
        walk = self.walk(root)
        if walk is None or walk.counts != meta.main.counts or len(walk.trees) != walk.counts.entries:
            return False
        walks = [self.walk(tree.root) for tree in walk.trees]
        return all(
            found is not None and found.counts == tree.counts
            for found, tree in zip(walks, walk.trees, strict=True)
        )

    def remains(self, number: int) -> list[Entry]:
        """What the entries of a page would be if it were a leaf, whatever it says of itself.

        Most of it may be nonsense; what has a checksum will tell.
        """
        page = self._read(number * self.page_size, self.page_size)
        return [] if page is None else list(self._entries(page, strict=False))

    def newest_freed(self, meta: Meta) -> int | None:
        """The highest transaction of which pages were freed, None when there is none that can be read."""
        newest = None
        for _, entries in self.leaves(meta.free_root, set()):
            for entry in entries:
                if len(entry.key) == _NUMBER.size:
                    newest = max(newest or 0, _NUMBER.unpack(entry.key)[0])
        return newest

    def highest(self, meta: Meta) -> int | None:
        """The last page that the state of a commit uses or knows as free; None when it cannot be told."""
        found = max(self.freed(meta), default=1)
        waiting = [meta.free_root, meta.main_root]
        while waiting:
            walk = self.walk(waiting.pop())
            if walk is None:
                return None
            found = max(found, walk.highest)
            waiting += [tree.root for tree in walk.trees]
        return found

    def freed(self, meta: Meta) -> set[int]:
        """The numbers of the pages that nothing uses, as far as that can be read."""
        return set().union(*self.freed_by_commits(meta).values())

    def freed_by_commits(self, meta: Meta) -> dict[int, set[int]]:
        """The pages that nothing uses, as far as that can be read, by the transaction that freed them."""
        free: dict[int, set[int]] = {}
        for _, entries in self.leaves(meta.free_root, set()):
            for entry in entries:
                whole = len(entry.value) // _NUMBER.size * _NUMBER.size
                numbers = [number for (number,) in _NUMBER.iter_unpack(entry.value[:whole])]
                commit = int.from_bytes(entry.key[: _NUMBER.size], "little")
                free.setdefault(commit, set()).update(numbers[1:])  # the first one counts the others
        return free

    def _meta(self, offset: int, beside: Meta | None = None) -> Meta | None:
        octets = self._read(offset, META_SIZE)
        return None if octets is None else read_meta(octets, beside)

    def _meta_behind(self, first: Meta | None, second: Meta | None) -> Meta | None:
        return second or (None if first is None else self._meta(first.page_size, beside=first))

    def _page(self, number: int) -> bytes | None:
        """A page that says itself that it is this one."""
        octets = self._read(number * self.page_size, self.page_size)
        if octets is None or _PAGE.unpack_from(octets)[0] != number:
            return None
        return octets

    def _read(self, offset: int, length: int) -> bytes | None:
        if offset + length > self._size:
            return None
        octets = os.pread(self._file.fileno(), length, offset)
        return octets if len(octets) == length else None

    def _entries(self, page: bytes, strict: bool = True) -> Iterator[Entry]:
        for begin in _nodes(page) if strict else _possible_nodes(page):
            low, high, flags, key_length = _NODE.unpack_from(page, begin)
            length = low | high << 16
            value_at = begin + _NODE.size + key_length
            key = page[begin + _NODE.size : value_at]
            if flags & _OUTSIDE:
                if value_at + _NUMBER.size > len(page):
                    continue
                number: int = _NUMBER.unpack_from(page, value_at)[0]
                value = self._outside(number, length, strict)
                if value is not None:
                    pages = -(-(_PAGE.size + length) // self.page_size)
                    yield Entry(key, value, outside=range(number, number + pages))
            elif value_at + length <= len(page):
                value = page[value_at : value_at + length]
                if flags & _SUBTREE:
                    if length == _TREE.size:
                        _, order, *_, root = _TREE.unpack(value)
                        yield Entry(key, value, root, order)
                else:
                    yield Entry(key, value)

    def _outside(self, number: int, length: int, strict: bool) -> bytes | None:
        """A value that fills pages of its own; None when it lies beyond the end of the file."""
        if number >= self.count:
            return None
        begin = number * self.page_size
        head = self._read(begin, _PAGE.size)
        if head is None:
            return None
        own, _, flags, pages = _LONG_PAGE.unpack(head)
        if strict and (
            own != number or not flags & _OVERFLOW or pages * self.page_size < length + _PAGE.size
        ):
            return None
        return self._read(begin + _PAGE.size, length)


def _nodes(page: bytes) -> list[int]:
    """Where the nodes of a page begin, those that lie within it."""
    _, _, _, lower, upper = _PAGE.unpack_from(page)
    if not _PAGE.size <= lower <= upper <= len(page):
        return []
    starts = [int.from_bytes(page[at : at + 2], "little") for at in range(_PAGE.size, lower - lower % 2, 2)]
    return [start for start in starts if upper <= start <= len(page) - _NODE.size]


def _possible_nodes(page: bytes) -> list[int]:
    """Where nodes may begin on a page whose head is not believed."""
    starts: set[int] = set()
    end = len(page)
    at = _PAGE.size
    # The places of the nodes stand before the first of them.
    while at + 2 <= end:
        start = int.from_bytes(page[at : at + 2], "little")
        if _PAGE.size < start <= len(page) - _NODE.size:
            starts.add(start)
            end = min(end, max(start, at + 2))
        at += 2
    return sorted(starts)


def _children(page: bytes) -> list[int]:
    """The pages that a branch leads to."""
    found = []
    for begin in _nodes(page):
        low, high, flags, _ = _NODE.unpack_from(page, begin)
        found.append(low | high << 16 | flags << 32)
    return found
