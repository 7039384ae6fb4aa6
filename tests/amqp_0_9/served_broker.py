"""A server in the process of the test, as the broker of clients whose calls block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from server.conversation import InProcess, serving

from .broker import Broker


@asynccontextmanager
async def brokered(store: Path) -> AsyncIterator[tuple[InProcess, Broker]]:
    """Yield a server in this process. Calls of clients must run in threads."""
    async with serving(store) as host:
        broker = Broker(("127.0.0.1", host.port))
        try:
            yield host, broker
        finally:
            broker.close()
