"""Blocks in LMDB: stored, found, deleted and merged, compared with a model that is a list."""

import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from storage_helpers import NOON, bodies_of, heads_of, numbered, open_level, read_all

import omq_storage.merging
from omq_storage.blocks import Block, encode, pack
from omq_storage.environment import BlockRecord, Environment, Extent, Position
from omq_storage.errors import DamagedBlock, DamagedFile, Limit, StoreError, StoreFull
from omq_storage.levels import Level
from omq_storage.merging import MERGED_BYTES, MERGED_MESSAGES
from omq_storage.records import TooOld
from omq_storage.runs import runs_of


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return open_level(tmp_path / "weak")


@pytest.mark.parametrize("level", list(Level))
def test_appended_blocks_are_read(tmp_path: Path, level: Level) -> None:
    environment = open_level(tmp_path / "level", level)
    blocks = [numbered(1, 0, 10), numbered(2, 0, 3), numbered(1, 10, 5), numbered(0, 7, 1)]
    assert environment.append(blocks) == {topic: environment.extent(topic) for topic in (0, 1, 2)}
    assert environment.read(1, 0) == [blocks[0], blocks[2]]
    assert environment.read(2, 0) == [blocks[1]]
    assert environment.read(0, 0) == [blocks[3]]
    assert environment.read(3, 0) == []
    environment.close()
    environment = open_level(tmp_path / "level", level)
    assert read_all(environment, 1) == [blocks[0], blocks[2]]
    assert environment.extents() == {
        0: environment.extent(0),
        1: environment.extent(1),
        2: environment.extent(2),
    }
    assert environment.extent(1) == Extent(0, 14, 15, len(pack(blocks[0])) + len(pack(blocks[2])))
    environment.close()


def test_reading_begins_with_the_block_that_has_the_message(environment: Environment) -> None:
    blocks = [numbered(1, 5, 5), numbered(1, 10, 5), numbered(1, 20, 5)]
    environment.append([numbered(0, 0, 100), *blocks, numbered(2, 0, 100)])
    for first, found in (
        (0, 0),
        (5, 0),
        (9, 0),
        (10, 1),
        (14, 1),
        (15, 2),
        (19, 2),
        (20, 2),
        (24, 2),
        (25, 3),
    ):
        assert environment.read(1, first) == blocks[found:], first
        assert [info.first for info in environment.blocks(1, first)] == [b.first for b in blocks[found:]]


def test_reading_keeps_to_its_limits_but_always_goes_on(environment: Environment) -> None:
    blocks = [numbered(1, 10 * n, 10) for n in range(10)]
    environment.append(blocks)
    size = len(pack(blocks[0]))
    assert environment.read(1, 0, max_bytes=1) == blocks[:1]
    assert environment.read(1, 0, max_bytes=3 * size) == blocks[:3]
    assert environment.read(1, 0, max_bytes=3 * size - 1) == blocks[:2]
    assert environment.read(1, 35, max_blocks=2) == blocks[3:5]
    assert environment.blocks(1, 35, limit=2) == [
        BlockRecord(30, 10, NOON, 0, size),
        BlockRecord(40, 10, NOON, 0, size),
    ]


def test_blocks_outlive_their_environment(environment: Environment) -> None:
    environment.append([numbered(1, 0, 10)])
    (block,) = environment.read(1, 0)
    environment.drop(1)
    environment.append([numbered(1, 0, 10, size=90)])
    environment.close()
    assert block == numbered(1, 0, 10)


def test_ids_only_go_up_and_a_refused_append_leaves_nothing(environment: Environment) -> None:
    environment.append([numbered(1, 0, 10)])
    for wrong in (
        [numbered(1, 9, 1)],
        [numbered(2, 0, 1), numbered(1, 0, 1)],
        [numbered(1, 10, 2), numbered(1, 11, 1)],
    ):
        with pytest.raises(StoreError, match="cannot be stored after"):
            environment.append(wrong)
    assert environment.extents().keys() == {1}
    environment.trim(1, 10)
    with pytest.raises(StoreError, match="cannot be stored after 9"):
        environment.append([numbered(1, 0, 10)])
    environment.append([numbered(1, 10, 1)])
    assert environment.extent(1).first == 10


def test_extents_of_topics_without_messages(environment: Environment) -> None:
    assert environment.extent(1) == Extent(0, 0, 0, 0)
    assert environment.extent(1).next == 0
    environment.append([numbered(1, 0, 1)])
    assert environment.extent(1).next == 1
    assert environment.trim(1, 100) == Extent(1, 0, 0, 0)
    assert environment.extent(1).next == 1
    environment.drop(1)
    assert environment.extents() == {}


def before(time: int) -> TooOld:
    """Select all messages with an earlier time."""
    return TooOld(time, time_below=1 << 63, below=0)


def test_retention_by_size_keeps_the_newest_block(environment: Environment) -> None:
    blocks = [numbered(1, 10 * n, 10) for n in range(6)]
    environment.append(blocks)
    size = len(pack(blocks[0]))
    assert environment.retain(1, 3 * size, None, None).first == 30
    assert environment.retain(1, 3 * size - 1, None, None).first == 40
    assert environment.retain(1, 0, None, 45).first == 40
    assert environment.retain(1, 0, None, 50).first == 50
    assert environment.retain(1, 0, None, None) == Extent(50, 59, 10, size)
    assert environment.retain(1, None, None, None) == environment.extent(1)


def test_retention_by_age_looks_at_the_last_message(environment: Environment) -> None:
    old = [numbered(1, 0, 1, time=NOON), numbered(1, 1, 1, time=NOON + 50)]
    environment.append([*old, numbered(1, 2, 1, time=NOON + 100)])
    assert environment.merge_small(1, 0) is not None
    assert [info.span for info in environment.blocks(1, 0)] == [100]
    assert environment.retain(1, None, before(NOON + 100), None).messages == 3
    assert environment.retain(1, None, before(NOON + 101), 2).messages == 3
    assert environment.retain(1, None, before(NOON + 101), 3) == Extent(3, 2, 0, 0)


def test_retention_by_age_uses_ids_too(environment: Environment) -> None:
    environment.append([numbered(1, 10 * n, 10, time=NOON) for n in range(4)])

    def kept(time: int, time_below: int, below: int) -> int:
        return environment.retain(1, None, TooOld(time, time_below, below), None).first

    assert kept(NOON, 1000, 0) == 0  # none is too old
    assert kept(NOON + 1, 9, 9) == 0  # not all messages of the first block are
    assert kept(NOON + 1, 10, 0) == 10
    assert kept(NOON, 1000, 20) == 20
    assert kept(NOON + 1, 1000, 0) == 40  # the newest block, too


def test_retention_is_bounded_and_continues_at_the_next_call(environment: Environment) -> None:
    environment.append([numbered(1, n, 1, size=1) for n in range(600)])
    assert [environment.retain(1, None, before(NOON + 1), None).messages for _ in range(4)] == [344, 88, 0, 0]
    environment.append([numbered(2, n, 1, size=1) for n in range(600)])
    assert environment.trim(2, 599).messages == 1
    environment.append([numbered(3, n, 1, size=1) for n in range(600)])
    environment.set_positions({3: Position(4), 2: Position(1, runs_of((0,)))})
    environment.drop(3)
    assert environment.extents().keys() == {1, 2}
    assert environment.positions() == {2: Position(1, runs_of((0,)))}
    assert read_all(environment, 3) == []


def test_positions(environment: Environment) -> None:
    assert environment.positions() == {}
    environment.set_positions({})
    wanted = {3: Position(10, runs_of((2, 5, 9))), 0: Position((1 << 64) - 1)}
    environment.set_positions(wanted)
    environment.set_positions({3: Position(11)})
    assert environment.positions() == {**wanted, 3: Position(11)}


def merge_all(environment: Environment, topic: int) -> int:
    """Merge until nothing is left to merge, and return the number of calls."""
    calls, start = 0, 0
    while True:
        calls += 1
        following = environment.merge_small(topic, start)
        if following is None:
            return calls
        assert following >= start
        start = following


def test_merging_makes_large_blocks_of_small_ones(environment: Environment) -> None:
    blocks = [numbered(1, 3 * n, 3) for n in range(3000)]
    environment.append(blocks)
    environment.append([numbered(2, 0, 1)])
    before = environment.extent(1)
    merge_all(environment, 1)
    infos = environment.blocks(1, 0)
    assert [info.count for info in infos] == [4095, 4095, 810]
    assert bodies_of(read_all(environment, 1)) == bodies_of(blocks)
    after = environment.extent(1)
    assert (after.first, after.last, after.messages) == (before.first, before.last, before.messages)
    assert after.bytes == sum(info.bytes for info in infos)
    assert merge_all(environment, 1) == 1
    assert environment.read(2, 0) == [numbered(2, 0, 1)]


def test_merging_never_crosses_a_gap_or_71_minutes_or_its_sizes(environment: Environment) -> None:
    environment.append([numbered(1, 0, 1), numbered(1, 1, 1), numbered(1, 3, 1), numbered(1, 4, 1)])
    hour = 3600 * 1_000_000
    environment.append([numbered(2, n, 1, time=NOON + n * hour) for n in range(4)])
    environment.append([numbered(3, n, 1, size=100_000) for n in range(10)])
    environment.append([numbered(4, 0, 1, time=NOON + 2 * hour), numbered(4, 1, 1)])
    for topic in (1, 2, 3, 4):
        merge_all(environment, topic)
    assert [(info.first, info.count) for info in environment.blocks(1, 0)] == [(0, 2), (3, 2)]
    assert [info.count for info in environment.blocks(2, 0)] == [2, 2]
    assert [info.count for info in environment.blocks(3, 0)] == [5, 5]
    assert [info.count for info in environment.blocks(4, 0)] == [2]
    assert environment.read(4, 0)[0].message_time(1) == NOON + 2 * hour


def test_merging_fills_a_block_to_its_last_octet(environment: Environment) -> None:
    """Of blocks with and without the times of their messages."""

    def merged(topic: int, size: int) -> list[int]:
        # The first three are merged before, so the block that they become has the times of its messages.
        environment.append([numbered(topic, n, 1, 66_000, NOON + n) for n in range(3)])
        merge_all(environment, topic)
        environment.append([numbered(topic, 3, 1, 150_000, NOON + 3), numbered(topic, 4, 1, size, NOON + 4)])
        merge_all(environment, topic)
        return [info.bytes for info in environment.blocks(topic, 0)]

    (octets,) = merged(1, 140_000)
    fitting = 140_000 + MERGED_BYTES - octets
    assert merged(2, fitting) == [MERGED_BYTES]
    assert max(merged(3, fitting + 1)) < MERGED_BYTES


def test_merging_keeps_to_its_size_where_only_some_have_heads(environment: Environment) -> None:
    blocks = [
        encode(1, 100 * n, [b"x" * 95] * 100, NOON + n, [b"head"] * 100 if n % 50 == 49 else [])
        for n in range(200)
    ]
    environment.append(blocks)
    assert {info.first for info in environment.blocks(1, 0) if info.heads} == {4900, 9900, 14900, 19900}
    merge_all(environment, 1)
    merged = environment.blocks(1, 0)
    assert all(info.bytes <= MERGED_BYTES for info in merged)
    assert [(info.count, info.heads) for info in merged] == [
        (block.count, block.has_heads) for block in read_all(environment, 1)
    ]
    # Those with offsets of heads have a little less room for messages.
    assert {info.count for info in merged if info.heads} == {4000}
    assert heads_of(read_all(environment, 1)) == heads_of(blocks)


def test_a_growing_topic_is_rewritten_a_few_times_only(environment: Environment) -> None:
    written, start = 0, 0
    for n in range(1000):
        environment.append([numbered(1, n, 1)])
        before = {info.first: info for info in environment.blocks(1, start)}
        following = environment.merge_small(1, start)
        changed = [info for info in environment.blocks(1, start) if before.get(info.first) != info]
        written += sum(info.count for info in changed)
        start = start if following is None else following
    assert written <= 1000 * 12
    assert len(environment.blocks(1, 0)) <= 12


def test_merging_many_blocks_is_bounded(environment: Environment) -> None:
    environment.append([numbered(1, n, 1, size=20_000) for n in range(1000)])
    first = environment.merge_small(1, 0)
    assert first == 16 * 26  # of 16 blocks of up to 512 KiB, which are almost 8 MiB
    assert {info.count for info in environment.blocks(1, 0) if info.last < first} == {26}
    environment.append([numbered(2, n, 1, size=1) for n in range(9000)])
    assert merge_all(environment, 2) <= 6
    assert sorted(info.count for info in environment.blocks(2, 0))[-1] == MERGED_MESSAGES


def damage(path: Path, table: bytes, key: bytes, change: object) -> None:
    """Change one value without the environment; ``change`` returns None to delete it."""
    assert callable(change)
    with lmdb.open(str(path), max_dbs=8) as environment:
        found = environment.open_db(table, create=False)
        with environment.begin(write=True) as transaction:
            value = change(transaction.get(key, db=found))
            if value is None:
                transaction.delete(key, db=found)
            else:
                transaction.put(key, value, db=found)


def flipped(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


@pytest.mark.parametrize("kept", [20, 1000])
def test_a_block_deleted_during_its_merge_stays_deleted(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """A merge reads before it writes.

    Other threads may write in between, and it must not undo their changes.
    """
    environment.append([numbered(1, 5 * n, 5) for n in range(20)])

    def delete_first(block: Block) -> bytes:
        environment.trim(1, kept)
        return pack(block)

    monkeypatch.setattr(omq_storage.merging, "pack", delete_first)
    environment.merge_small(1, 0)
    monkeypatch.undo()
    expected = [(message, body) for message, body in bodies_of([numbered(1, 0, 100)]) if message >= kept]
    assert bodies_of(read_all(environment, 1)) == expected
    assert sum(info.count for info in environment.blocks(1, 0)) == len(expected)
    assert environment.extent(1).messages == len(expected)
    assert environment.extent(1).bytes == sum(info.bytes for info in environment.blocks(1, 0))
    merge_all(environment, 1)
    assert bodies_of(read_all(environment, 1)) == expected


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
    assert environment.merge_small(1, 0) is None
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
    ask = {
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


def fill(environment: Environment, stored: list[Block], count: int) -> None:
    """Append blocks of topic 1 until there is no more room, and record which were stored."""
    full: StoreFull | None = None
    while full is None:
        block = numbered(1, stored[-1].next if stored else 0, count)
        try:
            environment.append([block])
            stored.append(block)
        except StoreFull as error:
            full = error
    assert full.limit is Limit.MAP


@pytest.mark.parametrize("level", [Level.STRONG, Level.WEAK])
def test_a_full_map(tmp_path: Path, level: Level) -> None:
    environment = open_level(tmp_path / "level", level, map_size=1 << 20)
    stored: list[Block] = []
    for round_ in range(3):
        fill(environment, stored, count=100)
        # The last few pages, too, so that nothing is left for deleting.
        fill(environment, stored, count=1)
        assert read_all(environment, 1, stored[0].first) == stored
        assert environment.extent(1).last == stored[-1].last
        cut = len(stored) // 2
        environment.trim(1, stored[cut].first)
        environment.checkpoint()
        environment.set_positions({1: Position(round_)})
        stored = stored[cut:]
        assert read_all(environment, 1) == stored
    environment.close()
    environment = open_level(tmp_path / "level", level, map_size=1 << 20)
    assert read_all(environment, 1) == stored
    environment.close()


@pytest.mark.parametrize("map_size", [1 << 20, 3_000_000])
@pytest.mark.parametrize("others", range(4))
def test_a_full_map_accepts_blocks_after_a_topic_is_deleted(
    tmp_path: Path, map_size: int, others: int
) -> None:
    """Also when the deletion used the last free pages: LMDB reuses freed pages in the commit after
    the next.
    """
    environment = open_level(tmp_path / "level", Level.STRONG, map_size=map_size)
    for topic in range(2, 2 + others):
        environment.append([encode(topic, 1, [b"x" * 20_000], 0)])
    full = False
    message = 0
    while not full:
        message += 1
        try:
            environment.append([encode(1, message, [b"x" * 20_000], 0)])
        except StoreFull:
            full = True
    with suppress(StoreFull):
        for cursor in range(others):
            environment.set_positions({1: Position(cursor)})
    environment.drop(1)
    environment.append([encode(9, 1, [b"again"], 0)])
    environment.close()


def test_many_threads_at_once(environment: Environment) -> None:
    """Readers see consistent states only, whatever the writer, merging and checkpoints do meanwhile."""
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                blocks = read_all(environment, 1, environment.extent(1).first, max_bytes=10_000)
                # Two calls may see the blocks before and after merging: they overlap, but never leave a gap.
                for before, after in pairwise(blocks):
                    assert after.first <= before.next < after.next
                assert all(body.startswith(b"1/%d " % message) for message, body in bodies_of(blocks))
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    def check() -> None:
        try:
            while not done.is_set():
                environment.checkpoint()
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)] + [threading.Thread(target=check)]
    for thread in threads:
        thread.start()
    for n in range(300):
        environment.append([numbered(1, 5 * n, 5)])
        if n % 20 == 0:
            environment.merge_small(1, environment.extent(1).first)
        if n % 100 == 50:
            environment.reopen(1 << 20)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert environment.extent(1).messages == 1500
    environment.close()


def test_every_call_after_close_raises(environment: Environment) -> None:
    environment.close()
    environment.close()
    for ask in (environment.extents, environment.usage, lambda: environment.append([numbered(1, 0, 1)])):
        with pytest.raises(StoreError, match="was closed"):
            ask()


class EnvironmentAgainstAList(RuleBasedStateMachine):
    """Random operations, compared with a list of the messages that must be there."""

    topics = st.integers(0, 2)

    @initialize()
    def begin(self) -> None:
        self.directory = TemporaryDirectory()
        self.path = Path(self.directory.name) / "weak"
        self.environment = open_level(self.path)
        self.stored: dict[int, list[Block]] = {}
        self.last: dict[int, int] = {}
        self.positions: dict[int, Position] = {}
        self.sequences: dict[int, dict[bytes, int]] = {}

    def teardown(self) -> None:
        if hasattr(self, "environment"):
            self.environment.close()
            self.directory.cleanup()

    @rule(
        parts=st.lists(
            st.tuples(topics, st.integers(0, 2), st.lists(st.binary(max_size=3), min_size=1, max_size=5)),
            min_size=1,
            max_size=4,
        ),
        producers=st.dictionaries(st.sampled_from([b"", b"a", b"b"]), st.integers(0, (1 << 64) - 1)),
    )
    def append(self, parts: list[tuple[int, int, list[bytes]]], producers: dict[bytes, int]) -> None:
        blocks = []
        for topic, gap, heads in parts:
            count = len(heads)
            first = self.last.get(topic, -1) + 1 + gap
            blocks.append(encode(topic, first, [b"%d" % n for n in range(count)], NOON + 10 * first, heads))
            self.last[topic] = first + count - 1
            self.stored.setdefault(topic, []).append(blocks[-1])
        self.sequences.setdefault(topic, {}).update(producers)
        self.environment.append(blocks, {topic: producers})

    @rule(topic=topics, before=st.integers(0, 60))
    def trim(self, topic: int, before: int) -> None:
        self.environment.trim(topic, before)
        self.keep(topic, lambda info: info.next > before)

    @rule(topic=topics, age=st.integers(0, 600), keep_from=st.integers(0, 60))
    def retain(self, topic: int, age: int, keep_from: int) -> None:
        self.environment.retain(topic, None, before(NOON + age), keep_from)
        self.keep(topic, lambda info: info.next > keep_from or info.time + info.span >= NOON + age)

    @rule(topic=topics, size=st.integers(0, 2000))
    def retain_size(self, topic: int, size: int) -> None:
        extent = self.environment.retain(topic, size, None, None)
        self.keep(topic, lambda info: info.last >= extent.first)
        assert extent.bytes <= size or len(self.environment.blocks(topic, 0)) == 1

    def keep(self, topic: int, wanted: object) -> None:
        """Drop the oldest from the list as long as they are not wanted, block by block as they now lie."""
        assert callable(wanted)
        while (blocks := self.stored.get(topic)) and not wanted(self.info(topic, blocks[0].first)):
            last = self.info(topic, blocks[0].first).last
            self.stored[topic] = [block for block in blocks if block.first > last]

    def info(self, topic: int, first: int) -> BlockRecord:
        """Return how the block with this message lay after all merging; it may be deleted already."""
        for begin, end in self.boundaries.get(topic, []):
            if begin <= first < end:
                within = [block for block in self.stored[topic] if begin <= block.first < end]
                return BlockRecord(begin, end - begin, within[0].time, within[-1].time - within[0].time, 0)
        raise AssertionError

    @rule(topic=topics)
    def merge(self, topic: int) -> None:
        merge_all(self.environment, topic)
        assert all(info.bytes <= MERGED_BYTES for info in self.environment.blocks(topic, 0))

    @rule(topic=topics)
    def drop(self, topic: int) -> None:
        self.environment.drop(topic)
        for known in (self.stored, self.last, self.positions, self.sequences):
            known.pop(topic, None)

    @rule(topic=topics, cursor=st.integers(0, 100), undone=st.lists(st.integers(0, 100), max_size=3))
    def position(self, topic: int, cursor: int, undone: list[int]) -> None:
        self.positions[topic] = Position(cursor, runs_of(undone))
        self.environment.set_positions({topic: self.positions[topic]})

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.environment.close(clean)
        self.environment = open_level(self.path)

    @rule()
    def checkpoint(self) -> None:
        self.environment.checkpoint()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "environment"):
            return
        self.boundaries = {
            topic: [(info.first, info.next) for info in self.environment.blocks(topic, 0)]
            for topic in range(3)
        }
        assert self.environment.positions() == self.positions
        for topic in range(3):
            sequences = self.environment.sequences(topic, [b"", b"a", b"b", b"c"])
            assert sequences == self.sequences.get(topic, {})
        assert self.environment.extents().keys() == self.last.keys()
        for topic, last in self.last.items():
            stored = self.stored[topic]
            assert bodies_of(read_all(self.environment, topic)) == bodies_of(stored)
            assert heads_of(read_all(self.environment, topic)) == heads_of(stored)
            extent = self.environment.extent(topic)
            assert extent == Extent(
                stored[0].first if stored else last + 1,
                last,
                sum(block.count for block in stored),
                sum(info.bytes for info in self.environment.blocks(topic, 0)),
            )


TestEnvironmentAgainstAList = EnvironmentAgainstAList.TestCase
TestEnvironmentAgainstAList.settings = settings(max_examples=30, stateful_step_count=25)
