"""The DMP terminal: one connection, on which a client shows a lease and then uses a sink or a feed.

See 6-DMP, and docs/PROTOCOL.md, "DMP". A valid lease is answered with 200. Other responses are:

    402 BAD-LEASE        the lease was never granted, has expired or been used, or its principal is gone
    403 NO-ACCESS        the lease was granted to a client on another host
    404 NOT-FOUND        the topic was deleted
    502 SYNTAX-ERROR     an envelope is malformed, too long or incomplete (later, sinks only)
    503 INVALID          a Put or Get instead of a lease: these belong on the principal connection
    530 NOT-ALLOWED      the quota of DMP connections, or of the client's connections, is spent; no lease came
                         in time; the server is stopping
    540 NOT-IMPLEMENTED  another command instead of a lease
    541 INTERNAL-ERROR   the store failed (later, sinks only)
"""

import logging
from collections.abc import Iterator
from typing import assert_never

import trio

from omq.access.control import LeasedSession, QuotaUsedUp
from omq.access.leases import LeasedExchange, LeasedSink, LeaseProblem
from omq.access.session import Session
from omq.drivers.feed import LeasedFeed
from omq.drivers.reasons import Refused
from omq.drivers.seam import Channel
from omq.logs import quoted
from omq.model import Topic
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp.responses import LEASE_IN_USE, LEASE_NOT_VALID, Response, ResponseCode, response
from omq.protocol.dmp.server import (
    CloseConnection,
    EnvelopeOctets,
    FeedReady,
    LeaseReceived,
    LeaseRefused,
    Send,
    ServerDialogue,
    ServerEvent,
    SinkReady,
)
from omq.protocol.handshake import DMP_HEADER
from omq.terminals.connection.closing_deadline import set_closing_deadline
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.statistics import (
    ConnectionStatistics,
    HeldOctets,
    Kind,
    SubscriptionStatistics,
)
from omq.terminals.connection.transport import BY_SHUTDOWN
from omq.terminals.dmp.exchange_target import ExchangeTarget
from omq.terminals.dmp.feed import FeedService
from omq.terminals.dmp.sink import SinkService, problem_of
from omq.terminals.dmp.topic_target import TopicTarget

log = logging.getLogger("omq.terminal")

OTHER_HOST = response(ResponseCode.NO_ACCESS, b"The lease was given to a client on another host")
NO_LEASE_IN_TIME = response(ResponseCode.NOT_ALLOWED, b"No lease came in time")
TOO_MANY_OF_CLIENT = response(ResponseCode.NOT_ALLOWED, b"The client has as many connections as it may have")
TOO_MANY = response(ResponseCode.NOT_ALLOWED, b"The server has as many DMP connections as it may have")
ON_THE_PRINCIPAL = response(ResponseCode.INVALID, b"Ask for a lease on the principal connection")
NO_SUCH_COMMAND = response(ResponseCode.NOT_IMPLEMENTED, b"Only a lease is understood here")


class DmpTerminal:
    """One connection after its header. `serve` returns when the connection is over."""

    def __init__(self, arrival: Arrival, context: Context) -> None:
        self._transport = arrival.transport
        self._known = arrival.known
        self._received = DMP_HEADER + arrival.received
        self._context = context
        self._dialogue = ServerDialogue()
        self._service: SinkService | FeedService | None = None
        self._waiting = trio.CancelScope()
        self._session: Session | None = None
        self._stopping: str | None = None
        """The reason why the server ends the connection."""
        self._scope = trio.CancelScope()

    async def serve(self) -> None:
        """Read the lease, answer it, and serve its sink or feed."""
        try:
            with self._scope:
                await self._converse()
        except trio.BrokenResourceError:
            pass  # the client is gone: the messages that it sent are kept, but not confirmed

    async def close(self) -> None:
        """Close the socket."""
        self._transport.close()

    def statistics(self) -> ConnectionStatistics:
        """Return the statistics of the connection."""
        kind, unconfirmed, is_sending = Kind.DMP, 0, False
        published = sent = 0
        stalled: float | None = None
        held = HeldOctets()
        match self._service:
            case SinkService(unconfirmed=unconfirmed, held=held, published=published):
                kind = Kind.SINK
            case FeedService(is_sending=is_sending, stalled_seconds=stalled, messages=sent):
                kind = Kind.FEED
            case None:
                pass
            case _:
                assert_never(self._service)
        client = None if self._session is None else self._session.name
        return ConnectionStatistics.of(
            self._transport,
            kind,
            client,
            messages_in=published,
            messages_out=sent,
            unconfirmed=unconfirmed,
            subscriptions=sum(1 for _ in self.open_channels()),
            is_sending=is_sending,
            stalled_seconds=stalled,
            held=held,
        )

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return the statistics of the feed, if the connection has one."""
        return self._service.statistics() if isinstance(self._service, FeedService) else []

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topic and channel of the feed, if the connection has one."""
        return self._service.open_channels() if isinstance(self._service, FeedService) else iter(())

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""
        return isinstance(self._service, FeedService) and self._service.is_limited

    def sweep(self, now: float) -> None:
        """Check whether the client of a feed reads. Called about every second."""
        if isinstance(self._service, FeedService):
            self._service.sweep(now)

    @property
    def session(self) -> Session | None:
        """The session of the client; None before it has shown its lease."""
        return self._session

    def shut_down(self) -> None:
        """End the connection: the server stops."""
        self._end(BY_SHUTDOWN)
        if isinstance(self._service, FeedService):
            self._service.shut_down(None)

    def disconnect(self, why: str) -> None:
        """End the connection, with a response that says why, if one is still possible. The principal
        connection of a feed is told instead.
        """
        self._end(why)
        if isinstance(self._service, FeedService):
            self._service.shut_down(f"530 NOT-ALLOWED {why}")

    def _end(self, why: str) -> None:
        self._transport.ends(why)
        self._stopping = why
        self._waiting.cancel()
        if isinstance(self._service, SinkService):
            self._service.shut_down(why)
        set_closing_deadline(self._scope)

    async def _converse(self) -> None:
        self._waiting.deadline = trio.current_time() + self._context.config.handshake_seconds
        lease: bytes | None = None
        with self._waiting:
            lease = await self._read_lease()
        if self._stopping is not None:
            await self._transport.send(dmp_responses.encode(_not_allowed(self._stopping)))
        elif lease is None and self._waiting.cancelled_caught:
            await self._transport.send(dmp_responses.encode(NO_LEASE_IN_TIME))
        elif lease is not None:
            await self._decide(lease)
        await self._transport.finish()

    async def _read_lease(self) -> bytes | None:
        """Return the lease that the client shows; None if the connection must be closed without one."""
        while self._received:
            for event in self._dialogue.feed(self._received):
                match event:
                    case Send(octets):
                        await self._transport.send(octets)
                    case LeaseReceived(lease):
                        return lease
                    case CloseConnection():
                        return None
                    case EnvelopeOctets():
                        raise AssertionError("messages cannot come before the lease")
                    case _:
                        assert_never(event)
            self._received = await self._transport.receive()
        return None

    async def _decide(self, lease: bytes) -> None:
        """Answer the lease, and use it if it is valid."""
        if b" " in lease:  # a lease has no space, so this is a command
            method = lease.partition(b" ")[0].lower()
            known = method in (b"put", b"get")
            await self._refuse(ON_THE_PRINCIPAL if known else NO_SUCH_COMMAND)
            return
        used = await self._context.access.use_lease(lease, self._transport.host())
        match used:
            case LeasedSession():
                self._known()
                self._session = used.session
                self._log_connect(used)
                try:
                    await self._serve_leased(used)
                finally:
                    used.session.close()
            case LeaseProblem.NOT_VALID:
                await self._refuse(LEASE_NOT_VALID)
            case LeaseProblem.USED:
                await self._refuse(LEASE_IN_USE)
            case LeaseProblem.OTHER_HOST:
                await self._refuse(OTHER_HOST)
            case QuotaUsedUp.SERVER:
                await self._refuse(TOO_MANY)
            case QuotaUsedUp.CLIENT:
                await self._refuse(TOO_MANY_OF_CLIENT)
            case _:
                assert_never(used)

    def _log_connect(self, leased: LeasedSession) -> None:
        match leased.what:
            case LeasedSink(topic):
                what, name = Kind.SINK, topic.topic
            case LeasedExchange(exchange=exchange):
                what, name = Kind.SINK, exchange
            case LeasedFeed(topic=topic):
                what, name = Kind.FEED, topic.topic
            case other:
                assert_never(other)
        what_for = f": {what.value} {quoted(name)}"
        self._context.log_connected(self._transport.peer(), leased.session.name, what_for)

    async def _serve_leased(self, leased: LeasedSession) -> None:
        match leased.what:
            case LeasedSink() as sink:
                await self._serve_sink(sink, leased)
            case LeasedExchange() as sink:
                target = ExchangeTarget(self._context.access.routed_publishing(leased.session), sink)
                await self._serve(SinkService(self._transport, self._context, leased, target))
            case LeasedFeed() as feed:
                try:
                    await self._serve_feed(feed, leased)
                finally:
                    feed.close()
            case other:
                assert_never(other)

    async def _serve_sink(self, sink: LeasedSink, leased: LeasedSession) -> None:
        topic = self._context.access.leased_topic(leased.session, sink.topic)
        try:
            await topic.check()
        except Refused as refused:
            await self._refuse(response(problem_of(refused.failure).code))
            return
        await self._serve(SinkService(self._transport, self._context, leased, TopicTarget(topic)))

    async def _serve(self, service: SinkService) -> None:
        if self._stopping is not None:  # meanwhile
            await self._refuse(_not_allowed(self._stopping))
            return
        self._service = service
        self._transport.keep_alive()
        await service.serve(await self._answer(self._dialogue.decide(SinkReady(service.target.shown))))

    async def _serve_feed(self, feed: LeasedFeed, leased: LeasedSession) -> None:
        if self._stopping is not None:  # meanwhile
            await self._refuse(_not_allowed(self._stopping))
            return
        if feed.has_ended:
            await self._refuse(response(ResponseCode.NOT_FOUND))
            return
        try:
            leased.session.use_feed(feed)
        except Refused as refused:  # a reload took the right away
            await self._refuse(response(problem_of(refused.failure).code))
            return
        service = FeedService(self._transport, self._context, leased, feed)
        self._service = service
        await service.serve(await self._answer(self._dialogue.decide(FeedReady(feed.topic.topic))))

    async def _refuse(self, said: Response) -> None:
        await self._answer(self._dialogue.decide(LeaseRefused(said)))

    async def _answer(self, events: list[ServerEvent]) -> bytes:
        """Execute the events of the dialogue; return the octets of envelopes that came with the lease."""
        received = b""
        for event in events:
            match event:
                case Send(octets):
                    await self._transport.send(octets)
                case EnvelopeOctets(octets):
                    received += octets
                case CloseConnection():
                    pass  # the caller closes the connection next
                case LeaseReceived():
                    raise AssertionError("there is one lease on a connection")
                case _:
                    assert_never(event)
        return received


def _not_allowed(why: str) -> Response:
    """Return the response to a lease when the server ends the connection for this reason."""
    return response(ResponseCode.NOT_ALLOWED, (why[:1].upper() + why[1:]).encode())
