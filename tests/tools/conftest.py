"""What the tests of tools share."""

from collections.abc import Iterator

import pytest
from measuring import unmeasured


@pytest.fixture(scope="module", autouse=True)
def _unmeasured_processes() -> Iterator[None]:
    """Benches and long runs measure time, and other tests measure the coverage of what they run."""
    with unmeasured():
        yield
