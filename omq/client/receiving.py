"""The interfaces between a connection and its subscriptions, so that neither imports the other."""

from collections.abc import Callable
from typing import Protocol

from omq.client.errors import Gap, OmqError
from omq.model import Topic
from omq.protocol.omq.frames import DroppedMessage, MessageRun


class SubscribedConnection(Protocol):
    """A connection, as its subscriptions see it."""

    def taken(self) -> None:
        """Wake the reader: a subscription has room again."""

    async def send_made(self, make: Callable[[], bytes]) -> None:
        """Wait for room, then send the result of `make`. Raises ConnectionLost."""


class Receiver(Protocol):
    """A subscription, as the connection sees it."""

    @property
    def name(self) -> bytes: ...

    @property
    def credit(self) -> int | None: ...

    @property
    def buffered(self) -> int: ...

    @property
    def full(self) -> bool: ...

    def subscribed(self, connection: SubscribedConnection, topic: Topic) -> None: ...

    def put(self, run: MessageRun) -> None: ...

    def put_dropped(self, message: DroppedMessage) -> None: ...

    def put_gap(self, gap: Gap) -> None: ...

    def end(self) -> None: ...

    def fail(self, error: OmqError) -> None: ...
