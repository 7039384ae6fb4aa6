"""The pages of an LMDB data file, read as octets and without LMDB, which maps them and trusts what they say.

The layout is that of LMDB 0.9 (mdb.c: MDB_page, MDB_node, MDB_meta, MDB_db) on a machine with 64-bit
little-endian numbers.  Nothing read here is believed before it was compared with the size of what it lies in,
so any octets can be given.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Self

NO_PAGE = (1 << 64) - 1
"""Stands where a tree that is empty has its root."""

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8
_OUTSIDE, _SUBTREE = 1, 2  # flags of a node: its value lies on pages of its own; its value is a tree
_PAGE = Struct("<QHHHH")
_LONG_PAGE = Struct("<QHHI")
_NODE = Struct("<HHHH")
_START = Struct("<IIQQ")
_TREE = Struct("<IHHQQQQQ")
_END = Struct("<QQ")
_META_SIZE = _START.size + 2 * _TREE.size + _END.size
_NUMBER = Struct("<Q")
_SMALLEST_PAGE, _LARGEST_PAGE = 256, 1 << 15
_USUAL_PAGE = 4096
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Meta:
    """What one of the first two pages says of the file."""

    page_size: int
    free_root: int
    main_root: int
    last_page: int
    transaction: int


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


class Pages:
    """An open data file.  A context manager; every method may raise OSError."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size
        self.metas = tuple(meta for meta in self._metas() if meta is not None)
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
        """What the newest of the first two pages says.  IndexError when none can be read."""
        return self.metas[0]

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

    def freed(self, meta: Meta) -> set[int]:
        """The numbers of the pages that nothing uses, as far as that can be read."""
        free: set[int] = set()
        for _, entries in self.leaves(meta.free_root, set()):
            for entry in entries:
                whole = len(entry.value) // _NUMBER.size * _NUMBER.size
                numbers = [number for (number,) in _NUMBER.iter_unpack(entry.value[:whole])]
                free.update(numbers[1:])  # the first one counts the others
        return free

    def _metas(self) -> list[Meta | None]:
        first = self._meta(0)
        size = _USUAL_PAGE if first is None else first.page_size
        found = [first, self._meta(size)]
        return sorted(found, key=lambda meta: -1 if meta is None else meta.transaction, reverse=True)

    def _meta(self, offset: int) -> Meta | None:
        octets = self._read(offset, _PAGE.size + _META_SIZE)
        if octets is None or not _PAGE.unpack_from(octets)[2] & _META:
            return None
        magic, version, _, _ = _START.unpack_from(octets, _PAGE.size)
        at = _PAGE.size + _START.size
        free, main = _TREE.unpack_from(octets, at), _TREE.unpack_from(octets, at + _TREE.size)
        last_page, transaction = _END.unpack_from(octets, at + 2 * _TREE.size)
        size = free[0]
        if (magic, version) != (_MAGIC, _VERSION) or size & (size - 1):
            return None
        if not _SMALLEST_PAGE <= size <= _LARGEST_PAGE:
            return None
        return Meta(size, free[-1], main[-1], last_page, transaction)

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
