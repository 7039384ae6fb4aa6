"""Promises of docs/AMQP.md that no other test is about."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from server_command import RunningServer, running_server

from omq.client import Delivery, Persistence, Persistent, Sync, Transient, connect
from omq.config import load
from omq.model import FromBeginning, FromCurrent, FromMessage
from omq.protocol.amqp.fields import LongString, Number, NumberType, Value, Void
from omq.terminals.amqp_0_9.offsets import FromAgo, FromLast, FromTime, Offset, read_offset

from .broker import Broker
from .raw_client import Client
from .serving import HASH
from .wire import close_channel, declare_queue, delete_queue, get, publish, purge, select_confirms

DOCUMENT = (Path(__file__).parents[2] / "docs" / "AMQP.md").read_text()

SECONDS = 60

SYNC = "Weak"
"""The level of durable queues in the configuration here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("promises")
    (folder / "omq.toml").write_text(f'amqp_durable = "{SYNC.lower()}"\n')
    with running_server(
        "--config", folder / "omq.toml", "--listen", "127.0.0.1:0", "--store", folder / "store"
    ) as server:
        yield server


async def persistence_of(server: RunningServer, name: str) -> Persistence:
    """Return the persistence that omq clients see of a topic."""
    with trio.fail_after(SECONDS):
        async with connect(f"omq://127.0.0.1:{server.port}") as client:
            (found,) = [each for each in await client.topics() if each.topic == name.encode()]
            return found.persistence


# -- durability ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ({}, Sync.WEAK),
        ({"x_omq_sync": "strong"}, Sync.STRONG),
        ({"x_omq_sync": "async"}, Sync.ASYNC),
        ({"x_queue_type": "quorum"}, Sync.STRONG),
        ({"x_queue_type": "quorum", "x_omq_sync": "weak"}, Sync.STRONG),
        ({"x_queue_type": "stream"}, Sync.WEAK),
        ({"x_queue_type": "stream", "x_omq_sync": "strong"}, Sync.STRONG),
    ],
)
async def test_the_level_of_a_durable_queue(
    arguments: dict[str, Any], level: Sync, server: RunningServer, broker: Broker
) -> None:
    name = "level " + " ".join(f"{key} {value}" for key, value in arguments.items())
    assert broker.channel().call(declare_queue(1, name, durable=1, **arguments)).name == "queue.declare-ok"
    assert await persistence_of(server, name) == Persistent(level)


@pytest.mark.parametrize(("durable", "exclusive"), [(0, 0), (0, 1), (1, 1)])
async def test_a_queue_without_a_record(
    durable: int, exclusive: int, server: RunningServer, broker: Broker
) -> None:
    name = f"transient {durable} {exclusive}"
    client = broker.channel()
    declared = client.call(declare_queue(1, name, durable=durable, exclusive=exclusive, x_omq_sync="strong"))
    assert declared.name == "queue.declare-ok"
    assert await persistence_of(server, name) == Transient()


def test_a_level_that_is_not_known(broker: Broker) -> None:
    answer = broker.channel().call(declare_queue(1, "level", durable=1, x_omq_sync="safest"))
    assert answer.told() == "channel.close 406 PRECONDITION_FAILED (50,10)"


# -- topics of omq clients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delivery", "persistence", "agreeing"),
    [
        (Delivery.ROUND_ROBIN, Persistent(Sync.WEAK), {"durable": 1}),
        (Delivery.ROUND_ROBIN, Transient(), {}),
        (Delivery.BROADCAST, Persistent(Sync.WEAK), {"durable": 1, "x_queue_type": "stream"}),
    ],
)
async def test_a_declaration_agrees_about_durability_and_type(
    delivery: Delivery,
    persistence: Persistence,
    agreeing: dict[str, object],
    server: RunningServer,
    broker: Broker,
) -> None:
    name = f"omq's {delivery} {persistence}"
    with trio.fail_after(SECONDS):
        async with connect(f"omq://127.0.0.1:{server.port}") as other:
            await other.declare(name, delivery, persistence)
    declarations: list[dict[str, object]] = [{}, {"durable": 1}, {"durable": 1, "x_queue_type": "stream"}]
    for arguments in declarations:
        found = broker.channel().call(declare_queue(1, name, **arguments))  # type: ignore[arg-type]  # the names decide the types
        expected = "queue.declare-ok" if arguments == agreeing else "channel.close 406 PRECONDITION_FAILED"
        assert found.told().startswith(expected), arguments
    assert broker.channel().call(declare_queue(1, name, passive=1)).name == "queue.declare-ok"


def test_publishing_makes_no_topic(broker: Broker) -> None:
    client = broker.channel()
    client.call(select_confirms(1))
    assert client.call(publish(1, "", "never declared", b"x")).told() == "ack tag=1 bits=0"
    answer = client.call(declare_queue(1, "never declared", passive=1))
    assert answer.told() == "channel.close 404 NOT_FOUND (50,10)"


# -- what a client finds of its own messages ----------------------------------------------------------------

MESSAGES = 100


@pytest.fixture
def published(broker: Broker) -> Client:
    """Return a client that has published to the durable queue `own`, and waits for nothing."""
    client = broker.channel()
    client.call(declare_queue(1, "own", durable=1))
    client.call(purge(1, "own"))
    client.send(*[publish(1, "", "own", b"x") for _ in range(MESSAGES)])
    return client


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (declare_queue(1, "own", passive=1), f"queue.declare-ok messages={MESSAGES} consumers=0"),
        (get(1, "own", no_ack=1), f"get-ok 1 redelivered=0 left={MESSAGES - 1} b'x'"),
        (purge(1, "own"), f"purge-ok {MESSAGES}"),
        (delete_queue(1, "own", if_empty=1), "channel.close 406 PRECONDITION_FAILED (50,40)"),
        (delete_queue(1, "own"), f"delete-ok {MESSAGES}"),
        (close_channel(1), "channel.close-ok"),
    ],
)
def test_a_client_finds_messages_it_published_without_confirms(
    published: Client, question: bytes, answer: str, broker: Broker
) -> None:
    assert published.call(question).told() == answer
    if answer == "channel.close-ok":
        left = broker.channel().call(declare_queue(1, "own", passive=1))
        assert left.told() == f"queue.declare-ok messages={MESSAGES} consumers=0"


# -- a disk without room ------------------------------------------------------------------------------------


def test_a_full_disk_refuses_messages(tmp_path: Path) -> None:
    options = ("--config", tmp_path / "omq.toml", "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    (tmp_path / "omq.toml").write_text("")
    with running_server(*options) as server:
        broker = Broker(("127.0.0.1", server.port))
        assert broker.channel().call(declare_queue(1, "kept", durable=1)).name == "queue.declare-ok"
        broker.close()
    (tmp_path / "omq.toml").write_text(f"disk_reserve_bytes = {1 << 52}\n")
    with running_server(*options) as server:
        broker = Broker(("127.0.0.1", server.port))
        client = broker.channel()
        client.call(select_confirms(1))
        assert client.call(publish(1, "", "kept", b"x")).told() == "nack tag=1 bits=3"
        plain = broker.channel()
        plain.send(publish(1, "", "kept", b"x"))
        assert plain.wait().told() == "channel.close 506 RESOURCE_ERROR (60,40)"
        broker.close()


# -- streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "offset"),
    [
        (None, FromCurrent()),
        (LongString(b"next"), FromCurrent()),
        (LongString(b"first"), FromBeginning()),
        (LongString(b"last"), FromLast()),
        (Number(NumberType.INT64, 0), FromMessage(1)),
        (Number(NumberType.UINT8, 7), FromMessage(7)),
        (Number(NumberType.TIMESTAMP, 1_700_000_000), FromTime(1_700_000_000)),
        (LongString(b"2Y"), FromAgo(2 * 365 * 86_400)),
        (LongString(b"1M"), FromAgo(30 * 86_400)),
        (LongString(b"3D"), FromAgo(3 * 86_400)),
        (LongString(b"1h"), FromAgo(3600)),
        (LongString(b"5m"), FromAgo(300)),
        (LongString(b"30s"), FromAgo(30)),
        (LongString(b"1w"), None),
        (LongString(b"h"), None),
        (LongString(b"-1h"), None),
        (LongString(b"1h "), None),
        (Number(NumberType.INT8, -1), None),
        (Number(NumberType.FLOAT64, 1.0), None),
        (Void(), None),
    ],
)
def test_a_stream_offset_is_read(value: Value | None, offset: Offset | None) -> None:
    assert read_offset(value) == offset


# -- moving over --------------------------------------------------------------------------------------------


def test_the_configuration_for_moving_over_is_one(tmp_path: Path) -> None:
    (toml,) = re.findall(r"^ *```toml\n(.*?)^ *```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    (tmp_path / "omq.toml").write_text(re.sub(r'"\$scrypt.*"', f'"{HASH}"', textwrap.dedent(toml)))
    config = load(tmp_path / "omq.toml")
    assert [client.name for client in config.clients] == ["guest"]
    assert config.listen == ["127.0.0.1:5672", "[::1]:5672"]
