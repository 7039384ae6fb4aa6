"""The fixtures of the tests of drivers."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from quietness import follow
from served_drivers import Drivers
from shared_store import shared_drivers, shared_store

__all__ = ["clock", "drivers", "shared_drivers", "shared_store"]


@pytest.fixture
async def drivers(shared_drivers: Drivers) -> AsyncIterator[Drivers]:
    """Yield drivers whose topics are deleted at the end, so that they must hold nothing: unsettled messages
    are theirs until then.
    """
    yield shared_drivers
    for topic in list(shared_drivers.catalogue):
        await shared_drivers.catalogue.delete(topic.topic.topic)


@pytest.fixture
def clock(mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> trio.testing.MockClock:
    """Return Trio's clock, which the system's clock follows."""
    follow(mock_clock, monkeypatch)
    return mock_clock
