"""Configured clients: who is let in, what each may do, and what strangers cannot do to them."""

import hashlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from quietness import pass_time
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.access.clients import Clients
from omq.access.hashes import LOG_N, P, R, SecretHash, hash_of
from omq.access.limits import BURST_SECONDS
from omq.config import ClientConfig
from omq.drivers.stored_reads import READ_OCTETS
from omq.protocol.omq.frames import encode
from omq.protocol.omq.types import Confirmed, Declared, Deleted, Error, Leased, Ping, Subscribed

from .conversation import (
    PATIENCE,
    VERSION_ONE,
    Conversation,
    Host,
    eventually,
    numbered,
    publish,
    serving,
)
from .dmp_conversation import HEADER, envelopes, lease, response, said, short, show, stored

SECRET = "hush-4711"
HASH = str(hash_of(SECRET.encode()))

UNKNOWN = b"Connect: no client has this name and secret"


def client(name: str, **settings: Any) -> ClientConfig:
    """Return a `[[clients]]` table; where no rights are given, with all of them."""
    rights = {right: ["*"] for right in ("declare", "publish", "subscribe", "delete")}
    if settings.keys() & rights.keys():
        rights = {}
    return ClientConfig(name=name, secret=HASH, **(rights | settings))


async def open_as(host: Host, name: str, secret: str = SECRET) -> Conversation:
    """Return a connection that has said who it is."""
    conversation = await host.open()
    await conversation.send(VERSION_ONE + b'(Connect 1 "%s:%s")\n' % (name.encode(), secret.encode()))
    assert await conversation.octets(8) == VERSION_ONE
    return conversation


async def enter(host: Host, name: str, secret: str = SECRET) -> Conversation:
    """Return a connection that has said who it is, and was let in."""
    conversation = await open_as(host, name, secret)
    await conversation.confirm()
    return conversation


async def test_two_hashes_of_one_secret_are_logged(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    twice = msgspec.structs.replace(client("twice"), secret=[HASH, str(hash_of(SECRET.encode()))])
    async with serving(store, clients=[client("once"), twice]) as host:
        for name in ("once", "twice", "twice"):
            await enter(host, name)
    assert [line for line in caplog.messages if "hashes" in line] == [
        "'twice' has two hashes of the same secret: to replace it, configure that of another one"
    ]


# -- who is let in -------------------------------------------------------------------------------------------


async def test_the_right_secret(store: Path) -> None:
    async with serving(store, clients=[client("alice"), client("bob")]) as host:
        alice, bob = await enter(host, "alice"), await enter(host, "bob")
        await alice.ask(b"(Subscribe t From_current)")
        await bob.say(b"(Publish t hello)")
        assert (await alice.message()).body == b"hello"


async def test_anything_else_is_refused_and_closed(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=[client("alice")]) as host:
        for id in (
            b'"alice:wrong"', b"alice", b"alice:", b'""', b":", b'":hush-4711"', b"mallory:hush-4711",
            b'"alice:hush-4711 "', b'"alice:' + b"x" * 3000 + b'"', b"hush-4711", b"Alice:hush-4711",
        ):  # fmt: skip
            stranger = await host.open()
            await stranger.send(VERSION_ONE + b"(Connect 1 %s)\n(Publish t x)\nTopics\n" % id)
            assert await stranger.octets(8) == VERSION_ONE
            assert await stranger.rest() == [Error(UNKNOWN)], id
            clock.jump(1)
        assert await (await enter(host, "alice")).topics() == {}


async def test_commands_before_connect_are_refused(store: Path) -> None:
    async with serving(store, clients=[client("alice")]) as host:
        stranger = await host.open()
        await stranger.send(VERSION_ONE + publish(b"t", numbered(1, 3)))
        assert await stranger.octets(8) == VERSION_ONE
        assert await stranger.rest() == [Error(b"Connect: it must be the first command of a connection")]


async def test_the_handshake_is_limited_in_time_and_octets(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=[client("alice")]) as host:
        silent, long = await host.open(), await host.open()
        await silent.send(VERSION_ONE + b"(Connect 1 ali")
        await long.send(VERSION_ONE + b"(Connect 1 " + b"x" * 5000)
        for stranger in (silent, long):
            assert await stranger.octets(8) == VERSION_ONE
        assert await long.rest() == [Error(UNKNOWN)]
        await pass_time(clock, 11)
        frames = await silent.rest()
        assert frames[-1] == Error(b"Connect: the client did not make itself known in time")


async def test_secrets_are_nowhere(store: Path, caplog: pytest.LogCaptureFixture, clock: MockClock) -> None:
    """Neither in the log, at any level, nor in what the server answers."""
    caplog.set_level(logging.DEBUG)
    heard = b""
    whole = f"alice:{SECRET}"
    lines = [
        f"(Connect 1 {whole})",
        f"(Connect 1 {whole}-not)",
        f"(Connect {SECRET} 1)",
        f"(Connect {whole} 1)",
        f"(Connect {whole})",
        f"(Connect 1 {whole} 3)",
        f"(Connect 2 {whole})",
        f"(Connect 1 {whole})\n(Connect {whole} x)\n(Connect 1 {whole})\n(Connect {whole})",
        f"(Connect (1) ({whole}))",
        f"(Connect 1 {SECRET})",
    ]
    for clients in ([client("alice")], []):
        async with serving(store, clients=clients) as host:
            for line in lines if clients else lines[:-1]:  # where nobody has a secret, that is a name
                stranger = await host.open()
                await stranger.send(VERSION_ONE + line.encode() + b"\n")
                await stranger.done()
                assert await stranger.octets(8) == VERSION_ONE
                heard += b"".join(map(encode, await stranger.rest()))
                clock.jump(1)
    assert heard
    assert SECRET.encode() not in heard
    assert "'alice'" in caplog.text
    assert SECRET not in caplog.text


# -- attempts ------------------------------------------------------------------------------------------------


async def test_a_second_passes_after_each_wrong_secret(
    store: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Time stands still but for the jumps: however slow the machine is, no second passes by itself."""
    async with serving(store, clients=[client("alice"), client("bob")]) as host:
        alice = await enter(host, "alice")
        guesses = [await open_as(host, "bob", f"guess {number}") for number in range(5)]
        assert await guesses[0].rest() == [Error(UNKNOWN)]
        # No other id from this address is checked for now. A client that connected before needs no check, and
        # one from another address gets its own.
        again = await enter(host, "alice")
        elsewhere = await trio.open_tcp_stream("127.0.0.1", host.port, local_address="127.0.0.2")
        bob = Conversation(elsewhere)
        await bob.send(VERSION_ONE + b"(Connect 1 bob:%s)\n" % SECRET.encode())
        assert await bob.octets(8) == VERSION_ONE
        await bob.confirm()
        assert caplog.text.count("a wrong secret for 'bob'") == 1
        for number in range(1, 5):
            mock_clock.jump(1)
            assert await guesses[number].rest() == [Error(UNKNOWN)]
        for one in (alice, again, bob):
            await one.confirm()
        bob.close()


Costs = tuple[int, int, int]
"""What determines the time that scrypt takes: N, r and p."""


@pytest.fixture
def scrypts(monkeypatch: pytest.MonkeyPatch) -> list[Costs]:
    """Return the costs of each scrypt that the server computes."""
    computed: list[Costs] = []
    scrypt = hashlib.scrypt

    def compute(secret: bytes, *, n: int, r: int, p: int, **others: Any) -> bytes:
        computed.append((n, r, p))
        return scrypt(secret, n=n, r=r, p=p, **others)

    monkeypatch.setattr("hashlib.scrypt", compute)
    return computed


async def test_the_time_of_an_answer_does_not_tell_which_names_there_are(
    store: Path, clock: MockClock, scrypts: list[Costs]
) -> None:
    """An unknown name takes the work of a wrong secret."""
    async with serving(store, clients=[client("alice"), client("bob")]) as host:

        async def work(name: str, secret: str) -> list[Costs]:
            clock.jump(1)
            scrypts.clear()
            stranger = await open_as(host, name, secret)
            assert await stranger.rest() == [Error(UNKNOWN)]
            return scrypts.copy()

        for name in ("mallory", "alice"):
            for number in range(5):
                assert await work(name, f"guess {number}") == [(1 << LOG_N, R, P)]
        # An id that was wrong before takes no scrypt again, whether there is such a name or not.
        for name in ("mallory", "alice"):
            assert await work(name, "guess 0") == []


@pytest.mark.parametrize("log_n", [14, 16])
async def test_the_first_attempts_do_not_tell_names_either(log_n: int, scrypts: list[Costs]) -> None:
    """Whatever the hashes of the configured clients cost."""
    known = ClientConfig(name="alice", secret=str(SecretHash(log_n, 8, 1, bytes(16), bytes(32))))

    for name in (b"alice", b"mallory"):
        scrypts.clear()
        assert await Clients([known]).identify(name + b":guess", "127.0.0.1", "peer") is None
        assert scrypts == [(1 << log_n, 8, 1)]


@pytest.mark.parametrize("guess", [b"alice:guess", b"mallory:guess"])
@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("", "", True),
        ("a path", "2001:db8::1", False),
    ],
)
async def test_guesses_are_counted_by_network(
    guess: bytes, first: str, second: str, together: bool, mock_clock: MockClock
) -> None:
    """Of IPv6 that is what one customer is usually given: 64 bits of the address. Here time stands still."""
    clients = Clients([client("alice")])
    assert await clients.identify(guess, first, "peer") is None
    checked = False

    async def check() -> None:
        nonlocal checked
        assert await clients.identify(b"alice:" + SECRET.encode(), second, "peer") is not None
        checked = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(check)
        await wait_all_tasks_blocked()
        # Secrets are checked one after another, so when this one was, the other could have been.
        assert await clients.identify(b"alice:guess", "elsewhere", "peer") is None
        assert checked is not together
        mock_clock.jump(0.99)
        await wait_all_tasks_blocked()
        assert checked is not together
        mock_clock.jump(0.01)


async def test_failed_attempts_are_logged_with_their_address_and_counted(
    store: Path, caplog: pytest.LogCaptureFixture, clock: MockClock
) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "omq.access"]

    def counted() -> int:
        told = [line.partition(": ") for line in lines()]
        return sum(
            int(more.removesuffix(" more")) for what, _, more in told if what == "attempts to connect failed"
        )

    def written() -> list[str]:
        return [line for line in lines() if line.startswith("127.0.0.1:")]

    async with serving(store, clients=[client("alice")]) as host:
        for number in range(12):
            stranger = await open_as(host, "alice", f"guess {number}")
            assert await stranger.rest() == [Error(UNKNOWN)]
            clock.jump(1)
        clock.jump(20)
        # On a slow machine the twelve fall into more than two stretches of ten seconds.
        await eventually(lambda: len(written()) + counted() == 12)
    assert all(record.levelname == "WARNING" for record in caplog.records if record.name == "omq.access")
    assert all(line.endswith(": a wrong secret for 'alice'") for line in written())
    assert counted()


# -- rights --------------------------------------------------------------------------------------------------


async def test_each_right_by_name_and_by_beginning(store: Path) -> None:
    rights = {"declare": ["d", "p.*"], "publish": ["p.*"], "subscribe": ["s"], "delete": ["x*"]}
    names = [b"d", b"p.1", b"p.", b"p", b"s", b"s1", b"x", b"x9", b"z"]
    async with serving(store, clients=[client("root"), client("some", **rights)]) as host:
        root, some = await enter(host, "root"), await enter(host, "some")
        for name in names:
            assert isinstance(await root.ask(b"(Declare %s Broadcast (Persistent Weak))" % name), Declared)
        assert set(await root.topics()) == set(names)
        assert set(await some.topics()) == {b"d", b"p.1", b"p.", b"s", b"x", b"x9"}
        for name in names:
            may = {
                "declare": name == b"d" or name.startswith(b"p."),
                "publish": name.startswith(b"p."),
                "subscribe": name == b"s",
                "delete": name.startswith(b"x"),
            }
            answer = await some.ask(b"(Declare %s Broadcast (Persistent Weak))" % name)
            refused = Error(b"Declare %s: this client may not declare it" % name)
            assert isinstance(answer, Declared) if may["declare"] else answer == refused

            await some.say(b"(Publish %s body)" % name, b"(Confirm 1)")
            if may["publish"]:
                assert await some.frame() == Confirmed(1)
            else:
                assert await some.error() == b"Publish %s: this client may not publish to it" % name
                assert (await some.error()).startswith(b"Confirm 1: 1 published before it")
            answer = await some.ask(b"(Put %s)" % name)
            refused = Error(b"Put %s: this client may not publish to it" % name)
            assert isinstance(answer, Leased) if may["publish"] else answer == refused

            for command in (b"Subscribe", b"Get"):
                answer = await some.ask(b"(%s %s From_beginning)" % (command, name))
                refused = Error(b"%s %s: this client may not subscribe to it" % (command, name))
                assert isinstance(answer, Subscribed | Leased) if may["subscribe"] else answer == refused
            if not may["subscribe"]:
                answer = await some.ask(b"(Request %s 1)" % name)
                assert answer == Error(b"Request %s: this client may not subscribe to it" % name)

            answer = await some.ask(b"(Delete %s)" % name)
            refused = Error(b"Delete %s: this client may not delete it" % name)
            assert isinstance(answer, Deleted) if may["delete"] else answer == refused
        assert {name for name, info in (await root.topics()).items() if info.messages} == {b"p.1", b"p."}


async def test_a_refusal_does_not_tell_whether_there_is_a_topic(store: Path) -> None:
    async with serving(store, clients=[client("root"), client("none", publish=["own"])]) as host:
        await (await enter(host, "root")).say(b"(Publish there x)")
        none = await enter(host, "none")
        for command in (
            b"(Subscribe %s From_current)", b"(Get %s From_current)", b"(Put %s)", b"(Publish %s x)",
            b"(Delete %s)", b"(Declare %s Broadcast Transient)", b"(Request %s 1)",
        ):  # fmt: skip
            there, absent = [await none.refusal(command % name) for name in (b"there", b"absent")]
            assert there.replace(b"there", b"absent") == absent


async def test_using_a_name_makes_a_topic_only_with_the_right_to(store: Path) -> None:
    rights = {"publish": ["*"], "subscribe": ["*"], "declare": ["own.*"]}
    async with serving(store, clients=[client("some", **rights)]) as host:
        some = await enter(host, "some")
        for command, constructor in (
            (b"(Publish t x)", b"Publish"), (b"(Subscribe t From_current)", b"Subscribe"),
            (b"(Put t)", b"Put"), (b"(Get t From_current)", b"Get"),
        ):  # fmt: skip
            wanted = b"%s t: there is no such topic, and this client may not declare it" % constructor
            assert await some.refusal(command) == wanted
        assert isinstance(await some.ask(b"(Subscribe own.t From_current)"), Subscribed)


async def test_runs_of_messages_are_refused_as_a_whole(store: Path) -> None:
    async with serving(store, clients=[client("some", publish=["a"], declare=["a"])]) as host:
        some = await enter(host, "some")
        await some.send(publish(b"a", numbered(1, 50)) + publish(b"b", numbered(1, 50)) + b"(Confirm 1)\n")
        refused = 0
        while (text := await some.error()).startswith(b"Publish b: "):
            assert text.endswith(b"this client may not publish to it")
            refused += 1
        assert refused
        assert text == b"Confirm 1: 50 published before it and after the last Confirm were refused"
        assert (await some.topics())[b"a"].messages == 50


async def test_leases_carry_the_rights_of_the_principal(store: Path) -> None:
    async with serving(
        store, clients=[client("some", publish=["a"], subscribe=["b"], declare=["*"])]
    ) as host:
        some = await enter(host, "some")
        put = await lease(some, b"(Put a)")
        connection = await host.open()
        await connection.send(HEADER + short(put) + envelopes(numbered(1, 10)))
        await connection.done()
        assert (await said(connection))[-1] == b"200 OK 10 messages stored"
        # A connection without a lease has no rights, whatever it says.
        stranger = await host.open()
        await stranger.send(HEADER + short(b"alice:" + SECRET.encode()))
        assert (await said(stranger))[-1].startswith(b"402 ")


# -- limits --------------------------------------------------------------------------------------------------


async def test_connections_of_a_client(store: Path) -> None:
    async with serving(store, clients=[client("some", max_connections=2), client("other")]) as host:
        first, second = await enter(host, "some"), await enter(host, "some")
        third = await open_as(host, "some")
        refused = b"Connect: this client has its 2 connections, the most it may have"
        assert await third.rest() == [Error(refused)]
        await enter(host, "other")
        # A sink takes a place too.
        connection = await show(host, await lease(first, b"(Put t)"))
        too_many = b"530 NOT-ALLOWED The client has as many connections as it may have"
        assert await said(connection) == [too_many]
        second.close()
        await eventually(lambda: host.connections == 2)
        connection = await show(host, await lease(first, b"(Put t)"))
        assert await response(connection) == b"200 OK Sink 't' ready"
        assert await (await open_as(host, "some")).rest() == [Error(refused)]
        assert await stored(connection) == 0
        await eventually(lambda: host.connections == 2)
        await enter(host, "some")


@pytest.mark.parametrize("end", [Conversation.close, Conversation.reset])
async def test_a_client_with_all_its_connections_that_closes_one_may_connect_at_once(
    store: Path, end: Callable[[Conversation], None], mock_clock: MockClock
) -> None:
    """Time stands still, so the moment for which the server waits for a place is not over."""
    async with serving(store, clients=[client("some", max_connections=3)]) as host:
        others = [await enter(host, "some"), await enter(host, "some")]
        for _ in range(100):
            latest = await enter(host, "some")
            await latest.say(b"(Subscribe t From_current)")
            end(latest)
        for other in others:
            await other.confirm()


async def test_subscriptions_of_a_client(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=[client("some", max_subscriptions=2)]) as host:
        one, two = await enter(host, "some"), await enter(host, "some")
        assert isinstance(await one.ask(b"(Subscribe a From_current)"), Subscribed)
        get = await lease(two, b"(Get b From_current)")
        refused = b"this client has its 2 subscriptions, the most it may have"
        assert await two.refusal(b"(Subscribe c From_current)") == b"Subscribe c: " + refused
        assert await two.refusal(b"(Get c From_current)") == b"Get c: " + refused
        # One that is refused for another reason takes no place.
        await one.ask(b"(Unsubscribe a)")
        for command in (b"(Subscribe a (From_message 9))", b"(Get a (From_message 9))"):
            assert (await one.refusal(command)).endswith(b"the next one is 1")
        assert isinstance(await two.ask(b"(Subscribe c From_current)"), Subscribed)
        assert (await one.refusal(b"(Subscribe a From_current)")).endswith(refused)
        # A topic that is deleted gives its place back, and so does a lease that ends.
        assert isinstance(await one.ask(b"(Delete c)"), Deleted)
        assert isinstance(await one.ask(b"(Subscribe a From_current)"), Subscribed)
        clock.jump(61)
        await eventually(lambda: not host.server.statistics().leases)
        feed = await show(host, await lease(one, b"(Get b From_current)"))
        assert (await response(feed)).startswith(b"200 ")
        assert (await one.refusal(b"(Subscribe d From_current)")).endswith(refused)
        feed.close()
        await eventually(lambda: host.connections == 2)
        assert isinstance(await one.ask(b"(Subscribe d From_current)"), Subscribed)
        del get


async def test_connections_of_all(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(store, max_connections=3, client_share=1.0) as host:
        clients = [await host.connect() for _ in range(3)]
        for _ in range(20):
            turned_away = await host.open()
            with trio.fail_after(PATIENCE):
                try:
                    assert await turned_away.stream.receive_some(1) == b""
                except trio.BrokenResourceError:
                    pass
        for one in clients:
            await one.confirm()
        clients[0].close()
        await eventually(lambda: host.connections == 2)
        await (await host.connect()).confirm()
    lines = [
        record.getMessage() for record in caplog.records if "as max_connections allows" in record.getMessage()
    ]
    assert 1 <= len(lines) <= 10


async def test_a_silent_newcomer_makes_room(store: Path) -> None:
    async with serving(store, max_connections=3, client_share=1.0) as host:
        known = await host.connect()
        silent = [await host.open(), await host.open()]
        await eventually(lambda: host.handshakes == 2)
        for _ in range(2):
            newcomer = await host.connect()
            await newcomer.confirm()
            await silent.pop(0).ended()
        await known.confirm()


@asynccontextmanager
async def passing(clock: MockClock) -> AsyncIterator[None]:
    """Let much time pass within the block. What is in it must not be in a hurry."""

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_time, clock, math.inf, 0.5)
        yield
        nursery.cancel_scope.cancel()


async def received(conversation: Conversation, end: bytes) -> bytes:
    """Return what comes, up to octets that end with these; however long that takes."""
    octets = b""
    while not octets.endswith(end):
        data = await conversation.stream.receive_some(65536)
        assert data, f"the connection ended after {octets!r}"
        octets += data
    return octets


LINES_OF_100_KB = publish(b"t", [b"x" * 984] * 100)
CONFIRMED = encode(Confirmed(1))


async def test_octets_a_second_that_come_in(store: Path, clock: MockClock) -> None:
    """100 KB at 10 KB a second, of which the first come at once. Nothing is dropped."""
    async with serving(store, clients=[client("some", max_bytes_per_second=10_000)]) as host:
        some = await enter(host, "some")
        began = trio.current_time()
        async with passing(clock):
            await some.stream.send_all(LINES_OF_100_KB + b"(Confirm 1)\n")
            await received(some, CONFIRMED)
        assert trio.current_time() - began >= 8
    async with serving(store) as host:
        assert (await host.topics())[b"t"].messages == 100


async def test_octets_that_come_with_the_first_command_count_in_the_rate(
    store: Path, clock: MockClock
) -> None:
    """A client that connects again for each burst is no faster than one that stays."""
    clients = [client("some", max_bytes_per_second=10_000)]
    connect = b'(Connect 1 "some:%s")\n' % SECRET.encode()
    async with serving(store, clients=clients, handshake_seconds=3600) as host:
        began = trio.current_time()
        for _ in range(4):
            connection = await host.open()
            await connection.send(VERSION_ONE)
            assert await connection.octets(8) == VERSION_ONE
            async with passing(clock):
                # The server may read it at once, or in parts.
                await connection.stream.send_all(connect + LINES_OF_100_KB[:60_000] + b'")\n(Confirm 1)\n')
                await received(connection, CONFIRMED)
            connection.close()
        # All but the last 60 KB, and a second's burst.
        assert trio.current_time() - began >= 17


async def test_octets_a_second_are_as_few_after_an_hour_without_any(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=[client("some", max_bytes_per_second=10_000)]) as host:
        some = await enter(host, "some")
        clock.jump(3600)
        await some.confirm()
        began = trio.current_time()
        async with passing(clock):
            await some.stream.send_all(LINES_OF_100_KB + b"(Confirm 1)\n")
            await received(some, CONFIRMED)
        assert trio.current_time() - began >= 8


async def test_octets_a_second_are_those_of_all_connections_together(store: Path, clock: MockClock) -> None:
    clients = [client("some", max_bytes_per_second=10_000), client("other")]
    async with serving(store, clients=clients) as host:
        both = [await enter(host, "some"), await enter(host, "some")]
        other = await enter(host, "other")
        for one in both:
            await one.stream.send_all(LINES_OF_100_KB[: len(LINES_OF_100_KB) // 2] + b"(Confirm 1)\n")
        # Nobody else has to wait meanwhile.
        await other.send(LINES_OF_100_KB)
        await other.confirm()
        began = trio.current_time()
        async with passing(clock), trio.open_nursery() as nursery:
            for one in both:
                nursery.start_soon(received, one, CONFIRMED)
        assert trio.current_time() - began >= 6


@pytest.mark.parametrize("way", ["subscription", "half-closed", "feed"])
async def test_octets_a_second_that_go_out(store: Path, clock: MockClock, way: str) -> None:
    """At this pace a client is sent nothing for longer than it takes to give up one that takes nothing."""
    clients = [client("some", max_bytes_per_second=5000), client("other")]
    bodies = [b"%02d" % number * 32_000 for number in range(20)]
    missed = 3 if way == "half-closed" else 0
    async with serving(store, clients=clients, ping_seconds=10, missed_pings=missed) as host:
        other, some = await enter(host, "other"), await enter(host, "some")
        for body in bodies:
            await other.send(publish(b"t", [body]))
            await other.confirm()
        connection = some
        if way == "feed":
            connection = await show(host, await lease(some, b"(Get t From_beginning)"))
            await response(connection)
        else:
            await some.say(b"(Subscribe t From_beginning)")
        if way == "half-closed":
            await some.done()
        began = trio.current_time()
        octets = b""
        async with passing(clock):
            while bodies[-1] not in octets:
                data = await connection.stream.receive_some(65536)
                assert data, "the connection ended"
                octets += data
        assert all(body in octets for body in bodies)
        # What is read from the store at once may be sent in one turn, and nothing waits for the last turn.
        assert trio.current_time() - began >= (sum(map(len, bodies)) - READ_OCTETS) / 5000 - BURST_SECONDS
        if way == "subscription":
            assert octets.count(encode(Ping(0))[:5]) >= 10


async def test_octets_a_second_of_a_sink(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=[client("some", max_bytes_per_second=10_000)]) as host:
        some = await enter(host, "some")
        connection = await show(host, await lease(some, b"(Put t)"))
        assert await response(connection) == b"200 OK Sink 't' ready"
        began = trio.current_time()
        async with passing(clock):
            await connection.stream.send_all(envelopes([b"x" * 989] * 100))
            await connection.stream.send_eof()
            assert await received(connection, b" 100 messages stored") == short(b"200 OK 100 messages stored")
        assert trio.current_time() - began >= 8
