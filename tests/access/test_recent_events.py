"""Recent events: the latest of them, for a while."""

import math

from trio.testing import MockClock

from omq.access.recent_events import MOST, SECONDS, RecentEvents


async def test_the_time_of_the_last_event(mock_clock: MockClock) -> None:
    events = RecentEvents()
    mock_clock.jump(5)
    events.record(b"a")
    assert events.time(b"a") == 5
    assert b"a" in events
    assert events.time(b"b") == -math.inf
    assert b"b" not in events
    mock_clock.jump(2)
    events.record(b"a")
    assert events.time(b"a") == 7


async def test_old_events_are_forgotten(mock_clock: MockClock) -> None:
    events = RecentEvents()
    for key in (b"a", b"b", b"c"):
        events.record(key)
        mock_clock.jump(1)
    events.record(b"a")
    mock_clock.jump(SECONDS - 2)
    events.forget()
    assert [key for key in (b"a", b"b", b"c") if key in events] == [b"a", b"c"]
    mock_clock.jump(2)
    events.forget()
    assert not any(key in events for key in (b"a", b"b", b"c"))


async def test_the_oldest_key_is_dropped_above_the_limit() -> None:
    events = RecentEvents()
    keys = [b"%d" % number for number in range(MOST + 2)]
    for key in keys[:-1]:
        events.record(key)
    events.record(keys[1])  # it is the latest now, and the next one the oldest
    events.record(keys[-1])
    assert [key for key in keys if key not in events] == [keys[0], keys[2]]
