"""A feed: receives one topic on a separate DMP connection."""

from collections.abc import Awaitable, Callable, Iterator
from typing import assert_never

import anyio

from omq.client.dmp_stream import READ_OCTETS, DmpStream, understood
from omq.client.errors import BodyTooLong, ConnectionLost, OmqError, ProtocolError
from omq.client.opened import OpenMessage
from omq.client.reasons import named, reason
from omq.client.run_iterator import RunIterator
from omq.client.silence import receive
from omq.model import DEFAULT_MAX_BODY, LONGEST_BODY
from omq.protocol.amqp.head import decode
from omq.protocol.dmp.client import (
    ClientEvent,
    ConnectionDeclined,
    FeedOctets,
    Greeted,
    HeaderDeclined,
    Ready,
    SinkResponse,
)
from omq.protocol.dmp.envelopes import Envelope, EnvelopeError, EnvelopeRun
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.steps import finished

LONG_OCTETS = 1 << 20
"""The size from which on `Feed.opened` does not hold a body."""


class Feed:
    """Messages of one topic, in order, with their heads. `Client.feed` creates it; one task may use it.

    `async for envelope in feed` gives `Envelope` objects; `async for run in feed.runs()` gives `EnvelopeRun`s
    of messages that arrived together, which is faster. `async for message in feed.opened()` gives messages of
    any size, whose bodies are received in pieces. Use one of the three.

    The first two hold each message whole. Before one whose body has more than 64 MiB they raise BodyTooLong;
    then `opened` goes on with it.

    A feed does not read ahead of its consumer, so a slow consumer holds up only its own feed. Iteration ends
    when the topic is deleted. It raises ConnectionLost when the connection broke or the server stopped, and
    FeedFailed when the server ended the feed for another reason.
    """

    # The server sends only envelopes on a feed; it gives the reason for its end on the client's connection.

    def __init__(
        self, topic: bytes, opened: DmpStream, why_ended: Callable[["Feed"], Awaitable[OmqError | None]]
    ) -> None:
        """Create a feed. `why_ended` returns why the server has closed the feed, or None if the topic was
        deleted.
        """
        self.topic = topic
        self.notices: list[str] = []
        """The server's last notice about feeds of this topic, from the client's connection."""
        self._stream = opened.stream
        self._dialogue = opened.dialogue
        self._following = list(opened.following)
        self._why_ended = why_ended
        self._reader = EnvelopeReader(LONGEST_BODY)
        self._envelopes: Iterator[Envelope] = iter(())
        self._message: OpenMessage | None = None
        """The long message of `opened` whose body may not be received as a whole."""
        self._refused: OpenMessage | None = None
        """The message that `next_run` does not hold: the next one of `opened`."""
        self._ended = False
        self._failure: OmqError | None = None

    def __aiter__(self) -> "Feed":
        return self

    async def __anext__(self) -> Envelope:
        while True:
            envelope = next(self._envelopes, None)
            if envelope is not None:
                return envelope
            run = await self.next_run()
            if run is None:
                raise StopAsyncIteration
            self._envelopes = run.envelopes()

    def runs(self) -> "FeedRuns":
        """Iterate over the messages in runs."""
        return FeedRuns(self.next_run)

    async def next_run(self) -> EnvelopeRun | None:
        """Return the next run of messages, or None when the topic was deleted. Raises as iteration does."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            self._check_held()
            run = await self._receive()
            if run is not None and run.bodies:
                return run

    def _check_held(self) -> None:
        """Raise BodyTooLong for an unfinished message with a body that is too long to be held."""
        if self._refused is None and self._reader.expected > DEFAULT_MAX_BODY:
            self._refused = self._take_long(DEFAULT_MAX_BODY, least_body=DEFAULT_MAX_BODY + 1)
        if self._refused is not None:
            raise BodyTooLong(
                f"the next message of {named(self.topic)} has a body of {self._refused.size} octets, longer "
                f"than {DEFAULT_MAX_BODY}: receive it by opened()"
            )

    def opened(self) -> "OpenMessages":
        """Iterate over messages of any size without holding their bodies: a body of more than 1 MiB is
        received while it is read, see `OpenMessage`. Use nothing else of the feed then. After a cancelled
        iteration, another one goes on with the next message.
        """
        return OpenMessages(self._next_opened)

    async def _next_opened(self) -> OpenMessage | None:
        while True:
            if self._message is not None and not self._ended:
                await self._message.skip()
            self._message = None
            envelope = next(self._envelopes, None)
            if envelope is not None:
                return OpenMessage(envelope.head, len(envelope.body), envelope.body, self._more)
            self._message, self._refused = self._refused or self._take_long(LONG_OCTETS), None
            if self._message is not None:
                return self._message
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            run = await self._receive()
            self._envelopes = iter(()) if run is None else run.envelopes()

    def _take_long(self, octets: int, least_body: int = 0) -> OpenMessage | None:
        """Open the unfinished message if it has at least N `octets`, and its head has come."""
        try:
            long = finished(self._reader.taking_long(octets, least_body))
        except EnvelopeError as error:
            raise ProtocolError(f"the server sent what is no envelope: {error}") from error
        return None if long is None else OpenMessage(decode(long.head), long.size, long.body, self._more)

    async def _more(self, octets: int) -> bytes:
        """Receive at least one and at most N `octets` of a body. Raises as iteration does."""
        received = b"" if self._ended or self._failure is not None else await self._octets()
        if not received:
            raise self._failure or ConnectionLost("the feed was closed in the middle of a message")
        if len(received) > octets:
            self._following.insert(0, FeedOctets(received[octets:]))
        return received[:octets]

    def close(self) -> None:
        """Close the feed. Unread messages of a round-robin topic go to other workers."""
        self._ended = True
        self._stream.close()

    async def _receive(self) -> EnvelopeRun | None:
        octets = await self._octets()
        if not octets:
            return None
        try:
            return self._reader.feed(octets)
        except EnvelopeError as error:
            self._failure = ProtocolError(f"the server sent what is no envelope: {error}")
            return error.before

    async def _octets(self) -> bytes:
        """Receive octets of envelopes; nothing at the end of the feed, or after a failure."""
        try:
            if self._following:
                events, self._following = self._following, []
            else:
                data = await receive(self._stream, READ_OCTETS)
                if not data:
                    await self._end()
                    return b""
                events = understood(self._dialogue, data)
            # All octets of one read make one event.
            return b"".join(map(_octets, events))
        except ProtocolError as error:
            self._failure = error
        except anyio.BrokenResourceError as error:
            self._failure = ConnectionLost(f"the feed's connection broke: {reason(error)}")
        return b""

    async def _end(self) -> None:
        if self._reader.unfinished or self._message is not None:
            self._failure = ConnectionLost("the server closed the feed in the middle of a message")
        else:
            self._failure = await self._why_ended(self)
        self._ended = True


class FeedRuns(RunIterator[EnvelopeRun]):
    """Iterates over a feed in runs of messages."""


class OpenMessages(RunIterator[OpenMessage]):
    """Iterates over a feed message by message, without holding their bodies."""

    async def aclose(self) -> None:
        """Do nothing: the feed goes on. Thus `contextlib.aclosing` takes this like a generator."""


def _octets(event: ClientEvent) -> bytes:
    match event:
        case FeedOctets(octets):
            return octets
        case Greeted() | Ready() | SinkResponse() | ConnectionDeclined() | HeaderDeclined():
            raise ProtocolError(f"the server said on a feed what belongs elsewhere: {event!r:.200}")
        case _:
            assert_never(event)
