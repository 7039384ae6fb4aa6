"""One server for the tests of a file, and a broker for each test."""

from collections.abc import Iterator

import pytest
from server_command import RunningServer

from .broker import Broker
from .serving import serving_guest


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server with one client, who is called guest."""
    with serving_guest(tmp_path_factory.mktemp("guest")) as server:
        yield server


@pytest.fixture
def broker(server: RunningServer) -> Iterator[Broker]:
    """Yield the connections of a test to this server."""
    broker = Broker(("127.0.0.1", server.port))
    yield broker
    broker.close()
