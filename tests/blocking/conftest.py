"""One server, as a process of its own, for all tests of the synchronous client; each uses its own topics."""

from collections.abc import Iterator

import pytest
from server_command import RunningServer, configured_server

from omq.blocking import Client, connect


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    with configured_server(folder, "allow_undeclared = false\n") as running:
        yield running


@pytest.fixture(scope="session")
def url(server: RunningServer) -> str:
    return f"omq://{server.address}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with connect(url) as connected:
        yield connected


@pytest.fixture
def topic(request: pytest.FixtureRequest, client: Client) -> str:
    """Return a persistent broadcast topic of the test's own."""
    name: str = request.node.name
    client.declare(name)
    return name
