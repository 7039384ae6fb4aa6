"""Executes the publishes, acknowledgements and methods of the client of an open connection.

The terminal gives each event to the service in order. The service knows nothing of the states of the
connection, except that it is open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from omq.access.leases import Principal
from omq.access.session import Session
from omq.access.topology import Topology
from omq.drivers.seam import ACCEPTED
from omq.drivers.slices import Slices
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.events import (
    AckRun,
    ChannelFault,
    LongBegun,
    LongEnded,
    LongPart,
    MethodCalled,
    PublishRun,
)
from omq.protocol.amqp_0_9.frames import method_frame
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.problems import ChannelProblem, ReplyCode
from omq.terminals.amqp_0_9.channel import AmqpChannel
from omq.terminals.amqp_0_9.channels import Channels
from omq.terminals.amqp_0_9.commands import Commands
from omq.terminals.amqp_0_9.consuming import Consuming
from omq.terminals.amqp_0_9.contents import Contents
from omq.terminals.amqp_0_9.direct import DirectLeases
from omq.terminals.amqp_0_9.long_publishes import LongPublishes
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.amqp_0_9.publishing import Publishing
from omq.terminals.amqp_0_9.ready_frames import ReadyFrames
from omq.terminals.amqp_0_9.transactions import Transaction
from omq.terminals.amqp_0_9.unacknowledged import UnknownTag
from omq.terminals.connection.context import Context
from omq.terminals.connection.duplex import Duplex

Served = PublishRun | AckRun | MethodCalled | LongBegun | LongPart | LongEnded | ChannelFault
"""The events of an open connection that the service executes."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The session of a client that has logged in, also while the connection closes."""

    session: Session
    topology: Topology
    principal: Principal
    user: bytes
    """The name with which it logged in."""
    wants_cancels: bool
    """Whether it wants to know that the queue of a consumer was deleted."""


class Service:
    """The service of one connection."""

    __slots__ = (
        "_channels", "_commands", "_excused", "_frame_max", "_long", "_outbox", "_ready", "_sender", "_tell",
        "publishing",
    )  # fmt: skip

    def __init__(
        self,
        client: LoggedIn,
        context: Context,
        duplex: Duplex,
        channels: Channels,
        outbox: Outbox,
        ready: ReadyFrames,
        peer: str,
        frame_max: int,
    ) -> None:
        """Create the service of a client that gets frames of at most `frame_max` octets."""
        self._channels = channels
        self._outbox = outbox
        self._ready = ready
        self._sender = sender = duplex.sender
        self._excused = excused = duplex.excused
        self._frame_max = frame_max
        self._tell = partial(context.log_gap, peer)
        topology, principal = client.topology, client.principal
        self.publishing = publishing = Publishing(
            topology.publishing,
            outbox,
            client.user,
            excused,
            context.at_once,
            frame_max,
            is_openamq=principal.is_openamq,
        )
        self._long = LongPublishes(topology.publishing, publishing, channels.long)
        direct = DirectLeases(topology, principal, outbox, frame_max) if context.config.amqp_direct else None
        consuming = Consuming(
            topology,
            publishing,
            outbox,
            sender,
            channels.fail,
            direct,
            ready.woken,
            context.begin,
            tells_cancels=client.wants_cancels,
        )
        self._commands = Commands(
            topology, publishing, outbox, sender, context.memory, excused, direct, consuming
        )

    async def execute(self, event: Served) -> None:
        """Execute an event. Raises ConnectionProblem."""
        match event:
            case PublishRun():
                self._channels.published += event.batch.count
                await self._publish(event)
            case AckRun(number, ranges):
                await self._acknowledge(number, ranges)
            case MethodCalled(number, method):
                await self.publishing.flush()
                await self._call(number, method)
            case LongBegun(number) | LongPart(number) | LongEnded(number):
                await self._publish_long(number, event)
            case ChannelFault(number, problem):
                await self.publishing.flush()
                self._channels.close(number, problem)
            case _:
                assert_never(event)

    async def _call(self, number: int, method: Method) -> None:
        if not number:
            assert isinstance(method, methods.ConnectionUpdateSecret)
            self._outbox.add(method_frame(0, methods.ConnectionUpdateSecretOk()))
            return
        if isinstance(method, methods.ChannelOpen):
            contents = Contents(number, self._sender, self._outbox, self._tell, self._frame_max)
            self._channels.open[number] = AmqpChannel(number, contents, self._ready.changed)
        channel = self._channels.open.get(number)
        if channel is None:
            return  # it failed meanwhile
        try:
            await self._commands.act(channel, method)
        except ChannelProblem as problem:
            self._channels.fail(channel, problem)

    async def _publish(self, run: PublishRun) -> None:
        channel = self._channels.open.get(run.channel)
        if channel is None:
            return
        if isinstance(channel.mode, Transaction):
            if not channel.mode.hold(run):
                text = "the transaction has more messages than there is memory for"
                self._channels.fail(channel, ChannelProblem(ReplyCode.RESOURCE_ERROR, text))
            return
        try:
            await self.publishing.publish(channel, run)
        except ChannelProblem as problem:
            await self.publishing.flush()
            self._channels.fail(channel, problem)

    async def _publish_long(self, number: int, event: LongBegun | LongPart | LongEnded) -> None:
        channel = self._channels.open.get(number)
        if channel is None:
            return
        try:
            match event:
                case LongBegun():
                    must_hold = isinstance(channel.mode, Transaction)
                    may_wait = not any(each.is_consuming for each in self._channels.open.values())
                    with self._excused:
                        await self._long.begin(channel, event, must_hold=must_hold, may_wait=may_wait)
                case LongPart(_, octets):
                    with self._excused:
                        await self._long.add(number, octets)
                case LongEnded():
                    self._channels.published += 1
                    run = await self._long.end(channel, number)
                    if run is not None:
                        await self._publish(run)
                case _:
                    assert_never(event)
        except ChannelProblem as problem:
            self._channels.fail(channel, problem)

    async def _acknowledge(self, number: int, ranges: Sequence[tuple[int, int]]) -> None:
        channel = self._channels.open.get(number)
        if channel is None:
            return
        unacknowledged = channel.tags.unacknowledged
        try:
            slices = Slices()
            for first, last in unacknowledged.without_included(ranges):
                await slices.step()
                if channel.is_over:
                    return  # the sender may close it
                portions = unacknowledged.take(first, last) if first else unacknowledged.take_until(last)
                await channel.settle(portions, ACCEPTED)
        except UnknownTag as unknown:
            ids = methods.BasicAck.CLASS, methods.BasicAck.METHOD
            self._channels.fail(channel, ChannelProblem(ReplyCode.PRECONDITION_FAILED, str(unknown), *ids))

    # -- ends ----------------------------------------------------------------------------------------------

    async def close(self, number: int) -> None:
        """End a channel that the client has closed, after the outcomes of what was published on it."""
        await self.publishing.flush()
        with self._excused:
            if (closed := self._channels.open.get(number)) is not None:
                await closed.settled()
            self._channels.drop(number)
            await self._channels.endings.finish()
        self._outbox.add(method_frame(number, methods.ChannelCloseOk()), channel=number)

    async def close_all(self) -> None:
        """End all channels, because the client has closed the connection."""
        await self.publishing.flush()
        with self._excused:
            await self._channels.settled()
            self._channels.drop_all()
            await self._channels.endings.finish()
