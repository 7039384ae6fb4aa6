"""Limit the time in which a connection that the server ends may send its last octets."""

import trio

GOODBYE_SECONDS = 2.0
"""The greatest number of seconds in which such a connection sends its last answers and reads the client's."""


def set_closing_deadline(scope: trio.CancelScope) -> None:
    """Limit the scope of a connection to GOODBYE_SECONDS from now, or to its earlier deadline."""
    scope.deadline = min(scope.deadline, trio.current_time() + GOODBYE_SECONDS)
