"""Exchanges and bindings across restarts of the server, also after a kill."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from exchange_helpers import exchange, make, queue
from quietness import quiet
from served_drivers import Drivers, opened, serving

from omq.drivers.lifetime import Ownership
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Reason, Refused
from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.types import Binding, Exchange, ExchangeType
from omq.protocol.amqp.fields import LongString, Table, Void
from omq.protocol.steps import finished
from omq_storage.store import Store
from omq_storage.topology import BindingRecord, ExchangeRecord

ARGUMENTS = Table(((b"a", LongString(b"1")), (b"b", Void())))


@asynccontextmanager
async def server(path: Path, **config: Any) -> AsyncIterator[tuple[Drivers, ExchangeRegistry]]:
    """Yield exchanges over the drivers of a store, which ends as if killed."""
    async with opened(path / "store", killed=True, **config) as drivers:
        yield drivers, ExchangeRegistry(drivers.catalogue)


def routed(exchanges: ExchangeRegistry, exchange: bytes, key: bytes) -> list[bytes]:
    return [driver.topic.topic for driver in finished(exchanges.route_in_steps(exchange, key))]


def own(exchanges: ExchangeRegistry) -> set[bytes]:
    return {each.name for each in exchanges.declared() if not each.name.startswith(b"amq.")}


async def test_durable_exchanges_and_bindings_survive_a_kill(tmp_path: Path) -> None:
    made = {}
    async with server(tmp_path) as (drivers, exchanges):
        await make(drivers, b"q")
        alternate = Table(((b"alternate-exchange", LongString(b"back")),))
        for name, flags in (
            (b"front", {"durable": True, "auto_delete": True}),
            (b"back", {"durable": True, "internal": True}),
            (b"passing", {}),
        ):
            made[name] = await exchanges.declare(name, b"topic", alternate, **flags)
        await exchanges.bind(b"front", exchange(b"back"), b"a.*", ARGUMENTS)
        await exchanges.bind(b"back", queue(b"q"), b"#")
        await exchanges.bind(b"amq.direct", queue(b"q"), b"k")
        await exchanges.bind(b"passing", queue(b"q"), b"#")
        await exchanges.bind(b"amq.direct", exchange(b"passing"), b"p")
        assert routed(exchanges, b"front", b"a.b") == [b"q"]
    async with server(tmp_path) as (_, exchanges):
        assert own(exchanges) == {b"front", b"back"}
        assert [exchanges.find(name) for name in (b"front", b"back")] == [made[b"front"], made[b"back"]]
        assert exchanges.bindings() == [
            Binding(b"amq.direct", queue(b"q"), b"k", Table()),
            Binding(b"back", queue(b"q"), b"#", Table()),
            Binding(b"front", exchange(b"back"), b"a.*", ARGUMENTS),
        ]
        assert routed(exchanges, b"front", b"a.b") == [b"q"]
        assert routed(exchanges, b"amq.direct", b"k") == [b"q"]
        await exchanges.unbind(b"amq.direct", queue(b"q"), b"k")
        await exchanges.delete(b"back")
    async with server(tmp_path) as (_, exchanges):
        # `front` has lost its last binding, so it has ended, too.
        assert own(exchanges) == set()
        assert exchanges.bindings() == []


async def test_bindings_of_a_deleted_queue_do_not_become_those_of_its_successor(tmp_path: Path) -> None:
    async with server(tmp_path) as (drivers, exchanges):
        await make(drivers, b"q")
        await exchanges.bind(b"amq.fanout", queue(b"q"), b"")
        await drivers.catalogue.delete(b"q")
        await make(drivers, b"q")
        assert exchanges.bindings() == []
    async with server(tmp_path) as (_, exchanges):
        assert exchanges.bindings() == []


async def test_an_ephemeral_queue_writes_nothing(tmp_path: Path) -> None:
    async with server(tmp_path) as (drivers, exchanges):
        await drivers.catalogue.declare_queue(b"first", QueueOptions(), None)  # reserves topic ids
        before = (
            drivers.store.catalogue.bindings(),
            (tmp_path / "store" / "catalogue" / "data.mdb").read_bytes(),
        )
        owner = Ownership()
        await drivers.catalogue.declare_queue(b"q", QueueOptions(exclusive=True), owner)
        await exchanges.bind(b"amq.fanout", queue(b"q"), b"")
        assert routed(exchanges, b"amq.fanout", b"") == [b"q"]
        owner.end()
        assert routed(exchanges, b"amq.fanout", b"") == []
        assert before == (
            drivers.store.catalogue.bindings(),
            (tmp_path / "store" / "catalogue" / "data.mdb").read_bytes(),
        )


async def test_a_durable_auto_delete_exchange_ends_with_an_ephemeral_queue(tmp_path: Path) -> None:
    async with server(tmp_path) as (drivers, exchanges):
        owner = Ownership()
        await drivers.catalogue.declare_queue(b"q", QueueOptions(exclusive=True), owner)
        await exchanges.declare(b"e", b"fanout", durable=True, auto_delete=True)
        await exchanges.declare(b"source", b"fanout", durable=True)
        await exchanges.bind(b"source", exchange(b"e"), b"")
        await exchanges.bind(b"e", queue(b"q"), b"")
        owner.end()
        assert own(exchanges) == {b"source"}
        # Declared again before the store has deleted it: the new one has none of the old bindings.
        await exchanges.declare(b"e", b"topic", durable=True)
        await quiet()
    async with server(tmp_path) as (_, exchanges):
        assert exchanges.find(b"e") == Exchange(b"e", ExchangeType.TOPIC, durable=True)
        assert exchanges.bindings() == []


async def test_an_exchange_that_ended_is_deleted_in_the_store(tmp_path: Path) -> None:
    async with server(tmp_path) as (drivers, exchanges):
        owner = Ownership()
        await drivers.catalogue.declare_queue(b"q", QueueOptions(exclusive=True), owner)
        await exchanges.declare(b"e", b"fanout", durable=True, auto_delete=True)
        await exchanges.bind(b"e", queue(b"q"), b"")
        owner.end()
        with trio.fail_after(60):
            while drivers.store.catalogue.exchanges():
                await quiet()


Meanwhile = Callable[[Drivers, ExchangeRegistry], None]


async def test_a_queue_that_is_deleted_while_it_is_bound_gets_no_binding(tmp_path: Path) -> None:
    async with server(tmp_path) as (drivers, exchanges):
        await make(drivers, b"q")
        results: list[str] = []

        async def bind() -> None:
            try:
                await exchanges.bind(b"amq.fanout", queue(b"q"), b"")
                results.append("bound")
            except Refused as refused:
                results.append(str(refused))

        async with drivers.catalogue.ids.held_back(), trio.open_nursery() as nursery:
            nursery.start_soon(bind)
            await quiet()
        await drivers.catalogue.delete(b"q")
        assert results == ["bound"]
        assert (exchanges.bindings(), drivers.store.catalogue.bindings()) == ([], [])

        await make(drivers, b"q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bind)
            nursery.start_soon(drivers.catalogue.delete, b"q")
        assert results[1:] in (["bound"], ["there is no queue 'q'"])
        assert (exchanges.bindings(), drivers.store.catalogue.bindings()) == ([], [])


async def test_a_queue_that_the_store_has_deleted_cannot_be_bound(tmp_path: Path) -> None:
    async with server(tmp_path) as (drivers, exchanges):
        await make(drivers, b"q")
        driver = drivers.catalogue.lookup(b"q")
        assert driver is not None
        drivers.store.catalogue.delete(driver.topic.id)  # as a deletion has done whose task is about to go on
        with pytest.raises(Refused, match="there is no queue 'q'") as refused:
            await exchanges.bind(b"amq.fanout", queue(b"q"), b"")
        assert refused.value.reason is Reason.NOT_FOUND


async def test_a_cancelled_declaration_is_whole_or_nothing(tmp_path: Path) -> None:
    async with server(tmp_path) as (drivers, exchanges):
        with trio.move_on_after(0) as limit:
            await exchanges.declare(b"e", b"fanout", durable=True)
        assert not limit.cancelled_caught or own(exchanges) == set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: exchanges.declare(b"f", b"fanout", durable=True))
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        stored = {record.name for record in drivers.store.catalogue.exchanges()}
        assert own(exchanges) == stored


async def test_a_full_store_refuses_a_durable_exchange_and_keeps_the_rest(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", map_size=1 << 18, boot_id="first")
    async with serving(store) as drivers:
        exchanges = ExchangeRegistry(drivers.catalogue)
        number = 0
        refused: Refused | None = None
        while refused is None:
            try:
                await exchanges.declare(b"%0200d" % number, b"fanout", durable=True)
                number += 1
            except Refused as problem:
                refused = problem
        assert refused.reason is Reason.NO_ROOM
        assert len(own(exchanges)) == len(drivers.store.catalogue.exchanges()) == number
        await exchanges.declare(b"passing", b"fanout")
    store.close()


async def test_quotas_of_exchanges_and_bindings(tmp_path: Path) -> None:
    async with server(tmp_path, max_exchanges=1, max_bindings=2) as (drivers, exchanges):
        await make(drivers, b"q")
        await exchanges.declare(b"e", b"fanout")
        with pytest.raises(Refused, match="has its 1 exchange,") as caught:
            await exchanges.declare(b"f", b"fanout")
        assert caught.value.reason is Reason.QUOTA
        for key in (b"1", b"2", b"2"):
            await exchanges.bind(b"e", queue(b"q"), key)
        with pytest.raises(Refused, match="has its 2 bindings") as caught:
            await exchanges.bind(b"e", queue(b"q"), b"3")
        assert caught.value.reason is Reason.QUOTA
        await exchanges.delete(b"e")
        await exchanges.declare(b"f", b"fanout")
        await exchanges.bind(b"f", queue(b"q"), b"1")
        long = Table(((b"a", LongString(b"x" * 5000)),))
        with pytest.raises(Refused, match="at most 4096 octets"):
            await exchanges.bind(b"f", queue(b"q"), b"2", long)


async def test_records_that_this_version_cannot_use_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(tmp_path / "store", map_size=1 << 28, boot_id="first") as store:
        store.catalogue.put_exchange(ExchangeRecord(b"later", "x-delayed-message"))
        store.catalogue.put_exchange(ExchangeRecord(b"e", "headers"))
        store.catalogue.bind(BindingRecord(b"later", b"e", b"", b""))
        store.catalogue.bind(BindingRecord(b"e", b"e", b"", b"\0\0\0\7malformed"))
    with caplog.at_level(logging.ERROR, "omq.exchanges"):
        async with server(tmp_path) as (_, exchanges):
            assert own(exchanges) == {b"e"}
            assert exchanges.bindings() == []
    text = caplog.text
    assert "exchange 'later' has the unknown type 'x-delayed-message'" in text
    assert "a binding of exchange 'later' has no effect: there is no exchange 'later'" in text
    assert "a binding of 'e' cannot be read" in text


async def test_a_full_store_refuses_a_binding(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", map_size=1 << 18, boot_id="first")
    async with serving(store) as drivers:
        exchanges = ExchangeRegistry(drivers.catalogue)
        await make(drivers, b"q")
        refused: Refused | None = None
        number = 0
        while refused is None:
            try:
                await exchanges.bind(b"amq.direct", queue(b"q"), b"%0200d" % number)
                number += 1
            except Refused as problem:
                refused = problem
        assert refused.reason is Reason.NO_ROOM
        assert len(exchanges.bindings()) == len(drivers.store.catalogue.bindings()) == number
    store.close()


async def test_an_exchange_that_cannot_be_deleted_in_the_store_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(tmp_path) as (drivers, exchanges):
        owner = Ownership()
        await drivers.catalogue.declare_queue(b"q", QueueOptions(exclusive=True), owner)
        await exchanges.declare(b"e", b"fanout", durable=True, auto_delete=True)
        await exchanges.bind(b"e", queue(b"q"), b"")
        drivers.store.catalogue.close()
        owner.end()
        with trio.fail_after(60):
            while "exchange 'e', which has ended, stays in the store" not in caplog.text:
                await quiet()
        assert own(exchanges) == set()
