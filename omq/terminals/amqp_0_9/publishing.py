"""Publishes the messages that a connection reads: finds their topics, posts and confirms them, and returns
unroutable ones.

A publisher never waits for the consumers of a queue, because queues spill to the disk. So the server
continues to read a connection that both publishes and acknowledges. It stops reading only while published
messages are on their way to the store, and while a transient broadcast topic has no room.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import trio

from omq.access.routed_publishing import REPLIES, RoutedPublishing
from omq.drivers.confirmation import CONFIRMED, Confirmation
from omq.drivers.immediate_sends import ImmediateSends
from omq.drivers.offer import Offered
from omq.drivers.reasons import Refused
from omq.drivers.slices import Slices
from omq.exchanges.routes import RoutedPart, RouteIsLong, TopicIsReplaced
from omq.logs import quoted
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import properties as stored_properties
from omq.protocol.amqp_0_9.delivery import returned
from omq.protocol.amqp_0_9.events import PublishRun
from omq.protocol.amqp_0_9.methods import BasicPublish
from omq.protocol.amqp_0_9.problems import ChannelProblem, ReplyCode
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.amqp_0_9.posts import LOOKED_IN_TURN, ChannelPost, Groups, Publisher
from omq.terminals.amqp_0_9.refusals import problem_of
from omq.terminals.connection.liveness import LivenessPause
from omq.terminals.connection.routing import NOTED_IN_TURN, TARGETS_IN_TURN, chosen, routed
from omq.threads import in_thread
from omq_storage.batches import LARGE_OCTETS, Batch, joined

CHECKED = stored_properties.REPLY_TO | stored_properties.EXPIRATION | stored_properties.USER_ID
"""The flags of the properties that concern the server."""

LOOKED_AT = CHECKED | stored_properties.HEADERS
"""The flags of CHECKED, and the flag of the headers, by which exchanges may route."""

LONGEST_EXPIRATION = 10 * 365 * 24 * 3_600_000
"""The greatest number of milliseconds after which a message may expire: ten years, as with RabbitMQ."""

MESSAGES_A_SLICE = 256
HEADS_A_SLICE = 4 << 10
"""The numbers of messages that may need work one by one, and of octets of their heads, after which the other
connections have their turn.
"""


class Publishing:
    """The publishing side of one connection."""

    def __init__(
        self,
        to_exchanges: RoutedPublishing,
        outbox: Outbox,
        user: bytes,
        excused: LivenessPause,
        at_once: ImmediateSends,
        frame_max: int,
        *,
        is_openamq: bool,
    ) -> None:
        """Create the publishing of a connection. `user` is the name with which the client logged in. Within
        `excused` its silence does not count. It gets frames of at most `frame_max` octets.
        """
        self._to_exchanges = to_exchanges
        self._outbox = outbox
        self._user = user
        self._excused = excused
        self._at_once = at_once
        self._groups = Groups()
        self._publishers: dict[Publisher, None] = {}
        self._lone: tuple[Publisher, PublishRun, RoutedPart] | None = None
        """The only message since the last `flush`, if it has one topic and nobody waits for its outcome."""
        self.frame_max = frame_max
        self.is_openamq = is_openamq

    async def publish(self, publisher: Publisher, run: PublishRun, *, whole: bool = False) -> None:
        """Publish messages with the next `flush`. Raises ChannelProblem.

        If the publisher ends meanwhile, the rest of them is not published. While the client does not read
        what is returned to it, those before are posted already, unless the run must be posted `whole`.
        """
        if run.batch.count > 1 and (run.mandatory or run.properties & LOOKED_AT):
            await self._publish_in_slices(publisher, run, whole=whole)
            return
        parts = await self.parts(publisher, run)
        if run.batch.count == 1 and len(parts) == 1 and not self._publishers and not publisher.tells_outcomes:
            (part,) = parts
            if len(part.route) == 1 and self._lone is None:
                self._lone = publisher, run, part
                return
        await self._group_lone()
        await self._group(publisher, run, parts)

    async def _publish_in_slices(self, publisher: Publisher, run: PublishRun, *, whole: bool) -> None:
        await self._group_lone()
        begin = 0
        while begin < run.batch.count:
            if begin:
                await self._yield_turn(whole=whole)
            if publisher.is_over:
                return
            end = _slice_end(run.heads, begin)
            part = _slice(run, begin, end)
            await self._group(publisher, part, await self.parts(publisher, part))
            begin = end

    async def _yield_turn(self, *, whole: bool) -> None:
        """Let the other connections have their turn, and wait until there is room for more answers."""
        if self._outbox.is_full:
            if not whole:
                await self.flush()
            with self._excused:
                await self._outbox.room()
        await trio.lowlevel.checkpoint()

    async def _group_lone(self) -> None:
        """Note the message that was the only one until now like the others."""
        if self._lone is not None:
            publisher, run, part = self._lone
            self._lone = None
            await self._group(publisher, run, (part,))

    async def _group(self, publisher: Publisher, run: PublishRun, parts: Sequence[RoutedPart]) -> None:
        """Note messages for the next `flush`, and return those that have no topic, if they must be."""
        posted = ChannelPost(run.batch.count)
        for part in parts:
            batch = run.batch if part.indexes is None else chosen(run.batch, part.indexes)
            if not part.route and run.mandatory:
                publisher.tell_settled(self._outbox)
                self._return(publisher.number, await _bodies(batch), part.heads)
            for place, target in enumerate(part.route):
                if place:
                    batch = await _again(batch)
                    if not place % NOTED_IN_TURN:
                        await trio.lowlevel.checkpoint()
                group = self._groups.group(target)
                posted.add(group, group.add(batch, part.heads, publisher), batch.count, part.indexes)
        self._publishers[publisher] = None
        publisher.published(posted)

    async def parts(self, publisher: Publisher, run: PublishRun) -> Sequence[RoutedPart]:
        """Check messages, and divide them by the topics that get them. Raises ChannelProblem."""
        heads = self._checked(publisher, run) if run.properties & CHECKED else run.heads
        try:
            try:
                return self._to_exchanges.parts(run.exchange, run.routing_key, heads)
            except (RouteIsLong, TopicIsReplaced) as why:
                is_long = isinstance(why, RouteIsLong)
                return await routed(self._to_exchanges, run.exchange, run.routing_key, heads, is_long=is_long)
        except Refused as refused:
            raise problem_of(refused.failure, BasicPublish) from refused

    async def drop(self) -> None:
        """Drop the messages that were published since the last `flush`, in turn with other connections."""
        self._publishers.clear()
        self._lone = None
        for number, _ in enumerate(self._groups.take(), 1):
            if not number % LOOKED_IN_TURN:
                await trio.lowlevel.cancel_shielded_checkpoint()

    async def flush(self) -> None:
        """Post the published messages. Consumers get it, and publishers their confirms, in this task if
        nothing waits to be sent to them.
        """
        is_tried = self._lone is not None
        if self._lone is not None:
            publisher, run, part = self._lone
            try:
                if self._to_exchanges.pass_on(part.route[0], run.batch, part.heads):
                    self._lone = None
                    return
            except Refused as refused:
                self._lone = None
                publisher.refused(refused.failure)
                return
            await self._group_lone()
        elif not self._publishers:
            return
        groups, self._groups = self._groups, Groups()
        publishers, self._publishers = self._publishers, {}
        are_several = len(groups) > 1
        work = unseen = 0
        slices = Slices()
        for target, group in groups.take():
            if work >= TARGETS_IN_TURN or (work and slices.is_over):
                if unseen >= LOOKED_IN_TURN:
                    unseen = 0
                    await self._look(publishers)
                work = 0
                self._at_once.send()
                await trio.lowlevel.cancel_shielded_checkpoint()  # a transaction is posted whole
                slices = Slices()
            work += group.work
            unseen += 1
            try:
                batch = joined(group.batches)
                offered: Offered = CONFIRMED
                is_kept = is_tried or are_several or batch.count > 1
                if is_kept or not self._to_exchanges.pass_on(target, batch, group.heads):
                    with self._at_once:
                        offered = self._to_exchanges.offer(target, batch, group.heads)
                if not isinstance(offered, Confirmation):
                    self._at_once.send()
                    with self._excused:
                        offered = await self._to_exchanges.taken(target, batch, group.heads, offered)
            except Refused as refused:
                group.offered(refused.failure)
            else:
                group.offered(offered)
        await self._look(publishers)
        self._at_once.send()

    async def _look(self, publishers: Iterable[Publisher]) -> None:
        """Let publishers look, in turn with other connections."""
        for number, publisher in enumerate(publishers, 1):
            with self._at_once:
                publisher.look()
            if not number % LOOKED_IN_TURN:
                self._at_once.send()
                await trio.lowlevel.cancel_shielded_checkpoint()

    # -- single messages -----------------------------------------------------------------------------------

    def _checked(self, publisher: Publisher, run: PublishRun) -> list[bytes]:
        """Check properties that concern the server; return the heads in the form in which they are stored.

        Raises ChannelProblem.
        """
        heads: list[bytes] = []
        last = kept = b""
        for head in run.heads:
            if head != last:
                last, kept = head, self._checked_head(publisher, head)
            heads.append(kept)
        return heads

    def _checked_head(self, publisher: Publisher, head: bytes) -> bytes:
        found = stored_properties.strings(head, stored_head.names_end(head))
        user = found.get("user_id", self._user)
        if user != self._user:
            own = quoted(self._user)
            raise _refused(f"user_id property set to {quoted(user)} but authenticated user was {own}")
        expiration = found.get("expiration", b"0")
        if not expiration.isdigit() or int(expiration) > LONGEST_EXPIRATION:
            raise _refused(f"invalid expiration {quoted(expiration)}")
        if found.get("reply_to") != REPLIES:
            return head
        if publisher.reply_queue is None:
            raise _refused("fast reply consumer does not exist")
        decoded = stored_head.decode(head)
        properties = replace(decoded.properties, reply_to=publisher.reply_queue)
        return stored_head.encode(replace(decoded, properties=properties))

    def _return(self, channel: int, bodies: Sequence[bytes], heads: Sequence[bytes]) -> None:
        for head, body in zip(heads, bodies, strict=True):
            self._outbox.add(
                *returned(
                    channel,
                    self.frame_max,
                    ReplyCode.NO_ROUTE,
                    b"NO_ROUTE",
                    head,
                    body,
                    to_openamq=self.is_openamq,
                ),
                channel=channel,
            )


def _slice_end(heads: Sequence[bytes], begin: int) -> int:
    """Return the end of a slice: after MESSAGES_A_SLICE messages, or heads of HEADS_A_SLICE octets that
    differ from their neighbours.
    """
    octets = 0
    last = b""
    most = min(begin + MESSAGES_A_SLICE, len(heads))
    for index in range(begin, most):
        if heads[index] is not last:
            last = heads[index]
            octets += len(last)
            if octets >= HEADS_A_SLICE:
                return index + 1
    return most


def _slice(run: PublishRun, begin: int, end: int) -> PublishRun:
    if end - begin == run.batch.count:
        return run
    return msgspec.structs.replace(run, batch=run.batch.part(begin, end), heads=run.heads[begin:end])


async def _bodies(batch: Batch) -> Sequence[bytes]:
    return await in_thread(batch.bodies) if batch.octets >= LARGE_OCTETS else batch.bodies()


async def _again(batch: Batch) -> Batch:
    """Return a batch for another topic. Each topic writes its numbers into a copy of its own. Copy a large
    batch in a thread, since other tasks would wait for a copy that the topic makes.
    """
    if batch.octets < LARGE_OCTETS:
        return batch
    return await in_thread(partial(batch.part, 0, batch.count))


def _refused(text: str) -> ChannelProblem:
    return ChannelProblem(ReplyCode.PRECONDITION_FAILED, text, BasicPublish.CLASS, BasicPublish.METHOD)
