"""Publishes messages of one connection to exchanges, with the rights of its client (docs/AMQP.md, "Rights").

To publish takes the right to publish to the name of the exchange; on the default exchange, to the topic, and
to those of the headers CC and BCC.
"""

from collections.abc import Sequence

from omq.access.rights import Right
from omq.access.session import MOST_REMEMBERED, Session, TooLarge
from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.offer import Offered, PendingOffer
from omq.drivers.routed_topic import RoutedTopic
from omq.drivers.spilling import offer_or_spill, taken_or_spilled
from omq.drivers.spooled_uploads import begin_uploads
from omq.drivers.uploads import Upload
from omq.exchanges.copies import copies_of, may_have_copies
from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.routes import RoutedPart
from omq.exchanges.types import DEFAULT
from omq.protocol.steps import Steps
from omq_storage.batches import Batch

REPLIES = b"amq.rabbitmq.reply-to"
"""The name that stands for the queue of a client's replies; the names of these queues begin with it and a
full stop. They cannot be guessed, so a client that knows one may publish to it.
"""


class RoutedPublishing:
    """The exchanges, as one connection may publish to them."""

    def __init__(self, session: Session, exchanges: ExchangeRegistry) -> None:
        self._session = session
        self._exchanges = exchanges
        self._allowed = session.may_route  # which the session clears when its rights change

    def parts(self, exchange: bytes, key: bytes, heads: Sequence[bytes]) -> Sequence[RoutedPart]:
        """Divide messages by the topics that get them: see `omq.exchanges.routes.Router.parts`.

        Raises Refused, omq.exchanges.routes.TopicIsReplaced, and omq.exchanges.routes.RouteIsLong.
        """
        may_copy = self._check_parts(exchange, key, heads)
        return self._exchanges.parts(exchange, key, heads, may_copy=may_copy)

    def parts_in_steps(
        self, exchange: bytes, key: bytes, heads: Sequence[bytes]
    ) -> Steps[Sequence[RoutedPart]]:
        """Do as `parts`, however long it takes."""
        may_copy = self._check_parts(exchange, key, heads)
        return self._exchanges.parts_in_steps(exchange, key, heads, may_copy=may_copy)

    def _check_parts(self, exchange: bytes, key: bytes, heads: Sequence[bytes]) -> bool:
        """Check the rights for these messages. Return whether any may have the headers CC and BCC. Raises
        Refused.
        """
        place = (DEFAULT, key) if exchange == DEFAULT else (exchange, b"")
        if place not in self._allowed:
            self._check_publish(exchange, key)
            if len(self._allowed) >= MOST_REMEMBERED:
                self._allowed.clear()
            self._allowed[place] = None
        may_copy = may_have_copies(heads)
        if may_copy and exchange == DEFAULT:
            for copy in {key for head in heads for key in copies_of(head).keys}:
                self._check_publish(exchange, copy)
        return may_copy

    def _check_publish(self, exchange: bytes, key: bytes) -> None:
        if exchange != DEFAULT:
            self._session.check_unless_made(Right.PUBLISH, exchange)
        elif not key.startswith(REPLIES + b"."):
            self._session.check_unless_made(Right.PUBLISH, key)

    async def settled(self) -> None:
        """Wait until no topic is being given other types."""
        await self._exchanges.settled()

    def pass_on(self, topic: RoutedTopic, batch: Batch, heads: Sequence[bytes]) -> bool:
        """Send one message to a subscriber of a topic, as `Driver.pass_on` does. Raises Refused."""
        return batch.longest <= self._session.max_message_bytes and _driver(topic).pass_on(batch, heads)

    def offer(self, topic: RoutedTopic, batch: Batch, heads: Sequence[bytes]) -> Offered:
        """Offer messages to a topic of a route, as `Driver.offer` does. Raises TooLarge, and Refused.

        A round-robin topic that omq clients declared takes them over, too: a connection must not wait for its
        own acknowledgements.
        """
        if batch.longest > self._session.max_message_bytes:
            raise TooLarge(self._session.max_message_bytes, batch.longest)
        return offer_or_spill(_driver(topic), batch, heads)

    async def taken(
        self, topic: RoutedTopic, batch: Batch, heads: Sequence[bytes], pending: PendingOffer
    ) -> Confirmation:
        """Wait until a topic accepts the messages of a pending offer. Raises Refused."""
        return await taken_or_spilled(_driver(topic), batch, heads, pending)

    @property
    def max_message_bytes(self) -> int:
        """The longest body of a message that is held until it is complete."""
        return self._session.max_message_bytes

    @property
    def max_uploaded_bytes(self) -> int:
        """The longest body of a message of which no more than a part is held."""
        return self._session.max_uploaded_bytes

    @property
    def fragment_octets(self) -> int:
        """The length of a body below which no topic takes it as it arrives."""
        return self._session.fragment_octets

    async def uploads(
        self, route: Sequence[RoutedTopic], octets: int, *, may_wait: bool = False
    ) -> list[Upload] | None:
        """Begin a message of N `octets` to the topics of a route, all of which take its body as it arrives.
        Return None if it must be held in memory. `may_wait` as in `begin_uploads`. Raises Refused.
        """
        least = self._session.fragment_octets
        if octets < least or not route:
            return None
        drivers = [_driver(topic) for topic in route]
        for driver in drivers:
            bound = driver.uploads_from(least)
            if bound is None or octets < bound:
                return None
        return await begin_uploads(drivers, octets, self._session.max_message_bytes, may_wait=may_wait)


def _driver(topic: RoutedTopic) -> Driver:
    assert isinstance(topic, Driver)
    return topic
