"""The interface of the server for the operations that watch and control it."""

from collections.abc import Iterator
from typing import Protocol

from omq import watching
from omq.model import Topic


class AdministeredServer(Protocol):
    """A server as a whole. Each step of an iterator takes little time, so the caller can pause between."""

    def totals(self, watchers: int) -> watching.Server:
        """Return the numbers of the server."""

    def warnings(self, after: int) -> tuple[watching.Line, ...]:
        """Return the last warnings and errors of the log with numbers above `after`."""

    def connections(self, first: int) -> Iterator[watching.ConnectionInfo | None]:
        """Yield the connections whose ids are `first` or above, in the order of their ids; None where a step
        gave none.
        """

    def subscribers(self, topic: Topic) -> Iterator[watching.SubscriberInfo | None]:
        """Yield the subscribers of this topic; None where a step gave none."""

    def disconnect(self, connection: int, by: bytes) -> bool:
        """End a connection, on behalf of a client with this name; return False if there is none."""
