"""The times at which messages were assigned: exact to a second, and limited in number."""

from hypothesis import given
from hypothesis import strategies as st

from omq.drivers.dealt_times import MOST_MARKS, SECONDS, DealtTimes


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1, max_size=50),
    st.sampled_from((1, 1_000_000)),
)
def test_a_time_is_at_most_a_second_too_early(steps: list[tuple[float, int]], cursor: int) -> None:
    times = DealtTimes()
    now = 100.0
    assigned: dict[int, float] = {}
    for seconds, count in steps:
        now += seconds
        assigned.update(dict.fromkeys(range(cursor, cursor + count), now))
        cursor += count
        times.note(cursor, now)
    for message, moment in assigned.items():
        since = times.since(message)
        assert since is not None
        assert moment - SECONDS <= since <= moment
    assert times.since(cursor) is None
    times.forget_below(cursor - 1)
    assert times.since(cursor - 1) is not None


def test_many_times_are_thinned_and_never_too_late() -> None:
    times = DealtTimes()
    count = 10 * MOST_MARKS
    for number in range(count):
        times.note(number + 1, 2.0 * number)
    for message in range(count):
        since = times.since(message)
        assert since is not None
        assert since <= 2.0 * message
    last = times.since(count - 1)
    assert last == 2.0 * (count - 1)


def test_of_two_times_that_become_one_the_earlier_is_kept() -> None:
    times = DealtTimes()
    for number in range(MOST_MARKS + 1):
        times.note(number + 1, 2.0 * number)
    for message in range(MOST_MARKS):
        assert times.since(message) == 2.0 * (message - message % 2)
    assert times.since(MOST_MARKS) == 2.0 * MOST_MARKS
