"""Exchanges, bindings and queues in the catalogue: across restarts, with their topics, and after damage."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from storage_helpers import problems

from omq_storage.backup import backup
from omq_storage.catalogue import TABLES, StoreCatalogue
from omq_storage.errors import DamagedFile, StoreFull, UnknownTopicId
from omq_storage.inspection import inspect
from omq_storage.levels import Level
from omq_storage.pages import Pages
from omq_storage.repair import repair
from omq_storage.salvage import salvage
from omq_storage.store import Store, lock_store
from omq_storage.topics import TopicRecord
from omq_storage.topology import BINDINGS, EXCHANGES, QUEUES, BindingRecord, ExchangeRecord

MAP_SIZE = 1 << 24
ARCHIVE = Path(__file__).parent.parent / "data" / "store" / "store-2.tar.xz"

ORDERS = ExchangeRecord(b"orders", "topic", alternate=b"rest")
REST = ExchangeRecord(b"rest", "fanout", auto_delete=True, internal=True)
TO_QUEUE = BindingRecord(b"orders", 0, b"eu.#", b"")
TO_OTHER = BindingRecord(b"orders", 1, b"us.#", b"\0\xff")
TO_EXCHANGE = BindingRecord(b"orders", b"rest", b"#", b"")
OF_SERVER = BindingRecord(b"amq.direct", 0, b"", b"")
EVERY_BINDING = [TO_QUEUE, TO_OTHER, TO_EXCHANGE, OF_SERVER]


class SampleInterpreter:
    """An interpretation of records, as a user of the package may define it."""

    def level_of(self, record: TopicRecord) -> Level | None:
        return Level(record.persistence) if record.persistence else None

    def has_position(self, record: TopicRecord) -> bool:
        return False

    def has_exchange(self, name: bytes) -> bool:
        return name.startswith(b"amq.")

    def unnamed(self, topic: int, level: Level, positioned: bool) -> TopicRecord:
        return TopicRecord(topic, b"unnamed-%d" % topic, "", level.value, declared=True)


def fill(catalogue: StoreCatalogue) -> None:
    """Make two queues, one with options, two exchanges, and bindings of every kind."""
    catalogue.create(b"queue", "work", "strong", True, reserved=1, queue=b"options")
    catalogue.create(b"other", "work", "strong", True, reserved=1)
    catalogue.put_exchange(ORDERS)
    catalogue.put_exchange(REST)
    for binding in EVERY_BINDING:
        catalogue.bind(binding)


def is_filled(catalogue: StoreCatalogue) -> bool:
    return (catalogue.exchanges(), catalogue.bindings(), catalogue.queues()) == (
        [ORDERS, REST],
        EVERY_BINDING,
        {0: b"options"},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "catalogue").mkdir()
    return tmp_path / "catalogue"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", map_size=MAP_SIZE, boot_id="first") as store:
        fill(store.catalogue)
    return tmp_path / "store"


def reopened(catalogue: StoreCatalogue, path: Path) -> StoreCatalogue:
    catalogue.close()
    return StoreCatalogue(path, map_size=MAP_SIZE)


def commits(path: Path) -> int:
    """Return the number of commits."""
    with Pages(path / "data.mdb") as pages:
        return pages.newest.transaction


# -- records ------------------------------------------------------------------------------------------------


def test_records_are_read_as_they_were_written(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    assert (catalogue.exchanges(), catalogue.bindings(), catalogue.queues()) == ([], [], {})
    fill(catalogue)
    for binding in EVERY_BINDING:
        catalogue.bind(binding)  # which are there already
    assert is_filled(catalogue)
    catalogue = reopened(catalogue, path)
    assert is_filled(catalogue)
    catalogue.set_queue(0, b"")
    catalogue.set_queue(1, b"x" * 10_000)
    catalogue.unbind(TO_QUEUE)
    catalogue.unbind(TO_QUEUE)
    catalogue.bind(TO_QUEUE)
    catalogue = reopened(catalogue, path)
    assert catalogue.queues() == {0: b"", 1: b"x" * 10_000}
    assert catalogue.bindings() == [*EVERY_BINDING[1:], TO_QUEUE]
    catalogue.close()


@pytest.mark.parametrize(
    ("delete", "left"),
    [
        (lambda catalogue: catalogue.delete(0), [TO_OTHER, TO_EXCHANGE]),
        (lambda catalogue: catalogue.delete_many([0, 1]), [TO_EXCHANGE]),
        (lambda catalogue: catalogue.delete_exchange(b"orders"), [OF_SERVER]),
        (lambda catalogue: catalogue.delete_exchange(b"rest"), [TO_QUEUE, TO_OTHER, OF_SERVER]),
        (lambda catalogue: catalogue.delete_exchange(b"amq.direct"), [TO_QUEUE, TO_OTHER, TO_EXCHANGE]),
    ],
    ids=["topic", "topics", "source", "destination", "exchange without a record"],
)
def test_dependent_records_are_deleted_in_the_same_commit(
    path: Path, delete: Callable[[StoreCatalogue], None], left: list[BindingRecord]
) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    fill(catalogue)
    before = commits(path)
    delete(catalogue)
    assert commits(path) == before + 1
    assert catalogue.bindings() == left
    records = (catalogue.exchanges(), catalogue.bindings(), catalogue.queues(), catalogue.topics())
    catalogue = reopened(catalogue, path)
    assert records == (catalogue.exchanges(), catalogue.bindings(), catalogue.queues(), catalogue.topics())
    assert catalogue.queues().keys() <= {record.id for record in catalogue.topics()}
    catalogue.close()


@pytest.mark.parametrize(
    "delete",
    [lambda catalogue: catalogue.delete_exchange(b"orders"), lambda catalogue: catalogue.unbind(TO_QUEUE)],
    ids=["the exchange", "the binding"],
)
def test_the_queue_of_a_binding_that_is_gone_can_be_deleted(
    path: Path, delete: Callable[[StoreCatalogue], None]
) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    fill(catalogue)
    delete(catalogue)
    catalogue.delete(0)
    assert [record.id for record in catalogue.topics()] == [1]
    assert all(binding.destination != 0 for binding in catalogue.bindings())
    catalogue.close()


def test_a_queue_and_its_options_are_one_commit(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    fill(catalogue)
    before = commits(path)
    catalogue.create(b"new", "work", "strong", True, queue=b"more")
    assert commits(path) == before + 1
    catalogue.close()


def test_refused_changes_change_nothing(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    fill(catalogue)
    for name in (b"", b"x" * 256):
        with pytest.raises(ValueError, match="1 to 255 octets"):
            catalogue.put_exchange(ExchangeRecord(name, "topic"))
    with pytest.raises(UnknownTopicId):
        catalogue.bind(BindingRecord(b"orders", 7, b"", b""))
    with pytest.raises(UnknownTopicId):
        catalogue.set_queue(7, b"")
    before = commits(path)
    catalogue.delete_exchange(b"missing")
    catalogue.unbind(BindingRecord(b"orders", 7, b"", b""))
    assert commits(path) == before
    catalogue = reopened(catalogue, path)
    assert is_filled(catalogue)
    catalogue.close()


def bind_many(catalogue: StoreCatalogue) -> None:
    for number in range(1000):
        catalogue.bind(BindingRecord(b"orders", 0, b"%d" % number + b"x" * 500, b""))


def test_a_full_map_refuses_bindings_and_changes_nothing(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=1 << 17)
    catalogue.create(b"queue", "work", "strong", True)
    with pytest.raises(StoreFull):
        bind_many(catalogue)
    bound = catalogue.bindings()
    catalogue.close()
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    assert catalogue.bindings() == bound
    catalogue.delete(0)
    assert catalogue.bindings() == []
    catalogue.close()


# -- earlier formats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("boot", ["fixture", "another"])
def test_a_store_of_format_2_gets_the_tables(tmp_path: Path, boot: str) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "store"
    assert json.loads((path / "format").read_bytes()) == {"format": 2}
    with lock_store(path):
        assert inspect(path, "fixture", lambda _: None).problems == []
    with Store.open(path, map_size=1 << 28, boot_id=boot) as opened:
        topics = {record.name: record for record in opened.catalogue.topics()}
        opened.catalogue.put_exchange(ORDERS)
        opened.catalogue.bind(BindingRecord(b"orders", topics[b"weak-work"].id, b"", b""))
        opened.catalogue.set_queue(topics[b"weak-work"].id, b"options")
    assert json.loads((path / "format").read_bytes()) == {"format": 4}
    with Store.open(path, map_size=1 << 28, boot_id=boot) as opened:
        assert opened.catalogue.exchanges() == [ORDERS]
        assert len(opened.catalogue.bindings()) == 1
    with lock_store(path):
        assert inspect(path, boot, lambda _: None).problems == []


# -- damage -------------------------------------------------------------------------------------------------


def repaired(store: Path) -> list[str]:
    with lock_store(store):
        return repair(store, SampleInterpreter(), "first", lambda _: None, map_size=MAP_SIZE)


def damage(store: Path, table: bytes, key: bytes | None = None) -> None:
    """Change one octet of a record: the first one of a table, or the one with this key."""
    with lmdb.open(str(store / "catalogue"), max_dbs=16) as environment:
        opened = environment.open_db(table, create=False)
        with environment.begin(write=True, db=opened) as transaction:
            cursor = transaction.cursor()
            assert cursor.first() if key is None else cursor.set_key(key)
            value = cursor.value()
            transaction.put(cursor.key(), value[:-1] + bytes([value[-1] ^ 1]))


def test_an_intact_store_has_no_problems_and_its_backup_has_all(store: Path, tmp_path: Path) -> None:
    assert problems(store) == []
    assert repaired(store) == []
    backup(store, tmp_path / "copy", "first", lambda _: None)
    assert problems(tmp_path / "copy") == []
    with Store.open(tmp_path / "copy", map_size=MAP_SIZE, boot_id="first") as opened:
        assert is_filled(opened.catalogue)


@pytest.mark.parametrize("table", [EXCHANGES, BINDINGS, QUEUES])
def test_damage_is_found_at_the_start_and_by_a_check(store: Path, table: bytes) -> None:
    damage(store, table)
    assert any(problem.endswith(" has 1 damaged entry.") for problem in problems(store))
    with pytest.raises(DamagedFile):
        Store.open(store, map_size=MAP_SIZE, boot_id="first")
    assert repaired(store) != []
    assert problems(store) == []
    with Store.open(store, map_size=MAP_SIZE, boot_id="first") as opened:
        assert [record.name for record in opened.catalogue.topics()] == [b"queue", b"other"]


def test_a_damaged_binding_costs_no_other(store: Path) -> None:
    damage(store, BINDINGS)
    repaired(store)
    with Store.open(store, map_size=MAP_SIZE, boot_id="first") as opened:
        assert opened.catalogue.bindings() == EVERY_BINDING[1:]
        assert opened.catalogue.exchanges() == [ORDERS, REST]
        assert opened.catalogue.queues() == {0: b"options"}


def test_a_damaged_exchange_is_taken_from_an_older_page_while_it_has_bindings(store: Path) -> None:
    for _ in range(2):  # each start leaves an older copy on a free page
        Store.open(store, map_size=MAP_SIZE, boot_id="first").close()
    damage(store, EXCHANGES, b"orders")
    repaired(store)
    with Store.open(store, map_size=MAP_SIZE, boot_id="first") as opened:
        assert is_filled(opened.catalogue)


def test_bindings_of_a_lost_exchange_are_reported(store: Path) -> None:
    with Store.open(store, map_size=MAP_SIZE, boot_id="first") as opened:
        records = (opened.catalogue.topics(), opened.catalogue.next_id, opened.catalogue.lineage)
    for file in (store / "catalogue").iterdir():
        file.unlink()
    StoreCatalogue.make(store / "catalogue", *records, map_size=MAP_SIZE)
    catalogue = StoreCatalogue(store / "catalogue", map_size=MAP_SIZE)
    for binding in (TO_QUEUE, OF_SERVER):
        catalogue.bind(binding)
    catalogue.set_queue(0, b"options")
    catalogue.close()
    damage(store, QUEUES)
    assert "A binding of 'orders' is lost: exchange 'orders' could not be saved." in repaired(store)
    with Store.open(store, map_size=MAP_SIZE, boot_id="first") as opened:
        assert opened.catalogue.bindings() == [OF_SERVER]


def test_options_and_bindings_of_unknown_topics_are_dropped(store: Path) -> None:
    with lmdb.open(str(store / "catalogue"), max_dbs=16) as environment:
        topics = environment.open_db(b"topics", create=False)
        with environment.begin(write=True, db=topics) as transaction:
            transaction.delete(b"\0\0\0\0")
    (problem,) = problems(store)
    assert problem.endswith("has bindings or options of topics that it does not have: 0.")
    with pytest.raises(DamagedFile, match="Topic 0 has a binding or options, but no record"):
        Store.open(store, map_size=MAP_SIZE, boot_id="first")
    report = repaired(store)
    assert "A binding of 'orders' is lost: topic 0 could not be saved." in report
    with Store.open(store, map_size=MAP_SIZE, boot_id="first") as opened:
        assert opened.catalogue.bindings() == [TO_OTHER, TO_EXCHANGE]
        assert opened.catalogue.queues() == {}


def test_without_its_meta_pages_a_catalogue_keeps_every_record(store: Path) -> None:
    file = store / "catalogue" / "data.mdb"
    octets = file.read_bytes()
    file.write_bytes(b"\0" * 8192 + octets[8192:])
    found = salvage(store / "catalogue", TABLES, older_topics=True)
    assert set(found.exchanges) >= {b"orders", b"rest"}
    repaired(store)
    with Store.open(store, map_size=MAP_SIZE, boot_id="first") as opened:
        assert is_filled(opened.catalogue)
