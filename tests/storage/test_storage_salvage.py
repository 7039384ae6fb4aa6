"""Salvage of a damaged environment: the newest record of each kind, and every range that is missing."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_helpers import bodies_of, numbered, open_level

from omq_storage.catalogue import TABLES as CATALOGUE_TABLES
from omq_storage.catalogue import StoreCatalogue
from omq_storage.environment import TABLES, Environment
from omq_storage.identity import LevelIdentity, Lineage
from omq_storage.levels import Level
from omq_storage.pages import Pages
from omq_storage.records import BlockRecord, Extent, Position
from omq_storage.runs import runs_of
from omq_storage.salvage import Salvage, salvage

PAGE = 4096


def info(first: int, count: int) -> BlockRecord:
    return BlockRecord(first, count, 0, 0, 100 * count)


class State(NamedTuple):
    """The messages that a topic is known to have had, by first message id and number of messages."""

    blocks: dict[int, int]
    indexed: dict[int, int]
    extent: Extent | None


@st.composite
def states(draw: st.DrawFn) -> State:
    """Return some blocks in a row, of which some are deleted, some lost, and some not in the index."""
    blocks: dict[int, int] = {}
    index: dict[int, int] = {}
    at = draw(st.integers(1, 4))
    first, messages, last = 0, 0, 0
    deleted = draw(st.integers(0, 3))
    for number in range(draw(st.integers(0, 8))):
        at += draw(st.sampled_from([0, 0, 0, 1, 5]))
        count = draw(st.integers(1, 4))
        is_deleted = number < deleted
        if not is_deleted:
            first = first or at
            messages += count
        if draw(st.booleans()):
            blocks[at] = count
        if draw(st.booleans()):
            index[at] = count
        last = at + count - 1
        at += count
    extent = Extent(first or last + 1, last, messages, 100) if draw(st.booleans()) else None
    return State(blocks, index, extent)


@given(states())
def test_every_message_that_was_stored_is_read_or_missing(state: State) -> None:
    found = Salvage(
        blocks={7: {first: (info(first, count), 0) for first, count in state.blocks.items()}},
        index={7: {first: info(first, count) for first, count in state.indexed.items()}},
        extents={} if state.extent is None else {7: state.extent},
    )
    extent = state.extent
    oldest = 0 if extent is None else extent.first
    kept = {at: count for at, count in state.blocks.items() if at + count - 1 >= oldest}
    whole = {id for at, count in kept.items() for id in range(at, at + count)}
    assert [one.first for one, _ in found.in_order(7)] == sorted(kept)

    stored = {id for at, count in state.indexed.items() for id in range(at, at + count)}
    if extent is not None and extent.messages != len(whole):
        stored |= {*range(extent.first, extent.last + 1)}
    lost = found.missing(7)
    told = [id for first, last in lost for id in range(first, last + 1)]
    # A range that ends below the oldest message was deleted. One that begins there counts as a whole.
    assert {id for id in told if id >= oldest} == {id for id in stored - whole if id >= oldest}
    assert set(told) <= stored - whole
    assert told == sorted(set(told))
    assert all(first <= last for first, last in lost)
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(lost))
    assert all(last >= oldest for _, last in lost)
    assert found.known == {7}
    assert (found.in_order(8), found.missing(8)) == ([], [])


def test_blocks_that_overlap_count_once() -> None:
    """A merged block and one of its parts, which was left on a page that LMDB has not used again."""
    blocks = {1: info(1, 10), 5: info(5, 2), 10: info(10, 3), 11: info(11, 3), 14: info(14, 1)}
    found = Salvage(blocks={0: {first: (one, first) for first, one in blocks.items()}})
    assert [(one.first, page) for one, page in found.in_order(0)] == [(1, 1), (11, 11), (14, 14)]


class Written(NamedTuple):
    """The contents of an environment after its last commit."""

    extents: dict[int, Extent]
    positions: dict[int, Position]
    sequences: dict[int, dict[bytes, int]]
    identity: LevelIdentity | None
    messages: dict[int, list[tuple[int, bytes]]]


def used(path: Path, seed: int) -> Written:
    """Use an environment, so that older records are left on pages before and behind the newest."""
    chance = random.Random(seed)
    environment = open_level(path, Level.STRONG)
    sequences: dict[int, dict[bytes, int]] = {}
    positions: dict[int, Position] = {}
    messages: dict[int, list[tuple[int, bytes]]] = {0: [], 1: [], 2: []}
    identity = None
    for step in range(120):
        topic = chance.randrange(3)
        following = environment.extent(topic).next or 1
        match chance.randrange(6):
            case 0 | 1 | 2:
                block = numbered(topic, following, chance.randrange(1, 6), chance.choice([20, 900, 3000]))
                producer = b"p%d" % chance.randrange(4)
                sequences.setdefault(topic, {})[producer] = step
                environment.append([block], {topic: {producer: step}})
                messages[topic] += bodies_of([block])
            case 3:
                before = chance.randrange(max(1, following - 10), following + 1)
                extent = environment.trim(topic, before)
                messages[topic] = [one for one in messages[topic] if one[0] >= extent.first]
            case 4:
                known = positions.get(topic, Position(1)).cursor
                positions[topic] = Position(known + chance.randrange(3), runs_of([known - 1][: known > 1]))
                environment.set_positions({topic: positions[topic]})
            case _:
                identity = LevelIdentity("this store", Level.STRONG, step + 1)
                environment.identify(identity)
    written = Written(environment.extents(), environment.positions(), sequences, identity, messages)
    assert written.positions == positions
    environment.close()
    return written


def wipe(file: Path, *pages: int) -> None:
    with file.open("r+b") as damaged:
        for page in pages:
            damaged.seek(page * PAGE)
            damaged.write(b"\xff" * PAGE)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("damage", ["nothing", "one meta page", "both meta pages"])
def test_the_newest_record_of_each_kind_is_found(tmp_path: Path, seed: int, damage: str) -> None:
    path = tmp_path / "strong"
    written = used(path, seed)
    if damage == "one meta page":
        wipe(path / "data.mdb", seed % 2)
    elif damage == "both meta pages":
        wipe(path / "data.mdb", 0, 1)
    found = salvage(path, TABLES)
    assert bool(found.problems) == (damage != "nothing")
    if damage == "one meta page":
        # The state may be that before the last commit, which nobody can tell.
        assert all(found.extents[topic].last <= extent.last for topic, extent in written.extents.items())
        return
    assert found.extents == written.extents
    if damage == "nothing":
        assert (found.damaged, found.positions) == (0, written.positions)
    assert {topic: one.cursor for topic, one in found.positions.items()} == {
        topic: one.cursor for topic, one in written.positions.items()
    }
    sequences = {
        topic: {producer: last for producer, (_, last) in known.items()}
        for topic, known in found.sequences.items()
    }
    assert sequences == written.sequences
    assert found.identity == written.identity
    for topic, messages in written.messages.items():
        assert bodies_of(list(found.read(path, topic))) == messages
        assert found.missing(topic) == []
    uses = [use for known in found.sequences.values() for use, _ in known.values()]
    assert len(uses) == sum(map(len, written.sequences.values()))
    assert (found.topics, found.older_topics, found.next_topic, found.lineage) == ({}, {}, None, None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("damage", ["nothing", "both meta pages"])
def test_the_newest_record_of_each_topic_is_found(tmp_path: Path, seed: int, damage: str) -> None:
    chance = random.Random(seed)
    path = tmp_path / "catalogue"
    path.mkdir()
    catalogue = StoreCatalogue(path, map_size=1 << 24)
    topics = [catalogue.create(b"topic %d" % number, "news", "weak", False).id for number in range(60)]
    generation = 0
    for _ in range(80):
        topic = chance.choice(topics)
        (record,) = [one for one in catalogue.topics() if one.id == topic]
        match chance.randrange(4):
            case 0:
                catalogue.reserve({topic: record.reserved + chance.randrange(1, 50)})
            case 1:
                catalogue.resume({topic: record.resume + chance.randrange(1, 50)})
            case 2:
                catalogue.update(replace(record, declared=True))
            case _:
                generation += 1
                since = max(1, generation - chance.randrange(2))
                catalogue.set_lineage(Lineage("this store", since, generation))
    expected = {record.id: record for record in catalogue.topics()}
    lineage, next_id = catalogue.lineage, catalogue.next_id
    catalogue.close()
    if damage == "both meta pages":
        wipe(path / "data.mdb", 0, 1)
    found = salvage(path, CATALOGUE_TABLES, older_topics=True)
    assert bool(found.problems) == (damage != "nothing")
    assert found.topics == expected
    assert (found.next_topic, found.older_topics) == (next_id, {})
    assert found.lineage is not None
    assert lineage is not None
    assert found.lineage.generation == lineage.generation
    if damage == "nothing":
        assert found.lineage == lineage
    assert (found.blocks, found.index, found.extents, found.identity) == ({}, {}, {}, None)


@pytest.mark.parametrize("page", range(2, 12))
def test_a_lost_page_costs_its_own_content_only(tmp_path: Path, page: int) -> None:
    path = tmp_path / "strong"
    written = used(path, seed=1)
    content = (path / "data.mdb").read_bytes()
    wipe(path / "data.mdb", page)
    found = salvage(path, TABLES)
    for topic, messages in written.messages.items():
        read = bodies_of(list(found.read(path, topic)))
        assert [one for one in messages if one in read] == read
        extent = found.extents.get(topic)
        if extent is not None and topic in found.index:
            lost = {id for first, last in found.missing(topic) for id in range(first, last + 1)}
            assert lost >= {id for id, _ in messages} - {id for id, _ in read}
            assert not lost & {id for id, _ in read}
    (path / "data.mdb").write_bytes(content)
    assert salvage(path, TABLES).problems == []


@pytest.mark.parametrize("seed", range(3))
def test_a_lost_list_of_free_pages_brings_nothing_back(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "strong"
    used(path, seed)
    whole = salvage(path, TABLES)
    with Pages(path / "data.mdb") as pages:
        free = pages.newest.free_root
    wipe(path / "data.mdb", free)
    found = salvage(path, TABLES)
    assert found.problems != []
    assert replace(found, problems=[]) == whole


def test_an_environment_that_is_missing(tmp_path: Path) -> None:
    found = salvage(tmp_path, TABLES)
    assert found == Salvage(problems=["it is missing"])
    assert found.known == set()


def test_the_tables_must_have_the_names_that_they_were_given(tmp_path: Path) -> None:
    environment = Environment(tmp_path, Level.STRONG, map_size=1 << 24, boot_id="first")
    environment.append([numbered(0, 1, 3)])
    environment.close()
    assert salvage(tmp_path, TABLES).problems == []
    found = salvage(tmp_path, CATALOGUE_TABLES)
    assert found.problems == ["its tables do not have the names that they were given"]
    assert [one.first for one, _ in found.in_order(0)] == [1]
