"""One store for the tests of a file: to open one takes several commits, each with an fsync."""

from collections.abc import AsyncIterator, Iterator

import pytest
from served_drivers import Drivers, emptied

from omq_storage.store import Store


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield a store; each test begins with `emptied`."""
    with Store.open(tmp_path_factory.mktemp("shared") / "store", map_size=1 << 28, boot_id="first") as store:
        yield store


@pytest.fixture
async def shared_drivers(shared_store: Store) -> AsyncIterator[Drivers]:
    """Yield drivers that must hold nothing at the end of the test."""
    async with emptied(shared_store) as drivers:
        yield drivers
