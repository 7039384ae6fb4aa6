"""Taking connections in, also when there are no descriptors left for them."""

import errno
import logging
from collections.abc import Awaitable, Callable

import trio

from omq.logs import LogThrottle

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What the operating system answers when it has nothing left for another connection."""

PAUSE_SECONDS = 0.2
"""How long clients wait in the listener's queue before the next try."""

log = logging.getLogger("omq.server")

Handler = Callable[[trio.SocketStream], Awaitable[object]]


async def accept_all(
    listeners: list[trio.SocketListener], handler: Handler, connections: trio.Nursery
) -> None:
    """Run the handler for every connection, in a task of its own, until cancelled; closes the listeners."""
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept, listener, handler, connections)


async def _accept(listener: trio.SocketListener, handler: Handler, connections: trio.Nursery) -> None:
    problems = LogThrottle.of_problem(log, "a connection cannot be accepted")
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as problem:
                if problem.errno not in EXHAUSTED:
                    raise
                # Those that are connected go on, and when one of them ends there is room again.
                problems.add(problem.strerror)
                await trio.sleep(PAUSE_SECONDS)
            else:
                connections.start_soon(handler, stream)
