"""Accept connections, also after the process ran out of file descriptors."""

import errno
import logging
from collections.abc import Awaitable, Callable

import trio

from omq.logs import LogThrottle

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors that mean that the operating system has no resources left for another connection."""

PAUSE_SECONDS = 0.2
"""The number of seconds until the next try. Meanwhile clients wait in the queue of the listening socket."""

TASK_NAME = "connection"
"""The name of the tasks of connections: one string for all, otherwise Trio makes one for each."""

log = logging.getLogger("omq.server")

Handler = Callable[[trio.SocketStream], Awaitable[object]]


async def accept_all(
    listeners: list[trio.SocketListener], handler: Handler, connections: trio.Nursery
) -> None:
    """Run the handler for every connection, in its own task, until cancelled; then close the listeners."""
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
                # The open connections continue, and when one of them ends, its descriptor is free again.
                problems.add(problem.strerror)
                await trio.sleep(PAUSE_SECONDS)
            else:
                connections.start_soon(handler, stream, name=TASK_NAME)
