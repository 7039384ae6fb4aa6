"""A command whose answer is a stream of frames, on a separate connection: Fetch and Watch."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from omq.client.connections import Settings
from omq.client.errors import ConnectionLost, OmqError, ProtocolError, ServerError
from omq.client.network import Stream
from omq.client.reasons import CLOSED, broke, no_frame, shown
from omq.client.silence import receive
from omq.client.stream import open_greeted
from omq.protocol.omq.client import ClientSession, Declined, Event, UnsolicitedError, UnsolicitedFrame
from omq.protocol.omq.frames import FrameError

READ_OCTETS = 256 << 10


class Conversation:
    """One connection, after its session was given the command."""

    def __init__(self, stream: Stream, session: ClientSession[None]) -> None:
        self._stream = stream
        self._session = session
        self._events: deque[Event[None]] = deque()

    async def event(self) -> Event[None]:
        """Return the next event. Raises ConnectionLost and ProtocolError. If this is cancelled, the next call
        continues where this one was.
        """
        while not self._events:
            await self.flush()  # what a cancelled call has left: the server may wait for it
            try:
                data = await receive(self._stream, READ_OCTETS)
                self._events += self._session.feed(bytes(data))
            except FrameError as error:
                raise ProtocolError(no_frame(error)) from error
            except UnsolicitedFrame as error:
                raise ProtocolError(str(error)) from error
            except anyio.BrokenResourceError as error:
                raise ConnectionLost(broke(error)) from error
            except anyio.ClosedResourceError as error:
                raise ConnectionLost("its connection was closed at the end of the block") from error
            if not data:
                raise ConnectionLost(CLOSED)
            await self.flush()
        return self._events.popleft()

    async def flush(self) -> None:
        """Send the session's output. Raises ConnectionLost."""
        # A cancelled send loses what it was to send, such as an Ack.
        await checkpoint_if_cancelled()
        if octets := self._session.take_output():
            try:
                await self._stream.send_all(octets)
            except anyio.BrokenResourceError as error:
                raise ConnectionLost(broke(error)) from error


def failure(event: Event[None], constructor: str, topic: bytes) -> OmqError:
    """Return the error for an event that is no part of the answer to the command."""
    match event:
        case Declined(_, _, text):
            return ServerError(shown(text), constructor, topic)
        case UnsolicitedError(text):
            return ConnectionLost(CLOSED, shown(text))
        case _:
            return ProtocolError(f"the server answered what was not asked: {event!r:.200}")


@asynccontextmanager
async def conversing(settings: Settings, session: ClientSession[None]) -> AsyncIterator[Conversation]:
    """Open a connection that closes at the end of the block, and send the octets of the session.

    Raises ConnectionFailed and HandshakeRefused.
    """
    stream = await open_greeted(settings.host, settings.port, settings.connect_seconds, settings.security)
    try:
        conversation = Conversation(stream, session)
        await conversation.flush()
        yield conversation
    finally:
        stream.close()  # at once: the caller does not need the rest
