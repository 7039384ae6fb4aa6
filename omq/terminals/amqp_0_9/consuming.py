"""Begins and ends the consumers of a connection, and limits the number of their messages."""

import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from omq import model
from omq.access.routed_publishing import REPLIES
from omq.access.topology import Topology
from omq.drivers.shared_window import SharedWindow
from omq.drivers.slices import Slices
from omq.logs import quoted
from omq.protocol.amqp.fields import Number, Table, Value
from omq.protocol.amqp_0_9 import delivery, methods
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem, ReplyCode
from omq.terminals.amqp_0_9.channel import AmqpChannel
from omq.terminals.amqp_0_9.consumers import Consumer
from omq.terminals.amqp_0_9.direct import DirectLeases
from omq.terminals.amqp_0_9.forms import ConsumerForm
from omq.terminals.amqp_0_9.offsets import FromAgo, FromLast, FromTime, read_offset
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.amqp_0_9.publishing import Publishing
from omq.terminals.amqp_0_9.refusals import failed
from omq.terminals.connection.sender import Sender

TAG_OCTETS = 16
"""The random octets of a consumer tag that the server makes: 22 characters."""

MOST_LAST = 200
"""The greatest number of messages that a queue gives to a consumer that is cancelled, besides those that are
on their way. RabbitMQ uses the same number.
"""

FINISH_SECONDS = 1.0
"""The number of seconds for which a cancel waits until the last messages of its consumer have left. The
client may not read them, and what it has published may wait for room that only its acknowledgements make.
"""

CANCELLED_LOOKED_AT = 16
"""The greatest number of cancelled consumers that a cancel looks at: those without messages are closed."""


class Consuming:
    """The consumers of one connection."""

    __slots__ = (
        "_begin",
        "_deferred",
        "_direct",
        "_fail",
        "_outbox",
        "_publishing",
        "_sender",
        "_tells_cancels",
        "_topology",
        "_woken",
    )

    def __init__(
        self,
        topology: Topology,
        publishing: Publishing,
        outbox: Outbox,
        sender: Sender,
        fail: Callable[[AmqpChannel, ChannelProblem], None],
        direct: DirectLeases | None,
        woken: Callable[[Consumer], None],
        begin: Callable[[Iterator[None]], None],
        *,
        tells_cancels: bool,
    ) -> None:
        """Create it without consumers. `fail` ends a channel. `direct` is None if there is no direct mode.
        `woken` is called with a consumer that may have messages. `begin` does long work that outlives the
        connection, in steps (`Errands.begin`). `tells_cancels`: whether the client wants to
        know that a queue of a consumer was deleted.
        """
        self._topology = topology
        self._publishing = publishing
        self._outbox = outbox
        self._sender = sender
        self._fail = fail
        self._direct = direct
        self._woken = woken
        self._begin = begin
        self._tells_cancels = tells_cancels
        self._deferred: list[tuple[AmqpChannel, Method]] | None = None
        """The notices to the consumers of a queue that is being deleted. They follow the answer."""

    async def set_prefetch(self, channel: AmqpChannel, count: int, *, is_global: bool) -> None:
        """Limit the unacknowledged messages of each consumer, or of all of the channel together, in turn with
        other connections. A limit of each consumer takes the place of one of all, as with RabbitMQ; a later
        one of all is in effect beside that of each.
        """
        slices = Slices()
        if is_global:
            if channel.shared is not None and count:
                channel.shared.set(count)
                return
            channel.shared = SharedWindow(count, self._begin) if count else None
            for consumer in list(channel.consumers.values()):
                consumer.share(channel.shared)
                await slices.step()
                if channel.is_over:
                    return
            return
        # RabbitMQ spares consumers that run. Celery raises it for one, and its tasks would starve.
        channel.prefetch = count
        channel.shared = None
        window = self._topology.window(count)
        for consumer in list(channel.consumers.values()):
            consumer.grant(window)
            if consumer.shared is not None:
                consumer.share(None)
            await slices.step()
            if channel.is_over:
                return

    async def consume(self, channel: AmqpChannel, method: methods.BasicConsume) -> None:
        """Begin a consumer, and answer. Raises Refused, StoreError, ChannelProblem and ConnectionProblem."""
        tag = method.consumer_tag or b"amq.ctag-" + secrets.token_urlsafe(TAG_OCTETS).encode()
        if tag in channel.consumers or tag in channel.fed:
            text = f"attempt to reuse consumer tag {quoted(tag)}"
            raise ConnectionProblem(ReplyCode.NOT_ALLOWED, text, method.CLASS, method.METHOD)
        if method.queue == REPLIES:
            queue = await self._make_reply_queue(channel, method)
        else:
            queue = channel.queue_named(method.queue)
        if self._direct is not None and (feed := self._direct.feed(queue)) is not None:
            channel.fed[tag] = feed
            feed.resume()
            if not method.no_wait:
                channel.answer(self._outbox, methods.BasicConsumeOk(tag))
            return
        replay: model.Replay = model.FromCurrent()
        is_stream = self._topology.is_stream(queue)
        if is_stream:
            replay = await self._replay(queue, method)
        if channel.is_over:
            return
        made, opened = self._topology.open(
            queue,
            replay,
            partial(self._make, channel, method, tag, is_stream),
            exclusive=method.exclusive,
            priority=_priority(method),
        )
        made.is_paused = not channel.is_flowing
        made.open(opened)
        channel.add(made)
        made.share(channel.shared)
        made.grant(self._topology.window(channel.prefetch))
        if method.no_wait:
            made.start()
        else:
            channel.answer(self._outbox, methods.BasicConsumeOk(tag), made.start)

    async def _make_reply_queue(self, channel: AmqpChannel, method: methods.BasicConsume) -> bytes:
        if not method.no_ack:
            raise failed(method, "reply consumer cannot acknowledge")
        if channel.reply_queue is not None:
            raise failed(method, "reply consumer already set")
        channel.reply_queue = await self._topology.make_reply_queue()
        return channel.reply_queue

    def _make(
        self,
        channel: AmqpChannel,
        method: methods.BasicConsume,
        tag: bytes,
        is_stream: bool,
        topic: model.Topic,
        release: Callable[[], None],
    ) -> Consumer:
        framing = self.framing(channel, tag, topic.topic, is_stream=is_stream)
        return Consumer(
            tag,
            topic,
            self._sender,
            channel.contents,
            ConsumerForm(framing, channel.tags, no_ack=method.no_ack),
            self._woken,
            release,
            partial(self._ended, channel),
            partial(self._unreadable, channel),
            no_ack=method.no_ack,
        )

    def framing(
        self, channel: AmqpChannel, tag: bytes, queue: bytes, *, is_stream: bool = False
    ) -> delivery.ConsumerFraming:
        """Return the framing of messages of this queue. Those of omq come without a head."""
        return delivery.ConsumerFraming(
            channel.number,
            tag,
            self._publishing.frame_max,
            b"\0" + bytes([len(queue)]) + queue + b"\0\0",
            is_stream=is_stream,
            is_openamq=self._publishing.is_openamq,
            is_quorum=self._topology.is_quorum(queue),
        )

    def _ended(self, channel: AmqpChannel, consumer: Consumer) -> None:
        """Remove a consumer whose queue was deleted, and tell the client if it wants to know."""
        _leave_replies(channel, consumer)
        if channel.remove(consumer.tag) is None or not self._tells_cancels:
            return
        told = methods.BasicCancel(consumer.tag, no_wait=True)
        if self._deferred is None:
            channel.answer(self._outbox, told)
        else:
            self._deferred.append((channel, told))

    @asynccontextmanager
    async def deferring(self) -> AsyncIterator[None]:
        """Tell consumers at the end of the block that their queue was deleted."""
        deferred = self._deferred = []
        try:
            yield
        finally:
            self._deferred = None
            slices = Slices()
            for channel, told in deferred:
                channel.answer(self._outbox, told)
                await slices.step()

    def _unreadable(self, channel: AmqpChannel, consumer: Consumer, why: str) -> None:
        self._fail(channel, ChannelProblem(ReplyCode.INTERNAL_ERROR, why))

    async def cancel(self, channel: AmqpChannel, tag: bytes) -> None:
        """End a consumer, if there is one with this tag. It keeps what is not acknowledged.

        Before that it gets what was published and acknowledged for it before on the same channel.
        """
        feed = channel.fed.pop(tag, None)
        if feed is not None:
            feed.pause()
            return
        consumer = channel.consumers.get(tag)
        if consumer is None:
            return
        await self._finish(channel, consumer)
        if channel.is_over or channel.remove(tag) is None:  # or its queue was deleted meanwhile
            return
        _leave_replies(channel, consumer)
        consumer.cancel()
        if channel.cancelled is None:
            channel.cancelled = deque()
        cancelled = channel.cancelled
        cancelled.appendleft(consumer)
        for _ in range(min(len(cancelled), CANCELLED_LOOKED_AT)):
            each = cancelled.popleft()
            if each.has_unacknowledged:
                cancelled.append(each)
            else:
                each.close()

    async def _finish(self, channel: AmqpChannel, consumer: Consumer) -> None:
        """Let a consumer have its last messages."""
        if consumer.channel is None or not consumer.channel.competes:
            return
        with trio.move_on_after(FINISH_SECONDS):
            if self._topology.is_quorum(consumer.topic.topic):
                # RabbitMQ cancels it before the queue has what was published or acknowledged directly before.
                await consumer.finish(0 if consumer.has_started else MOST_LAST)
                return
            await channel.settled()
            if not channel.is_over:
                await consumer.finish(MOST_LAST)

    async def _replay(self, queue: bytes, method: methods.BasicConsume) -> model.Replay:
        """Return the position at which the consumer of a stream begins. Raise Refused and ChannelProblem."""
        value = _argument(method.arguments, b"x-stream-offset")
        offset = read_offset(value)
        match offset:
            case None:
                raise failed(method, f"invalid x-stream-offset for queue {quoted(queue)}")
            case FromLast():
                return self._topology.from_last(queue)
            case FromTime(seconds):
                return await self._topology.from_time(queue, seconds)
            case FromAgo(seconds):
                return await self._topology.from_ago(queue, seconds)
            case _:
                return offset


def _leave_replies(channel: AmqpChannel, consumer: Consumer) -> None:
    """Forget the queue of direct replies if this consumer, which is gone, was its one: there may be
    another.
    """
    if consumer.topic.topic == channel.reply_queue:
        channel.reply_queue = None


def _argument(arguments: Table, name: bytes) -> Value | None:
    return next((value for known, value in arguments.entries if known == name), None)


def _priority(method: methods.BasicConsume) -> int:
    """Return the priority of a consumer, 0 if it has none. Raise ChannelProblem."""
    match _argument(method.arguments, b"x-priority"):
        case None:
            return 0
        case Number(_, int(priority)):
            return priority
        case _:
            raise failed(method, "invalid arg 'x-priority': it is no number")
