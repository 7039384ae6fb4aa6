"""The two pages that an LMDB data file begins with, from which everything else is found.

Commits write them in turn.  The layout is that of LMDB 0.9 (mdb.c: MDB_page, MDB_meta, MDB_db) on a machine
with 64-bit little-endian numbers.
"""

from dataclasses import dataclass, replace
from struct import Struct

NO_PAGE = (1 << 64) - 1
"""Stands where a tree that is empty has its root."""

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_META = 8
_NUMBERS_AS_KEYS = 8
_PAGE = Struct("<QHHHH")
_START = Struct("<IIQQ")
_TREE = Struct("<IHHQQQQQ")
_END = Struct("<QQ")
META_SIZE = _PAGE.size + _START.size + 2 * _TREE.size + _END.size
_SMALLEST_PAGE, _LARGEST_PAGE = 256, 1 << 15


@dataclass(frozen=True, slots=True)
class Counts:
    """How large a tree is."""

    depth: int = 0
    branches: int = 0
    leaves: int = 0
    outside: int = 0
    """Pages that values have for themselves."""
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Tree:
    """What is said of a tree."""

    pad: int
    flags: int
    counts: Counts
    root: int


@dataclass(frozen=True, slots=True)
class Meta:
    """What one of the first two pages says of the file."""

    head: tuple[int, int, int, int, int]
    address: int
    map_size: int
    free: Tree
    """The pages that nothing uses, by the transaction that freed them."""
    main: Tree
    """The tables."""
    last_page: int
    transaction: int

    @property
    def page_size(self) -> int:
        """Octets of a page."""
        return self.free.pad

    @property
    def free_root(self) -> int:
        """The root of the tree of pages that nothing uses."""
        return self.free.root

    @property
    def main_root(self) -> int:
        """The root of the tree of tables."""
        return self.main.root

    def faults(self, number: int) -> list[str]:
        """What this page, the first (0) or the second (1), says otherwise than LMDB ever does; clauses."""
        found = []
        if self.head != (number, 0, _META, 0, 0) or self.address:
            found.append(f"page {number} does not begin as it has to")
        if self.free.flags != _NUMBERS_AS_KEYS or self.main.flags or self.main.pad:
            found.append(f"page {number} gives a tree another order")
        if self.transaction and self.transaction % 2 != number:
            found.append(f"page {number} says that it is of transaction {self.transaction}")
        return found


def read_meta(octets: bytes, beside: Meta | None = None) -> Meta | None:
    """What such a page says, None when these octets are not the beginning of one.

    ``beside``: what the other of the two says.  Then it is enough when this one is of the commit before or
    behind it, though it does not say itself what it is.
    """
    if len(octets) < META_SIZE:
        return None
    head = _PAGE.unpack_from(octets)
    magic, version, address, map_size = _START.unpack_from(octets, _PAGE.size)
    at = _PAGE.size + _START.size
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
    """What the record at this place says of a tree."""
    pad, flags, depth, branches, leaves, outside, entries, root = _TREE.unpack_from(octets, at)
    return Tree(pad, flags, Counts(depth, branches, leaves, outside, entries), root)
