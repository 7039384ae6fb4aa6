"""Watch a server on a separate connection: its numbers, and those of its topics, round by round."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from omq import watching
from omq.client.connections import Settings
from omq.client.conversation import Conversation, conversing, failure
from omq.protocol.omq.client import Answered, ClientSession, Reported
from omq.protocol.omq.types import Watch


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a topic, and when they were read."""

    time_us: int
    topic: watching.TopicWatch


@dataclass(frozen=True, slots=True)
class Round:
    """One round of statistics from the server. The mapping of all topics changes with the next round."""

    time_us: int
    """The server's time at the end of the round, in microseconds since the epoch."""
    server: watching.Server | None
    """None without the right to watch the server."""
    topics: Mapping[int, Numbers]
    """All topics, by their ids."""
    changed: tuple[int, ...]
    """The ids of those that are new or have changed."""
    gone: tuple[int, ...]
    """The ids of those that were deleted since the last round."""
    lines: tuple[watching.Line, ...]
    """New warnings and errors of the server's log."""


@dataclass(slots=True)
class _Parts:
    """The parts of a round that have arrived so far."""

    server: watching.Server | None = None
    changed: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    lines: list[watching.Line] = field(default_factory=list)


class ServerView:
    """The state of the server as a watcher knows it, from the values of its Statistics frames."""

    def __init__(self) -> None:
        self._topics: dict[int, Numbers] = {}
        self._parts = _Parts()

    def take(self, statistics: watching.Statistics) -> Round | None:
        """Take the next value; return the round that it completes."""
        parts = self._parts
        match statistics:
            case watching.Began():
                self._topics.clear()
            case watching.Server():
                parts.server = statistics
            case watching.Warnings(lines):
                parts.lines += lines
            case watching.Gone(ids):
                parts.gone += ids
                for id in ids:
                    self._topics.pop(id, None)
            case watching.Topics(time_us, topics):
                for topic in topics:
                    self._topics[topic.id] = Numbers(time_us, topic)
                    parts.changed.append(topic.id)
            case watching.Complete(time_us):
                self._parts = _Parts()
                return Round(
                    time_us,
                    parts.server,
                    MappingProxyType(self._topics),
                    tuple(parts.changed),
                    tuple(parts.gone),
                    tuple(parts.lines),
                )
        return None


class Rounds:
    """An iterator over the rounds of a Watch. Iterating raises ServerError, ConnectionLost and ProtocolError.

    A caller that takes rounds slowly gets fewer: the server begins the next one when this one is read.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._view = ServerView()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Round:
        while True:
            match await self._conversation.event():
                case Reported(statistics):
                    completed = self._view.take(statistics)
                    if completed is not None:
                        return completed
                case Answered():
                    pass
                case other:
                    raise failure(other, "Watch", b"")


@asynccontextmanager
async def watching_server(settings: Settings, period_ms: int) -> AsyncIterator[Rounds]:
    """Run a Watch on a connection that closes at the end of the block.

    Raises ConnectionFailed and HandshakeRefused.
    """
    session: ClientSession[None] = ClientSession(settings.id)
    session.ask(Watch(period_ms), None)
    async with conversing(settings, session) as conversation:
        yield Rounds(conversation)
