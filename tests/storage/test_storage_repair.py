"""Damaged stores: what a check reports, what a repair saves, and what a backup contains."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from storage_helpers import bodies_of, numbered, problems, read_all

from omq_storage.backup import backup
from omq_storage.catalogue import MESSAGE_IDS_SKIPPED, TOPIC_IDS_SKIPPED
from omq_storage.environment import Position
from omq_storage.errors import DamagedFile, NewerFormat, StoreError
from omq_storage.levels import Level
from omq_storage.repair import repair
from omq_storage.runs import runs_of
from omq_storage.store import Store, lock_store
from omq_storage.topics import COUNTER, NEXT, TopicRecord

PAGE = 4096

BACKUP = """
import sys
from pathlib import Path
from omq_storage.backup import backup
from omq_storage.runs import runs_of
backup(Path(sys.argv[1]), Path(sys.argv[2]), "first", lambda _: None)
"""


class SampleInterpreter:
    """An interpretation of records, as a user of the package may define it."""

    def level_of(self, record: TopicRecord) -> Level | None:
        return Level(record.persistence)

    def has_position(self, record: TopicRecord) -> bool:
        return record.delivery == "work"

    def has_exchange(self, name: bytes) -> bool:
        return name.startswith(b"amq.")

    def unnamed(self, topic: int, level: Level, positioned: bool) -> TopicRecord:
        delivery = "work" if positioned else "news"
        return TopicRecord(topic, b"unnamed-%d" % topic, delivery, level.value, declared=True)


def filled(path: Path) -> Path:
    """Return a store with two topics for each level, in small and in large blocks."""
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        for level in Level:
            for name, delivery in ((b"news", "news"), (b"work", "work")):
                record = store.catalogue.create(
                    level.value.encode() + b" " + name, delivery, level.value, True, reserved=1
                )
                store.catalogue.reserve({record.id: 1001})
                environment = store.level(level)
                for first in range(1, 1001, 10):
                    size = 1000 if first % 100 == 1 else 10
                    environment.append([numbered(record.id, first, 10, size)], {record.id: {b"p": first}})
                if delivery == "work":
                    environment.set_positions({record.id: Position(501, runs_of((7, 9)))})
    return path


def repaired(path: Path) -> list[str]:
    with lock_store(path):
        return repair(path, SampleInterpreter(), "first", lambda _: None, map_size=1 << 28)


def opened(path: Path) -> Store:
    return Store.open(path, map_size=1 << 28, boot_id="second")


def contents(path: Path) -> dict[int, list[tuple[int, bytes]]]:
    """Return every message of every topic."""
    found = {}
    with opened(path) as store:
        for record in store.catalogue.topics():
            found[record.id] = bodies_of(read_all(store.level(Level(record.persistence)), record.id))
    return found


def change(file: Path, at: int, octets: bytes) -> None:
    with file.open("r+b") as damaged:
        damaged.seek(at)
        damaged.write(octets)


def test_an_intact_store_has_no_problems(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert problems(path) == []
    assert repaired(path) == []
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("level", [Level.STRONG, Level.WEAK])
def test_a_damaged_block_is_named_and_all_others_are_saved(tmp_path: Path, level: Level) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    topic = 0 if level is Level.STRONG else 2
    file = path / level.value / "data.mdb"
    change(file, file.read_bytes().index(b"%d/105 " % topic), b"X")
    named = f"{level.value}: messages 101 to 110 of '{level.value} news' cannot be read."
    assert named in problems(path)
    sentences = repaired(path)
    assert named in sentences
    assert any("is kept as" in sentence for sentence in sentences)
    assert (path / f"{level.value}.damaged-1" / "data.mdb").exists()
    assert problems(path) == []
    whole[topic] = [(id, body) for id, body in whole[topic] if not 101 <= id <= 110]
    assert contents(path) == whole
    with opened(path) as store:
        assert store.level(level).positions() == {topic + 1: Position(501, runs_of((7, 9)))}
        assert store.level(level).sequences(topic, [b"p"]) == {b"p": 991}
        assert store.catalogue.topics()[topic].resume >= 1001


def test_a_repair_without_room_leaves_nothing_open_and_can_be_repeated(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    file = path / "strong" / "data.mdb"
    change(file, file.read_bytes().index(b"0/105 "), b"X")
    with lock_store(path):
        before = files_open_in(path)
        with pytest.raises(StoreError, match="full"):
            repair(path, SampleInterpreter(), "first", lambda _: None, map_size=1 << 16)
        assert files_open_in(path) == before
    assert problems(path) != []
    assert any("is kept as" in sentence for sentence in repaired(path))
    assert problems(path) == []


def files_open_in(path: Path) -> list[Path]:
    """Return the files of a store that this process has open."""
    opened = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.exists()]
    return sorted(file for file in opened if file.is_relative_to(path))


def test_a_lost_branch_page_loses_no_message(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    file = path / "strong" / "data.mdb"
    content = file.read_bytes()
    branches = [at for at in range(2 * PAGE, len(content), PAGE) if content[at + 10 : at + 12] == b"\1\0"]
    assert branches
    for at in branches:
        change(file, at, os.urandom(PAGE))
    with pytest.raises(DamagedFile, match=r"strong/data\.mdb is damaged"):
        opened(path)
    repaired(path)
    assert contents(path) == whole


@pytest.mark.parametrize("table", [b"blocks", b"index", b"extents", b"topics"])
@pytest.mark.parametrize("where", ["name", "order"])
def test_a_flipped_bit_in_the_name_or_order_of_a_table_costs_no_message(
    tmp_path: Path, table: bytes, where: str
) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    file = path / ("catalogue" if table == b"topics" else "strong") / "data.mdb"
    content = file.read_bytes()
    for found in re.finditer(re.escape(table), content):
        # Behind the name stand four octets that mean nothing, and the order.
        at = found.start() + 1 if where == "name" else found.end() + 4
        change(file, at, bytes([content[at] ^ 2]))
    with pytest.raises(DamagedFile, match=r"data\.mdb is damaged"):
        opened(path)
    assert any("is kept as" in sentence for sentence in repaired(path))
    assert problems(path) == []
    assert contents(path) == whole


def test_a_lost_number_of_topics_is_named_and_no_topic_id_is_used_again(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    before = contents(path)
    catalogue = path / "catalogue"
    with lmdb.open(str(catalogue), max_dbs=8) as database:
        counter = database.open_db(COUNTER, create=False)
        with database.begin(write=True) as transaction:
            assert transaction.delete(NEXT, db=counter)
    (found,) = problems(path)
    assert found == f"The file {catalogue / 'data.mdb'} has lost which topic id is next."
    repaired(path)
    assert problems(path) == []
    assert contents(path) == before
    with opened(path) as store:
        assert (
            store.catalogue.create(b"new", "news", "weak", True, reserved=1).id
            >= len(before) + TOPIC_IDS_SKIPPED
        )


def test_lost_meta_pages_lose_no_message(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    for name in ("strong", "catalogue"):
        change(path / name / "data.mdb", 0, os.urandom(2 * PAGE))
    repaired(path)
    assert contents(path) == whole


def test_a_repair_does_not_restore_deleted_messages(tmp_path: Path) -> None:
    """Without the meta pages it is unknown which pages are free, so the repair finds deleted blocks there."""
    path = filled(tmp_path / "store")
    with opened(path) as store:
        store.level(Level.STRONG).trim(0, 501)
    whole = contents(path)
    assert whole[0][0][0] == 501
    change(path / "strong" / "data.mdb", 0, os.urandom(2 * PAGE))
    repaired(path)
    assert contents(path) == whole


def test_a_lost_file_is_reported_and_its_ids_are_not_reused(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    (path / "strong" / "data.mdb").unlink()
    sentences = repaired(path)
    assert any("strong/data.mdb is damaged: it is missing" in sentence for sentence in sentences)
    assert "strong: nothing of 'strong news' could be saved." in sentences
    assert contents(path) == {**whole, 0: [], 1: []}
    with opened(path) as store:
        assert [record.resume for record in store.catalogue.topics()[:2]] == [1001, 1001]


def test_a_lost_name_is_taken_from_an_older_page(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    file = path / "catalogue" / "data.mdb"
    content = file.read_bytes()
    newest = max(int.from_bytes(content[at : at + 8], "little") for at in (144, PAGE + 144))
    root_at = (newest % 2) * PAGE + 16 + 24 + 48 + 40
    main = int.from_bytes(content[root_at : root_at + 8], "little") * PAGE
    in_use = content.index(b"topics", main) + len(b"topics") + 40
    leaf = int.from_bytes(content[in_use : in_use + 8], "little") * PAGE
    change(file, content.index(b"weak news", leaf), b"?")
    with pytest.raises(DamagedFile, match=r"catalogue/data.mdb is damaged: The record of topic 2"):
        opened(path)
    repaired(path)
    assert contents(path) == whole
    with opened(path) as store:
        assert store.catalogue.topics()[2].name == b"weak news"


def test_without_its_catalogue_every_message_is_saved(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    shutil.rmtree(path / "catalogue")
    sentences = repaired(path)
    assert "The name of topic 3 could not be saved; now it is called 'unnamed-3'." in sentences
    assert contents(path) == whole
    with opened(path) as store:
        records = store.catalogue.topics()
        assert [record.delivery for record in records] == ["news", "work"] * 3
        assert all(record.resume > MESSAGE_IDS_SKIPPED for record in records)
        assert store.catalogue.create(b"another", "news", "weak", True).id >= 6 + TOPIC_IDS_SKIPPED


def test_a_catalogue_older_than_a_topic_gives_it_a_name_and_deleted_ones_none(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        # A deletion that was cut short leaves this.
        deleted = store.catalogue.create(b"deleted", "news", "weak", True, reserved=10).id
        store.level(Level.WEAK).append([numbered(deleted, 1, 3)])
        store.catalogue.delete(deleted)
    older = shutil.copytree(path / "catalogue", tmp_path / "older")
    with opened(path) as store:
        lost = store.catalogue.create(b"lost", "news", "weak", True, reserved=10).id
        store.level(Level.WEAK).append([numbered(lost, 1, 3)])
        kept = bodies_of(read_all(store.level(Level.WEAK), lost))
    shutil.rmtree(path / "catalogue")
    older.rename(path / "catalogue")
    assert lost > deleted
    assert f"The name of topic {lost} could not be saved; now it is called 'unnamed-{lost}'." in repaired(
        path
    )
    assert contents(path) == {lost: kept}


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"{")])
def test_a_lost_format_file_is_made_again(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    harm(path / "format")
    with pytest.raises(DamagedFile, match=r"store/format is (missing|damaged)"):
        opened(path)
    assert len(repaired(path)) == 2
    assert contents(path) == whole
    # Nobody knows whether it was a copy that was never opened.
    with opened(path) as store:
        assert all(record.resume > MESSAGE_IDS_SKIPPED for record in store.catalogue.topics())


def test_a_repair_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    change(path / "weak" / "data.mdb", 0, bytes(2 * PAGE))
    repaired(path)
    # Between the two renamings, and before them.
    (path / "weak").rename(path / "weak.new")
    (path / "strong.new").mkdir()
    assert repaired(path) == []
    assert contents(path) == whole


def test_a_store_of_a_later_format_is_left_alone(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    (path / "format").write_text('{"format": 5}')
    with pytest.raises(NewerFormat):
        repaired(path)


def test_a_backup_of_a_store_in_use_is_a_store(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    whole = contents(path)
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        store.level(Level.WEAK).append([numbered(2, 1001, 10)])
        whole[2] += bodies_of([numbered(2, 1001, 10)])
        # In another process, as the command does it: none may open an environment twice.
        subprocess.run([sys.executable, "-c", BACKUP, path, tmp_path / "backup"], check=True)
        store.level(Level.WEAK).append([numbered(2, 1011, 10)])
    assert problems(tmp_path / "backup") == []
    assert contents(tmp_path / "backup") == whole
    with opened(tmp_path / "backup") as store:
        # Somebody may have seen what came after it was made.
        assert all(record.resume > MESSAGE_IDS_SKIPPED for record in store.catalogue.topics())
        resumed = [record.resume for record in store.catalogue.topics()]
        assert store.catalogue.create(b"another", "news", "weak", True).id == 6 + TOPIC_IDS_SKIPPED
        assert not any(recovery.rolled_back for recovery in store.recoveries)
    with opened(tmp_path / "backup") as store:  # only the first time
        assert [record.resume for record in store.catalogue.topics()][:6] == resumed


def test_the_first_start_of_a_backup_says_what_it_is(tmp_path: Path) -> None:
    backup(filled(tmp_path / "store"), tmp_path / "backup", "first", lambda _: None)
    with opened(tmp_path / "backup") as store:
        assert all(recovery.rolled_back for recovery in store.recoveries)
        assert all("restored backup" in recovery.what for recovery in store.recoveries)


def test_a_backup_of_a_damaged_store_leaves_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    change(path / "async" / "data.mdb", 0, bytes(2 * PAGE))
    with pytest.raises(DamagedFile, match=re.escape(str(path / "async" / "data.mdb"))):
        backup(path, tmp_path / "backup", "first", lambda _: None)
    assert {entry.name for entry in tmp_path.iterdir()} == {"store"}


def test_a_backup_goes_to_an_empty_place_only(tmp_path: Path) -> None:
    path = filled(tmp_path / "store")
    with pytest.raises(StoreError, match="exists and is not an empty directory"):
        backup(path, path, "first", lambda _: None)
    with pytest.raises(StoreError, match="There is no store in"):
        backup(tmp_path / "nothing", tmp_path / "backup", "first", lambda _: None)
    (tmp_path / "empty").mkdir()
    assert backup(path, tmp_path / "empty", "first", lambda _: None) > 0
