"""The last sequence numbers of idempotent producers always agree with the stored blocks."""

import random
import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import lmdb
import pytest
from storage_helpers import numbered, open_level

from omq_storage import producers
from omq_storage.database import Database, Writing
from omq_storage.environment import Environment
from omq_storage.errors import StoreError, StoreFull
from omq_storage.levels import Level

NAMES = [b"", b"a", b"b", b"\0", b"ab", b"x" * 255]


def records(path: Path) -> dict[bytes, int]:
    """Return the number of records in each table of producers."""
    found = {}
    with lmdb.open(str(path), max_dbs=8, readonly=True) as environment:
        for table in (b"sequences", b"uses"):
            opened = environment.open_db(table, create=False)
            with environment.begin() as transaction:
                found[table] = transaction.stat(opened)["entries"]
    return found


@pytest.mark.parametrize("level", list(Level))
def test_each_producer_of_each_topic_has_its_own_sequence(tmp_path: Path, level: Level) -> None:
    environment = open_level(tmp_path / "level", level)
    assert environment.sequences(1, NAMES) == {}
    wanted = {name: number for number, name in enumerate(NAMES)}
    environment.append([numbered(1, 0, 1), numbered(2, 0, 1)], {1: wanted, 2: {b"a": (1 << 64) - 1}})
    environment.append([numbered(1, 1, 1)], {1: {b"b": 9}})
    wanted[b"b"] = 9
    for clean in (True, False):
        assert environment.sequences(1, NAMES) == wanted
        assert environment.sequences(2, NAMES) == {b"a": (1 << 64) - 1}
        assert environment.sequences(1, [b"unknown", b"a"]) == {b"a": 1}
        assert environment.sequences(0, NAMES) == environment.sequences(3, NAMES) == {}
        environment.close(clean)
        environment = open_level(tmp_path / "level", level)
    environment.trim(1, 2)
    assert environment.sequences(1, NAMES) == wanted
    environment.drop(1)
    assert environment.sequences(1, NAMES) == {}
    assert environment.sequences(2, NAMES) == {b"a": (1 << 64) - 1}
    environment.drop(2)
    environment.close()
    assert records(tmp_path / "level") == {b"sequences": 0, b"uses": 0}


def test_a_refused_append_leaves_the_sequences_as_they_were(environment: Environment) -> None:
    environment.append([numbered(1, 0, 1)], {1: {b"a": 1}})
    with pytest.raises(StoreError, match="cannot be stored after"):
        environment.append([numbered(2, 0, 1), numbered(1, 0, 1)], {1: {b"a": 2}, 2: {b"a": 3}})
    for wrong, words in (
        ({2: {b"a": 2}}, "together with a block"),
        ({1: {b"a": 2, b"b": -1}}, "64 bits"),
        ({1: {b"a": 2, b"b": 1 << 64}}, "64 bits"),
        ({1: {b"a": 2, b"x" * 256: 1}}, "at most 255"),
    ):
        with pytest.raises(ValueError, match=words):
            environment.append([numbered(1, 1, 1)], wrong)
    assert environment.sequences(1, [b"a", b"b"]) == {b"a": 1}
    assert environment.extents().keys() == {1}
    assert environment.extent(1).last == 0


def test_a_full_environment_keeps_neither_block_nor_sequence(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak", map_size=1 << 20)
    number = 0
    full = False
    while not full:
        try:
            environment.append([numbered(1, number, 1, size=5000)], {1: {b"a": number, b"%d" % number: 1}})
            number += 1
        except StoreFull:
            full = True
    assert number > 10
    assert environment.sequences(1, [b"a", b"%d" % (number - 1), b"%d" % number]) == {
        b"a": number - 1,
        b"%d" % (number - 1): 1,
    }
    assert environment.extent(1).last == number - 1
    environment.drop(1)
    assert environment.extents() == {}
    environment.close()
    assert records(tmp_path / "weak") == {b"sequences": 0, b"uses": 0}


def test_the_order_of_use_does_not_depend_on_the_sequence(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_KEPT", 2)
    for number, used in enumerate(({b"a": 1}, {b"b": 7}, {b"a": 2}, {b"c": 1})):
        environment.append([numbered(1, number, 1)], {1: used})
    assert environment.sequences(1, [b"a", b"b", b"c"]) == {b"a": 2, b"c": 1}


def test_the_producers_used_longest_ago_are_forgotten(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_KEPT", 20)
    chance = random.Random(1)
    known: dict[bytes, int] = {}  # in the order of use
    for number in range(300):
        used = {b"%d" % chance.randrange(30): number for _ in range(chance.choice([1, 1, 2, 5]))}
        environment.append([numbered(1, number, 1), numbered(2, number, 1)], {1: used, 2: {b"0": number}})
        for name in used:
            known.pop(name, None)
            known[name] = number
        while len(known) > 20:
            del known[next(iter(known))]
        assert environment.sequences(1, [b"%d" % name for name in range(30)]) == known
        if number % 50 == 0:
            environment.close()
            environment = open_level(tmp_path / "weak")
    assert environment.sequences(2, [b"0"]) == {b"0": 299}
    environment.close()
    assert records(tmp_path / "weak") == {b"sequences": 21, b"uses": 23}


def test_as_many_as_can_be_kept_are_dropped_in_steps(tmp_path: Path, environment: Environment) -> None:
    kept = producers.PRODUCERS_KEPT
    names = [b"producer-%d" % number for number in range(kept + 5)]
    environment.append([numbered(1, 0, 1), numbered(2, 0, 1)], {2: {b"a": 1}})
    environment.append([numbered(1, 1, 1)], {1: dict.fromkeys(names, 7)})
    assert environment.sequences(1, names) == dict.fromkeys(names[5:], 7)
    steps = environment.usage().transaction
    environment.drop(1)
    assert environment.usage().transaction - steps >= kept // 4096
    assert environment.sequences(2, [b"a"]) == {b"a": 1}
    environment.close()
    assert records(tmp_path / "weak") == {b"sequences": 1, b"uses": 2}


def test_the_extent_shows_that_a_drop_was_interrupted(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.append([numbered(1, 0, 1)], {1: {b"%d" % number: 1 for number in range(5000)}})
    writing = Database.writing
    transactions = 0

    def interrupt(self: Database) -> AbstractContextManager[Writing]:
        nonlocal transactions
        transactions += 1
        if transactions == 2:  # behind the one that deletes 4,096 producers
            raise KeyboardInterrupt
        return writing(self)

    monkeypatch.setattr(Database, "writing", interrupt)
    with pytest.raises(KeyboardInterrupt):
        environment.drop(1)
    monkeypatch.undo()
    assert environment.extents().keys() == {1}
    environment.drop(1)
    assert environment.extents() == {}


def test_a_power_failure_takes_sequences_back_with_their_blocks(tmp_path: Path) -> None:
    path = tmp_path / "weak"
    environment = open_level(path)
    for number in range(10):
        environment.append([numbered(1, number, 1)], {1: {b"a": number}})
    environment.checkpoint()
    for number in range(10, 50):
        environment.append([numbered(1, number, 1)], {1: {b"a": number, b"new %d" % number: number}})
    shutil.copytree(path, tmp_path / "lost")
    shutil.copytree(path, tmp_path / "killed")
    environment.close()
    again = open_level(tmp_path / "lost", boot_id="second")
    assert again.extent(1).last == 9
    assert again.sequences(1, [b"a", b"new 10"]) == {b"a": 9}
    again.append([numbered(1, 10, 1)], {1: {b"a": 10}})
    assert again.sequences(1, [b"a"]) == {b"a": 10}
    again.close()
    again = open_level(tmp_path / "killed")
    assert again.extent(1).last == 49
    assert again.sequences(1, [b"a", b"new 10"]) == {b"a": 49, b"new 10": 10}
    again.close()


@pytest.mark.parametrize("table", [b"sequences", b"uses"])
def test_damaged_records_of_producers_are_reported_and_can_be_dropped(tmp_path: Path, table: bytes) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 0, 1)], {1: {b"a": 1}})
    environment.close()
    with lmdb.open(str(tmp_path / "weak"), max_dbs=8) as opened:
        found = opened.open_db(table, create=False)
        with opened.begin(write=True) as transaction:
            for key, value in list(transaction.cursor(found)):
                transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=found)
    environment = open_level(tmp_path / "weak")
    with pytest.raises(StoreError, match="is damaged"):
        environment.append([numbered(1, 1, 1)], {1: {b"a": 2}})
    if table == b"sequences":
        with pytest.raises(StoreError, match="is damaged"):
            environment.sequences(1, [b"a"])
    environment.append([numbered(1, 1, 1)])
    environment.drop(1)
    environment.close()
    assert records(tmp_path / "weak") == {b"sequences": 0, b"uses": 0}
