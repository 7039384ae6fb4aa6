"""The metrics of topics: of a bounded number each for itself, and of the others as one sum.

A counter must never become smaller: Prometheus takes that for a restart, and counts everything again. So a
topic keeps its place, among those with series of their own or among the others, as long as it exists, and
what deleted topics of the others had stays in their sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from omq.drivers.driver import Driver
from omq.drivers.slices import Slices
from omq.drivers.statistics import Traffic
from omq.metrics.source import MetricsSource
from omq.model import Topic

MOST_TOPICS = 1000
"""The greatest number of topics with series of their own."""

OTHERS = ""
"""The label of the sum of the others: no topic has an empty name."""

COUNTERS = (
    ("omq_topic_received_messages", "Messages that the topic accepted."),
    ("omq_topic_received_bytes", "Octets of messages that the topic accepted."),
    (
        "omq_topic_sent_messages",
        "Messages sent to subscribers; a message counts once for each subscriber of the topic.",
    ),
    ("omq_topic_sent_bytes", "Octets sent to subscribers of the topic."),
    ("omq_topic_failures", "Commits that did not store messages of the topic."),
    ("omq_topic_rejected_messages", "Messages of the topic that subscribers rejected."),
)

GAUGES = (
    ("omq_topic_stored_messages", "Messages that the topic keeps: the depth of a queue."),
    ("omq_topic_stored_bytes", "Octets of messages that the topic keeps."),
    ("omq_topic_subscribers", "Open subscriptions and feeds of the topic."),
    ("omq_topic_unsettled_messages", "Messages that subscribers of the queue have and did not settle yet."),
    ("omq_topic_waiting_publishers", "Publishers that wait for room in the topic."),
)

BEHIND = (
    "omq_topic_slowest_behind_messages",
    "The number of messages that the slowest subscriber of the topic is behind.",
)

TopicNumbers = tuple[int, ...]

_NOTHING: TopicNumbers = (0,) * len(COUNTERS)


@dataclass(slots=True)
class _Seen:
    """A topic as of the last look."""

    topic: Topic
    driver: Driver
    label: str | None
    """None for a topic among the others."""
    base: TopicNumbers = _NOTHING
    """The counters of the topic before it got this driver, with other types."""
    shown: TopicNumbers = _NOTHING


@dataclass(slots=True)
class _Sums:
    """The families while they are filled."""

    counters: list[CounterMetricFamily] = field(
        default_factory=lambda: [CounterMetricFamily(*each, labels=["topic"]) for each in COUNTERS]
    )
    gauges: list[GaugeMetricFamily] = field(
        default_factory=lambda: [GaugeMetricFamily(*each, labels=["topic"]) for each in (*GAUGES, BEHIND)]
    )

    def add(self, label: str, counters: TopicNumbers, gauges: TopicNumbers) -> None:
        for counter, number in zip(self.counters, counters, strict=True):
            counter.add_metric([label], number)
        for gauge, number in zip(self.gauges, gauges, strict=True):
            gauge.add_metric([label], number)


class TopicMetrics:
    """The families of the topics of one server."""

    def __init__(self, source: MetricsSource, most: int = MOST_TOPICS) -> None:
        self._source = source
        self._most = most
        self._seen: dict[int, _Seen] = {}
        self._labels: set[str] = set()
        self._gone: TopicNumbers = _NOTHING  # of topics among the others that were deleted
        self._shown_others: TopicNumbers = _NOTHING

    async def collect(self, slices: Slices) -> Sequence[Metric]:
        """Return all families. One call at a time."""
        await self._forget_deleted(slices)
        sums = _Sums()
        others = self._gone
        gauges: TopicNumbers = (0,) * len(GAUGES)
        slowest = count = 0
        for driver in self._source.catalogue.in_turn():
            await slices.step()
            if driver.deleted:
                continue
            seen = self._see(driver)
            found = driver.statistics()
            counters = _plus(seen.base, _counters(driver))
            seen.shown = counters = _larger(counters, seen.shown)
            numbers = (
                found.messages, found.octets, found.subscribers, found.unsettled, found.waiting_publishers,
            )  # fmt: skip
            behind = await driver.lag(slices)
            if seen.label is not None:
                sums.add(seen.label, counters, (*numbers, behind))
                continue
            count += 1
            others = _plus(others, counters)
            gauges = _plus(gauges, numbers)
            slowest = max(slowest, behind)
        self._shown_others = _larger(others, self._shown_others)
        sums.add(OTHERS, self._shown_others, (*gauges, slowest))
        summed = GaugeMetricFamily(
            "omq_topics_without_series", 'Topics that are only in the sum with topic="".', count
        )
        return [*sums.counters, *sums.gauges, summed]

    def _see(self, driver: Driver) -> _Seen:
        seen = self._seen.get(driver.topic.id)
        if seen is None:
            seen = _Seen(driver.topic, driver, self._new_label(driver.topic))
            self._seen[driver.topic.id] = seen
        elif seen.driver is not driver:
            seen.driver, seen.base = driver, seen.shown
        return seen

    def _new_label(self, topic: Topic) -> str | None:
        if len(self._labels) >= self._most:
            return None
        label = topic.topic.decode("utf-8", "backslashreplace")
        if label in self._labels:  # the name of another topic looks like the escapes of this one
            label = f"{label} ({topic.id})"
        if label in self._labels:
            return None
        self._labels.add(label)
        return label

    async def _forget_deleted(self, slices: Slices) -> None:
        for id in list(self._seen):
            seen = self._seen[id]
            await slices.step()
            if not seen.driver.deleted or self._has_other_types(seen):
                continue
            del self._seen[id]
            if seen.label is None:
                # Its last messages count, too: the driver has the counters after its deletion.
                last = _plus(seen.base, _counters(seen.driver))
                self._gone = _plus(self._gone, _larger(last, seen.shown))
            else:
                self._labels.discard(seen.label)

    def _has_other_types(self, seen: _Seen) -> bool:
        """Return whether the topic has another driver now."""
        driver = self._source.catalogue.by_name.get(seen.topic.topic)
        return driver is not None and driver.topic.id == seen.topic.id


def _counters(driver: Driver) -> TopicNumbers:
    traffic: Traffic = driver.traffic
    return (
        traffic.messages_in,
        traffic.octets_in,
        traffic.messages_out,
        traffic.octets_out,
        driver.failures,
        driver.rejections,
    )


def _plus(one: TopicNumbers, other: TopicNumbers) -> TopicNumbers:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _larger(one: TopicNumbers, other: TopicNumbers) -> TopicNumbers:
    """Return the larger numbers: messages that were counted as sent and were not are taken off again."""
    return tuple(map(max, one, other))
