"""The numbers of a topic: what it tells of itself, and whether they have changed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from omq.drivers.publisher_queue import PublisherQueue
from omq.drivers.seam import Channel
from omq.drivers.slices import Slices, let_go
from omq.drivers.statistics import DriverStatistics, Traffic
from omq.drivers.tail import Tail
from omq.model import Delivery, Persistence, Topic, TopicInfo
from omq_storage.environment import Extent

CHANNELS_A_STEP = 32
"""The number of channels whose statistics are read in one step of a slice."""


class CountedTopic(ABC):
    """The part of a driver that tells the numbers of its topic."""

    topic: Topic
    delivery: Delivery
    persistence: Persistence
    tail: Tail
    publisher_queue: PublisherQueue
    traffic: Traffic
    failures: int
    rejections: int
    retention: tuple[int | None, float | None]
    """The limits of retention in octets and in seconds; None for no limit."""

    @property
    @abstractmethod
    def next_id(self) -> int:
        """The id of the next message."""

    @property
    @abstractmethod
    def extent(self) -> Extent:
        """The ids, the number and the octets of the stored messages of the topic."""

    @property
    @abstractmethod
    def is_persistent(self) -> bool:
        """Whether its messages are stored."""

    @abstractmethod
    def subscriber_count(self) -> int:
        """Return the number of open channels that may still give messages."""

    @abstractmethod
    def channels(self) -> Sequence[Channel]:
        """Return a copy of the open channels; it is made quickly, also where there are many."""

    def info(self) -> TopicInfo:
        messages, octets, first, last = self._kept()
        return TopicInfo(
            id=self.topic.id,
            topic=self.topic.topic,
            delivery=self.delivery,
            persistence=self.persistence,
            messages=messages,
            bytes=octets,
            first=first,
            last=last,
            subscribers=self.subscriber_count(),
        )

    def statistics(self) -> DriverStatistics:
        """Return a snapshot of the topic and its counters."""
        messages, octets, _, last = self._kept()
        return DriverStatistics(
            topic=self.topic,
            delivery=self.delivery,
            persistence=self.persistence,
            messages=messages,
            octets=octets,
            next_id=last + 1,
            subscribers=self.subscriber_count(),
            unsettled=self._unsettled(),
            waiting_publishers=self.publisher_queue.waiting,
            failures=self.failures,
            rejections=self.rejections,
            messages_in=self.traffic.messages_in,
            octets_in=self.traffic.octets_in,
            messages_out=self.traffic.messages_out,
            octets_out=self.traffic.octets_out,
        )

    async def lag(self, slices: Slices) -> int:
        """Return the number of messages that the slowest subscriber is behind."""
        behind = 0
        for number, channel in enumerate(let_go(list(self.channels())), 1):
            behind = max(behind, channel.statistics().behind)
            if not number % CHANNELS_A_STEP:
                await slices.step()
        return behind

    def mark(self) -> tuple[int, ...]:
        """Return numbers of which at least one differs when the topic has changed; quicker than
        `statistics`.
        """
        traffic, extent = self.traffic, self.extent
        return (
            self.next_id,
            traffic.messages_in,
            traffic.messages_out,
            traffic.octets_out,
            extent.messages,
            extent.bytes,
            self.tail.octets,
            self.subscriber_count(),
            self.publisher_queue.waiting,
            self.failures,
            hash(self.retention),
        )

    @property
    def ready(self) -> int:
        """Round-robin: the number of messages that no subscriber has. Broadcast: 0."""
        return 0

    def _unsettled(self) -> int:
        """Return the number of messages that were dealt and are not done."""
        return 0

    def _kept(self) -> tuple[int, int, int, int]:
        """Return the number of kept messages, their octets, their first and their last id; first is last + 1
        when none is kept.
        """
        last = self.next_id - 1
        if self.is_persistent:
            first = self.extent.oldest(self.next_id)
            return self.extent.messages, self.extent.bytes, first if last else 0, last
        held = self.tail.first
        first = self.next_id if held is None else held
        return self.next_id - first, self.tail.octets, first if last else 0, last
