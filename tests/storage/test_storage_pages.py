"""Reading a data file page by page gives what LMDB itself reads from it."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Any

import lmdb
import pytest

from omq_storage import integrity
from omq_storage.metas import NO_PAGE, Counts, read_meta
from omq_storage.pages import Entry, Pages

PAGE, META = 4096, 152
NAMES = (b"empty", b"few", b"many", b"large", b"changing")
HEADER, NODE = Struct("<QHHHH"), Struct("<HHHH")
LEAF, OVERFLOW = 2, 4
OUTSIDE, SUBTREE = 1, 2


def fill(path: Path, seed: int, commits: int = 25) -> None:
    """Make an environment with tables of all shapes, whose pages were freed and used again."""
    chance = random.Random(seed)
    path.mkdir()
    with lmdb.open(str(path), max_dbs=8, map_size=1 << 26, sync=False) as environment:
        tables = {name: environment.open_db(name) for name in NAMES}
        for commit in range(commits):
            with environment.begin(write=True) as transaction:
                for _ in range(300):
                    key = b"%05d" % chance.randrange(4000)
                    transaction.put(key, chance.randbytes(60), db=tables[b"many"])
                if commit % 4 == 0:
                    transaction.put(b"%d" % commit, b"few", db=tables[b"few"])
                # 2,000 octets fit into a leaf, and from about 2,025 on a value has pages of its own.
                for size in (2000, 4080, 4081, chance.randrange(2100, 20000), 3 * PAGE - 16, 3 * PAGE - 15):
                    transaction.put(b"%d" % size, chance.randbytes(size), db=tables[b"large"])
                for _ in range(20):
                    key = b"%02d" % chance.randrange(40)
                    if chance.random() < 0.4:
                        transaction.delete(key, db=tables[b"changing"])
                    else:
                        transaction.put(key, chance.randbytes(chance.randrange(3000)), db=tables[b"changing"])


@pytest.fixture(params=[1, 2])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / "environment"
    fill(made, request.param, commits=20 + request.param)
    return made


@pytest.fixture
def pages(path: Path) -> Iterator[Pages]:
    with Pages(path / "data.mdb") as opened:
        yield opened


def counts_of(told: Mapping[str, Any]) -> Counts:
    return Counts(
        told["depth"], told["branch_pages"], told["leaf_pages"], told["overflow_pages"], told["entries"]
    )


def trees(pages: Pages) -> dict[bytes, Entry]:
    return {
        entry.key: entry for _, entries in pages.leaves(pages.newest.main_root, set()) for entry in entries
    }


def entries_of(pages: Pages, root: int) -> list[Entry]:
    return [entry for _, entries in pages.leaves(root, set()) for entry in entries]


def test_every_table_has_the_entries_and_the_counts_that_LMDB_reads(path: Path, pages: Pages) -> None:
    found = trees(pages)
    assert found.keys() == {*NAMES}
    with lmdb.open(str(path), max_dbs=8, readonly=True) as environment:
        assert pages.newest.main.counts == counts_of(environment.stat())
        assert pages.newest.last_page == environment.info()["last_pgno"]
        assert pages.newest.transaction == environment.info()["last_txnid"]
        for name in NAMES:
            table = environment.open_db(name, create=False)
            root = found[name].tree
            assert root is not None
            with environment.begin(db=table) as transaction:
                expected = counts_of(transaction.stat(table))
                read = [(entry.key, entry.value) for entry in entries_of(pages, root)]
                assert read == list(transaction.cursor())
            walk = pages.walk(root)
            assert walk is not None
            assert walk.counts == expected
            assert all(entry.tree is None for entry in entries_of(pages, root))
    many = pages.walk(trees(pages)[b"many"].tree or 0)
    assert many is not None
    assert many.counts.branches > 0
    assert many.counts.depth > 1


def test_an_overflow_value_names_its_pages(path: Path, pages: Pages) -> None:
    content = (path / "data.mdb").read_bytes()
    root = trees(pages)[b"large"].tree
    assert root is not None
    outside = [entry for entry in entries_of(pages, root) if entry.outside]
    lengths = {len(entry.value): len(entry.outside) for entry in outside}
    assert {4080: 1, 4081: 2, 3 * PAGE - 16: 3, 3 * PAGE - 15: 4}.items() <= lengths.items()
    for entry in outside:
        begin = entry.outside.start * PAGE
        assert content[begin + 16 : begin + 16 + len(entry.value)] == entry.value
        assert PAGE * (len(entry.outside) - 1) < len(entry.value) + 16 <= PAGE * len(entry.outside)
    inside = [entry for entry in entries_of(pages, root) if not entry.outside]
    assert [len(entry.value) for entry in inside] == [2000]


def test_every_page_is_used_once_or_free(path: Path, pages: Pages) -> None:
    """This holds for both states of the file, as a commit overwrites no page of the state before it."""
    assert integrity.problems(path, thorough=True) == []
    for meta in pages.metas:
        main, free = pages.walk(meta.main_root), pages.walk(meta.free_root)
        assert main is not None
        assert free is not None
        walks = [main, free, *filter(None, (pages.walk(tree.root) for tree in main.trees))]
        assert len(walks) == 2 + len(NAMES)
        used = sum(walk.counts.branches + walk.counts.leaves + walk.counts.outside for walk in walks)
        freed = pages.freed(meta)
        assert len(freed) == sum(map(len, pages.freed_by_commits(meta).values()))
        assert 2 + used + len(freed) == meta.last_page + 1
        assert max(*(walk.highest for walk in walks), *freed) == meta.last_page == pages.highest(meta)
        assert pages.newest_freed(meta) == meta.transaction == max(pages.freed_by_commits(meta))
        assert pages.has_all_tables(meta, meta.main_root)
        assert pages.root_of_tables(meta) == meta.main_root
    later, earlier = pages.metas
    assert pages.newest is later
    assert earlier.main_root in pages.freed_by_commits(later)[later.transaction]


def test_the_highest_page_of_a_tree_may_be_of_any_kind(pages: Pages) -> None:
    """A leaf, or the last overflow page of a value."""
    for name, entry in trees(pages).items():
        walk = pages.walk(entry.tree or 0)
        if name == b"empty":
            assert (entry.tree, walk) == (NO_PAGE, pages.walk(NO_PAGE))
            assert walk is not None
            assert (walk.highest, walk.counts) == (0, Counts())
            continue
        seen: set[int] = set()
        outside = [
            page for _, found in pages.leaves(entry.tree or 0, seen) for one in found for page in one.outside
        ]
        assert walk is not None
        assert walk.highest == max([*seen, *outside])
        assert len(seen) == walk.counts.branches + walk.counts.leaves


def test_pages_that_were_seen_are_skipped(pages: Pages) -> None:
    root = trees(pages)[b"many"].tree
    assert root is not None
    seen: set[int] = set()
    leaves = [number for number, _ in pages.leaves(root, seen)]
    assert len(leaves) == len(set(leaves)) > 2
    assert {*leaves, root} <= seen
    assert list(pages.leaves(root, seen)) == []
    one = {leaves[1]}
    assert [number for number, _ in pages.leaves(root, one)] == [leaves[0], *leaves[2:]]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_with_a_lost_page_is_not_complete(path: Path, name: bytes) -> None:
    file = path / "data.mdb"
    content = file.read_bytes()
    with Pages(file) as pages:
        newest = pages.newest
        root = trees(pages)[name].tree
        assert root is not None
        lost = set[int]()
        for _ in pages.leaves(root, lost):
            pass
        whole = entries_of(pages, root)
    for page in sorted(lost)[:: max(1, len(lost) // 4)]:
        file.write_bytes(content[: page * PAGE] + bytes(PAGE) + content[(page + 1) * PAGE :])
        with Pages(file) as pages:
            assert pages.walk(root) is None
            assert not pages.has_all_tables(newest, newest.main_root)
            assert pages.highest(newest) is None
            rest = entries_of(pages, root)
            assert len(rest) < len(whole)
            kept = set(rest)
            assert [entry for entry in whole if entry in kept] == rest
    if name == b"empty":
        assert lost == set()


def test_the_root_of_the_tables_is_found_where_the_recorded_one_is_wrong(path: Path) -> None:
    file = path / "data.mdb"
    content = file.read_bytes()
    with Pages(file) as pages:
        newest = pages.newest
        place = pages.first_two.index(newest) * PAGE + 128
        wrong = [
            trees(pages)[b"many"].tree,  # a branch page
            next(number for number, _ in pages.leaves(trees(pages)[b"few"].tree or 0, set())),  # no tables
            newest.last_page + 100,
            max(pages.freed(newest)),
        ]
    for number in wrong:
        assert number is not None
        file.write_bytes(content[:place] + number.to_bytes(8, "little") + content[place + 8 :])
        with Pages(file) as pages:
            (meta,) = [meta for meta in pages.metas if meta.transaction == newest.transaction]
            assert meta.main_root == number
            assert pages.root_of_tables(meta) == newest.main_root
            assert pages.has_all_tables(meta, newest.main_root)
            assert not pages.has_all_tables(meta, number)
    # With two candidates nobody knows which of them is the right one.
    doubled = bytearray(content[:place] + b"\1" + bytes(7) + content[place + 8 :])
    doubled += doubled[newest.main_root * PAGE : newest.main_root * PAGE + PAGE]
    copy = len(doubled) // PAGE - 1
    doubled[copy * PAGE : copy * PAGE + 8] = copy.to_bytes(8, "little")
    file.write_bytes(doubled)
    with Pages(file) as pages:
        (meta,) = [meta for meta in pages.metas if meta.transaction == newest.transaction]
        assert pages.root_of_tables(meta) == 1


def leaf(number: int, *nodes: tuple[bytes, bytes, int], flags: int = LEAF) -> bytes:
    """Return a page with these keys, values and flags, and with the nodes at its end, as LMDB writes them."""
    page = bytearray(PAGE)
    upper = PAGE
    starts = []
    for key, value, kind in nodes:
        size = int.from_bytes(value[8:], "little") if kind & OUTSIDE else len(value)
        stored = value[:8] if kind & OUTSIDE else value
        node = NODE.pack(size & 0xFFFF, size >> 16, kind, len(key)) + key + stored
        node += b"\0" * (len(node) % 2)
        upper -= len(node)
        page[upper : upper + len(node)] = node
        starts.append(upper)
    lower = HEADER.size + 2 * len(starts)
    page[: HEADER.size] = HEADER.pack(number, 0, flags, lower, upper)
    page[HEADER.size : lower] = b"".join(start.to_bytes(2, "little") for start in starts)
    return bytes(page)


def outside(number: int, size: int) -> bytes:
    return number.to_bytes(8, "little") + size.to_bytes(4, "little")


def overflow(
    number: int, value: bytes, *, own: int | None = None, flags: int = OVERFLOW, pages: int
) -> bytes:
    head = Struct("<QHHI").pack(number if own is None else own, 0, flags, pages)
    return (head + value).ljust(-(-(len(value) + 16) // PAGE) * PAGE, b"\0")


def test_whole_overflow_values_are_read_unless_their_page_is_damaged(path: Path) -> None:
    file = path / "data.mdb"
    content = file.read_bytes()
    count = len(content) // PAGE
    value = random.Random(1).randbytes(2 * PAGE - 16)
    size = len(value)
    made = [
        overflow(count, value, pages=2),
        overflow(count + 2, value, own=count, pages=2),
        overflow(count + 4, value, flags=LEAF, pages=2),
        overflow(count + 6, value, pages=1),
    ]
    number = count + 8
    nodes = [(b"%d" % at, outside(count + 2 * at, size), OUTSIDE) for at in range(4)]
    nodes += [
        (b"4", outside(number + 1, 10), OUTSIDE),  # behind the end
        (b"5", outside(number, PAGE), OUTSIDE),  # reaches behind the end
        (b"6", outside(count, size + 1), OUTSIDE),  # has more octets than its pages
    ]
    file.write_bytes(content + b"".join(made) + leaf(number, *nodes))
    with Pages(file) as pages:
        assert pages.count == number + 1
        ((page, found),) = pages.leaves(number, set())
        assert (page, found) == (number, [Entry(b"0", value, outside=range(count, count + 2))])
        # Of a page whose header may be damaged everything is taken that lies within the file.
        remains = {entry.key: entry for entry in pages.remains(number)}
        assert {b"0", b"1", b"2", b"3", b"6"} <= remains.keys()
        assert not {b"4", b"5"} & remains.keys()
        assert all(remains[b"%d" % at].value == value for at in range(4))
        walk = pages.walk(number)
        assert walk is not None
        assert walk.counts == Counts(1, 0, 1, 2 * 4 + 1 + 2 + 3, 7)
        assert walk.highest == number + 1


def test_nodes_outside_of_their_page_are_ignored(path: Path) -> None:
    file = path / "data.mdb"
    content = file.read_bytes()
    number = len(content) // PAGE
    whole = leaf(number, (b"first", b"1", 0), (b"second", b"22", 0), (b"third", b"333", 0))
    entries = [Entry(b"first", b"1"), Entry(b"second", b"22"), Entry(b"third", b"333")]
    _, _, _, lower, upper = HEADER.unpack_from(whole)

    def read(page: bytes) -> list[Entry]:
        file.write_bytes(content + page)
        with Pages(file) as pages:
            return [entry for _, found in pages.leaves(number, set()) for entry in found]

    def header(lower: int, upper: int, own: int = number, flags: int = LEAF) -> bytes:
        return HEADER.pack(own, 0, flags, lower, upper) + whole[HEADER.size :]

    def start(at: int, value: int) -> bytes:
        place = HEADER.size + 2 * at
        return whole[:place] + value.to_bytes(2, "little") + whole[place + 2 :]

    assert read(whole) == entries
    # The array of the nodes lies behind the header and before the nodes, and the nodes end within the page.
    assert read(header(HEADER.size, upper)) == []
    assert read(header(HEADER.size + 2, upper)) == entries[:1]
    assert read(header(HEADER.size + 3, upper)) == entries[:1]
    assert read(header(HEADER.size - 1, upper)) == []
    assert read(header(upper, upper)) == entries  # an array full of zeros behind the three
    assert read(header(upper + 1, upper)) == []
    assert read(header(lower, PAGE)) == []
    assert read(header(lower, PAGE + 1)) == []
    assert read(header(lower, upper + 1)) == entries[:2]  # the third node begins before the nodes do
    # Neither may a node begin so late that its header would not fit.
    assert read(start(1, PAGE - NODE.size + 1)) == [entries[0], entries[2]]
    assert read(start(1, upper - 1)) == [entries[0], entries[2]]
    assert read(start(1, 0xFFFF)) == [entries[0], entries[2]]
    # A page says which one it is, and of which kind.
    assert read(header(lower, upper, own=number + 1)) == []
    assert read(header(lower, upper, flags=OVERFLOW)) == []
    assert read(header(lower, upper, flags=LEAF | 0x10)) == []
    # A value may end with its page and not behind it.
    last = leaf(number, (b"last", b"4444", 0))
    begin = HEADER.unpack_from(last)[4]
    assert read(last) == [Entry(b"last", b"4444")]
    assert read(last[:begin] + (5).to_bytes(2, "little") + last[begin + 2 :]) == []
    # A number of an overflow page, too.
    far = leaf(number, (b"last", outside(2, 10), OUTSIDE))
    begin = HEADER.unpack_from(far)[4]
    assert read(far[: begin + 6] + (5).to_bytes(2, "little") + far[begin + 8 :]) == []


def test_the_entries_of_a_page_with_a_damaged_header_are_found(path: Path) -> None:
    file = path / "data.mdb"
    content = file.read_bytes()
    number = len(content) // PAGE
    nodes = [(b"key %d" % at, b"value %d" % at, 0) for at in range(40)]
    entries = [Entry(key, value) for key, value, _ in nodes]
    whole = leaf(number, *nodes)

    def remains(page: bytes) -> list[Entry]:
        file.write_bytes(content + page)
        with Pages(file) as pages:
            assert pages.remains(number + 1) == []
            return pages.remains(number)

    for header in (whole[:16], bytes(16), b"\xff" * 16, whole[: 16 - 4] + bytes(4)):
        assert sorted(remains(header + whole[16:]), key=lambda entry: int(entry.key[4:])) == entries
    # A node of a kind that LMDB does not write here has its value as it is.
    assert remains(leaf(number, (b"key", b"value", 4), (b"k", b"v", 8))) == [
        Entry(b"k", b"v"),
        Entry(b"key", b"value"),
    ]
    # Its last node of eight octets has neither key nor value.
    page = bytearray(leaf(number, (b"", b"", 0), (b"key", b"value", 0)))
    assert remains(bytes(16) + bytes(page[16:])) == [Entry(b"key", b"value"), Entry(b"", b"")]
    # A node directly behind the array of their places.
    size = PAGE - 16 - 2 - NODE.size - 1
    full = leaf(number, (b"k", bytes(size), 0))
    assert HEADER.unpack_from(full)[3:] == (18, 18)
    assert remains(bytes(16) + full[16:]) == [Entry(b"k", bytes(size))]


@pytest.mark.parametrize(
    ("size", "is_read"),
    [
        (size, size in (256, 4096, 32 << 10))
        for size in (0, 128, 255, 256, 4096, 4097, 6144, 32 << 10, 64 << 10)
    ],
)
def test_pages_have_a_power_of_two_of_octets(path: Path, size: int, is_read: bool) -> None:
    octets = bytearray((path / "data.mdb").read_bytes()[:META])
    other = read_meta(bytes(octets))
    assert other is not None
    octets[40:44] = size.to_bytes(4, "little")
    meta = read_meta(bytes(octets))
    assert (meta is not None) == is_read
    if meta is not None:
        assert meta.page_size == size
    # Beside the other page, if that is of the transaction before or after, its size counts.
    for difference, follows in ((-2, False), (-1, True), (0, False), (1, True), (2, False)):
        beside = replace(other, transaction=other.transaction + difference)
        repaired = read_meta(bytes(octets), beside)
        assert (repaired is not None) == (is_read or follows)
        if repaired is not None:
            assert repaired.page_size == (size if is_read else PAGE)
    assert read_meta(bytes(octets[:-1])) is None


@pytest.mark.parametrize("size", [0, 100, META - 1, META, PAGE - 1, PAGE + META - 1])
def test_a_file_that_is_too_short_has_fewer_pages(path: Path, size: int) -> None:
    file = path / "data.mdb"
    file.write_bytes(file.read_bytes()[:size])
    with Pages(file) as pages:
        assert pages.count == size // PAGE
        assert len(pages.metas) == (1 if size >= META else 0)
        assert [meta is not None for meta in pages.first_two] == [size >= META, False]
        assert pages.page_size == PAGE
        for meta in pages.metas:
            assert pages.walk(meta.main_root) is None
            assert list(pages.leaves(meta.main_root, set())) == []
            assert pages.freed(meta) == set()
            assert pages.newest_freed(meta) is None
            assert pages.newest is meta
