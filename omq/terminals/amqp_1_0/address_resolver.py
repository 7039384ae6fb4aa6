"""Resolves addresses with the rights of the client: a topic, which is made if there is none, or a node
without a queue.
"""

from omq.access.direct import DYNAMIC
from omq.access.rights import Right
from omq.access.session import Session
from omq.config import Config
from omq.drivers.reasons import Reason, Refused
from omq.model import Delivery
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.performatives import Source, Target
from omq.terminals.amqp_1_0.addresses import DirectAddress, Prefixes, TopicAddress, Treatment, resolve


class AddressResolver:
    """The meaning of the addresses of one client."""

    def __init__(self, session: Session, config: Config) -> None:
        self._session = session
        self._prefixes = Prefixes(config.amqp1_prefixes)
        self._default = Treatment[config.amqp1_default.upper()]
        self._persistence = config.default_types()[1]

    async def find(self, right: Right, terminus: Source | Target) -> TopicAddress | DirectAddress:
        """Return the address in a terminus: an existing topic, or a node. Raises Refused and LinkProblem."""
        address = resolve(terminus, self._prefixes, self._default, self._persistence)
        if isinstance(address, DirectAddress):
            if not await self._is_topic(right, address):
                return address
            address = address.as_topic()
        return await self._topic(right, address)

    async def _is_topic(self, right: Right, address: DirectAddress) -> bool:
        """Return whether a topic has the name of a node: then it is that topic. Raises Refused."""
        name = address.name
        return (
            name is not None
            and not name.startswith(DYNAMIC)
            and await self._session.find(name, right) is not None
        )

    async def _topic(self, right: Right, address: TopicAddress) -> TopicAddress:
        """Find the topic of an address; make it if there is none. Raises Refused and LinkProblem."""
        found = await self._session.find(address.name, right)
        if found is None:
            try:
                await self._session.declare(address.name, address.delivery, address.persistence)
            except Refused as refused:
                # Another client may have made it meanwhile, with other types.
                found = await self._session.find(address.name, right)
                if refused.reason is not Reason.DIFFERS or found is None:
                    raise
            else:
                return address
        delivery, persistence = found
        if address.wanted not in (None, delivery):
            what = "a queue" if delivery is Delivery.ROUND_ROBIN else "a topic"
            raise LinkProblem(Condition.PRECONDITION_FAILED, f"it is {what}, and not what the client wants")
        return TopicAddress(address.name, delivery, persistence, address.wanted)
