"""The sending side of a connection by itself: whose turn it is, how fast, and in which form."""

import gc
import math
import weakref
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from counted_steps import watched
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.access.limits import RateLimit
from omq.drivers.errands import Errands
from omq.drivers.seam import Channel, CursorChannel, Octets, Outlet
from omq.drivers.stalled import Stalled
from omq.drivers.tail import Tail, TailMemory
from omq.terminals.connection.pace import Pace
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.shared_turns import MOST_SHARES
from omq.terminals.connection.transport import Transport
from omq_storage import codec
from omq_storage.blocks import Block, encode

from .conversation import publish
from .transports import connected, said


@asynccontextmanager
async def sending(
    memory: TailMemory | None = None,
) -> AsyncIterator[tuple[Sender, Transport, trio.SocketStream, trio.Nursery]]:
    """Yield a sender that has not begun, its transport, the stream at the other end, and a nursery for its
    task.
    """
    async with connected() as (transport, stream), trio.open_nursery() as nursery:
        memory = memory or TailMemory(1 << 20)
        sender = Sender(transport, Stalled(0), memory, Pace(), nursery.cancel_scope, Errands().begin)
        yield sender, transport, stream, nursery
        nursery.cancel_scope.cancel()


class WordSource:
    """A source that has a number of words to say, one in each turn."""

    flow: CursorChannel | None = None
    work = None
    after = 0

    def __init__(self, sender: Sender, words: str, *, is_exempt: bool = False) -> None:
        self._sender = sender
        self._words = list(words)
        self.is_exempt = is_exempt

    async def take_turn(self) -> bool:
        await self._sender.forwarder.send([self._words.pop(0).encode()])
        return bool(self._words)


class Terminal:
    """A terminal whose urgent words are given to it."""

    def __init__(self, *urgent: bytes) -> None:
        self.answers = list(urgent)
        self.pings: list[bytes] = []
        self.ping_at = math.inf
        self.is_over = False

    def urgent(self, *, may_answer: bool) -> Sequence[Octets]:
        if trio.current_time() >= self.ping_at:
            self.ping_at = math.inf
            return (b"!",)
        return (self.answers.pop(0),) if may_answer and self.answers else ()

    def urgent_sent(self) -> None:
        pass

    def may_forward(self) -> bool:
        return True

    def has_ended(self) -> bool:
        return self.is_over

    def due(self) -> float:
        return self.ping_at

    def channels(self) -> Iterable[Channel]:
        return ()


async def test_answers_go_first_and_sources_take_turns() -> None:
    async with sending() as (sender, _, stream, nursery):
        for words in ("abc", "ABC", "1"):
            sender.ready(WordSource(sender, words))
        terminal = Terminal(b"?", b"?")
        nursery.start_soon(sender.run, terminal, nursery)
        assert await said(stream, 9) == b"??aA1bBcC"
        terminal.answers.append(b"?")
        sender.ready(WordSource(sender, "de"))
        assert await said(stream, 3) == b"?de"


async def test_sources_have_their_turns_although_a_backlog_never_ends() -> None:
    async with sending() as (sender, _, stream, nursery):
        nursery.start_soon(sender.run, Terminal(b"?"), nursery)
        assert await said(stream, 1) == b"?"
        sender.backlog.add(b"." * (1 << 18))
        for words in ("ab", "AB"):
            sender.ready(WordSource(sender, words))
        heard = b""
        for _ in range(200):
            sender.backlog.add(b"." * 10_000)
            heard += (await said(stream, 10_000)).replace(b".", b"")
        assert heard == b"aAbB"
        assert sender.backlog.entries


class TopicWordSource(WordSource):
    """Words of a topic; octets of the connection that were pushed must leave before them."""

    def __init__(self, sender: Sender, words: str, after: int) -> None:
        super().__init__(sender, words)
        self.flow: CursorChannel = self
        self.after = after
        self.position = 1

    def attach(self, outlet: Outlet) -> None:
        raise AssertionError("nothing is pushed here")

    def ready(self) -> bool:
        return True

    def at_hand(self, octets: int) -> Sequence[Block]:
        return ()

    def passed(self, position: int, octets: int) -> None:
        raise AssertionError("nothing is at hand")


async def test_the_turn_of_a_source_does_not_precede_earlier_pushes() -> None:
    async with sending() as (sender, _, stream, nursery):
        sender.backlog.add(b"." * (1 << 18))
        nursery.start_soon(sender.run, Terminal(), nursery)
        await wait_all_tasks_blocked()  # it sends this
        sender.backlog.add(b"-" * 1000)
        sender.ready(TopicWordSource(sender, "w", sender.pushed))
        sender.backlog.add(b"+")
        assert (await said(stream, (1 << 18) + 1002)).replace(b".", b"") == b"-" * 1000 + b"+w"


class MessageOfATopic(TopicWordSource):
    """One message in the tail of a topic."""

    def __init__(self, sender: Sender, topic: int, after: int) -> None:
        super().__init__(sender, "", after)
        self.block = encode(topic, 1, [b"%d" % topic], 0)

    def ready(self) -> bool:
        return self.position == 1

    def at_hand(self, octets: int) -> Sequence[Block]:
        return (self.block,) if self.ready() else ()

    def passed(self, position: int, octets: int) -> None:
        self.position = position


async def test_a_source_that_shares_a_turn_does_not_precede_earlier_pushes() -> None:
    async with sending() as (sender, _, stream, nursery):
        sender.backlog.add(b"." * (1 << 18))
        nursery.start_soon(sender.run, Terminal(), nursery)
        await wait_all_tasks_blocked()  # it sends this
        sender.backlog.add(b"-" * 1000)
        other, pushed = MessageOfATopic(sender, 1, 0), MessageOfATopic(sender, 2, sender.pushed)
        sender.ready(other)
        sender.ready(pushed)
        assert await said(stream, 1 << 18) == b"." * (1 << 18)
        frames = [bytes(each.block.frames) for each in (other, pushed)]
        expected = frames[0] + b"-" * 1000 + frames[1]
        assert await said(stream, len(expected)) == expected


async def test_other_tasks_have_their_turns_between_the_shared_ones() -> None:
    """A connection may have messages of thousands of topics to send, a few of each."""
    async with sending() as (sender, _, stream, nursery):
        sources = [MessageOfATopic(sender, topic, 0) for topic in range(1000)]
        most = 0

        async def watch() -> None:
            nonlocal most
            before = 0
            while True:
                await trio.lowlevel.checkpoint()
                most = max(most, sender.delivered - before)
                before = sender.delivered

        nursery.start_soon(watch)
        for source in sources:
            sender.ready(source)
        nursery.start_soon(sender.run, Terminal(), nursery)
        expected = b"".join(bytes(source.block.frames) for source in sources)
        assert await said(stream, len(expected)) == expected
        assert 0 < most <= 100


class AskedTopic(MessageOfATopic):
    """Such a topic, whose only message has left; it counts how often the sender asks for messages."""

    asked = 0

    def __init__(self, sender: Sender, topic: int) -> None:
        super().__init__(sender, topic, 0)
        self.position = 2

    def at_hand(self, octets: int) -> Sequence[Block]:
        AskedTopic.asked += 1
        return super().at_hand(octets)

    async def take_turn(self) -> bool:
        return False


async def test_a_turn_looks_at_few_sources_that_have_nothing() -> None:
    """There are thousands when a connection has just subscribed to as many topics."""
    async with sending() as (sender, _, stream, nursery):
        first = MessageOfATopic(sender, 0, 0)
        sender.ready(first)
        for topic in range(1, 20 * MOST_SHARES):
            sender.ready(AskedTopic(sender, topic))
        last = MessageOfATopic(sender, 20 * MOST_SHARES, 0)
        sender.ready(last)
        expected = bytes(first.block.frames) + bytes(last.block.frames)
        with watched(lambda: AskedTopic.asked) as asked:
            nursery.start_soon(sender.run, Terminal(), nursery)
            assert await said(stream, len(expected)) == expected
        assert 0 < asked.largest_rise() <= MOST_SHARES
        assert sender.is_idle


@pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")
async def test_no_turn_begins_in_the_middle_of_a_message_that_was_pushed() -> None:
    async with sending() as (sender, _, stream, nursery):
        sender.backlog.add(b".")
        nursery.start_soon(sender.run, Terminal(), nursery)
        assert await said(stream, 1) == b"."  # now a source may precede what is pushed
        await wait_all_tasks_blocked()
        route = codec.native.Route(1, 1, 1 << 20)
        lane = codec.native.Lane((sender,))
        route.open(lane)
        passed = codec.native.Pass(codec.native.Routes({b"t": route}), None, 1 << 16)
        lines = publish(b"t", [bytes(1000)] * 100)
        codec.native.deal_lines(lines, 0, len(lines), passed)
        sender.push(passed, [0])
        assert sender.backlog.entries
        sender.ready(WordSource(sender, "w"))
        frames = passed.frames[0]
        assert await said(stream, len(frames) + 1) == frames + b"w"


@pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")
async def test_no_turn_begins_in_a_message_whose_followers_were_dropped() -> None:
    """When the memory runs out, the backlog keeps the rest of a message that is begun, and it goes first."""
    memory = TailMemory(1 << 20)
    async with sending(memory) as (sender, transport, stream, nursery):
        sender.backlog.add(b".")
        nursery.start_soon(sender.run, Terminal(), nursery)
        assert await said(stream, 1) == b"."  # now a source may precede what is pushed
        await wait_all_tasks_blocked()
        route = codec.native.Route(1, 1, 1 << 20)
        route.open(codec.native.Lane((sender,)))
        passed = codec.native.Pass(codec.native.Routes({b"t": route}), None, 1 << 16)
        lines = publish(b"t", [b"x" * 30_000] * 2)
        codec.native.deal_lines(lines, 0, len(lines), passed)
        sender.push(passed, [0])
        assert 0 < transport.sent - 1 < len(passed.frames[0]) // 2  # in the middle of the first message
        Tail(memory, 4 << 20).append(encode(1, 1, [bytes(1 << 20)], 0))
        sender.ready(WordSource(sender, "w"))
        first = passed.frames[0][: len(passed.frames[0]) // 2]
        assert await said(stream, len(first) + 1) == first + b"w"


async def test_other_tasks_have_their_turn_between_sends_that_do_not_wait() -> None:
    async with sending() as (sender, transport, stream, nursery):
        seen = [0]

        async def other() -> None:
            while True:
                seen.append(transport.sent)
                await trio.lowlevel.checkpoint()

        sender.ready(WordSource(sender, "a" * 100))
        nursery.start_soon(other)
        nursery.start_soon(sender.run, Terminal(), nursery)
        assert await said(stream, 100) == b"a" * 100
        # Trio gives each task one turn in a round, in either order.
        assert all(after - before <= 2 for before, after in pairwise(seen))


async def test_a_rate_limit_holds_back_answers_and_sources_but_no_exempt_one(clock: MockClock) -> None:
    async with sending() as (sender, transport, stream, nursery):
        answers, messages = RateLimit(1), RateLimit(1)
        sender.limit(answers, messages)
        for limit in (answers, messages):
            limit.spend(100)  # which takes 99 seconds more than may come at once
        terminal = Terminal(b"?")
        sender.ready(WordSource(sender, "a"))
        sender.ready(WordSource(sender, "ex", is_exempt=True))
        nursery.start_soon(sender.run, terminal, nursery)
        assert await said(stream, 2) == b"ex"
        await wait_all_tasks_blocked()
        assert transport.sent == 2
        clock.jump(110)
        assert await said(stream, 2) == b"?a"


async def test_the_sender_sends_due_octets_in_time_and_notices_the_end(clock: MockClock) -> None:
    async with connected() as (transport, stream), trio.open_nursery() as nursery:
        sender = Sender(
            transport, Stalled(0), TailMemory(1 << 20), Pace(), nursery.cancel_scope, Errands().begin
        )
        terminal = Terminal()
        terminal.ping_at = trio.current_time() + 1000
        nursery.start_soon(sender.run, terminal, nursery)
        await wait_all_tasks_blocked()
        assert not transport.sent
        clock.jump(1000)
        assert await said(stream, 1) == b"!"
        terminal.is_over = True
        sender.signal.set()


async def test_an_ended_sender_does_not_refer_to_its_terminal() -> None:
    gc.disable()
    try:
        async with connected() as (transport, _stream):
            sender = Sender(
                transport, Stalled(0), TailMemory(1 << 20), Pace(), trio.CancelScope(), Errands().begin
            )
            terminal = Terminal()
            terminal.is_over = True
            gone = weakref.ref(terminal)
            async with trio.open_nursery() as nursery:
                await sender.run(terminal, nursery)
            del terminal
            assert gone() is None
            # A source points to its sender, and it may be woken until its channel is closed.
            words = WordSource(sender, "late")
            sender.ready(words)
            late = weakref.ref(words)
            del words
            assert late() is None
    finally:
        gc.enable()
