"""Metrics as text, in the format of Prometheus or of OpenMetrics, in steps."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from omq.drivers.slices import Slices

SAMPLES = 32
"""The number of samples that are written in one step."""

_END = b"# EOF\n"


class _Part(CollectorRegistry):
    """A registry as an encoder sees it, with a part of one family."""

    def __init__(self, part: Metric) -> None:
        super().__init__()
        self._part = part

    def collect(self) -> Iterator[Metric]:
        yield self._part


class Exposition:
    """Writes families of metrics, one after another."""

    def __init__(self, accept: str | None) -> None:
        """Create an empty exposition. `accept` is the field of a request, which chooses the format."""
        self._encode: Callable[[CollectorRegistry], bytes]
        self._encode, self.content_type = choose_encoder(accept or "")
        self._parts: list[bytes] = []

    async def add(self, families: Iterable[Metric], slices: Slices) -> None:
        """Write families. They have no samples afterwards."""
        for family in families:
            samples = family.samples
            for start in range(0, max(1, len(samples)), SAMPLES):
                part = Metric(family.name, family.documentation, family.type, family.unit)
                part.samples = samples[start : start + SAMPLES]
                octets = self._encode(_Part(part)).removesuffix(_END)
                if start:
                    octets = octets[_head(octets) :]  # a family has one head
                self._parts.append(octets)
                await slices.step()
            samples.clear()  # to free those of all families at once would take long, too
            await slices.step()

    def octets(self) -> bytes:
        """Return everything that was written."""
        end = _END if "openmetrics" in self.content_type else b""
        return b"".join([*self._parts, end])


def _head(octets: bytes) -> int:
    """Return the index at which the samples begin, behind the lines that describe the family."""
    position = 0
    while octets.startswith(b"#", position):
        position = octets.index(b"\n", position) + 1
    return position
