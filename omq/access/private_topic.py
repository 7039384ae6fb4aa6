"""A topic that only one connection can find."""

from collections.abc import Callable, Sequence
from functools import partial

from omq.access.rights import Right
from omq.access.session import Release, S, Session
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.lifetime import Private
from omq.drivers.offer import Offered
from omq.drivers.seam import Channel
from omq.model import Delivery, Replay, Topic
from omq_storage.batches import Batch


class PrivateTopic:
    """A transient topic that only the holder of this object can use, with the rights of a session to its
    name.
    """

    __slots__ = ("_catalogue", "_driver", "_session", "topic")

    def __init__(
        self, session: Session, catalogue: Catalogue, name: bytes, delivery: Delivery, lifetime: Private
    ) -> None:
        """Make the topic. Raises Refused."""
        session.check(Right.DECLARE, name)
        self._session = session
        self._catalogue = catalogue
        self._driver: Driver = catalogue.make_private(name, delivery, lifetime, partial(session.admit, name))
        self.topic: Topic = self._driver.topic

    def offer(self, batch: Batch, heads: Sequence[bytes] = ()) -> Offered:
        """Offer messages, as `Driver.offer` does. Raises TooLarge, and Refused."""
        self._session.check_offer(self.topic.topic, batch)
        return self._driver.offer(batch, heads)

    def open(
        self, replay: Replay, make: Callable[[Topic, Release], S], *, exclusive: bool = False
    ) -> tuple[S, Channel]:
        """Open a channel, as `Session.open` does. Raises Refused."""
        self._session.check(Right.SUBSCRIBE, self.topic.topic)
        return self._session.open_driver(self._driver, replay, make, exclusive=exclusive)

    def delete(self) -> None:
        """Delete the topic, unless it is deleted already. Who made a topic may delete it."""
        self._catalogue.delete_private(self._driver)
