"""Messages whose bodies come in parts, because they are too long to be held by the protocol.

If all topics that get a message take it so, its body goes to the disk as it arrives, and takes no memory.
Otherwise it is held until it is complete, in the memory for what is unfinished.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from omq.access.routed_publishing import RoutedPublishing
from omq.access.session import too_large
from omq.drivers.reasons import Reason, Refused
from omq.drivers.routed_topic import RoutedTopic
from omq.drivers.uploads import Upload
from omq.protocol.amqp_0_9.events import LongBegun, PublishRun
from omq.protocol.amqp_0_9.methods import BasicPublish
from omq.protocol.amqp_0_9.problems import ChannelProblem, ReplyCode
from omq.terminals.amqp_0_9.posts import ChannelPost, Group, Publisher
from omq.terminals.amqp_0_9.publishing import Publishing
from omq.terminals.amqp_0_9.refusals import problem_of
from omq_storage.batches import Assembly, Batch, Bodies


@dataclass(slots=True)
class _Held:
    """A message that is held here."""

    run: LongBegun
    body: Assembly


@dataclass(slots=True)
class _Stored:
    """A message whose body is on its way to the disk, for each of its topics."""

    head: bytes
    uploads: list[Upload]


class LongMessages:
    """The long messages of one connection that are not complete: at most one for each channel."""

    __slots__ = ("by_channel",)

    def __init__(self) -> None:
        self.by_channel: dict[int, _Held | _Stored] = {}
        """The messages by the numbers of their channels."""

    @property
    def octets(self) -> int:
        """The octets of memory that the held messages take."""
        if not self.by_channel:
            return 0
        return sum(each.run.size for each in self.by_channel.values() if isinstance(each, _Held))

    def drop(self, channel: int) -> None:
        """Drop the message of a channel that ended."""
        match self.by_channel.pop(channel, None):
            case _Stored(_, uploads):
                for upload in uploads:
                    upload.close()
            case _Held() | None:
                pass
            case other:
                assert_never(other)

    def drop_all(self) -> None:
        """Drop all messages of a connection that ended."""
        for channel in list(self.by_channel):
            self.drop(channel)


class LongPublishes:
    """Publishes the long messages of one connection."""

    def __init__(
        self, to_exchanges: RoutedPublishing, publishing: Publishing, messages: LongMessages
    ) -> None:
        self._to_exchanges = to_exchanges
        self._publishing = publishing
        self._open = messages.by_channel

    async def begin(self, publisher: Publisher, begun: LongBegun, *, must_hold: bool, may_wait: bool) -> None:
        """Begin a message. With `must_hold` it is held in memory, and does not go to a disk as it arrives.
        Otherwise it waits for room there if it `may_wait`: a connection that consumes must not. Raise
        ChannelProblem.
        """
        # The messages that are begun already need the room, too, and cannot go on while this one waits.
        may_wait = may_wait and not self._open
        run = _run(begun, Bodies([b""]))
        await self._publishing.flush()
        parts = await self._publishing.parts(publisher, run)
        if publisher.is_over:
            return
        targets = parts[0].route
        try:
            stored = _Stored(parts[0].heads[0], [])
            if not must_hold and await self._upload(begun, targets, stored, may_wait=may_wait):
                return
        except Refused as refused:
            raise problem_of(refused.failure, BasicPublish) from refused
        if begun.size > self._to_exchanges.max_message_bytes:
            text = too_large(self._to_exchanges.max_message_bytes, begun.size)
            ids = BasicPublish.CLASS, BasicPublish.METHOD
            raise ChannelProblem(ReplyCode.PRECONDITION_FAILED, text, *ids)
        self._open[begun.channel] = _Held(begun, Assembly(begun.size))

    async def _upload(
        self, begun: LongBegun, targets: Sequence[RoutedTopic], stored: _Stored, *, may_wait: bool
    ) -> bool:
        """Begin the message in these topics. Return False if it must be held. Raise Refused."""
        self._open[begun.channel] = stored
        try:
            uploads = await self._to_exchanges.uploads(targets, begun.size, may_wait=may_wait)
        except BaseException:
            if self._open.get(begun.channel) is stored:
                del self._open[begun.channel]
            raise
        if self._open.get(begun.channel) is not stored:  # the channel failed meanwhile
            for upload in uploads or ():
                upload.close()
            return True
        if uploads is None:
            del self._open[begun.channel]
            return False
        stored.uploads = uploads
        return True

    async def add(self, channel: int, octets: bytes) -> None:
        """Take the next part of a body. Raises ChannelProblem."""
        match self._open.get(channel):
            case None:
                pass  # its channel failed
            case _Held(body=body):
                body.add(octets)
            case _Stored(_, uploads) as stored:
                for upload in list(uploads):
                    if self._open.get(channel) is not stored:
                        return  # the channel failed meanwhile
                    try:
                        await upload.add(octets)
                    except Refused as refused:
                        if refused.reason is not Reason.DELETED:
                            raise problem_of(refused.failure, BasicPublish) from refused
                        upload.close()
                        uploads.remove(upload)
            case other:
                assert_never(other)

    async def end(self, publisher: Publisher, channel: int) -> PublishRun | None:
        """Post the message, whose body is complete, or return it to be published. Raise ChannelProblem."""
        match self._open.pop(channel, None):
            case None:
                return None
            case _Held(begun, body):
                return _run(begun, body.batch())
            case _Stored(head, uploads):
                try:
                    await self._publishing.flush()
                    await self._post(publisher, head, uploads)
                finally:
                    for upload in uploads:
                        upload.close()
                return None
            case other:
                assert_never(other)

    async def _post(self, publisher: Publisher, head: bytes, uploads: list[Upload]) -> None:
        posted = ChannelPost(1)
        try:
            for upload in uploads:
                group = Group()
                group.count = 1
                try:
                    group.confirmation = await upload.post(head, None)
                except Refused as refused:
                    if refused.reason is not Reason.DELETED:
                        raise
                    continue  # the message would be gone with its queue
                group.confirmation.listen(publisher.look)
                posted.add(group, 0, 1, None)
        except Refused as refused:
            raise problem_of(refused.failure, BasicPublish) from refused
        publisher.published(posted)
        publisher.look()


def _run(begun: LongBegun, batch: Batch) -> PublishRun:
    return PublishRun(
        begun.channel,
        begun.exchange,
        begun.routing_key,
        begun.mandatory,
        batch,
        [begun.head],
        begun.properties,
    )
