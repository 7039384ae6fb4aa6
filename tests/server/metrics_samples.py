"""The metrics of a server under test as numbers."""

from prometheus_client.parser import text_string_to_metric_families

from omq.config import ClientConfig

from .conversation import Host
from .http_conversation import ask, request
from .test_operations import SECRET

CLIENTS = [
    ClientConfig(name="watcher", secret=str(SECRET), watch=["*"]),
    ClientConfig(name="reader", secret=str(SECRET), subscribe=["*"], watch=["prices"]),
    ClientConfig(name="slow", secret=str(SECRET), watch=["*"], max_bytes_per_second=1000),
]

Samples = dict[str, float]


def samples(text: str) -> Samples:
    """Return the values by name and labels: `omq_topics` or `omq_connections{protocol="omq"}`."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found
            found[key] = sample.value
    return found


async def metrics(host: Host) -> Samples:
    """Return the metrics of the server."""
    answered = await ask(host, request("/metrics"))
    assert answered.status == 200
    assert answered.fields["content-type"].startswith("text/plain; version=")
    return samples(answered.body.decode())
