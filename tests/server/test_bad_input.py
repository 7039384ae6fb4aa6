"""Clients that do it wrong, by mistake or on purpose: each is answered as the protocol says, and nobody else
notices anything.
"""

import logging
import resource
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from quietness import quiet
from trio.testing import MockClock

from omq.logs import LINES, SECONDS
from omq.model import Delivery, Topic
from omq.protocol.omq.types import Confirmed, Declared, Deleted, Error, Message, Subscribed

from .conversation import (
    CONNECT,
    VERSION_ONE,
    Conversation,
    InProcess,
    answers_pile_up,
    declared,
    eventually,
    publish,
    quoted,
    serving,
)

MIB = 1 << 20

NOTICEABLE_SECONDS = 1.0
"""How long the server may work on something else while one message of the others is on its way. This is the
processor time of its thread: other programs of a busy machine do not count.
"""


class ServerUnderLoad(InProcess):
    """A server in this process, beside whose test others exchange messages."""

    exchanged = 0
    """How many messages they have exchanged."""

    async def pass_time(self, clock: MockClock, seconds: float) -> None:
        """Let time pass, and then the others exchange a message. Without that, a test that jumps again and
        again takes away the time in which their message, which is stored, must arrive.
        """
        clock.jump(seconds)
        before = self.exchanged
        await eventually(lambda: self.exchanged > before)


@asynccontextmanager
async def undisturbed(store: Path, **settings: Any) -> AsyncIterator[ServerUnderLoad]:
    """Yield a server with a publisher and a subscriber, who must notice nothing of what a test does
    meanwhile.

    At the end nothing may be left of the test's connections: no task, no subscription, no memory.
    """
    async with serving(store, **settings) as served, AsyncExitStack() as stack:
        host = ServerUnderLoad(served.server)
        stack.callback(host.hang_up)
        subscriber, publisher = await host.connect(), await host.connect()
        answer = await subscriber.ask(b"(Subscribe others From_current)")
        assert isinstance(answer, Subscribed)
        await publisher.say(b"(Publish others 0)")
        assert await subscriber.message() == Message(1, answer.topic.id, b"0")
        number = 0
        stopping = False
        tasks = trio.lowlevel.current_statistics().tasks_living

        async def exchange() -> None:
            nonlocal number
            number += 1
            began = time.thread_time()
            await publisher.say(b"(Publish others %d)" % number, b"(Ack (2026-01-01 00:00:00Z))")
            assert await subscriber.message() == Message(number + 1, answer.topic.id, b"%d" % number)
            assert time.thread_time() - began < NOTICEABLE_SECONDS
            await subscriber.say(b"(Ack (2026-01-01 00:00:00Z))")
            host.exchanged += 1

        async def keep_exchanging() -> None:
            while not stopping:
                await exchange()
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_exchanging)
            yield host
            stopping = True
        host.hang_up(subscriber, publisher)
        await eventually(lambda: host.connections == 2 and host.handshakes == 0)
        await exchange()
        await publisher.confirm()
        topics = await publisher.topics()
        # Each round-robin topic has a task of its own.
        tasks += sum(info.delivery is Delivery.ROUND_ROBIN for info in topics.values())
        await eventually(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)
        assert {name: info.subscribers for name, info in topics.items() if info.subscribers} == {b"others": 1}
        assert host.memory_used == 0


async def still_good(client: Conversation) -> None:
    """Check that the connection goes on as if nothing had happened."""
    await client.confirm(77)


async def only_error(client: Conversation) -> bytes:
    """Return the sentence of the Error that is the last thing the server says before it ends the
    connection.
    """
    (frame,) = await client.rest()
    assert isinstance(frame, Error)
    return frame.text


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


async def test_a_client_that_never_reads_its_answers(store: Path, clock: MockClock) -> None:
    async with undisturbed(store, ping_seconds=1) as host:
        client = await host.connect(receive_octets=4096)

        async def ask_and_ask() -> None:
            while True:
                await client.stream.send_all(b"(Nonsense)\n" * 10_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_and_ask)
            # The server has more to say than the socket takes, and stops listening.
            await answers_pile_up(host)
            nursery.cancel_scope.cancel()
        for _ in range(10):
            await host.pass_time(clock, 1)
        await eventually(lambda: host.connections <= 3)
        for _ in range(3):
            await host.pass_time(clock, 1)
        await eventually(lambda: host.connections == 2)


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
async def test_a_subscriber_that_never_reads(store: Path, clock: MockClock, persistence: bytes) -> None:
    async with undisturbed(store, memory_bytes=4 * MIB, max_message_bytes=MIB, ping_seconds=8) as host:
        publisher = await host.connect()
        await publisher.ask(b"(Declare much Broadcast %s)" % persistence)
        client = await host.connect(receive_octets=4096)
        await client.say(b"(Subscribe much From_current)")
        for _ in range(25):
            await publisher.send(publish(b"much", [b"x" * 16000] * 50))
            await publisher.settle()
        for _ in range(60):
            await publisher.say(b"(Ack (2026-01-01 00:00:00Z))")
            await publisher.settle()
            await host.pass_time(clock, 1)
        await eventually(lambda: host.connections == 3)


async def test_an_octet_a_second(store: Path, clock: MockClock) -> None:
    async with undisturbed(store) as host:
        hello, line = await host.open(), await host.connect()
        text = b"(Publish slow " + b"x" * 300
        await hello.send(VERSION_ONE[:1])
        await eventually(lambda: host.handshakes == 1)
        for second in range(200):
            if second in (2, 4, 6, 8):
                await hello.send(VERSION_ONE[:1])
            elif second == 12:
                await hello.ended()  # ten seconds for the handshake, however it is dealt out
            try:
                await line.stream.send_all(text[second : second + 1])
            except trio.BrokenResourceError:
                break
            await host.pass_time(clock, 1)
        frames = await line.rest()
        assert len(line.pings) == 3
        assert isinstance(frames[-1], Error)
        assert frames[-1].text.startswith(b"Ping: ")


@pytest.mark.parametrize(
    "octets",
    [
        b"(Publish t",
        b"(Publish t x)\n(Subscribe t From_beginning)\n(Publish t " + b"y" * 100_000,
        b"(Publish t x)\n" * 5000 + b"(Publish t ",
        b"(Confirm 1)\n" * 5000 + b"Top",
    ],
    ids=["a command", "a long command", "after many messages", "with answers unread"],
)
async def test_a_reset_in_the_middle_of_a_command(store: Path, octets: bytes) -> None:
    async with undisturbed(store) as host:
        for _ in range(5):
            client = await host.connect()
            await client.send(octets)
            client.reset()
            await eventually(lambda: host.connections == 2)
        publisher = await host.connect()
        await publisher.confirm()


async def test_a_reset_of_a_publisher_to_full_topics_gives_back_its_memory(store: Path) -> None:
    async with undisturbed(store, memory_bytes=8 * MIB, max_message_bytes=MIB) as host:
        owner = await host.connect()
        names = [b"t%d" % number for number in range(20)]
        for name in names:
            await owner.ask(b"(Declare %s Round_robin Transient)" % name)
        for _ in range(10):
            client = await host.connect()
            lines = [publish(name, [b"x" * 1000] * 10) + b"(Nonsense)\n" for name in names]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, b"".join(lines))
                await quiet()  # the server has taken what it can: the last ones find full topics
                nursery.cancel_scope.cancel()
            client.reset()
        # Those that wait for room are let go with the topic they wait for.
        for name in names:
            assert isinstance(await owner.ask(b"(Delete %s)" % name), Deleted)
        await eventually(lambda: host.connections == 3)
        await eventually(lambda: host.memory_used == 0)


@pytest.mark.parametrize("memory", [4 * MIB, 64 * MIB], ids=["little memory", "the default"])
async def test_many_large_messages_at_once_do_not_use_up_the_memory_for_ever(
    store: Path, memory: int
) -> None:
    async with undisturbed(store, memory_bytes=memory, max_message_bytes=MIB) as host:
        clients = [await host.connect() for _ in range(24)]
        octets = b"(Publish large %s)\n" % (b"x" * 900_000)
        # Each has begun its message before the first one ends its own.
        for client in clients:
            await client.send(octets[:100_000])

        async def publish_one(client: Conversation) -> None:
            await client.send(octets[100_000:])
            await client.confirm()

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(publish_one, client)
        assert (await host.topics())[b"large"].messages == 24


async def test_long_lines_that_never_end_do_not_keep_others_from_publishing(
    store: Path,
) -> None:
    async with undisturbed(store) as host:
        for _ in range(20):
            client = await host.connect()
            await client.send(b"(Publish t " + b"x" * 100_000)
        large = await host.connect()
        await large.say(b"(Publish large %s)" % (b"x" * 200_000))
        await large.confirm()


async def test_long_lines_that_do_not_go_on_give_way(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """They hold all the memory for incomplete lines, and others have theirs through at once all the same."""
    caplog.set_level(logging.INFO)
    async with undisturbed(store) as host:
        stopped = [await host.connect() for _ in range(80)]
        for client in stopped:
            await client.send(b"(Publish t " + b"x" * 100_000)
        unfinished = host.server.memory.unfinished
        await eventually(lambda: unfinished.waiting > 0)
        await host.pass_time(clock, 3)  # longer than they may send nothing while others wait
        await eventually(lambda: unfinished.waiting == 0)
        await host.pass_time(clock, 3)
        before = trio.current_time()
        large = await host.connect()
        for _ in range(3):
            await large.say(b"(Publish large %s)" % (b"x" * 600_000))
        await large.confirm(3)
        assert trio.current_time() - before < 2  # none of the 80 had to be waited for
        told = [b"Line: it took too long to complete while others wait for its memory"]
        ended = 0
        for client in stopped:
            client.stream.socket.shutdown(trio.socket.SHUT_WR)
            errors = [frame.text for frame in await client.rest() if isinstance(frame, Error)]
            ended += errors == told
        assert 15 <= ended <= 40  # as many as was needed, and no more
        why = "it took too long to complete a line while others wait for its memory"
        closed = [record for record in caplog.records if record.message.endswith(f": closed: {why}")]
        assert len(closed) == LINES
        assert {vars(record)["client"] for record in closed} == {"test"}
        assert len({vars(record)["peer"] for record in closed}) == LINES
        clock.jump(SECONDS)
        more = f"connections were closed because others needed their memory: {ended - LINES} more"
        await eventually(lambda: more in caplog.messages)


async def test_a_lone_slow_line_may_take_as_long_as_it_likes(store: Path, clock: MockClock) -> None:
    """It holds a share of the memory for incomplete lines, but nobody waits for it."""
    async with undisturbed(store, max_line_bytes=MIB) as host:
        client = await host.connect()
        line = b"(Publish slow " + b"x" * 200_000 + b")\n"
        await client.send(line[:100_000])
        await eventually(lambda: host.server.memory.unfinished.used > 0)
        for second in range(0, 30, 3):
            await host.pass_time(clock, 3)
            await client.send(line[100_000 + second : 100_003 + second])
            assert b"others" in await host.topics()
        await client.send(line[100_030:])
        await client.confirm()
        assert (await host.topics())[b"slow"].messages == 1


async def test_a_thousand_connections_that_say_nothing(store: Path, clock: MockClock) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    count = min(1000, (wanted - 200) // 2)  # both ends of each are in this process
    try:
        async with undisturbed(store) as host:
            silent = [await host.open() for _ in range(count)]
            await eventually(lambda: host.handshakes == count)
            assert b"others" in await host.topics()
            clock.jump(10)
            for client in silent:
                await client.ended()
            assert host.handshakes == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
