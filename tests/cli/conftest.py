from collections.abc import Iterator

import pytest
from cli_helpers import Shell, running_server


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Yield one server for a file of tests, each of which uses a topic of its own."""
    with running_server(tmp_path_factory.mktemp("omq")) as running:
        yield running
