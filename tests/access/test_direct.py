"""The nodes of a client: what their names say, and what is left when they have gone."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from served_control import connected, control, known

from omq.access.control import AccessControl
from omq.access.direct import DYNAMIC, Direct
from omq.access.session import Release, TooLarge
from omq.drivers.direct import DirectNode
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import RELEASED, Channel, EndReason, Outcome
from omq_storage.batches import Bodies

BODY = Bodies([b"body"])


class Producer:
    """A link that sends nothing."""

    def credited(self) -> None: ...

    def node_ended(self) -> None: ...


class Consumer:
    """The terminal's side of a consumer."""

    direct = None

    def __init__(self, node: DirectNode, release: Release) -> None:
        self.node = node
        self.release = release

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: EndReason) -> None: ...


def ignored(outcome: Outcome, told: bytes) -> None:
    """Do nothing with an outcome."""


@asynccontextmanager
async def direct(path: Path, id: bytes = b"tester", **settings: object) -> AsyncIterator[Direct]:
    """Yield the nodes, for a session of a server with this configuration."""
    async with control(path, **settings) as access:
        session = await connected(access, id)
        yield access.direct(session)
        session.close()


async def another_client(access: AccessControl) -> Direct:
    return access.direct(await connected(access))


async def test_made_names_have_192_random_bits(tmp_path: Path) -> None:
    async with direct(tmp_path) as client:
        names = {client.make(Producer()).name for _ in range(10)}
        assert len(names) == 10
        assert all(re.fullmatch(re.escape(DYNAMIC) + rb"[\w-]{32}", name) for name in names)


async def test_a_made_node_is_consumed_by_its_connection_only(tmp_path: Path) -> None:
    async with control(tmp_path) as access:
        one, another = await another_client(access), await another_client(access)
        _, node, _ = one.consume(None, Consumer)
        assert another.produce(node.name, Producer()) is node
        for _ in range(2):
            assert one.consume(node.name, Consumer)[1] is node
            with pytest.raises(Refused, match="there is no such node"):
                another.consume(node.name, Consumer)
        one.end(node)
        for consumer in (one, another):
            with pytest.raises(Refused, match="there is no such node"):
                consumer.consume(node.name, Consumer)


async def test_a_refused_consumer_takes_no_subscription(tmp_path: Path) -> None:
    async with control(tmp_path, max_subscriptions=2, client_share=1) as access:
        client = await another_client(access)
        producer = Producer()
        node = client.make(producer)
        node.detach(producer)  # nothing is attached to it any more
        for name in (node.name, DYNAMIC + b"x"):
            with pytest.raises(Refused) as refused:
                client.consume(name, Consumer)
            assert refused.value.reason is Reason.NOT_FOUND
        assert access.subscriptions.used == 0
        opened = [client.consume(name, Consumer) for name in (None, b"n")]
        for name in (None, b"n"):
            with pytest.raises(Refused) as refused:
                client.consume(name, Consumer)
            assert refused.value.reason is Reason.QUOTA
        assert len(access.nodes) == 2
        for consumer, _, _ in opened:
            consumer.release()
        assert access.subscriptions.used == 0


async def test_a_message_without_a_receiver_is_released_and_counted(tmp_path: Path) -> None:
    async with direct(tmp_path) as client:
        told: list[tuple[Outcome, bytes]] = []

        def relay(name: bytes) -> None:
            client.relay(name, BODY, b"", lambda outcome, what: told.append((outcome, what)), settled=False)

        for count in (1, 2):
            relay(b"n")
            assert told == [(RELEASED, b"")] * count
            assert client.totals.undelivered == count
        with pytest.raises(Refused, match="there is no such node"):
            relay(DYNAMIC + b"x")
        node = client.produce(b"n", Producer())
        relay(b"n")
        assert (len(told), node.statistics().messages_in) == (3, 1)


async def test_a_node_that_ended_does_not_take_its_successor_away(tmp_path: Path) -> None:
    async with control(tmp_path) as access:
        client = await another_client(access)
        node = client.produce(b"n", Producer())
        client.end(node)
        assert len(access.nodes) == 0
        successor = client.produce(b"n", Producer())
        assert successor is not node
        client.end(node)
        assert access.nodes.get(b"n") is successor
        assert client.produce(b"n", Producer()) is successor
        assert [each.name for each in access.nodes.statistics()] == [b"n"]


async def test_each_use_of_a_node_takes_its_right(tmp_path: Path) -> None:
    rights = {"publish": ["in"], "subscribe": ["out"]}
    async with direct(tmp_path, b"known:s", clients=[known("known", **rights)]) as client:
        client.produce(b"in", Producer())
        _, out, _ = client.consume(b"out", Consumer)
        client.consume(None, Consumer)
        client.check(DYNAMIC + b"x")  # who knows the name of a made node may send to it
        for use in (
            lambda: client.produce(b"out", Producer()),
            lambda: client.offer(out, BODY, b"", ignored, settled=False),
            lambda: client.relay(b"out", BODY, b"", ignored, settled=False),
            lambda: client.consume(b"in", Consumer),
        ):
            with pytest.raises(Refused) as refused:
                use()
            assert refused.value.reason is Reason.FORBIDDEN


async def test_a_message_to_a_node_has_a_size(tmp_path: Path) -> None:
    async with direct(tmp_path, max_message_bytes=1000) as client:
        node = client.produce(b"n", Producer())
        client.offer(node, Bodies([bytes(1000)]), b"", ignored, settled=False)
        long = Bodies([bytes(1001)])
        for use in (
            lambda: client.offer(node, long, b"", ignored, settled=False),
            lambda: client.relay(b"n", long, b"", ignored, settled=False),
        ):
            with pytest.raises(TooLarge):
                use()
