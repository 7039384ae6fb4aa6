"""Basic.Get: one message of a queue, or the answer that it is empty.

The message leaves in a turn of the sender, like those of consumers: so a large one is sent piece by piece,
and a client that stalls holds one piece at most. The next methods of the connection are executed after it.
"""

from collections.abc import Callable, Sequence

import trio

from omq.access.getter import Getter
from omq.drivers.seam import Channel, CursorChannel, EndReason, MessageOutline, Octets, Selection
from omq.protocol.amqp_0_9.delivery import ConsumerFraming, complete, get_opening
from omq.protocol.amqp_0_9.frames import body_frames
from omq.terminals.amqp_0_9.contents import Contents
from omq.terminals.amqp_0_9.forms import MessageInPieces, Tags
from omq.terminals.connection.sender import Sender
from omq_storage.blocks import FRAME_HEADER


class GetForm:
    """The form of one message that a client asked for. It gets a new tag each time it is framed, because
    consumers of its channel may have been sent messages in the meantime.
    """

    def __init__(self, consumer: ConsumerFraming, tags: Tags, getter: Getter, *, no_ack: bool) -> None:
        self.framed = 0
        self.has_left = False
        """Whether the client gets the message: its first octet has left, or is just about to."""
        self._consumer = consumer
        self._tags = tags
        self._getter = getter
        self._no_ack = no_ack
        self._tag = 0
        """The tag with which the message was framed last."""
        self._is_begun = False
        """Whether `whole` framed more of the message than the socket took."""

    def _opening(self, head: bytes, size: int, deliveries: int) -> bytes:
        return get_opening(self._consumer, self._tag, self._getter.ready, head, size, deliveries)

    def whole(self, selections: Sequence[Selection]) -> Sequence[Octets]:
        parts: list[Octets] = []
        self.framed = len(selections)
        self.has_left = True  # `sent` is called if not all of it leaves
        for selection in selections:
            (message,) = selection.ids
            self._tag = self._tags.take(1)
            self._remember(message)
            body = memoryview(selection.block.frame(message))[FRAME_HEADER:]
            parts.append(self._opening(selection.block.head(message), len(body), selection.deliveries))
            parts += body_frames(self._consumer.channel, body, self._consumer.frame_max)
        return parts

    def sent(self, selections: Sequence[Selection], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        count, begun = complete(parts, octets)
        self._is_begun = begun > 0
        self.has_left = bool(count or begun)
        if not self.has_left:
            self._tags.unacknowledged.drop(self._tag, 1)
        return count, begun

    def begin(self, message: MessageOutline) -> MessageInPieces:
        is_begun, self._is_begun = self._is_begun, False
        if not is_begun:
            self._tag = self._tags.take(1)
        opening = self._opening(message.head, message.size, message.deliveries)

        def begun() -> None:
            self.has_left = True
            self._remember(message.message)

        return MessageInPieces(self._consumer, opening, message.size, None if is_begun else begun)

    def _remember(self, message: int) -> None:
        if not self._no_ack:
            unacknowledged = self._tags.unacknowledged
            unacknowledged.add(self._tag, range(message, message + 1), self._getter.channel)


class GetTurn:
    """The turn of one message that was got."""

    is_exempt = False
    work = None
    after = 0

    def __init__(self, sender: Sender, contents: Contents, getter: Getter, form: GetForm) -> None:
        self._sender = sender
        self._contents = contents
        self._getter = getter
        self._form = form
        self._sent = trio.Event()

    @property
    def flow(self) -> CursorChannel | None:
        return None

    async def take_turn(self) -> bool:
        channel = self._getter.channel
        try:
            # It may be found to be lost: then there is nothing to send.
            if not await self._contents.send(
                self, self._getter.topic.topic, channel, self._form, lambda: True
            ):
                return False
        except BaseException:
            self._sent.set()
            raise
        if self._contents.is_begun_by(self) or channel.ready():
            return True
        self._sent.set()
        return False

    async def leave(self) -> bool:
        """Wait until the message is sent. Return False if it is not: the client stalled, and the message is
        in the queue again, or the message is damaged.
        """
        self._sender.ready(self)
        try:
            await self._sent.wait()
        finally:
            self._contents.leave(self)
        return self._form.has_left


class GetSubscriber:
    """The terminal's side of a getter, which is never woken."""

    direct = None

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def wake(self) -> None:
        pass

    def replaced(self, channel: Channel) -> None:
        self._ended()

    def ended(self, end: EndReason) -> None:
        self._ended()
