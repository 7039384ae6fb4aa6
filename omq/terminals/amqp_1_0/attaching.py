"""Attaches links: finds or makes the topic or node of each, with the rights of the client, and answers."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from omq.access.direct import Direct
from omq.access.rights import Right
from omq.access.session import Release, Session
from omq.config import Config
from omq.drivers.direct import DirectNode
from omq.drivers.reasons import Failure
from omq.drivers.seam import Channel
from omq.model import Delivery, FromCurrent, Topic
from omq.protocol.amqp_1_0 import encoding, performatives
from omq.protocol.amqp_1_0.annotations import IDS
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.performatives import Source, Target
from omq.protocol.amqp_1_0.types import NULL
from omq.terminals.amqp_1_0.address_resolver import AddressResolver
from omq.terminals.amqp_1_0.addresses import DirectAddress
from omq.terminals.amqp_1_0.direct import DirectIncoming, DirectOutgoing
from omq.terminals.amqp_1_0.incoming import Incoming
from omq.terminals.amqp_1_0.offsets import read_filters
from omq.terminals.amqp_1_0.outgoing import Missed, Outgoing
from omq.terminals.amqp_1_0.producing import Producing
from omq.terminals.amqp_1_0.relay import Relay
from omq.terminals.connection.held import HeldPublishes
from omq.terminals.connection.sender import Sender


class LinkOwner(Protocol):
    """The links of a connection: each attached link is added to them, and tells them what happens to it."""

    def add_consumer(self, link: SendingLink, outgoing: Outgoing[Channel] | DirectOutgoing) -> None: ...

    def add_producer(self, incoming: Producing) -> None: ...

    def has_news(self, incoming: Producing) -> None: ...

    def has_messages(self, outgoing: DirectOutgoing) -> None: ...

    def opened(self, links: Sequence[SendingLink]) -> None: ...

    def consumer_failed(self, link: SendingLink, failure: Failure) -> None: ...

    def node_ended(self, incoming: DirectIncoming) -> None: ...


class Attacher:
    """Attaches the links of one client. The methods raise LinkProblem and Refused: the link is refused."""

    def __init__(
        self,
        session: Session,
        direct: Direct,
        config: Config,
        sender: Sender,
        missed: Missed,
        held: HeldPublishes,
    ) -> None:
        """Create the attacher of a connection. `missed` logs gaps. `held` is for messages without room."""
        self._session = session
        self._direct = direct
        self._config = config
        self._finder = AddressResolver(session, config)
        self._sender = sender
        self._missed = missed
        self._held = held

    async def attach_consumer(self, link: SendingLink, owner: LinkOwner) -> None:
        """Attach a link on which the server sends. A new topic or node may be made for it."""
        source = link.source
        if not isinstance(source, Source):
            raise LinkProblem(Condition.NOT_FOUND, "the link has no source")
        filters = read_filters(source.filter)
        replay = filters.replay
        offered = (IDS,) if IDS in link.attach.desired_capabilities else ()
        address = await self._finder.find(Right.SUBSCRIBE, source)
        if isinstance(address, DirectAddress):
            self._attach_direct(link, source, address, owner)
            return
        is_queue = address.delivery is Delivery.ROUND_ROBIN
        if source.durable and source.expiry_policy == "never" and not is_queue:
            why = "the server keeps no position for a consumer of a topic"
            raise LinkProblem(Condition.NOT_IMPLEMENTED, why)
        if replay is not None and is_queue:
            raise LinkProblem(Condition.PRECONDITION_FAILED, "a queue cannot be replayed")

        def make(topic: Topic, release: Release) -> Outgoing[Channel]:
            annotates = filters.has_ids or bool(offered)
            return Outgoing(
                link,
                topic,
                self._sender,
                release,
                owner.consumer_failed,
                owner.opened,
                self._missed,
                annotates=annotates,
            )

        browsed = None
        if is_queue and source.distribution_mode == "copy":
            browsed = await self._session.browse(address.name, make)
        outgoing, channel = browsed or await self._session.open(address.name, replay or FromCurrent(), make)
        outgoing.is_replay = replay is not None
        answered = performatives.Source(
            source.address,
            distribution_mode="copy" if browsed is not None or not is_queue else "move",
            filter=filters.applied,
            capabilities=source.capabilities,
        )
        # Consumers of a topic have nothing to settle, unless they insist. Clients settle what they browse, as
        # other brokers let them.
        settles = link.attach.snd_settle_mode == 1 or (not is_queue and link.attach.snd_settle_mode != 0)
        link.accept(performatives.write(answered), settles=settles, offered=offered)
        owner.add_consumer(link, outgoing)
        outgoing.open(channel)

    def _attach_direct(
        self, link: SendingLink, source: Source, address: DirectAddress, owner: LinkOwner
    ) -> None:
        """Attach a consumer to a node without a queue."""

        def make(node: DirectNode, release: Release) -> DirectOutgoing:
            topic = Topic(0, node.name)
            return DirectOutgoing(
                link, topic, self._sender, release, owner.consumer_failed, owner.opened, self._missed
            )

        outgoing, node, channel = self._direct.consume(address.name, make)
        outgoing.woken = owner.has_messages
        if address.name is None:
            outgoing.made = node
            outgoing.end_node = self._direct.end
        answered = performatives.Source(
            encoding.write(node.name.decode()),
            dynamic=source.dynamic,
            dynamic_node_properties=source.dynamic_node_properties,
            capabilities=source.capabilities,
        )
        link.accept(performatives.write(answered), settles=link.attach.snd_settle_mode == 1)
        owner.add_consumer(link, outgoing)
        outgoing.open(channel)

    async def attach_producer(self, link: ReceivingLink, owner: LinkOwner) -> None:
        """Attach a link on which the client sends. A new topic or node may be made for it."""
        target = link.target
        if target is not None and not isinstance(target, Target):
            raise LinkProblem(Condition.NOT_IMPLEMENTED, "transactions are not served")
        if target is None or (target.address == NULL and not target.dynamic):
            self._attach_relay(link, target or Target(NULL), owner)
            return
        address = await self._finder.find(Right.PUBLISH, target)
        if isinstance(address, DirectAddress):
            self._attach_direct_producer(link, target, address, owner)
            return
        incoming = Incoming(
            link, self._session, address.name, self._config.amqp1_credit, owner.has_news, self._held
        )
        answered = performatives.Target(target.address, capabilities=target.capabilities)
        incoming.accept(performatives.write(answered))
        owner.add_producer(incoming)

    def _attach_relay(self, link: ReceivingLink, target: Target, owner: LinkOwner) -> None:
        """Attach a producer whose messages say where they go."""
        incoming = Relay(
            link,
            self._session,
            self._direct,
            self._finder,
            self._config.amqp1_credit,
            owner.has_news,
            self._held,
        )
        incoming.accept(performatives.write(Target(NULL, capabilities=target.capabilities)))
        owner.add_producer(incoming)

    def _attach_direct_producer(
        self, link: ReceivingLink, target: Target, address: DirectAddress, owner: LinkOwner
    ) -> None:
        incoming = DirectIncoming(
            link,
            self._direct,
            self._session.max_message_bytes,
            self._config.amqp1_credit,
            owner.has_news,
            owner.node_ended,
        )
        if address.name is None:
            incoming.make(partial(_made, target))
        else:
            answered = performatives.Target(target.address, capabilities=target.capabilities)
            incoming.accept(address.name, performatives.write(answered))
        owner.add_producer(incoming)


def _made(target: Target, node: DirectNode) -> bytes:
    """Return the answer to a target that is a new node."""
    answered = Target(
        encoding.write(node.name.decode()),
        dynamic=True,
        dynamic_node_properties=target.dynamic_node_properties,
        capabilities=target.capabilities,
    )
    return performatives.write(answered)
