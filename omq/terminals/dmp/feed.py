"""A feed: messages out, on a DMP connection (6-DMP, "Receiving messages" and "Heartbeating").

Two tasks: one writes envelopes and null messages, the other reads, to see when the client is done. Once the
feed is ready nothing but envelopes goes to the client, so what else there is to say goes to its principal.
"""

import trio

from omq.access.leases import DmpEnd, Principal
from omq.access.limits import RateLimit
from omq.drivers.feed import Feed
from omq.drivers.problems import for_clients
from omq.drivers.seam import Channel, Gone
from omq.drivers.signal import Signal
from omq.drivers.stalled import Stalled
from omq.logs import LogThrottle, quoted
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.head import Head
from omq.protocol.dmp.envelopes import NULL_MESSAGE
from omq.terminals.connection.forwarding import Forwarder
from omq.terminals.connection.statistics import SubscriptionStatistics
from omq.terminals.connection.transport import Transport
from omq.terminals.dmp.forms import Envelopes
from omq_storage.errors import StoreError

DELETED = "404 NOT-FOUND the topic was deleted"


class FeedService:
    """Serves one feed, from its ready response to the end of its connection."""

    def __init__(
        self,
        transport: Transport,
        feed: Feed,
        principal: Principal,
        rate_limit: RateLimit | None,
        stalled: Stalled,
        null_seconds: float,
        untold: LogThrottle,
    ) -> None:
        self._transport = transport
        self._feed = feed
        self._principal = principal
        self._untold = untold
        self._rate_limit = rate_limit
        self._null_seconds = null_seconds
        # A message that came without a head has the topic for its key: a consumer of several feeds can tell
        # them apart, and in AMQP's terms that is a message to the default exchange.
        form = Envelopes(stored_head.encode(Head(routing_key=feed.topic.topic)))
        self._ending = trio.CancelScope()
        self._forwarder = Forwarder(transport, form, stalled, self._channels, self._cut_off)
        self._signal = Signal()
        self._finishing = False
        self._stopping = False
        self._torn: str | None = None
        """Why it was cut off in the middle of a message."""

    async def serve(self, received: bytes) -> None:
        """Forward messages until the client is done or the topic is gone. `received` came with the lease.

        A client that goes away without a word ends it too: what it did not get goes to others.
        """
        self._feed.start(self._signal.set)
        try:
            with self._ending:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, received)
                    await self._write()
                    self._ending.cancel()
        except* trio.BrokenResourceError:
            pass  # that is its right, and no news to anybody
        finally:
            self._forwarder.stop()
        if self._torn is not None and not self._feed.has_ended:
            await self._report(f"541 INTERNAL-ERROR closed in the middle of a message: {self._torn}")
        elif self._torn is not None:
            await self._report(DELETED)

    @property
    def is_sending(self) -> bool:
        """Whether something is being sent."""
        return self._forwarder.is_sending

    @property
    def stalled_seconds(self) -> float | None:
        """For how long its client has been stalled; None when it is not."""
        return self._forwarder.stalled_seconds

    def statistics(self) -> list[SubscriptionStatistics]:
        """Of the feed, as long as its topic exists."""
        return [
            SubscriptionStatistics(self._feed.topic, channel.statistics()) for channel in self._channels()
        ]

    def sweep(self, now: float) -> None:
        """A client that reads nothing is passed over, as any slow subscriber is."""
        self._forwarder.look()

    def shut_down(self) -> None:
        """The server stops."""
        self._stopping = True
        self._signal.set()

    # -- reading -------------------------------------------------------------------------------------------

    async def _listen(self, received: bytes) -> None:
        """Until the client is done; null messages are all it may send."""
        while True:
            if any(received):
                await self._report("503 INVALID a feed takes no messages")
                self._ending.cancel()
                return
            received = await self._transport.receive()
            if not received:
                break
        if self._feed.has_ended:
            return
        channel = self._feed.channel
        if channel.competes:
            # It may be closed rather than half-closed, and others can have what it was dealt.
            self._ending.cancel()
        else:
            channel.finish()
            self._finishing = True
            self._signal.set()

    # -- writing -------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        due = trio.current_time() + self._null_seconds
        while not self._stopping:
            now = trio.current_time()
            if now >= due:
                due = now + self._null_seconds
                await self._forwarder.send(NULL_MESSAGE)
                if self._rate_limit is not None:
                    self._rate_limit.spend(len(NULL_MESSAGE))
            if self._feed.has_ended:
                await self._report(DELETED)
                return
            channel = self._feed.channel
            is_ready = channel.ready()
            if is_ready and (self._rate_limit is None or self._rate_limit.is_open()):
                if not await self._forward(channel):
                    return
            elif self._finishing and not is_ready:
                return
            else:
                opens = self._rate_limit.until if self._rate_limit is not None and is_ready else due
                with trio.move_on_at(min(due, opens)):
                    await self._signal.wait()

    async def _forward(self, channel: Channel) -> bool:
        """Send what the channel has at once; False when the feed cannot go on."""
        feed = self._feed
        before = self._transport.sent
        try:
            gone = await self._forwarder.forward(feed.topic.topic, channel, lambda: not feed.has_ended)
        except StoreError as problem:
            await self._report(f"541 INTERNAL-ERROR {for_clients(problem)}")
            return False
        finally:
            if self._rate_limit is not None:
                self._rate_limit.spend(self._transport.sent - before)
        if gone is not None and not feed.has_ended:
            await self._report(gone)
        return True

    def _cut_off(self, why: str) -> None:
        self._torn = why
        self._ending.cancel()

    def _channels(self) -> list[Channel]:
        return [] if self._feed.has_ended else [self._feed.channel]

    async def _report(self, what: str | Gone) -> None:
        if not await self._principal.report(DmpEnd.FEED, self._feed.topic.topic, what):
            told = f"messages {what.first} to {what.last}: {what.reason}" if isinstance(what, Gone) else what
            peer, topic = self._transport.peer(), self._feed.topic.topic
            self._untold.add(f"{peer}: feed {quoted(topic)}: {told}", peer=peer, topic=topic)
