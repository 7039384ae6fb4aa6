"""A sink: publishes to one topic on a separate DMP connection."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import assert_never

import anyio

from omq.client.bodies import batches, check_bodies
from omq.client.dmp_stream import DmpStream, understood
from omq.client.errors import MOST_REFUSALS, ConnectionLost, OmqError, ProtocolError, SinkClosed, SinkFailed
from omq.client.reasons import reason
from omq.client.send_queue import SendQueue
from omq.client.sink_heads import SinkHeads, head_of
from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.client import (
    ClientEvent,
    ConnectionDeclined,
    FeedOctets,
    Greeted,
    HeaderDeclined,
    Ready,
    SinkResponse,
)
from omq.protocol.dmp.envelopes import IMMEDIATE, MANDATORY
from omq.protocol.dmp.responses import Response, stored_of

BATCH_OCTETS = 64 << 10
BATCH_MESSAGES = 4096
"""About the size of the batches in which `publish_many` makes envelopes."""

READ_OCTETS = 4 << 10


class Sink:
    """Publishes to one topic. `Client.sink` creates it; any number of tasks may use it.

    The server confirms all messages once, at the end: by `close`, or by leaving the block without an
    exception. Methods raise SinkFailed when the server has ended the sink, and ConnectionLost when its
    connection ended in another way: then it is unknown which messages are stored. After `close` those that
    publish raise SinkClosed.
    """

    def __init__(self, topic: bytes, opened: DmpStream, heads: SinkHeads) -> None:
        self.topic = topic
        self.sent = 0
        """The number of messages sent."""
        self.stored: int | None = None
        """The number of messages stored; None until the server has answered."""
        self.notices: deque[str] = deque(maxlen=MOST_REFUSALS)
        """The server's last notices about sinks of this topic, from the client's connection."""
        self._stream = opened.stream
        self._dialogue = opened.dialogue
        self._following = opened.following
        self._heads = heads
        self._failure: OmqError | None = None
        self._finishing = False
        self._streaming: anyio.Event | None = None
        """Set when the message is complete whose pieces are being sent."""
        self._running = anyio.CancelScope()
        self._ended = anyio.Event()
        self._send_queue = SendQueue(opened.stream, self._refuse, lambda: None)

    # -- for its owner -------------------------------------------------------------------------------------

    @property
    def next(self) -> int:
        """The sequence number of the next message, for a sink with a producer."""
        return self._heads.next

    async def publish(
        self,
        body: bytes,
        *,
        exchange: bytes = b"",
        routing_key: bytes = b"",
        properties: Properties | None = None,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        """Send a message. Waits only while the send queue is full.

        A single message is sent at once; messages published one after another share system calls. Raises
        ValueError for a head that does not fit into an envelope.
        """
        head = head_of(exchange, routing_key, properties)
        options = (MANDATORY if mandatory else 0) | (IMMEDIATE if immediate else 0)
        # Wait for room first: a producer's sequence numbers must have the order in which messages are sent.
        await self._room()
        self._queue([body], self._heads.following(1, head), [options] if options else [])
        await self._send_queue.pause()

    async def publish_from(
        self,
        pieces: AsyncIterable[bytes],
        length: int,
        *,
        exchange: bytes = b"",
        routing_key: bytes = b"",
        properties: Properties | None = None,
    ) -> None:
        """Send one message whose body comes in pieces of any size, `length` octets together. The client never
        holds all of it, and the server does not either if the topic is persistent.

        Other tasks that publish with this sink wait meanwhile. If the pieces raise an exception or have
        another length, or if this is cancelled, the message cannot be completed: the sink ends with a
        ConnectionLost, and nothing of the message is stored. Then this raises that exception, ValueError or
        Cancelled.

        Raises ValueError for a head or a length that does not fit into an envelope.
        """
        async with (
            self.message(length, exchange=exchange, routing_key=routing_key, properties=properties) as send,
            aclosing(pieces) if isinstance(pieces, AsyncGenerator) else nullcontext(),
        ):
            async for piece in pieces:
                await send(piece)

    @asynccontextmanager
    async def message(
        self,
        length: int,
        *,
        exchange: bytes = b"",
        routing_key: bytes = b"",
        properties: Properties | None = None,
    ) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
        """Send one message as `publish_from` does, but with a call for each piece: `async with
        sink.message(length) as send`, and `await send(piece)` in the block. The message is complete at the
        end of the block. An exception in the block ends the sink.
        """
        head = head_of(exchange, routing_key, properties)
        await self._room()
        heads = self._heads.following(1, head)
        beginning = dmp_writer.opening_for_sink(length, heads[0] if heads else PLAIN_HEAD)
        self._streaming = anyio.Event()
        left = length
        whole = False

        async def send(piece: bytes) -> None:
            nonlocal left
            check_bodies([piece])
            if len(piece) > left:
                raise ValueError(f"the pieces do not have {length} octets together")
            await self._send_queue.send(piece)
            left -= len(piece)
            await self._send_queue.pause()

        try:
            self._send_queue.post(beginning)
            yield send
            if left:
                raise ValueError(f"the pieces do not have {length} octets together")
            self._heads.sent(1)
            self.sent += 1
            whole = True
        finally:
            if not whole:
                self._end(ConnectionLost("the sink was ended in the middle of a message"))
                self._running.cancel()
            self._streaming.set()
            self._streaming = None

    async def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        exchange: bytes = b"",
        routing_key: bytes = b"",
        properties: Properties | None = None,
    ) -> int:
        """Send many messages that differ only in their bodies, much faster than with one call of `publish`
        for each. Returns the number of messages.
        """
        head = head_of(exchange, routing_key, properties)
        count = 0
        for batch in batches(bodies, BATCH_OCTETS, BATCH_MESSAGES):
            await self._room()
            self._queue(batch, self._heads.following(len(batch), head), [])
            count += len(batch)
            await self._send_queue.pause()
        return count

    async def close(self) -> int:
        """Close the sending direction, and wait until the server confirms all messages.

        Returns the number of stored messages, which equals the number of sent ones. A second call returns the
        same, also after a cancelled one.
        """
        while self._streaming is not None:
            await self._streaming.wait()
        self._finishing = True
        await self._send_queue.finish()
        await self._ended.wait()
        self._refuse()
        if self.stored is None:
            raise RuntimeError("a sink ended without an outcome")
        return self.stored

    # -- for its client ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send and receive until the sink has ended."""
        try:
            with self._running:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._send_queue.run)
                    await self._listen()
                    group.cancel_scope.cancel()
        finally:
            self._end(ConnectionLost("the sink was closed before its messages were confirmed"))
            self._stream.close()

    def fail(self, failure: OmqError) -> None:
        """Fail the sink, and wake the tasks that wait for it, unless its outcome is known already."""
        self._end(failure)

    # -- internal ------------------------------------------------------------------------------------------

    async def _room(self) -> None:
        await self._send_queue.room()
        while self._streaming is not None:  # another task is in the middle of a message
            await self._streaming.wait()
            await self._send_queue.room()
        if self._finishing:
            raise SinkClosed("the sink is closed")

    def _queue(self, bodies: list[bytes], heads: list[bytes], options: list[int]) -> None:
        try:
            envelopes = dmp_writer.for_sink(bodies, heads, options)
        except TypeError:
            check_bodies(bodies)
            raise
        self._send_queue.post(envelopes)
        self._heads.sent(len(bodies))
        self.sent += len(bodies)

    def _refuse(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _listen(self) -> None:
        """Receive until the server has answered for all messages, or the connection has ended."""
        try:
            events = list(self._following)
            while not events:
                data = await self._stream.receive_some(READ_OCTETS)
                if not data:
                    said = self.notices[-1] if self.notices else None
                    self._end(ConnectionLost("the server closed the sink without confirming it", said))
                    return
                events = understood(self._dialogue, data)
            self._take(events[0])
        except anyio.BrokenResourceError as error:
            self._end(ConnectionLost(f"the sink's connection broke: {reason(error)}"))
        except ProtocolError as error:
            self._end(error)

    def _take(self, event: ClientEvent) -> None:
        match event:
            case SinkResponse(response):
                self._take_answer(response)
            case Greeted() | Ready() | ConnectionDeclined() | HeaderDeclined() | FeedOctets():
                raise ProtocolError(f"the server said about a sink what belongs elsewhere: {event!r:.200}")
            case _:
                assert_never(event)

    def _take_answer(self, response: Response) -> None:
        self.stored = stored_of(response) or 0
        if response.ok and self._finishing and self.stored == self.sent:
            self._end(None)
        else:
            self._end(SinkFailed(response, self.sent, self.stored))

    def _end(self, failure: OmqError | None) -> None:
        if self._ended.is_set():
            return
        self._failure = failure
        self._ended.set()
        self._send_queue.close()
