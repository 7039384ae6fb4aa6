"""The topic for which a sink was leased."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omq.access.rights import Right
from omq.access.session import Session, SessionContext
from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.push import send_passed
from omq.drivers.reasons import DELETED, Refused
from omq.drivers.sequences import Origins
from omq.drivers.spooled_uploads import begin_upload
from omq.drivers.uploads import Upload
from omq.model import Topic
from omq_storage import codec
from omq_storage.batches import Batch

if TYPE_CHECKING:
    from omq_storage._codec import Spans


@dataclass(frozen=True, slots=True)
class TopicReadiness:
    """Whether the messages of a topic have consumers now."""

    is_kept: bool
    """Whether a store keeps them without a subscriber."""
    is_subscribed: bool
    """Whether there is a subscriber."""
    is_ready: bool
    """Whether a subscriber can take a message at once."""


class LeasedTopic:
    """The topic of a lease, and no later one of the same name, for the client of a session."""

    __slots__ = ("_catalogue", "_is_stored", "_session", "_tails", "topic")

    def __init__(self, session: Session, shared: SessionContext, topic: Topic) -> None:
        self._session = session
        self._catalogue = shared.catalogue
        self._tails = shared.tails
        self._is_stored = False
        self.topic = topic

    async def check(self) -> None:
        """Raise Refused when the client may not publish to the topic, or it was deleted."""
        await self._find_allowed()

    def push(self, found: "Spans") -> int:
        """Send the messages of the first of these envelopes to the subscribers that have everything before
        them, and keep them for the others. Return their number; `post` the others.
        """
        name = self.topic.topic
        if self._is_stored or name not in self._session.may_publish:
            return 0
        largest = self._session.max_message_bytes
        passed = codec.native.Pass(self._catalogue.routes, None, largest, 0, self._tails)
        count = found.deal(passed, self.topic.id, name)
        if count and passed.lanes:
            send_passed(passed)
        elif passed.lacking is not None:
            self._is_stored = True
        return count

    async def post(self, batch: Batch, heads: Sequence[bytes], origins: Origins) -> Confirmation:
        """Post messages. Raises TooLarge, and Refused."""
        self._session.check_offer(self.topic.topic, batch)
        return await (await self._find()).post(batch, heads, origins)

    async def uploads_from(self) -> int | None:
        """Return the length from which on `upload` takes the body of a message; None if it takes none. Raises
        Refused.
        """
        return (await self._find_allowed()).uploads_from(self._session.fragment_octets)

    async def upload(self, octets: int) -> Upload | None:
        """Begin a message of N `octets`, whose body comes in pieces. Return None if it must be held in
        memory. Raises Refused.
        """
        driver, most_held = await self._find_allowed(), self._session.max_message_bytes
        return await begin_upload(driver, octets, most_held, may_wait=True)

    async def takers(self) -> TopicReadiness:
        """Return the readiness of the topic, with the takers of its messages now. Raises Refused."""
        driver = await self._find_allowed()
        return TopicReadiness(driver.is_persistent, any(driver.subscribers()), driver.has_taker())

    async def _find_allowed(self) -> Driver:
        self._session.check(Right.PUBLISH, self.topic.topic)
        return await self._find()

    async def _find(self) -> Driver:
        name = self.topic.topic
        driver = self._catalogue.lookup(name) or await self._catalogue.find(name)
        if driver is None or driver.topic.id != self.topic.id:
            raise Refused.of(DELETED)
        return driver
