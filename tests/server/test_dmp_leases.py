"""Leases, and what is answered to them (6-DMP, "Operations" and "Response codes")."""

from pathlib import Path

import pytest
import trio
from counted_steps import watched
from dmp_recordings import DMP, FEEDS, SINKS, sent
from trio.testing import MockClock

from omq.access.clients import ClientAccount, Identity
from omq.access.leases import EXPIRED_AT_ONCE, DmpEnd, LeasedSink, LeaseProblem, Leases, Principal
from omq.access.rights import EVERYTHING
from omq.drivers import slices
from omq.drivers.seam import Unavailable
from omq.model import Topic
from omq.protocol.omq.types import Declared, Leased

from .client_accounts import client, enter, passing
from .conversation import Conversation, InProcess, eventually, serving
from .dmp_conversation import (
    GREETING,
    HEADER,
    Consumer,
    envelopes,
    feed,
    lease,
    news,
    response,
    said,
    short,
    show,
)
from .dmp_conversation import sink as open_sink

NOT_VALID = b"402 BAD-LEASE Lease is not valid for this connection"
IN_USE = b"402 BAD-LEASE Lease already acquired"
ENDS = [b"(Put t)", b"(Get t From_current)"]
MANY = 100
"""More leases than end in one step."""


async def refused(host: InProcess, shown: bytes) -> bytes:
    """Return the one answer to a lease after which the connection is closed."""
    connection = await show(host, shown)
    (answer,) = await said(connection)
    return answer


@pytest.mark.parametrize("command", ENDS)
async def test_a_lease_can_be_used_once(store: Path, command: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        one = await lease(client, command)
        first = await show(host, one)
        assert (await response(first)).startswith(b"200 OK ")
        assert await refused(host, one) == IN_USE
        first.close()
        await eventually(lambda: host.connections == 1)
        assert await refused(host, one) == IN_USE


@pytest.mark.parametrize("shown", [b"no-such-lease", b"x", b"\x00" * 255])
async def test_a_lease_that_was_never_granted(store: Path, shown: bytes) -> None:
    async with serving(store) as host:
        assert await refused(host, shown) == NOT_VALID


async def test_leases_cannot_be_guessed(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        leases = {await lease(client, b"(Put t)") for _ in range(100)}
        assert len(leases) == 100
        assert {len(one) for one in leases} == {32}
        # Nothing in them counts: each position has many values.
        assert all(len({one[place] for one in leases}) > 20 for place in range(32))


async def test_an_empty_lease_is_closed_without_an_answer(store: Path) -> None:
    async with serving(store) as host:
        connection = await show(host, b"")
        assert await said(connection) == []


@pytest.mark.parametrize("command", ENDS)
async def test_a_lease_expires(store: Path, clock: MockClock, command: bytes) -> None:
    async with serving(store, ping_seconds=50) as host:
        client = await host.connect()
        one, other = await lease(client, command), await lease(client, command)
        clock.jump(30)
        connection = await show(host, one)
        assert (await response(connection)).startswith(b"200 OK ")
        clock.jump(30)
        assert await refused(host, other) == NOT_VALID


async def test_an_unserved_feed_is_closed_when_its_lease_expires(store: Path, clock: MockClock) -> None:
    async with serving(store, lease_seconds=10) as host:
        client = await host.connect()
        await lease(client, b"(Get t From_current)")
        assert (await client.topics())[b"t"].subscribers == 1
        clock.jump(11)
        await eventually(lambda: not host.server.statistics().leases)
        assert (await client.topics())[b"t"].subscribers == 0


@pytest.mark.parametrize("command", ENDS)
async def test_an_unused_lease_ends_with_its_principal(store: Path, command: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        one = await lease(client, command)
        client.close()
        await eventually(lambda: host.connections == 0)
        assert await refused(host, one) == NOT_VALID
        assert (await host.topics())[b"t"].subscribers == 0


@pytest.mark.parametrize("command", ENDS)
async def test_many_unused_leases_end_with_their_principal_in_slices(
    store: Path, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        leases = await client.ask_all([command] * MANY)
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1)
        with watched(lambda: host.server.statistics().leases) as left:
            client.close()
            await eventually(lambda: host.connections == 0)
        assert (left.all[0], left.all[-1], left.largest_fall()) == (MANY, 0, 1)
        assert isinstance(leases[0], Leased)
        assert await refused(host, leases[0].lease) == NOT_VALID


@pytest.mark.parametrize("command", ENDS)
async def test_many_leases_expire_in_slices(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    async with serving(store, ping_seconds=50) as host:
        client = await host.connect()
        await client.ask_all([command] * MANY)
        monkeypatch.setattr(slices, "SLICE_SECONDS", -1)
        with watched(lambda: host.server.statistics().leases) as left:
            clock.jump(61)
            await eventually(lambda: host.server.statistics().leases == 0)
        assert left.all[0] == MANY
        assert left.largest_fall() <= EXPIRED_AT_ONCE


async def test_sinks_and_feeds_outlive_their_principal(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        consumer = await feed(host, client)
        sink = await open_sink(host, client)
        client.close()
        await eventually(lambda: host.connections == 2)
        await sink.send(envelopes([b"1", b"2"]))
        assert await consumer.bodies(2) == [b"1", b"2"]


@pytest.mark.parametrize("command", ENDS)
async def test_another_host_cannot_use_a_lease(store: Path, command: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        one = await lease(client, command)
        opened = trio.socket.socket()
        await opened.bind(("127.0.0.2", 0))
        await opened.connect(("127.0.0.1", host.port))
        stranger = Conversation(trio.SocketStream(opened))
        await stranger.send(HEADER + short(one))
        assert await said(stranger) == [
            GREETING[1:],
            b"403 NO-ACCESS The lease was given to a client on another host",
        ]
        stranger.close()
        # It took nothing from the client that it belongs to.
        assert (await response(await show(host, one))).startswith(b"200 OK ")


async def test_another_host_may_use_a_lease_where_the_configuration_says_so(store: Path) -> None:
    async with serving(store, lease_same_host=False) as host:
        one = await lease(await host.connect(), b"(Put t)")
        opened = trio.socket.socket()
        await opened.bind(("127.0.0.2", 0))
        await opened.connect(("127.0.0.1", host.port))
        other = Conversation(trio.SocketStream(opened))
        await other.send(HEADER + short(one))
        await other.done()
        assert (await said(other))[1:] == [b"200 OK Sink 't' ready", b"200 OK 0 messages stored"]
        other.close()


@pytest.mark.parametrize("command", ENDS)
@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
async def test_the_topic_is_deleted_between_lease_and_use(store: Path, command: bytes, again: bool) -> None:
    async with serving(store) as host:
        client = await host.connect()
        one = await lease(client, command)
        await client.ask(b"(Delete t)")
        if again:
            await client.ask(b"(Declare t Broadcast Transient)")
        answer = await refused(host, one)
        assert answer == b"404 NOT-FOUND The sink or feed of this lease is no longer there"


@pytest.mark.parametrize("command", ENDS)
async def test_an_empty_topic_is_given_other_types_between_lease_and_use(store: Path, command: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        one = await lease(client, command)
        assert isinstance(await client.ask(b"(Declare t Round_robin Transient)"), Declared)
        connection = await show(host, one)
        assert (await response(connection)).startswith(b"200 OK ")
        if command.startswith(b"(Put"):
            consumer = await feed(host, client)
            await connection.send(envelopes([b"1"]))
        else:
            consumer = Consumer(connection)
            await client.say(b"(Publish t 1)")
        assert await consumer.bodies(1) == [b"1"]


@pytest.mark.parametrize(
    ("shown", "answer"),
    [
        (b"Put t", b"503 INVALID Ask for a lease on the principal connection"),
        (b"GET feed", b"503 INVALID Ask for a lease on the principal connection"),
        (b"PURGE feed", b"540 NOT-IMPLEMENTED Only a lease is understood here"),
        (b" ", b"540 NOT-IMPLEMENTED Only a lease is understood here"),
    ],
)
async def test_a_command_instead_of_a_lease(store: Path, shown: bytes, answer: bytes) -> None:
    async with serving(store) as host:
        assert await refused(host, shown) == answer


async def test_no_lease_in_time(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        connection = await host.open()
        await connection.send(HEADER + b"\x20half a lease")
        assert await connection.octets(len(GREETING)) == GREETING
        clock.jump(10.1)
        assert await said(connection) == [b"530 NOT-ALLOWED No lease came in time"]


async def test_the_most_dmp_connections(store: Path) -> None:
    async with serving(store, max_dmp_connections=2) as host:
        client = await host.connect()
        first, second = await open_sink(host, client), await feed(host, client)
        one = await lease(client, b"(Put t)")
        many = b"530 NOT-ALLOWED The server has as many DMP connections as it may have"
        assert await refused(host, one) == many
        second.connection.close()
        await eventually(lambda: host.connections == 2)
        third = await show(host, one)
        assert await response(third) == b"200 OK Sink 't' ready"
        assert await refused(host, b"no-such-lease") == many
        first.close()


async def test_the_most_unused_leases(store: Path) -> None:
    async with serving(store, max_leases=3, client_share=1) as host:
        client = await host.connect()
        leases = [await lease(client, b"(Put t)") for _ in range(3)]
        refusal = b"t: the server has its 3 unused leases, the most it is configured for"
        assert await client.refusal(b"(Put t)") == b"Put " + refusal
        assert await client.refusal(b"(Get t From_current)") == b"Get " + refusal
        connection = await show(host, leases[0])
        await response(connection)
        assert isinstance(await client.ask(b"(Put t)"), Leased)


@pytest.mark.parametrize("command", ENDS)
async def test_names_that_cannot_be_leased(store: Path, command: bytes) -> None:
    async with serving(store, allow_undeclared=False) as host:
        client = await host.connect()
        start = command[1:4] + b" t: "
        refusal = b"there is no such topic, and this server wants topics declared"
        assert await client.refusal(command) == start + refusal
        empty = command[1:4] + b' "": the topic\'s name is empty'
        assert await client.refusal(command.replace(b" t", b' ""')) == empty


async def test_put_and_get_declare_with_the_defaults(store: Path) -> None:
    async with serving(store, default_persistence="transient") as host:
        client = await host.connect()
        await lease(client, b"(Put a)")
        await lease(client, b"(Get b From_current)")
        assert [str(info.persistence) for info in (await client.topics()).values()] == ["Transient()"] * 2


@pytest.mark.parametrize("types", [b"Round_robin (Persistent Weak)", b"Broadcast Transient"])
@pytest.mark.parametrize("replay", [b"From_beginning", b"(From_message 1)"])
async def test_get_refuses_a_replay_that_cannot_be(store: Path, types: bytes, replay: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t %s)" % types)
        kind = b"round-robin" if types.startswith(b"Round") else b"transient"
        assert await client.refusal(b"(Get t %s)" % replay) == b"Get t: a %s topic cannot be replayed" % kind
        assert (await client.topics())[b"t"].subscribers == 0


async def test_a_lease_without_the_rest_of_it_is_closed(store: Path) -> None:
    async with serving(store) as host:
        connection = await host.open()
        await connection.send(HEADER + b"\x20half a lease")
        await connection.done()
        assert await said(connection) == [GREETING[1:]]
        await eventually(lambda: host.connections == 0)


@pytest.mark.parametrize("name", sorted({*DMP, "G_leases.conn8"}))
async def test_recorded_clients_are_answered_as_openamq_did(store: Path, name: str) -> None:
    """Their octets against this server: only the leases are put in the place of the recorded ones."""
    recorded, answers = sent(name, "C"), sent(name, "S")
    topic = b"amq.direct" if name in SINKS else b"auto.0"
    async with serving(store) as host:
        client = await host.connect()
        connection = await host.open()
        if name == "G_leases.conn8":
            await connection.send(recorded)
            assert await connection.octets(8) == HEADER  # OpenAMQ names what it prefers: AMQP 0-9
            await connection.ended()
            return
        start = len(HEADER)
        old = recorded[start + 1 : start + 1 + recorded[start]]
        rest = recorded[start + 1 + len(old) :]
        if name in SINKS or name in FEEDS:
            named = old.split(b"-", 2)[2]
            command = b"(Put %s)" if name in SINKS else b"(Get %s From_current)"
            new = await lease(client, command % named)
        elif b"already" in answers:
            new = await lease(client, b"(Put %s)" % topic)
            await response(await show(host, new))
        else:
            new = old
        await connection.send(HEADER + short(new) + rest)
        if name in FEEDS:
            ready_end = answers.index(b"' ready") + len(b"' ready")
            assert await connection.octets(ready_end) == answers[:ready_end]
            return
        assert await connection.octets(len(answers)) == answers
        if name in SINKS:
            await connection.done()
            count = (await said(connection))[0]
            assert count.startswith(b"200 OK "), count
            assert int(count.split()[2]) == (await host.topics())[named].messages
        else:
            await connection.ended()


async def test_a_stopping_server_answers_waiting_clients(store: Path) -> None:
    async with serving(store) as host:
        connection = await host.open()
        await connection.send(HEADER)
        assert await connection.octets(len(GREETING)) == GREETING
        await eventually(lambda: host.connections == 1)
        host.leave_open(connection)
    assert await said(connection) == [b"530 NOT-ALLOWED The server is stopping"]
    connection.close()


@pytest.mark.parametrize("command", ENDS)
async def test_a_stopping_server_accepts_no_lease_that_waited(
    store: Path, clock: MockClock, command: bytes
) -> None:
    async with serving(store, clients=[client("a", max_connections=1)]) as host:
        async with passing(clock):
            principal = await enter(host, "a")
        connection = await show(host, await lease(principal, command))
        await eventually(lambda: host.server.statistics().leases == 0)  # used, for when the principal ends
        host.leave_open(connection)
    assert await said(connection) == [b"530 NOT-ALLOWED The server is stopping"]
    connection.close()


async def test_news_of_a_closed_principal_go_nowhere(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        sink = await open_sink(host, client)
        other = await open_sink(host, client)
        await sink.send(b"\x00\x00\x00\x01x")
        assert (await news(client)).startswith(b"Sink t: 502 ")
        client.close()
        await eventually(lambda: host.connections == 1)
        await other.send(b"\x00\x00\x00\x01x")
        assert (await said(other))[0].startswith(b"502 SYNTAX-ERROR 0 messages stored; envelope 1: ")


async def test_no_lease_of_many_that_expire_together_can_be_used(clock: MockClock) -> None:
    """Nor is its use remembered too long: the last ones are over before `expire` has come to them."""
    leases = Leases(60, MANY, same_host=True)
    principal, who = Principal("here", b"tester", None), Identity(ClientAccount(EVERYTHING))
    used, unused = (
        [leases.grant(LeasedSink(Topic(0, b"t")), principal, who) for _ in range(MANY)] for _ in "ab"
    )
    for one in used:
        assert not isinstance(leases.use(one, "here"), LeaseProblem)
    clock.jump(61)
    assert leases.use(unused[-1], "here") is LeaseProblem.NOT_VALID
    assert leases.use(used[-1], "here") is LeaseProblem.USED
    assert len(leases) > 0
    clock.jump(601)
    assert leases.use(used[-1], "here") is LeaseProblem.NOT_VALID
    while leases.expire():
        pass
    assert len(leases) == len(principal.leases) == 0


async def test_leases_remember_only_so_many_used_ones(clock: MockClock) -> None:
    async def report(end: DmpEnd, topic: bytes, what: str | Unavailable) -> None:
        raise AssertionError((end, topic, what))

    leases = Leases(60, 2, same_host=True)
    principal, who = Principal("here", b"tester", report), Identity(ClientAccount(EVERYTHING))
    used = [leases.grant(LeasedSink(Topic(0, b"t")), principal, who) for _ in range(3)]
    for one in used:
        assert not isinstance(leases.use(one, "here"), LeaseProblem)
    assert [leases.use(one, "here") for one in used] == [
        LeaseProblem.NOT_VALID,
        LeaseProblem.USED,
        LeaseProblem.USED,
    ]
    clock.jump(601)
    assert [leases.use(one, "here") for one in used] == [LeaseProblem.NOT_VALID] * 3
    assert not principal.leases
