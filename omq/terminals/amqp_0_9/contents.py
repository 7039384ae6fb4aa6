"""Determines the source of a channel that may send a message now.

A message consists of several frames: a method, a header, and the frames of its body. No other frame of its
channel may come between them. Between two pieces of a long body, other channels have their turns.
A message that is in memory leaves in pieces, too: to frame all of a long one takes long if the client wants
short frames.
"""

from collections.abc import Callable

from omq.drivers.seam import LITTLE_OCTETS, Channel, Unavailable
from omq.protocol.amqp_0_9.frames import OVERHEAD
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.connection.forms import Form
from omq.terminals.connection.remainders import Unfinished
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.shared_turns import MessageSource


class Contents:
    """The messages of one channel, one after another."""

    def __init__(
        self,
        channel: int,
        sender: Sender,
        outbox: Outbox,
        tell: Callable[[bytes, Unavailable], None],
        frame_max: int,
    ) -> None:
        """Create the contents of a channel, none of them begun. `tell` logs that messages of a topic are
        gone.
        """
        room = frame_max - OVERHEAD
        self._piece = room * max(1, LITTLE_OCTETS // room)
        """The octets of a piece of a long message in memory: one frame, or several short ones."""
        self._channel = channel
        self._sender = sender
        self._outbox = outbox
        self._tell = tell
        self._left: Unfinished | None = None
        self._source: MessageSource | None = None
        """The source whose message is begun."""
        self._waiting: dict[MessageSource, None] = {}
        self.is_over = False
        """Whether the channel is over: then no message begins."""
        self.is_abandoned = False
        """Whether its connection ends, so that a message that is begun does not go on."""

    @property
    def is_clear(self) -> bool:
        """Whether no message is begun, and no answer waits to be sent before the next one."""
        return self._source is None and not self._outbox

    def is_begun_by(self, source: MessageSource) -> bool:
        """Return whether a message of this source is begun, and must be completed."""
        return self._source is source

    async def send(
        self, source: MessageSource, topic: bytes, channel: Channel, form: Form, is_wanted: Callable[[], bool]
    ) -> bool:
        """Send the messages that the channel of the seam has ready, if they are still wanted, or the next
        piece of a message that has begun. Return False if the source must wait: it is ready again when the
        message of another one is sent.

        Raises as `Forwarder.forward`.
        """
        forwarder = self._sender.forwarder
        if self._source not in (None, source):
            self._waiting[source] = None
            return False
        left, self._left = self._left, None
        try:
            sent: Unavailable | Unfinished | None
            if left is None:
                sent = await forwarder.forward_piece(topic, channel, form, is_wanted, self._piece)
            else:
                sent = await forwarder.go_on(topic, channel, left)
        except BaseException:
            self.leave(source)
            raise
        if isinstance(sent, Unavailable):
            self._tell(topic, sent)  # AMQP has no way to tell the client
        if isinstance(sent, Unfinished):
            self._left, self._source = sent, source
            self._outbox.hold(self._channel)
        else:
            self.leave(source)
        return True

    def leave(self, source: MessageSource) -> None:
        """Remove a source that sends nothing more, or pauses."""
        self._waiting.pop(source, None)
        if self._source is not source:
            return
        left, self._source, self._left = self._left, None, None
        if left is not None:
            self._sender.forwarder.paused.drop(left)
        self._outbox.release(self._channel)
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            self._sender.ready(each)
