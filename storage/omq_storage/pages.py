"""Reading the pages of an LMDB data file without LMDB, which maps the file and trusts every number in it.

The layout is that of LMDB 0.9 (mdb.c: MDB_page, MDB_node, MDB_meta, MDB_db) on a machine with 64-bit
little-endian numbers.  Every length and index is compared with the size of its page or of the file before it
is used.  So these functions accept any octets.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Self

from omq_storage.metas import (
    META_SIZE,
    NO_PAGE,
    PAGE_HEADER,
    TREE_SIZE,
    Counts,
    Meta,
    Tree,
    read_meta,
    read_tree,
)

_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_OUTSIDE, _SUBTREE = (
    1,
    2,
)  # flags of a node: its value is on overflow pages; its value is the record of a tree
_LONG_PAGE = Struct("<QHHI")
_NODE = Struct("<HHHH")
_NUMBER = Struct("<Q")
_USUAL_PAGE = 4096
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its value."""

    key: bytes
    value: bytes
    tree: int | None = None
    """The root of the tree whose record the value is, if it is one."""
    order: int = 0
    """Flags of that tree: its order; 0 for the order of the octets of its keys."""
    outside: range = range(0)
    """The overflow pages of the value."""


@dataclass(slots=True)
class Walk:
    """The result of a walk through a tree."""

    counts: Counts = Counts()  # noqa: RUF009 - it is frozen
    highest: int = 0
    """Its highest page number."""
    trees: list[Tree] = field(default_factory=list)
    """The records of trees among its values."""


class Pages:
    """An open data file and a context manager.  Every method may raise OSError."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size
        first = self._meta(0)
        second = self._meta(_USUAL_PAGE if first is None else first.page_size)
        self.first_two = (self._meta(0, beside=second), self._meta_behind(first, second))
        """The two meta pages; None for one that cannot be read."""
        self.metas = tuple(
            sorted(filter(None, self.first_two), key=lambda meta: meta.transaction, reverse=True)
        )
        """The meta pages that can be read, by descending transaction number."""
        self.page_size = self.metas[0].page_size if self.metas else _USUAL_PAGE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def newest(self) -> Meta:
        """The newest meta page.  Raises IndexError when none can be read.

        A commit frees the root of the tables of the state before it.  This decides which page is newer: a
        flipped bit in one of the two transaction numbers would lead to the older state.
        """
        if len(self.metas) < 2:
            return self.metas[0]
        later, earlier = self.metas
        # If one of the roots is damaged, each page may seem to follow the other.
        exchanged = self._succeeds(earlier, later) and not self._succeeds(later, earlier)
        return earlier if exchanged else later

    def _succeeds(self, later: Meta, earlier: Meta) -> bool:
        """Return whether ``later`` is the commit after ``earlier``, according to its list of free pages."""
        freed = self.freed_by_commits(later)
        return bool(freed) and earlier.main_root in freed[max(freed)]

    @property
    def count(self) -> int:
        """The number of pages of the file."""
        return self._size // self.page_size

    def leaves(self, root: int, seen: set[int]) -> Iterator[tuple[int, list[Entry]]]:
        """Yield the leaf pages of a tree in order: the number of each page and its entries.

        Skips pages in ``seen``, and adds every page that it reads to it, so that a cycle of damaged links
        ends.  Skips pages that cannot be read.
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
            kind = PAGE_HEADER.unpack_from(page)[2]
            if kind == _BRANCH:
                waiting += [(child, depth + 1) for child in reversed(_children(page))]
            elif kind == _LEAF:
                yield number, list(self._entries(page))

    def walk(self, root: int) -> "Walk | None":
        """Count the pages of a tree without reading its values.  Return None if a page of it is wrong."""
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
                kind = PAGE_HEADER.unpack_from(page)[2]
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
        """Return the overflow pages of a node's value.  If the value is the record of a tree, add it to
        ``found``.
        """
        low, high, flags, key_length = _NODE.unpack_from(page, begin)
        length = low | high << 16
        value_at = begin + _NODE.size + key_length
        if flags & _OUTSIDE and value_at + _NUMBER.size <= len(page):
            number: int = _NUMBER.unpack_from(page, value_at)[0]
            return range(number, number + -(-(PAGE_HEADER.size + length) // self.page_size))
        if flags & _SUBTREE and length == TREE_SIZE and value_at + length <= len(page):
            found.trees.append(read_tree(page, value_at))
        return range(0)

    def root_of_tables(self, meta: Meta) -> int:
        """Return the root of the tables of a state.  If the recorded one is wrong, search the file for it."""
        free = self.freed(meta)
        if meta.main_root not in free and self._leads_to_tables(meta.main_root):
            return meta.main_root
        found = [page for page in range(2, self.count) if page not in free and self._leads_to_tables(page)]
        return found[0] if len(found) == 1 else meta.main_root

    def _leads_to_tables(self, number: int) -> bool:
        page = self._page(number)
        if page is None or PAGE_HEADER.unpack_from(page)[2] != _LEAF:
            return False
        entries = list(self._entries(page))
        return bool(entries) and all(entry.tree is not None for entry in entries)

    def has_all_tables(self, meta: Meta, root: int) -> bool:
        """Return whether all pages of the tables of a state are in place."""
        walk = self.walk(root)
        if walk is None or walk.counts != meta.main.counts or len(walk.trees) != walk.counts.entries:
            return False
        walks = [self.walk(tree.root) for tree in walk.trees]
        return all(
            found is not None and found.counts == tree.counts
            for found, tree in zip(walks, walk.trees, strict=True)
        )

    def remains(self, number: int) -> list[Entry]:
        """Return the entries that a page would have if it were a leaf, without regard to its header.

        Most of them may be nonsense; the caller verifies their checksums.
        """
        page = self._read(number * self.page_size, self.page_size)
        return [] if page is None else list(self._entries(page, strict=False))

    def newest_freed(self, meta: Meta) -> int | None:
        """Return the highest transaction that freed pages; None if none can be read."""
        newest = None
        for _, entries in self.leaves(meta.free_root, set()):
            for entry in entries:
                if len(entry.key) == _NUMBER.size:
                    newest = max(newest or 0, _NUMBER.unpack(entry.key)[0])
        return newest

    def highest(self, meta: Meta) -> int | None:
        """Return the highest page that a state uses or lists as free; None if its trees cannot be read."""
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
        """Return the numbers of the free pages, as far as the list of free pages can be read."""
        return set().union(*self.freed_by_commits(meta).values())

    def freed_by_commits(self, meta: Meta) -> dict[int, set[int]]:
        """Return the free pages by the transaction that freed them, as far as they can be read."""
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
        """Return a page; None if its header has another page number."""
        octets = self._read(number * self.page_size, self.page_size)
        if octets is None or PAGE_HEADER.unpack_from(octets)[0] != number:
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
                    pages = -(-(PAGE_HEADER.size + length) // self.page_size)
                    yield Entry(key, value, outside=range(number, number + pages))
            elif value_at + length <= len(page):
                value = page[value_at : value_at + length]
                if flags & _SUBTREE:
                    if length == TREE_SIZE:
                        tree = read_tree(value, 0)
                        yield Entry(key, value, tree.root, tree.flags)
                else:
                    yield Entry(key, value)

    def _outside(self, number: int, length: int, strict: bool) -> bytes | None:
        """Return a value on overflow pages; None if it lies beyond the end of the file."""
        if number >= self.count:
            return None
        begin = number * self.page_size
        head = self._read(begin, PAGE_HEADER.size)
        if head is None:
            return None
        own, _, flags, pages = _LONG_PAGE.unpack(head)
        if strict and (
            own != number or not flags & _OVERFLOW or pages * self.page_size < length + PAGE_HEADER.size
        ):
            return None
        return self._read(begin + PAGE_HEADER.size, length)


def _nodes(page: bytes) -> list[int]:
    """Return the indexes of the nodes of a page that lie within it."""
    _, _, _, lower, upper = PAGE_HEADER.unpack_from(page)
    if not PAGE_HEADER.size <= lower <= upper <= len(page):
        return []
    starts = [
        int.from_bytes(page[at : at + 2], "little") for at in range(PAGE_HEADER.size, lower - lower % 2, 2)
    ]
    return [start for start in starts if upper <= start <= len(page) - _NODE.size]


def _possible_nodes(page: bytes) -> list[int]:
    """Return the indexes at which nodes may begin on a page whose header may be damaged."""
    starts: set[int] = set()
    end = len(page)
    at = PAGE_HEADER.size
    # The array of node indexes ends before the first node.
    while at + 2 <= end:
        start = int.from_bytes(page[at : at + 2], "little")
        if PAGE_HEADER.size < start <= len(page) - _NODE.size:
            starts.add(start)
            end = min(end, start)
        at += 2
    return sorted(starts)


def _children(page: bytes) -> list[int]:
    """Return the child pages of a branch page."""
    found = []
    for begin in _nodes(page):
        low, high, flags, _ = _NODE.unpack_from(page, begin)
        found.append(low | high << 16 | flags << 32)
    return found
