"""One server, as a process of its own, for all tests of the synchronous client; each uses its own topics."""

from collections.abc import Iterator

import pytest
from server_command import RunningServer, running_server

from omq.blocking import Client, connect


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    config = tmp_path_factory.mktemp("server") / "omq.toml"
    config.write_text("allow_undeclared = false\n")
    store = config.with_name("store")
    with running_server("--listen", "127.0.0.1:0", "--store", store, "--config", config) as running:
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
