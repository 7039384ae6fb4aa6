"""The two meta pages of each data file: the effect of a flipped bit."""

import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from storage_helpers import numbered, problems
from test_storage_repair import contents, repaired

from omq_storage import integrity
from omq_storage.errors import DamagedFile
from omq_storage.levels import Level
from omq_storage.pages import Pages
from omq_storage.store import Store

PAGE = 4096
META = 152
"""The octets of a meta page that have a meaning."""

MAP_SIZE = range(32, 40)
"""The size of the map. LMDB does not use it: the caller who opens an environment sets the size."""

LEVELS = ["strong", "weak", "async"]
FILES = ["catalogue", *LEVELS]


def share(octets: Sequence[int], name: str) -> Sequence[int]:
    """Return the octets to damage in a file: all in the catalogue, and each in one of the levels, because the
    meta pages of all files are alike.
    """
    return octets[LEVELS.index(name) :: len(LEVELS)] if name in LEVELS else octets


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metas") / "store"
    for _ in range(
        2
    ):  # so that there are free pages, and the newest page is in turn the first and the second
        with Store.open(path, map_size=1 << 28, boot_id="first") as store:
            for topic, level in enumerate(Level):
                environment = store.level(level)
                first = environment.extent(topic).next or 1
                if first == 1:
                    store.catalogue.create(level.value.encode(), "news", level.value, True, reserved=1)
                store.catalogue.reserve({topic: first + 300})
                for at in range(first, first + 300, 10):
                    environment.append([numbered(topic, at, 10, 5000 if at % 100 == 1 else 10)])
                environment.trim(topic, first)
    return path


@contextmanager
def flipped(file: Path, page: int, octet: int, bit: int) -> Iterator[None]:
    at = page * PAGE + octet
    with file.open("r+b") as opened:
        opened.seek(at)
        before = opened.read(1)
        opened.seek(at)
        opened.write(bytes([before[0] ^ 1 << bit]))
    yield
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(before)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("page", [0, 1])
def test_every_flipped_bit_is_detected(whole: Path, name: str, page: int) -> None:
    assert integrity.problems(whole / name, thorough=True) == []
    unseen = []
    for octet in share(range(META), name):
        for bit in range(8):
            with flipped(whole / name / "data.mdb", page, octet, bit):
                if octet not in MAP_SIZE and not integrity.problems(whole / name, thorough=True):
                    unseen.append((octet, bit))
    assert unseen == []


@pytest.mark.parametrize("name", FILES)
def test_a_start_detects_every_flipped_bit_of_the_newest_page(whole: Path, name: str) -> None:
    content = (whole / name / "data.mdb").read_bytes()
    numbers = [int.from_bytes(content[at : at + 8], "little") for at in (144, PAGE + 144)]
    page = numbers.index(max(numbers))
    for octet in share([octet for octet in range(META) if octet not in MAP_SIZE], name):
        for bit in range(8):
            with flipped(whole / name / "data.mdb", page, octet, bit), pytest.raises(DamagedFile):
                integrity.require_intact(whole / name)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("page", [0, 1])
def test_a_repair_corrects_it_without_losing_a_message(
    whole: Path, tmp_path: Path, name: str, page: int
) -> None:
    everything = contents(shutil.copytree(whole, tmp_path / "whole"))
    octets = [0, 10, *range(16, 32, 5), *range(41, META, 7), 44, 92, 93, 128, 144, 145]
    for octet in share(octets, name):
        for bit in (2, 1) if octet in (92, 93, 144) else (octet % 8,):
            store = shutil.copytree(whole, tmp_path / "store")
            with flipped(store / name / "data.mdb", page, octet, bit):
                assert problems(store)
                sentences = repaired(store)
                assert any(f"{name}/data.mdb is damaged" in sentence for sentence in sentences)
                assert problems(store) == []
                assert contents(store) == everything, (octet, bit)
                # Flipping back changes the new file, which nobody looks at any more.
            shutil.rmtree(store)


def test_a_start_ignores_faults_that_matter_only_with_further_damage(whole: Path) -> None:
    """One bit of the last page's number is wrong in the older meta page, which LMDB does not use."""
    content = (whole / "weak" / "data.mdb").read_bytes()
    numbers = [int.from_bytes(content[at : at + 8], "little") for at in (144, PAGE + 144)]
    with flipped(whole / "weak" / "data.mdb", numbers.index(min(numbers)), 136, 0):
        (problem,) = integrity.problems(whole / "weak", thorough=True)
        assert problem.startswith("its older page says that page")
        integrity.require_intact(whole / "weak")


def test_a_compact_copy_does_not_count_as_empty(whole: Path, tmp_path: Path) -> None:
    """LMDB's compact copies have only one commit: the other meta page refers to no tree."""
    with lmdb.open(str(whole / "strong"), max_dbs=16, map_size=1 << 28) as environment:
        environment.copy(str(tmp_path), compact=True)
    assert integrity.problems(tmp_path) == []
    with flipped(tmp_path / "data.mdb", 0, 144, 1):  # now this page says that it is the newest
        assert integrity.problems(tmp_path)


@pytest.mark.parametrize("page", [0, 1])
def test_damage_to_unused_octets_does_no_harm(whole: Path, tmp_path: Path, page: int) -> None:
    everything = contents(shutil.copytree(whole, tmp_path / "whole"))
    for octet in MAP_SIZE:
        store = shutil.copytree(whole, tmp_path / "store")
        for name in FILES:
            with (store / name / "data.mdb").open("r+b") as opened:
                opened.seek(page * PAGE + octet)
                (before,) = opened.read(1)
                opened.seek(page * PAGE + octet)
                opened.write(bytes([before ^ 0x40]))
        repaired(store)
        assert contents(store) == everything
        shutil.rmtree(store)


@pytest.mark.parametrize("name", FILES)
def test_a_root_that_is_a_free_page_does_not_make_its_state_older(
    whole: Path, tmp_path: Path, name: str
) -> None:
    """Then each of the two states seems to have freed the root of the other."""
    everything = contents(shutil.copytree(whole, tmp_path / "whole"))
    store = shutil.copytree(whole, tmp_path / "store")
    file = store / name / "data.mdb"
    with Pages(file) as pages:
        later, earlier = pages.metas
        place = pages.first_two.index(later) * PAGE + META - 24  # the root of the tables
        freed = pages.freed_by_commits(earlier)
    assert file.read_bytes()[place : place + 8] == later.main_root.to_bytes(8, "little")
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(max(freed[max(freed)]).to_bytes(8, "little"))
    with Pages(file) as pages:
        assert pages.newest.transaction == later.transaction
    assert any(f"{name}/data.mdb is damaged" in sentence for sentence in repaired(store))
    assert problems(store) == []
    assert contents(store) == everything


def test_a_page_that_links_to_itself_is_rejected_in_short_time(whole: Path, tmp_path: Path) -> None:
    """Otherwise each level of the tree would double the number of pages to read."""
    file = tmp_path / "data.mdb"
    content = (whole / "strong" / "data.mdb").read_bytes()
    number = len(content) // PAGE
    node = struct.pack("<HHHH", number & 0xFFFF, number >> 16, 0, 0)
    begin = PAGE - 2 * len(node)
    head = struct.pack("<QHHHHHH", number, 0, 1, 20, begin, begin, begin + len(node))
    file.write_bytes(content + head.ljust(begin, b"\0") + 2 * node)
    with Pages(file) as pages:
        assert [entries for _, entries in pages.leaves(number, set())] == []
        assert pages.walk(number) is None
        for meta in pages.metas:
            assert pages.walk(meta.main_root) is not None


def test_a_tree_record_beyond_the_end_of_a_page_is_ignored(whole: Path, tmp_path: Path) -> None:
    """The record of a tree has 48 octets; this node claims that its record is in the last 8 of the page."""
    file = tmp_path / "data.mdb"
    content = (whole / "strong" / "data.mdb").read_bytes()
    number = len(content) // PAGE
    node = struct.pack("<HHHHQ", 48, 0, 2, 0, 0)
    begin = PAGE - len(node)
    head = struct.pack("<QHHHHH", number, 0, 2, 18, begin, begin)
    file.write_bytes(content + head.ljust(begin, b"\0") + node)
    with Pages(file) as pages:
        walk = pages.walk(number)
        assert walk is not None
        assert (walk.counts.entries, walk.trees) == (1, [])


def test_the_largest_pages_are_read(whole: Path, tmp_path: Path) -> None:
    """LMDB uses the page size of the machine, at most 32 KiB."""
    size = 32 << 10
    content = (whole / "strong" / "data.mdb").read_bytes()
    file = tmp_path / "data.mdb"
    with file.open("wb") as made:
        for number in range(2):
            page = bytearray(content[number * PAGE : number * PAGE + META])
            page[40:44] = struct.pack("<I", size)
            made.write(page.ljust(size, b"\0"))
    with Pages(file) as pages:
        assert (pages.page_size, pages.count) == (size, 2)
        assert [meta.page_size for meta in pages.metas] == [size, size]
