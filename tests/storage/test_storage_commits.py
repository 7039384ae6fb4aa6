"""Messages that the compiled codec takes from lines to the store are stored as all others are."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_helpers import NOON, bodies_of, damage, flipped, numbered, open_level, read_all

from omq_storage import codec
from omq_storage.batches import BLOCK_MESSAGES, BLOCK_OCTETS, Bodies, blocks_of
from omq_storage.blocks import Block, pack
from omq_storage.database import RecordedWriting
from omq_storage.environment import Environment, Extent
from omq_storage.errors import Limit, StoreError, StoreFull
from omq_storage.levels import Level
from omq_storage.records import EXTENTS, topic_key

if TYPE_CHECKING:
    from omq_storage._codec import Pass, Route, StoreCommit, StoreLane, StorePart

pytestmark = pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec collects messages")

MOST = 1 << 20
Messages = Sequence[tuple[int, bytes]]
"""Topic ids and bodies."""
Records = Sequence[tuple[bytes, bytes]]
AT_ONCE = 256
"""The greatest number of topics whose records the codec makes in one step."""


class Owner:
    """Stands for a driver."""


def store_lane(octets: int = 1 << 30, messages: int = 1 << 20) -> "StoreLane":
    return codec.native.StoreLane(octets, messages)


def routes_of(
    lane: "StoreLane", topics: Sequence[int], *, first: int = 1, is_watched: bool = False
) -> "dict[bytes, Route]":
    """Return open routes by the names of their topics."""
    routes = {}
    for topic in topics:
        route = codec.native.Route(topic, first, 1 << 40)
        route.owner = Owner()
        route.open_store(lane)
        route.is_watched = is_watched
        routes[b"topic-%d" % topic] = route
    return routes


def written(body: bytes) -> bytes:
    return (
        b'"'
        + b"".join(b"\\%03d" % octet if octet < 32 or octet in b'"\\' else bytes((octet,)) for octet in body)
        + b'"'
    )


def read(routes: "dict[bytes, Route]", messages: Messages, room: int = 1 << 30) -> "tuple[Pass, int]":
    """Route one read of lines. Return the pass, and the number of lines that it has read."""
    lines = [b"(Publish topic-%d %s)\n" % (topic, written(body)) for topic, body in messages]
    passed = codec.native.Pass(codec.native.Routes(routes), None, MOST, room)
    dealt, position = codec.native.deal_lines(b"".join(lines), 0, MOST << 4, passed)
    assert not dealt
    return passed, b"".join(lines)[:position].count(b"\n")


def part(routes: "dict[bytes, Route]", messages: Messages) -> "StorePart":
    passed, count = read(routes, messages)
    assert count == len(messages)
    ((_, found),) = passed.parts
    return found


def commit_of(*parts: "StorePart", now: int = NOON) -> "StoreCommit":
    """Return a commit whose messages have their ids."""
    commit = codec.native.StoreCommit()
    for each in parts:
        commit.add(each)
    commit.number(0, len(commit), now)
    return commit


def store(environment: Environment, parts: "Sequence[StorePart]", now: int = NOON) -> "StoreCommit":
    commit = commit_of(*parts, now=now)
    environment.append_commit(commit)
    return commit


BODIES = st.binary(max_size=40) | st.binary(min_size=300, max_size=400)
READS = st.lists(
    st.lists(st.tuples(st.integers(1, 5), BODIES), min_size=1, max_size=12), min_size=1, max_size=4
)


@given(st.lists(READS, min_size=1, max_size=3))
def test_a_commit_stores_what_append_stores(commits: list[list[list[tuple[int, bytes]]]]) -> None:
    with TemporaryDirectory() as directory:
        ours = open_level(Path(directory) / "ours")
        theirs = open_level(Path(directory) / "theirs")
        routes = routes_of(store_lane(), range(1, 6))
        for time, reads in enumerate(commits, NOON):
            parts = [part(routes, messages) for messages in reads]
            commit = store(ours, parts, time)
            bodies: dict[int, list[bytes]] = {}
            for topic, body in (message for messages in reads for message in messages):
                bodies.setdefault(topic, []).append(body)
            expected: list[Block] = []
            for topic, of_topic in bodies.items():
                batch = Bodies(of_topic)
                first = routes[b"topic-%d" % topic].next_id
                expected += blocks_of(topic, first, time, [(batch, (), batch.octets)])
            extents = theirs.append(expected)
            assert commit.messages == sum(map(len, bodies.values()))
            assert commit.values == sum(len(pack(block)) for block in expected)
            commit.stored(0, len(commit))
            for topic, extent in extents.items():
                taken = routes[b"topic-%d" % topic].take_extent()
                assert taken is not None
                assert Extent(*taken) == extent
        for topic in range(1, 6):
            assert read_all(ours, topic) == read_all(theirs, topic)
            assert ours.blocks(topic, 0) == theirs.blocks(topic, 0)
        assert ours.extents() == theirs.extents()
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    ("count", "size"),
    [(BLOCK_MESSAGES, 1), (BLOCK_MESSAGES + 1, 1), (12, BLOCK_OCTETS // 10), (20, 60_000), (1, 60_000)],
)
def test_long_runs_become_several_blocks(tmp_path: Path, count: int, size: int) -> None:
    environment = open_level(tmp_path / "weak")
    routes = routes_of(store_lane(), [1])
    bodies = [b"%d" % number + b"." * (size - 1) for number in range(count)]
    parts = []
    left = [(1, body) for body in bodies]
    while left:
        passed, taken = read(routes, left)
        parts += [found for _, found in passed.parts]
        left = left[taken:]
    store(environment, parts).stored(0, 1)
    blocks = read_all(environment, 1)
    assert bodies_of(blocks) == list(enumerate(bodies, 1))
    assert all(block.count <= BLOCK_MESSAGES and block.size <= BLOCK_OCTETS for block in blocks)
    assert all(
        first.count + second.count > BLOCK_MESSAGES or first.size + second.size > BLOCK_OCTETS
        for first, second in pairwise(blocks)
    )
    environment.close()


def test_a_commit_of_very_many_topics_is_stored_in_portions(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    topics = range(2 * AT_ONCE + 1, 0, -1)
    routes = routes_of(store_lane(), topics)
    store(environment, [part(routes, [(topic, b"%d" % topic) for topic in topics])])
    for topic in topics:
        assert bodies_of(read_all(environment, topic)) == [(1, b"%d" % topic)]
    environment.close()


def test_topics_with_subscribers_get_their_blocks(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    lane = store_lane()
    routes = routes_of(lane, [1, 2], first=5, is_watched=True) | routes_of(lane, [3])
    commit = store(environment, [part(routes, [(1, b"a"), (2, b"b"), (3, b"c"), (1, b"d")])])
    routes[b"topic-3"].is_watched = True  # its first subscriber came after the commit began
    told = {
        owner: (first, [Block(topic, *value) for value in values])
        for topic, (owner, first, values) in enumerate(commit.stored(0, 3), 1)
    }
    for topic in (1, 2):
        assert told[routes[b"topic-%d" % topic].owner] == (5, read_all(environment, topic))
    assert told[routes[b"topic-3"].owner] == (1, [])
    a = routes[b"topic-1"]
    assert (a.next_id, a.messages_in, a.octets_in, a.messages_out, a.time) == (7, 2, 36, 0, NOON)
    assert commit.stored(0, 0) == []
    environment.close()


def test_a_deleted_topic_is_told_nothing(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    routes = routes_of(store_lane(), [1, 2], is_watched=True)
    commit = store(environment, [part(routes, [(1, b"a"), (2, b"b")])])
    assert commit.is_whole(0, 2)
    routes[b"topic-1"].owner = None
    assert not commit.is_whole(0, 2)
    assert commit.is_whole(1, 2)
    assert [owner for owner, _, _ in commit.stored(0, 2)] == [routes[b"topic-2"].owner]
    environment.close()


def test_the_time_of_a_topic_does_not_go_back(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    routes = routes_of(store_lane(), [1])
    for now in (NOON, NOON - 10, NOON + 1):
        store(environment, [part(routes, [(1, b"a")])], now).stored(0, 1)
    assert [block.time for block in read_all(environment, 1)] == [NOON, NOON, NOON + 1]
    environment.close()


def test_messages_must_lie_behind_the_stored_ones(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(2, 1, 3)])
    routes = routes_of(store_lane(), [1]) | routes_of(store_lane(), [2], first=3)
    commit = commit_of(part(routes_of(store_lane(), [1]), [(1, b"a")]), part(routes, [(2, b"b")]))
    with pytest.raises(StoreError):
        environment.append_commit(commit)
    assert environment.extents() == {2: environment.extent(2)}
    assert environment.extent(2).messages == 3
    environment.close()


def test_a_commit_that_is_tried_again_has_each_block_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level Strong tries again after a checkpoint, which may have freed some room."""
    environment = open_level(tmp_path / "strong", Level.STRONG)
    routes = routes_of(store_lane(), [1], is_watched=True)
    for body in (b"a", b"b"):  # the first one takes a checkpoint itself, the second one is in the journal
        store(environment, [part(routes, [(1, body)])]).stored(0, 1)
    attempts: list[None] = []
    put_many = RecordedWriting.put_many

    def full_at_first(transaction: RecordedWriting, table: bytes, records: Records) -> None:
        put_many(transaction, table, records)
        if table == EXTENTS:
            attempts.append(None)
            if len(attempts) == 1:
                raise StoreFull(Limit.MAP, "There is no room.")

    monkeypatch.setattr(RecordedWriting, "put_many", full_at_first)
    commit = store(environment, [part(routes, [(1, b"c"), (1, b"d")])])
    assert len(attempts) == 2
    ((_, first, values),) = commit.stored(0, 1)
    assert first == 3
    assert [(first, count) for first, count, *_ in values] == [(3, 2)]
    assert commit.values == len(values[0][3].obj)
    assert [body for _, body in bodies_of(read_all(environment, 1))] == [b"a", b"b", b"c", b"d"]
    environment.close()


def test_a_damaged_record_of_a_topic_is_not_used(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 1, 3)])
    environment.close()
    damage(tmp_path / "weak", EXTENTS, topic_key(1), flipped)
    environment = open_level(tmp_path / "weak")
    commit = commit_of(part(routes_of(store_lane(), [1], first=4), [(1, b"a")]))
    with pytest.raises(StoreError):
        environment.append_commit(commit)
    assert bodies_of(read_all(environment, 1)) == bodies_of([numbered(1, 1, 3)])
    environment.close()


def test_ids_follow_the_deleted_messages(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    environment.append([numbered(1, 1, 3)])
    environment.trim(1, 4)
    routes = routes_of(store_lane(), [1], first=4)
    store(environment, [part(routes, [(1, b"a")])])
    assert (environment.extent(1).first, environment.extent(1).messages) == (4, 1)
    environment.close()


# -- what a pass takes ---------------------------------------------------------------------------------------


def test_the_message_that_reaches_the_room_is_the_last_one() -> None:
    routes = routes_of(store_lane(), [1, 2])
    passed, count = read(routes, [(1, b"a"), (2, b"b"), (1, b"c")], room=20)
    assert (count, passed.is_full, passed.lacking, passed.parts[0][1].messages) == (2, True, None, 2)
    assert passed.parts[0][1].held == 2 * 13  # a body of one octet, its length, and two places
    passed, count = read(routes, [(1, b"c")], room=0)
    assert (count, passed.is_full, passed.parts) == (0, True, [])
    assert passed.lacking is not None


@pytest.mark.parametrize(("octets", "messages"), [(19, 100), (1000, 2)])
def test_a_store_takes_one_commit_at_a_time(octets: int, messages: int) -> None:
    lane = store_lane(octets, messages)
    routes = routes_of(lane, [1])
    passed, count = read(routes, [(1, b"a"), (1, b"b"), (1, b"c")])
    assert (count, lane.is_full) == (2, True)
    passed, count = read(routes, [(1, b"c")])
    assert (count, passed.is_full, passed.lacking is lane) == (0, True, True)
    lane.begin()
    assert not lane.is_full
    passed, count = read(routes, [(1, b"c")])
    assert (count, passed.lacking) == (1, None)


def test_a_topic_that_a_pass_takes_may_not_be_given_other_types() -> None:
    routes = routes_of(store_lane(), [1, 2])
    read(routes, [(1, b"a")])
    assert (routes[b"topic-1"].is_used, routes[b"topic-2"].is_used) == (True, False)
    assert routes[b"topic-1"].next_id == 1  # it gets its ids from the commit


def test_large_messages_and_closed_topics_are_left_with_their_followers() -> None:
    routes = routes_of(store_lane(), [1, 2])
    routes[b"topic-2"].close()
    lines = b"".join(
        b"(Publish topic-%d %s)\n" % message
        for message in ((1, b"a"), (1, b"b" * 70_000), (1, b"c"), (2, b"d"))
    )
    passed = codec.native.Pass(codec.native.Routes(routes), None, MOST, MOST)
    dealt, _ = codec.native.deal_lines(lines, 0, MOST, passed)
    assert [(topic, spans.bodies()) for topic, spans in dealt] == [
        (b"topic-1", [b"b" * 70_000, b"c"]),
        (b"topic-2", [b"d"]),
    ]
    assert passed.parts[0][1].bodies(0) == [b"a"]


def test_a_topic_whose_first_message_is_too_large_is_no_part_of_the_commit(tmp_path: Path) -> None:
    environment = open_level(tmp_path / "weak")
    routes = routes_of(store_lane(), [1, 2])
    too_large = codec.native.Pass(codec.native.Routes(routes), None, 4, MOST)
    codec.native.deal_lines(b"(Publish topic-1 large)\n", 0, MOST, too_large)
    assert (too_large.parts, routes[b"topic-1"].is_used) == ([], False)
    beside = codec.native.Pass(codec.native.Routes(routes), None, 4, MOST)
    codec.native.deal_lines(b"(Publish topic-1 large)\n(Publish topic-2 b)\n", 0, MOST, beside)
    ((_, found),) = beside.parts
    assert found.names == [b"topic-2"]
    store(environment, [found, part(routes, [(1, b"a")])])
    assert environment.extents() == {1: environment.extent(1), 2: environment.extent(2)}
    assert [bodies_of(read_all(environment, topic)) for topic in (1, 2)] == [[(1, b"a")], [(1, b"b")]]
    environment.close()


def test_a_part_tells_its_topics_and_bodies() -> None:
    routes = routes_of(store_lane(), [1, 2])
    found = part(routes, [(2, b"a"), (1, b'\n"\\'), (2, b"c")])
    assert found.names == [b"topic-2", b"topic-1"]
    assert found.owners() == [routes[b"topic-2"].owner, routes[b"topic-1"].owner]
    assert [found.bodies(0), found.bodies(1)] == [[b"a", b"c"], [b'\n"\\']]
    with pytest.raises(IndexError):
        found.bodies(2)


def test_topics_whose_ids_are_not_reserved_are_told() -> None:
    lane = store_lane()
    routes = {}
    for topic, reserved in ((1, 3), (2, 2)):
        routes[b"topic-%d" % topic] = route = codec.native.Route(topic, 1, reserved)
        route.owner = Owner()
        route.open_store(lane)
    commit = commit_of(part(routes, [(1, b"a"), (2, b"b"), (1, b"c"), (2, b"d")]))
    assert commit.without_ids(0, 2) == [(routes[b"topic-2"].owner, 2)]
    assert commit.without_ids(0, 1) == []
    routes[b"topic-2"].owner = None
    assert commit.without_ids(0, 2) == []


def test_a_lane_refuses_more_octets_than_a_part_can_have() -> None:
    assert store_lane(1 << 30).octets_left == 1 << 30
    with pytest.raises(ValueError, match=r"^1073741825 octets are more than 1073741824\.$"):
        store_lane((1 << 30) + 1)
