"""The fixtures of the tests of the store."""

from pathlib import Path

import pytest
from storage_helpers import open_level

from omq_storage.environment import Environment


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Return an empty environment of the level Weak."""
    return open_level(tmp_path / "weak")
