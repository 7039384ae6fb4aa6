"""The frames of one connection that become ready while the input of any connection is executed: answers,
confirms, and the messages of its consumers.

The task that executes the input sends them, if nothing waits to be sent on this connection before
(`omq.drivers.immediate_sends`). Otherwise the sending task of the connection does.
"""

from omq.drivers.immediate_sends import ImmediateSends
from omq.terminals.amqp_0_9.channel import AmqpChannel
from omq.terminals.amqp_0_9.channels import Channels
from omq.terminals.amqp_0_9.consumers import Consumer
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.connection.sender import Sender


class ReadyFrames:
    """The ready frames of one connection (`omq.drivers.immediate_sends.ImmediateSender`)."""

    __slots__ = ("_at_once", "_channels", "_outbox", "_sender", "_woken")

    def __init__(self, channels: Channels, outbox: Outbox, sender: Sender, at_once: ImmediateSends) -> None:
        self._channels = channels
        self._outbox = outbox
        self._sender = sender
        self._at_once = at_once
        self._woken: dict[Consumer, None] = {}
        """The consumers that may have messages, until `send_soon` or `send_at_once` is called."""

    def changed(self, channel: AmqpChannel) -> None:
        """Note that a channel may have confirms, or has failed."""
        self._channels.changed[channel] = None
        self._at_once.add(self)

    def woken(self, consumer: Consumer) -> None:
        """Note that a consumer may have messages."""
        self._woken[consumer] = None
        self._at_once.add(self)

    def send_at_once(self) -> None:
        if not self._sender.may_send_at_once():
            self.send_soon()
            return
        may_send = True
        if (self._outbox or self._channels.changed) and (answers := self._channels.answers()):
            self._sender.send_at_once(answers, ())
            may_send = bool(self._woken) and self._sender.may_send_at_once()
        woken, self._woken = self._woken, {}
        for consumer in woken:
            if may_send:
                consumer.send_at_once()
                may_send = len(woken) == 1 or self._sender.may_send_at_once()
            else:
                consumer.send_soon()

    def send_soon(self) -> None:
        woken, self._woken = self._woken, {}
        for consumer in woken:
            consumer.send_soon()
        self._sender.signal.set()
