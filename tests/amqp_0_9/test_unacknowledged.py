"""The unacknowledged messages of a channel, beside a plain dict of tags."""

from collections.abc import Iterable, Sequence
from typing import cast

import pytest
from counted_steps import counted_calls
from hypothesis import given
from hypothesis import strategies as st

from omq.drivers.seam import Channel
from omq.terminals.amqp_0_9.unacknowledged import PORTION, Settled, Unacknowledged, UnknownTag

CHANNEL = cast(Channel, object())
"""It is only passed on."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.sampled_from([1, 3]), st.integers(0, 2)),
        st.tuples(st.just("ack"), st.integers(0, 60), st.integers(0, 3)),
        st.tuples(st.just("multiple"), st.integers(0, 60)),
    ),
    max_size=60,
)


def ids(portions: Iterable[Sequence[Settled]]) -> list[int]:
    return [message for taken in portions for each in taken for message in each.ids]


@given(STEPS)
def test_unacknowledged_behaves_as_a_dict_of_tags(steps: list[tuple[str, int, int, int]]) -> None:
    unacknowledged = Unacknowledged()
    model: dict[int, int] = {}
    tag = message = 1
    for what, number, *more in steps:
        if what == "add":
            step, unused = more
            run = range(message, message + number * step, step)
            message = run.stop
            unacknowledged.add(tag, run, CHANNEL)
            model.update(zip(range(tag, tag + number), run, strict=True))
            tag += number + unused
        elif what == "ack":
            wanted = range(number, number + more[0] + 1)
            if all(each in model for each in wanted):
                assert ids(unacknowledged.take(wanted[0], wanted[-1])) == [model.pop(each) for each in wanted]
            else:
                with pytest.raises(UnknownTag):
                    ids(unacknowledged.take(wanted[0], wanted[-1]))
                for each in wanted:
                    model.pop(each, None)
        elif number == 0 or number in model:
            taken = [each for each in sorted(model) if not number or each <= number]
            assert ids(unacknowledged.take_until(number)) == [model.pop(each) for each in taken]
        else:
            with pytest.raises(UnknownTag):
                ids(unacknowledged.take_until(number))
        assert len(unacknowledged) == len(model)


def acknowledged(ranges: Iterable[tuple[int, int]], unacknowledged: Unacknowledged) -> tuple[list[int], str]:
    """Return the ids that these ranges take, and the error at which they end."""
    taken: list[int] = []
    try:
        for first, last in ranges:
            taken += ids(unacknowledged.take(first, last) if first else unacknowledged.take_until(last))
    except UnknownTag as unknown:
        return taken + ids([unknown.taken]), str(unknown)
    return taken, ""


multiple = st.tuples(st.just(0), st.integers(0, 30))
single = st.integers(1, 30).map(lambda tag: (tag, tag))


@given(st.lists(multiple | multiple | single, max_size=8), st.sets(st.integers(1, 30)))
def test_ranges_that_the_next_one_includes_change_nothing(
    ranges: list[tuple[int, int]], tags: set[int]
) -> None:
    one, other = Unacknowledged(), Unacknowledged()
    for tag in sorted(tags):
        one.add(tag, range(tag, tag + 1), CHANNEL)
        other.add(tag, range(tag, tag + 1), CHANNEL)
    assert acknowledged(one.without_included(ranges), one) == acknowledged(ranges, other)
    assert ids(one.take_until(0)) == ids(other.take_until(0))


def test_restored_messages_return_to_their_place() -> None:
    unacknowledged = Unacknowledged()
    unacknowledged.add(1, range(10, 16), CHANNEL)
    (taken,) = unacknowledged.take(2, 3)
    assert ids([taken]) == [11, 12]
    for each in taken:
        unacknowledged.restore(each)
    assert ids(unacknowledged.take_until(4)) == [10, 11, 12, 13]
    assert ids(unacknowledged.take_until(0)) == [14, 15]


def test_many_acknowledgements_of_single_messages() -> None:
    unacknowledged = Unacknowledged()
    count = 5000
    for tag in range(1, count + 1):
        unacknowledged.add(tag, range(tag, tag + 1), CHANNEL)
    for tag in range(1, count + 1):
        assert ids(unacknowledged.take(tag, tag)) == [tag]
    assert len(unacknowledged) == 0


@pytest.mark.parametrize("begin", [0, 3])
def test_many_messages_are_taken_in_portions(begin: int) -> None:
    unacknowledged = Unacknowledged()
    count = 3 * PORTION + 7
    for tag in range(1, count + 1):
        unacknowledged.add(tag, range(tag, tag + 1), CHANNEL)
    portions = list(unacknowledged.take(begin, count) if begin else unacknowledged.take_until(0))
    assert max(map(len, portions)) == PORTION
    assert ids(portions) == list(range(max(1, begin), count + 1))


def test_messages_before_an_unknown_tag_are_told() -> None:
    unacknowledged = Unacknowledged()
    unacknowledged.add(1, range(11, 14), CHANNEL)
    with pytest.raises(UnknownTag, match="unknown delivery tag 4") as caught:
        ids(unacknowledged.take(2, 5))
    assert ids([caught.value.taken]) == [12, 13]


async def test_whether_there_are_any_needs_no_look_at_all_of_them() -> None:
    """A channel is asked for each long message that its connection publishes."""
    unacknowledged = Unacknowledged()
    assert not unacknowledged
    runs = 2000
    for number in range(1, runs + 1):
        unacknowledged.add(number, range(2 * number, 2 * number + 1), CHANNEL)
    with counted_calls() as calls:
        assert unacknowledged
    assert calls.total < 10
    assert len(unacknowledged) == runs
    assert len(ids(unacknowledged.take_until(0))) == runs
    assert not unacknowledged
