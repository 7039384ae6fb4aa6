"""The fixtures of the tests of exchanges."""

from collections.abc import AsyncIterator

import pytest
from served_drivers import Drivers
from shared_store import shared_drivers, shared_store

from omq.exchanges.exchanges import ExchangeRegistry

__all__ = ["drivers", "shared_drivers", "shared_store"]


@pytest.fixture
async def drivers(shared_drivers: Drivers) -> AsyncIterator[Drivers]:
    """Yield drivers with exchanges, whose topics are deleted at the end, so that they must hold nothing."""
    ExchangeRegistry(shared_drivers.catalogue)
    yield shared_drivers
    for topic in list(shared_drivers.catalogue):
        await shared_drivers.catalogue.delete(topic.topic.topic)
