"""One server for the tests of a file, and a broker for each test."""

from collections.abc import Iterator

import pytest

from .broker import Broker
from .serving import serving_guest


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Yield the address of a server with one client, who is called guest."""
    with serving_guest(tmp_path_factory.mktemp("guest")) as server:
        yield "127.0.0.1", server.port


@pytest.fixture
def broker(address: tuple[str, int]) -> Iterator[Broker]:
    """Yield the connections of a test to this server."""
    broker = Broker(address)
    yield broker
    broker.close()
