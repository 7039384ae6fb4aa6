"""A port at which servers start again, or at which nobody listens."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that no other program gets within the block, also while no server listens to it."""
    with socket.socket() as holder:
        # A server, which sets this option, too, may listen to a port that is bound and not listened to.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture
def kept_address() -> Iterator[str]:
    """Yield the address of such a port, for the servers that a test starts one after the other."""
    with reserved_port() as port:
        yield f"127.0.0.1:{port}"
