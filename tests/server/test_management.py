"""The command Manage: lists and changes of queues, exchanges and bindings, on real connections."""

from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event
from typing import Any, get_args

import pytest
import trio
from counted_steps import counted_calls

from omq import management as m
from omq.access import moving
from omq.access.rights import Right
from omq.client import Client, FromBeginning, connect
from omq.client.errors import OmqError, ServerError
from omq.config import ClientConfig
from omq.drivers.queue_options import CHANGEABLE, Overflow, QueueOptions
from omq.model import Delivery, Persistence, Persistent, Sync, Transient
from omq.protocol.amqp.fields import Array, LongString, Table
from omq.protocol.amqp.head import Head, encode
from omq.protocol.amqp.properties import Properties
from omq.protocol.omq.types import Managed
from omq_storage.batches import Bodies
from omq_storage.environment import Environment, Extent

from .conversation import PATIENCE, InProcess, eventually, serving
from .test_operations import SECRET
from .test_operations import client as client_with_all

STRONG = Persistent(Sync.STRONG)


@pytest.fixture
async def host(store: Path) -> AsyncIterator[InProcess]:
    async with serving(store) as host:
        yield host


@pytest.fixture
async def client(host: InProcess) -> AsyncIterator[Client]:
    async with connect(f"omq://127.0.0.1:{host.port}") as client:
        yield client


async def queues(client: Client) -> dict[bytes, m.QueueInfo]:
    answer = await client.manage(m.ListQueues(0))
    assert isinstance(answer, m.Queues)
    return {info.name: info for info in answer.list}


async def bodies(client: Client, queue: bytes) -> list[bytes]:
    answer = await client.manage(m.Peek(queue, 0, 100))
    assert isinstance(answer, m.Messages)
    return [message.body for message in answer.list]


async def refusal(client: Client, request: m.Request) -> str:
    with pytest.raises(ServerError) as caught:
        await client.manage(request)
    return str(caught.value)


def bind(queue: bytes, *arguments: m.Argument) -> m.Bind:
    return m.Bind(b"orders", m.Queue(queue), b"eu.#", arguments)


def declare(name: bytes, kind: bytes = b"topic", **flags: bool) -> m.DeclareExchange:
    given = {"durable": False, "auto_delete": False, "internal": False, **flags}
    return m.DeclareExchange(name, kind, **given, alternate=None)


# -- lists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistence", [Transient(), STRONG])
async def test_a_queue_is_listed_with_its_numbers(client: Client, persistence: Persistence) -> None:
    await client.declare("jobs", Delivery.ROUND_ROBIN, persistence)
    await client.declare("news", Delivery.BROADCAST, persistence)
    for number in range(5):
        await client.publish("jobs", b"%d" % number)
    await client.confirm()
    info = (await queues(client))[b"jobs"]
    assert (info.ready, info.unacknowledged, info.consumers, info.oldest_ms) == (5, 0, 0, None)
    assert info.durable
    assert b"news" not in await queues(client)
    async with client.subscribe("jobs", credit=2) as messages:
        await messages.__anext__()
        with trio.fail_after(60):
            while (info := (await queues(client))[b"jobs"]).unacknowledged != 2:
                await trio.lowlevel.checkpoint()
        assert (info.ready, info.consumers) == (3, 1)
        assert info.oldest_ms is not None
        assert 0 <= info.oldest_ms < 20_000


async def test_lists_have_a_hundred_records_at_a_time(client: Client) -> None:
    for number in range(105):
        await client.manage(declare(b"e%d" % number))
    listed = []
    for first in (0, 100, 200):
        answer = await client.manage(m.ListExchanges(first))
        assert isinstance(answer, m.Exchanges)
        listed.append(answer.list)
    assert [len(some) for some in listed] == [100, 10, 0]
    assert len({info.name for some in listed for info in some}) == 110
    assert await refusal(client, m.ListExchanges(-1)) == "Manage: a number cannot be negative"


async def test_exchanges_and_bindings(client: Client) -> None:
    await client.declare("q", Delivery.ROUND_ROBIN, STRONG)
    request = m.DeclareExchange(b"orders", b"topic", True, True, False, b"rest")
    assert await client.manage(request) == m.Done(1)
    assert await client.manage(declare(b"rest", b"fanout", internal=True)) == m.Done(1)
    every = (
        m.Argument(b"b", m.Bool(True)),
        m.Argument(b"i", m.Int(-5)),
        m.Argument(b"s", m.String(b"\xff")),
        m.Argument(b"v", m.Void()),
    )
    assert await client.manage(bind(b"q", *every)) == m.Done(1)
    to_exchange = m.Bind(b"orders", m.Exchange(b"rest"), b"", ())
    assert await client.manage(to_exchange) == m.Done(1)
    answer = await client.manage(m.ListExchanges(5))  # behind the predeclared ones
    assert answer == m.Exchanges(
        (
            m.ExchangeInfo(b"orders", b"topic", True, True, False, b"rest"),
            m.ExchangeInfo(b"rest", b"fanout", False, False, True, None),
        )
    )
    assert await client.manage(m.ListBindings(0)) == m.Bindings(
        (
            m.BindingInfo(b"orders", m.Queue(b"q"), b"eu.#", every),
            m.BindingInfo(b"orders", m.Exchange(b"rest"), b"", ()),
        )
    )
    assert await client.manage(m.Unbind(b"orders", m.Exchange(b"rest"), b"", ())) == m.Done(1)
    assert await client.manage(m.DeleteExchange(b"rest")) == m.Done(1)
    assert await client.manage(m.DeleteExchange(b"rest")) == m.Done(0)
    assert await client.manage(m.ListBindings(1)) == m.Bindings(())
    differs = "inequivalent arg 'type' for exchange 'orders': received 'fanout' but current is 'topic'"
    assert await refusal(client, declare(b"orders", b"fanout")) == f"Manage orders: {differs}"
    other = m.Argument(b"o", m.Other(b"Decimal"))
    assert "of the type Other can only be shown" in await refusal(client, bind(b"q", other))


# -- queues -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistence", [Transient(), STRONG])
async def test_peek_takes_nothing(client: Client, persistence: Persistence) -> None:
    await client.declare("jobs", Delivery.ROUND_ROBIN, persistence)
    async with client.sink("jobs") as sink:
        for number in range(3):
            await sink.publish(b"%d" % number)
    await client.publish_confirmed("jobs", b"x" * 10_000)
    answer = await client.manage(m.Peek(b"jobs", 2, 2))
    assert isinstance(answer, m.Messages)
    assert [(each.id, each.body, each.size) for each in answer.list] == [(2, b"1", 1), (3, b"2", 1)]
    answer = await client.manage(m.Peek(b"jobs", 4, 100))
    assert isinstance(answer, m.Messages)
    (long,) = answer.list
    assert (long.size, long.body, long.key) == (10_000, b"x" * 4096, b"jobs")
    assert (await queues(client))[b"jobs"].ready == 4
    async with client.subscribe("jobs", credit=4) as messages:
        run = await messages.next_run()
        assert run is not None
        assert list(run.ids)[:3] == [1, 2, 3]
        # Those that a consumer has are shown, too, and one that is done is not.
        await messages.received(2)
        await client.confirm()
        with trio.fail_after(60):
            while len(await bodies(client, b"jobs")) != 3:
                await trio.lowlevel.checkpoint()


async def test_peek_shows_a_hundred_messages_that_are_not_done_whatever_their_blocks(
    host: InProcess, client: Client
) -> None:
    await client.declare("jobs", Delivery.ROUND_ROBIN, STRONG)
    driver = host.server.catalogue.lookup(b"jobs")
    assert driver is not None
    for first in range(1, 251, 10):
        await driver.post(Bodies([b"%d" % id for id in range(first, first + 10)]))
    async with client.subscribe("jobs", credit=40) as messages:
        received = 0
        while received < 40:
            run = await messages.next_run()
            assert run is not None
            received += len(run.ids)
        for done in [1, 2, 3, *range(6, 30, 2)]:
            await messages.received(done)
        await client.confirm()
        left = [4, 5, *range(7, 30, 2), *range(30, 251)]
        with trio.fail_after(PATIENCE):
            while (await bodies(client, b"jobs"))[0] != b"4":
                await trio.lowlevel.checkpoint()
        for position, count in ((0, 1000), (4, 10), (5, 7), (8, 100), (9, 5), (38, 30), (245, 100), (251, 5)):
            answer = await client.manage(m.Peek(b"jobs", position, count))
            assert isinstance(answer, m.Messages)
            expected = [id for id in left if id >= position][: min(count, 100)]
            assert [(each.id, each.body) for each in answer.list] == [(id, b"%d" % id) for id in expected]


async def test_purge_deletes_ready_messages(client: Client) -> None:
    await client.declare("jobs", Delivery.ROUND_ROBIN, STRONG)
    for _ in range(3):
        await client.publish_confirmed("jobs", b"x")
    assert await client.manage(m.Purge(b"jobs")) == m.Done(3)
    assert (await queues(client))[b"jobs"].ready == 0
    assert await bodies(client, b"jobs") == []


async def test_options_of_a_queue_change(store: Path) -> None:
    async with serving(store) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        await host.server.catalogue.declare_queue(b"q", QueueOptions(durable=True, max_length=10))
        changes = (
            m.Change(b"max_length", None),
            m.Change(b"ttl_ms", b"60000"),
            m.Change(b"overflow", b"reject-publish"),
            m.Change(b"dead_letter_exchange", b""),
        )
        assert await client.manage(m.ChangeQueue(b"q", changes)) == m.Done(4)
    async with serving(store) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        assert (await queues(client))[b"q"].options == (
            m.Change(b"ttl_ms", b"60000"),
            m.Change(b"overflow", b"reject-publish"),
            m.Change(b"dead_letter_exchange", b""),
        )
        for option, value, why in (
            (b"durable", b"1", "'durable' is none of ttl_ms, expires_ms,"),
            (b"ttl_ms", b"-1", "ttl_ms must be a number that is not negative"),
            (b"overflow", b"drop", "overflow must be drop-head, reject-publish or reject-publish-dlx"),
            (b"dead_letter_exchange", b"x" * 256, "dead_letter_exchange is longer than 255 octets"),
            (b"dead_letter_key", b"x" * 256, "dead_letter_key is longer than 255 octets"),
        ):
            assert why in await refusal(client, m.ChangeQueue(b"q", (m.Change(option, value),)))


def test_the_options_that_a_request_may_name_are_those_that_may_change() -> None:
    assert m.OPTIONS == CHANGEABLE
    assert {each.value.encode() for each in Overflow} == set(m.OVERFLOWS)


@pytest.mark.parametrize("persistence", [b"strong", b"transient"])
async def test_a_queue_is_declared_with_its_options(store: Path, persistence: bytes) -> None:
    options = (m.Change(b"max_length", b"5"), m.Change(b"dead_letter_exchange", b""))
    wanted = m.DeclareQueue(b"q", persistence, options)
    async with serving(store) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        assert await client.manage(wanted) == m.Done(1)
    async with serving(store) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        assert (await queues(client))[b"q"].options == options
        await client.publish_confirmed("q", b"1")
        await client.publish_confirmed("q", b"2")
        await client.publish_confirmed("q", b"3")
        # It exists as wanted, and what is not named may have any value.
        assert await client.manage(wanted) == m.Done(1)
        assert await client.manage(m.DeclareQueue(b"q", persistence, ())) == m.Done(1)
        other = (m.Change(b"max_length", b"2"), m.Change(b"ttl_ms", b"7"), options[1])
        assert await refusal(client, m.DeclareQueue(b"q", persistence, other)) == (
            "Manage q: the queue exists with no ttl_ms, max_length=5; change it with `omq queues change`"
        )
        assert "the topic exists as" in await refusal(client, m.DeclareQueue(b"q", b"weak", options))
        assert (await queues(client))[b"q"].options == options
        assert await bodies(client, b"q") == [b"1", b"2", b"3"]


async def test_a_wrong_option_or_persistence_makes_no_queue(client: Client) -> None:
    wrong = m.DeclareQueue(b"q", b"strong", (m.Change(b"max_lenght", b"5"),))
    assert "'max_lenght' is none of ttl_ms," in await refusal(client, wrong)
    wrong = m.DeclareQueue(b"q", b"firm", ())
    assert "persistence must be one of transient, strong, weak, async" in await refusal(client, wrong)
    assert await queues(client) == {}


async def test_a_topic_that_its_use_has_made_can_be_declared_as_a_queue(client: Client) -> None:
    options = (m.Change(b"max_length", b"5"),)
    async with client.subscribe("q"):  # makes the topic
        pass
    assert await client.manage(m.DeclareQueue(b"q", b"strong", options)) == m.Done(1)
    assert (await queues(client))[b"q"].options == options
    await client.publish_confirmed("news", b"1")
    assert "the topic exists as Broadcast" in await refusal(client, m.DeclareQueue(b"news", b"strong", ()))


def dead(queue: bytes) -> bytes:
    """Return the head of a dead letter of this queue."""
    record = Table(((b"queue", LongString(queue)), (b"reason", LongString(b"rejected"))))
    headers = Table(((b"x-death", Array((record,))), (b"kept", LongString(b"1"))))
    return encode(Head(b"dlx", queue, Properties(headers=headers)))


async def publish(host: InProcess, queue: bytes, *heads: bytes) -> None:
    driver = host.server.catalogue.lookup(queue)
    assert driver is not None
    confirmation = await driver.post(Bodies([b"%d" % number for number in range(len(heads))]), list(heads))
    stored = trio.Event()
    confirmation.listen(stored.set)
    await stored.wait()


@pytest.mark.parametrize("persistence", [Transient(), STRONG])
async def test_dead_letters_are_moved_back(host: InProcess, client: Client, persistence: Persistence) -> None:
    for name in ("dead", "one", "two"):
        await client.declare(name, Delivery.ROUND_ROBIN, persistence)
    await publish(host, b"dead", dead(b"one"), b"", dead(b"gone"), dead(b"two"), dead(b"one"))
    assert await client.manage(m.Move(b"dead", None, 2)) == m.Done(2)
    assert await bodies(client, b"one") == [b"0"]
    assert await bodies(client, b"two") == [b"3"]
    # A message that came from nowhere stays at its place.
    assert await bodies(client, b"dead") == [b"1", b"2", b"4"]
    driver = host.server.catalogue.lookup(b"one")
    assert driver is not None
    assert await client.manage(m.Move(b"dead", b"two", 100)) == m.Done(3)
    assert await bodies(client, b"two") == [b"3", b"1", b"2", b"4"]
    assert await bodies(client, b"dead") == []
    async with client.subscribe("one", credit=1) as messages:
        assert (await messages.__anext__()).body == b"0"
    assert "there is no queue 'none'" in await refusal(client, m.Move(b"dead", b"none", 1))


async def test_messages_are_moved_only_to_topics_that_keep_them(host: InProcess, client: Client) -> None:
    await client.declare("dead", Delivery.ROUND_ROBIN, STRONG)
    await client.declare("news", Delivery.BROADCAST, Transient())
    await client.declare("log", Delivery.BROADCAST, STRONG)
    await publish(host, b"dead", dead(b"news"), dead(b"log"))
    said = "Manage dead: 'news' is a transient broadcast topic, and would keep none of the messages"
    assert await refusal(client, m.Move(b"dead", b"news", 100)) == said
    assert await client.manage(m.Move(b"dead", None, 100)) == m.Done(0)  # no queue has these names now
    assert await bodies(client, b"dead") == [b"0", b"1"]
    assert await client.manage(m.Move(b"dead", b"log", 100)) == m.Done(2)
    async with client.subscribe("log", FromBeginning()) as messages:
        assert [(await messages.__anext__()).body for _ in range(2)] == [b"0", b"1"]


async def test_messages_the_new_queue_refuses_stay_in_the_old_one(host: InProcess, client: Client) -> None:
    options = QueueOptions(durable=True, max_length=2, overflow=Overflow.REJECT_PUBLISH)
    await host.server.catalogue.declare_queue(b"short", options)
    await client.declare("long", Delivery.ROUND_ROBIN, STRONG)
    for number in range(4):
        await client.publish_confirmed("long", b"%d" % number)
    assert "Manage long: the queue has its greatest length" in await refusal(
        client, m.Move(b"long", b"short", 4)
    )
    assert await bodies(client, b"short") == [b"0", b"1"]
    assert await bodies(client, b"long") == [b"2", b"3"]
    assert await client.manage(m.Move(b"long", b"long", 4)) == m.Done(0)


@pytest.mark.parametrize("persistence", [Transient(), STRONG])
async def test_messages_behind_many_that_stay_are_moved(
    host: InProcess, client: Client, persistence: Persistence
) -> None:
    for name in ("dead", "one"):
        await client.declare(name, Delivery.ROUND_ROBIN, persistence)
    staying = 10_005
    await publish(host, b"dead", *staying * [b""], *3 * [dead(b"one")])
    assert await client.manage(m.Move(b"dead", None, 2)) == m.Done(2)
    assert await client.manage(m.Move(b"dead", None, 2)) == m.Done(1)
    assert await client.manage(m.Move(b"dead", None, 2)) == m.Done(0)
    assert await bodies(client, b"one") == [b"%d" % number for number in range(staying, staying + 3)]
    info = (await queues(client))[b"dead"]
    assert (info.ready, info.unacknowledged) == (staying, 0)
    async with client.subscribe("dead", credit=1) as messages:
        assert (await messages.__anext__()).body == b"0"


async def test_a_move_that_passes_many_messages_moves_as_many(
    host: InProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of many Moves would look at all messages that stay."""
    monkeypatch.setattr(moving, "MOST_MOVED", 10)
    for name in ("dead", "one"):
        await client.declare(name, Delivery.ROUND_ROBIN, Transient())
    await publish(host, b"dead", *100 * [dead(b"one")], *100 * [b""], *300 * [dead(b"one")])
    counts = [await client.manage(m.Move(b"dead", None, 1000)) for _ in range(15)]
    assert counts == [*10 * [m.Done(10)], *3 * [m.Done(100)], m.Done(0), m.Done(0)]
    found = await queues(client)
    assert [found[name].ready for name in (b"dead", b"one")] == [100, 400]


async def test_a_move_that_is_cut_off_leaves_each_message_in_one_queue(
    host: InProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        await client.declare(name, Delivery.ROUND_ROBIN, STRONG)
    for number in range(10):
        await client.publish_confirmed("old", b"%d" % number)
    is_storing, may_store = Event(), Event()
    append = Environment.append

    def slow_append(environment: Environment, *blocks: Any) -> dict[int, Extent]:
        is_storing.set()
        assert may_store.wait(60)
        return append(environment, *blocks)

    monkeypatch.setattr(Environment, "append", slow_append)

    async def move() -> None:
        async with connect(f"omq://127.0.0.1:{host.port}", id="mover") as mover:
            with pytest.raises(OmqError):
                await mover.manage(m.Move(b"old", b"new", 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(move)
        try:
            await trio.to_thread.run_sync(is_storing.wait, 60)
            (moving,) = (each for each in await client.connections() if each.client == b"mover")
            assert await client.disconnect(moving.id)
            await eventually(lambda: host.connections == 1)
        finally:
            may_store.set()
    await client.publish_confirmed("new", b"last")  # after the messages that were on their way
    moved = (await queues(client))[b"new"].ready - 1
    assert moved
    assert (await queues(client))[b"old"].ready == 10 - moved


async def test_messages_that_are_not_moved_do_not_count_as_delivered(host: InProcess, client: Client) -> None:
    await host.server.catalogue.declare_queue(b"dead", QueueOptions(durable=True, delivery_limit=0))
    options = QueueOptions(durable=True, max_length=1, overflow=Overflow.REJECT_PUBLISH)
    await host.server.catalogue.declare_queue(b"short", options)
    await client.declare("one", Delivery.ROUND_ROBIN, STRONG)
    await publish(host, b"dead", b"", b"", dead(b"gone"), dead(b"one"), b"", b"")
    for moved in (1, 0, 0):  # with a delivery, they would die
        assert await client.manage(m.Move(b"dead", None, 100)) == m.Done(moved)
    assert await bodies(client, b"dead") == [b"0", b"1", b"2", b"4", b"5"]
    for _ in range(2):
        assert "the queue has its greatest length" in await refusal(client, m.Move(b"dead", b"short", 100))
    assert await bodies(client, b"short") == [b"0"]
    assert await bodies(client, b"dead") == [b"1", b"2", b"4", b"5"]


@pytest.mark.parametrize("persistence", [Transient(), STRONG])
async def test_messages_that_are_too_large_are_not_moved(client: Client, persistence: Persistence) -> None:
    """Those behind them are."""
    for name in ("from", "to"):
        await client.declare(name, Delivery.ROUND_ROBIN, persistence)
    large = b"x" * (6 << 20)
    async with client.sink("from") as sink:
        for body in (b"small", large, b"behind", large, b"last"):
            await sink.publish(body)
    assert await client.manage(m.Move(b"from", b"to", 10)) == m.Done(3)
    assert await bodies(client, b"to") == [b"small", b"behind", b"last"]
    assert "Manage from: 2 messages are too large to be moved, the first is message 2" in await refusal(
        client, m.Move(b"from", b"to", 10)
    )
    # They would have stayed anyway: they came from no queue.
    assert await client.manage(m.Move(b"from", None, 10)) == m.Done(0)
    info = (await queues(client))[b"from"]
    assert (info.ready, info.unacknowledged) == (2, 0)
    assert await bodies(client, b"from") == []  # a peek leaves large ones out
    async with client.subscribe("from", credit=2) as messages:  # in their order
        assert [(await messages.__anext__()).id for _ in range(2)] == [2, 4]


async def test_a_message_that_is_too_large_to_be_moved_does_not_count_as_delivered(
    host: InProcess, client: Client
) -> None:
    await host.server.catalogue.declare_queue(b"from", QueueOptions(durable=True, delivery_limit=0))
    await client.declare("to", Delivery.ROUND_ROBIN, STRONG)
    async with client.sink("from") as sink:
        await sink.publish(b"x" * (6 << 20))
    for _ in range(2):  # with a delivery, it would die
        assert "message 1 is too large to be moved" in await refusal(client, m.Move(b"from", b"to", 1))
        info = (await queues(client))[b"from"]
        assert (info.ready, info.unacknowledged) == (1, 0)


async def test_topics_that_are_no_queues_are_refused(client: Client) -> None:
    await client.declare("news", Delivery.BROADCAST, STRONG)
    for request in (
        m.Purge(b"news"),
        m.Peek(b"news", 0, 1),
        m.ChangeQueue(b"news", ()),
        m.Move(b"news", None, 1),
    ):
        assert await refusal(client, request) == "Manage news: it is a broadcast topic, and no queue"
    assert await refusal(client, m.Purge(b"none")) == "Manage none: there is no queue 'none'"


# -- rights -------------------------------------------------------------------------------------------------

EVERY = tuple(right.name.lower() for right in Right)
NAMES = ["q", "r", "orders", "new"]


def change(**options: bytes) -> m.ChangeQueue:
    return m.ChangeQueue(b"q", tuple(m.Change(name.encode(), value) for name, value in options.items()))


def declare_with_alternate(alternate: bytes) -> m.DeclareExchange:
    return m.DeclareExchange(b"new", b"topic", False, False, False, alternate)


def configured(name: str, rights: dict[str, Any]) -> ClientConfig:
    """Return a client with these rights to these names."""
    return ClientConfig(name=name, secret=str(SECRET), **rights)


RIGHTS: list[tuple[m.Request, dict[str, list[str]]]] = [
    (declare(b"new"), {"declare": ["new"]}),
    (m.DeleteExchange(b"orders"), {"delete": ["orders"]}),
    (bind(b"q"), {"publish": ["q"], "subscribe": ["orders"]}),
    (m.Unbind(b"orders", m.Queue(b"q"), b"", ()), {"publish": ["q"], "subscribe": ["orders"]}),
    (m.Purge(b"q"), {"subscribe": ["q"]}),
    (m.Peek(b"q", 0, 1), {"subscribe": ["q"]}),
    (m.ChangeQueue(b"q", ()), {"declare": ["q"]}),
    (m.DeclareQueue(b"new", b"strong", ()), {"declare": ["new"]}),
    (
        m.DeclareQueue(b"new", b"strong", (m.Change(b"dead_letter_exchange", b"orders"),)),
        {"declare": ["new"], "publish": ["orders"]},
    ),
    (change(dead_letter_exchange=b"orders"), {"declare": ["q"], "publish": ["orders"]}),
    (
        change(dead_letter_exchange=b"", dead_letter_key=b"r"),
        {"declare": ["q"], "publish": ["r"]},
    ),
    (change(dead_letter_exchange=b""), {"declare": ["q"], "publish": ["*"]}),
    (declare_with_alternate(b"orders"), {"declare": ["new"], "publish": ["orders"]}),
    (declare_with_alternate(b""), {"declare": ["new"], "publish": ["*"]}),
    (m.Move(b"q", None, 1), {"subscribe": ["q"]}),
    (m.Move(b"q", b"r", 1), {"subscribe": ["q"], "publish": ["r"]}),
]
"""Requests, with the rights that each takes."""

LISTS: list[m.Request] = [m.ListQueues(0), m.ListExchanges(0), m.ListBindings(0)]
"""Requests that take no right: they list what the client may know."""


def test_every_request_is_in_one_table() -> None:
    taking, listing = {type(request) for request, _ in RIGHTS}, {type(request) for request in LISTS}
    assert taking | listing == set(get_args(m.Request))
    assert not taking & listing


@pytest.mark.parametrize(("request_", "rights"), RIGHTS)
async def test_a_request_takes_exactly_its_rights(
    store: Path, request_: m.Request, rights: dict[str, list[str]]
) -> None:
    clients = [client_with_all("all", *Right), configured("with", rights)]
    for missing, needed in rights.items():
        but = {right: [name for name in NAMES if right != missing or name not in needed] for right in EVERY}
        clients.append(configured(f"without-{missing}", but))
    async with serving(store, clients=clients) as host:
        async with connect(f"omq://127.0.0.1:{host.port}", id="all:sesame") as client:
            for name in ("q", "r"):
                await client.declare(name, Delivery.ROUND_ROBIN, Transient())
            await client.manage(declare(b"orders"))
        for each in clients[2:]:
            async with connect(f"omq://127.0.0.1:{host.port}", id=f"{each.name}:sesame") as client:
                assert "this client may not" in await refusal(client, request_)
        async with connect(f"omq://127.0.0.1:{host.port}", id="with:sesame") as client:
            await client.manage(request_)


async def test_lists_have_only_what_a_client_may_know(store: Path) -> None:
    clients = [
        client_with_all("all", *Right),
        configured("one", {"subscribe": ["orders", "q"]}),
        configured("none", {}),
    ]
    async with serving(store, clients=clients) as host:
        async with connect(f"omq://127.0.0.1:{host.port}", id="all:sesame") as client:
            for name in (b"q", b"r"):
                await client.declare(name, Delivery.ROUND_ROBIN, Transient())
            await client.manage(declare(b"orders"))
            for name in (b"q", b"r"):
                await client.manage(bind(name))
            assert len(await queues(client)) == 2
        async with connect(f"omq://127.0.0.1:{host.port}", id="one:sesame") as client:
            assert set(await queues(client)) == {b"q"}
            answer = await client.manage(m.ListExchanges(0))
            assert isinstance(answer, m.Exchanges)
            assert [info.name for info in answer.list] == [b"orders"]
            bindings = await client.manage(m.ListBindings(0))
            assert bindings == m.Bindings((m.BindingInfo(b"orders", m.Queue(b"q"), b"eu.#", ()),))
        async with connect(f"omq://127.0.0.1:{host.port}", id="none:sesame") as client:
            for request in LISTS:
                answer = await client.manage(request)
                assert isinstance(answer, m.Queues | m.Exchanges | m.Bindings)
                assert answer.list == ()


async def test_long_lists_are_answered_in_short_steps(host: InProcess, client: Client) -> None:
    for number in range(100):
        options = (m.Change(b"max_length", b"%d" % (1000 + number)), m.Change(b"ttl_ms", b"60000"))
        await client.manage(m.DeclareQueue(b"queue-%d" % number, b"weak", options))
    await client.publish_many(b"queue-0", [b"%d" % number * 100 for number in range(100)])
    await client.confirm()
    raw = await host.connect()
    for request in (b"List_queues (first 0)", b"Peek (queue queue-0)(first 0)(count 100)"):
        with counted_calls() as calls:
            frame = await raw.ask(b"(Manage (%s))" % request)
        assert isinstance(frame, Managed)
        assert isinstance(frame.answer, m.Queues | m.Messages)
        assert len(frame.answer.list) == 100
        assert calls.longest < 4000, request  # 23,000 and 8,600 in one step


async def test_an_answer_has_fewer_long_messages(client: Client) -> None:
    await client.declare("jobs", Delivery.ROUND_ROBIN, STRONG)
    sent = [b"%d" % number * 4096 for number in range(40)]
    await client.publish_many("jobs", sent)
    await client.confirm()
    found: list[m.MessageInfo] = []
    while more := await peek(client, b"jobs", len(found) + 1):
        assert len(more) <= 16
        found += more
    assert [message.body for message in found] == [body[:4096] for body in sent]


async def peek(client: Client, queue: bytes, first: int) -> tuple[m.MessageInfo, ...]:
    answer = await client.manage(m.Peek(queue, first, 100))
    assert isinstance(answer, m.Messages)
    return answer.list


async def test_an_answer_has_fewer_bindings_with_long_arguments(host: InProcess, client: Client) -> None:
    await client.declare("q", Delivery.ROUND_ROBIN, Transient())
    await client.manage(declare(b"orders", b"headers"))
    names = [b"%03d" % number for number in range(60)]
    for name in names:
        await client.manage(bind(b"q", m.Argument(b"shop", m.String(name + bytes(3900)))))
    found: list[m.BindingInfo] = []
    raw = await host.connect()
    while True:
        with counted_calls() as calls:
            frame = await raw.ask(b"(Manage (List_bindings (first %d)))" % len(found))
        assert calls.longest < 2500
        assert isinstance(frame, Managed)
        assert isinstance(frame.answer, m.Bindings)
        assert len(frame.answer.list) <= 17
        if not frame.answer.list:
            break
        found += frame.answer.list
    values = [binding.arguments[0].value for binding in found]
    assert sorted(value.value[:3] for value in values if isinstance(value, m.String)) == names


async def test_many_messages_are_moved_in_short_steps(host: InProcess, client: Client) -> None:
    for name in (b"from", b"to"):
        await client.declare(name, Delivery.ROUND_ROBIN, Transient())
    await client.publish_many(b"from", [b"m"] * 1000)
    with counted_calls() as calls:
        assert await client.manage(m.Move(b"from", b"to", 1000)) == m.Done(1000)
    assert calls.longest < 2500  # 64 messages take 15,000
