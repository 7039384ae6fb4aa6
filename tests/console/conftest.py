"""A server for the tests of one module."""

from collections.abc import Iterator

import pytest
from server_command import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path_factory.mktemp("store")) as running:
        yield running
