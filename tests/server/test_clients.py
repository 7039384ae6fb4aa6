"""Configured clients: who is let in, what each may do, and what strangers cannot do to them."""

import hashlib
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from quietness import pass_time
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.access.clients import Clients
from omq.access.hashes import LOG_N, P, R, SecretHash, hash_of
from omq.config import ClientConfig
from omq.protocol.omq.frames import encode
from omq.protocol.omq.sentences import RefusalKind, refusal_in
from omq.protocol.omq.types import Confirmed, Declared, Deleted, Error, Leased, Subscribed

from .client_accounts import HASH, SECRET, UNKNOWN, client, enter, open_as
from .conversation import (
    VERSION_ONE,
    Conversation,
    eventually,
    numbered,
    publish,
    serving,
)
from .dmp_conversation import HEADER, envelopes, lease, said, short


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
        assert refusal_in(UNKNOWN) is RefusalKind.UNKNOWN_CLIENT
        assert await (await enter(host, "alice")).topics() == {}


@pytest.mark.parametrize(
    ("id", "why"),
    [
        (b"bob:x", "no client of that name"),
        (b"alice:x", "a wrong secret for 'alice'"),
        (b"alice", "the id, that of 'alice', has no colon, and so no secret"),
        (b"bob", "the id has no colon, and so no secret"),
        (b"alice:" + b"x" * 1019, "an id of more than 1024 octets"),
    ],
)
async def test_the_log_tells_why_a_client_is_not_admitted(
    store: Path, caplog: pytest.LogCaptureFixture, id: bytes, why: str
) -> None:
    async with serving(store, clients=[client("alice")]) as host:
        stranger = await host.open()
        await stranger.send(VERSION_ONE + b"(Connect 1 %s)\n" % id)
        assert await stranger.octets(8) == VERSION_ONE
        assert await stranger.rest() == [Error(UNKNOWN)]
    (line,) = [record for record in caplog.records if record.name == "omq.access"]
    assert line.getMessage().endswith(f": {why}")


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
        refused = b"Connect: the client did not make itself known in time"
        assert frames[-1] == Error(refused)
        assert refusal_in(refused) is RefusalKind.PASSING


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
"""The parameters that determine the time of scrypt: N, r and p."""


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
