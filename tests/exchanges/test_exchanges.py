"""Exchanges and bindings over the drivers of a store: what is declared, and where messages go."""

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import trio
from exchange_helpers import exchange, make, queue
from served_drivers import Drivers, opened
from trio.testing import wait_all_tasks_blocked

from omq.drivers.reasons import Inequivalent, Reason, Refused
from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.routes import TopicIsReplaced
from omq.exchanges.types import Exchange, ExchangeType
from omq.model import Delivery, Transient
from omq.protocol.amqp.fields import Array, LongString, Number, NumberType, Table, Value
from omq.protocol.amqp.head import Head, decode, encode
from omq.protocol.amqp.properties import Properties
from omq.protocol.steps import finished
from omq_storage.batches import Bodies


@pytest.fixture
async def drivers(tmp_path: Path) -> AsyncIterator[Drivers]:
    async with opened(tmp_path / "store") as drivers:
        yield drivers


@pytest.fixture
def exchanges(drivers: Drivers) -> ExchangeRegistry:
    return ExchangeRegistry(drivers.catalogue)


def table(**values: Value) -> Table:
    return Table(tuple((name.replace("_", "-").encode(), value) for name, value in values.items()))


def head(key: bytes = b"", **headers: Value) -> bytes:
    """Return the head of a message with these headers."""
    entries = tuple((name.encode(), value) for name, value in headers.items())
    return encode(Head(b"e", key, Properties(headers=Table(entries))))


def keys(*names: bytes) -> Array:
    return Array(tuple(map(LongString, names)))


def routed(exchanges: ExchangeRegistry, exchange: bytes, key: bytes, head: bytes = b"") -> list[bytes]:
    return [driver.topic.topic for driver in finished(exchanges.route_in_steps(exchange, key, head))]


def parts(
    exchanges: ExchangeRegistry, exchange: bytes, key: bytes, run: Sequence[bytes]
) -> list[tuple[list[bytes], list[int] | None]]:
    return [
        ([driver.topic.topic for driver in part.route], part.indexes and list(part.indexes))
        for part in exchanges.parts(exchange, key, run)
    ]


# -- declaring ----------------------------------------------------------------------------------------------


async def test_predeclared_exchanges(exchanges: ExchangeRegistry) -> None:
    assert [(each.name, each.type.value) for each in exchanges.declared()] == [
        (b"amq.direct", "direct"),
        (b"amq.fanout", "fanout"),
        (b"amq.topic", "topic"),
        (b"amq.headers", "headers"),
        (b"amq.match", "headers"),
    ]
    assert exchanges.find(b"amq.topic").durable
    assert (await exchanges.declare(b"amq.direct", b"direct", auto_delete=True)).auto_delete is False
    with pytest.raises(Inequivalent, match=r"'type' for exchange 'amq\.direct': received 'topic'"):
        await exchanges.declare(b"amq.direct", b"topic")


async def test_declaring_twice(exchanges: ExchangeRegistry) -> None:
    made = await exchanges.declare(b"e", b"topic", table(alternate_exchange=LongString(b"other\0")))
    assert made == Exchange(b"e", ExchangeType.TOPIC, alternate=b"other")
    again = await exchanges.declare(
        b"e", b"topic", table(unknown=LongString(b"x"), alternate_exchange=LongString(b"other"))
    )
    assert again is made
    assert exchanges.find(b"e") is made


@pytest.mark.parametrize(
    ("type_name", "flags", "arguments", "difference"),
    [
        (b"fanout", {}, Table(), "arg 'type' for exchange 'e': received 'fanout' but current is"),
        (
            b"direct",
            {"durable": True},
            Table(),
            "'durable' for exchange 'e': received 'true' but current is 'false'",
        ),
        (
            b"direct",
            {"auto_delete": True},
            Table(),
            "'auto_delete' for exchange 'e': received 'true' but current",
        ),
        (b"direct", {"internal": True}, Table(), "'internal' for exchange 'e': received 'true' but current"),
        (
            b"direct",
            {},
            table(alternate_exchange=LongString(b"a")),
            "arg 'alternate-exchange' for exchange 'e': received 'a' but current is none",
        ),
    ],
)
async def test_declaring_differently_names_both_values(
    exchanges: ExchangeRegistry, type_name: bytes, flags: dict[str, bool], arguments: Table, difference: str
) -> None:
    await exchanges.declare(b"e", b"direct")
    with pytest.raises(Inequivalent, match=re.escape(difference)) as caught:
        await exchanges.declare(b"e", type_name, arguments, **flags)
    assert caught.value.reason is Reason.DIFFERS
    assert exchanges.find(b"e") == Exchange(b"e", ExchangeType.DIRECT)


async def test_refused_names_and_types(exchanges: ExchangeRegistry) -> None:
    for name, type_name, reason in (
        (b"amq.mine", b"direct", Reason.FORBIDDEN),
        (b"", b"direct", Reason.FORBIDDEN),
        (b"e", b"x-delayed-message", Reason.INVALID),
    ):
        with pytest.raises(Refused) as caught:
            await exchanges.declare(name, type_name)
        assert caught.value.reason is reason
    with pytest.raises(Refused, match="invalid arg 'alternate-exchange'"):
        await exchanges.declare(b"e", b"direct", table(alternate_exchange=Number(NumberType.INT32, 1)))
    for name, reason in ((b"none", Reason.NOT_FOUND), (b"", Reason.FORBIDDEN)):
        with pytest.raises(Refused) as caught:
            exchanges.find(name)
        assert caught.value.reason is reason


async def test_deleting(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    await make(drivers, b"q")
    await exchanges.declare(b"e", b"direct")
    await exchanges.bind(b"e", queue(b"q"), b"k")
    with pytest.raises(Refused, match="'e' in use") as caught:
        await exchanges.delete(b"e", if_unused=True)
    assert caught.value.reason is Reason.INVALID
    assert await exchanges.delete(b"e")
    assert not await exchanges.delete(b"e")
    assert exchanges.bindings() == []
    with pytest.raises(Refused, match="there is no exchange 'e'"):
        finished(exchanges.route_in_steps(b"e", b"k"))
    for name in (b"amq.direct", b""):
        with pytest.raises(Refused) as caught:
            await exchanges.delete(name)
        assert caught.value.reason is Reason.FORBIDDEN


# -- bindings -----------------------------------------------------------------------------------------------


async def test_a_message_reaches_a_queue_once_however_many_bindings_match(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    await make(drivers, b"q", b"other")
    for pattern in (b"#", b"a.*", b"a.b"):
        await exchanges.bind(b"amq.topic", queue(b"q"), pattern)
    await exchanges.bind(b"amq.topic", queue(b"other"), b"c")
    assert routed(exchanges, b"amq.topic", b"a.b") == [b"q"]
    assert sorted(routed(exchanges, b"amq.topic", b"c")) == [b"other", b"q"]


async def test_changed_bindings_change_kept_routes(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    await make(drivers, b"one", b"two")
    assert routed(exchanges, b"amq.direct", b"k") == []
    await exchanges.bind(b"amq.direct", queue(b"one"), b"k")
    assert routed(exchanges, b"amq.direct", b"k") == [b"one"]
    await exchanges.bind(b"amq.direct", queue(b"two"), b"k")
    await exchanges.bind(b"amq.direct", queue(b"two"), b"k")  # which is there already
    assert routed(exchanges, b"amq.direct", b"k") == [b"one", b"two"]
    await exchanges.unbind(b"amq.direct", queue(b"two"), b"k")
    await exchanges.unbind(b"amq.direct", queue(b"two"), b"k")  # which is not there any more
    assert routed(exchanges, b"amq.direct", b"k") == [b"one"]


async def test_bindings_with_the_same_arguments_in_another_order_are_one(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    await make(drivers, b"q")
    one = Table(((b"a", LongString(b"1")), (b"b", LongString(b"2"))))
    await exchanges.bind(b"amq.headers", queue(b"q"), b"", one)
    await exchanges.bind(b"amq.headers", queue(b"q"), b"", Table(one.entries[::-1]))
    assert len(exchanges.bindings(b"amq.headers")) == 1
    await exchanges.unbind(b"amq.headers", queue(b"q"), b"", Table(one.entries[::-1]))
    assert exchanges.bindings(destination=queue(b"q")) == []


async def test_binding_needs_both_ends(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    await make(drivers, b"q")
    for source, destination, reason, text in (
        (b"none", queue(b"q"), Reason.NOT_FOUND, "there is no exchange 'none'"),
        (b"amq.direct", queue(b"none"), Reason.NOT_FOUND, "there is no queue 'none'"),
        (b"amq.direct", exchange(b"none"), Reason.NOT_FOUND, "there is no exchange 'none'"),
        (b"", queue(b"q"), Reason.FORBIDDEN, "default exchange"),
        (b"amq.direct", exchange(b""), Reason.FORBIDDEN, "default exchange"),
    ):
        with pytest.raises(Refused, match=text) as caught:
            await exchanges.bind(source, destination, b"k")
        assert caught.value.reason is reason
        if reason is Reason.NOT_FOUND:
            await exchanges.unbind(source, destination, b"k")
        else:
            with pytest.raises(Refused, match=text):
                await exchanges.unbind(source, destination, b"k")
    with pytest.raises(Refused, match="x-match"):
        await exchanges.bind(b"amq.headers", queue(b"q"), b"", table(x_match=LongString(b"some")))
    assert exchanges.bindings() == []


async def test_bindings_end_with_their_queue(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    await make(drivers, b"q", b"kept")
    await exchanges.declare(b"e", b"fanout")
    for name in (b"q", b"kept"):
        await exchanges.bind(b"e", queue(name), b"")
    assert routed(exchanges, b"e", b"") == [b"q", b"kept"]
    await drivers.catalogue.delete(b"q")
    assert routed(exchanges, b"e", b"") == [b"kept"]
    await make(drivers, b"q")
    assert routed(exchanges, b"e", b"") == [b"kept"]


async def test_auto_delete_ends_an_exchange_with_its_bindings(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    await make(drivers, b"q", b"r")
    await exchanges.declare(b"front", b"fanout", auto_delete=True)
    await exchanges.declare(b"back", b"fanout", auto_delete=True)
    await exchanges.declare(b"never-bound", b"fanout", auto_delete=True)
    await exchanges.bind(b"front", exchange(b"back"), b"")
    await exchanges.bind(b"back", queue(b"q"), b"")
    await exchanges.bind(b"back", queue(b"r"), b"")
    await exchanges.unbind(b"back", queue(b"r"), b"")
    assert routed(exchanges, b"front", b"") == [b"q"]
    await drivers.catalogue.delete(b"q")
    names = {each.name for each in exchanges.declared()}
    assert b"never-bound" in names
    assert not names & {b"front", b"back"}
    assert exchanges.bindings() == []


# -- routes -------------------------------------------------------------------------------------------------


async def test_the_default_exchange_routes_to_topics_by_name(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    assert routed(exchanges, b"", b"q") == []
    await make(drivers, b"q")
    assert routed(exchanges, b"", b"q") == [b"q"]
    await drivers.catalogue.delete(b"q")
    assert routed(exchanges, b"", b"q") == []


async def test_bindings_between_exchanges_may_form_a_cycle(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    await make(drivers, b"one", b"two")
    for name in (b"a", b"b"):
        await exchanges.declare(name, b"direct")
    await exchanges.bind(b"a", exchange(b"b"), b"k")
    await exchanges.bind(b"b", exchange(b"a"), b"k")
    await exchanges.bind(b"a", queue(b"one"), b"k")
    await exchanges.bind(b"b", queue(b"two"), b"k")
    await exchanges.bind(b"b", queue(b"one"), b"k")
    for name in (b"a", b"b"):
        assert sorted(routed(exchanges, name, b"k")) == [b"one", b"two"]
        assert routed(exchanges, name, b"other") == []


async def test_an_alternate_exchange_gets_unmatched_messages(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    await make(drivers, b"matched", b"rest", b"lost")
    await exchanges.declare(b"e", b"direct", table(alternate_exchange=LongString(b"alternate")))
    await exchanges.bind(b"e", queue(b"matched"), b"k")
    assert routed(exchanges, b"e", b"lost") == []  # while there is no such exchange
    await exchanges.declare(b"alternate", b"fanout", table(alternate_exchange=LongString(b"e")))
    assert routed(exchanges, b"e", b"lost") == []  # each of the two is asked once
    await exchanges.bind(b"alternate", queue(b"rest"), b"")
    assert routed(exchanges, b"e", b"k") == [b"matched"]
    assert routed(exchanges, b"e", b"lost") == [b"rest"]
    await exchanges.declare(b"by-name", b"direct", table(alternate_exchange=LongString(b"")))
    assert routed(exchanges, b"by-name", b"lost") == [b"lost"]


async def test_clients_cannot_publish_to_internal_exchanges(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    await make(drivers, b"q")
    await exchanges.declare(b"inside", b"fanout", internal=True)
    await exchanges.bind(b"inside", queue(b"q"), b"")
    await exchanges.bind(b"amq.fanout", exchange(b"inside"), b"")
    assert parts(exchanges, b"amq.fanout", b"", [head()]) == [([b"q"], None)]
    assert routed(exchanges, b"inside", b"") == [b"q"]  # the server itself may
    with pytest.raises(Refused, match="cannot publish to internal exchange 'inside'") as caught:
        exchanges.parts(b"inside", b"", [head()])
    assert caught.value.reason is Reason.FORBIDDEN


async def test_a_headers_exchange_divides_a_run(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    await make(drivers, b"one", b"two")
    await exchanges.bind(b"amq.headers", queue(b"one"), b"", table(a=LongString(b"1")))
    await exchanges.bind(b"amq.headers", queue(b"two"), b"", table(a=LongString(b"2")))
    run = [head(a=LongString(b"1")), head(a=LongString(b"2")), head(), b"", head(a=LongString(b"1"))]
    for _ in range(2):  # from the kept routes, too
        assert parts(exchanges, b"amq.headers", b"", run) == [
            ([b"one"], [0, 4]),
            ([b"two"], [1]),
            ([], [2, 3]),
        ]
        assert routed(exchanges, b"amq.headers", b"", run[1]) == [b"two"]
    assert parts(exchanges, b"amq.headers", b"", run[:1]) == [([b"one"], None)]


async def test_headers_count_behind_other_exchanges(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    await make(drivers, b"q")
    await exchanges.bind(b"amq.fanout", exchange(b"amq.match"), b"")
    await exchanges.bind(b"amq.match", queue(b"q"), b"", table(a=LongString(b"1")))
    assert routed(exchanges, b"amq.fanout", b"") == []
    assert routed(exchanges, b"amq.fanout", b"", head(a=LongString(b"1"))) == [b"q"]


async def test_copies_are_routed_by_the_further_keys(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    await make(drivers, b"to", b"copy", b"blind")
    run = [head(b"to"), head(b"to", BCC=keys(b"blind"), CC=keys(b"copy", b"to"), kept=LongString(b"CC"))]
    found = exchanges.parts(b"", b"to", run)
    assert [[driver.topic.topic for driver in part.route] for part in found] == [
        [b"to"],
        [b"to", b"copy", b"blind"],
    ]
    headers = decode(found[1].heads[0]).properties.headers
    assert headers == Table(((b"CC", keys(b"copy", b"to")), (b"kept", LongString(b"CC"))))
    await exchanges.bind(b"amq.direct", queue(b"copy"), b"c")
    assert parts(exchanges, b"amq.direct", b"nobody", [head(CC=keys(b"c")), head()]) == [
        ([b"copy"], [0]),
        ([], [1]),
    ]


@pytest.mark.parametrize("value", [LongString(b"copy"), Array((Number(NumberType.INT8, 1),))])
async def test_malformed_copies_are_refused(exchanges: ExchangeRegistry, value: Value) -> None:
    with pytest.raises(Refused, match="the header CC must be an array of strings") as caught:
        exchanges.parts(b"", b"to", [head(CC=value)])
    assert caught.value.reason is Reason.INVALID


async def test_kept_routes_take_a_limited_memory(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    await make(drivers, b"q")
    await exchanges.bind(b"amq.fanout", queue(b"q"), b"")
    for number in range(30_000):
        assert finished(exchanges.route_in_steps(b"amq.fanout", b"%0250d" % number))
    assert routed(exchanges, b"amq.fanout", b"%0250d" % 1) == [b"q"]


async def test_a_route_to_a_topic_with_new_types_leads_to_its_new_driver(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    first = await drivers.catalogue.lookup_or_declare(b"q")
    await exchanges.bind(b"amq.fanout", queue(b"q"), b"")
    assert finished(exchanges.route_in_steps(b"amq.fanout", b"")) == (first,)
    second = await drivers.catalogue.declare(b"q", Delivery.ROUND_ROBIN, Transient())
    assert second is not first
    assert finished(exchanges.route_in_steps(b"amq.fanout", b"")) == (second,)
    await exchanges.settled()


async def test_messages_for_a_topic_that_gets_new_types_wait(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    await drivers.catalogue.lookup_or_declare(b"q")
    await exchanges.bind(b"amq.headers", queue(b"q"), b"")
    async with trio.open_nursery() as nursery:
        async with drivers.catalogue.ids.held_back():
            nursery.start_soon(drivers.catalogue.declare, b"q", Delivery.ROUND_ROBIN, Transient())
            await wait_all_tasks_blocked()
            for place in ((b"", b"q"), (b"amq.headers", b"")):
                with pytest.raises(TopicIsReplaced):
                    exchanges.parts(*place, [head()])
        await exchanges.settled()
        for place in ((b"", b"q"), (b"amq.headers", b"")):
            (part,) = exchanges.parts(*place, [head()])
            assert part.route == (drivers.catalogue.lookup(b"q"),)


async def test_messages_that_were_routed_before_their_topic_got_new_types_are_refused(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    routed_to = await drivers.catalogue.lookup_or_declare(b"q")
    async with trio.open_nursery() as nursery, drivers.catalogue.ids.held_back():
        nursery.start_soon(drivers.catalogue.declare, b"q", Delivery.ROUND_ROBIN, Transient())
        await wait_all_tasks_blocked()
        with pytest.raises(Refused) as caught:
            routed_to.offer(Bodies([b"x"]))
        assert caught.value.reason is Reason.DIFFERS
    current = drivers.catalogue.lookup(b"q")
    assert current is not None
    assert (current.delivery, current.next_id) == (Delivery.ROUND_ROBIN, 1)
    late = await routed_to.post(Bodies([b"x"]))
    settled = trio.Event()
    late.listen(settled.set)
    with trio.fail_after(60):
        await settled.wait()
    assert late.failure is not None
    assert late.failure.reason is Reason.DIFFERS


async def test_routes_by_long_headers_are_computed_each_time(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    await make(drivers, b"q")
    await exchanges.bind(b"amq.headers", queue(b"q"), b"", table(a=LongString(b"1")))
    long = head(a=LongString(b"1"), b=LongString(b"x" * 5000))
    for _ in range(2):
        assert routed(exchanges, b"amq.headers", b"", long) == [b"q"]
