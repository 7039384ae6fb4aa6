"""The metrics of a server as a whole."""

import logging
import os
import platform
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from msgspec.structs import asdict
from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from omq.drivers.histogram import BOUNDS, Distribution
from omq.drivers.memory import MemoryStatistics
from omq.drivers.reasons import Reason, refusals
from omq.drivers.slices import Slices, let_go
from omq.drivers.spool import SpoolStatistics
from omq.logs import LogThrottle
from omq.metrics.source import PROTOCOLS, MetricsSource
from omq.statistics import ServerStatistics
from omq.terminals.connection.statistics import EndedConnections
from omq.threads import in_thread
from omq.version import VERSION
from omq_storage import codec
from omq_storage.errors import StoreError
from omq_storage.levels import Level

log = logging.getLogger("omq.metrics")

_PROCESS = ProcessCollector(registry=None)


@dataclass(frozen=True, slots=True)
class Stores:
    """The sizes of the stores."""

    used: dict[Level, int]
    disk_free: int


@dataclass(frozen=True, slots=True)
class ConnectionSums:
    """The sums over connections."""

    open: Counter[str]
    ended: dict[str, EndedConnections]
    """The ended connections of each protocol, with the octets and messages of the open ones."""
    unconfirmed: int
    stalled: int


def _measure(source: MetricsSource) -> Stores:
    """Measure the stores and the disk; this blocks. Raise OSError and StoreError."""
    writers = source.catalogue.writers
    used = {level: writer.environment.usage().used for level, writer in writers.items()}
    status = os.statvfs(source.config.store)
    return Stores(used, status.f_bavail * status.f_frsize)


def _of_process() -> list[Metric]:
    """Return the families of the process. This counts the open files one by one."""
    return list(_PROCESS.collect())


class ServerMetrics:
    """The families of a server."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        self._problems = LogThrottle.of_problem(log, "the stores cannot be measured")

    async def collect(self, slices: Slices) -> list[Metric]:
        """Return all families."""
        connections = await self._connections(slices)
        stores: Stores | None = None
        try:
            stores = await in_thread(partial(_measure, self._source))
        except (OSError, StoreError) as problem:
            self._problems.add(problem)
        found = self._source.statistics()
        families: list[Metric] = []
        for some in (
            await in_thread(_of_process),
            _about(found),
            _connection_families(found, connections),
            _memory_families(found.memory, self._source.config.memory_bytes),
            _spool_families(found.spool),
            _writer_families(found),
            [_refused(), _histogram("omq_loop_lag_seconds", LAG, "", {"": self._source.loop_lag})],
            [] if stores is None else _store_families(stores, self._source),
        ):
            families += some
            await slices.step()
        return families

    async def _connections(self, slices: Slices) -> ConnectionSums:
        # Connections that have ended come first: a connection that ends meanwhile is among the open ones
        # then.
        ended = dict.fromkeys(PROTOCOLS.values(), EndedConnections())
        for kind, sums in self._source.ended.items():
            ended[PROTOCOLS[kind]] = ended[PROTOCOLS[kind]].plus(sums)
        opened: Counter[str] = Counter(dict.fromkeys(PROTOCOLS.values(), 0))
        unconfirmed = stalled = 0
        for terminal in let_go(list(self._source.terminals())):
            one = terminal.statistics()
            protocol = PROTOCOLS[one.kind]
            opened[protocol] += 1
            ended[protocol] = ended[protocol].plus(EndedConnections.one(one))
            unconfirmed += one.unconfirmed
            stalled += one.stalled_seconds is not None
            await slices.step()
        return ConnectionSums(opened, ended, unconfirmed, stalled)


LAG = "The time for which a task that could run waited for its turn; one sample about every second."


def _about(found: ServerStatistics) -> Iterator[Metric]:
    about = {"version": VERSION, "python": platform.python_version(), "codec": codec.describe()}
    yield InfoMetricFamily(
        "omq_build", "The version of the server and of Python, and the codec; the value is always 1.", about
    )
    started = time.time() - found.seconds
    yield GaugeMetricFamily(
        "omq_start_time_seconds", "The start of the server, in seconds since the Unix epoch.", started
    )
    yield GaugeMetricFamily("omq_topics", "Topics of the server.", found.topics)
    yield GaugeMetricFamily("omq_topics_limit", "The limit of topics.", found.max_topics)
    yield GaugeMetricFamily("omq_subscriptions", "Open subscriptions and feeds.", found.subscriptions)
    most = found.max_subscriptions
    yield GaugeMetricFamily("omq_subscriptions_limit", "The limit of open subscriptions and feeds.", most)
    yield GaugeMetricFamily(
        "omq_leases", "Leases of sinks and feeds that no connection has used yet.", found.leases
    )
    yield GaugeMetricFamily("omq_leases_limit", "The limit of leases.", found.max_leases)
    yield GaugeMetricFamily("omq_direct_nodes", "Nodes of AMQP 1.0 without a queue.", found.direct_nodes)
    yield CounterMetricFamily(
        "omq_direct_undelivered_messages",
        "Messages to nodes of AMQP 1.0 without a queue that no consumer took.",
        found.undelivered,
    )
    yield CounterMetricFamily(
        "omq_amqp_1_0_stalls",
        "The number of times that a producer of AMQP 1.0 had used up its credit and got none.",
        found.stalls,
    )


def _connection_families(found: ServerStatistics, connections: ConnectionSums) -> Iterator[Metric]:
    opened = GaugeMetricFamily("omq_connections", "Open connections by protocol.", labels=["protocol"])
    for protocol, count in sorted(connections.open.items()):
        opened.add_metric([protocol], count)
    opened.add_metric(["unknown"], found.handshakes)
    yield opened
    yield GaugeMetricFamily("omq_connections_limit", "The limit of open connections.", found.max_connections)
    accepted = CounterMetricFamily(
        "omq_connections_accepted",
        "Connections that began with the octets of a protocol.",
        labels=["protocol"],
    )
    received = CounterMetricFamily(
        "omq_protocol_received_bytes",
        "Octets received from clients, without what TLS adds.",
        labels=["protocol"],
    )
    sent = CounterMetricFamily(
        "omq_protocol_sent_bytes", "Octets sent to clients, without what TLS adds.", labels=["protocol"]
    )
    published = CounterMetricFamily(
        "omq_protocol_received_messages",
        "Messages that clients published, including refused ones.",
        labels=["protocol"],
    )
    delivered = CounterMetricFamily(
        "omq_protocol_sent_messages",
        "Messages sent to subscribers; a message counts once for each subscriber.",
        labels=["protocol"],
    )
    for protocol, sums in sorted(connections.ended.items()):
        accepted.add_metric([protocol], sums.connections)
        received.add_metric([protocol], sums.octets_in)
        sent.add_metric([protocol], sums.octets_out)
        published.add_metric([protocol], sums.messages_in)
        delivered.add_metric([protocol], sums.messages_out)
    yield from (accepted, received, sent, published, delivered)
    lost = CounterMetricFamily(
        "omq_connections_failed", "Connections that ended before they were served.", labels=["reason"]
    )
    lost.add_metric(["limit"], found.turned_away)
    lost.add_metric(["unrecognized"], found.unrecognized)
    lost.add_metric(["defect"], found.defects)
    yield lost
    yield GaugeMetricFamily(
        "omq_unconfirmed_messages",
        "Messages that clients published and that are neither stored nor refused yet.",
        connections.unconfirmed,
    )
    yield GaugeMetricFamily(
        "omq_stalled_connections",
        "Connections whose client does not read what the server sends.",
        connections.stalled,
    )


def _memory_families(memory: MemoryStatistics, limit: int) -> Iterator[Metric]:
    shares = GaugeMetricFamily(
        "omq_memory_share_bytes", "Octets that each share of memory_bytes holds.", labels=["share"]
    )
    for name, value in asdict(memory).items():
        if name != "waiting_tasks":
            shares.add_metric([name], value)
    yield shares
    yield GaugeMetricFamily(
        "omq_memory_limit_bytes", "The limit of all shares of the memory together.", limit
    )
    yield GaugeMetricFamily(
        "omq_memory_waiting_tasks",
        "Tasks that wait until a share of the memory has room.",
        memory.waiting_tasks,
    )


def _spool_families(spool: SpoolStatistics) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "omq_spool_used_bytes", "Octets of transient messages on the disk for slow subscribers.", spool.used
    )
    yield GaugeMetricFamily("omq_spool_limit_bytes", "The limit of the spool on the disk.", spool.limit)
    yield CounterMetricFamily(
        "omq_spool_written_bytes", "Octets of transient messages written to the spool.", spool.written
    )


def _writer_families(found: ServerStatistics) -> Iterator[Metric]:
    posts = GaugeMetricFamily(
        "omq_writer_waiting_posts", "Runs of published messages that wait for a commit.", labels=["level"]
    )
    octets = GaugeMetricFamily(
        "omq_writer_waiting_bytes", "Octets of messages that wait for a commit.", labels=["level"]
    )
    messages = CounterMetricFamily(
        "omq_writer_stored_messages", "Messages that commits stored.", labels=["level"]
    )
    stored = CounterMetricFamily(
        "omq_writer_stored_bytes", "Octets of messages that commits stored.", labels=["level"]
    )
    failures = CounterMetricFamily(
        "omq_writer_failures",
        "Failed commits; one with several topics counts once for each topic.",
        labels=["level"],
    )
    refusing = GaugeMetricFamily(
        "omq_writer_refusing", "1 while the level stores nothing, otherwise 0.", labels=["level"]
    )
    for writer in found.writers:
        level = [writer.level.value]
        posts.add_metric(level, writer.waiting_posts)
        octets.add_metric(level, writer.waiting_octets)
        messages.add_metric(level, writer.messages)
        stored.add_metric(level, writer.octets)
        failures.add_metric(level, writer.failures)
        refusing.add_metric(level, float(writer.refusal is not None or writer.trouble is not None))
    yield from (posts, octets, messages, stored, failures, refusing)
    yield _histogram(
        "omq_commit_duration_seconds",
        "Duration of commits that stored messages.",
        "level",
        {writer.level.value: writer.commit_times for writer in found.writers},
    )
    yield _histogram(
        "omq_checkpoint_duration_seconds",
        "Duration of checkpoints, which make all stored messages durable.",
        "level",
        {writer.level.value: writer.checkpoint_times for writer in found.writers},
    )


def _store_families(stores: Stores, source: MetricsSource) -> Iterator[Metric]:
    used = GaugeMetricFamily(
        "omq_store_used_bytes",
        "Octets of the data file of a level up to the last page that was ever written.",
        labels=["level"],
    )
    for level, octets in stores.used.items():
        used.add_metric([level.value], octets)
    yield used
    yield GaugeMetricFamily(
        "omq_store_limit_bytes", "The limit of the data file of each level.", source.config.map_bytes
    )
    yield GaugeMetricFamily(
        "omq_store_disk_bytes",
        "Octets that all files of the store take on the disk.",
        source.catalogue.disk.stored,
    )
    yield GaugeMetricFamily("omq_disk_free_bytes", "Free octets of the stores' disk.", stores.disk_free)
    yield GaugeMetricFamily(
        "omq_disk_reserve_bytes",
        "The server stores nothing while the disk has fewer free octets.",
        source.config.disk_reserve_bytes,
    )


def _refused() -> Metric:
    family = CounterMetricFamily("omq_refused_commands", "Commands that were refused.", labels=["reason"])
    for reason in Reason:
        family.add_metric([reason.name.lower()], refusals[reason])
    return family


def _histogram(name: str, documentation: str, label: str, found: dict[str, Distribution]) -> Metric:
    family = HistogramMetricFamily(name, documentation, labels=[label] if label else [])
    for value, distribution in found.items():
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), distribution.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([value] if label else [], buckets, distribution.seconds)
    return family
