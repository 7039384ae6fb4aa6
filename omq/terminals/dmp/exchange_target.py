"""The target of a sink that was leased for an exchange: each message is routed by the key in its head.

The exchange in a head is only kept: consumers get it as it was sent.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from omq.access.leases import LeasedExchange
from omq.access.routed_publishing import RoutedPublishing
from omq.drivers.confirmation import CONFIRMED, Confirmation, all_of
from omq.drivers.reasons import Reason, Refused
from omq.drivers.routed_topic import RoutedTopic
from omq.drivers.sequences import Origin
from omq.drivers.slices import Slices
from omq.drivers.uploads import Upload
from omq.exchanges.types import DEFAULT
from omq.protocol.amqp.head import PLAIN_HEAD, names
from omq.protocol.dmp.envelopes import MANDATORY, EnvelopeBatch, LongEnvelope
from omq.terminals.connection.routing import NOTED_IN_TURN, chosen, routed
from omq.terminals.dmp.sink import SinkService
from omq_storage.batches import Batch, joined

if TYPE_CHECKING:
    from omq_storage._codec import Spans

HEADS_A_TURN = 512
"""The number of messages whose keys are read before other connections have their turn."""

SHOWN_DEFAULT = b"$default$"
"""OpenAMQ's name of the default exchange."""


class _Group:
    """The messages of a read for one topic."""

    __slots__ = ("batches", "heads")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.heads: list[bytes] = []


class ExchangeTarget:
    """Publishes to one exchange."""

    def __init__(self, publishing: RoutedPublishing, leased: LeasedExchange) -> None:
        self._publishing = publishing
        self._leased = leased
        self._exchange = leased.exchange
        self.name = self.shown = SHOWN_DEFAULT if leased.exchange == DEFAULT else leased.exchange

    async def uploads_from(self) -> int | None:
        """See `omq.terminals.dmp.sink.SinkTarget`. The topics of a message may take a longer one only."""
        return self._publishing.fragment_octets

    async def upload(self, long: LongEnvelope, sink: SinkService) -> "RoutedUpload | None":
        """See `omq.terminals.dmp.sink.SinkTarget`. Raises Refused."""
        (part,) = await routed(self._publishing, self._exchange, _key(long.head), [long.head])
        uploads = await self._publishing.uploads(part.route, long.size, may_wait=True)
        return None if uploads is None else RoutedUpload(part.heads[0], uploads)

    def push(self, found: "Spans") -> int:
        """See `omq.terminals.dmp.sink.SinkTarget`. Each message has its own topics."""
        return 0

    async def post(self, batch: EnvelopeBatch, sink: SinkService) -> None:
        """See `omq.terminals.dmp.sink.SinkTarget`. Raises Refused."""
        heads = batch.heads or [PLAIN_HEAD] * len(batch)
        groups: dict[RoutedTopic, _Group] = {}
        unrouted: list[tuple[bytes, bytes]] = []
        count = begin = 0
        for end, key in await _keys(heads):
            parts = await routed(self._publishing, self._exchange, key, heads[begin:end])
            for part in parts:
                indexes = range(begin, end) if part.indexes is None else [begin + at for at in part.indexes]
                some = chosen(batch.batch, indexes)
                for number, topic in enumerate(part.route, 1):
                    if not number % NOTED_IN_TURN:
                        await trio.lowlevel.checkpoint()
                    group = groups.setdefault(topic, _Group())
                    group.batches.append(some)
                    group.heads += part.heads
                if part.route:
                    count += some.count
                elif batch.options:
                    bodies = some.bodies()
                    unrouted += [
                        (heads[index], bodies[place])
                        for place, index in enumerate(indexes)
                        if batch.options[index] & MANDATORY
                    ]
            begin = end
        if groups:
            sink.posted(count, all_of(await self._offer_all(groups)))
        for head, body in unrouted:
            await self._leased.returned(head, body)

    async def _offer_all(self, groups: Mapping[RoutedTopic, _Group]) -> list[Confirmation]:
        """Post the messages of these groups. Raise Refused."""
        offered: list[Confirmation] = []
        slices = Slices()
        for topic, group in groups.items():
            offered.append(await self._offer(topic, group))
            await slices.step()
        return offered

    async def _offer(self, topic: RoutedTopic, group: _Group) -> Confirmation:
        """Post the messages of a group, waiting for room if there is none. A topic that was deleted meanwhile
        does not count. Raise Refused.
        """
        batch = joined(group.batches)
        try:
            offered = self._publishing.offer(topic, batch, group.heads)
            if not isinstance(offered, Confirmation):
                offered = await self._publishing.taken(topic, batch, group.heads, offered)
        except Refused as refused:
            if refused.reason is not Reason.DELETED:
                raise
            return CONFIRMED
        return _unless_deleted(offered)


class RoutedUpload:
    """Takes the body of one message as it arrives, for all of its topics. One that was deleted meanwhile does
    not count.
    """

    def __init__(self, head: bytes, uploads: list[Upload]) -> None:
        self._head = head
        self._uploads = uploads

    async def add(self, octets: bytes) -> None:
        """See `omq.terminals.dmp.sink.BodyUpload`. Raises Refused."""
        for upload in list(self._uploads):
            try:
                await upload.add(octets)
            except Refused as refused:
                self._leave(upload, refused)

    async def post(self, head: bytes, origin: Origin | None) -> Confirmation:
        """See `omq.terminals.dmp.sink.BodyUpload`. The message has the head of its route. Raises Refused."""
        confirmations: list[Confirmation] = []
        for upload in list(self._uploads):
            try:
                confirmations.append(_unless_deleted(await upload.post(self._head, None)))
            except Refused as refused:
                self._leave(upload, refused)
        return all_of(confirmations)

    def _leave(self, upload: Upload, refused: Refused) -> None:
        """Go on without a topic that was deleted. Raise other refusals."""
        if refused.reason is not Reason.DELETED:
            raise refused
        upload.close()
        self._uploads.remove(upload)

    def close(self) -> None:
        """See `omq.terminals.dmp.sink.BodyUpload`."""
        for upload in self._uploads:
            upload.close()


def _unless_deleted(posted: Confirmation) -> Confirmation:
    """Return a confirmation that succeeds, too, if the topic of the post is deleted: its deletion would have
    taken the messages all the same.
    """
    if posted.settled and posted.failure is None:
        return posted
    found = Confirmation()
    found.refused = posted.refused

    def settle() -> None:
        failure = posted.failure
        found.settle(None if failure is not None and failure.reason is Reason.DELETED else failure)

    posted.listen(settle)
    return found


async def _keys(heads: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Return the ends of runs of messages with one routing key, and the keys."""
    runs: list[tuple[int, bytes]] = []
    last, key = heads[0], _key(heads[0])
    for index, head in enumerate(heads):
        if not index % HEADS_A_TURN:
            await trio.lowlevel.checkpoint()
        if head is not last:
            last = head
            if (found := _key(head)) != key:
                runs.append((index, key))
                key = found
    return [*runs, (len(heads), key)]


def _key(head: bytes) -> bytes:
    return names(head)[1]
