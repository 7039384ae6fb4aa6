"""Declare, Delete, Topics and Confirm: what they promise."""

import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import lmdb
import pytest
import trio
import trio.lowlevel
import trio.testing

from omq.config import TopicConfig
from omq.model import Delivery, DeliveryName, PersistenceName, Persistent, Sync, Topic, TopicInfo, Transient
from omq.protocol.omq.types import (
    Confirmed,
    Declared,
    Deleted,
    Error,
    Message,
    Subscribed,
    TopicList,
    Unsubscribed,
)

from .conversation import EVERY, PERSISTENCES, eventually, numbered, publish, serving

TYPES = [
    (delivery, persistence)
    for delivery in (b"Broadcast", b"Round_robin")
    for persistence in PERSISTENCES.values()
]


# -- Declare ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delivery", "persistence"), TYPES)
async def test_declaring_again_succeeds_with_the_same_types_only(
    store: Path, delivery: bytes, persistence: bytes
) -> None:
    for _ in range(2):  # and again after a restart
        async with serving(store) as host:
            client = await host.connect()
            for _ in range(2):
                answer = await client.ask(b"(Declare t %s %s)" % (delivery, persistence))
                assert answer == Declared(Topic(0, b"t"))
            for other_delivery, other_persistence in TYPES:
                if (other_delivery, other_persistence) != (delivery, persistence):
                    text = await client.refusal(b"(Declare t %s %s)" % (other_delivery, other_persistence))
                    assert text.startswith(b"Declare t: "), text
                    assert b"%s %s" % (delivery, persistence) in text
            await client.confirm()


async def test_ids_of_topics_count_from_zero(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        for id in range(5):
            name = b"t%d" % id
            answer = await client.ask(b"(Declare %s Broadcast Transient)" % name)
            assert answer == Declared(Topic(id, name))


@pytest.mark.parametrize("use", [b"(Publish t x)", b"(Subscribe t From_current)"])
async def test_using_an_unknown_name_declares_it(store: Path, use: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.say(use)
        await client.settle()
        info = (await host.topics())[b"t"]
        assert (info.delivery, info.persistence) == (Delivery.BROADCAST, Persistent(Sync.WEAK))


async def test_the_default_types_are_the_configurations(store: Path) -> None:
    async with serving(store, default_delivery="round-robin", default_persistence="transient") as host:
        client = await host.connect()
        await client.say(b"(Publish t x)")
        info = (await client.topics())[b"t"]
        assert (info.delivery, info.persistence) == (Delivery.ROUND_ROBIN, Transient())


@pytest.mark.parametrize("replay", [b"From_current", b"From_beginning"])
@pytest.mark.parametrize(("delivery", "persistence"), TYPES)
async def test_an_empty_topic_takes_the_types_of_the_first_declare(
    store: Path, delivery: bytes, persistence: bytes, replay: bytes
) -> None:
    types = b"%s %s" % (delivery, persistence)
    async with serving(store) as host:
        waiting, client = await host.connect(), await host.connect()
        assert await waiting.ask(b"(Subscribe t %s)" % replay) == Subscribed(Topic(0, b"t"))
        assert await client.ask(b"(Declare t %s)" % types) == Declared(Topic(0, b"t"))
        # Only the first: it has declared types now.
        other = b"Broadcast Transient" if types != b"Broadcast Transient" else b"Round_robin Transient"
        assert (await client.refusal(b"(Declare t %s)" % other)).startswith(b"Declare t: ")
        # The subscriber that was waiting goes on with the topic as it is now.
        await client.send(publish(b"t", numbered(1, 10)))
        assert await waiting.messages(10) == [Message(n, 0, b"%d" % n) for n in range(1, 11)]
        assert (await client.topics())[b"t"].subscribers == 1
        if delivery == b"Round_robin":
            await waiting.say(b"(Request t 1)")
            await client.send(publish(b"t", numbered(11, 12)))
            assert await waiting.ids(1) == [11]
            await waiting.confirm()


@pytest.mark.parametrize("early", [False, True])
async def test_a_worker_keeps_its_credit_when_its_topic_gets_other_types(store: Path, early: bool) -> None:
    async with serving(store, default_delivery="round-robin", default_persistence="transient") as host:
        worker, client = await host.connect(), await host.connect()
        commands = [b"(Subscribe t From_current)", b"(Request t 2)"]
        if early:
            await client.ask(b"(Subscribe t From_current)")  # as only a topic that exists gives credit
            await client.ask(b"(Unsubscribe t)")
            commands.reverse()
        await worker.say(*commands)
        assert await worker.frame() == Subscribed(Topic(0, b"t"))
        await worker.confirm()
        assert await client.ask(b"(Declare t Round_robin (Persistent Weak))") == Declared(Topic(0, b"t"))
        await client.send(publish(b"t", numbered(1, 9)))
        await client.confirm()
        assert await worker.ids(2) == [1, 2]
        await worker.say(b"(Received t 2)")
        assert await worker.ids(1) == [3]
        await worker.confirm()  # which would come behind further messages


async def test_a_worker_has_no_credit_when_its_topic_becomes_a_broadcast_topic(store: Path) -> None:
    async with serving(store, default_delivery="round-robin", default_persistence="transient") as host:
        worker, client = await host.connect(), await host.connect()
        assert await worker.ask(b"(Subscribe t From_current)") == Subscribed(Topic(0, b"t"))
        await worker.say(b"(Request t 2)")
        await worker.confirm()
        assert await client.ask(b"(Declare t Broadcast Transient)") == Declared(Topic(0, b"t"))
        await client.send(publish(b"t", numbered(1, 9)))
        assert await worker.ids(9) == [*range(1, 10)]
        refusal = await worker.refusal(b"(Received t 1)")
        assert refusal == b"Received t: only messages of a round-robin topic are confirmed"


async def test_an_empty_topic_is_still_open_to_a_declare_after_a_restart(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_current)")
    async with serving(store) as host:
        client = await host.connect()
        assert await client.ask(b"(Declare t Round_robin (Persistent Strong))") == Declared(Topic(0, b"t"))
    async with serving(store) as host:
        info = (await host.topics())[b"t"]
        assert (info.delivery, info.persistence) == (Delivery.ROUND_ROBIN, Persistent(Sync.STRONG))


async def test_a_topic_with_messages_keeps_its_types(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Publish t x)")
        assert (await client.refusal(b"(Declare t Round_robin Transient)")).startswith(b"Declare t: ")
        assert await client.ask(b"(Declare t Broadcast (Persistent Weak))") == Declared(Topic(0, b"t"))
        await client.confirm()


async def test_undeclared_names_can_be_forbidden(store: Path) -> None:
    async with serving(store, allow_undeclared=False, topics=[TopicConfig(name="known")]) as host:
        client = await host.connect()
        assert (await client.refusal(b"(Publish t x)")).startswith(b"Publish t: ")
        assert (await client.refusal(b"(Subscribe t From_current)")).startswith(b"Subscribe t: ")
        assert set(await client.topics()) == {b"known"}
        assert (await client.refusal(b"(Confirm 1)")).startswith(b"Confirm 1: ")
        await client.say(b"(Publish known x)")
        await client.confirm(2)
        assert await client.ask(b"(Declare t Broadcast Transient)") == Declared(Topic(1, b"t"))
        await client.say(b"(Publish t x)")
        await client.confirm(3)


async def test_the_number_of_topics_is_bounded(store: Path) -> None:
    async with serving(store, max_topics=2, client_share=1) as host:
        client = await host.connect()
        await client.ask(b"(Declare a Broadcast Transient)")
        await client.ask(b"(Declare b Broadcast Transient)")
        assert (await client.refusal(b"(Declare c Broadcast Transient)")).startswith(b"Declare c: ")
        assert (await client.refusal(b"(Publish c x)")).startswith(b"Publish c: ")
        assert (await client.refusal(b"(Subscribe c From_current)")).startswith(b"Subscribe c: ")
        assert set(await client.topics()) == {b"a", b"b"}
        assert await client.ask(b"(Delete a)") == Deleted(Topic(0, b"a"))
        assert await client.ask(b"(Declare c Broadcast Transient)") == Declared(Topic(2, b"c"))


# -- Delete -------------------------------------------------------------------------------------------------


@EVERY
async def test_delete_ends_every_subscription_and_forgets_the_messages(
    store: Path, persistence: bytes
) -> None:
    async with serving(store) as host:
        owner = await host.connect()
        await owner.ask(b"(Declare t Broadcast %s)" % persistence)
        subscribers = [await host.connect() for _ in range(3)]
        for subscriber in subscribers:
            await subscriber.ask(b"(Subscribe t From_current)")
        await owner.send(publish(b"t", numbered(1, 10)))
        for subscriber in subscribers:
            assert await subscriber.bodies(10) == numbered(1, 10)
        assert await owner.ask(b"(Delete t)") == Deleted(Topic(0, b"t"))
        for subscriber in subscribers:
            assert await subscriber.frame() == Unsubscribed(Topic(0, b"t"))
            assert (await subscriber.refusal(b"(Unsubscribe t)")).startswith(b"Unsubscribe t: ")
        assert await owner.topics() == {}
        assert (await owner.refusal(b"(Delete t)")).startswith(b"Delete t: ")
        # Another topic of that name has another id, and messages of its own.
        assert await owner.ask(b"(Declare t Round_robin Transient)") == Declared(Topic(1, b"t"))
        await subscribers[0].ask(b"(Subscribe t From_current)")
        await owner.say(b"(Publish t new)")
        assert await subscribers[0].message() == Message(1, 1, b"new")


@EVERY
async def test_deleting_while_others_publish_harms_no_publisher(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publishers = [await host.connect() for _ in range(4)]
        owner = await host.connect()
        stopping = False

        async def keep_publishing(number: int) -> None:
            while not stopping:
                await publishers[number].send(publish(b"t", [b"x" * 100] * 20))
                await publishers[number].settle()

        deleted = 0
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(keep_publishing, number)
            while deleted < 20:
                await owner.say(b"(Declare t Broadcast %s)" % persistence)
                await owner.frame()
                await trio.lowlevel.checkpoint()
                if isinstance(await owner.ask(b"(Delete t)"), Deleted):
                    deleted += 1
            stopping = True
        await owner.say(b"(Publish other x)")
        await owner.confirm()
        await eventually(lambda: host.memory_used == 0)


HOLD = """
import sys, lmdb
with lmdb.open(sys.argv[1], max_dbs=8) as catalogue, catalogue.begin(write=True):
    print("held", end="", flush=True)
    sys.stdin.read()
"""


@asynccontextmanager
async def nobody_writes(environment: Path) -> AsyncIterator[None]:
    """Hold LMDB's lock for writers in another process within the block: a write in this process waits."""
    command = [sys.executable, "-c", HOLD, str(environment)]
    holder = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert await holder.stdout.receive_some() == b"held"
        yield
    finally:
        with trio.CancelScope(shield=True):
            await holder.stdin.aclose()
            await holder.wait()


@EVERY
async def test_a_publisher_hears_that_its_topic_was_deleted(
    store: Path, persistence: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The first message after a start reserves ids in the catalogue while the deletion takes the topic from
    there.
    """
    async with serving(store) as host:
        await (await host.connect()).ask(b"(Declare t Broadcast %s)" % persistence)
    async with serving(store) as host:
        owner, publisher = await host.connect(), await host.connect()
        async with nobody_writes(store / "catalogue"):
            await owner.say(b"(Delete t)")
            await trio.testing.wait_all_tasks_blocked(0.05)  # the deletion waits for the lock
            await publisher.say(b"(Publish t x)", b"(Confirm 1)")
            await trio.testing.wait_all_tasks_blocked(0.05)  # and the reservation for the deletion
        assert await owner.frame() == Deleted(Topic(0, b"t"))
        # A message that came later would have made a new topic, and one that came before would be confirmed.
        assert await publisher.error() == b"Publish t: the topic was deleted"
        refused = b"Confirm 1: 1 published before it and after the last Confirm were refused"
        assert await publisher.error() == refused
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


# -- Topics -------------------------------------------------------------------------------------------------


@EVERY
async def test_topics_lists_the_topics(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        assert await client.topics() == {}
        await client.ask(b"(Declare t Broadcast %s)" % persistence)
        empty = (await client.topics())[b"t"]
        assert empty == TopicInfo(0, b"t", Delivery.BROADCAST, empty.persistence, 0, 0, 0, 0, 0)
        subscriber = await host.connect()
        await subscriber.ask(b"(Subscribe t From_current)")
        await client.send(publish(b"t", numbered(1, 10)))
        await subscriber.messages(10)
        info = (await client.topics())[b"t"]
        assert (info.last, info.subscribers) == (10, 1)
        if persistence != b"Transient":
            assert (info.messages, info.first) == (10, 1)
            assert info.bytes > 10 * 17
        subscriber.close()
        await eventually(lambda: host.connections == 1)
        assert (await client.topics())[b"t"].subscribers == 0


async def test_topics_counts_earlier_messages_of_the_same_connection(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        for round in range(1, 20):
            await client.send(publish(b"t", numbered(1, 100)) + b"Topics\n")
            answer = await client.frame()
            assert isinstance(answer, TopicList)
            (info,) = answer.topics
            assert info.messages == info.last == 100 * round


# -- Confirm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, -1, (1 << 63) - 1, -(1 << 63)])
async def test_confirm_answers_with_its_number(store: Path, n: int) -> None:
    async with serving(store) as host:
        client = await host.connect()
        assert await client.ask(b"(Confirm %d)" % n) == Confirmed(n)


@EVERY
async def test_confirmed_messages_are_counted(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        client, other = await host.connect(), await host.connect()
        await client.ask(b"(Declare t Round_robin %s)" % persistence)
        for round in range(1, 10):
            await client.send(publish(b"t", numbered(1, 50)))
            await client.confirm(round)
            assert (await other.topics())[b"t"].messages == 50 * round


async def test_a_refused_publish_makes_the_next_confirm_an_error(store: Path) -> None:
    async with serving(store, max_message_bytes=10) as host:
        client, other = await host.connect(), await host.connect()
        await client.say(
            b"(Publish t fits)",
            b"(Publish t does-not-fit)",
            b"(Publish t fits)",
            b"(Confirm 41)",
            b"(Confirm 42)",
        )
        assert (await client.error()).startswith(b"Publish t: ")
        text = await client.error()
        assert text.startswith(b"Confirm 41: 1 "), text
        # It was told; the next one stands for what comes after.
        assert await client.frame() == Confirmed(42)
        await client.say(b'(Publish "" x)', b"(Publish t (a b))", b"(Confirm 43)", b"(Confirm 44)")
        assert (await client.error()).startswith(b'Publish "": ')
        assert (await client.error()).startswith(b"Publish t: ")
        assert (await client.error()).startswith(b"Confirm 43: 2 ")
        assert await client.frame() == Confirmed(44)
        # Those that fitted are there, and nobody else's Confirm is concerned.
        assert (await other.topics())[b"t"].messages == 2
        await other.confirm(1)


async def test_other_refused_commands_do_not_make_a_confirm_fail(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Unsubscribe t)", b"(Delete t)", b"(Nonsense)", b"(Publish t x)", b"(Confirm 9)")
        answers = [await client.frame() for _ in range(4)]
        assert all(isinstance(answer, Error) for answer in answers[:3])
        assert answers[3] == Confirmed(9)


async def test_configured_topics_are_made_in_few_commits(store: Path) -> None:
    kinds: list[tuple[DeliveryName, PersistenceName]] = [
        ("broadcast", "weak"),
        ("round-robin", "strong"),
        ("broadcast", "transient"),
    ]
    topics = [
        TopicConfig(name=f"t{number}", delivery=delivery, persistence=persistence)
        for number in range(200)
        for delivery, persistence in [kinds[number % 3]]
    ]
    async with serving(store, topics=topics) as host:
        for topic in topics:
            driver = host.server.catalogue.lookup(topic.name.encode())
            assert driver is not None
            assert (driver.delivery, driver.persistence) == topic.types()
    with lmdb.open(str(store / "catalogue"), max_dbs=16, readonly=True, lock=False) as environment:
        assert environment.info()["last_txnid"] < 50
