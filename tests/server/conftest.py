"""The fixtures of the tests of the server."""

from pathlib import Path

import pytest
from quietness import follow
from trio.testing import MockClock

from omq.terminals.connection import forwarding, transport


@pytest.fixture
def clock() -> MockClock:
    """Return the server's and the test's clock: it runs as usual, and jumps when it is told to.

    Like Trio's own clock it does not begin near 0, so that a test sees errors by the time that has passed.
    """
    clock = MockClock(rate=1.0)
    clock.jump(1_000_000)
    return clock


@pytest.fixture
def slow_clock(clock: MockClock) -> MockClock:
    """Return this clock with a tenth of its speed, for what must happen within a second: a machine with much
    other work may take longer.
    """
    clock.rate = 0.1
    return clock


@pytest.fixture
def system_time(clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of the system follow the clock."""
    follow(clock, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the folder of the server's store."""
    return tmp_path / "store"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no client count as stalled while it does not read."""
    monkeypatch.setattr(forwarding, "SLOW_SECONDS", 60.0)
    monkeypatch.setattr(transport, "SLOW_SECONDS", 60.0)
