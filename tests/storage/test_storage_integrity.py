"""The sentence for every number of the two meta pages that a commit could not have written."""

import os
from pathlib import Path

import lmdb
import pytest

from omq_storage.errors import DamagedFile
from omq_storage.integrity import problems, require_intact
from omq_storage.pages import Pages

PAGE = 4096

TREE = {"pad": (0, 4), "flags": (4, 2), "depth": (6, 2), "branches": (8, 8), "leaves": (16, 8)} | {
    "outside": (24, 8),
    "entries": (32, 8),
    "root": (40, 8),
}
FIELDS = (
    {"padding": (8, 2), "kind": (10, 2), "lower": (12, 2), "upper": (14, 2), "address": (24, 8)}
    | {"map size": (32, 8), "last page": (136, 8), "transaction": (144, 8)}
    | {f"free {name}": (40 + at, size) for name, (at, size) in TREE.items()}
    | {f"main {name}": (88 + at, size) for name, (at, size) in TREE.items()}
)
"""Offset and octets of the numbers in a meta page (mdb.c: MDB_page, MDB_meta, MDB_db)."""

BEGINNING = "page {page} does not begin as it has to"
ORDER = "page {page} gives a tree another order"
FREE = "page {page} describes other free pages than there are"
TABLES = "page {page} describes other tables than there are"
LARGER = "it was larger once"
LAST = "its older page says that page {last} was its last"
STATE = "its older page does not lead to the state before the last commit"

# lmdb.verify has sentences of its own for the other numbers: it verifies the trees of the newest page.
OF_BOTH = [
    ("padding", 1, [BEGINNING]),
    ("kind", 2, [BEGINNING]),
    ("lower", 1, [BEGINNING]),
    ("upper", 1, [BEGINNING]),
    ("address", 1, [BEGINNING]),
    ("free flags", 1, [ORDER]),
    ("free flags", -8, [ORDER]),
    ("main flags", 1, [ORDER]),
    ("main pad", 1, [ORDER]),
]
OF_THE_OLDER = [
    ("map size", 1, [LARGER]),
    *((f"free {name}", 1, [FREE]) for name in ("depth", "branches", "leaves", "outside", "entries", "root")),
    *((f"main {name}", 1, [TABLES]) for name in ("depth", "branches", "leaves", "outside", "entries")),
    ("main root", -1, [TABLES]),
    ("last page", -1, [FREE]),
]


def make(path: Path, commits: int = 6) -> Path:
    path.mkdir()
    with lmdb.open(str(path), max_dbs=4, map_size=1 << 24, sync=False) as environment:
        small, large = environment.open_db(b"a"), environment.open_db(b"b")
        for commit in range(commits):
            with environment.begin(write=True) as transaction:
                for number in range(60):
                    transaction.put(b"%06d" % (commit * 1000 + number), bytes(100), db=small)
                transaction.put(b"large %d" % commit, bytes(9000), db=large)
                if commit:
                    transaction.delete(b"%06d" % ((commit - 1) * 1000 + 3), db=small)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make(tmp_path / "environment")


def page_of(path: Path, newest: bool) -> int:
    """Return 0 or 1: which meta page is the newest, or the older one."""
    with Pages(path / "data.mdb") as pages:
        return pages.first_two.index(pages.newest) ^ (not newest)


def add(path: Path, page: int, field: str, difference: int) -> int:
    """Change a number of a meta page, and return what it is now."""
    at, size = FIELDS[field]
    with (path / "data.mdb").open("r+b") as file:
        file.seek(page * PAGE + at)
        number = (int.from_bytes(file.read(size), "little") + difference) % (1 << 8 * size)
        file.seek(page * PAGE + at)
        file.write(number.to_bytes(size, "little"))
    return number


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize(
    ("newest", "field", "difference", "sentences"),
    [(newest, *case) for newest in (False, True) for case in OF_BOTH]
    + [(False, *case) for case in OF_THE_OLDER],
)
def test_each_number_of_a_meta_page_has_its_sentence(
    path: Path, newest: bool, field: str, difference: int, sentences: list[str], thorough: bool
) -> None:
    page = page_of(path, newest)
    add(path, page, field, difference)
    assert problems(path, thorough=thorough) == [sentence.format(page=page) for sentence in sentences]


def test_an_older_page_that_leads_elsewhere_is_reported_by_a_check_only(path: Path) -> None:
    """It matters only when the newest page is damaged, too."""
    page = page_of(path, newest=False)
    add(path, page, "main root", 1)  # another page with the records of the two tables
    with Pages(path / "data.mdb") as pages:
        last = pages.metas[1].last_page
    assert problems(path, thorough=True) == [LAST.format(last=last), STATE]
    assert problems(path) == []
    require_intact(path)
    add(path, page, "main root", -1)
    last = add(path, page, "last page", 1)
    assert problems(path, thorough=True) == [LAST.format(last=last)]
    assert problems(path) == []
    last = add(path, page, "last page", 1 << 40)
    assert problems(path) == [LARGER]


def test_transactions_that_do_not_follow_each_other(path: Path) -> None:
    newest, older = page_of(path, newest=True), page_of(path, newest=False)
    with Pages(path / "data.mdb") as pages:
        number = pages.newest.transaction
    add(path, newest, "transaction", 2)
    assert problems(path) == [f"its first two pages are of the transactions {number + 2} and {number - 1}"]
    add(path, newest, "transaction", -2)
    assert problems(path, thorough=True) == []
    add(path, older, "transaction", -2)
    assert problems(path) == [f"its first two pages are of the transactions {number} and {number - 3}"]
    add(path, older, "transaction", 4)  # now it says that it is the newest
    assert problems(path) == [
        f"it says that its newest transaction is {number + 1}, but that was {number - 1}"
    ]


def test_a_map_that_was_once_larger(path: Path) -> None:
    add(path, page_of(path, newest=True), "map size", -1)
    assert problems(path) == [LARGER]
    add(path, page_of(path, newest=True), "map size", 2)  # a server may open it with a larger map
    assert problems(path, thorough=True) == []


def test_a_file_that_ends_too_early(path: Path) -> None:
    file = path / "data.mdb"
    size = file.stat().st_size
    with Pages(file) as pages:
        last = pages.newest.last_page
        assert size == (last + 1) * PAGE
    os.truncate(file, size - 1)
    assert problems(path)
    os.truncate(file, size - PAGE)
    assert problems(path)
    os.truncate(file, size)
    assert problems(path)  # the page is there again, and has zeros
    page = page_of(path, newest=True)
    os.truncate(make(path.with_name("another")) / "data.mdb", size)
    add(path.with_name("another"), page, "last page", 1)
    assert problems(path.with_name("another")) == [f"it ends after {last + 1} pages, and has {last + 2}"]


def test_pages_at_the_end_may_be_missing_where_they_are_free(tmp_path: Path) -> None:
    """LMDB writes no page that it frees in the same commit; a value that is replaced leaves such pages."""
    path = tmp_path / "environment"
    path.mkdir()
    with lmdb.open(str(path), max_dbs=1, map_size=1 << 24) as environment:
        table = environment.open_db(b"a")
        with environment.begin(write=True) as transaction:
            transaction.put(b"stays", bytes(10), db=table)
        with environment.begin(write=True) as transaction:
            transaction.put(b"goes", bytes(5 * PAGE), db=table)
            transaction.delete(b"goes", db=table)
            transaction.put(b"comes", bytes(10), db=table)
    with Pages(path / "data.mdb") as pages:
        beyond = range(pages.count, pages.newest.last_page + 1)
        assert pages.freed(pages.newest).issuperset(beyond)
    assert problems(path, thorough=True) == []
    require_intact(path)


def test_files_that_are_no_environments(tmp_path: Path) -> None:
    file = tmp_path / "data.mdb"
    with pytest.raises(DamagedFile) as raised:
        require_intact(tmp_path)
    advice = '; "omq store check" reports the details, "omq store repair" saves what can be saved.'
    assert str(raised.value) == f"The file {file} is missing{advice}"
    file.touch()
    assert problems(tmp_path) == problems(tmp_path, thorough=True) == ["it is empty"]
    with pytest.raises(DamagedFile) as raised:
        require_intact(tmp_path)
    assert str(raised.value) == f"The file {file} is damaged: it is empty{advice}"
    for content in (b"x", b"\0" * 150, b"\0" * PAGE, b"\xff" * 2 * PAGE, os.urandom(5 * PAGE)):
        file.write_bytes(content)
        assert problems(tmp_path)


def test_new_and_compact_environments_are_intact(tmp_path: Path) -> None:
    """They have a meta page without a transaction, or two of the same one."""
    path = tmp_path / "new"
    path.mkdir()
    with lmdb.open(str(path), max_dbs=1, map_size=1 << 24) as environment:
        assert problems(path, thorough=True) == []
        with environment.begin(write=True) as transaction:
            transaction.put(b"first", b"1")
        assert problems(path, thorough=True) == ["page 1 leads to pages that are no tables"]
        (tmp_path / "compact").mkdir()
        environment.copy(str(tmp_path / "compact"), compact=True)
    assert problems(tmp_path / "compact") == ["page 1 leads to pages that are no tables"]
    whole = make(tmp_path / "whole")
    (tmp_path / "copy").mkdir()
    with lmdb.open(str(whole), max_dbs=4) as environment:
        environment.copy(str(tmp_path / "copy"), compact=True)
    assert problems(tmp_path / "copy", thorough=True) == []
