"""Exchanges, queues and streams for one connection, besides the operations that AMQP's methods show."""

import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from quietness import quiet
from served_control import Subscriber, connected, control, known

from omq.access.control import AccessControl
from omq.access.leases import Principal
from omq.access.routed_publishing import REPLIES
from omq.access.session import Session, TooLarge
from omq.access.topology import GENERATED, QueueState, Topology
from omq.drivers.confirmation import Confirmation
from omq.drivers.offer import PendingOffer
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import CreditKind, TakenMessages
from omq.exchanges.types import Destination, DestinationKind
from omq.model import Delivery, FromCurrent, FromMessage, Persistent, Sync, Transient
from omq.protocol.amqp.fields import Array, LongString, Table
from omq.protocol.amqp.head import Head, encode
from omq.protocol.amqp.properties import Properties
from omq_storage.batches import Bodies

RIGHTS = {"declare": ["*"], "publish": ["*"], "subscribe": ["*"], "delete": ["*"]}


@asynccontextmanager
async def topology(path: Path, **settings: object) -> AsyncIterator[tuple[Session, Topology]]:
    """Yield a session, and what it may do."""
    async with control(path, **settings) as access:
        session = await connected(access)
        opened = access.topology(session)
        yield session, opened
        opened.close()
        session.close()


@asynccontextmanager
async def another(access: AccessControl, id: bytes = b"tester") -> AsyncIterator[Topology]:
    """Yield the topology as another connection sees it."""
    session = await connected(access, id)
    opened = access.topology(session)
    yield opened
    opened.close()
    session.close()


def may_publish(access: Topology, exchange: bytes, key: bytes, *copies: bytes) -> bool:
    """Return whether the client may publish to this exchange with this key, and with those of the
    header CC.
    """
    headers = Table(((b"CC", Array(tuple(map(LongString, copies)))),)) if copies else None
    head = encode(Head(exchange, key, Properties(headers=headers)))
    try:
        access.publishing.parts(exchange, key, [head])
    except Refused as refused:
        if refused.reason is not Reason.FORBIDDEN:
            raise
        return False
    return True


# -- rights -------------------------------------------------------------------------------------------------


async def test_one_granted_right_grants_no_other(tmp_path: Path) -> None:
    few = {**RIGHTS, "publish": ["q", "x"]}
    clients = [known("all", **RIGHTS), known("few", **few)]
    async with (
        control(tmp_path, clients=clients) as access,
        another(access, b"all:s") as everything,
        another(access, b"few:s") as one,
    ):
        for name in (b"x", b"y"):
            await everything.declare_exchange(
                name, b"direct", Table(), durable=False, auto_delete=False, internal=False
            )
        for _ in range(2):
            assert may_publish(one, b"", b"q")
            assert may_publish(one, b"x", b"r")
            for exchange, key in ((b"", b"r"), (b"", b"x.y"), (b"y", b"q"), (b"y", b"x")):
                assert not may_publish(one, exchange, key)


async def test_further_keys_take_rights_of_their_own_only_on_the_default_exchange(tmp_path: Path) -> None:
    few = {**RIGHTS, "publish": ["q", "x"]}
    async with control(tmp_path, clients=[known("few", **few)]) as access, another(access, b"few:s") as one:
        await one.declare_exchange(b"x", b"direct", Table(), durable=False, auto_delete=False, internal=False)
        assert may_publish(one, b"x", b"r", b"s")
        assert may_publish(one, b"", b"q", b"q")
        assert not may_publish(one, b"", b"q", b"r")


async def test_a_made_queue_is_bound_without_a_right_only_to_a_reserved_exchange(tmp_path: Path) -> None:
    few = {"declare": ["x", "q"], "publish": ["q"]}
    async with control(tmp_path, clients=[known("few", **few)]) as access, another(access, b"few:s") as one:
        await one.declare_exchange(b"x", b"fanout", Table(), durable=False, auto_delete=False, internal=False)
        made = one.generate()
        await one.declare_queue(made, QueueOptions(exclusive=True))
        await one.declare_queue(b"q", QueueOptions())
        for change in (one.bind, one.unbind):
            await change(b"amq.fanout", Destination(DestinationKind.QUEUE, made), b"", Table())
            for source, queue in ((b"x", made), (b"amq.fanout", b"q"), (b"x", b"q")):
                with pytest.raises(Refused, match="may not subscribe to it"):
                    await change(source, Destination(DestinationKind.QUEUE, queue), b"", Table())


async def test_a_reserved_name_makes_no_queue_and_no_stream(tmp_path: Path) -> None:
    async with topology(tmp_path) as (session, one):
        for make in (
            one.declare_queue(b"amq.q", QueueOptions()),
            one.declare_stream(b"amq.q", None, None, None),
        ):
            with pytest.raises(Refused, match="contains reserved prefix"):
                await make
        await session.declare(b"amq.there", Delivery.ROUND_ROBIN, Transient())
        assert await one.declare_queue(b"amq.there", QueueOptions()) == QueueState(b"amq.there", 0, 0)


# -- names --------------------------------------------------------------------------------------------------


async def test_made_names_have_128_random_bits(tmp_path: Path) -> None:
    async with topology(tmp_path) as (_, one):
        made = {one.generate() for _ in range(10)}
        assert len(made) == 10
        assert all(re.fullmatch(re.escape(GENERATED) + rb"[\w-]{22}", name) for name in made)
        assert re.fullmatch(re.escape(REPLIES) + rb"(\.[\w+/]{22}==){2}", await one.make_reply_queue())


async def test_names_of_queues_that_exist_stay_known_however_many_there_are(tmp_path: Path) -> None:
    """A queue that is gone is not the connection's any more: using its name takes rights again."""
    async with control(tmp_path, clients=[known("nobody")]) as access, another(access, b"nobody:s") as one:
        made = []
        for _ in range(200):
            made.append(one.generate())
            await one.declare_queue(made[-1], QueueOptions(exclusive=True))
        assert [await one.purge(name) for name in made] == [0] * len(made)
        for name in made[1:]:
            assert await one.delete_queue(name, if_unused=False, if_empty=False) == 0
        with pytest.raises(Refused, match="may not subscribe to it"):
            await one.purge(made[1])
        assert await one.purge(made[0]) == 0


# -- queues -------------------------------------------------------------------------------------------------


async def test_the_queue_of_replies_is_the_connections_own_and_goes_with_its_consumer(tmp_path: Path) -> None:
    async with control(tmp_path) as access, another(access) as one, another(access) as other:
        name = await one.make_reply_queue()
        assert other.find_replies(name) == QueueState(name, 0, 1)
        with pytest.raises(Refused, match="it belongs to another connection"):
            other.open(name, FromCurrent(), Subscriber, exclusive=False, priority=0)
        subscriber, channel = one.open(name, FromCurrent(), Subscriber, exclusive=False, priority=0)
        channel.close()
        subscriber.closed()
        await quiet()
        with pytest.raises(Refused, match="no queue"):
            other.find_replies(name)
        assert other.find_replies(REPLIES) == QueueState(REPLIES, 0, 1)


async def test_a_queue_that_is_not_there_is_deleted_with_no_messages(tmp_path: Path) -> None:
    async with topology(tmp_path) as (_, one):
        assert await one.delete_queue(b"none", if_unused=True, if_empty=True) == 0
        await one.declare_queue(b"q", QueueOptions())
        (part,) = one.publishing.parts(b"", b"q", [encode(Head(b"", b"q"))])
        (topic,) = part.route
        one.publishing.offer(topic, Bodies([b"1", b"2"]), ())
        assert one.find_queue(b"q") == QueueState(b"q", 2, 0)
        with pytest.raises(Refused, match="is not empty"):
            await one.delete_queue(b"q", if_unused=False, if_empty=True)
        assert await one.delete_queue(b"q", if_unused=True, if_empty=False) == 2


async def test_messages_are_got_one_by_one(tmp_path: Path) -> None:
    async with topology(tmp_path) as (_, one):
        await one.declare_queue(b"q", QueueOptions())
        topic = one.publishing.parts(b"", b"q", [encode(Head(b"", b"q"))])[0].route[0]
        getter = one.open_getter(b"q", Subscriber(topic.topic, lambda: None))
        getter.grant()
        assert not await getter.deal_one()
        one.publishing.offer(topic, Bodies([b"1", b"2"]), ())
        for left in (1, 0):
            assert await getter.deal_one()
            assert getter.ready == left
            assert isinstance(await getter.channel.take(), TakenMessages)
            getter.channel.written(1)
        assert not await getter.deal_one()
        assert await one.purge(b"q") == 0
        getter.channel.close()  # which were not settled
        assert await one.purge(b"q") == 2


async def test_an_offered_message_has_a_size(tmp_path: Path) -> None:
    async with topology(tmp_path, max_message_bytes=1000) as (_, one):
        await one.declare_queue(b"q", QueueOptions())
        (part,) = one.publishing.parts(b"", b"q", [encode(Head(b"", b"q"))])
        (topic,) = part.route
        with pytest.raises(TooLarge, match="a message has at most 1000 octets, this one 1001"):
            one.publishing.offer(topic, Bodies([b"x" * 1001]), [b""])
        while not isinstance(one.publishing.offer(topic, Bodies([b"x" * 1000]), [b""]), Confirmation):
            await quiet()


async def test_a_long_body_goes_to_a_disk_while_it_arrives_where_all_of_a_route_take_it_so(
    tmp_path: Path,
) -> None:
    async with topology(tmp_path) as (session, one):
        for name, persistence in ((b"p", Persistent(Sync.WEAK)), (b"t", Transient())):
            await session.declare(name, Delivery.BROADCAST, persistence)
        ((stored,), _, _), ((transient,), _, _) = [
            one.publishing.parts(b"", name, [encode(Head(b"", name))])[0] for name in (b"p", b"t")
        ]
        least = session.fragment_octets
        for route, octets, count in (
            ([stored], least, 1),
            ([stored], least - 1, None),
            ([stored, transient], least, None),
            ([stored, transient], 5 << 20, 2),
            ([], least, None),
        ):
            uploads = await one.publishing.uploads(route, octets)
            assert (None if uploads is None else len(uploads)) == count
            for upload in uploads or ():
                upload.close()


async def test_workers_of_omq_and_of_amqp_have_the_same_priority(tmp_path: Path) -> None:
    async with topology(tmp_path) as (session, one):
        await one.declare_queue(b"q", QueueOptions())
        channels = [
            (await session.open(b"q", FromCurrent(), Subscriber))[1],
            one.open(b"q", FromCurrent(), Subscriber, exclusive=False, priority=0)[1],
        ]
        for channel in channels:
            channel.grant(10, CreditKind.WINDOW)
        (part,) = one.publishing.parts(b"", b"q", [encode(Head(b"", b"q"))])
        for number in range(4):
            one.publishing.offer(part.route[0], Bodies([b"%d" % number]), ())
            await quiet()
        for channel in channels:
            taken = await channel.take()
            assert isinstance(taken, TakenMessages)
            assert sum(len(selection.ids) for selection in taken.selections) == 2


async def test_a_window_of_0_is_as_long_as_it_may_be(tmp_path: Path) -> None:
    async with topology(tmp_path, max_credit=50) as (_, one):
        assert [one.window(wanted) for wanted in (0, 1, 50, 51, sys.maxsize)] == [50, 1, 50, 50, 50]


async def test_a_feed_of_an_exclusive_queue_is_leased_by_its_connection_alone(tmp_path: Path) -> None:
    async with control(tmp_path) as access, another(access) as one, another(access) as other:
        principal = Principal("here", b"tester", None)
        for name, options in ((b"own", QueueOptions(exclusive=True)), (b"shared", QueueOptions())):
            await one.declare_queue(name, options)
        for connection, name in ((other, b"own"), (other, b"shared"), (one, b"shared"), (one, b"none")):
            with pytest.raises(Refused, match="No such feed"):
                connection.lease_feed(name, principal)
        _, feed = one.lease_feed(b"own", principal)
        assert feed.is_paused
        await other.declare_stream(b"s", None, None, None)
        _, feed = one.lease_feed(b"s", principal)
        assert not feed.is_paused


async def test_a_sink_of_an_exchange_takes_the_right_to_publish_to_it(tmp_path: Path) -> None:
    async def returned(head: bytes, body: bytes) -> None:
        raise AssertionError

    few = {**RIGHTS, "publish": ["x", "internal", "t"]}
    principal = Principal("here", b"tester", None)
    async with control(tmp_path, clients=[known("few", **few)]) as access, another(access, b"few:s") as one:
        for name in (b"x", b"y", b"internal"):
            await one.declare_exchange(
                name, b"direct", Table(), durable=False, auto_delete=False, internal=name == b"internal"
            )
        for name in (b"t", b"u"):
            await one.declare_queue(name, QueueOptions())
        for name in (b"x", b"t", b""):  # with the default exchange each key takes its right
            assert await one.lease_sink(name, principal, returned)
        for name, why in (
            (b"y", "may not publish to it"),
            (b"u", "may not publish to it"),
            (b"none", "may not publish to it"),
            (b"internal", "cannot publish to internal exchange"),
        ):
            with pytest.raises(Refused, match=why):
                await one.lease_sink(name, principal, returned)
    async with topology(tmp_path / "other") as (_, one):
        with pytest.raises(Refused, match="No such sink"):
            await one.lease_sink(b"none", principal, returned)


# -- streams ------------------------------------------------------------------------------------------------


async def test_a_stream_begins_at_an_offset_or_a_time(tmp_path: Path) -> None:
    async with topology(tmp_path) as (_, one):
        await one.declare_stream(b"s", Sync.WEAK, None, None)
        assert one.from_last(b"s") == FromCurrent()
        (part,) = one.publishing.parts(b"", b"s", [encode(Head(b"", b"s"))])
        for count in (1, 2):
            confirmation = one.publishing.offer(part.route[0], Bodies([b"%d" % count]), ())
            assert isinstance(confirmation, Confirmation)
            stored = trio.Event()
            confirmation.listen(stored.set)
            await stored.wait()
            assert one.from_last(b"s") == FromMessage(count)
        now = int(time.time())
        assert await one.from_time(b"s", now - 600) == FromMessage(1)
        assert await one.from_time(b"s", now + 600) == FromMessage(3)
        assert await one.from_ago(b"s", 600) == FromMessage(1)
        assert await one.from_ago(b"s", 2 * now) == FromMessage(1)
        assert one.is_stream(b"s")


async def test_a_topic_that_is_no_persistent_stream_is_refused(tmp_path: Path) -> None:
    async with topology(tmp_path) as (session, one):
        await session.declare(b"t", Delivery.BROADCAST, Transient())
        await one.declare_queue(b"q", QueueOptions())
        assert not one.is_stream(b"q")
        for name, argument in ((b"t", "durable"), (b"q", "x-queue-type")):
            with pytest.raises(Refused, match=f"'{argument}'"):
                await one.declare_stream(name, None, None, None)
        with pytest.raises(Refused, match="a transient topic cannot be replayed"):
            await one.from_time(b"t", 0)


async def test_a_topic_of_omq_without_room_takes_messages_over_from_an_exchange(tmp_path: Path) -> None:
    async with topology(tmp_path) as (session, one):
        await session.declare(b"t", Delivery.ROUND_ROBIN, Transient())
        batch = Bodies([bytes(1 << 20)])
        while not isinstance(offered := session.offer(b"t", batch), PendingOffer):
            assert isinstance(offered, Confirmation)
        offered.leave()
        (part,) = one.publishing.parts(b"", b"t", [encode(Head(b"", b"t"))])
        (topic,) = part.route
        for _ in range(2):
            assert isinstance(one.publishing.offer(topic, batch, ()), Confirmation)
        offered = session.offer(b"t", batch)
        assert isinstance(offered, PendingOffer)  # its own publishers wait
        offered.leave()
