"""Sends messages and answers at once, in the task from whose work they follow.

A message to a node without a queue goes to another connection, and its outcome comes back. A message to a
queue of AMQP 0-9-1 goes to a consumer that has room for it, and its publisher gets a confirm. A commit
confirms the messages that it has stored. If nothing else waits on these connections, the task that reads the
input, or that of the commit, sends all of this, because waking the sending task of a connection takes another
round of the scheduler. During that work the connections that have something to send are collected, so that
each of them sends once.
"""

import logging
import time
import traceback
from types import TracebackType
from typing import Protocol

from omq.drivers.slices import SLICE_SECONDS
from omq.logs import LogThrottle

log = logging.getLogger("omq.server")

MOST_CONNECTIONS = 16
"""The greatest number of connections to which a task sends at once: the first one, and others within a slice.
The rest use their sending tasks.
"""

AT_ONCE_OCTETS = 16 << 10
"""The approximate octets of messages that a connection sends at once, in the task that reads them."""


class ImmediateSender(Protocol):
    """A connection that can send in any task."""

    def send_at_once(self) -> None:
        """Send the ready octets, without waiting; leave the rest to the sending task."""

    def send_soon(self) -> None:
        """Let the sending task send the ready octets."""


class ImmediateSends:
    """The connections that have something to send. Within `with` they are collected; `send` lets them send.

    Call `send` before the task that collected them waits for anything.
    """

    def __init__(self) -> None:
        self._collects = False
        self._ready: dict[ImmediateSender, None] = {}
        self._defects = LogThrottle.of_problem(log, "sending at once failed by a defect of the server")

    def __enter__(self) -> None:
        self._collects = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._collects = False
        if error is not None:
            ready, self._ready = self._ready, {}
            for connection in ready:
                connection.send_soon()

    def add(self, connection: ImmediateSender) -> None:
        """Add a connection that has something to send."""
        if self._collects:
            self._ready[connection] = None
        else:
            connection.send_soon()

    def send(self) -> None:
        """Let the connections send."""
        if not self._ready:
            return
        left = MOST_CONNECTIONS
        until = time.perf_counter() + SLICE_SECONDS
        with self:  # a send may give other connections something to send
            while self._ready:
                connection = next(iter(self._ready))
                del self._ready[connection]
                if left == MOST_CONNECTIONS or (left and time.perf_counter() < until):
                    left -= 1
                    self._send_to(connection)
                else:
                    connection.send_soon()

    def _send_to(self, connection: ImmediateSender) -> None:
        """Let a connection send. If that fails by a defect, its own task finds out, and not the task of the
        work, which serves others.
        """
        try:
            connection.send_at_once()
        except Exception:  # noqa: BLE001 - a defect, which the log shows
            self._defects.add(traceback.format_exc(chain=False))
            connection.send_soon()
