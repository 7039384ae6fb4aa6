"""The target of a sink that was leased for a topic."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from omq.access.leased_topic import LeasedTopic
from omq.drivers.sequences import Origin, Origins, producers_of
from omq.drivers.uploads import Upload
from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.amqp.producer import origins
from omq.protocol.dmp.envelopes import IMMEDIATE, MANDATORY, EnvelopeBatch, LongEnvelope
from omq.protocol.steps import Steps
from omq.terminals.connection.turns import in_turns
from omq.terminals.dmp.sink import SinkService
from omq_storage.batches import Batch

if TYPE_CHECKING:
    from omq_storage._codec import Spans

HEADS_A_STEP = 512
"""The number of messages whose producers one step reads."""

POST_PRODUCERS = 512
POST_MESSAGES = 4096
"""The size at which a post of idempotent producers ends, at the next whole step. Their messages are more work
for a store than others, and a post is stored in one commit.
"""


@dataclass(frozen=True, slots=True)
class PendingPost:
    """The messages of one post. `heads` and `origins` are empty, or have one item for each message."""

    batch: Batch
    heads: Sequence[bytes]
    origins: Origins


def _portions(batch: Batch, heads: list[bytes]) -> Steps[list[PendingPost]]:
    """Find the producers of messages, and divide the messages into posts: into more than one only if many of
    them have producers.
    """
    found: list[Origin | None] = []
    ends: list[int] = []
    producers: set[bytes] = set()
    begin = 0
    for start in range(0, len(heads), HEADS_A_STEP):
        if len(producers) >= POST_PRODUCERS or (producers and start - begin >= POST_MESSAGES):
            ends.append(start)
            begin = start
            producers = set()
        step = origins(heads[start : start + HEADS_A_STEP])
        producers |= producers_of(step)
        found += step
        yield
    kept = [b"" if head == PLAIN_HEAD else head for head in heads]
    if not any(found):
        return [PendingPost(batch, kept, ())]
    portions = []
    for begin, end in pairwise((0, *ends, batch.count)):
        portions.append(PendingPost(batch.part(begin, end), kept[begin:end], found[begin:end]))
        yield
    return portions


class TopicTarget:
    """Posts to one topic."""

    def __init__(self, topic: LeasedTopic) -> None:
        self._topic = topic
        self.name = self.shown = topic.topic.topic

    async def uploads_from(self) -> int | None:
        """See `omq.terminals.dmp.sink.SinkTarget`. Raises Refused."""
        return await self._topic.uploads_from()

    async def upload(self, long: LongEnvelope, sink: SinkService) -> Upload | None:
        """See `omq.terminals.dmp.sink.SinkTarget`. Raises Refused."""
        upload = await self._topic.upload(long.size)
        if long.options and upload is not None:
            try:
                await self._look_for_takers([long.options], sink)
            except BaseException:
                upload.close()
                raise
        return upload

    def push(self, found: "Spans") -> int:
        """See `omq.terminals.dmp.sink.SinkTarget`."""
        return self._topic.push(found)

    async def post(self, batch: EnvelopeBatch, sink: SinkService) -> None:
        """See `omq.terminals.dmp.sink.SinkTarget`. Raises Refused."""
        if batch.options:
            await self._look_for_takers(batch.options, sink)
        if batch.heads:
            portions = await in_turns(_portions(batch.batch, batch.heads))
        else:  # as most are: there is nothing to find, and a single message should not wait for it
            portions = [PendingPost(batch.batch, (), ())]
        for portion in portions:
            if sink.has_failed:
                return  # a post failed meanwhile, so later messages must not be stored
            confirmation = await self._topic.post(portion.batch, portion.heads, portion.origins)
            sink.posted(portion.batch.count, confirmation)

    async def _look_for_takers(self, options: list[int], sink: SinkService) -> None:
        """Report messages that need a subscriber and have none to the principal. They are posted
        nevertheless.

        `mandatory` needs a subscriber, or a store that keeps the message. `immediate` needs a subscriber that
        can take the message now (6-DMP, "Basic.Publish flags"). Raises Refused if the topic was deleted.
        """
        missed: list[str] = []
        takers = await self._topic.takers()
        mandatory = sum(1 for octet in options if octet & MANDATORY)
        if mandatory and not takers.is_kept and not takers.is_subscribed:
            missed.append(f"mandatory messages without a subscriber or a store: {mandatory}")
        immediate = sum(1 for octet in options if octet & IMMEDIATE)
        if immediate and not takers.is_ready:
            missed.append(f"immediate messages that no subscriber could take: {immediate}")
        if missed:
            await sink.report(", ".join(missed))
