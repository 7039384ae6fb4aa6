"""Rounds of a server's statistics, one after another."""

from omq.blocking.entered import EnteredContext
from omq.client import ConnectionLost, Round
from omq.client import Rounds as AsyncRounds


class Rounds(EnteredContext[AsyncRounds]):
    """An iterator over the rounds of a Watch. `Client.watch` creates it; one thread at a time may use it.

    Iterating raises ServerError, ConnectionLost and ProtocolError. A caller that takes rounds slowly gets
    fewer: the server begins the next one when this one is read.
    """

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        try:
            self._leave()
        except ConnectionLost:
            pass  # the client was closed before

    def __iter__(self) -> "Rounds":
        return self

    def __next__(self) -> Round:
        return self._portal.call(self._opened.__anext__)
