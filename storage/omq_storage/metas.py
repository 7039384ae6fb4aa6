"""The two meta pages at the beginning of an LMDB data file, from which LMDB finds all other pages.

Commits overwrite them in turn.  The layout is that of LMDB 0.9 (mdb.c: MDB_page, MDB_meta, MDB_db) on a
machine with 64-bit little-endian numbers.
"""

from dataclasses import dataclass, replace
from struct import Struct

NO_PAGE = (1 << 64) - 1
"""The root of an empty tree."""

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_META = 8
_NUMBERS_AS_KEYS = 8
PAGE_HEADER = Struct("<QHHHH")
_START = Struct("<IIQQ")
_TREE = Struct("<IHHQQQQQ")
_END = Struct("<QQ")
TREE_SIZE = _TREE.size
META_SIZE = PAGE_HEADER.size + _START.size + 2 * _TREE.size + _END.size
_SMALLEST_PAGE, _LARGEST_PAGE = 256, 1 << 15


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of a tree."""

    depth: int = 0
    branches: int = 0
    leaves: int = 0
    outside: int = 0
    """Overflow pages: pages of values that do not fit into a leaf."""
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Tree:
    """The record of a tree (MDB_db)."""

    pad: int
    flags: int
    counts: Counts
    root: int


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of a meta page."""

    head: tuple[int, int, int, int, int]
    address: int
    map_size: int
    free: Tree
    """The tree of free pages, by the transaction that freed them."""
    main: Tree
    """The tree of the tables."""
    last_page: int
    transaction: int

    @property
    def page_size(self) -> int:
        """Octets of a page."""
        return self.free.pad

    @property
    def free_root(self) -> int:
        """The root of the tree of free pages."""
        return self.free.root

    @property
    def main_root(self) -> int:
        """The root of the tree of tables."""
        return self.main.root

    def faults(self, number: int) -> list[str]:
        """Return a clause for each fault of meta page 0 or 1 (``number``): contents that LMDB could not have
        written.
        """
        found = []
        if self.head != (number, 0, _META, 0, 0) or self.address:
            found.append(f"page {number} does not begin as it has to")
        if self.free.flags != _NUMBERS_AS_KEYS or self.main.flags or self.main.pad:
            found.append(f"page {number} gives a tree another order")
        if self.transaction and self.transaction % 2 != number:
            found.append(f"page {number} says that it is of transaction {self.transaction}")
        return found


def read_meta(octets: bytes, beside: Meta | None = None) -> Meta | None:
    """Return the content of a meta page; None if these octets are not the beginning of one.

    ``beside``: the other meta page.  With it, a damaged magic number, version or page size is accepted if the
    two are of consecutive transactions.
    """
    if len(octets) < META_SIZE:
        return None
    head = PAGE_HEADER.unpack_from(octets)
    magic, version, address, map_size = _START.unpack_from(octets, PAGE_HEADER.size)
    at = PAGE_HEADER.size + _START.size
    free, main = read_tree(octets, at), read_tree(octets, at + _TREE.size)
    last_page, transaction = _END.unpack_from(octets, at + 2 * _TREE.size)
    size = free.pad
    says_so = head[2] & _META and (magic, version) == (_MAGIC, _VERSION)
    if not says_so or size & (size - 1) or not _SMALLEST_PAGE <= size <= _LARGEST_PAGE:
        if beside is None or abs(transaction - beside.transaction) != 1:
            return None
        free = replace(free, pad=beside.page_size)
    return Meta(head, address, map_size, free, main, last_page, transaction)


def read_tree(octets: bytes, at: int) -> Tree:
    """Return the record of a tree at this index."""
    pad, flags, depth, branches, leaves, outside, entries, root = _TREE.unpack_from(octets, at)
    return Tree(pad, flags, Counts(depth, branches, leaves, outside, entries), root)
