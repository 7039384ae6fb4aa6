"""Log lines that clients or failures cause: the first in each period are written, the others counted."""

import logging

import pytest
from trio.testing import MockClock

from omq.logs import PROBLEM_SECONDS, LogThrottle, quoted, report_suppressed

LINES, SECONDS = 5, 10.0  # as docs/SECURITY.md says

log = logging.getLogger("tests.throttle")


class Flood:
    """Lines that are added, and what of them the log has got."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, log.name)
        self._caplog = caplog
        self._added = 0
        self.throttle = LogThrottle(log, logging.INFO, "lines that were added")

    def add(self, count: int) -> list[str]:
        """Return the log when N (`count`) lines come at once: their numbers, and the lines of the
        throttle.
        """
        for _ in range(count):
            self._added += 1
            self.throttle.add(str(self._added))
        return self.said()

    def report(self, *, early: bool = False) -> list[str]:
        report_suppressed(early=early)
        return self.said()

    def said(self) -> list[str]:
        messages = [record.getMessage() for record in self._caplog.records if record.name == log.name]
        self._caplog.clear()
        return messages


@pytest.fixture
def flood(caplog: pytest.LogCaptureFixture) -> Flood:
    return Flood(caplog)


async def test_the_first_lines_are_written_and_others_counted(flood: Flood, mock_clock: MockClock) -> None:
    assert flood.add(LINES + 3) == ["1", "2", "3", "4", "5"]
    mock_clock.jump(SECONDS - 0.1)
    assert flood.add(1) == []
    assert flood.report() == []
    mock_clock.jump(0.1)
    assert flood.report() == ["lines that were added: 4 more"]
    assert flood.report() == []


async def test_a_lasting_flood_is_logged_in_one_line(flood: Flood, mock_clock: MockClock) -> None:
    flood.add(LINES + 1)
    for time in range(3):
        mock_clock.jump(SECONDS)
        assert flood.add(4) == [f"lines that were added: {1 if time == 0 else 3} more", str(7 + 4 * time)]


async def test_after_a_while_without_a_flood_several_are_written_again(
    flood: Flood, mock_clock: MockClock
) -> None:
    flood.add(LINES + 1)
    mock_clock.jump(2 * SECONDS)
    assert flood.report() == ["lines that were added: 1 more"]
    assert flood.add(LINES + 1) == ["7", "8", "9", "10", "11"]


async def test_a_flood_that_has_just_ended_goes_on_with_the_next_line(
    flood: Flood, mock_clock: MockClock
) -> None:
    flood.add(LINES + 1)
    mock_clock.jump(2 * SECONDS - 0.1)
    assert flood.add(2) == ["lines that were added: 1 more", "7"]


async def test_as_many_as_may_be_written_are_no_flood(flood: Flood, mock_clock: MockClock) -> None:
    for first in range(1, 4 * LINES, LINES):
        assert flood.add(LINES) == [str(number) for number in range(first, first + LINES)]
        mock_clock.jump(SECONDS)
        assert flood.report() == []


async def test_lines_that_come_seldom_are_all_written(flood: Flood, mock_clock: MockClock) -> None:
    for number in range(1, 4 * LINES):
        assert flood.add(1) == [str(number)]
        mock_clock.jump(SECONDS / 4)


async def test_the_last_count_is_reported_early_and_once(flood: Flood, mock_clock: MockClock) -> None:
    flood.add(LINES + 2)
    assert flood.report(early=True) == ["lines that were added: 2 more"]
    mock_clock.jump(SECONDS)
    assert flood.report() == []


async def test_a_problem_is_written_once_in_its_period_and_counted(
    caplog: pytest.LogCaptureFixture, mock_clock: MockClock
) -> None:
    problem = LogThrottle.of_problem(log, "100% of it fails", topic="Füße".encode())
    for _ in range(1000):
        problem.add("no room")
    mock_clock.jump(PROBLEM_SECONDS)
    problem.add("no room")
    assert caplog.messages == [
        "100% of it fails: no room",
        "100% of it fails: 999 more",
        "100% of it fails: no room",
    ]
    assert [vars(record)["topic"] for record in caplog.records] == ["Füße"] * 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"prices", "'prices'"),
        ("Füße".encode(), "'Füße'"),
        (b"two words", "'two words'"),
        (b"\xff", "'\\xff'"),
        (b"\x1b[31m\n", "'\\x1b[31m\\n'"),
        (b"it's", "'it\\'s'"),
    ],
)
def test_names_are_quoted_as_text_without_control_characters(name: bytes, text: str) -> None:
    assert quoted(name) == text
