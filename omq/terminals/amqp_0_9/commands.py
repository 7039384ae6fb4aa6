"""Executes the methods that a client calls on a channel, except publishes."""

import trio

from omq.access.routed_publishing import REPLIES
from omq.access.topology import IsStream, Topology
from omq.drivers.memory import Memory
from omq.drivers.problems import for_clients
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import ACCEPTED, REJECTED, Modified, Outcome
from omq.drivers.slices import Slices
from omq.exchanges.types import Destination, DestinationKind
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem, ReplyCode
from omq.terminals.amqp_0_9.arguments import StreamDeclared, options_of
from omq.terminals.amqp_0_9.channel import AmqpChannel, Plain
from omq.terminals.amqp_0_9.confirms import Confirms
from omq.terminals.amqp_0_9.consuming import Consuming
from omq.terminals.amqp_0_9.direct import DirectLeases
from omq.terminals.amqp_0_9.getting import GetForm, GetSubscriber, GetTurn
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.amqp_0_9.posts import LOOKED_IN_TURN
from omq.terminals.amqp_0_9.publishing import Publishing
from omq.terminals.amqp_0_9.refusals import failed, problem_of
from omq.terminals.amqp_0_9.transactions import Transaction
from omq.terminals.amqp_0_9.unacknowledged import PORTION, Returning, UnknownTag
from omq.terminals.connection.liveness import LivenessPause
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.turns import RUNS_IN_TURN
from omq_storage.errors import StoreError

REQUEUED = Modified(delivery_failed=True)
"""The outcome of a message that returns to its queue: it counts one delivery more."""

LOOKING = (
    methods.BasicConsume, methods.BasicGet, methods.QueueDeclare, methods.QueueDelete, methods.QueuePurge,
    methods.TxCommit,
)  # fmt: skip
"""The methods whose answers depend on the contents of a queue, or what they deliver first, as the messages of
a queue with priorities.
"""


class Commands:
    """The executor of one connection."""

    def __init__(
        self,
        topology: Topology,
        publishing: Publishing,
        outbox: Outbox,
        sender: Sender,
        memory: Memory,
        excused: LivenessPause,
        direct: DirectLeases | None,
        consuming: Consuming,
    ) -> None:
        """Create the commands of a connection. Within `excused` the silence of the client does not count.
        `direct` is None if there is no direct mode.
        """
        self._topology = topology
        self._publishing = publishing
        self._outbox = outbox
        self._sender = sender
        self._memory = memory
        self._excused = excused
        self._direct = direct
        self._consuming = consuming

    async def act(self, channel: AmqpChannel, method: Method) -> None:
        """Execute a method, and answer it. Raises ChannelProblem and ConnectionProblem.

        A method that looks into a queue finds the messages that were published before on the same channel.
        The channel may fail while this waits: then nothing more is opened on it, and there is no answer.
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
            raise failed(method, str(unknown)) from unknown
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
                channel.answer(self._outbox, methods.ChannelOpenOk())
            case methods.ChannelFlow(active):
                await channel.flow(active)
                channel.answer(self._outbox, methods.ChannelFlowOk(active))
            case methods.ChannelFlowOk() | methods.BasicCancelOk():
                pass
            case methods.AccessRequest():
                channel.answer(self._outbox, methods.AccessRequestOk())
            case methods.ExchangeDeclare():
                await self._declare_exchange(method, in_one_line(method.exchange))
                if not method.no_wait:
                    channel.answer(self._outbox, methods.ExchangeDeclareOk())
            case methods.ExchangeDelete(exchange, if_unused, no_wait):
                await topology.delete_exchange(in_one_line(exchange), if_unused=if_unused)
                if not no_wait:
                    channel.answer(self._outbox, methods.ExchangeDeleteOk())
            case methods.ExchangeBind(destination, source, key, no_wait, arguments):
                await topology.bind(
                    source, Destination(DestinationKind.EXCHANGE, destination), key, arguments
                )
                if not no_wait:
                    channel.answer(self._outbox, methods.ExchangeBindOk())
            case methods.ExchangeUnbind(destination, source, key, no_wait, arguments):
                await topology.unbind(
                    source, Destination(DestinationKind.EXCHANGE, destination), key, arguments
                )
                if not no_wait:
                    channel.answer(self._outbox, methods.ExchangeUnbindOk())
            case methods.QueueDeclare():
                await self._declare_queue(channel, method)
            case methods.QueueBind(queue, exchange, key, no_wait, arguments):
                bound = channel.queue_named(queue)
                # With both names empty the name of the queue is the key, too.
                key = key if queue or key else bound
                await topology.bind(exchange, Destination(DestinationKind.QUEUE, bound), key, arguments)
                if not no_wait:
                    channel.answer(self._outbox, methods.QueueBindOk())
            case methods.QueueUnbind(queue, exchange, key, arguments):
                bound = channel.queue_named(queue)
                key = key if queue or key else bound
                await topology.unbind(exchange, Destination(DestinationKind.QUEUE, bound), key, arguments)
                channel.answer(self._outbox, methods.QueueUnbindOk())
            case methods.QueuePurge(queue, no_wait):
                count = await topology.purge(channel.queue_named(queue))
                if not no_wait:
                    channel.answer(self._outbox, methods.QueuePurgeOk(count))
            case methods.QueueDelete(queue, if_unused, if_empty, no_wait):
                unwanted = channel.queue_named(in_one_line(queue))
                async with self._consuming.deferring():
                    count = await topology.delete_queue(unwanted, if_unused=if_unused, if_empty=if_empty)
                    if not no_wait:
                        channel.answer(self._outbox, methods.QueueDeleteOk(count))
            case methods.BasicQos(_, count, is_global):
                await self._consuming.set_prefetch(channel, count, is_global=is_global)
                channel.answer(self._outbox, methods.BasicQosOk())
            case methods.BasicConsume():
                await self._consuming.consume(channel, method)
            case methods.BasicCancel(tag, no_wait):
                await self._consuming.cancel(channel, tag)
                if not no_wait:
                    channel.answer(self._outbox, methods.BasicCancelOk(tag))
            case methods.BasicGet(queue, no_ack):
                await self._get(channel, channel.queue_named(queue), no_ack=no_ack)
            case methods.BasicAck(tag, multiple):
                await self._settle(channel, tag, ACCEPTED, multiple=multiple)
            case methods.BasicReject(tag, requeue):
                await self._settle(channel, tag, REQUEUED if requeue else REJECTED, multiple=False)
            case methods.BasicNack(tag, multiple, requeue):
                await self._settle(channel, tag, REQUEUED if requeue else REJECTED, multiple=multiple)
            case methods.BasicRecover():
                # The answer goes first: deliveries before it return, and those after it stay.
                channel.answer(self._outbox, methods.BasicRecoverOk())
                await channel.recover(REQUEUED)
            case methods.BasicRecoverAsync():
                await channel.recover(REQUEUED)
            case methods.ConfirmSelect(no_wait):
                if isinstance(channel.mode, Transaction):
                    raise failed(method, "cannot switch from tx to confirm mode")
                if isinstance(channel.mode, Plain):
                    channel.mode = Confirms(channel.number)
                if not no_wait:
                    channel.answer(self._outbox, methods.ConfirmSelectOk())
            case methods.TxSelect():
                if isinstance(channel.mode, Confirms):
                    raise failed(method, "cannot switch from confirm to tx mode")
                if isinstance(channel.mode, Plain):
                    channel.mode = Transaction(self._memory.reading)
                channel.answer(self._outbox, methods.TxSelectOk())
            case methods.TxCommit():
                await self._commit(channel, _transaction(channel, method), method)
                channel.answer(self._outbox, methods.TxCommitOk())
            case methods.TxRollback():
                await self._roll_back(channel, _transaction(channel, method))
                channel.answer(self._outbox, methods.TxRollbackOk())
            case methods.DirectPut() if self._direct is not None:
                channel.answer(self._outbox, methods.DirectPutOk(await self._direct.put(channel, method)))
            case methods.DirectGet() if self._direct is not None:
                channel.answer(self._outbox, methods.DirectGetOk(self._direct.get(method)))
            case _:
                name = type(method).__name__
                raise ConnectionProblem(
                    ReplyCode.NOT_IMPLEMENTED, f"{name} is not known here", method.CLASS, method.METHOD
                )

    # -- exchanges and queues ------------------------------------------------------------------------------

    async def _declare_exchange(self, method: methods.ExchangeDeclare, exchange: bytes) -> None:
        if method.passive:
            self._topology.find_exchange(exchange)
            return
        await self._topology.declare_exchange(
            exchange,
            method.type,
            method.arguments,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
        )

    async def _declare_queue(self, channel: AmqpChannel, method: methods.QueueDeclare) -> None:
        queue = in_one_line(method.queue)
        if queue == REPLIES or queue.startswith(REPLIES + b"."):
            state = self._topology.find_replies(queue)
        elif method.passive:
            state = self._topology.find_queue(channel.queue_named(queue))
        else:
            name = queue or self._topology.generate()
            options = options_of(method)
            if isinstance(options, StreamDeclared):
                state = await self._topology.declare_stream(
                    name, options.sync, options.most_octets, options.most_ms
                )
            else:
                state = await self._topology.declare_queue(name, options)
        channel.last_queue = state.name
        if not method.no_wait:
            channel.answer(self._outbox, methods.QueueDeclareOk(state.name, state.messages, state.consumers))

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
        framing = self._consuming.framing(channel, b"", queue)
        while await getter.deal_one():
            if channel.is_over:
                return  # its getters are closed, so the message is in the queue again
            form = GetForm(framing, channel.tags, getter, no_ack=no_ack)
            if await GetTurn(self._sender, channel.contents, getter, form).leave() or channel.is_over:
                return
        channel.answer(self._outbox, methods.BasicGetEmpty())

    async def _settle(self, channel: AmqpChannel, tag: int, outcome: Outcome, *, multiple: bool) -> None:
        """Settle the message with this tag, or all up to it with `multiple`. Raise UnknownTag."""
        unacknowledged = channel.tags.unacknowledged
        portions = unacknowledged.take_until(tag) if multiple else unacknowledged.take(tag, tag)
        if multiple and outcome is REQUEUED:
            await channel.give_back(portions, outcome)
        else:
            await channel.settle(portions, outcome)

    async def _commit(self, channel: AmqpChannel, transaction: Transaction, method: Method) -> None:
        # Everything is freed as it is done: at once that would take long, too.
        runs, acknowledged = transaction.take()
        try:
            number = 0
            while runs:
                number += 1
                if not number % RUNS_IN_TURN:
                    await trio.lowlevel.checkpoint()
                await self._publishing.publish(channel, runs.popleft(), whole=True)
        except ChannelProblem:
            await self._publishing.drop()
            raise
        if channel.is_over:
            await self._publishing.drop()
            return
        await self._publishing.flush()
        number = 0
        while transaction.posted:
            number += 1
            if not number % LOOKED_IN_TURN:
                await trio.lowlevel.checkpoint()
            posted = transaction.posted.popleft()
            await posted.settled()
            for failure in posted.failures().values():
                if failure.reason is Reason.OVERFLOW:
                    raise failed(method, "partial tx completion")
                raise problem_of(failure, type(method))
        slices = Slices()
        returning = Returning()
        with trio.CancelScope(shield=True):  # all of them are settled, or none
            while acknowledged:
                await slices.step()
                taken, outcome = acknowledged.popleft()
                if outcome is REQUEUED:
                    returning.add(taken)
                else:
                    taken.settle(outcome)
            while returning:
                await slices.step()
                returning.take().settle(REQUEUED)

    async def _roll_back(self, channel: AmqpChannel, transaction: Transaction) -> None:
        for number, taken in enumerate(transaction.roll_back(), 1):
            if not number % PORTION:
                await trio.lowlevel.checkpoint()
                if channel.is_over:
                    return
            if taken is not None:
                channel.tags.unacknowledged.restore(taken)


def in_one_line(name: bytes) -> bytes:
    """Return the name that a declaration or a deletion means: as with RabbitMQ it has no ends of lines."""
    return name.replace(b"\r", b"").replace(b"\n", b"")


def _transaction(channel: AmqpChannel, method: Method) -> Transaction:
    if not isinstance(channel.mode, Transaction):
        raise failed(method, "channel is not transactional")
    return channel.mode
