"""Clients that do it wrong, by mistake or on purpose: each is answered as the protocol says, and nobody else
notices anything.
"""

from pathlib import Path

import pytest
import trio
import trio.lowlevel

from omq.model import Topic
from omq.protocol.omq.types import Confirmed, Declared, Error, Subscribed

from .busy_server import MIB, only_error, still_good, undisturbed
from .conversation import (
    CONNECT,
    VERSION_ONE,
    Conversation,
    declared,
    quoted,
)


async def test_a_wrong_version(store: Path) -> None:
    async with undisturbed(store) as host:
        client = await host.open()
        await client.send(bytes.fromhex("00000000000000ff") + CONNECT)
        assert await client.octets(8) == b"\xff" * 8
        await client.ended()


async def test_a_truncated_handshake(store: Path) -> None:
    async with undisturbed(store) as host:
        client = await host.open()
        await client.send(VERSION_ONE[:5])
        await client.done()
        await client.ended()
        vanished = await host.open()
        await vanished.send(VERSION_ONE[:5])
        vanished.reset()


@pytest.mark.parametrize(
    "line",
    [
        b"(Publish early x)",
        b"(Subscribe early From_beginning)",
        b"Topics",
        b"(Confirm 1)",
        b"(Ack (2026-01-01 00:00:00Z))",
        b"(Nonsense",
        b"(connect 1)",
    ],
)
async def test_commands_before_connect(store: Path, line: bytes) -> None:
    async with undisturbed(store) as host:
        client = await host.open()
        await client.send(VERSION_ONE + line + b"\n" + CONNECT + b"(Publish early y)\n")
        assert await client.octets(8) == VERSION_ONE
        assert (await only_error(client)).startswith(b"Connect: ")
        assert b"early" not in await host.topics()


async def test_a_second_connect(store: Path) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        assert (await client.refusal(b"(Connect 1 again)")).startswith(b"Connect 1: ")
        await still_good(client)


@pytest.mark.parametrize(
    ("line", "start"),
    [
        (b"(Frobnicate x)", b"Unknown command Frobnicate"),
        (b"Frobnicate", b"Unknown command Frobnicate"),
        (b'("" x)', b"Unknown command "),
        (b"(SUBSCRIBE t From_current)", b"Unknown command SUBSCRIBE"),
        (b"((Subscribe t From_current))", b"Bad command: "),
        (b"()", b"Bad command: "),
        # wrong arity
        (b"(Subscribe t)", b"Subscribe t: "),
        (b"(Subscribe t From_current now)", b"Subscribe t: "),
        (b"(Publish t)", b"Publish t: "),
        (b"(Publish t a b)", b"Publish t: "),
        (b"Publish", b"Publish: "),
        (b"(Publish)", b"Publish: "),
        (b"(Topics)", b"Topics: "),
        (b"(Topics t)", b"Topics: "),
        (b"(Confirm)", b"Confirm: "),
        (b"(Declare t Broadcast)", b"Declare t: "),
        # wrong types
        (b"(Subscribe t Sometime)", b"Subscribe t: "),
        (b"(Subscribe t (From_message x))", b"Subscribe t: "),
        (b"(Subscribe (t) From_current)", b"Subscribe: "),
        (b"(Publish t (a))", b"Publish t: "),
        (b"(Declare t Multicast Transient)", b"Declare t: "),
        (b"(Declare t Broadcast Persistent)", b"Declare t: "),
        (b"(Confirm 9223372036854775808)", b"Confirm 9223372036854775808: "),
        (b"(Confirm one)", b"Confirm one: "),
        (b"(Ack sometime)", b"Ack sometime: "),
        (b"(Ack (1/99999999999/2013 10:01))", b"Ack: "),
        # bad sexps
        (b"(Publish t x", b"Bad sexp: "),
        (b"(Publish t x))", b"Bad sexp: "),
        (b")", b"Bad sexp: "),
        (b'(Publish t "x)', b"Bad sexp: "),
        (b'(Publish t "\\400")', b"Bad sexp: "),
        (b"(Publish t x) (Publish t y)", b"Bad sexp: "),
        (b"#| no end", b"Bad sexp: "),
    ],
)
async def test_lines_that_are_no_commands(store: Path, line: bytes, start: bytes) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        text = await client.refusal(line)
        assert text.startswith(start), text
        assert b"\n" not in text
        await client.say(b"Topics")
        await client.frame()
        # A Publish that was refused makes the next Confirm fail; nothing else does.
        answer = await client.ask(b"(Confirm 5)")
        if b"ublish" in line:
            assert isinstance(answer, Error)
            assert answer.text.startswith(b"Confirm 5: ")
        else:
            assert answer == Confirmed(5)
        await still_good(client)


async def test_a_line_of_ten_mebibytes(store: Path) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_if_it_can, client, b"(Publish huge " + b"x" * (10 * MIB) + b")\n")
            assert (await only_error(client)).startswith(b"Publish huge: ")
        assert b"huge" not in await host.topics()


async def test_ten_mebibytes_without_a_line_feed(store: Path) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_if_it_can, client, b"x" * (10 * MIB))
            assert b"1048576" in await only_error(client)


async def test_the_longest_line_is_taken_and_one_octet_more_is_not(store: Path) -> None:
    async with undisturbed(store, max_line_bytes=4096) as host:
        client = await host.connect()
        longest = b"(Publish long " + b"x" * (4096 - 15) + b")"
        assert len(longest) == 4096
        await client.ask(b"(Subscribe long From_current)")
        await client.say(longest)
        assert len((await client.message()).body) == 4096 - 15
        await client.say(longest[:-1] + b"x)")
        assert (await only_error(client)).startswith(b"Publish long: ")


async def _send_if_it_can(client: Conversation, octets: bytes) -> None:
    try:
        await client.send(octets)
    except trio.BrokenResourceError:
        pass  # the server may close before it has read all


@pytest.mark.parametrize("octets", [b"(" * 100_000, b"(" * 100_000 + b")" * 100_000, b")" * 100_000])
async def test_a_hundred_thousand_parentheses(store: Path, octets: bytes) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        assert (await client.refusal(octets)).startswith(b"Bad sexp: ")
        await still_good(client)


async def test_any_octets_in_topic_and_body_survive(store: Path) -> None:
    every = bytes(range(256))
    topic = every[:255]
    named = Topic(1, topic)
    async with undisturbed(store) as host:
        client = await host.connect()
        assert await client.ask(b"(Subscribe " + quoted(topic) + b" From_beginning)") == Subscribed(named)
        bodies = [every * 3, b"", b"\x00", b"\x00" * 1000, b"\xff\xfe\xc3(", b"\r\n", b'"\\"']
        for body in bodies:
            await client.say(b"(Publish " + quoted(topic) + b" " + quoted(body) + b")")
        # Raw octets need no escapes within quotes, except for the quote, the backslash and the line feed.
        raw = bytes(octet for octet in range(256) if octet not in b'"\\\n')
        await client.say(b"(Publish " + quoted(topic) + b' "' + raw + b'")')
        assert await client.bodies(len(bodies) + 1) == [*bodies, raw]
        info = (await client.topics())[topic]
        assert info.messages == len(bodies) + 1
        again = await host.connect()
        await again.ask(b"(Subscribe " + quoted(topic) + b" From_beginning)")
        assert await again.bodies(len(bodies) + 1) == [*bodies, raw]


@pytest.mark.parametrize(
    "command",
    [
        b"(Publish %s x)",
        b"(Subscribe %s From_current)",
        b"(Declare %s Broadcast Transient)",
        b"(Delete %s)",
        b"(Unsubscribe %s)",
        b"(Request %s 1)",
        b"(Received %s 1)",
    ],
)
@pytest.mark.parametrize("topic", [b'""', b"x" * 256], ids=["empty", "256 octets"])
async def test_a_topic_without_a_name_or_with_too_long_a_one(
    store: Path, command: bytes, topic: bytes
) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        text = await client.refusal(command % topic)
        assert text.startswith(command[1:].partition(b" ")[0] + b" "), text
        assert set(await client.topics()) == {b"others"}
        longest = b"x" * 255
        assert isinstance(await client.ask(b"(Declare %s Broadcast Transient)" % longest), Declared)


async def test_unsubscribing_without_a_subscription_is_refused(store: Path) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        assert (await client.refusal(b"(Unsubscribe others)")).startswith(b"Unsubscribe others: ")
        assert (await client.refusal(b"(Unsubscribe nobody)")).startswith(b"Unsubscribe nobody: ")
        assert b"nobody" not in await client.topics()
        await still_good(client)


async def test_replay_of_an_unsuitable_topic_is_refused(store: Path) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare fleeting Broadcast Transient)")
        await client.ask(b"(Declare shared Round_robin (Persistent Weak))")
        for topic in (b"fleeting", b"shared"):
            for replay in (b"From_beginning", b"(From_message 1)"):
                text = await client.refusal(b"(Subscribe %s %s)" % (topic, replay))
                assert text.startswith(b"Subscribe %s: " % topic)
        await still_good(client)


async def test_declaring_with_other_types(store: Path) -> None:
    async with undisturbed(store) as host:
        client = await declared(host, b"Round_robin (Persistent Strong)")
        for types in (b"Broadcast (Persistent Strong)", b"Round_robin (Persistent Weak)"):
            assert (await client.refusal(b"(Declare t %s)" % types)).startswith(b"Declare t: ")
        assert (await client.refusal(b"(Declare others Round_robin Transient)")).startswith(b"Declare others")
        await still_good(client)


@pytest.mark.parametrize("command", [b"Fetch", b"Blocks"])
async def test_bulk_reading_refuses_unreadable_topics(store: Path, command: bytes) -> None:
    async with undisturbed(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare fleeting Broadcast Transient)")
        await client.ask(b"(Declare shared Round_robin (Persistent Weak))")
        await client.ask(b"(Declare kept Broadcast (Persistent Weak))")
        for topic, range_ in (
            (b"fleeting", b"1 1"),
            (b"shared", b"1 1"),
            (b"unknown", b"1 1"),
            (b"kept", b"0 1"),
            (b"kept", b"-9223372036854775808 9223372036854775807"),
            (b"kept", b"2 1"),
            (b"kept", b"1 -1"),
        ):
            text = await client.refusal(b"(%s %s %s)" % (command, topic, range_))
            assert text.startswith(b"%s %s: " % (command, topic))
        await still_good(client)
