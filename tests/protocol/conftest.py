"""The fixtures of the tests of protocols."""

from collections.abc import Iterator

import pytest
from amqp_1_0_helpers import Peer
from twins import using

from omq_storage import codec


@pytest.fixture
def peer() -> Peer:
    """Return a connection of AMQP 1.0 with one session."""
    made = Peer()
    made.open()
    return made


@pytest.fixture(params=[True, False], ids=["compiled", "plain"])
def each_codec(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test with the compiled codec, and then with the plain one."""
    if request.param and not codec.COMPILED:
        pytest.skip("no compiled codec here")
    with using(compiled=request.param):
        yield
