"""AMQP 1.0 in numbers: stalls and undelivered messages, by link and by address."""

from pathlib import Path

from omq.drivers.slices import Slices
from omq.drivers.statistics import NodeStatistics
from omq.metrics.nodes import NodeMetrics
from omq.protocol.omq.types import ConnectionList, SubscriberList
from omq.terminals.amqp_1_0.terminal import Amqp1Terminal
from omq.terminals.connection.statistics import Kind, LinkStatistics

from .amqp_1_0_peer import REJECTED, opened, text
from .conversation import InProcess, serving
from .metrics_samples import metrics


def links(host: InProcess) -> dict[str, LinkStatistics]:
    """Return the links on which clients send, by their names."""
    terminals = [each for each in host.server.terminals() if isinstance(each, Amqp1Terminal)]
    return {link.name: link for terminal in terminals for link in terminal.links()}


def nodes(host: InProcess) -> dict[bytes, NodeStatistics]:
    return {node.name: node for node in host.server.nodes()}


async def test_stalls_and_undelivered_messages_are_counted(store: Path) -> None:
    async with serving(store, amqp1_credit=2) as host, opened(host.port) as client, opened(host.port) as slow:
        await slow.receiver("unicast.slow", credit=1)
        await slow.settle()
        await client.sender("unicast.slow", 1)
        await client.sender("unicast.nobody", 2)
        await client.sender("queue", 3)
        assert host.server.statistics().stalls == 0
        await client.publish(text("one"), 1)
        await client.settle()
        assert nodes(host)[b"unicast.slow"].consumers == 1
        link = links(host)["sender-1"]
        assert (link.address, link.credit, link.unconfirmed, link.stalls) == (b"unicast.slow", 0, 1, 1)
        message = await slow.message()
        await slow.told(message.delivery, message.delivery, REJECTED)
        assert (await client.outcome()).state == REJECTED
        for settled in (False, True):
            await client.publish(text("nobody"), 2, settled=settled)
            await client.settle()
        told = links(host)
        assert {name: link.undelivered for name, link in told.items()} == {
            "sender-1": 1, "sender-2": 2, "sender-3": 0,
        }  # fmt: skip
        assert told["sender-3"].address == b"queue"
        node = nodes(host)[b"unicast.nobody"]
        assert (node.producers, node.consumers, node.messages_in, node.undelivered) == (1, 0, 2, 2)
        numbers = [each.statistics() for each in host.server.terminals()]
        assert [(each.messages_in, each.messages_out) for each in numbers] == [(3, 0), (0, 1)]
        assert [nodes(host)[name].stalls for name in (b"unicast.slow", b"unicast.nobody")] == [1, 0]
        statistics = host.server.statistics()
        assert (statistics.stalls, statistics.undelivered) == (1, 2)
        await client.publish(b"\x41", 3)  # malformed
        await client.settle()
        assert links(host)["sender-3"].undelivered == 1


async def test_links_to_consumers_are_listed_as_subscriptions(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        watcher = await host.connect()
        await client.receiver("tasks", 0, credit=1)
        await client.receiver("unicast.node", 2)
        await client.sender("tasks", 1)
        await client.publish(text("one"))
        await client.publish(text("two"))
        await client.message()
        await client.settle()
        listed = await watcher.ask(b"(Connections 0)")
        assert isinstance(listed, ConnectionList)
        (found,) = [each for each in listed.connections if each.protocol == Kind.AMQP_1_0.value.encode()]
        assert found.subscriptions == 2
        assert {each.topic: each.unconfirmed for each in found.furthest} == {b"tasks": 1, b"unicast.node": 0}
        subscribers = await watcher.ask(b"(Subscribers tasks)")
        assert isinstance(subscribers, SubscriberList)
        assert [(each.connection, each.unconfirmed) for each in subscribers.subscribers] == [(found.id, 1)]


async def test_the_metrics_have_nodes_by_their_addresses(store: Path) -> None:
    async with serving(store, amqp1_credit=2) as host, opened(host.port) as client, opened(host.port) as slow:
        await slow.receiver("unicast.slow", credit=1)
        await slow.settle()
        await client.receiver("", 7, dynamic=True)
        await client.sender("unicast.slow", 1)
        await client.sender("unicast.nobody", 2)
        await client.publish(text("one"), 1)
        await client.publish(text("two"), 2)
        await slow.message()
        await client.settle()
        found = {key: value for key, value in (await metrics(host)).items() if "omq_direct_node_" in key}
        assert not any("temp" in key for key in found)
        of_slow = {key.split("{")[0]: value for key, value in found.items() if "unicast.slow" in key}
        assert of_slow == {
            "omq_direct_node_received_messages_total": 1,
            "omq_direct_node_sent_messages_total": 1,
            "omq_direct_node_undelivered_messages_total": 0,
            "omq_direct_node_stalls_total": 1,
            "omq_direct_node_producers": 1,
            "omq_direct_node_consumers": 1,
            "omq_direct_node_credit": 0,
            "omq_direct_node_waiting_messages": 0,
        }
        assert found['omq_direct_node_undelivered_messages_total{address="unicast.nobody"}'] == 1


async def test_the_metrics_have_a_bounded_number_of_nodes(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        for number in range(3):
            await client.sender(f"unicast.{number}", number)
        families = await NodeMetrics(host.server, most=2).collect(Slices())
        addresses = {sample.labels["address"] for family in families for sample in family.samples}
        assert addresses == {"unicast.0", "unicast.1"}
