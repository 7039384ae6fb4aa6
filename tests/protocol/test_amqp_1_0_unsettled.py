"""The deliveries that a session has sent, against a plain dictionary."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp_1_0 import serials
from omq.protocol.amqp_1_0.unsettled import RUNS_A_STEP, UnsettledDeliveries

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("settle"), st.integers(-12, 3), st.integers(-2, 8)),
        st.tuples(st.just("settle in parts"), st.integers(-12, 3), st.integers(-2, 8)),
        st.tuples(st.just("take back"), st.integers(0, 4), st.just(False)),
        st.tuples(st.just("drop"), st.integers(0, 1), st.just(False)),
    ),
    max_size=40,
)


@given(ACTIONS, st.sampled_from([0, 7, serials.MODULUS - 6, serials.MODULUS // 2 - 3]), st.integers(1, 4))
def test_runs_are_settled_as_single_deliveries_would_be(
    actions: list[tuple[str, int, int]], first: int, runs_a_look: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omq.protocol.amqp_1_0.unsettled.RUNS_A_LOOK", runs_a_look)
        patch.setattr("omq.protocol.amqp_1_0.unsettled.RUNS_A_STEP", runs_a_look)
        compare(actions, UnsettledDeliveries(first))


def compare(actions: list[tuple[str, int, int]], unsettled: UnsettledDeliveries[str]) -> None:
    links = ["a", "b"]
    expected: dict[int, tuple[str, int]] = {}
    message = 100
    sent = 0  # since the last one that cannot be taken back: its peer may have settled it
    for step, (what, one, two) in enumerate(actions):
        match what:
            case "send":
                link, ids = links[step % 2], range(message, message + one * 2, 2)
                message += one * 2
                sent += one
                at = unsettled.add(link, ids, settled=bool(two))
                for index, number in enumerate(ids):
                    if not two:
                        expected[serials.add(at, index)] = (link, number)
            case "settle" | "settle in parts":
                sent = 0
                begin, count = serials.add(unsettled.next_id, one), two
                end = serials.add(begin, count - 1)
                if what == "settle":
                    found = unsettled.settle(begin, end)
                else:
                    parts = list(unsettled.settle_in_parts(begin, end))
                    assert all(0 < len(part) <= 4 for part in parts)
                    found = [run for part in parts for run in part]
                told = [(run.link, number) for run in found for number in run.ids]
                ids_told = [serials.add(begin, index) for index in range(max(count, 0))]
                assert told == [expected.pop(each) for each in ids_told if each in expected]
            case "take back":
                count = min(one, sent)
                unsettled.take_back(count)
                for index in range(count):
                    expected.pop(serials.add(unsettled.next_id, index), None)
                sent -= count
            case _:
                unsettled.drop(links[one])
                expected = {key: value for key, value in expected.items() if value[0] != links[one]}
                links[one] += "'"  # another link
        assert len(unsettled) == len(expected)


def test_links_that_are_over_take_no_look_at_all_deliveries_each() -> None:
    links = [f"link {number}" for number in range(300)]
    unsettled: UnsettledDeliveries[str] = UnsettledDeliveries(0)
    for number in range(20 * len(links)):
        unsettled.add(links[number % len(links)], range(number, number + 1), settled=False)
    with counted_lines() as lines:
        for link in links[:-1]:
            unsettled.drop(link)
    assert lines.total < 1000 * len(links)  # a look at all deliveries for each would be 20 millions
    assert len(unsettled) == 20
    assert [len(run.ids) for run in unsettled.settle(0, 20 * len(links))] == [1] * 20
    assert len(unsettled) == 0


def test_deliveries_of_a_session_that_is_over_are_freed_in_steps() -> None:
    unsettled: UnsettledDeliveries[str] = UnsettledDeliveries(0)
    for number in range(10 * RUNS_A_STEP):
        unsettled.add("link", range(number, number + 1), settled=False)
    left = [len(unsettled) for _ in unsettled.clear()]
    assert left == [count * RUNS_A_STEP for count in range(9, 0, -1)]
    assert len(unsettled) == 0


@dataclass
class Lines:
    """A number of executed lines."""

    total: int = 0

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        self.total += event == "line"
        return self.trace


@contextmanager
def counted_lines() -> Iterator[Lines]:
    """Count the lines that are executed within the block, of comprehensions once for each element."""
    before, lines = sys.gettrace(), Lines()
    sys.settrace(lines.trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def test_differences_of_serial_numbers() -> None:
    assert serials.difference(2, serials.MODULUS - 1) == 3
    assert serials.difference(serials.MODULUS - 1, 2) == -3
    assert serials.add(serials.MODULUS - 1, 1) == 0
    assert serials.add(0, -1) == serials.MODULUS - 1
