"""The metrics of the nodes of AMQP 1.0 without a queue: of a bounded number, each for itself.

A node exists while a link is attached to it, and its series, too. Nodes whose names the server made, such as
addresses for answers, have none: these names do not come again.
"""

from collections.abc import Sequence
from itertools import islice

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from omq.drivers.slices import Slices
from omq.drivers.statistics import NodeStatistics
from omq.metrics.source import MetricsSource

MOST_NODES = 1000
"""The greatest number of nodes with series: those that have existed for the longest time."""

_COUNTERS = (
    ("omq_direct_node_received_messages", "Messages that producers sent to the node."),
    ("omq_direct_node_sent_messages", "Messages sent to consumers; one that was given back counts again."),
    ("omq_direct_node_undelivered_messages", "Messages that no consumer took."),
    (
        "omq_direct_node_stalls",
        "The number of times that a producer of the node had used up its credit and got none.",
    ),
)
_GAUGES = (
    ("omq_direct_node_producers", "Links on which clients send to the node."),
    ("omq_direct_node_consumers", "Links on which clients get its messages."),
    ("omq_direct_node_credit", "Further messages that the consumers take."),
    ("omq_direct_node_waiting_messages", "Messages that wait for credit of a consumer."),
)


class NodeMetrics:
    """The families of the nodes of one server."""

    def __init__(self, source: MetricsSource, most: int = MOST_NODES) -> None:
        self._source = source
        self._most = most

    async def collect(self, slices: Slices) -> Sequence[Metric]:
        """Return all families."""
        counters = [CounterMetricFamily(*each, labels=["address"]) for each in _COUNTERS]
        gauges = [GaugeMetricFamily(*each, labels=["address"]) for each in _GAUGES]
        for node in islice(self._source.named_nodes(), self._most):
            label = [node.name.decode()]
            for counter, number in zip(counters, _counted(node), strict=True):
                counter.add_metric(label, number)
            for gauge, number in zip(gauges, _gauged(node), strict=True):
                gauge.add_metric(label, number)
            await slices.step()
        return [*counters, *gauges]


def _counted(node: NodeStatistics) -> tuple[int, ...]:
    return node.messages_in, node.messages_out, node.undelivered, node.stalls


def _gauged(node: NodeStatistics) -> tuple[int, ...]:
    return node.producers, node.consumers, node.credit, node.waiting
