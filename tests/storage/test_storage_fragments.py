"""Large messages in fragments: invisible until they are complete, then messages like others."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import killed_writer
import lmdb
import pytest
from killed_writer import MIB, body, described
from storage_helpers import NOON, bodies_of, merge_all, numbered, open_level, problems, whole

from omq_storage.backup import backup
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.environment import Environment, Extent
from omq_storage.errors import DamagedBlock, Limit, StoreError, StoreFull
from omq_storage.fragments import (
    FRAGMENT_OCTETS,
    FRAGMENTS,
    LONGEST_BODY,
    LOOSE,
    Fragmented,
    Fragments,
    TooLargeToHold,
    assembled,
)
from omq_storage.levels import Level
from omq_storage.lookup import LargeBlock
from omq_storage.reader import StoreReader
from omq_storage.records import INDEX, block_key
from omq_storage.repair import repair
from omq_storage.store import Store, lock_store
from omq_storage.topics import TopicRecord

SIZES = [1, FRAGMENT_OCTETS - 1, FRAGMENT_OCTETS, FRAGMENT_OCTETS + 1, 3 * MIB + 17]


def put(environment: Environment, topic: int, content: bytes, at_once: int = 5) -> int:
    """Store the fragments of a body, a few in each transaction, and return its number."""
    number = environment.bodies.begin()
    step = at_once * FRAGMENT_OCTETS
    for begin in range(0, len(content), step):
        part = Fragments(topic, number, begin // FRAGMENT_OCTETS, content[begin : begin + step])
        environment.put_fragments([part])
    return number


def store_large(
    environment: Environment, topic: int, first: int, content: bytes, head: bytes = b""
) -> Fragmented:
    """Store a message in fragments."""
    message = described(topic, first, put(environment, topic, content), content, head)
    environment.append([message])
    return message


def counts(path: Path) -> tuple[int, int]:
    """Return the numbers of fragments and of loose bodies in a closed environment."""
    with lmdb.open(str(path), max_dbs=16, readonly=True, lock=False) as environment:
        tables = [environment.open_db(name, create=False) for name in (FRAGMENTS, LOOSE)]
        with environment.begin() as transaction:
            found = [transaction.stat(table)["entries"] for table in tables]
    return found[0], found[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", map_size=1 << 28, boot_id="first") as store:
        store.catalogue.create(b"large", "news", "weak", True, reserved=100)
        store.catalogue.create(b"other", "news", "weak", True, reserved=100)
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        yield store


@pytest.fixture
def environment(store: Store) -> Environment:
    return store.level(Level.WEAK)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("octets", [1 << 16, 99_991, MIB, 3 * MIB])
def test_pieces_make_up_the_message(environment: Environment, size: int, octets: int) -> None:
    content = body(size)
    environment.append([numbered(0, 0, 5)])
    message = store_large(environment, 0, 5, content, b"head")
    environment.append([numbered(0, 6, 5)])
    looked_at = environment.bodies.open_message(0, 5)
    assert looked_at is not None
    assert (looked_at.size, looked_at.head) == (size, b"head")
    if octets >= 99_991 or size < MIB:
        assert whole(environment, 0, 5, octets) == content
    assert environment.extent(0) == Extent(0, 10, 11, environment.extent(0).bytes)
    infos = environment.blocks(0, 0)
    assert [info.first for info in infos] == [0, 5, 6]
    assert infos[1].bytes == message.stored_octets
    assert infos[1].heads
    assert environment.extent(0).bytes == sum(info.bytes for info in infos)


def test_a_reader_by_blocks_learns_that_a_message_is_in_fragments(environment: Environment) -> None:
    environment.append([numbered(0, 0, 5)])
    message = store_large(environment, 0, 5, body(MIB))
    assert bodies_of(environment.read(0, 0)) == bodies_of([numbered(0, 0, 5)])
    with pytest.raises(LargeBlock) as large:
        environment.read_stored(0, 5, largest=1 << 40)
    assert large.value.message == message
    assert large.value.octets == message.stored_octets


def test_a_body_is_invisible_before_it_is_a_message(environment: Environment, path: Path) -> None:
    content = body(MIB)
    number = put(environment, 0, content)
    assert environment.blocks(0, 0) == []
    assert environment.extent(0) == Extent()
    assert environment.read(0, 0) == []
    assert environment.bodies.open_message(0, 0) is None
    with pytest.raises(StoreError, match="are not stored"):
        environment.append([described(0, 1, number + 1, content)])
    with pytest.raises(StoreError, match="are not stored"):
        environment.append([described(0, 1, number, content + b"." * FRAGMENT_OCTETS)])
    assert environment.extent(0) == Extent()
    environment.append([described(0, 1, number, content)])
    assert whole(environment, 0, 1) == content
    with pytest.raises(StoreError, match="are not stored"):
        environment.append([described(0, 2, number, content)])  # a body is one message


def test_a_message_and_its_producer_are_stored_in_one_commit(environment: Environment) -> None:
    content = body(MIB)
    message = described(0, 1, put(environment, 0, content), content)
    environment.append([numbered(1, 0, 3), message], {0: {b"producer": 7}})
    assert environment.sequences(0, [b"producer"]) == {b"producer": 7}
    assert whole(environment, 0, 1) == content


def test_a_body_that_is_written_is_not_swept_and_an_abandoned_one_is(store: Store, path: Path) -> None:
    environment = store.level(Level.WEAK)
    kept, left = put(environment, 0, body(MIB, 1)), put(environment, 0, body(MIB, 2))
    environment.bodies.abandon(left)
    assert environment.sweep()
    assert not environment.sweep()
    environment.append([described(0, 1, kept, body(MIB, 1))])
    assert whole(environment, 0, 1) == body(MIB, 1)
    assert not environment.sweep()
    store.close()
    assert counts(path / "weak") == (-(-MIB // FRAGMENT_OCTETS), 0)


def test_a_large_body_is_swept_in_several_transactions(environment: Environment, path: Path) -> None:
    number = put(environment, 0, b"." * (1025 * FRAGMENT_OCTETS), at_once=100)
    store_large(environment, 0, 1, body(MIB))
    environment.bodies.abandon(number)
    before = environment.usage().transaction
    while environment.sweep():
        pass
    assert environment.usage().transaction == before + 3  # two for the fragments, one for the record
    assert whole(environment, 0, 1) == body(MIB)


def test_numbers_are_not_used_again_while_anything_of_them_is_left(path: Path) -> None:
    for expected in (1, 2, 3):
        with Store.open(path, map_size=1 << 28, boot_id="first") as store:
            assert put(store.level(Level.WEAK), 0, body(MIB)) == expected


@pytest.mark.parametrize("how", ["trim", "retain", "drop"])
def test_deletion_frees_the_fragments(store: Store, path: Path, how: str) -> None:
    environment = store.level(Level.WEAK)
    for first in (1, 2, 3):
        store_large(environment, 0, first, body(MIB, first))
    store_large(environment, 1, 1, body(MIB, 9))
    match how:
        case "trim":
            assert environment.trim(0, 3).messages == 1
        case "retain":
            while environment.retain(0, 3 * MIB // 2, None, None).messages > 1:
                pass
        case _:
            environment.drop(0)
    if how == "drop":
        assert environment.extents().keys() == {1}
    else:
        assert environment.bodies.open_message(0, 2) is None
        assert whole(environment, 0, 3) == body(MIB, 3)
    while environment.sweep():
        pass
    assert whole(environment, 1, 1) == body(MIB, 9)
    store.close()
    left = 1 if how == "drop" else 2
    assert counts(path / "weak") == (left * -(-MIB // FRAGMENT_OCTETS), 0)


def test_a_full_map_refuses_a_fragment_and_has_room_after_the_sweep(tmp_path: Path) -> None:
    with Store.open(tmp_path / "small", map_size=8 * MIB, boot_id="first") as store:
        environment = store.level(Level.STRONG)
        store_large(environment, 0, 1, body(MIB))
        number = environment.bodies.begin()
        parts = [Fragments(0, number, index, b"." * (4 * FRAGMENT_OCTETS)) for index in range(0, 128, 4)]
        with pytest.raises(StoreFull) as full:
            list(map(environment.put_fragments, ([part] for part in parts)))
        assert full.value.limit is Limit.MAP
        environment.bodies.abandon(number)
        while environment.sweep():
            pass
        store_large(environment, 0, 2, body(MIB, 2))
        assert whole(environment, 0, 1) == body(MIB)
        assert whole(environment, 0, 2) == body(MIB, 2)


def test_merging_leaves_a_message_in_fragments_as_it_is(environment: Environment) -> None:
    for first in range(1, 5):
        environment.append([numbered(0, first, 1)])
    store_large(environment, 0, 5, body(100))
    for first in range(6, 10):
        environment.append([numbered(0, first, 1)])
    merge_all(environment, 0)
    assert [info.first for info in environment.blocks(0, 0)] == [1, 5, 6]
    assert whole(environment, 0, 5) == body(100)


def test_readers_of_other_processes_get_a_block(store: Store, path: Path) -> None:
    environment = store.level(Level.WEAK)
    environment.append([numbered(0, 0, 5)])
    store_large(environment, 0, 5, body(MIB), b"head")
    store.close()
    reader = StoreReader(path)

    def copied(block: Block, messages: range) -> Block:
        return block.copy()

    blocks = [block for _, block in reader.use(Level.WEAK, 0, range(10), copied)]
    assert bodies_of(blocks)[-1] == (5, body(MIB))
    assert blocks[-1].head(5) == b"head"
    assert blocks[-1].message_time(5) == NOON


def test_a_message_that_no_block_can_hold_is_not_read_whole() -> None:
    message = Fragmented(3, 5, NOON, 1, LONGEST_BODY, 0)
    with pytest.raises(TooLargeToHold, match="Message 5 of topic 3 has 4294967282 octets"):
        assembled(lambda table, key: None, message)
    assert (message.stored_octets, message.next, message.last) == (LONGEST_BODY + 36, 6, 5)


def replace(path: Path, table: bytes, key: bytes | None, change: bytes | None) -> None:
    """Change one value of a closed environment: that of `key`, or the last one of the table."""
    with lmdb.open(str(path), max_dbs=16, map_size=1 << 28) as environment:
        database = environment.open_db(table, create=False)
        with environment.begin(write=True) as transaction:
            cursor = transaction.cursor(database)
            assert cursor.last() if key is None else cursor.set_key(key)
            found, value = cursor.item()
            transaction.delete(found, db=database)
            if change is not None:
                transaction.put(found, change + value[len(change) :], db=database)


@pytest.mark.parametrize("change", [None, b"damaged"])
def test_a_damaged_fragment_is_told_and_not_sent(path: Path, change: bytes | None) -> None:
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        store_large(store.level(Level.WEAK), 0, 1, body(MIB))
        looked_at = store.level(Level.WEAK).bodies.open_message(0, 1)
    assert looked_at is not None
    assert isinstance(looked_at.place, Fragmented)
    replace(path / "weak", FRAGMENTS, None, change)
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        environment = store.level(Level.WEAK)
        with pytest.raises(DamagedBlock, match="fragment is"):
            environment.bodies.open_message(0, 1)  # before anything of it is sent
        assert environment.bodies.read_piece(looked_at, 0, 100) == body(MIB)[:100]
        with pytest.raises(DamagedBlock, match="fragment is"):
            environment.bodies.read_piece(looked_at, MIB - 1, 100)


def test_a_message_whose_index_record_is_damaged_is_found(path: Path) -> None:
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        store_large(store.level(Level.WEAK), 0, 1, body(MIB))
    replace(path / "weak", INDEX, block_key(0, 1), b"\0\0\0\0\0")
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        assert whole(store.level(Level.WEAK), 0, 1) == body(MIB)


def test_a_piece_of_a_deleted_message_is_not_given(environment: Environment) -> None:
    store_large(environment, 0, 1, body(MIB))
    looked_at = environment.bodies.open_message(0, 1)
    assert looked_at is not None
    environment.trim(0, 2)
    assert environment.bodies.read_piece(looked_at, 0, 100) is None


# -- check, repair, backup ---------------------------------------------------------------------------------


class SampleInterpreter:
    def level_of(self, record: TopicRecord) -> Level | None:
        return Level(record.persistence)

    def has_exchange(self, name: bytes) -> bool:
        return False

    def has_position(self, record: TopicRecord) -> bool:
        return False

    def unnamed(self, topic: int, level: Level, positioned: bool) -> TopicRecord:
        return TopicRecord(topic, b"unnamed-%d" % topic, "news", level.value, declared=True)


@pytest.fixture
def filled(path: Path) -> Path:
    """Return a store with messages of both kinds, and with a body that was never completed."""
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        environment = store.level(Level.WEAK)
        environment.append([numbered(0, 1, 5)])
        for message in range(6, 9):
            store_large(environment, 0, message, body(MIB, message), b"head %d" % message)
        environment.append([numbered(0, 9, 5)])
        put(environment, 0, body(MIB))
    return path


def test_a_check_finds_nothing_wrong(filled: Path) -> None:
    assert problems(filled) == []


@pytest.mark.parametrize("change", [None, b"damaged"])
def test_a_check_reports_a_message_without_a_fragment_and_a_repair_saves_the_others(
    filled: Path, change: bytes | None
) -> None:
    with Store.open(filled, map_size=1 << 28, boot_id="first") as store:
        looked_at = store.level(Level.WEAK).bodies.open_message(0, 7)
    assert looked_at is not None
    assert isinstance(looked_at.place, Fragmented)
    key = looked_at.place.body.to_bytes(8, "big") + (3).to_bytes(8, "big")
    replace(filled / "weak", FRAGMENTS, key, change)
    told = problems(filled)
    assert "weak: messages 7 to 7 of 'large' cannot be read." in told
    with lock_store(filled):
        assert repair(filled, SampleInterpreter(), "first", lambda _: None, map_size=1 << 28)
    assert problems(filled) == []
    with Store.open(filled, map_size=1 << 28, boot_id="first") as store:
        environment = store.level(Level.WEAK)
        for message in (6, 8):
            assert whole(environment, 0, message) == body(MIB, message)
        assert environment.bodies.open_message(0, 7) is None
        assert environment.extent(0).messages == 12


def test_a_repair_without_the_catalogue_and_the_trees_saves_the_messages(filled: Path) -> None:
    data = filled / "weak" / "data.mdb"
    with data.open("r+b") as file:
        file.write(bytes(2 * 4096))  # both meta pages: no tree can be found
    assert problems(filled)
    with lock_store(filled):
        assert repair(filled, SampleInterpreter(), "first", lambda _: None, map_size=1 << 28)
    with Store.open(filled, map_size=1 << 28, boot_id="first") as store:
        environment = store.level(Level.WEAK)
        for message in range(6, 9):
            assert whole(environment, 0, message) == body(MIB, message)


def test_a_backup_has_the_messages(filled: Path, tmp_path: Path) -> None:
    backup(filled, tmp_path / "copy", "first", lambda _: None)
    with Store.open(tmp_path / "copy", map_size=1 << 28, boot_id="first") as store:
        environment = store.level(Level.WEAK)
        for message in range(6, 9):
            assert whole(environment, 0, message) == body(MIB, message)


# -- kills and power failures ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def write_until() -> Iterator[Callable[[int, Level, Path], signal.Signals]]:
    """Yield a function that has a process store messages until its last step, and returns what ended it."""
    command = [sys.executable, killed_writer.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None

        def run(last_step: int, level: Level, path: Path) -> signal.Signals:
            writer.stdin.write(f"{last_step} {level.value} {path}\n")
            writer.stdin.flush()
            return signal.Signals(int(writer.stdout.readline()))

        yield run


@pytest.mark.parametrize(("level", "power"), [(Level.STRONG, False), (Level.WEAK, False), (Level.WEAK, True)])
@pytest.mark.parametrize("steps", range(1, 14))
def test_after_an_end_at_any_step_there_are_whole_messages_and_nothing_else(
    tmp_path: Path,
    write_until: Callable[[int, Level, Path], signal.Signals],
    level: Level,
    power: bool,
    steps: int,
) -> None:
    path = tmp_path / "store"
    assert write_until(steps, level, path) is signal.SIGKILL
    with Store.open(path, map_size=1 << 28, boot_id="second" if power else "first") as store:
        environment = store.level(level)
        kept = environment.extent(0)
        for message in range(kept.first, kept.last + 1) if kept.messages else ():
            assert whole(environment, 0, message) == body(MIB, message)
        while environment.sweep():
            pass
        message = kept.next or 1
        store_large(environment, 0, message, body(MIB, 5))
        assert whole(environment, 0, message) == body(MIB, 5)
        messages = environment.extent(0).messages
    assert counts(path / level.value) == (messages * -(-MIB // FRAGMENT_OCTETS), 0)
    assert problems(path) == ["The catalogue of " + str(path) + " never knew topics that have messages: 0."]


def test_an_environment_without_the_tables_refuses_large_messages(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    assert not environment.sweep()
    with pytest.raises(StoreFull, match="There was no room for the tables"):
        environment.bodies.begin()
    environment.close()


def test_header_of_the_frame() -> None:
    assert FRAME_HEADER == 17
