"""Dead letters: where they go, and what they say."""

from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest
import trio
from queue_cases import EITHER, FAILED, published, queue_of, worker
from quietness import follow
from served_drivers import Drivers, opened, post, quiet

from omq.drivers.queue import QueueDriver
from omq.drivers.seam import REJECTED
from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.types import Destination, DestinationKind
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import Array, LongString, Number, NumberType, Table, Value
from omq.protocol.amqp.head import MAX_HEAD, Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp_1_0 import encoding
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.stored import store
from omq.protocol.amqp_1_0.types import List, Map


def shown(value: Value) -> object:
    """Return a header's value as the probe of RabbitMQ prints it; the time as a T."""
    match value:
        case Table(entries):
            return {name.decode(): shown(each) for name, each in entries}
        case Array(values):
            return [shown(each) for each in values]
        case LongString(octets):
            return f"S:{octets.decode()}"
        case Number(kind, number):
            return "T" if kind.value == "T" else f"{kind.value}:{number}"
        case _:
            raise AssertionError(value)


def headers(head: bytes) -> Any:
    properties = heads.decode(head).properties
    assert properties.headers is not None
    assert properties.expiration is None
    return shown(properties.headers)


@EITHER
async def test_a_rejected_message_goes_to_the_exchange(drivers: Drivers, durable: bool) -> None:
    dead = await queue_of(drivers, b"dl", durable=durable)
    source = await queue_of(drivers, b"dq", durable=durable, dead_letter_exchange=b"", dead_letter_key=b"dl")
    client, heir = worker(source), worker(dead)
    head = published(b"", b"dq", expiration=b"60000", message_id=b"m")
    await post(source, b"a", b"b", b"c", heads=[head, head, head])
    await client.read()
    client.settle(1, outcome=REJECTED)
    client.settle(2)
    client.settle(3, outcome=REJECTED)
    await quiet()
    await drivers.drain()
    assert (await heir.read()).bodies == [b"a", b"c"]
    assert headers(heir.got[0].head) == {
        "x-first-death-reason": "S:rejected",
        "x-first-death-queue": "S:dq",
        "x-first-death-exchange": "S:",
        "x-death": [
            {
                "count": "l:1",
                "reason": "S:rejected",
                "queue": "S:dq",
                "time": "T",
                "exchange": "S:",
                "routing-keys": ["S:dq"],
                "original-expiration": "S:60000",
            }
        ],
    }
    stored = heads.decode(heir.got[0].head)
    assert (stored.exchange, stored.routing_key) == (b"", b"dl")
    assert stored.properties.message_id == b"m"
    await quiet()
    assert (source.info().messages, source.statistics().rejections) == (0, 2)
    client.close()
    heir.close()


async def test_a_letter_keeps_its_key_unless_the_queue_has_one(drivers: Drivers) -> None:
    exchanges = ExchangeRegistry(drivers.catalogue)
    await exchanges.declare(b"dlx", b"topic")
    dead = await queue_of(drivers, b"dl")
    await exchanges.bind(b"dlx", Destination(DestinationKind.QUEUE, b"dl"), b"orders.*")
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"dlx")
    client, heir = worker(source), worker(dead)
    await post(source, b"kept", heads=[published(b"shop", b"orders.new")])
    await post(source, b"unroutable", heads=[published(b"shop", b"else")])
    await post(source, b"omq's")  # published by its topic's name
    await client.read()
    for message in (1, 2, 3):
        client.settle(message, outcome=REJECTED)
    assert (await heir.read()).bodies == [b"kept"]
    stored = heads.decode(heir.got[0].head)
    assert (stored.exchange, stored.routing_key) == (b"dlx", b"orders.new")
    await quiet()
    assert source.info().messages == 0
    client.close()
    heir.close()


async def test_without_the_exchange_they_are_dropped(drivers: Drivers) -> None:
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"none")
    client = worker(source)
    await post(source, b"a")
    await client.read()
    client.settle(1, outcome=REJECTED)
    await quiet()
    assert source.info().messages == 0
    client.close()


@EITHER
async def test_a_message_is_delivered_again_up_to_the_limit(drivers: Drivers, durable: bool) -> None:
    dead = await queue_of(drivers, b"dl", durable=durable)
    source = await queue_of(
        drivers,
        b"q",
        durable=durable,
        delivery_limit=2,
        dead_letter_exchange=b"",
        dead_letter_key=b"dl",
    )
    client, heir = worker(source), worker(dead)
    await post(source, b"poison", b"good")
    for _ in range(3):
        await client.read()
        client.settle(1, outcome=FAILED)
        await quiet()
    assert [got.deliveries for got in (await client.read()).got if got.id == 1] == [0, 1, 2]
    await drivers.drain()
    assert (await heir.read()).bodies == [b"poison"]
    assert "S:delivery_limit" in str(headers(heir.got[0].head))
    # A consumer that goes away counts as a delivery, too; without an exchange it would just be gone.
    client.close()
    assert source.ready == 1
    heir.close()


@pytest.mark.parametrize("exchange", [b"", None])
@pytest.mark.parametrize("priorities", [None, 3])
async def test_the_limit_holds_for_what_consumers_have_at_a_restart(
    tmp_path: Path, exchange: bytes | None, priorities: int | None
) -> None:
    async with opened(tmp_path / "store") as drivers:
        await queue_of(drivers, b"dl", durable=True)
        source = await queue_of(
            drivers,
            b"q",
            durable=True,
            delivery_limit=1,
            max_octets=100,
            max_priority=priorities,
            dead_letter_exchange=exchange,
            dead_letter_key=None if exchange is None else b"dl",
        )
        await post(source, b"poison", b"good", b"new")
        client = worker(source, 2)
        await client.read()
        client.settle(1, outcome=FAILED)
        await quiet()
        await client.read()
    async with opened(tmp_path / "store") as drivers:
        ExchangeRegistry(drivers.catalogue)
        restarted, dead = (drivers.catalogue.lookup(name) for name in (b"q", b"dl"))
        assert isinstance(restarted, QueueDriver)
        assert isinstance(dead, QueueDriver)
        await quiet()
        await drivers.drain()
        await quiet()
        assert (restarted.ready, restarted.unacknowledged) == (2, 0)
        client = worker(restarted)
        await client.read()
        assert [(got.id, got.deliveries) for got in client.got] == [(2, 1), (3, 0)]
        client.close()
        assert dead.ready == (exchange is not None)


@EITHER
async def test_expired_and_superfluous_messages_are_dead_letters(
    drivers: Drivers, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    follow(mock_clock, monkeypatch)
    dead = await queue_of(drivers, b"dl", durable=durable)
    source = await queue_of(
        drivers, b"q", durable=durable, max_length=2, dead_letter_exchange=b"", dead_letter_key=b"dl"
    )
    heir = worker(dead)
    expiring = published(b"", b"q", expiration=b"100")
    await post(source, b"dropped", b"expires", b"stays", heads=[b"", expiring, b""])
    await drivers.drain()
    await quiet()
    mock_clock.jump(0.2)
    await quiet()
    await drivers.drain()
    assert (await heir.read()).bodies == [b"dropped", b"expires"]
    assert [headers(got.head)["x-first-death-reason"] for got in heir.got] == [
        "S:maxlen",
        "S:expired",
    ]
    assert "'original-expiration': 'S:100'" in str(headers(heir.got[1].head))
    assert (source.ready, source.info().messages) == (1, 1)
    heir.close()


async def test_without_an_exchange_the_limit_drops(drivers: Drivers) -> None:
    source = await queue_of(drivers, b"q", delivery_limit=0)
    client = worker(source)
    await post(source, b"poison")
    await client.read()
    client.settle(1, outcome=FAILED)
    await quiet()
    assert (source.ready, source.info().messages) == (0, 0)
    client.close()


async def test_deaths_are_counted(drivers: Drivers) -> None:
    """A message that is rejected again and again goes round, and its record counts."""
    one = await queue_of(drivers, b"one", dead_letter_exchange=b"", dead_letter_key=b"two")
    two = await queue_of(drivers, b"two", dead_letter_exchange=b"", dead_letter_key=b"one")
    first, second = worker(one), worker(two)
    await post(one, b"a")
    for number in (1, 2):
        await first.read()
        first.settle(number, outcome=REJECTED)
        await second.read()
        second.settle(number, outcome=REJECTED)
    await first.read()
    assert headers(first.got[-1].head) == {
        "x-first-death-reason": "S:rejected",
        "x-first-death-queue": "S:one",
        "x-first-death-exchange": "S:",
        "x-death": [
            {
                "count": "l:2",
                "reason": "S:rejected",
                "queue": f"S:{queue}",
                "time": "T",
                "exchange": "S:",
                "routing-keys": [f"S:{queue}"],
            }
            for queue in ("two", "one")
        ],
    }
    first.settle(3)
    first.close()
    second.close()


async def test_a_cycle_without_a_consumer_ends(drivers: Drivers) -> None:
    """A message that only the delivery limit sends round would never stop."""
    source = await queue_of(drivers, b"q", delivery_limit=0, dead_letter_exchange=b"")
    client = worker(source)
    await post(source, b"a")
    await client.read()
    client.settle(1, outcome=FAILED)
    await client.read()
    assert client.bodies == [b"a"]
    assert source.info().messages == 0
    # A rejection is a consumer's decision: then it goes round.
    await post(source, b"b")
    await client.read()
    client.settle(2, outcome=REJECTED)
    assert (await client.read()).bodies == [b"a", b"b", b"b"]
    client.close()


@pytest.mark.parametrize(("octets", "key"), [(10, b"subject"), (40_000, b"q")])
async def test_a_message_of_amqp_1_0_has_a_routing_key(drivers: Drivers, octets: int, key: bytes) -> None:
    """It is the name of its queue where the properties cannot be told to other protocols."""
    exchanges = ExchangeRegistry(drivers.catalogue)
    await exchanges.declare(b"dlx", b"direct")
    dead = await queue_of(drivers, b"dl")
    await exchanges.bind(b"dlx", Destination(DestinationKind.QUEUE, b"dl"), key)
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"dlx")
    client, heir = worker(source), worker(dead)
    sections = (
        (Section.PROPERTIES, List((None, None, None, "subject"))),
        (Section.APPLICATION_PROPERTIES, Map((("long", "x" * octets),))),
        (Section.AMQP_VALUE, "body"),
    )
    made = store(b"".join(b"\x00\x53%c%s" % (code, encoding.write(value)) for code, value in sections))
    await post(source, made.body, heads=[made.head])
    await client.read()
    client.settle(1, outcome=REJECTED)
    assert (await heir.read()).bodies == [b"body"]
    assert heads.decode(heir.got[0].head).routing_key == key
    client.close()
    heir.close()


def record(queue: bytes, **others: Value) -> Table:
    entries = {"queue": LongString(queue), "reason": LongString(b"rejected"), **others}
    return Table(tuple((name.encode(), value) for name, value in entries.items()))


@pytest.mark.parametrize(
    ("count", "following"),
    [
        (Number(NumberType.INT64, 2**63 - 1), f"l:{2**63 - 1}"),
        (Number(NumberType.TIMESTAMP, 2**64 - 1), f"l:{2**63 - 1}"),
        (Number(NumberType.FLOAT64, float("inf")), "l:1"),
        (Number(NumberType.FLOAT64, float("nan")), "l:1"),
        (LongString(b"many"), "l:1"),
        (Number(NumberType.INT64, 4), "l:5"),
    ],
)
async def test_clients_can_publish_any_count_of_deaths(
    drivers: Drivers, count: Value, following: str
) -> None:
    dead = await queue_of(drivers, b"dl")
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"", dead_letter_key=b"dl")
    client, heir = worker(source), worker(dead)
    deaths = Table(((b"x-death", Array((record(b"q", count=count),))),))
    await post(source, b"a", heads=[published(b"", b"q", headers=deaths)])
    await client.read()
    client.settle(1, outcome=REJECTED)
    assert (await heir.read()).bodies == [b"a"]
    (latest,) = headers(heir.got[0].head)["x-death"]
    assert latest["count"] == following
    client.close()
    heir.close()


async def test_an_impossible_dead_letter_is_dropped(
    drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue of an older store can have a key that is too long. The server and the queue go on."""
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"", dead_letter_key=b"k" * 256)
    client = worker(source)
    await post(source, b"a", b"b")
    await client.read()
    client.settle(1, outcome=REJECTED)
    await quiet()
    assert source.info().messages == 1
    assert "a dead letter dropped by a defect of the server: 'q'" in caplog.text
    assert "FieldError: the routing key of 256 octets is longer than 255" in caplog.text
    client.settle(2)
    client.close()


@pytest.mark.parametrize(("filling", "kept"), [(0, 600), (60_000, 10), (65_300, 0)])
async def test_a_letter_has_no_more_records_than_a_head_can_have(
    drivers: Drivers, filling: int, kept: int
) -> None:
    dead = await queue_of(drivers, b"dl")
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"", dead_letter_key=b"dl")
    client, heir = worker(source), worker(dead)
    before = tuple(record(b"before-%d" % number) for number in range(1300))
    entries: list[tuple[bytes, Value]] = [(b"filling", LongString(b"x" * filling))]

    def size(count: int) -> int:
        deaths = (b"x-death", Array(before[:count]))
        return len(heads.encode(Head(b"", b"q", Properties(headers=Table((*entries, deaths))))))

    before = before[: bisect_right(range(1301), MAX_HEAD, key=size) - 1]
    if before:
        entries.append((b"x-death", Array(before)))
    await post(source, b"a", heads=[published(b"", b"q", headers=Table(tuple(entries)))])
    await client.read()
    client.settle(1, outcome=REJECTED)
    assert (await heir.read()).bodies == [b"a"]
    head = heir.got[0].head
    assert len(head) <= MAX_HEAD
    deaths = headers(head).get("x-death", [])
    assert len(deaths) >= kept
    assert [each["queue"] for each in deaths] == [
        "S:q",
        *(f"S:before-{number}" for number in range(len(deaths) - 1)),
    ][: len(deaths)]
    client.close()
    heir.close()
