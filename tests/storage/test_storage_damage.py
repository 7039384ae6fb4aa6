"""Damage in an environment is reported, and hides nothing that is intact."""

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from storage_helpers import damage, flipped, numbered, open_level, read_all

from omq_storage.environment import Position
from omq_storage.errors import DamagedBlock, DamagedFile


@pytest.mark.parametrize("change", [flipped, lambda _: None, lambda v: v[:40]])
def test_a_damaged_block_is_reported_by_its_ids_and_never_returned(tmp_path: Path, change: object) -> None:
    environment = open_level(tmp_path / "weak")
    blocks = [numbered(1, 10 * n, 10) for n in range(4)]
    environment.append(blocks)
    environment.close()
    damage(tmp_path / "weak", b"blocks", bytes.fromhex("00000001 000000000000000a"), change)
    environment = open_level(tmp_path / "weak")
    assert environment.read(1, 0) == blocks[:1]
    for first in (10, 15):
        with pytest.raises(DamagedBlock) as caught:
            environment.read(1, first)
        assert (caught.value.topic, caught.value.first, caught.value.last) == (1, 10, 19)
    assert environment.read(1, 20) == blocks[2:]
    assert not environment.merge_small(1, 0).has_merged
    assert environment.read(1, 20) == blocks[2:]
    environment.trim(1, 20)
    assert environment.extent(1).first == 20
    environment.close()


def test_damaged_records_are_reported(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 0, 10)])
    environment.set_positions({1: Position(4)})
    environment.close()
    damage(tmp_path / "weak", b"extents", bytes.fromhex("00000001"), flipped)
    damage(tmp_path / "weak", b"positions", bytes.fromhex("00000001"), flipped)
    environment = open_level(tmp_path / "weak")
    for ask in (environment.extents, environment.positions):
        with pytest.raises(DamagedFile, match=r"weak/data.mdb is damaged: The record of .* is damaged"):
            ask()
    environment.close()


def test_a_damaged_index_loses_no_intact_block(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    blocks = [numbered(1, 10 * n, 10) for n in range(4)]
    environment.append(blocks)
    environment.close()
    for first in (10, 30):
        damage(tmp_path / "weak", b"index", bytes.fromhex("00000001") + first.to_bytes(8, "big"), flipped)
    environment = open_level(tmp_path / "weak")
    assert read_all(environment, 1) == blocks
    assert read_all(environment, 1, 15) == blocks[1:]
    damage_open = environment.blocks(1, 0)
    assert [(info.first, info.last) for info in damage_open] == [(0, 9), (10, 19), (20, 29), (30, 39)]
    environment.close()
    for first in (10, 30):
        damage(tmp_path / "weak", b"blocks", bytes.fromhex("00000001") + first.to_bytes(8, "big"), flipped)
    environment = open_level(tmp_path / "weak")
    for first in (10, 30):
        with pytest.raises(DamagedBlock) as caught:
            environment.read(1, first)
        assert (caught.value.first, caught.value.last) == (first, first + 9)
    assert environment.read(1, 20) == blocks[2:3]
    environment.trim(1, 40)
    assert environment.extent(1).messages == 0
    environment.append([numbered(1, 40, 10)])
    assert environment.extent(1).messages == 10
    environment.close()


@pytest.mark.parametrize("table", [b"index", b"extents", b"positions", b"sequences"])
def test_a_record_under_another_key_counts_as_damaged(tmp_path: Path, table: bytes) -> None:
    """A flipped bit in a key leaves everything else intact."""
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 0, 10)], {1: {b"producer": 7}})
    environment.set_positions({1: Position(4)})
    environment.close()
    with lmdb.open(str(tmp_path / "weak"), max_dbs=8, map_size=1 << 30) as opened:
        found = opened.open_db(table)
        with opened.begin(write=True) as transaction:
            ((key, value),) = transaction.cursor(found)
            moved = key[:3] + b"\x03" + key[4:]
            transaction.delete(key, db=found)
            transaction.put(moved, value, db=found)
    environment = open_level(tmp_path / "weak")
    ask: dict[bytes, Callable[[], object]] = {
        b"index": lambda: environment.blocks(3, 0)[0].count == 1 and environment.read(3, 0),
        b"extents": environment.extents,
        b"positions": environment.positions,
        b"sequences": lambda: environment.sequences(3, [b"producer"]),
    }
    with pytest.raises((DamagedFile, DamagedBlock), match="damaged"):
        ask[table]()
    environment.close()


def test_a_missing_table_is_not_created_again(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 0, 10)])
    environment.close()
    with lmdb.open(str(tmp_path / "weak"), max_dbs=8, map_size=1 << 30) as opened:
        found = opened.open_db(b"extents")
        with opened.begin(write=True) as transaction:
            transaction.drop(found)
    with pytest.raises(DamagedFile, match="no table 'extents'"):
        open_level(tmp_path / "weak")
