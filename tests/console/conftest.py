"""A server, a client and a browser for the tests of one module."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from server_command import RunningServer, running_server

from omq import blocking

if TYPE_CHECKING:
    from pages import Page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[blocking.Client]:
    with blocking.connect(f"omq://{server.address}", id="tester") as connected:
        yield connected


@pytest.fixture(scope="module")
def browser() -> Iterator["Page"]:
    from pages import opened  # selenium may not be installed

    with opened() as page:
        yield page


@pytest.fixture
def page(browser: "Page") -> Iterator["Page"]:
    """Yield the browser; after the test, its console must be empty."""
    browser.errors()
    yield browser
    assert browser.errors() == []
