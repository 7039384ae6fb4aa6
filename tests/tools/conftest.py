"""The fixtures of the tests of tools."""

from collections.abc import Iterator

import pytest
from measuring import unmeasured


@pytest.fixture(scope="module", autouse=True)
def _unmeasured_processes() -> Iterator[None]:
    """Measure no coverage of processes: benches and long runs measure time, and other tests measure that
    code.
    """
    with unmeasured():
        yield
