"""The last sequences of producers in memory: which messages are new, and whose are forgotten first."""

from hypothesis import given
from hypothesis import strategies as st

from omq.drivers.memory import Memory
from omq.drivers.sequences import Origin, RecentSequences, producers_of, without_repeated
from omq_storage.batches import Bodies

origins = st.lists(st.none() | st.tuples(st.sampled_from([b"", b"a", b"b"]), st.integers(0, 4)), max_size=12)


def test_the_producers_that_were_used_last_are_kept() -> None:
    recent = RecentSequences(3)
    for number, name in enumerate([b"a", b"b", b"c"]):
        recent.keep(7, {name: number})
    assert recent.last(7, [b"a", b"b", b"c", b"d"]) == {b"a": 0, b"b": 1, b"c": 2}
    recent.keep(7, {b"a": 10})  # used again, so b is the one that was not used for the longest time
    recent.keep(7, {b"d": 3})
    assert recent.last(7, [b"a", b"b", b"c", b"d"]) == {b"a": 10, b"c": 2, b"d": 3}
    assert len(recent) == 3
    recent.keep(7, {b"%d" % number: number for number in range(5)})
    assert recent.last(7, [b"a", *(b"%d" % number for number in range(5))]) == {b"2": 2, b"3": 3, b"4": 4}


def test_producers_of_one_name_in_several_topics_are_several() -> None:
    recent = RecentSequences(3)
    recent.keep(1, {b"a": 1})
    recent.keep(2, {b"a": 2})
    assert (recent.last(1, [b"a"]), recent.last(2, [b"a"]), recent.last(3, [b"a"])) == (
        {b"a": 1},
        {b"a": 2},
        {},
    )


@given(origins, st.dictionaries(st.sampled_from([b"", b"a"]), st.integers(0, 4)))
def test_a_message_is_new_above_the_last_of_its_producer(
    origins: list[Origin | None], last: dict[bytes, int]
) -> None:
    bodies = [b"%d" % number for number in range(len(origins))]
    heads = [b"head of %d" % number for number in range(len(origins))]
    moved, expected = dict(last), []
    for number, origin in enumerate(origins):
        if origin is None or origin[1] > moved.get(origin[0], -1):
            expected.append(number)
            if origin is not None:
                moved[origin[0]] = origin[1]
    if not bodies:
        return
    batch, left = without_repeated(Bodies(bodies), heads, origins, last)
    assert batch.bodies() == [bodies[number] for number in expected]
    assert list(left) == [heads[number] for number in expected]
    assert last == moved
    assert producers_of(origins) == {origin[0] for origin in origins if origin is not None}


def test_messages_without_origins_are_all_new() -> None:
    batch = Bodies([b"x", b"y"])
    last = {b"a": 1}
    assert without_repeated(batch, [], [], last) == (batch, [])
    assert last == {b"a": 1}


def test_a_server_remembers_tens_of_thousands_of_producers_of_transient_topics() -> None:
    recent = Memory(1 << 20).sequences
    producers = [b"%d" % number for number in range(30_000)]
    recent.keep(1, dict.fromkeys(producers, 7))
    assert recent.last(1, producers) == dict.fromkeys(producers, 7)
    recent.keep(2, dict.fromkeys(producers, 7))
    assert len(recent) <= 1 << 15
