"""The channels of one connection: those that are open, their confirms, and their ends."""

from collections.abc import Iterator
from functools import partial

from omq.drivers.seam import Channel, Octets
from omq.drivers.slices import Slices
from omq.model import Topic
from omq.protocol.amqp_0_9.methods import BasicPublish
from omq.protocol.amqp_0_9.problems import ChannelProblem
from omq.protocol.amqp_0_9.server import ServerConnection
from omq.terminals.amqp_0_9.channel import AmqpChannel
from omq.terminals.amqp_0_9.long_publishes import LongMessages
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.amqp_0_9.posts import LOOKED_IN_TURN
from omq.terminals.amqp_0_9.refusals import problem_of
from omq.terminals.connection.duplex import Duplex
from omq.terminals.connection.endings import Endings, EndTurns


class Channels:
    """The channels of one connection."""

    __slots__ = ("_duplex", "_outbox", "_protocol", "changed", "endings", "long", "open", "published")

    def __init__(
        self, duplex: Duplex, protocol: ServerConnection, outbox: Outbox, end_turns: EndTurns
    ) -> None:
        self._duplex = duplex
        self._protocol = protocol
        self._outbox = outbox
        self.open: dict[int, AmqpChannel] = {}
        """The open channels by their numbers."""
        self.changed: dict[AmqpChannel, None] = {}
        """The channels that may have confirms to send, or have failed."""
        self.endings = Endings(end_turns)
        """The consumers of channels that are over."""
        self.published = 0
        """The number of messages that the client has published on them so far."""
        self.long = LongMessages()
        """The incomplete long messages that the client publishes on them."""

    @property
    def unconfirmed(self) -> int:
        """The number of messages that were published on them and are not settled."""
        return sum(channel.unconfirmed for channel in self.open.values())

    @property
    def consumers(self) -> int:
        """The number of their consumers."""
        return sum(len(channel.consumers) for channel in self.open.values())

    async def settled(self) -> None:
        """Wait until everything that was published on them is in its queues, or refused."""
        slices = Slices()
        for channel in list(self.open.values()):
            await channel.settled()
            await slices.step()

    def subscribed(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topics and channels of the seam of the consumers that there are now."""
        for channel in list(self.open.values()):
            for consumer in list(channel.consumers.values()):
                if consumer.channel is not None:
                    yield consumer.topic, consumer.channel

    def flowing(self) -> Iterator[Channel]:
        """Yield the channels of the seam, except those that the client has paused. Others may come and go
        meanwhile.
        """
        for channel in list(self.open.values()):
            for consumer in list(channel.consumers.values()):
                if consumer.channel is not None and channel.is_flowing and not consumer.is_paused:
                    yield consumer.channel
            for getter in list(channel.getters.values()):
                yield getter.channel

    def answers(self) -> list[Octets]:
        """Return the answers and confirms that are ready."""
        parts = self._outbox.collect()
        if not self._outbox:  # returned messages must leave before their confirms
            left = LOOKED_IN_TURN
            for channel in list(self.changed):
                if left <= 0:
                    break
                if channel.failure is not None:
                    self.fail(channel, problem_of(channel.failure, BasicPublish))
                elif not self._outbox.is_held(channel.number):
                    del self.changed[channel]
                    confirmed, count = channel.confirmed(left)
                    left -= 1 + count
                    if confirmed:
                        parts.append(confirmed)
                    if left <= 0:
                        self.changed[channel] = None  # it may have more
            if left <= 0:
                self._duplex.sender.signal.set()  # to go on, in turn with other connections
        return parts

    def tell_last(self) -> Iterator[None]:
        """Send the outcomes that are known, in steps: a close of the server follows."""
        for channel in list(self.open.values()):
            looked = LOOKED_IN_TURN
            # The rest of a message that has begun to leave is not sent any more. No confirm may follow its
            # beginning.
            while looked == LOOKED_IN_TURN and not (channel.is_over or self._outbox.is_held(channel.number)):
                confirmed, looked = channel.confirmed(LOOKED_IN_TURN)
                if confirmed:
                    self._outbox.add(confirmed, channel=channel.number)
                yield
            if channel.failure is not None and not channel.is_over:
                self.fail(channel, problem_of(channel.failure, BasicPublish))

    def fail(self, channel: AmqpChannel, problem: ChannelProblem) -> None:
        """End a channel with Channel.Close."""
        self.close(channel.number, problem)

    def close(self, number: int, problem: ChannelProblem) -> None:
        """End the channel with this number with Channel.Close, also if it has none."""
        closing = self._protocol.close_channel(number, problem)
        self.drop(number)
        then = partial(self._outbox.add, closing, channel=number) if closing else None
        self.endings.begin(self._duplex.nursery, then)

    def drop(self, number: int) -> None:
        """End a channel. `Endings.begin` or `Endings.finish` must follow, for its consumers."""
        self.long.drop(number)
        channel = self.open.pop(number, None)
        if channel is not None:
            self.changed.pop(channel, None)
            channel.end(at_once=False)
            self.endings.add(channel)

    def drop_all(self) -> None:
        """End all channels, because the connection ends. As after `drop`, their consumers must follow."""
        self.long.drop_all()
        self.changed.clear()
        channels, self.open = self.open, {}
        for channel in channels.values():
            channel.end(at_once=True)
            self.endings.add(channel)
