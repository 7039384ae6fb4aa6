"""The fixtures of the tests of protocols."""

import pytest
from amqp_1_0_helpers import Peer


@pytest.fixture
def peer() -> Peer:
    """Return a connection of AMQP 1.0 with one session."""
    made = Peer()
    made.open()
    return made
