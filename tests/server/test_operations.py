"""Every operation of every terminal, with the right, the quotas and the sizes that it takes.

The tables are exhaustive: a command without an example, or without a line in `needs`, fails here.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import assert_never, get_args

import pytest

from omq.access.hashes import SecretHash
from omq.access.leases import LeasedExchange, LeasedSink, LeasedTarget
from omq.access.rights import Right
from omq.config import ClientConfig, TopicConfig
from omq.drivers.feed import LeasedFeed
from omq.protocol.omq import types
from omq.protocol.omq.commands import parse

from . import dmp_conversation as dmp
from .conversation import VERSION_ONE, Conversation, Host, InProcess, eventually, publish, serving
from .websocket_conversation import open_websocket

SECRET = SecretHash(1, 1, 1, bytes(16), hashlib.scrypt(b"sesame", salt=bytes(16), n=2, r=1, p=1, dklen=32))
"""Not as safe as others, and quickly checked."""

TOPICS = [TopicConfig(name="kept", delivery="broadcast"), TopicConfig(name="jobs", delivery="round-robin")]
"""Topics that are there, so that no operation but Declare needs the right to declare."""

EXAMPLES: dict[type[types.Command], bytes] = {
    types.Connect: b"(Connect 1 again)",
    types.Subscribe: b"(Subscribe %s From_current)",
    types.Unsubscribe: b"(Unsubscribe %s)",
    types.Ack: b"(Ack (2013-08-07 10:01:02Z))",
    types.Publish: b"(Publish %s x)",
    types.Declare: b"(Declare %s Broadcast (Persistent Weak))",
    types.Confirm: b"(Confirm 1)",
    types.Delete: b"(Delete %s)",
    types.Topics: b"Topics",
    types.Request: b"(Request %s 1)",
    types.Received: b"(Received %s 1)",
    types.Put: b"(Put %s)",
    types.Get: b"(Get %s From_current)",
    types.Fetch: b"(Fetch %s 1 1)",
    types.Blocks: b"(Blocks %s 1 1)",
    types.Manage: b"(Manage (Purge (queue %s)))",
    types.Watch: b"(Watch 3600000)",
    types.Connections: b"(Connections 1)",
    types.Subscribers: b"(Subscribers %s)",
    types.Disconnect: b"(Disconnect 1000)",
    types.Purge: b"(Purge %s)",
    types.Retain: b"(Retain %s Configured)",
}


class Counted(Enum):
    """The subject of a quota, in the words of its refusal."""

    TOPICS = b"topics"
    SUBSCRIPTIONS = b"subscriptions"
    LEASES = b"unused leases"


@dataclass(frozen=True)
class OperationRequirements:
    """The rights and quotas that an operation takes."""

    right: Right | None = None
    answer: type[types.Frame] | None = None
    """The first frame that answers it where it is allowed."""
    counted: frozenset[Counted] = frozenset()
    """Its quotas; that for topics counts only where it makes one."""


def needs(command: types.Command) -> OperationRequirements:
    """Return the rights and quotas that a command takes."""
    match command:
        case types.Ack():
            return OperationRequirements()
        case types.Confirm():
            return OperationRequirements(answer=types.Confirmed)
        case types.Topics():
            return OperationRequirements(answer=types.TopicList)
        case types.Connect() | types.Unsubscribe() | types.Received():
            # They concern what the connection has: its client, and a subscription, which took the right.
            return OperationRequirements(answer=types.Error)
        case types.Publish():
            return OperationRequirements(Right.PUBLISH, None, frozenset({Counted.TOPICS}))
        case types.Declare():
            return OperationRequirements(Right.DECLARE, types.Declared, frozenset({Counted.TOPICS}))
        case types.Delete():
            return OperationRequirements(Right.DELETE, types.Deleted)
        case types.Subscribe():
            counted = frozenset({Counted.TOPICS, Counted.SUBSCRIPTIONS})
            return OperationRequirements(Right.SUBSCRIBE, types.Subscribed, counted)
        case types.Request():
            return OperationRequirements(Right.SUBSCRIBE, None, frozenset({Counted.SUBSCRIPTIONS}))
        case types.Put():
            return OperationRequirements(
                Right.PUBLISH, types.Leased, frozenset({Counted.TOPICS, Counted.LEASES})
            )
        case types.Get():
            return OperationRequirements(Right.SUBSCRIBE, types.Leased, frozenset(Counted))
        case types.Fetch():
            return OperationRequirements(Right.SUBSCRIBE, types.StoredBlock)
        case types.Blocks():
            return OperationRequirements(Right.SUBSCRIBE, types.BlockList)
        case types.Manage():
            return OperationRequirements(Right.SUBSCRIBE, types.Managed)
        case types.Watch():
            return OperationRequirements(Right.WATCH, types.Watched)
        case types.Connections():
            return OperationRequirements(Right.WATCH, types.ConnectionList)
        case types.Subscribers():
            return OperationRequirements(Right.WATCH, types.SubscriberList)
        case types.Disconnect():
            return OperationRequirements(Right.ADMINISTER, types.Done)
        case types.Purge() | types.Retain():
            return OperationRequirements(Right.ADMINISTER, types.Done)
        case _:
            assert_never(command)


def example(kind: type[types.Command], topic: bytes | None = None) -> tuple[bytes, types.Command]:
    """Return a command about a topic, by default one of TOPICS, as a line and as it is parsed."""
    if topic is None:
        topic = b"jobs" if kind in (types.Request, types.Manage) else b"kept"
    line = EXAMPLES[kind].replace(b"%s", topic)
    command = parse(line)
    assert isinstance(command, kind)
    return line, command


def test_every_command_has_an_example() -> None:
    assert set(EXAMPLES) == set(get_args(types.Command))


# -- rights -------------------------------------------------------------------------------------------------


def client(name: str, *rights: Right) -> ClientConfig:
    """Return a client with these rights to all topics, and no others."""
    patterns = {right.name.lower(): ["*"] for right in rights}
    return ClientConfig(name=name, secret=str(SECRET), **patterns)  # type: ignore[arg-type]  # the names decide the types


CARRIERS: dict[str, Callable[[Host], Awaitable[Conversation]]] = {
    "TCP": Host.open,
    "WebSocket": open_websocket,
}
"""The transports of the omq protocol: each opens a connection without a client."""


async def enter(
    host: Host, name: str, carrier: Callable[[Host], Awaitable[Conversation]] = Host.open
) -> Conversation:
    """Return a connection of a configured client."""
    opened = await carrier(host)
    await opened.send(VERSION_ONE + b"(Connect 1 %s:sesame)\n" % name.encode())
    assert await opened.octets(8) == VERSION_ONE
    await opened.confirm(0)
    return opened


async def answers(connection: Conversation, line: bytes) -> list[types.Frame]:
    """Return all that answers a command, and a Publish that fails later: up to what answers a Confirm behind
    it.
    """
    await connection.say(line, b"(Confirm 999)")
    found: list[types.Frame] = []
    while True:
        frame = await connection.frame()
        match frame:
            case types.Confirmed(999):
                return found
            case types.Error(text) if text.startswith(b"Confirm 999: "):
                return found
            case types.Message():
                pass
            case _:
                found.append(frame)


def forbidden(command: types.Command, right: Right) -> list[types.Frame]:
    """Return the answer to a command that its client has no right to give."""
    line, _ = example(type(command))
    subject = b" ".join(line.strip(b"()").split()[:2])
    what = b"it"
    match command:
        case types.Manage():
            subject = b"Manage jobs"
        case types.Watch():
            what = b"anything"
        case types.Connections() | types.Subscribers() | types.Disconnect():
            what = b"the server"
    return [types.Error(b"%s: this client may not %s %s" % (subject, right.value.encode(), what))]


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
@pytest.mark.parametrize("kind", EXAMPLES)
async def test_a_command_takes_exactly_its_right(
    store: Path, kind: type[types.Command], carrier: Callable[[Host], Awaitable[Conversation]]
) -> None:
    line, command = example(kind)
    what = needs(command)
    others = [right for right in Right if right is not what.right]
    clients = [client("with", *([what.right] if what.right else [])), client("without", *others)]
    async with serving(store, clients=clients, topics=TOPICS) as host:
        if what.right is not None:
            without = await enter(host, "without", carrier)
            assert await answers(without, line) == forbidden(command, what.right)
        got = await answers(await enter(host, "with", carrier), line)
        if kind is types.Fetch and not got:  # its answer may come behind that of a Confirm
            got = [await (await enter(host, "with", carrier)).ask(line)]
        if what.answer is None:
            assert got == []
        else:
            assert isinstance(got[0], what.answer)
            assert not any(b"may not" in frame.text for frame in got if isinstance(frame, types.Error))


async def test_without_rights_no_topic_is_seen(store: Path) -> None:
    async with serving(store, clients=[client("nobody")], topics=TOPICS) as host:
        assert await (await enter(host, "nobody")).topics() == {}


MAKERS = [kind for kind in EXAMPLES if Counted.TOPICS in needs(example(kind)[1]).counted]


@pytest.mark.parametrize("kind", MAKERS)
async def test_using_a_new_name_takes_the_right_to_declare(store: Path, kind: type[types.Command]) -> None:
    line, _ = example(kind, b"new")
    clients = [
        client("all", *Right),
        client("but", *(right for right in Right if right is not Right.DECLARE)),
    ]
    async with serving(store, clients=clients) as host:
        (refusal,) = await answers(await enter(host, "but"), line)
        assert isinstance(refusal, types.Error)
        assert refusal.text.endswith((b"may not declare it", b"and this client may not declare it"))
        everything = await enter(host, "all")
        assert b"new" not in await everything.topics()
        await answers(everything, line)
        assert b"new" in await everything.topics()


def test_every_kind_of_lease_has_a_test() -> None:
    """Those of exchanges are granted by AMQP 0-9-1: see `tests/amqp_0_9/test_rights.py`."""
    assert set(get_args(LeasedTarget)) == {LeasedSink, LeasedFeed, LeasedExchange}


async def served(host: Host, principal: Conversation, leased: type[LeasedSink | LeasedFeed]) -> None:
    """Use a lease on a connection of its own: a message goes in or comes out."""
    if leased is LeasedSink:
        sink = await dmp.sink(host, principal, b"kept")
        await sink.send(dmp.envelopes([b"x"]))
        assert await dmp.stored(sink) == 1
    elif leased is LeasedFeed:
        consumer = await dmp.feed(host, principal, b"(Get kept From_current)")
        publisher = await enter(host, "publisher")
        await publisher.send(publish(b"kept", [b"x"]))
        assert await consumer.bodies(1) == [b"x"]
    else:
        raise AssertionError(f"say here how a {leased} is used")


@pytest.mark.parametrize(("leased", "right"), [(LeasedSink, Right.PUBLISH), (LeasedFeed, Right.SUBSCRIBE)])
async def test_a_dmp_connection_does_what_its_lease_is_for(
    store: Path, leased: type[LeasedSink | LeasedFeed], right: Right
) -> None:
    clients = [client("with", right), client("publisher", Right.PUBLISH)]
    async with serving(store, clients=clients, topics=TOPICS) as host:
        await served(host, await enter(host, "with"), leased)


@pytest.mark.parametrize(
    ("shown", "response"),
    [(b"Put kept", b"503 INVALID"), (b"Get kept", b"503 INVALID"), (b"x" * 32, b"402 BAD-LEASE")],
)
async def test_a_dmp_connection_does_nothing_without_a_lease(
    store: Path, shown: bytes, response: bytes
) -> None:
    async with serving(store, topics=TOPICS) as host:
        connection = await dmp.show(host, shown)
        await connection.send(dmp.envelopes([b"x"]))
        assert (await dmp.said(connection))[0].startswith(response)
        assert (await host.topics())[b"kept"].messages == 0


# -- quotas -------------------------------------------------------------------------------------------------


async def spend(connection: Conversation, counted: Counted) -> bytes:
    """Take the greatest allowed number of something; return the end of the refusal of one more."""
    number = 0
    while True:
        number += 1
        match counted:
            case Counted.TOPICS:
                line = b"(Declare spent%d Broadcast Transient)" % number
            case Counted.SUBSCRIPTIONS:
                line = b"(Request jobs%d 1)" % number
            case Counted.LEASES:
                line = b"(Put spare)"
            case _:
                assert_never(counted)
        for frame in await answers(connection, line):
            if isinstance(frame, types.Error):
                assert counted.value in frame.text
                return frame.text.partition(b": ")[2]


SPARE = [
    *TOPICS,
    TopicConfig(name="spare"),
    *(TopicConfig(name=f"jobs{number}", delivery="round-robin") for number in range(1, 9)),
]
QUOTAS = {
    Counted.TOPICS: "max_topics",
    Counted.SUBSCRIPTIONS: "max_subscriptions",
    Counted.LEASES: "max_leases",
}


async def alone(host: InProcess, *but: Conversation) -> None:
    """Close all other connections, and wait until the server has seen it."""
    host.hang_up(*but)
    await eventually(lambda: host.connections == len(but))


@pytest.mark.parametrize("counted", Counted)
@pytest.mark.parametrize("share", [0.5, 1])
async def test_a_command_takes_exactly_its_quotas(store: Path, counted: Counted, share: float) -> None:
    """With a share of 1 the quota of the server is spent together with that of the client, and is named."""
    # Of topics, the server also counts those of its configuration.
    most = 2 * len(SPARE) + 8 if counted is Counted.TOPICS else 4
    async with serving(store, topics=SPARE, client_share=share, **{QUOTAS[counted]: most}) as host:
        spender = await host.connect()
        refusal = await spend(spender, counted)
        assert refusal.startswith(b"the server has its" if share == 1 else b"this address has its")
        for kind in EXAMPLES:
            if kind is types.Connect or kind is types.Delete:
                continue  # Connect is tested below; Delete gives a topic back
            line, command = example(kind, b"new" if counted is Counted.TOPICS else None)
            texts = [
                frame.text
                for frame in await answers(await host.connect(), line)
                if isinstance(frame, types.Error)
            ]
            was_refused = any(text.endswith(refusal) for text in texts)
            assert was_refused == (counted in needs(command).counted), (kind, texts)
            await alone(host, spender)


@pytest.mark.parametrize("leased", [LeasedSink, LeasedFeed])
@pytest.mark.parametrize("whose", ["client", "server"])
async def test_dmp_connections_are_counted(
    store: Path, leased: type[LeasedSink | LeasedFeed], whose: str
) -> None:
    command = {LeasedSink: b"(Put kept)", LeasedFeed: b"(Get kept From_current)"}[leased]
    settings = {"max_dmp_connections": 1} if whose == "server" else {}
    most = 2 if whose == "client" else None  # the principal, and one sink or feed
    one = ClientConfig(name="one", secret=str(SECRET), publish=["*"], subscribe=["*"], max_connections=most)
    async with serving(store, clients=[one], topics=TOPICS, **settings) as host:
        principal = await enter(host, "one")
        first = await dmp.show(host, await dmp.lease(principal, command))
        assert (await dmp.response(first)).startswith(b"200 OK")
        second = await dmp.show(host, await dmp.lease(principal, command))
        assert await dmp.said(second) == [
            b"530 NOT-ALLOWED The client has as many connections as it may have"
            if whose == "client"
            else b"530 NOT-ALLOWED The server has as many DMP connections as it may have"
        ]
        first.close()
        await eventually(lambda: host.connections == 1)
        await served_again(host, principal, command)


async def served_again(host: Host, principal: Conversation, command: bytes) -> None:
    """Check that there is room for a sink or feed."""
    connection = await dmp.show(host, await dmp.lease(principal, command))
    assert (await dmp.response(connection)).startswith(b"200 OK")


async def test_connections_are_counted(store: Path) -> None:
    one = ClientConfig(name="one", secret=str(SECRET), max_connections=1)
    async with serving(store, clients=[one]) as host:
        first = await enter(host, "one")
        second = await host.open()
        await second.send(VERSION_ONE + b"(Connect 1 one:sesame)\n")
        assert await second.octets(8) == VERSION_ONE
        (refusal,) = await second.rest()
        assert isinstance(refusal, types.Error)
        assert refusal.text.startswith(b"Connect: this client has its 1 connection,")
        first.close()
        await eventually(lambda: host.connections == 0)
        await enter(host, "one")


# -- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("octets", [1000, 1001])
async def test_a_published_message_has_a_size(store: Path, octets: int) -> None:
    async with serving(store, topics=TOPICS, max_message_bytes=1000) as host:
        client = await host.connect()
        refused = types.Error(b"Publish kept: a message has at most 1000 octets, this one 1001")
        got = await answers(client, b"(Publish kept %s)" % (b"x" * octets))
        assert got == ([] if octets == 1000 else [refused])
        assert (await client.topics())[b"kept"].messages == (octets == 1000)


@pytest.mark.parametrize("octets", [1000, 1001])
async def test_a_message_of_a_sink_has_a_size(store: Path, octets: int) -> None:
    async with serving(store, topics=TOPICS, max_message_bytes=1000) as host:
        client = await host.connect()
        sink = await dmp.sink(host, client, b"kept")
        await sink.send(dmp.envelopes([b"x" * octets]))
        await sink.done()
        expected = b"200 OK 1 messages stored" if octets == 1000 else b"502 SYNTAX-ERROR 0 messages stored"
        assert (await dmp.said(sink))[0].startswith(expected)
        assert (await host.topics())[b"kept"].messages == (octets == 1000)


@pytest.mark.parametrize("octets", [1000, 1001])
async def test_messages_that_are_pushed_to_subscribers_take_the_right_and_the_size(
    store: Path, octets: int
) -> None:
    """Those of a transient topic whose subscribers keep up are pushed to them as they are read."""
    live = TopicConfig(name="live", persistence="transient")
    clients = [client("with", Right.PUBLISH), client("without"), client("reader", Right.SUBSCRIBE)]
    async with serving(store, clients=clients, topics=[live], max_message_bytes=1000) as host:
        reader, allowed, forbidden = [await enter(host, name) for name in ("reader", "with", "without")]
        assert isinstance(await reader.ask(b"(Subscribe live From_current)"), types.Subscribed)
        assert await answers(allowed, b"(Publish live first)") == []
        assert await reader.bodies(1) == [b"first"]
        line = b"(Publish live %s)" % (b"x" * octets)
        may_not = types.Error(b"Publish live: this client may not publish to it")
        too_long = types.Error(b"Publish live: a message has at most 1000 octets, this one 1001")
        assert await answers(forbidden, line) == [may_not]
        assert await answers(allowed, line) == ([] if octets == 1000 else [too_long])
        assert await answers(allowed, b"(Publish live last)") == []
        expected = [b"x" * 1000, b"last"] if octets == 1000 else [b"last"]
        assert await reader.bodies(len(expected)) == expected
