"""What the tests of the server share."""

from pathlib import Path

import pytest
from trio.testing import MockClock


@pytest.fixture
def clock() -> MockClock:
    """The server's and the test's clock: it runs as usual, and jumps when it is told to."""
    return MockClock(rate=1.0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the server keeps its store."""
    return tmp_path / "store"
