"""One client cannot take everything that clients share: connections, topics, leases, subscriptions, exchanges
and bindings.
"""

import gc
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from omq.config import ClientConfig
from omq.protocol.omq.sentences import RefusalKind, refusal_in
from omq.protocol.omq.types import Declared, Deleted, Leased, Managed, Subscribed, Unsubscribed

from .conversation import CONNECT, VERSION_ONE, Conversation, Host, eventually, serving
from .dmp_conversation import feed, lease, response, show

SECRET = (
    "$scrypt$ln=14,r=8,p=1$cjlfUX8QXZDgvQwGrQa2zA$K2pjpd/gtUics5+I/taNPkPptCUVkUWJZbleuNrapNg"  # of "sesame"
)


def client(name: str, **keys: int) -> ClientConfig:
    """Return a client with every right."""
    return ClientConfig(
        name=name, secret=SECRET, declare=["*"], publish=["*"], subscribe=["*"], delete=["*"], **keys
    )


async def enter(host: Host, name: str) -> Conversation:
    """Return a connection of a configured client."""
    opened = await host.open()
    await opened.send(VERSION_ONE + b"(Connect 1 %s:sesame)\n" % name.encode())
    assert await opened.octets(8) == VERSION_ONE
    await opened.confirm()
    return opened


async def connect_from(host: Host, address: str) -> Conversation:
    """Return a connection from another address of this machine. The caller closes it."""
    opened = Conversation(await trio.open_tcp_stream("127.0.0.1", host.port, local_address=address))
    await opened.send(VERSION_ONE + CONNECT)
    assert await opened.octets(8) == VERSION_ONE
    return opened


def spent(command: bytes, whose: bytes, most: int, what: bytes) -> bytes:
    """Return the Error of a command that finds a quota spent."""
    why = b"it is configured for" if whose == b"the server" else b"it may have"
    things = what.removesuffix(b"s") if most == 1 else what
    return b"%s: %s has its %d %s, the most %s" % (command, whose, most, things, why)


# -- what one command takes, of each kind -------------------------------------------------------------------

Command = Callable[[int], bytes]

DECLARE: Command = lambda number: b"(Declare t%d Broadcast Transient)" % number  # noqa: E731 - a lambda as in the cases below
KINDS = [
    pytest.param("max_topics", b"topics", DECLARE, Declared, id="topics"),
    pytest.param("max_leases", b"unused leases", lambda number: b"(Put t)", Leased, id="leases"),
    pytest.param(
        "max_subscriptions",
        b"subscriptions",
        lambda number: b"(Subscribe t%d From_current)" % number,
        Subscribed,
        id="subscriptions",
    ),
    pytest.param("max_exchanges", b"exchanges", lambda number: exchange(number), Managed, id="exchanges"),
    pytest.param("max_bindings", b"bindings", lambda number: binding(number), Managed, id="bindings"),
]


def exchange(number: int, kind: bytes = b"fanout") -> bytes:
    flags = b"(durable false) (auto_delete false) (internal false)"
    return b"(Manage (Declare_exchange (name e%d) (type %s) %s (alternate ())))" % (number, kind, flags)


def binding(number: int, source: bytes = b"amq.fanout", request: bytes = b"Bind") -> bytes:
    ends = b"(source %s) (destination (Exchange amq.direct))" % source
    return b"(Manage (%s %s (key k%d) (arguments ())))" % (request, ends, number)


def subject(command: bytes) -> bytes:
    """Return the beginning of the Error that answers a command."""
    managed = re.search(rb"\((?:name|source) ([^)]+)\)", command)
    if managed is not None:
        return b"Manage " + managed[1]
    return b" ".join(command.strip(b"()").split()[:2])


@pytest.mark.parametrize(("key", "what", "command", "answer"), KINDS)
async def test_a_client_has_its_share_and_leaves_the_rest_to_others(
    store: Path, key: str, what: bytes, command: Command, answer: type
) -> None:
    settings = {key: 8, "client_share": 0.5}
    async with serving(store, clients=[client("a"), client("b")], **settings) as host:
        ones = [await enter(host, "a"), await enter(host, "a")]
        for number in range(4):
            assert isinstance(await ones[number % 2].ask(command(number)), answer)
        for one in ones:
            refusal = spent(subject(command(4)), b"this client", 4, what)
            assert await one.refusal(command(4)) == refusal
        other = await enter(host, "b")
        for number in range(10, 14):
            assert isinstance(await other.ask(command(number)), answer)
        assert await other.refusal(command(14)) == spent(subject(command(14)), b"the server", 8, what)


@pytest.mark.parametrize(("key", "what", "command", "answer"), KINDS)
async def test_keys_of_a_client_go_before_its_share(
    store: Path, key: str, what: bytes, command: Command, answer: type
) -> None:
    clients = [client("few", **{key: 1}), client("many", **{key: 7})]
    settings = {key: 8, "client_share": 0.25}
    async with serving(store, clients=clients, **settings) as host:
        few, many = await enter(host, "few"), await enter(host, "many")
        assert isinstance(await few.ask(command(0)), answer)
        assert await few.refusal(command(1)) == spent(subject(command(1)), b"this client", 1, what)
        for number in range(10, 17):
            assert isinstance(await many.ask(command(number)), answer)
        assert await many.refusal(command(17)) == spent(subject(command(17)), b"the server", 8, what)


@pytest.mark.parametrize(("key", "what", "command", "answer"), KINDS)
async def test_an_address_is_a_client_where_none_are_configured(
    store: Path, key: str, what: bytes, command: Command, answer: type
) -> None:
    async with serving(store, **{key: 8}) as host:
        ones = [await host.connect(), await host.connect()]
        for number in range(4):
            assert isinstance(await ones[number % 2].ask(command(number)), answer)
        refusal = spent(subject(command(4)), b"this address", 4, what)
        assert await ones[0].refusal(command(4)) == refusal
        elsewhere = await connect_from(host, "127.0.0.2")
        assert isinstance(await elsewhere.ask(command(10)), answer)
        assert await ones[0].refusal(command(4)) == refusal
        elsewhere.close()


# -- connections --------------------------------------------------------------------------------------------


async def refused_connection(host: Host, name: str) -> bytes:
    """Return the Error that answers the Connect of a client."""
    connection = await host.open()
    await connection.send(VERSION_ONE + b"(Connect 1 %s:sesame)\n" % name.encode())
    assert await connection.octets(8) == VERSION_ONE
    return await connection.error()


def crowded(most: int, whose: bytes = b"this client") -> bytes:
    return spent(b"Connect", whose, most, b"connections")


async def test_a_client_has_its_share_of_the_connections(store: Path) -> None:
    clients = [client("a"), client("b"), client("many", max_connections=3)]
    async with serving(store, clients=clients, max_connections=8, client_share=0.25) as host:
        for name in ("a", "b"):
            opened = [await enter(host, name) for _ in range(2)]
            assert await refused_connection(host, name) == crowded(2)
            opened.pop().close()
            opened.append(await enter(host, name))
        for _ in range(3):
            await enter(host, "many")
        assert await refused_connection(host, "many") == crowded(3)


async def test_an_address_has_its_share_of_the_connections(store: Path) -> None:
    async with serving(store, max_connections=4) as host:
        for _ in range(2):
            await host.connect()
        refused = await refused_connection(host, "a")
        assert refused == crowded(2, b"this address")
        assert refusal_in(refused) is RefusalKind.PASSING
        elsewhere = [await connect_from(host, "127.0.0.2") for _ in range(2)]
        for each in elsewhere:
            await each.confirm()
            each.close()


# -- what is given back -------------------------------------------------------------------------------------


async def test_a_topic_counts_until_it_is_deleted(store: Path) -> None:
    async with serving(store, max_topics=4) as host:
        gone = await host.connect()
        assert isinstance(await gone.ask(DECLARE(0)), Declared)
        await gone.say(b"(Publish t1 x)")
        await gone.confirm()
        gone.close()
        await eventually(lambda: host.connections == 0)
        gc.collect()
        # The client has no connection any more, and what it made counts nevertheless.
        again = await host.connect()
        refusal = spent(b"Publish t2", b"this address", 2, b"topics")
        assert await again.refusal(b"(Publish t2 x)") == refusal
        assert isinstance(await again.ask(DECLARE(0)), Declared)  # it is there already
        other = await connect_from(host, "127.0.0.2")
        assert isinstance(await other.ask(b"(Delete t0)"), Deleted)
        assert isinstance(await again.ask(DECLARE(2)), Declared)
        assert await again.refusal(DECLARE(3)) == spent(b"Declare t3", b"this address", 2, b"topics")
        assert isinstance(await other.ask(DECLARE(3)), Declared)
        other.close()


async def test_topics_of_the_store_and_of_the_configuration_count_for_no_client(store: Path) -> None:
    async with serving(store, max_topics=4) as host:
        one = await host.connect()
        assert isinstance(await one.ask(b"(Declare kept Broadcast (Persistent Weak))"), Declared)
    async with serving(store, max_topics=4) as host:
        one = await host.connect()
        for number in range(2):
            assert isinstance(await one.ask(DECLARE(number)), Declared)
        assert await one.refusal(DECLARE(2)) == spent(b"Declare t2", b"this address", 2, b"topics")
        assert isinstance(await one.ask(b"(Delete kept)"), Deleted)
        assert await one.refusal(DECLARE(2)) == spent(b"Declare t2", b"this address", 2, b"topics")


async def test_leases_count_until_they_are_used_or_end(store: Path, clock: MockClock) -> None:
    async with serving(store, max_leases=4) as host:
        one, two = await host.connect(), await host.connect()
        first, _ = await lease(one, b"(Put t)"), await lease(two, b"(Get t From_current)")
        refusal = spent(b"Put t", b"this address", 2, b"unused leases")
        assert await two.refusal(b"(Put t)") == refusal
        sink = await show(host, first)
        assert (await response(sink)).startswith(b"200 ")
        await lease(one, b"(Put t)")
        assert await one.refusal(b"(Put t)") == refusal
        two.close()
        await eventually(lambda: host.connections == 2)
        await lease(one, b"(Put t)")
        assert await one.refusal(b"(Put t)") == refusal
        clock.jump(61)
        await eventually(lambda: not host.server.statistics().leases)
        await lease(one, b"(Put t)")
        await lease(one, b"(Put t)")
        assert await one.refusal(b"(Put t)") == refusal


async def test_a_lease_that_is_refused_for_its_quota_makes_no_topic(store: Path) -> None:
    async with serving(store, max_leases=1) as host:
        one = await host.connect()
        await lease(one, b"(Put t)")
        assert await one.refusal(b"(Put u)") == spent(b"Put u", b"the server", 1, b"unused leases")
        assert set(await one.topics()) == {b"t"}


async def test_connections_that_want_the_last_leases_at_the_same_time(store: Path) -> None:
    async with serving(store, max_leases=6) as host:
        ones = [await host.connect() for _ in range(20)]
        for number, one in enumerate(ones):
            await one.say(b"(Put t%d)" % number)  # each makes a topic, for which it waits
        answers = [await one.frame() for one in ones]
        assert sum(isinstance(answer, Leased) for answer in answers) == 3
        for one in ones:
            one.close()
        await eventually(lambda: host.connections == 0)
        one = await host.connect()
        for _ in range(3):
            await lease(one, b"(Put t0)")
        assert await one.refusal(b"(Put t0)") == spent(b"Put t0", b"this address", 3, b"unused leases")


async def test_exchanges_and_bindings_count_until_they_end(store: Path) -> None:
    async with serving(store, max_exchanges=4, max_bindings=8) as host:
        one = await host.connect()
        for number in (0, 0, 1):  # one that exists already does not count again
            assert isinstance(await one.ask(exchange(number)), Managed)
        full = spent(b"Manage e2", b"this address", 2, b"exchanges")
        assert await one.refusal(exchange(2)) == full
        for number in (0, 1, 2, 2, 3):
            assert isinstance(await one.ask(binding(number, b"e0")), Managed)
        no_binding = spent(b"Manage e1", b"this address", 4, b"bindings")
        assert await one.refusal(binding(4, b"e1")) == no_binding
        assert isinstance(await one.ask(binding(0, b"e0", b"Unbind")), Managed)
        assert isinstance(await one.ask(binding(4, b"e1")), Managed)
        assert await one.refusal(binding(5, b"e1")) == no_binding
        assert isinstance(await one.ask(b"(Manage (Delete_exchange (name e0)))"), Managed)
        for number in (5, 6, 7):  # the bindings of the exchange have ended with it
            assert isinstance(await one.ask(binding(number, b"e1")), Managed)
        assert await one.refusal(binding(8, b"e1")) == no_binding
        # One that is refused for another reason does not count.
        for _ in range(3):
            assert (await one.refusal(exchange(2, b"delayed"))).endswith(b"unknown exchange type 'delayed'")
        assert isinstance(await one.ask(exchange(2)), Managed)
        assert await one.refusal(exchange(3)) == spent(b"Manage e3", b"this address", 2, b"exchanges")
        one.close()
        await eventually(lambda: host.connections == 0)
        # The client has no connection any more, and what it made counts nevertheless.
        again = await host.connect()
        assert await again.refusal(exchange(3)) == spent(b"Manage e3", b"this address", 2, b"exchanges")
        assert await again.refusal(binding(8, b"e1")) == no_binding
        elsewhere = await connect_from(host, "127.0.0.2")
        assert isinstance(await elsewhere.ask(exchange(3)), Managed)
        assert isinstance(await elsewhere.ask(binding(8, b"e1")), Managed)
        elsewhere.close()


async def test_subscriptions_and_feeds_count_until_they_end(store: Path) -> None:
    async with serving(store, max_subscriptions=6) as host:
        one, two = await host.connect(), await host.connect()
        assert isinstance(await one.ask(b"(Subscribe a From_current)"), Subscribed)
        assert isinstance(await two.ask(b"(Subscribe a From_current)"), Subscribed)
        open_feed = await feed(host, one, b"(Get b From_current)")
        refusals = [
            spent(b"Subscribe c", b"this address", 3, b"subscriptions"),
            spent(b"Get c", b"this address", 3, b"subscriptions"),
        ]
        assert await one.refusal(b"(Subscribe c From_current)") == refusals[0]
        assert await two.refusal(b"(Get c From_current)") == refusals[1]
        assert isinstance(await one.ask(b"(Unsubscribe a)"), Unsubscribed)
        assert isinstance(await one.ask(b"(Subscribe c From_current)"), Subscribed)
        two.close()
        await eventually(lambda: host.connections == 2)
        assert isinstance(await one.ask(b"(Subscribe a From_current)"), Subscribed)
        assert await one.refusal(b"(Subscribe d From_current)") == refusals[0].replace(b" c", b" d", 1)
        open_feed.connection.close()
        await eventually(lambda: host.connections == 1)
        assert isinstance(await one.ask(b"(Subscribe d From_current)"), Subscribed)
        # One that is refused for another reason does not count.
        assert isinstance(await one.ask(b"(Unsubscribe d)"), Unsubscribed)
        for _ in range(3):
            assert (await one.refusal(b"(Subscribe d (From_message 9))")).endswith(b"the next one is 1")
        assert isinstance(await one.ask(b"(Subscribe d From_current)"), Subscribed)


async def test_credit_counts_from_before_its_subscription(store: Path) -> None:
    """Credit takes memory before there is a subscription, which then takes its place."""
    refused = b"this address", 2, b"subscriptions"
    async with serving(store, max_subscriptions=4) as host:
        one, two = await host.connect(), await host.connect()
        for name in (b"a", b"b", b"c"):
            await one.ask(b"(Declare %s Round_robin Transient)" % name)
        await one.say(b"(Request a 1)", b"(Request b 1)", b"(Request a 2)")
        assert await one.refusal(b"(Request c 1)") == spent(b"Request c", *refused)
        assert await two.refusal(b"(Subscribe c From_current)") == spent(b"Subscribe c", *refused)
        # A Subscribe that is refused leaves the credit where it is.
        assert (await one.refusal(b"(Subscribe a From_beginning)")).startswith(b"Subscribe a: ")
        assert isinstance(await one.ask(b"(Subscribe a From_current)"), Subscribed)
        await two.say(b"(Publish a x)", b"(Publish a y)", b"(Publish a z)")
        await two.confirm(3)
        assert await one.bodies(2) == [b"x", b"y"]
        await one.say(b"(Request a 3)")
        assert await one.bodies(1) == [b"z"]
        assert await two.refusal(b"(Request c 1)") == spent(b"Request c", *refused)
        assert isinstance(await one.ask(b"(Unsubscribe a)"), Unsubscribed)
        await two.say(b"(Request c 1)")
        await two.settle()
        assert await two.refusal(b"(Request a 1)") == spent(b"Request a", *refused)
        one.close()
        await eventually(lambda: host.connections == 1)
        await two.say(b"(Request a 1)")
        assert await two.refusal(b"(Request b 1)") == spent(b"Request b", *refused)


# -- what it costs ------------------------------------------------------------------------------------------

DOCUMENT = Path(__file__).parents[2] / "docs" / "CONFIGURATION.md"
SUBSCRIPTIONS = 200


@pytest.mark.parametrize(
    ("types", "commands"),
    [
        pytest.param(b"Broadcast Transient", b"(Subscribe t%d From_current)\n", id="broadcast"),
        pytest.param(
            b"Round_robin Transient", b"(Request t%d 10)\n(Subscribe t%d From_current)\n", id="credit"
        ),
    ],
)
async def test_a_subscription_takes_as_much_memory_as_the_document_says(
    store: Path, types: bytes, commands: bytes
) -> None:
    (octets,) = re.findall(
        r"Each subscription takes some ([\d,]+) octets of memory, and with `Request` some ([\d,]+)\.",
        DOCUMENT.read_text(),
    )
    told = int(octets[b"Request" in commands].replace(",", ""))
    async with serving(store) as host:
        connections = [await host.connect() for _ in range(3)]
        for number in range(SUBSCRIPTIONS):
            await connections[0].ask(b"(Declare t%d %s)" % (number, types))
        used = []
        tracemalloc.start()
        try:
            for connection in connections:
                for number in range(SUBSCRIPTIONS):
                    await connection.send(commands.replace(b"%d", b"%d" % number))
                    assert isinstance(await connection.frame(), Subscribed)
                used.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    # The first subscription of each topic also starts what serves them all.
    taken = (used[-1] - used[0]) / (len(used) - 1) / SUBSCRIPTIONS
    # The C library takes some octets more for each object.
    assert told / 2 < taken < told
