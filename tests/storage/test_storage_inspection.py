"""Damage to the records beside the blocks: the report of a check, and the result of a repair."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import lmdb
import pytest
from storage_helpers import bodies_of, numbered, problems, read_all
from test_storage_repair import SampleInterpreter, change, contents, filled, opened, repaired

from omq_storage import integrity
from omq_storage.backup import backup
from omq_storage.catalogue import MESSAGE_IDS_SKIPPED, TOPIC_IDS_SKIPPED
from omq_storage.environment import Position
from omq_storage.errors import StoreError
from omq_storage.identity import IDENTITY, IDENTITY_KEY, LINEAGE_KEY
from omq_storage.inspection import MAX_REPORTED, inspect
from omq_storage.levels import Level
from omq_storage.pages import Pages
from omq_storage.records import BLOCKS, EXTENTS, INDEX, POSITIONS, block_key, topic_key
from omq_storage.repair import repair
from omq_storage.runs import runs_of
from omq_storage.store import Store, lock_store
from omq_storage.topics import COUNTER, TOPICS, TopicRecord

NAMES = ("strong news", "strong work", "weak news", "weak work", "async news", "async work")


def forget(path: Path, *records: tuple[bytes, bytes]) -> None:
    """Delete these records (table, key) from an environment."""
    with lmdb.open(str(path), max_dbs=16, map_size=1 << 28) as environment:
        for table, key in records:
            opened_table = environment.open_db(table, create=False)
            with environment.begin(write=True) as transaction:
                assert transaction.delete(key, db=opened_table)


def spoil(path: Path, table: bytes, *keys: bytes) -> None:
    """Flip a bit in the values of these keys."""
    with lmdb.open(str(path), max_dbs=16, map_size=1 << 28) as environment:
        opened_table = environment.open_db(table, create=False)
        for key in keys:
            with environment.begin(write=True, db=opened_table) as transaction:
                value = bytearray(transaction.get(key) or b"")
                value[-1] ^= 1
                transaction.put(key, bytes(value))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "store")


def test_a_level_without_an_identity(path: Path) -> None:
    whole = contents(path)
    forget(path / "strong", (IDENTITY, IDENTITY_KEY))
    assert problems(path) == [
        f"The file {path / 'strong' / 'data.mdb'} is not the right one: "
        "it does not say which store and level it belongs to."
    ]
    # If the file is damaged anyway, that says it all.
    change(path / "strong" / "data.mdb", 10, b"\x0c")
    (found,) = problems(path)
    assert found.startswith(f"The file {path / 'strong' / 'data.mdb'} is damaged: ")
    repaired(path)
    assert problems(path) == []
    assert contents(path) == whole


def test_a_catalogue_that_does_not_say_which_store_it_is(path: Path) -> None:
    whole = contents(path)
    forget(path / "catalogue", (COUNTER, LINEAGE_KEY))
    assert problems(path) == [
        f"The file {path / 'catalogue' / 'data.mdb'} is not the right one: "
        "it has lost which store it belongs to."
    ]
    repaired(path)
    assert problems(path) == []
    assert contents(path) == whole


def test_blocks_without_a_record_are_counted(path: Path) -> None:
    whole = contents(path)
    forget(path / "strong", *((INDEX, block_key(0, first)) for first in (11, 21, 991)))
    forget(path / "strong", (EXTENTS, topic_key(1)))
    assert problems(path) == [
        "strong: blocks of 'strong news' that are not in the index: 3.",
        "strong: what is stored of 'strong work' is not known.",
    ]
    repaired(path)
    assert problems(path) == []
    assert contents(path) == whole


def test_messages_without_a_block_are_named_by_their_ids(path: Path) -> None:
    whole = contents(path)
    forget(path / "strong", *((BLOCKS, block_key(1, first)) for first in (1, 101, 111, 991)))
    wanted = [
        f"strong: messages {ids} of 'strong work' cannot be read."
        for ids in ("1 to 10", "101 to 120", "991 to 1000")
    ]
    assert problems(path) == wanted
    sentences = repaired(path)
    assert [sentence for sentence in sentences if "cannot be read" in sentence] == wanted
    assert problems(path) == []
    lost = {*range(1, 11), *range(101, 121), *range(991, 1001)}
    whole[1] = [(id, body) for id, body in whole[1] if id not in lost]
    assert contents(path) == whole


def test_damaged_entries_are_counted(path: Path) -> None:
    whole = contents(path)
    spoil(path / "strong", INDEX, block_key(0, 1), block_key(1, 11))
    spoil(path / "strong", POSITIONS, topic_key(1))
    found = problems(path)
    assert found[0] == f"The file {path / 'strong' / 'data.mdb'} has 3 damaged entries."
    assert found[1:] == [
        "strong: blocks of 'strong news' that are not in the index: 1.",
        "strong: blocks of 'strong work' that are not in the index: 1.",
    ]
    repaired(path)
    assert problems(path) == []
    assert contents(path) == whole
    with opened(path) as store:
        assert store.level(Level.STRONG).positions() == {}
        assert store.level(Level.WEAK).positions() == {3: Position(501, runs_of((7, 9)))}


def test_a_lost_position_is_told_where_the_file_is_damaged(path: Path) -> None:
    whole = contents(path)
    spoil(path / "weak", POSITIONS, topic_key(3))
    change(path / "weak" / "data.mdb", 10, b"\x0c")
    sentences = repaired(path)
    told = (
        "weak: the position of 'weak work' could not be saved; all its stored messages are delivered again."
    )
    assert [sentence for sentence in sentences if "could not be saved" in sentence] == [told]
    assert contents(path) == whole


def test_a_topic_without_a_message_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        for name in (b"never used", b"used"):
            store.catalogue.create(name, "work", "weak", True, reserved=1)
        store.catalogue.reserve({1: 100})
    shutil.rmtree(path / "weak")
    sentences = repaired(path)
    assert [sentence for sentence in sentences if "saved" in sentence] == [
        "weak: nothing of 'used' could be saved."
    ]
    assert "There was no weak." in sentences
    assert problems(path) == []


def test_a_topic_without_a_name_is_called_by_its_number(path: Path) -> None:
    whole = contents(path)
    forget(path / "catalogue", (TOPICS, topic_key(2)))
    assert problems(path) == []  # as after a deletion that was cut short
    forget(path / "weak", (BLOCKS, block_key(2, 11)), (BLOCKS, block_key(3, 21)))
    assert problems(path) == [
        "weak: messages 11 to 20 of topic 2 cannot be read.",
        "weak: messages 21 to 30 of 'weak work' cannot be read.",
    ]
    repaired(path)
    del whole[2]
    whole[3] = [(id, body) for id, body in whole[3] if not 21 <= id <= 30]
    assert contents(path) == whole


def test_topics_that_the_catalogue_never_knew(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.catalogue.create(b"known", "news", "strong", True, reserved=10)
        store.level(Level.STRONG).append([numbered(0, 1, 3)])
        store.level(Level.STRONG).append([numbered(topic, 1, 3) for topic in range(1, 24)])
        store.level(Level.WEAK).append([numbered(30, 1, 3)])
    numbers = ", ".join(map(str, range(1, 1 + MAX_REPORTED)))
    assert problems(path) == [f"The catalogue of {path} never knew topics that have messages: {numbers}."]
    with lock_store(path):
        sentences = repair(path, SampleInterpreter(), "first", lambda _: None, map_size=1 << 28)
    assert "The name of topic 30 could not be saved; now it is called 'unnamed-30'." in sentences
    assert problems(path) == []
    with opened(path) as store:
        records = {record.id: record for record in store.catalogue.topics()}
        assert [*records] == [*range(24), 30]
        assert records[0].resume == records[0].reserved == 10 + MESSAGE_IDS_SKIPPED
        assert records[23].resume == records[23].reserved == 4 + MESSAGE_IDS_SKIPPED
        assert records[30].persistence == "weak"
        assert store.catalogue.next_id == 31 + TOPIC_IDS_SKIPPED


def test_a_file_with_many_faults_lists_some_of_them(path: Path) -> None:
    file = path / "strong" / "data.mdb"
    with Pages(file) as pages:
        tables = [entry for _, entries in pages.leaves(pages.newest.main_root, set()) for entry in entries]
        leaves = [number for table in tables if table.tree for number, _ in pages.leaves(table.tree, set())]
    for number in leaves:
        change(file, number * 4096, b"\xff")  # the lowest octet of the number that a page has of itself
    told = [sentence for sentence in problems(path) if str(file) in sentence]
    damaged = [sentence for sentence in told if "is damaged: " in sentence]
    assert len(damaged) == MAX_REPORTED
    more = len(integrity.problems(file.parent, thorough=True)) - MAX_REPORTED
    assert more > 0
    assert f"Further faults of the file {file}: {more}." in told


def test_each_part_is_named_before_it_is_read(path: Path) -> None:
    told: list[str] = []
    with lock_store(path):
        inspect(path, "first", told.append)
    assert told == ["catalogue", "strong", "weak", "async"]
    told.clear()
    forget(path / "weak", (INDEX, block_key(2, 1)))
    shutil.rmtree(path / "catalogue")
    with lock_store(path):
        repair(path, SampleInterpreter(), "first", told.append, map_size=1 << 28)
    assert told == ["catalogue", "strong", "weak", "async", "catalogue: rebuilding it", "weak: rebuilding it"]
    told.clear()
    backup(path, path.with_name("backup"), "first", told.append)
    assert told == ["strong", "weak", "async", "catalogue"]


def test_each_repair_keeps_the_replaced_files(path: Path) -> None:
    for number in (1, 2, 3):
        before = (path / "strong" / "data.mdb").read_bytes()
        forget(path / "strong", (INDEX, block_key(0, 1)))
        sentences = repaired(path)
        aside = path / f"strong.damaged-{number}"
        assert f"What strong was is kept as {aside}." in sentences
        assert len((aside / "data.mdb").read_bytes()) >= len(before)
        assert not (path / "strong.new").exists()
    assert sorted(entry.name for entry in path.iterdir() if "damaged" in entry.name) == [
        f"strong.damaged-{number}" for number in (1, 2, 3)
    ]


def test_a_repair_copies_large_levels_in_groups(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        topic = store.catalogue.create(b"large", "news", "strong", True, reserved=1).id
        store.catalogue.reserve({topic: 1000})
        for first in range(1, 31):
            block = numbered(topic, first, 1, 1 << 20)
            store.level(Level.STRONG).append([block], {topic: {b"p%d" % (first % 3): first}})
        store.level(Level.STRONG).set_sequences(topic, {b"p1": 100})
    whole = contents(path)
    forget(path / "strong", (EXTENTS, topic_key(topic)))
    repaired(path)
    assert contents(path) == whole
    with opened(path) as store:
        known = store.level(Level.STRONG).sequences(topic, [b"p0", b"p1", b"p2", b"p3"])
        assert known == {b"p0": 30, b"p1": 100, b"p2": 29}
        # Stored in few transactions, and none for each block.
        assert store.level(Level.STRONG).usage().transaction < 20


class Shifted(SampleInterpreter):
    """Stores all topics in Strong, whatever their records say."""

    def level_of(self, record: TopicRecord) -> Level | None:
        return Level.STRONG


def test_topics_of_rebuilt_levels_alone_skip_ids(path: Path) -> None:
    with opened(path) as store:
        store.catalogue.resume({2: 5000, 4: 7})
    forget(path / "weak", (INDEX, block_key(2, 1)))
    repaired(path)
    with opened(path) as store:
        assert [record.resume for record in store.catalogue.topics()] == [0, 0, 5000, 1001, 7, 0]
    forget(path / "weak", (INDEX, block_key(2, 1)))
    with lock_store(path):
        repair(path, Shifted(), "first", lambda _: None, map_size=1 << 28)
    with opened(path) as store:
        assert [record.resume for record in store.catalogue.topics()] == [0, 0, 5000, 1001, 7, 0]


def closed_in_disorder(path: Path) -> dict[Level, list[tuple[int, bytes]]]:
    """Return the messages of a store at its last checkpoints, and leave later ones in it."""
    store = Store.open(path, map_size=1 << 28, boot_id="first")
    kept = {}
    for level in Level:
        topic = store.catalogue.create(level.value.encode(), "news", level.value, True, reserved=100).id
        environment = store.level(level)
        environment.append([numbered(topic, 1, 10)])
        environment.checkpoint()
        kept[level] = bodies_of(read_all(environment, topic))
        for first in range(11, 60, 10):
            environment.append([numbered(topic, first, 10)])
        if level is Level.STRONG:
            kept[level] = bodies_of(read_all(environment, topic))
    store.close(clean=False)
    return kept


def messages(path: Path, boot_id: str) -> Mapping[Level, list[tuple[int, bytes]]]:
    with Store.open(path, map_size=1 << 28, boot_id=boot_id) as store:
        return {level: bodies_of(read_all(store.level(level), topic)) for topic, level in enumerate(Level)}


@pytest.mark.parametrize("boot_id", ["first", "second"])
def test_a_backup_after_a_power_failure_has_the_last_checkpoints(tmp_path: Path, boot_id: str) -> None:
    kept = closed_in_disorder(tmp_path / "store")
    backup(tmp_path / "store", tmp_path / "backup", boot_id, lambda _: None)
    found = messages(tmp_path / "backup", boot_id)
    if boot_id == "second":
        assert found == kept
    else:
        assert all(len(found[level]) == 60 for level in Level)


def test_a_check_after_a_power_failure_goes_back_to_the_last_checkpoints(tmp_path: Path) -> None:
    kept = closed_in_disorder(tmp_path / "store")
    with lock_store(tmp_path / "store"):
        found = inspect(tmp_path / "store", "second", lambda _: None)
    assert found.problems == []
    assert {level: one.rolled_back for level, one in found.levels.items()} == {
        Level.STRONG: False, Level.WEAK: True, Level.ASYNC: True
    }  # fmt: skip
    lasts = [one.found.extents[topic].last for topic, one in enumerate(found.levels.values())]
    assert lasts == [60, 10, 10]
    assert messages(tmp_path / "store", "second") == kept


def test_a_size_of_a_backup_is_that_of_its_data(path: Path) -> None:
    size = backup(path, path.with_name("backup"), "first", lambda _: None)
    files = [*path.with_name("backup").rglob("data.mdb")]
    assert size == sum(file.stat().st_size for file in files)
    assert len(files) == 4
    assert not path.with_name("backup.part").exists()
    assert (path.with_name("backup") / "format").read_text() == '{"format": 4, "backup": true}'


def test_a_backup_replaces_the_rest_of_an_interrupted_one(path: Path) -> None:
    left = path.with_name("backup.part")
    left.mkdir()
    (left / "rest").write_text("of an earlier backup")
    backup(path, path.with_name("backup"), "first", lambda _: None)
    assert problems(path.with_name("backup")) == []
    assert not (path.with_name("backup") / "rest").exists()


def test_two_backups_at_once_do_not_mix(path: Path) -> None:
    to = path.with_name("backup")
    refused: list[str] = []

    def start_another(_: str) -> None:
        with pytest.raises(StoreError) as raised:
            backup(path, to, "first", lambda _: None)
        refused.append(str(raised.value))

    backup(path, to, "first", start_another)
    assert set(refused) == {f"Another backup to {to} is running."}
    assert problems(to) == []


def test_a_backup_that_is_overtaken_is_refused(path: Path) -> None:
    to = path.with_name("backup")

    def make_it(_: str) -> None:
        to.mkdir(exist_ok=True)
        (to / "other").touch()

    with pytest.raises(StoreError, match="exists and is not an empty directory"):
        backup(path, to, "first", make_it)
    assert [entry.name for entry in to.iterdir()] == ["other"]
    assert not to.with_name("backup.part").exists()


def test_a_backup_inside_of_its_store_is_refused(path: Path) -> None:
    with pytest.raises(StoreError, match="is inside of the store"):
        backup(path, path / "kept" / "backup", "first", lambda _: None)
    assert not (path / "kept").exists()
