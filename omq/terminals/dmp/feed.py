"""A feed: a DMP connection on which a client gets messages.

See 6-DMP, "Receiving messages" and "Heartbeating".

One task sends envelopes and null messages. Another one reads, to notice when the client has finished. On a
feed that is ready only envelopes may be sent, so problems are reported to the principal.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import assert_never

import trio

from omq.access.control import LeasedSession
from omq.access.leases import DmpEnd
from omq.drivers.feed import LeasedFeed
from omq.drivers.problems import for_clients
from omq.drivers.reasons import DELETED
from omq.drivers.seam import Channel, Octets, Unavailable
from omq.logs import quoted
from omq.model import Topic
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.head import Head
from omq.protocol.dmp.envelopes import NULL_MESSAGE
from omq.terminals.connection.context import Context
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.statistics import SubscriptionStatistics
from omq.terminals.connection.transport import Transport
from omq.terminals.dmp.forms import FeedForm
from omq_storage.errors import StoreError


class FeedState(Enum):
    """The states of a feed, in their order."""

    SERVING = "the client gets messages"
    FINISHING = "the client has closed its sending side: it gets the messages that are there now"
    STOPPING = "the server stops, or cannot read the topic: nothing more is sent"


class FeedService:
    """Serves one feed, from its ready response to the end of its connection."""

    is_exempt = False
    flow = None
    work = None
    after = 0

    def __init__(
        self, transport: Transport, context: Context, leased: LeasedSession, feed: LeasedFeed
    ) -> None:
        self._transport = transport
        self._context = context
        self._feed = feed
        self._principal = leased.principal
        self._null_seconds = context.config.feed_null_seconds
        self._null_at = trio.current_time() + self._null_seconds
        # A message without a head gets the topic as its routing key, so a client with several feeds can
        # distinguish their messages. In AMQP this is a message to the default exchange.
        self._form = FeedForm(
            stored_head.encode(Head(routing_key=feed.topic.topic)), to_openamq=leased.principal.is_openamq
        )
        self._state = FeedState.SERVING
        self._last_report: str | None = None
        self._nursery: trio.Nursery | None = None
        self._is_reporting = False
        self._scope = trio.CancelScope()
        self._sender = Sender(
            transport,
            context.memory.stalled,
            context.memory.tails,
            context.pace,
            self._scope,
            context.begin,
        )
        self._sender.limit(None, leased.session.rates.sent)

    async def serve(self, received: bytes) -> None:
        """Send messages until the client has finished or the topic is deleted.

        `received` came with the lease. If the client closes the connection, other subscribers get the
        messages that it did not receive.
        """
        self._feed.start(partial(self._sender.ready, self))
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._listen, received)
                await self._sender.run(self, nursery)
                nursery.cancel_scope.cancel()
        if self._feed.has_ended:
            self._transport.ends(DELETED.text)
            self._last_report = f"404 NOT-FOUND {DELETED.text}"
        elif self._last_report is None and (torn := self._sender.forwarder.torn) is not None:
            self._last_report = f"541 INTERNAL-ERROR closed in the middle of a message: {torn}"
        await self._transport.finish_sending()  # the principal may read nothing for long
        if self._last_report is not None:
            await self._report(self._last_report)

    @property
    def is_sending(self) -> bool:
        """Whether something is being sent."""
        return self._sender.forwarder.is_sending

    @property
    def messages(self) -> int:
        """The number of messages that have left so far."""
        return self._sender.messages

    @property
    def stalled_seconds(self) -> float | None:
        """The number of seconds since the client is stalled; None if it is not."""
        return self._sender.forwarder.stalled_seconds

    def statistics(self) -> list[SubscriptionStatistics]:
        """Return the statistics of the feed, unless it is over."""
        return [SubscriptionStatistics(self._feed.topic, channel.statistics()) for channel in self.channels()]

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topic and channel of the feed, unless it is over."""
        return ((self._feed.topic, channel) for channel in self.channels())

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""
        return self._sender.is_limited

    def sweep(self, now: float) -> None:
        """Check whether the client reads. Called about every second."""
        self._sender.forwarder.look(now)

    def shut_down(self, report: str | None) -> None:
        """End the feed, and report this on the principal connection: a feed has no place for it."""
        self._last_report = report
        self._state = FeedState.STOPPING
        self._sender.signal.set()

    # -- reading -------------------------------------------------------------------------------------------

    async def _listen(self, received: bytes) -> None:
        """Read until the client has finished. It may send only null messages."""
        while True:
            if any(received):
                self._transport.ends(why := "a feed takes no messages")
                self._last_report = f"503 INVALID {why}"
                self._scope.cancel()
                return
            try:
                received = await self._transport.receive()
            except trio.BrokenResourceError:
                self._scope.cancel()
                return
            if not received:
                break
        if self._feed.has_ended:
            return
        channel = self._feed.channel
        if channel.competes:
            # The client may have closed both directions. Others can have the messages that it was dealt.
            self._scope.cancel()
        elif self._state is FeedState.SERVING:
            channel.finish()
            self._state = FeedState.FINISHING
            self._sender.signal.set()

    # -- writing: the sender asks (see omq.terminals.connection.sender) ------------------------------------

    def urgent(self, *, may_answer: bool) -> Sequence[Octets]:
        """Return a null message if one is due. A feed has no answers."""
        now = trio.current_time()
        if now < self._null_at:
            return ()
        self._null_at = now + self._null_seconds
        return (NULL_MESSAGE,)

    def urgent_sent(self) -> None:
        pass

    def may_forward(self) -> bool:
        return self._state is not FeedState.STOPPING and not self._is_reporting

    def has_ended(self) -> bool:
        if self._feed.has_ended:
            return True
        match self._state:
            case FeedState.SERVING:
                return False
            case FeedState.FINISHING:
                return not self._feed.channel.ready() and not self._is_reporting
            case FeedState.STOPPING:
                return True
            case other:
                assert_never(other)

    def due(self) -> float:
        return self._null_at

    def channels(self) -> Iterable[Channel]:
        # After the connection the feed is closed without its topic being deleted.
        return () if self._feed.is_over else (self._feed.channel,)

    async def take_turn(self) -> bool:
        """Send the messages that the channel has ready; return whether it has more."""
        feed = self._feed
        if feed.has_ended or not feed.channel.ready():
            return False
        try:
            gone = await self._sender.forwarder.forward(
                feed.topic.topic, feed.channel, self._form, lambda: not feed.has_ended
            )
        except StoreError as problem:
            self._transport.ends(why := str(for_clients(problem)))
            self._last_report = f"541 INTERNAL-ERROR {why}"
            self._state = FeedState.STOPPING
            return False
        if gone is not None and not feed.has_ended:
            self._report_gap(gone)
        return not feed.has_ended and feed.channel.ready()

    def _report_gap(self, gone: Unavailable) -> None:
        """Report messages that are gone. Null messages continue while the principal has no room for it."""
        assert self._nursery is not None
        self._is_reporting = True
        self._nursery.start_soon(self._finish_reporting, gone)

    async def _finish_reporting(self, gone: Unavailable) -> None:
        await self._report(gone)
        self._is_reporting = False
        self._sender.signal.set()

    async def _report(self, what: str | Unavailable) -> None:
        if not await self._principal.report(DmpEnd.FEED, self._feed.topic.topic, what):
            told = (
                f"messages {what.first} to {what.last}: {what.reason}"
                if isinstance(what, Unavailable)
                else what
            )
            peer, topic = self._transport.peer(), self._feed.topic.topic
            self._context.undelivered_reports.add(
                f"{peer}: feed {quoted(topic)}: {told}", peer=peer, topic=topic
            )
