"""Blocks in LMDB: stored, found, deleted and merged, compared with a model that is a list."""

import threading
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from storage_helpers import (
    NOON,
    before,
    bodies_of,
    damage,
    heads_of,
    merge_all,
    numbered,
    open_level,
    read_all,
)

from omq_storage.blocks import Block, encode, merge, pack
from omq_storage.environment import BlockRecord, Environment, Extent, Position
from omq_storage.errors import StoreError
from omq_storage.levels import Level
from omq_storage.merging import MERGED_BYTES
from omq_storage.records import BLOCKS, block_key
from omq_storage.runs import runs_of


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


def test_positions(environment: Environment) -> None:
    assert environment.positions() == {}
    environment.set_positions({})
    wanted = {3: Position(10, runs_of((2, 5, 9))), 0: Position((1 << 64) - 1)}
    environment.set_positions(wanted)
    environment.set_positions({3: Position(11)})
    assert environment.positions() == {**wanted, 3: Position(11)}


def test_many_threads_at_once(environment: Environment) -> None:
    """Readers see consistent states only, whatever the writer, merging and checkpoints do meanwhile."""
    failures: list[Exception] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                blocks = read_all(environment, 1, environment.extent(1).first, max_bytes=10_000)
                # Two calls may see the blocks before and after merging: they overlap, but never leave a gap.
                for before, after in pairwise(blocks):
                    assert after.first <= before.next < after.next
                assert all(body.startswith(b"1/%d " % message) for message, body in bodies_of(blocks))
        except Exception as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    def check() -> None:
        try:
            while not done.is_set():
                environment.checkpoint()
        except Exception as error:  # noqa: BLE001 - handed to the test's own thread
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
        """Return the position of the block with this message after all merging; it may be deleted already."""
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


def test_the_octets_of_bodies_are_told_without_heads(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "level")
    plain = encode(1, 0, [b"12", b"345"], NOON)
    headed = [encode(1, first, [b"12", b"345"], NOON, [b"a head", b""]) for first in (2, 4, 6, 8)]
    later = merge([encode(1, 10, [b"1"], NOON), encode(1, 11, [b"234"], NOON + 5)])
    environment.append([plain, *headed, later])
    infos = environment.blocks(1, 0)
    assert environment.sizes(1, infos) == [
        (range(2), 5),
        *((range(first, first + 2), 5) for first in (2, 4, 6, 8)),
        (range(10, 12), 4),
    ]
    environment.close()
    # The others are estimated.
    damage(tmp_path / "level", BLOCKS, block_key(1, 2), lambda _: None)
    damage(tmp_path / "level", BLOCKS, block_key(1, 4), lambda _: b"short")
    damage(tmp_path / "level", BLOCKS, block_key(1, 6), lambda _: pack(later))
    damage(tmp_path / "level", BLOCKS, block_key(1, 8), lambda value: value[:36] + b"\xff" * 4 + value[40:])
    environment = open_level(tmp_path / "level")
    estimated = len(pack(headed[0])) - len(pack(plain)) + 5
    assert environment.sizes(1, infos) == [
        (range(2), 5),
        (range(2, 4), estimated),
        (range(4, 6), estimated),
        (range(6, 8), 4),  # it is not verified
        (range(8, 10), estimated),
        (range(10, 12), 4),
    ]
    environment.close()
