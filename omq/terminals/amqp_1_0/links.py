"""The links of one connection: the topic or node of each, and the messages that come and go on it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import assert_never

from omq.access.direct import Direct
from omq.access.link_names import LinkClaim
from omq.access.session import Session
from omq.drivers.immediate_sends import AT_ONCE_OCTETS
from omq.drivers.reasons import Failure, Refused
from omq.drivers.seam import Channel, Octets
from omq.drivers.slices import Slices
from omq.model import Topic
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.events import Part, SettledByPeer, StoredRun
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.unsettled import Sent
from omq.terminals.amqp_1_0.attaching import Attacher
from omq.terminals.amqp_1_0.direct import DirectIncoming, DirectOutgoing
from omq.terminals.amqp_1_0.ended_links import AnyLink, EndedLinks, LinkEnd
from omq.terminals.amqp_1_0.outgoing import Outgoing
from omq.terminals.amqp_1_0.producing import Producing
from omq.terminals.amqp_1_0.refusals import problem_of
from omq.terminals.connection.held import HeldPublishes
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.statistics import LinkStatistics, SubscriptionStatistics

TOLD_IN_TURN = 32
"""The number of links of producers that are told something before other connections have their turn."""


class QueueConsumers:
    """The consumers of one connection (`omq.terminals.connection.held.WorkerList`)."""

    def __init__(self) -> None:
        self.links: dict[SendingLink, Outgoing[Channel] | DirectOutgoing] = {}

    def workers(self) -> list[Outgoing[Channel]]:
        """Return those of round-robin topics."""
        return [
            each
            for each in self.links.values()
            if not isinstance(each, DirectOutgoing) and each.channel is not None and each.channel.competes
        ]

    def unstarted(self) -> tuple[()]:
        """Return nothing: a consumer gets messages as soon as it is attached."""
        return ()


class Links:
    """The links of one client. What they answer is for the terminal to collect from the protocol."""

    def __init__(
        self,
        session: Session,
        direct: Direct,
        attacher: Attacher,
        sender: Sender,
        wake: Callable[[], None],
        consumers: QueueConsumers,
        held: HeldPublishes,
    ) -> None:
        """Create the links of a connection. `wake` is called when there is something to `tell`, or there are
        messages of nodes to send. `consumers` become its own, and `held` is for messages without room.
        """
        self._session = session
        self._direct = direct
        self._attacher = attacher
        self._sender = sender
        self._wake = wake
        self._held = held
        self._consumers = consumers
        self._outgoing = consumers.links
        self._incoming: dict[ReceivingLink, Producing] = {}
        self._unflushed: dict[Producing, None] = {}
        """Producers whose messages of this read are not posted yet."""
        self._news: dict[Producing, None] = {}
        """Producers that may have something to be told."""
        self._woken: dict[DirectOutgoing, None] = {}
        """Consumers of nodes that may have messages."""
        self._claims: dict[AnyLink, LinkClaim] = {}
        self.container = ""
        """The container-id of the client. Set it before the first attach."""
        self._begun: dict[Producing, None] = {}  # an empty set would take three times as much
        """Producers with an incomplete message."""
        self.published = 0
        """The number of messages that producers have sent so far."""
        self._is_stopping = False

    def end(self, links: Iterable[AnyLink]) -> EndedLinks:
        """Return links whose session is over: they must be closed. Each is removed as it begins to end."""
        return EndedLinks(self._ending(links), self._claims)

    def _ending(self, links: Iterable[AnyLink]) -> Iterator[tuple[AnyLink, LinkEnd]]:
        for link in links:
            match link:
                case SendingLink():
                    if (outgoing := self._outgoing.pop(link, None)) is not None:
                        yield link, outgoing
                case ReceivingLink():
                    if (incoming := self._removed(link)) is not None:
                        yield link, incoming
                case _:
                    assert_never(link)

    def end_all(self, free: Iterator[None]) -> EndedLinks:
        """Remove all links, which are over, and return them: they must be closed. `free` frees the rest."""
        links = chain[tuple[AnyLink, LinkEnd]](self._outgoing.items(), self._incoming.items())
        ended = EndedLinks(links, self._claims, free)
        self._outgoing = self._consumers.links = {}
        self._incoming = {}
        self._unflushed.clear()
        self._news.clear()
        self._woken.clear()
        self._begun.clear()
        return ended

    def close(self, free: Iterator[None]) -> EndedLinks:
        """Do as `end_all`, and refuse the messages that are held: the connection is over."""
        self._held.end()
        self._wake = _ignore  # messages without an outcome keep these links, but not their connection
        return self.end_all(free)

    @property
    def held_publishes(self) -> int:
        """The octets of messages without room that are held while the connection is read."""
        return self._held.octets

    def look_held(self) -> None:
        """Check again whether there can be room for the messages that are held. Called about every second."""
        self._held.look()

    async def post_held(self) -> None:
        """Wait until no messages are held."""
        await self._held.wait_for_all()

    @property
    def unconfirmed(self) -> int:
        """The number of messages of producers that are not settled."""
        return sum(incoming.unconfirmed for incoming in self._incoming.values())

    @property
    def held(self) -> int:
        """The octets of messages that are not complete."""
        return sum([incoming.held for incoming in self._begun])

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return the statistics of the links on which the server sends."""
        return [
            SubscriptionStatistics(outgoing.topic, outgoing.channel.statistics())
            for outgoing in self._outgoing.values()
            if outgoing.channel is not None
        ]

    @property
    def consumers(self) -> int:
        """The number of the links on which the server sends."""
        return len(self._outgoing)

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topics and channels of the links on which the server sends now."""
        for outgoing in list(self._outgoing.values()):
            if outgoing.channel is not None:
                yield outgoing.topic, outgoing.channel

    def statistics(self) -> list[LinkStatistics]:
        """Return the statistics of the links on which the client sends."""
        return [incoming.statistics() for incoming in self._incoming.values()]

    def channels(self) -> Iterator[Channel]:
        """Yield the open channels of the seam. Others may come and go meanwhile."""
        for outgoing in list(self._outgoing.values()):
            if outgoing.channel is not None:
                yield outgoing.channel

    # -- events of the client ------------------------------------------------------------------------------

    def take_whole(self, part: Part) -> LinkProblem | None:
        """Take a message of a producer that came in one frame; `flush` posts it. Return a reason to detach
        the link (`fail`).
        """
        incoming = self._incoming.get(part.link)
        if incoming is None:
            return None
        self._unflushed[incoming] = None
        self.published += 1
        try:
            incoming.add(part)
        except LinkProblem as problem:
            return problem
        return None

    async def fail(self, link: ReceivingLink, problem: LinkProblem) -> None:
        """Detach the link of a producer, after its messages before the problem: they were valid."""
        await self.flush()
        self._detach(link, problem)

    async def take(self, part: Part) -> None:
        """Take a part of a message of a producer; `flush` posts the message."""
        incoming = self._incoming.get(part.link)
        if incoming is None:
            return
        self._unflushed[incoming] = None
        if part.ends:
            self.published += 1
            self._begun.pop(incoming, None)
        else:
            self._begun[incoming] = None
        try:
            rest = await incoming.take_uploaded(part, is_alone=self._begun.keys() <= {incoming})
            if rest is not None:
                incoming.add(rest)
        except LinkProblem as problem:
            await self.fail(incoming.link, problem)

    def take_run(self, run: StoredRun) -> None:
        """Take whole messages of a producer; `flush` posts them."""
        incoming = self._incoming.get(run.link)
        if incoming is not None:
            self._unflushed[incoming] = None
            self.published += run.run.batch.count
            incoming.take_run(run.run)

    def abort(self, link: ReceivingLink) -> None:
        """Drop the incomplete message that a producer gives up."""
        if (incoming := self._incoming.get(link)) is not None:
            incoming.abort()
            self._begun.pop(incoming, None)
            incoming.renew()

    def renew(self, link: ReceivingLink) -> None:
        """Renew the credit of a producer that has used some of it up without a message."""
        if (incoming := self._incoming.get(link)) is not None:
            incoming.renew()

    def give_up(self) -> bool:
        """Drop the parts of incomplete messages, which will be rejected. Return whether there were any."""
        incomplete = [incoming for incoming in self._begun if incoming.held]
        for incoming in incomplete:
            incoming.give_up("the rest of the message took too long while others waited for its memory")
        return bool(incomplete)

    def give_up_longest(self) -> bool:
        """Do as `give_up` with one message: the one that holds the most octets."""
        longest = max(self._begun, key=lambda incoming: incoming.held, default=None)
        if longest is None or not longest.held:
            return False
        longest.give_up("there was no memory for the message")
        return True

    @property
    def is_shared(self) -> bool:
        """Whether the client has several links: some may be those of other clients, behind a router."""
        return len(self._incoming) + len(self._outgoing) > 1

    async def flush(self) -> None:
        """Post the messages of all links, in turn with other connections, and wait while there is no room for
        them.
        """
        unflushed, self._unflushed = self._unflushed, {}
        slices = Slices() if len(unflushed) > 1 else None
        for incoming in unflushed:
            try:
                await incoming.flush()
            except LinkProblem as problem:
                self._detach(incoming.link, problem)
            self._look_stalled(incoming)
            if slices is not None:
                await slices.step()
        await self._held.wait_for_room()

    def _look_stalled(self, incoming: Producing) -> None:
        if incoming.has_stalled() and not incoming.counts_stall():
            self._direct.totals.stalls += 1

    def tell(self) -> None:
        """Tell producers the outcomes that are known, and renew their credit: some of them, if they are many.
        The sender calls this again then.
        """
        for incoming in list(islice(self._news, TOLD_IN_TURN)):
            del self._news[incoming]
            if self._is_stopping:
                incoming.tell_outcomes()
                continue
            try:
                incoming.tell()
            except LinkProblem as problem:
                self._detach(incoming.link, problem)
            self._look_stalled(incoming)
        if self._news:
            self._sender.signal.set()

    def stop(self) -> None:
        """Refuse the messages that are held. From now on tell producers outcomes, and give no credit: the
        server ends the connection.
        """
        self._is_stopping = True
        self._held.end()

    @property
    def is_storing(self) -> bool:
        """Whether messages are on their way to a store."""
        return any(incoming.is_storing for incoming in self._incoming.values())

    async def stored(self) -> None:
        """Wait until no messages are on their way to a store."""
        slices = Slices()
        for incoming in list(self._incoming.values()):
            await incoming.stored()
            await slices.step()

    def tell_last(self) -> None:
        """Do as `stop`, and tell producers all outcomes that are known: a close of the server follows."""
        self.stop()
        news, self._news = self._news, {}
        for incoming in news:
            incoming.tell_outcomes()

    def send_soon(self) -> None:
        """Let the sending task send the messages of nodes."""
        woken, self._woken = self._woken, {}
        for outgoing in woken:
            outgoing.send_soon()

    def frames_at_once(self) -> Sequence[Octets]:
        """Return frames of messages of nodes, which count as sent; the sending task sends the others."""
        woken, self._woken = self._woken, {}
        parts: list[Octets] = []
        octets = AT_ONCE_OCTETS
        for outgoing in woken:
            frames = outgoing.frames_at_once(octets)
            parts += frames
            octets -= sum(map(len, frames))
        return parts

    def settle(self, sent: Sent[SendingLink], told: SettledByPeer) -> None:
        """Settle messages of one link whose outcome a consumer told."""
        if (outgoing := self._outgoing.get(sent.link)) is not None:
            outgoing.settle(sent.ids, told)

    def ended(self, messages: Iterable[tuple[SendingLink, int]]) -> None:
        """Note that settled messages, which waited for the windows of their sessions, have left."""
        for link, message in messages:
            if (outgoing := self._outgoing.get(link)) is not None:
                outgoing.has_left(message)

    def credited(self, link: SendingLink) -> None:
        """Grant the credit that a consumer stated."""
        if (outgoing := self._outgoing.get(link)) is not None:
            outgoing.credited()

    def opened(self, links: Sequence[SendingLink]) -> None:
        """Wake links that the window of the session lets send again."""
        for link in links:
            if (outgoing := self._outgoing.get(link)) is not None:
                outgoing.wake()

    def detached(self, link: AnyLink) -> None:
        """Close a link that is over."""
        if (claim := self._claims.pop(link, None)) is not None:
            claim.release()
        match link:
            case SendingLink():
                outgoing = self._outgoing.pop(link, None)
                if outgoing is not None:
                    outgoing.close()
            case ReceivingLink():
                incoming = self._removed(link)
                if incoming is not None:
                    incoming.close()
            case _:
                assert_never(link)

    def _removed(self, link: ReceivingLink) -> Producing | None:
        """Remove and return a producer; None if its link is closed already."""
        incoming = self._incoming.pop(link, None)
        if incoming is not None:
            self._unflushed.pop(incoming, None)
            self._begun.pop(incoming, None)
        return incoming

    def _detach(self, link: AnyLink, problem: LinkProblem | None) -> None:
        link.detach(problem)
        self.detached(link)
        self.opened(link.session.outgoing.unblocked())
        self._sender.signal.set()

    # -- attaching -----------------------------------------------------------------------------------------

    async def attach(self, link: AnyLink) -> None:
        """Attach a link, or refuse it. It takes the place of the one of the same name from another
        connection of its container.
        """
        names, container, name = self._session.link_names, self.container, link.name
        names.steal(container, name, is_sender=link.is_sender)
        try:
            match link:
                case SendingLink():
                    await self._attacher.attach_consumer(link, self)
                case ReceivingLink():
                    await self._attacher.attach_producer(link, self)
                case _:
                    assert_never(link)
        except Refused as refused:
            link.refuse(problem_of(refused.failure))
        except LinkProblem as problem:
            link.refuse(problem)
        if link.is_attached:
            stolen = partial(self._stolen, link)
            self._claims[link] = names.claim(container, name, stolen, is_sender=link.is_sender)

    def _stolen(self, link: AnyLink) -> None:
        """Detach a link whose client has attached it again by another connection."""
        self._detach(link, LinkProblem(Condition.STOLEN, "the link was attached again"))

    # -- what attached links tell (see omq.terminals.amqp_1_0.attaching.LinkOwner) ---------------------------

    def add_consumer(self, link: SendingLink, outgoing: Outgoing[Channel] | DirectOutgoing) -> None:
        """Note a consumer that is attached."""
        self._outgoing[link] = outgoing

    def add_producer(self, incoming: Producing) -> None:
        """Note a producer that is attached."""
        self._incoming[incoming.link] = incoming

    def has_news(self, incoming: Producing) -> None:
        """Note that a producer may have something to be told."""
        if incoming.link.is_attached:
            self._news[incoming] = None
            self._wake()

    def has_messages(self, outgoing: DirectOutgoing) -> None:
        """Note that a consumer of a node may have messages."""
        self._woken[outgoing] = None
        self._wake()

    def consumer_failed(self, link: SendingLink, failure: Failure) -> None:
        """Detach a link that cannot go on: its topic was deleted, or cannot be read."""
        self._detach(link, problem_of(failure))

    def node_ended(self, incoming: DirectIncoming) -> None:
        """Tell a producer the last outcomes, and detach it: its node is gone with the link that made it. That
        is no error: a client that has its reply leaves, and many libraries end a program whose link has one.
        """
        incoming.tell_outcomes()
        self._detach(incoming.link, None)


def _ignore() -> None:
    """Do not wake a connection that is over."""
