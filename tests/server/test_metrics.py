"""`/metrics` and `/readyz`: see docs/HTTP.md."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from counted_steps import counted_calls
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from omq.drivers.slices import Slices
from omq.metrics.source import PROTOCOLS
from omq.metrics.topics import TopicMetrics
from omq.protocol.amqp_1_0.performatives import Close
from omq.terminals.connection.statistics import Kind

from . import dmp_conversation as dmp
from .amqp_1_0_peer import data, opened
from .conversation import PERSISTENCES, eventually, publish, serving
from .http_conversation import ask, request
from .metrics_samples import Samples, metrics

HTTP_DOCUMENT = Path(__file__).parents[2] / "docs" / "HTTP.md"

WAYS = "received", "sent"


async def test_the_metrics_tell_what_happens(store: Path) -> None:
    async with serving(store) as host:
        writer = await host.connect()
        reader = await host.connect()
        await reader.say(b"(Subscribe prices From_current)")
        await reader.settle()
        await writer.send(publish(b"prices", [b"x" * 100] * 10))
        await writer.confirm()
        await reader.frame()
        await reader.messages(10)
        await writer.say(b"(Declare jobs Round_robin (Persistent Strong))", b"(Publish jobs x)")
        await writer.say(b"(Delete nothing)")
        await writer.settle()
        found = await metrics(host)
        assert found['omq_topic_received_messages_total{topic="prices"}'] == 10
        assert found['omq_topic_received_bytes_total{topic="prices"}'] == 10 * 117
        assert found['omq_topic_sent_messages_total{topic="prices"}'] == 10
        assert found['omq_topic_sent_bytes_total{topic="prices"}'] == 10 * 117
        assert found['omq_topic_stored_messages{topic="jobs"}'] == 1
        assert found['omq_topic_subscribers{topic="prices"}'] == 1
        assert found['omq_topic_slowest_behind_messages{topic="prices"}'] == 0
        assert found['omq_connections{protocol="omq"}'] == 2
        assert found['omq_connections{protocol="http"}'] == 1
        assert found["omq_subscriptions"] == 1
        assert found["omq_topics"] == 2
        assert found["omq_unconfirmed_messages"] == 0
        assert found['omq_commit_duration_seconds_count{level="strong"}'] == 1
        assert found['omq_commit_duration_seconds_count{level="weak"}'] >= 1
        assert found['omq_commit_duration_seconds_bucket{le="+Inf",level="strong"}'] == 1
        assert found['omq_writer_stored_messages_total{level="weak"}'] == 10
        assert found['omq_refused_commands_total{reason="not_found"}'] >= 1
        assert found['omq_store_used_bytes{level="strong"}'] > 0
        assert found["omq_store_limit_bytes"] == host.server.config.map_bytes
        assert found["omq_store_disk_bytes"] == host.server.catalogue.disk.stored > 0
        free = shutil.disk_usage(store).free  # others write to this disk, too
        assert free / 2 < found["omq_disk_free_bytes"] < free * 2
        assert found['omq_memory_share_bytes{share="tails"}'] > 0
        shares = re.findall(r'omq_memory_share_bytes\{share="(\w+)"', " ".join(found))
        table = HTTP_DOCUMENT.read_text().partition("| share | content |")[2].partition("\n\n")[0]
        assert sorted(shares) == sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
        connections = [each.statistics() for each in host.server.terminals()]
        received = sum(each.octets_in for each in connections if each.kind is Kind.OMQ)
        assert found['omq_protocol_received_bytes_total{protocol="omq"}'] == received
        assert abs(found["omq_start_time_seconds"] - time.time()) < 60


async def test_counters_of_connections_stay_when_they_end(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.confirm()
        (statistics,) = [each.statistics() for each in host.server.terminals()]
        (await dmp.sink(host, client)).close()
        client.close()
        await eventually(lambda: host.connections == 0)
        found = await metrics(host)
        assert found['omq_connections{protocol="omq"}'] == 0
        assert found['omq_connections_accepted_total{protocol="omq"}'] == 1
        assert found['omq_connections_accepted_total{protocol="dmp"}'] == 1
        assert found['omq_protocol_received_bytes_total{protocol="omq"}'] > statistics.octets_in > 0
        assert found['omq_protocol_received_bytes_total{protocol="dmp"}'] > 0


def test_every_kind_of_connection_has_a_protocol() -> None:
    assert set(PROTOCOLS) == set(Kind)


@pytest.mark.parametrize("persistence", ["Transient", "Weak"])
async def test_messages_are_counted_by_protocol(store: Path, persistence: str) -> None:
    async with serving(store) as host, opened(host.port) as amqp:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast %s)" % PERSISTENCES[persistence])
        await client.ask(b"(Subscribe t From_current)")
        feed = await dmp.feed(host, client)
        await amqp.sender("t")
        await amqp.receiver("t", credit=100)
        await amqp.settle()
        for body in (b"1", b"2"):  # the second read finds the subscribers of a transient topic up to date
            await client.send(publish(b"t", [body] * 4))
            await client.messages(4)
        sink = await dmp.sink(host, client)
        await sink.send(dmp.envelopes([b"3"] * 3))
        await client.messages(3)
        assert await dmp.stored(sink) == 3
        await amqp.publish(data(b"4"))
        await client.messages(1)
        assert len(await feed.bodies(12)) == 12
        for _ in range(12):
            await amqp.message()

        def expected(found: Samples) -> bool:
            counted = [
                [found[f'omq_protocol_{way}_messages_total{{protocol="{protocol}"}}'] for way in WAYS]
                for protocol in ("omq", "dmp", "amqp_1_0", "amqp_0_9", "http")
            ]
            return counted == [[8, 12], [3, 12], [1, 12], [0, 0], [0, 0]]

        # Input that a client has read may be counted a moment later.
        while not expected(await metrics(host)):
            await trio.lowlevel.checkpoint()
        feed.connection.close()
        sink.close()
        client.close()
        await amqp.say(Close())
        await amqp.until(Close)
        await eventually(lambda: not host.server.terminals())
        assert expected(await metrics(host))


def told(text: str) -> dict[str, str]:
    """Return the help of each metric by its name."""
    return {family.name: family.documentation for family in text_string_to_metric_families(text)}


async def test_the_help_of_each_metric_needs_no_other_metric(store: Path) -> None:
    async with serving(store) as host:
        found = told((await ask(host, request("/metrics"))).body.decode())
    ours = {name: text for name, text in found.items() if name.startswith("omq_")}
    assert len(ours) > 50
    short = {name: text for name, text in ours.items() if not re.fullmatch(r"[A-Z1](\S* ){2,}\S*\.", text)}
    assert short == {}
    assert {name for name, text in ours.items() if re.search(r"\b(those|these|them)\b", text)} == set()
    texts = list(ours.values())
    assert [text for text in texts if texts.count(text) > 1] == []


async def test_the_document_has_every_metric_and_no_other(store: Path) -> None:
    async with serving(store) as host:
        writer = await host.connect()
        await writer.say(b"(Publish prices x)")
        await writer.confirm()
        body = (await ask(host, request("/metrics"))).body.decode()
    served = set(re.findall(r"^# HELP (omq_\w+)", body, re.MULTILINE))
    table = HTTP_DOCUMENT.read_text().partition("| metric | labels | meaning |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(omq_\w+)`", row)} == served


async def test_openmetrics_is_given_on_request(store: Path) -> None:
    async with serving(store) as host:
        writer = await host.connect()
        await writer.send(publish(b"prices", [b"x"]))
        await writer.confirm()
        octets = request("/metrics", Accept="application/openmetrics-text; version=1.0.0")
        answered = await ask(host, octets)
        assert answered.fields["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        families = {family.name: family for family in parse_openmetrics(answered.body.decode())}
        (sample, *_) = families["omq_topic_received_messages"].samples
        assert (sample.labels, sample.value) == ({"topic": "prices"}, 1)


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of Debian's package prometheus")
async def test_promtool_finds_nothing_wrong(store: Path) -> None:
    async with serving(store) as host:
        writer = await host.connect()
        for name in (b"prices", b'"quoted \\"name\\" with \\\\"', b'"two\\nlines"', b'"\\255"'):
            await writer.say(b"(Publish %s x)" % name)
        await writer.confirm()
        answered = await ask(host, request("/metrics"))
    assert PROMTOOL is not None
    checked = await trio.run_process(
        [PROMTOOL, "check", "metrics"],
        stdin=answered.body,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, b"")


# -- topics ------------------------------------------------------------------------------------------------


async def topic_samples(topics: TopicMetrics) -> Samples:
    """Return the samples of the families."""
    found: Samples = {}
    for family in await topics.collect(Slices()):
        for sample in family.samples:
            found[f"{sample.name} {sample.labels.get('topic', '-')}"] = sample.value
    return found


async def test_topics_beyond_the_bound_are_one_sum_that_never_shrinks(store: Path) -> None:
    async with serving(store) as host:
        topics = TopicMetrics(host.server, most=2)
        writer = await host.connect()
        for name in (b"a", b"b", b"c", b"d"):
            await writer.say(b"(Declare %s Broadcast Transient)" % name)
            await writer.frame()
        await writer.say(b"(Publish a x)", *[b"(Publish c x)"] * 2, *[b"(Publish d x)"] * 3)
        await writer.confirm()
        received = "omq_topic_received_messages_total "
        found = await topic_samples(topics)
        assert [found[received + name] for name in ("a", "b", "")] == [1, 0, 5]
        assert found["omq_topics_without_series -"] == 2
        assert (received + "c") not in found
        await writer.say(b"(Publish d x)", b"(Delete d)", b"(Delete a)")
        await writer.settle()
        found = await topic_samples(topics)
        assert [found[received + name] for name in ("b", "")] == [0, 6]
        assert (received + "a") not in found
        assert found["omq_topics_without_series -"] == 1
        await writer.say(b"(Declare e Broadcast Transient)", b"(Publish e x)", b"(Publish c x)")
        await writer.settle()
        found = await topic_samples(topics)
        assert [found[received + name] for name in ("b", "e", "")] == [0, 1, 7]


async def test_names_that_look_alike_have_series_of_their_own(store: Path) -> None:
    async with serving(store) as host:
        writer = await host.connect()
        await writer.say(b'(Publish "\\255" x)', b'(Publish "\\\\xff" x)')
        await writer.confirm()
        found = await metrics(host)
        names = [key for key in found if key.startswith("omq_topic_received_messages_total")]
        assert len(names) == 3


async def test_the_slowest_subscriber_is_told(store: Path) -> None:
    async with serving(store) as host:
        slow = await host.connect(receive_octets=4096)
        await slow.say(b"(Subscribe prices From_current)")
        await slow.settle()
        fast = await host.connect()
        await fast.say(b"(Subscribe prices From_current)")
        await fast.settle()
        writer = await host.connect()
        await writer.send(publish(b"prices", [b"x" * 1000] * 8000))
        await writer.confirm()
        await fast.frame()
        await fast.messages(8000)
        behind = (await metrics(host))['omq_topic_slowest_behind_messages{topic="prices"}']
        assert 1000 < behind <= 8000


async def test_many_topics_do_not_hold_the_thread(store: Path) -> None:
    async with serving(store) as host:
        writer = await host.connect()
        await writer.send(b"".join(b"(Declare t%d Broadcast Transient)\n" % n for n in range(700)))
        await writer.settle()
        await metrics(host)  # imports
        client = await host.open()
        with counted_calls() as calls:
            await client.send(request("/metrics"))
            await client.stream.receive_some(1)
        assert calls.total > 100_000
        # A slice ends after 300 calls, with the step that it is in: the longest is that for 32 samples.
        assert calls.longest < 3000


# -- the dashboard -----------------------------------------------------------------------------------------

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "omq.json"


def expressions(node: object) -> Iterator[str]:
    """Yield all queries of a dashboard."""
    match node:
        case {"expr": str(expression)}:
            yield expression
        case dict():
            for each in node.values():
                yield from expressions(each)
        case list():
            for each in node:
                yield from expressions(each)
    if isinstance(node, dict) and isinstance(node.get("query"), dict):
        yield str(node["query"].get("query", ""))


async def test_every_metric_of_the_dashboard_exists(store: Path) -> None:
    async with serving(store) as host:
        found = {key.partition("{")[0] for key in await metrics(host)}
    dashboard = json.loads(DASHBOARD.read_text())
    named = {
        name
        for expression in expressions(dashboard)
        for name in re.findall(r"\b(?:omq|process)_[a-z0-9_]+", expression)
    }
    assert len(named) > 20
    assert named <= found, named - found


# -- the alerts --------------------------------------------------------------------------------------------

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "omq.rules.yml"

OF_PROMETHEUS = {"instance", "job"}
"""The labels that Prometheus adds to each sample."""


def alerts() -> list[str]:
    """Return the text of each alert."""
    return RULES.read_text().split("- alert: ")[1:]


async def test_every_metric_and_label_of_the_alerts_exists(store: Path) -> None:
    async with serving(store) as host:
        writer = await host.connect()
        await writer.say(b"(Publish prices x)")
        await writer.confirm()
        samples = await metrics(host)
    labels: dict[str, set[str]] = {}
    values: set[tuple[str, str]] = set()
    for key in samples:
        name, _, rest = key.partition("{")
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=", rest))
        values |= set(re.findall(r'(\w+)="([^"]*)"', rest))
    found = alerts()
    assert len(found) > 15
    for alert in found:
        expression = alert.partition("expr: ")[2].partition("\n")[0]
        named = set(re.findall(r"\b(?:omq|process)_[a-z0-9_]+", expression))
        assert named or expression.startswith("up{"), alert
        assert named <= labels.keys(), named - labels.keys()
        known = OF_PROMETHEUS.union(*(labels[name] for name in named))
        lists = re.findall(r"(?:by|without|on|ignoring|group_left) \(([^)]*)\)", expression)
        chosen = set(re.findall(r'(\w+)="([^"]*)"', expression))
        assert {label for each in lists for label in each.split(", ") if label} <= known, alert
        assert {pair for pair in chosen if pair[0] not in OF_PROMETHEUS} <= values, alert
        lost = {
            label for each in re.findall(r"without \(([^)]*)\)", expression) for label in each.split(", ")
        }
        assert set(re.findall(r"\$labels\.(\w+)", alert)) <= known - lost, alert


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [alert.partition("\n")[0] for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        for part in (
            r"for: \d+[sm]",
            "severity: (critical|warning)",
            'summary: ".+"',
            r'description: ".+\."',
        ):
            assert re.search(rf"^ +{part}$", alert, re.MULTILINE), (part, alert)


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of Debian's package prometheus")
@pytest.mark.parametrize("command", [("check", "rules", "omq.rules.yml"), ("test", "rules", "omq.tests.yml")])
def test_promtool_accepts_the_alerts(command: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *command], cwd=RULES.parent, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"SUCCESS" in done.stdout
