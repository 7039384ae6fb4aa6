"""The catalogue: topics, their ids and reservations, across restarts."""

from dataclasses import replace
from pathlib import Path

import pytest
from storage_helpers import panicking

from omq_storage.catalogue import StoreCatalogue
from omq_storage.errors import Limit, NameTaken, StoreError, StoreFull, UnknownTopicId
from omq_storage.topics import TOPIC_IDS, TopicRecord

MAP_SIZE = 1 << 24


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "catalogue").mkdir()
    return tmp_path / "catalogue"


def test_records_are_read_as_they_were_written(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    one = catalogue.create(b"prices \xff\n", "broadcast", "weak", True)
    two = catalogue.create(b"x" * 100_000, "", "", False, reserved=9)
    assert one == TopicRecord(0, b"prices \xff\n", "broadcast", "weak", True, 0)
    assert (two.id, two.declared, two.reserved) == (1, False, 9)
    changed = replace(one, name=b"costs", delivery="round-robin", reserved=100)
    catalogue.update(changed)
    catalogue.reserve({0: 200, 1: 1 << 63})
    wanted = [replace(changed, reserved=200), replace(two, reserved=1 << 63)]
    assert catalogue.topics() == wanted
    catalogue.close()
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    assert catalogue.topics() == wanted
    assert catalogue.create(b"prices \xff\n", "", "", True).id == 2
    catalogue.close()


def test_topics_are_created_together_or_not_at_all(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    catalogue.create(b"costs", "", "", True)
    made = catalogue.create_many([b"prices", b"sales"], "Broadcast", "Weak", False, reserved=1)
    assert made == [
        TopicRecord(1, b"prices", "Broadcast", "Weak", False, 1),
        TopicRecord(2, b"sales", "Broadcast", "Weak", False, 1),
    ]
    for names in ([b"new", b"costs"], [b"new", b"newer", b"new"]):
        with pytest.raises(NameTaken):
            catalogue.create_many(names, "", "", True)
    assert catalogue.create_many([], "", "", True) == []
    catalogue.close()
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    assert catalogue.topics()[1:] == made
    assert catalogue.create(b"new", "", "", True).id == 3
    catalogue.close()


def test_topics_beyond_the_last_id_are_not_created(path: Path) -> None:
    StoreCatalogue.make(path, [], TOPIC_IDS - 2, None, map_size=MAP_SIZE)
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    before = len(catalogue.topics())
    with pytest.raises(StoreError, match="topic ids were used"):
        catalogue.create_many([b"%d" % number for number in range(3)], "", "", True)
    assert len(catalogue.topics()) == before
    catalogue.close()


def test_unused_reserved_ids_are_returned(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    catalogue.create(b"prices", "broadcast", "weak", True, reserved=1)
    catalogue.reserve({0: 1000})
    catalogue.release({0: 42})
    catalogue.resume({0: 17})
    with pytest.raises(UnknownTopicId):
        catalogue.release({7: 1})
    catalogue.close()
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    assert [(record.reserved, record.resume) for record in catalogue.topics()] == [(42, 17)]
    assert [record.lost for record in catalogue.topics()] == [range(0)]
    catalogue.settle({0: range(5, 30)})
    assert [record.lost for record in catalogue.topics()] == [range(5, 30)]
    catalogue.resume({0: 40})  # what was lost is not known any more
    assert [record.lost for record in catalogue.topics()] == [range(0)]
    catalogue.close()


def test_a_catalogue_without_a_lineage_skips_ids(path: Path) -> None:
    record = TopicRecord(0, b"prices", "broadcast", "weak", True, reserved=100)
    StoreCatalogue.make(path, [record], 1, None, map_size=MAP_SIZE)
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    catalogue.settle({0: range(7, 100)})
    catalogue.close()
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    assert catalogue.topics() == [replace(record, resume=100, lost_from=7)]
    assert catalogue.lineage is None
    catalogue.close()


def test_an_id_is_never_used_again(path: Path) -> None:
    seen = set()
    for _ in range(3):
        catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
        for _ in range(3):
            record = catalogue.create(b"again", "", "", True)
            assert record.id not in seen
            seen.add(record.id)
            catalogue.delete(record.id)
        assert catalogue.topics() == []
        catalogue.close()
    assert seen == set(range(9))


def test_a_refused_change_changes_nothing(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    one = catalogue.create(b"one", "", "", True, reserved=10)
    two = catalogue.create(b"two", "", "", True, reserved=10)
    with pytest.raises(NameTaken, match="b'one'"):
        catalogue.create(b"one", "", "", True)
    with pytest.raises(NameTaken):
        catalogue.update(replace(two, name=b"one"))
    with pytest.raises(StoreError, match="would go back"):
        catalogue.update(replace(one, reserved=9))
    with pytest.raises(StoreError, match="would go back"):
        catalogue.reserve({one.id: 20, two.id: 9})
    with pytest.raises(UnknownTopicId, match="id 7"):
        catalogue.reserve({one.id: 20, 7: 1})
    with pytest.raises(UnknownTopicId):
        catalogue.update(replace(one, id=7))
    with pytest.raises(UnknownTopicId):
        catalogue.delete(7)
    with pytest.raises(UnknownTopicId):
        catalogue.delete_many([one.id, 7])
    assert catalogue.topics() == [one, two]
    assert catalogue.create(b"three", "", "", True).id == 2
    catalogue.close()


def test_ids_end_before_two_to_the_31(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq_storage.topics.TOPIC_IDS", 2)
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    catalogue.create(b"0", "", "", True)
    catalogue.create(b"1", "", "", True)
    catalogue.delete(0)
    with pytest.raises(StoreError, match="ids were used"):
        catalogue.create(b"2", "", "", True)
    catalogue.close()


def test_a_full_map_refuses_and_stays_usable(path: Path) -> None:
    catalogue = StoreCatalogue(path, map_size=1 << 17)
    full: StoreFull | None = None
    number = 0
    while full is None:
        try:
            assert catalogue.create(b"%d" % number + b"x" * 1000, "", "", True).id == number
            number += 1
        except StoreFull as error:
            full = error
    assert full.limit is Limit.MAP
    known = catalogue.topics()
    assert [record.id for record in known] == list(range(number))
    for record in known:
        catalogue.delete(record.id)
    assert catalogue.create(b"new", "", "", True).id == len(known)
    catalogue.close()


def test_a_catalogue_that_panicked_is_reopened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = panicking(monkeypatch)
    catalogue = StoreCatalogue(path, map_size=MAP_SIZE)
    one = catalogue.create(b"one", "", "", True)
    assert len(opened) == 1
    opened[-1].has_panicked = True
    with pytest.raises(StoreError, match="PANIC"):
        _ = catalogue.next_id  # reads the environment
    two = catalogue.create(b"two", "", "", True)
    catalogue.update(replace(one, reserved=9))
    assert len(opened) == 2
    catalogue.close()
    again = StoreCatalogue(path, map_size=MAP_SIZE)
    assert again.topics() == [replace(one, reserved=9), two]
    again.close()
