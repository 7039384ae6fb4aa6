"""The resources of HTTP that show the state of a server, by their paths."""

from omq.metrics.metrics import Metrics
from omq.metrics.readiness import Readiness
from omq.metrics.source import MetricsSource
from omq.terminals.http.site import WatchedResource


def watched_resources(source: MetricsSource) -> dict[str, WatchedResource]:
    """Return the resources that take the right `watch`."""
    return {
        "/metrics": WatchedResource(Metrics(source).answer, is_large=True),
        "/readyz": WatchedResource(Readiness(source).answer),
    }
