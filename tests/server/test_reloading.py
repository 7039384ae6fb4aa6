"""Another configuration for a running server: which connections end, and what each protocol is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from quietness import quiet
from trio.testing import MockClock

from omq import watching as w
from omq.access.limits import UNLIMITED, Rates
from omq.config import ClientConfig, Config
from omq.protocol.amqp_1_0.performatives import Attach, Close
from omq.protocol.omq.types import Error, StoredBlock
from omq.server import Server
from omq.terminals.connection.statistics import Kind

from .amqp_1_0_peer import condition, data, peer, source, target
from .client_accounts import SECRET, client, enter
from .conversation import PATIENCE, VERSION_ONE, eventually, serving
from .dmp_conversation import lease, response, show
from .test_long_answers import declare
from .test_watching import PERIOD, begin, round_of, topics, watched

GONE = "the server's configuration does not have this client any more"


async def reload(server: Server, change: Callable[[Config], dict[str, Any]]) -> None:
    with trio.fail_after(PATIENCE):
        await server.reload(msgspec.structs.replace(server.config, **change(server.config)))


async def configure(server: Server, clients: list[ClientConfig]) -> None:
    """Reload with these clients instead of those that there are."""
    await reload(server, lambda _: {"clients": clients})


async def test_amqp_1_0_gets_a_close_with_the_reason(store: Path) -> None:
    async with serving(store, clients=[client("alice"), client("bob")]) as host, peer(host.port) as bob:
        await bob.authenticate("PLAIN", b"\0bob\0" + SECRET.encode())
        await bob.open()
        await reload(host.server, lambda config: {"clients": config.clients[:1]})
        closed = await bob.heard(Close)
        assert condition(closed) == "amqp:connection:forced"
        assert closed.error is not None
        assert GONE in str(closed.error)


async def test_a_direct_producer_is_refused_when_the_right_is_lost(store: Path) -> None:
    async with serving(store, clients=[client("alice")]) as host, peer(host.port) as alice:
        await alice.authenticate("PLAIN", b"\0alice\0" + SECRET.encode())
        await alice.open()
        await alice.receiver("exclusive.work", credit=10)
        await alice.sender("exclusive.work")
        await alice.publish(data(b"one"))
        assert (await alice.message()).octets == data(b"one")
        await reload(host.server, lambda _: {"clients": [client("alice", publish=["news"], subscribe=["*"])]})
        second = await alice.publish(data(b"two"))
        outcome = await alice.outcome()
        assert outcome.first == second
        assert outcome.state is not None
        assert b"amqp:unauthorized-access" in outcome.state


async def test_a_feed_ends_and_its_principal_is_told_when_the_right_is_lost(store: Path) -> None:
    async with serving(store, clients=[client("alice")]) as host:
        alice = await enter(host, "alice")
        feed = await show(host, await lease(alice, b"(Get news From_current)"))
        assert await response(feed) == b"200 OK Feed 'news' ready"
        await reload(host.server, lambda _: {"clients": [client("alice", subscribe=["sport"])]})
        assert await alice.frame() == Error(
            b"Feed news: 530 NOT-ALLOWED this client may not subscribe to 'news' any more"
        )
        await alice.confirm()  # the principal itself may stay
        await feed.ended()


async def test_a_watch_begins_again_with_other_rights(store: Path) -> None:
    async with serving(store, clients=[client("bob"), client("alice", watch=["sport"])]) as host:
        alice, bob = await enter(host, "alice"), await enter(host, "bob")
        for name in (b"news", b"sport"):
            await bob.ask(b"(Declare %s Broadcast Transient)" % name)
        assert set(topics(await begin(alice))) == {b"sport"}
        for right in (["*"], ["news"]):
            clients = [client("bob"), client("alice", watch=right)]
            await configure(host.server, clients)
            parts: list[w.Statistics] = []
            while w.Began(PERIOD) not in parts:
                parts = await round_of(alice)
            assert set(topics(parts)) == ({b"news", b"sport"} if right == ["*"] else {b"news"})


async def test_an_unused_lease_is_worth_nothing_without_its_client(store: Path) -> None:
    async with serving(store, clients=[client("alice"), client("bob")]) as host:
        bob = await enter(host, "bob")
        unused = await lease(bob, b"(Put news)")
        await reload(host.server, lambda config: {"clients": config.clients[:1]})
        assert await bob.error() == b"Connect: " + GONE.encode()
        await bob.ended()
        assert (await response(await show(host, unused))).startswith(b"402 BAD-LEASE")


async def test_an_unused_feed_lease_is_refused_when_the_right_is_lost(store: Path) -> None:
    async with serving(store, clients=[client("alice")]) as host:
        alice = await enter(host, "alice")
        unused = await lease(alice, b"(Get news From_current)")
        await reload(host.server, lambda _: {"clients": [client("alice", subscribe=["sport"])]})
        await alice.confirm()
        assert (await response(await show(host, unused))).startswith(b"530 NOT-ALLOWED")


async def test_the_end_of_a_feed_is_no_defect(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with serving(store, clients=[client("alice")]) as host:
        alice = await enter(host, "alice")
        feed = await show(host, await lease(alice, b"(Get news From_current)"))
        assert await response(feed) == b"200 OK Feed 'news' ready"
        await feed.done()
        await feed.ended()
        # Its connection is there until this client has closed it.
        await reload(host.server, lambda _: {"clients": [client("alice", subscribe=["*"], delete=[])]})
        await alice.confirm()
        feed.close()
        await eventually(lambda: host.connections == 1)
        assert host.server.ended[Kind.FEED].connections == 1
    assert "defect" not in caplog.text
    assert "'alice' (feed) disconnected after" in caplog.text


async def test_a_node_of_its_own_needs_no_right(store: Path) -> None:
    async with serving(store, clients=[client("alice")]) as host, peer(host.port) as alice:
        await alice.authenticate("PLAIN", b"\0alice\0" + SECRET.encode())
        await alice.open()
        await alice.say(Attach("reply", 0, True, source=source(None, dynamic=True), target=target("here")))
        await alice.until(Attach)
        await reload(host.server, lambda _: {"clients": [client("alice", subscribe=["news"])]})
        await alice.say(Attach("other", 1, True, source=source(None, dynamic=True), target=target("here")))
        await alice.until(Attach)


async def test_a_fetch_ends_when_the_right_is_lost(store: Path) -> None:
    async with serving(store, clients=[client("alice"), client("bob")]) as host:
        bob = await enter(host, "bob")
        await bob.ask(b"(Declare news Broadcast (Persistent Weak))")
        for _ in range(40):
            await bob.say(b"(Publish news %s)" % (b"x" * 500_000))
        await bob.confirm(40)
        alice = await host.open(receive_octets=4096)
        await alice.send(VERSION_ONE + b"(Connect 1 alice:%s)\n" % SECRET.encode())
        await alice.octets(8)
        await alice.say(b"(Fetch news 1 20)", b"(Fetch news 1 40)")
        await eventually(
            lambda: any(each.is_sending for each in (t.statistics() for t in host.server.terminals()))
        )
        await reload(
            host.server, lambda _: {"clients": [client("alice", subscribe=["sport"]), client("bob")]}
        )
        octets = 0
        while isinstance(frame := await alice.frame(), StoredBlock):
            octets += len(frame.value)
            assert octets < 9_000_000
        assert frame == (refusal := Error(b"Fetch news: this client may not subscribe to it"))
        # The one that had not begun is refused as well; the connection itself may stay.
        assert await alice.frame() == refusal
        await alice.confirm(0)


async def test_the_topics_of_a_client_count_when_it_is_configured_again(store: Path) -> None:
    async with serving(store, clients=[client("alice", max_topics=2), client("bob")]) as host:
        await (await enter(host, "alice")).ask(b"(Declare news Broadcast Transient)")
        for most, counted in (2, b"2 topics"), (1, b"1 topic"):
            await configure(host.server, [client("bob")])
            await eventually(lambda: not host.connections)
            again = [client("alice", max_topics=most), client("bob")]
            await configure(host.server, again)
            alice = await enter(host, "alice")
            await alice.ask(b"(Declare sport Broadcast Transient)")
            assert await alice.ask(b"(Declare chess Broadcast Transient)") == Error(
                b"Declare chess: this client has its %b, the most it may have" % counted
            )


async def test_addresses_are_clients_whose_quotas_change_too(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe one From_current)")
        await reload(host.server, lambda _: {"max_subscriptions": 2})
        refused = await client.ask(b"(Subscribe two From_current)")
        assert refused == Error(b"Subscribe two: this address has its 1 subscription, the most it may have")
        await client.confirm()


async def test_a_debt_is_paid_off_at_the_new_rate(store: Path, clock: MockClock) -> None:
    def alice_at(rate: int | None) -> dict[str, Any]:
        return {"clients": [client("alice", max_bytes_per_second=rate), client("bob")]}

    async with serving(store, **alice_at(1000)) as host:
        alice, bob = await enter(host, "alice"), await enter(host, "bob")
        await alice.ask(b"(Subscribe news From_current)")
        for rate in (1_000_000_000, None):
            await bob.say(b"(Publish news %s)" % (b"x" * 50_000))
            assert len((await alice.message()).body) == 50_000
            await bob.say(b"(Publish news hello)")
            await bob.confirm()
            await quiet()
            await reload(host.server, lambda _, rate=rate: alice_at(rate))
            before = trio.current_time()
            assert (await alice.message()).body == b"hello"
            assert trio.current_time() - before < 5
            if rate:
                await reload(host.server, lambda _: alice_at(1000))


async def test_a_changed_rate_limit_applies_to_limited_clients() -> None:
    rates = Rates.of(1000)
    assert rates.changed(500) is rates
    assert [limit.octets_per_second for limit in (rates.received, rates.sent, rates.answered) if limit] == [
        500
    ] * 3
    assert rates.changed(None) is UNLIMITED
    assert rates.received is not None
    assert rates.received.octets_per_second > 1 << 40
    fresh = UNLIMITED.changed(700)
    assert UNLIMITED.received is None
    assert fresh.received is not None
    assert fresh.received.octets_per_second == 700


async def test_a_round_that_a_reload_interrupts_ends_with_the_rights_of_now(store: Path) -> None:
    async with serving(store, clients=[client("all", watch=["*"])]) as host:
        writer = await enter(host, "all")
        await declare(writer, 1500)
        slow = await host.open(receive_octets=4096)
        await slow.send(VERSION_ONE + b"(Connect 1 all:%s)\n(Watch 3600000)\n" % SECRET.encode())
        await eventually(
            lambda: any(each.is_sending for each in (t.statistics() for t in host.server.terminals()))
        )
        await reload(host.server, lambda _: {"clients": [client("all", watch=["topic-0149*"])]})
        await slow.octets(8)
        assert await watched(slow) == w.Began(3_600_000)
        told = list(topics(await round_of(slow)))
        sent_before = len(told) - 10
        assert 0 < sent_before < 1400
        assert set(told[sent_before:]) == {b"topic-%05d" % n for n in range(1490, 1500)}


async def test_a_watcher_sees_the_limits_of_now_of_every_topic(store: Path) -> None:
    async with serving(store, retention_bytes=1 << 20) as host:
        client = await host.connect()
        await client.ask(b"(Declare stored Broadcast (Persistent Weak))")
        await client.ask(b"(Declare passing Broadcast Transient)")
        await reload(host.server, lambda _: {"retention_bytes": 1 << 21, "retention_seconds": 60.0})
        seen = topics(await begin(client, PERIOD))
        limits = {name: (found.retention_octets, found.retention_ms) for name, found in seen.items()}
        assert limits == dict.fromkeys((b"stored", b"passing"), (1 << 21, 60_000))
