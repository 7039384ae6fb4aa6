"""Answers: their order, blank lines, and how a connection ends that its client half-closes."""

from pathlib import Path

import pytest
import trio

from omq.model import Topic
from omq.protocol.omq.frames import encode
from omq.protocol.omq.types import Confirmed, Declared, Error, Message, Subscribed, TopicList, Unsubscribed
from omq.terminals.omq.replies import ANSWER_OCTETS, MOST_REPLY_OCTETS

from .conversation import CONNECT, VERSION_ONE, declared, numbered, publish, serving


async def test_answers_come_in_the_order_of_the_commands(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Declare t Broadcast (Persistent Strong))", b"(Declare fast Broadcast Transient)")
        assert await client.frame() == Declared(Topic(0, b"t"))
        assert await client.frame() == Declared(Topic(1, b"fast"))
        for round in range(20):
            # Those that must wait for the disk hold back those that need not.
            await client.say(
                b"(Publish t %d)" % round,
                b"(Confirm 1)",
                b"(Nonsense)",
                b"Topics",
                b"(Publish fast %d)" % round,
                b"(Confirm 2)",
                b"(Publish t again)",
                b"(Unsubscribe t)",
                b"(Confirm 3)",
                b"(Confirm 3)",
            )
            assert await client.frame() == Confirmed(1)
            assert (await client.error()).startswith(b"Unknown command Nonsense")
            topics = await client.frame()
            assert isinstance(topics, TopicList)
            # Messages after it may have been stored already, but those before it must be.
            assert topics.topics[0].messages in (2 * round + 1, 2 * round + 2)
            assert await client.frame() == Confirmed(2)
            assert (await client.error()).startswith(b"Unsubscribe t: ")
            assert await client.frame() == Confirmed(3)
            assert await client.frame() == Confirmed(3)


async def test_subscribed_comes_before_the_first_message(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        await client.send(publish(b"t", numbered(1, 100)))
        await client.say(b"(Confirm 1)", b"(Subscribe t From_beginning)", b"(Publish t 101)", b"(Confirm 2)")
        assert await client.frame() == Confirmed(1)
        assert await client.frame() == Subscribed(Topic(0, b"t"))
        frames = [await client.frame() for _ in range(102)]
        assert Confirmed(2) in frames
        assert [frame.body for frame in frames if isinstance(frame, Message)] == numbered(1, 101)


async def test_blank_lines_and_comments_are_skipped(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(VERSION_ONE + b"\n\r\n  \t\n; hello\n#| a\tcomment |#\n" + CONNECT)
        await client.send(
            b"\n\n; (Nonsense)\n#;(Nonsense)\n (Confirm 1) ; really\r\n\r\n#| x |# (Confirm 2)\n"
        )
        assert await client.octets(8) == VERSION_ONE
        assert await client.frame() == Confirmed(1)
        assert await client.frame() == Confirmed(2)
        await client.confirm(3)


@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
async def test_lines_may_be_cut_anywhere(store: Path, pieces: int) -> None:
    octets = (
        publish(b"t", numbered(1, 30)) + b"(Nonsense)\n" + publish(b"u", numbered(1, 9)) + b"(Confirm 1)\n"
    )
    async with serving(store) as host:
        subscriber, client = await host.connect(), await host.connect()
        await subscriber.ask(b"(Subscribe t From_current)")
        for start in range(0, len(octets), pieces):
            await client.send(octets[start : start + pieces])
        assert isinstance(await client.frame(), Error)
        assert await client.frame() == Confirmed(1)
        assert await subscriber.bodies(30) == numbered(1, 30)


async def test_a_half_close_gets_all_answers_and_then_the_end(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        await client.send(
            publish(b"t", numbered(1, 5000)) + b"(Subscribe t From_beginning)\n(Confirm 1)\nTopics\n"
        )
        await client.done()
        frames = await client.rest()
        others = [frame for frame in frames if not isinstance(frame, Message)]
        assert [type(frame) for frame in others] == [Subscribed, Confirmed, TopicList]
        # These had been stored when the client finished; all of them, as the Confirm came before the end.
        received = [frame.id for frame in frames if isinstance(frame, Message)]
        assert received == list(range(1, len(received) + 1))
        again = await host.connect()
        await again.say(b"(Subscribe t From_beginning)")
        await again.done()
        subscribed, *messages = await again.rest()
        assert isinstance(subscribed, Subscribed)
        assert [message.id for message in messages if isinstance(message, Message)] == list(range(1, 5001))


async def test_a_half_close_ends_an_endless_subscription(store: Path) -> None:
    async with serving(store) as host:
        client, publisher = await host.connect(), await host.connect()
        await client.ask(b"(Subscribe t From_current)")
        await publisher.send(publish(b"t", numbered(1, 10)))
        assert await client.ids(10) == list(range(1, 11))
        await client.done()
        await client.ended()


@pytest.mark.parametrize("rest", [b"(Confirm 2)", b"(Publ", b'(Publish t "', b"\x00"])
async def test_an_incomplete_last_line_gets_an_error(store: Path, rest: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.send(b"(Publish t x)\n(Confirm 1)\n" + rest)
        await client.done()
        first, second = await client.rest()
        assert first == Confirmed(1)
        assert isinstance(second, Error)
        assert second.text.startswith(b"Bad sexp: ")


async def test_the_whole_conversation_may_be_one_segment(store: Path) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(
            VERSION_ONE
            + CONNECT
            + b"(Declare t Broadcast (Persistent Weak))\n(Subscribe t From_current)\n"
            + b"(Publish t hello)\n(Confirm 1)\n(Unsubscribe t)\n"
        )
        await client.done()
        assert await client.octets(8) == VERSION_ONE
        frames = await client.rest()
        named = Topic(0, b"t")
        assert [frame for frame in frames if not isinstance(frame, Message)] == [
            Declared(named),
            Subscribed(named),
            Confirmed(1),
            Unsubscribed(named),
        ]


async def test_many_unread_answers_are_not_lost(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.send(b"".join(b"(Confirm %d)\n" % n for n in range(20_000)))
        for n in range(20_000):
            assert await client.frame() == Confirmed(n)


@pytest.mark.parametrize(
    ("command", "count"),
    [(b"(Blocks t 1 100)", 3000), (b"(Subscribe t From_current)", 20_000), (b"(Nonsense)", 20_000)],
)
async def test_unread_answers_take_little_memory(store: Path, command: bytes, count: int) -> None:
    """They are bounded in octets: their number alone would allow for a thousand long ones."""
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        for _ in range(100):
            await client.send(publish(b"t", [b"a block"]))
            await client.confirm()
        before = set(host.server.terminals())
        flood = await host.connect(receive_octets=4096)
        await flood.settle()
        (terminal,) = set(host.server.terminals()) - before
        longest = len(encode(await client.ask(command)))
        most = 0

        async def send() -> None:
            await flood.say(*[command] * count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            # Once nothing moves any more, the client has to read.
            still = 0
            while still < 20:
                was = terminal.statistics()
                await client.settle()
                now = terminal.statistics()
                moved = (was.octets_out, was.waiting_answers) != (now.octets_out, now.waiting_answers)
                still = 0 if moved else still + 1
                most = max(most, now.held.answers)
            assert most <= MOST_REPLY_OCTETS + longest + ANSWER_OCTETS
            assert most or longest * count < 4 << 20  # which the kernel may hold
            for _ in range(count):
                await flood.frame()
        assert terminal.statistics().held.answers == 0
