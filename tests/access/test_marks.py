"""Marks: the latest of them, for a while."""

import math

from trio.testing import MockClock

from omq.access.marks import MOST, SECONDS, Marks


async def test_the_time_of_the_last_mark(mock_clock: MockClock) -> None:
    marks = Marks()
    mock_clock.jump(5)
    marks.mark(b"a")
    assert marks.time(b"a") == 5
    assert b"a" in marks
    assert marks.time(b"b") == -math.inf
    assert b"b" not in marks
    mock_clock.jump(2)
    marks.mark(b"a")
    assert marks.time(b"a") == 7


async def test_old_marks_are_forgotten(mock_clock: MockClock) -> None:
    marks = Marks()
    for thing in (b"a", b"b", b"c"):
        marks.mark(thing)
        mock_clock.jump(1)
    marks.mark(b"a")
    mock_clock.jump(SECONDS - 2)
    marks.forget()
    assert [thing for thing in (b"a", b"b", b"c") if thing in marks] == [b"a", b"c"]
    mock_clock.jump(2)
    marks.forget()
    assert not any(thing in marks for thing in (b"a", b"b", b"c"))


async def test_the_oldest_mark_is_dropped_above_the_limit() -> None:
    marks = Marks()
    things = [b"%d" % number for number in range(MOST + 2)]
    for thing in things[:-1]:
        marks.mark(thing)
    marks.mark(things[1])  # it is the latest now, and the next one the oldest
    marks.mark(things[-1])
    assert [thing for thing in things if thing not in marks] == [things[0], things[2]]
