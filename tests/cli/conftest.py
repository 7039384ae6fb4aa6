from collections.abc import Iterator

import pytest
from cli_helpers import Shell, running_server
from forked_omq import forked_omq


@pytest.fixture(scope="session", autouse=True)
def _forked() -> Iterator[None]:
    """Import the command once for all tests that run it."""
    with forked_omq() as forked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shell, "forked", forked)
        yield


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Yield one server for a file of tests, each of which uses a topic of its own."""
    with running_server(tmp_path_factory.mktemp("omq")) as running:
        yield running
