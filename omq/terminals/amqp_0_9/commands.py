"""Executes the methods that a client calls on a channel, except publishes."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from omq import model
from omq.access.topology import REPLIES, IsStream, Topology
from omq.drivers.memory import Memory
from omq.drivers.problems import for_clients
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import ACCEPTED, REJECTED, Modified, Outcome
from omq.drivers.shared_window import SharedWindow
from omq.exchanges.types import Destination, DestinationKind
from omq.logs import quoted
from omq.protocol.amqp.fields import Number, Table, Value
from omq.protocol.amqp_0_9 import delivery, methods
from omq.protocol.amqp_0_9.frames import method_frame
from omq.protocol.amqp_0_9.methods import Method
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem, ReplyCode
from omq.terminals.amqp_0_9.arguments import StreamDeclared, options_of
from omq.terminals.amqp_0_9.channel import AmqpChannel, Plain
from omq.terminals.amqp_0_9.confirms import Confirms
from omq.terminals.amqp_0_9.consumers import Consumer
from omq.terminals.amqp_0_9.direct import DirectLeases
from omq.terminals.amqp_0_9.forms import ConsumerForm
from omq.terminals.amqp_0_9.getting import GetForm, GetSubscriber, GetTurn
from omq.terminals.amqp_0_9.offsets import FromAgo, FromLast, FromTime, read_offset
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.amqp_0_9.posts import settled
from omq.terminals.amqp_0_9.publishing import Publishing
from omq.terminals.amqp_0_9.refusals import problem_of
from omq.terminals.amqp_0_9.transactions import Transaction
from omq.terminals.amqp_0_9.unacknowledged import UnknownTag
from omq.terminals.connection.liveness import Excuse
from omq.terminals.connection.sender import Sender
from omq_storage.errors import StoreError

REQUEUED = Modified(delivery_failed=True)
"""The outcome of a message that returns to its queue: it counts one delivery more."""

LOOKING = (
    methods.BasicGet, methods.QueueDeclare, methods.QueueDelete, methods.QueuePurge, methods.TxCommit,
)  # fmt: skip
"""The methods whose answers depend on what is in a queue."""

TAG_OCTETS = 16
"""The random octets of a consumer tag that the server makes: 22 characters."""


class Commands:
    """The executor of one connection."""

    def __init__(
        self,
        topology: Topology,
        publishing: Publishing,
        outbox: Outbox,
        sender: Sender,
        memory: Memory,
        fail: Callable[[AmqpChannel, ChannelProblem], None],
        excused: Excuse,
        direct: DirectLeases | None,
        woken: Callable[[Consumer], None],
        *,
        tells_cancels: bool,
    ) -> None:
        """Create the commands of a connection. `fail` ends a channel. Within `excused` the silence of the
        client does not count. `direct` is None if there is no direct mode. `woken` is called with a consumer
        that may have messages. `tells_cancels`: whether the client wants to know that a queue of a consumer
        was deleted.
        """
        self._topology = topology
        self._publishing = publishing
        self._outbox = outbox
        self._sender = sender
        self._memory = memory
        self._fail = fail
        self._excused = excused
        self._direct = direct
        self._woken = woken
        self._tells_cancels = tells_cancels
        self._deferred: list[tuple[AmqpChannel, Method]] | None = None
        """While a queue is deleted, what its consumers are told after the answer."""

    def _answer(self, channel: AmqpChannel, method: Method, then: Callable[[], None] | None = None) -> None:
        if channel.is_over:
            return  # nothing follows Channel.Close
        self._outbox.add(method_frame(channel.number, method), channel=channel.number, then=then)

    async def act(self, channel: AmqpChannel, method: Method) -> None:
        """Execute a method, and answer it. Raises ChannelProblem and ConnectionProblem.

        A method that looks into a queue finds in it what was published before on the same channel. The
        channel may fail while it waits: then it opens nothing more on it, and does not answer.
        """
        if isinstance(method, LOOKING):
            with self._excused:
                await channel.settled()
            if channel.is_over:
                return
        try:
            with self._excused:
                await self._perform(channel, method)
        except Refused as refused:
            raise problem_of(refused.failure, type(method)) from refused
        except UnknownTag as unknown:
            raise _failed(method, str(unknown)) from unknown
        except StoreError as problem:
            raise problem_of(for_clients(problem), type(method)) from problem
        except IsStream as stream:
            text = f"{stream}: its messages are not taken from it"
            raise ConnectionProblem(ReplyCode.NOT_IMPLEMENTED, text, method.CLASS, method.METHOD) from stream

    async def _perform(self, channel: AmqpChannel, method: Method) -> None:
        """Execute a method. Raise Refused, UnknownTag, IsStream, ChannelProblem and ConnectionProblem."""
        topology = self._topology
        match method:
            case methods.ChannelOpen():
                self._answer(channel, methods.ChannelOpenOk())
            case methods.ChannelFlow(active):
                channel.flow(active)
                self._answer(channel, methods.ChannelFlowOk(active))
            case methods.ChannelFlowOk() | methods.BasicCancelOk():
                pass
            case methods.AccessRequest():
                self._answer(channel, methods.AccessRequestOk())
            case methods.ExchangeDeclare():
                await self._declare_exchange(method)
                if not method.no_wait:
                    self._answer(channel, methods.ExchangeDeclareOk())
            case methods.ExchangeDelete(exchange, if_unused, no_wait):
                await topology.delete_exchange(exchange, if_unused=if_unused)
                if not no_wait:
                    self._answer(channel, methods.ExchangeDeleteOk())
            case methods.ExchangeBind(destination, source, key, no_wait, arguments):
                await topology.bind(
                    source, Destination(DestinationKind.EXCHANGE, destination), key, arguments
                )
                if not no_wait:
                    self._answer(channel, methods.ExchangeBindOk())
            case methods.ExchangeUnbind(destination, source, key, no_wait, arguments):
                await topology.unbind(
                    source, Destination(DestinationKind.EXCHANGE, destination), key, arguments
                )
                if not no_wait:
                    self._answer(channel, methods.ExchangeUnbindOk())
            case methods.QueueDeclare():
                await self._declare_queue(channel, method)
            case methods.QueueBind(queue, exchange, key, no_wait, arguments):
                bound = self._queue(channel, queue)
                # With both names empty the name of the queue is the key, too.
                key = key if queue or key else bound
                await topology.bind(exchange, Destination(DestinationKind.QUEUE, bound), key, arguments)
                if not no_wait:
                    self._answer(channel, methods.QueueBindOk())
            case methods.QueueUnbind(queue, exchange, key, arguments):
                bound = self._queue(channel, queue)
                key = key if queue or key else bound
                await topology.unbind(exchange, Destination(DestinationKind.QUEUE, bound), key, arguments)
                self._answer(channel, methods.QueueUnbindOk())
            case methods.QueuePurge(queue, no_wait):
                count = topology.purge(self._queue(channel, queue))
                if not no_wait:
                    self._answer(channel, methods.QueuePurgeOk(count))
            case methods.QueueDelete(queue, if_unused, if_empty, no_wait):
                unwanted = self._queue(channel, queue)
                with self._deferring():
                    count = await topology.delete_queue(unwanted, if_unused=if_unused, if_empty=if_empty)
                    if not no_wait:
                        self._answer(channel, methods.QueueDeleteOk(count))
            case methods.BasicQos(_, count, is_global):
                self._set_prefetch(channel, count, is_global=is_global)
                self._answer(channel, methods.BasicQosOk())
            case methods.BasicConsume():
                await self._consume(channel, method)
            case methods.BasicCancel(tag, no_wait):
                self._cancel(channel, tag)
                if not no_wait:
                    self._answer(channel, methods.BasicCancelOk(tag))
            case methods.BasicGet(queue, no_ack):
                await self._get(channel, self._queue(channel, queue), no_ack=no_ack)
            case methods.BasicAck(tag, multiple):
                self._settle(channel, tag, ACCEPTED, multiple=multiple)
            case methods.BasicReject(tag, requeue):
                self._settle(channel, tag, REQUEUED if requeue else REJECTED, multiple=False)
            case methods.BasicNack(tag, multiple, requeue):
                self._settle(channel, tag, REQUEUED if requeue else REJECTED, multiple=multiple)
            case methods.BasicRecover():
                channel.settle(channel.tags.unacknowledged.take_until(0), REQUEUED)
                self._answer(channel, methods.BasicRecoverOk())
            case methods.BasicRecoverAsync():
                channel.settle(channel.tags.unacknowledged.take_until(0), REQUEUED)
            case methods.ConfirmSelect(no_wait):
                if isinstance(channel.mode, Transaction):
                    raise _failed(method, "cannot switch from tx to confirm mode")
                if isinstance(channel.mode, Plain):
                    channel.mode = Confirms(channel.number)
                if not no_wait:
                    self._answer(channel, methods.ConfirmSelectOk())
            case methods.TxSelect():
                if isinstance(channel.mode, Confirms):
                    raise _failed(method, "cannot switch from confirm to tx mode")
                if isinstance(channel.mode, Plain):
                    channel.mode = Transaction(self._memory.reading)
                self._answer(channel, methods.TxSelectOk())
            case methods.TxCommit():
                await self._commit(channel, _transaction(channel, method), method)
                self._answer(channel, methods.TxCommitOk())
            case methods.TxRollback():
                for taken in _transaction(channel, method).roll_back():
                    channel.tags.unacknowledged.restore(taken)
                self._answer(channel, methods.TxRollbackOk())
            case methods.DirectPut() if self._direct is not None:
                self._answer(channel, methods.DirectPutOk(await self._direct.put(channel, method)))
            case methods.DirectGet() if self._direct is not None:
                self._answer(channel, methods.DirectGetOk(self._direct.get(method)))
            case _:
                name = type(method).__name__
                raise ConnectionProblem(
                    ReplyCode.NOT_IMPLEMENTED, f"{name} is not known here", method.CLASS, method.METHOD
                )

    # -- exchanges and queues ------------------------------------------------------------------------------

    def _queue(self, channel: AmqpChannel, name: bytes) -> bytes:
        """Return the name of a queue; an empty one means the last queue that was declared on the channel.

        Raises Refused.
        """
        if name:
            return name
        if channel.last_queue is None:
            raise Refused(Reason.NOT_FOUND, "no queue was declared on this channel")
        return channel.last_queue

    async def _declare_exchange(self, method: methods.ExchangeDeclare) -> None:
        if method.passive:
            self._topology.find_exchange(method.exchange)
            return
        await self._topology.declare_exchange(
            method.exchange,
            method.type,
            method.arguments,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
        )

    async def _declare_queue(self, channel: AmqpChannel, method: methods.QueueDeclare) -> None:
        if method.queue == REPLIES or method.queue.startswith(REPLIES + b"."):
            state = self._topology.find_replies(method.queue)
        elif method.passive:
            state = self._topology.find_queue(self._queue(channel, method.queue))
        else:
            name = method.queue or self._topology.generate()
            options = options_of(method)
            if isinstance(options, StreamDeclared):
                state = await self._topology.declare_stream(name, options.sync)
            else:
                state = await self._topology.declare_queue(name, options)
        channel.last_queue = state.name
        if not method.no_wait:
            self._answer(channel, methods.QueueDeclareOk(state.name, state.messages, state.consumers))

    # -- consumers -----------------------------------------------------------------------------------------

    def _set_prefetch(self, channel: AmqpChannel, count: int, *, is_global: bool) -> None:
        if is_global:
            if channel.shared is not None and count:
                channel.shared.set(count)
                return
            channel.shared = SharedWindow(count) if count else None
            for consumer in channel.consumers.values():
                self._share(channel, consumer)
            return
        # RabbitMQ spares consumers that run. Celery raises it for one, and its tasks would starve.
        channel.prefetch = count
        for consumer in channel.consumers.values():
            consumer.grant(self._topology.window(count))

    def _share(self, channel: AmqpChannel, consumer: Consumer) -> None:
        if consumer.channel is not None and not consumer.no_ack:
            consumer.channel.share(channel.shared)

    async def _consume(self, channel: AmqpChannel, method: methods.BasicConsume) -> None:
        tag = method.consumer_tag or b"amq.ctag-" + secrets.token_urlsafe(TAG_OCTETS).encode()
        if tag in channel.consumers or tag in channel.fed:
            text = f"attempt to reuse consumer tag {quoted(tag)}"
            raise ConnectionProblem(ReplyCode.NOT_ALLOWED, text, method.CLASS, method.METHOD)
        if method.queue == REPLIES:
            queue = await self._make_reply_queue(channel, method)
        else:
            queue = self._queue(channel, method.queue)
        if self._direct is not None and (feed := self._direct.feed(queue)) is not None:
            channel.fed[tag] = feed
            feed.resume()
            if not method.no_wait:
                self._answer(channel, methods.BasicConsumeOk(tag))
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
        channel.consumers[tag] = made
        self._share(channel, made)
        made.grant(self._topology.window(channel.prefetch))
        if method.no_wait:
            made.start()
        else:
            self._answer(channel, methods.BasicConsumeOk(tag), made.start)

    async def _make_reply_queue(self, channel: AmqpChannel, method: methods.BasicConsume) -> bytes:
        if not method.no_ack:
            raise _failed(method, "reply consumer cannot acknowledge")
        if channel.reply_queue is not None:
            raise _failed(method, "reply consumer already set")
        channel.reply_queue = await self._topology.make_reply_queue()
        return channel.reply_queue

    def _make(
        self,
        channel: AmqpChannel,
        method: methods.BasicConsume,
        tag: bytes,
        is_stream: bool,
        topic: model.Topic,
        place: Callable[[], None],
    ) -> Consumer:
        framing = self._framing(channel, tag, topic.topic, is_stream=is_stream)
        return Consumer(
            tag,
            topic,
            self._sender,
            channel.contents,
            ConsumerForm(framing, channel.tags, no_ack=method.no_ack),
            self._woken,
            place,
            partial(self._ended, channel),
            partial(self._unreadable, channel),
            no_ack=method.no_ack,
        )

    def _framing(
        self, channel: AmqpChannel, tag: bytes, queue: bytes, *, is_stream: bool = False
    ) -> delivery.ConsumerFraming:
        """Return how messages of this queue are framed. Those of omq come without a head."""
        return delivery.ConsumerFraming(
            channel.number,
            tag,
            self._publishing.frame_max,
            b"\0" + bytes([len(queue)]) + queue + b"\0\0",
            is_stream=is_stream,
            is_openamq=self._publishing.is_openamq,
        )

    def _ended(self, channel: AmqpChannel, consumer: Consumer) -> None:
        """Remove a consumer whose queue was deleted, and tell the client if it wants to know."""
        _leave_replies(channel, consumer)
        if channel.consumers.pop(consumer.tag, None) is None or not self._tells_cancels:
            return
        told = methods.BasicCancel(consumer.tag, no_wait=True)
        if self._deferred is None:
            self._answer(channel, told)
        else:
            self._deferred.append((channel, told))

    @contextmanager
    def _deferring(self) -> Iterator[None]:
        """Tell consumers at the end of the block that their queue was deleted."""
        deferred = self._deferred = []
        try:
            yield
        finally:
            self._deferred = None
            for channel, told in deferred:
                self._answer(channel, told)

    def _unreadable(self, channel: AmqpChannel, consumer: Consumer, why: str) -> None:
        self._fail(channel, ChannelProblem(ReplyCode.INTERNAL_ERROR, why))

    def _cancel(self, channel: AmqpChannel, tag: bytes) -> None:
        feed = channel.fed.pop(tag, None)
        if feed is not None:
            feed.pause()
            return
        consumer = channel.consumers.pop(tag, None)
        if consumer is None:
            return
        _leave_replies(channel, consumer)
        consumer.cancel()
        channel.cancelled.append(consumer)
        for each in list(channel.cancelled):
            if not each.has_unacknowledged:
                each.close()
                channel.cancelled.remove(each)

    async def _replay(self, queue: bytes, method: methods.BasicConsume) -> model.Replay:
        """Return where the consumer of a stream begins. Raise Refused and ChannelProblem."""
        value = _argument(method.arguments, b"x-stream-offset")
        offset = read_offset(value)
        match offset:
            case None:
                raise _failed(method, f"invalid x-stream-offset for queue {quoted(queue)}")
            case FromLast():
                return self._topology.from_last(queue)
            case FromTime(seconds):
                return await self._topology.from_time(queue, seconds)
            case FromAgo(seconds):
                return await self._topology.from_ago(queue, seconds)
            case _:
                return offset

    # -- messages ------------------------------------------------------------------------------------------

    async def _get(self, channel: AmqpChannel, queue: bytes, *, no_ack: bool) -> None:
        self._topology.check_get(queue)
        getter = channel.getters.get((queue, no_ack))
        if getter is None:

            def forget() -> None:
                channel.getters.pop((queue, no_ack), None)

            getter = self._topology.open_getter(queue, GetSubscriber(forget))
            self._sender.forwarder.opened(getter.channel)
            channel.getters[queue, no_ack] = getter
            if not no_ack:
                getter.grant()
        dealt = await getter.deal_one()
        if channel.is_over:
            return  # its getters are closed, so the message is in the queue again
        if not dealt:
            self._answer(channel, methods.BasicGetEmpty())
            return
        framing = self._framing(channel, b"", queue)
        form = GetForm(framing, channel.tags, getter, no_ack=no_ack)
        await GetTurn(self._sender, channel.contents, getter, form).leave()

    def _settle(self, channel: AmqpChannel, tag: int, outcome: Outcome, *, multiple: bool) -> None:
        """Settle the message with this tag, or all up to it with `multiple`. Raise UnknownTag."""
        unacknowledged = channel.tags.unacknowledged
        taken = unacknowledged.take_until(tag) if multiple else unacknowledged.take(tag, tag)
        channel.settle(taken, outcome)

    async def _commit(self, channel: AmqpChannel, transaction: Transaction, method: Method) -> None:
        runs, acknowledged = transaction.take()
        try:
            for run in runs:
                await self._publishing.publish(channel, run, whole=True)
        except ChannelProblem:
            self._publishing.drop()
            raise
        if channel.is_over:
            self._publishing.drop()
            return
        await self._publishing.flush()
        await settled(transaction.posted)
        for part in transaction.posted:
            for failure in part.failures().values():
                if failure.reason is not Reason.OVERFLOW:  # which only confirms tell
                    raise problem_of(failure, type(method))
        for taken, outcome in acknowledged:
            taken.settle(outcome)


def _leave_replies(channel: AmqpChannel, consumer: Consumer) -> None:
    """Forget the queue of direct replies if this consumer, which is gone, was its one: there may be
    another.
    """
    if consumer.topic.topic == channel.reply_queue:
        channel.reply_queue = None


def _failed(method: Method, text: str) -> ChannelProblem:
    return ChannelProblem(ReplyCode.PRECONDITION_FAILED, text, method.CLASS, method.METHOD)


def _transaction(channel: AmqpChannel, method: Method) -> Transaction:
    if not isinstance(channel.mode, Transaction):
        raise _failed(method, "channel is not transactional")
    return channel.mode


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
            raise _failed(method, "invalid arg 'x-priority': it is no number")
