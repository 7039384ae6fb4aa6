"""The sending side of a connection by itself: whose turn it is, how fast, and in which form."""

import gc
import math
import struct
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import chain, pairwise
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.access.limits import RateLimit
from omq.drivers.seam import SLOW_SECONDS, Channel, Cut, EndReason, Flow, Octets, Outlet, Piece
from omq.drivers.stalled import Stalled
from omq.drivers.stored_reads import READ_OCTETS
from omq.drivers.tail import Tail, TailMemory
from omq.model import FromCurrent
from omq.terminals.connection.forms import ContiguousMessage
from omq.terminals.connection.forwarding import Forwarder
from omq.terminals.connection.pace import Pace
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.transport import Transport
from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, Block, encode

from .conversation import PATIENCE, InProcess, declared, eventually, publish, serving
from .dmp_conversation import envelopes, sink, stored


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Transport, trio.SocketStream]]:
    """Yield a transport, and the stream at its other end; little fits between them."""
    ours, theirs = trio.socket.socketpair()
    for each in (ours, theirs):
        each.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 4096)
    async with trio.SocketStream(theirs) as stream:
        transport = Transport(trio.SocketStream(ours))
        try:
            yield transport, stream
        finally:
            transport.close()


@asynccontextmanager
async def sending(
    memory: TailMemory | None = None,
) -> AsyncIterator[tuple[Sender, Transport, trio.SocketStream, trio.Nursery]]:
    """Yield a sender that has not begun, its transport, the stream at the other end, and a nursery for its
    task.
    """
    async with connected() as (transport, stream), trio.open_nursery() as nursery:
        memory = memory or TailMemory(1 << 20)
        sender = Sender(transport, Stalled(0), memory, Pace(), nursery.cancel_scope)
        yield sender, transport, stream, nursery
        nursery.cancel_scope.cancel()


class WordSource:
    """A source that has a number of words to say, one in each turn."""

    flow: Flow | None = None

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


async def said(stream: trio.SocketStream, count: int) -> bytes:
    """Return the next octets."""
    octets = b""
    with trio.fail_after(PATIENCE):
        while len(octets) < count:
            octets += await stream.receive_some(count - len(octets))
    return octets


async def test_answers_go_first_and_sources_take_turns() -> None:
    async with sending() as (sender, _, stream, nursery):
        for words in ("abc", "ABC", "1"):
            sender.ready(WordSource(sender, words))
        terminal = Terminal(b"?", b"?")
        nursery.start_soon(sender.run, terminal)
        assert await said(stream, 9) == b"??aA1bBcC"
        terminal.answers.append(b"?")
        sender.ready(WordSource(sender, "de"))
        assert await said(stream, 3) == b"?de"


async def test_sources_have_their_turns_although_a_backlog_never_ends() -> None:
    async with sending() as (sender, _, stream, nursery):
        nursery.start_soon(sender.run, Terminal(b"?"))
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
        self.flow: Flow = self
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
        nursery.start_soon(sender.run, Terminal())
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
        nursery.start_soon(sender.run, Terminal())
        await wait_all_tasks_blocked()  # it sends this
        sender.backlog.add(b"-" * 1000)
        other, pushed = MessageOfATopic(sender, 1, 0), MessageOfATopic(sender, 2, sender.pushed)
        sender.ready(other)
        sender.ready(pushed)
        assert await said(stream, 1 << 18) == b"." * (1 << 18)
        frames = [bytes(each.block.frames) for each in (other, pushed)]
        expected = frames[0] + b"-" * 1000 + frames[1]
        assert await said(stream, len(expected)) == expected


@pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")
async def test_no_turn_begins_in_the_middle_of_a_message_that_was_pushed() -> None:
    async with sending() as (sender, _, stream, nursery):
        sender.backlog.add(b".")
        nursery.start_soon(sender.run, Terminal())
        assert await said(stream, 1) == b"."  # now a source may precede what is pushed
        await wait_all_tasks_blocked()
        route = codec.native.Route(1, 1, 1 << 20)
        lane = codec.native.Lane((sender,))
        route.open(lane)
        passed = codec.native.Pass({b"t": route}, None, 1 << 16)
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
        nursery.start_soon(sender.run, Terminal())
        assert await said(stream, 1) == b"."  # now a source may precede what is pushed
        await wait_all_tasks_blocked()
        route = codec.native.Route(1, 1, 1 << 20)
        route.open(codec.native.Lane((sender,)))
        passed = codec.native.Pass({b"t": route}, None, 1 << 16)
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
        nursery.start_soon(sender.run, Terminal())
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
        nursery.start_soon(sender.run, terminal)
        assert await said(stream, 2) == b"ex"
        await wait_all_tasks_blocked()
        assert transport.sent == 2
        clock.jump(110)
        assert await said(stream, 2) == b"?a"


async def test_the_sender_sends_due_octets_in_time_and_notices_the_end(clock: MockClock) -> None:
    async with connected() as (transport, stream), trio.open_nursery() as nursery:
        sender = Sender(transport, Stalled(0), TailMemory(1 << 20), Pace(), nursery.cancel_scope)
        terminal = Terminal()
        terminal.ping_at = trio.current_time() + 1000
        nursery.start_soon(sender.run, terminal)
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
            sender = Sender(transport, Stalled(0), TailMemory(1 << 20), Pace(), trio.CancelScope())
            terminal = Terminal()
            terminal.is_over = True
            gone = weakref.ref(terminal)
            await sender.run(terminal)
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


# -- a form that cuts bodies into frames, as AMQP does -----------------------------------------------------

FRAME = 1000
_OPENING = struct.Struct(">QI")
_HEAD = struct.Struct(">BH")
_END = b"\xce"


class CutBegun:
    """A message as an opening and frames of at most FRAME octets, each with a head and an end."""

    def __init__(self, message: int, size: int) -> None:
        self._opening = _OPENING.pack(message, size)
        self._size = size
        self._at = 0  # octets that have left

    def _wire(self, start: int, octets: Octets) -> bytes:
        """Return what stands on the wire up to the octets of the body from `start` on, from where it is."""
        wire, at = b"", 0
        parts = [self._opening]
        for frame in range(0, self._size, FRAME):
            size = min(FRAME, self._size - frame)
            begin, end = max(start, frame), min(start + len(octets), frame + size)
            if frame >= start + len(octets):
                break
            before = bytes(max(0, min(start - frame, size)))  # has left
            body = bytes(octets[begin - start : end - start]) if begin < end else b""
            parts += (_HEAD.pack(3, size), before + body, _END if end == frame + size else b"")
        for part in parts:
            wire += part[max(0, self._at - at) :]
            at += len(part)
        return wire

    @property
    def body(self) -> int:
        rest = max(0, self._at - len(self._opening))
        whole, rest = divmod(rest, _HEAD.size + FRAME + len(_END))
        body = min(self._size, whole * FRAME + max(0, min(FRAME, rest - _HEAD.size)))
        # Something is left for the channel to give as long as something is left to send.
        return body if self.is_done else min(body, self._size - 1)

    @property
    def is_begun(self) -> bool:
        return self._at > 0

    @property
    def is_done(self) -> bool:
        frames = -(-self._size // FRAME)
        return self._at == len(self._opening) + self._size + frames * (_HEAD.size + len(_END))

    def framed(self, octets: Octets) -> Sequence[Octets]:
        return (self._wire(self.body, octets),)

    def sent(self, octets: int) -> None:
        self._at += octets


class CutForm:
    def __init__(self) -> None:
        self.framed = 0

    def whole(self, cuts: Sequence[Cut]) -> Sequence[Octets]:
        parts: list[Octets] = []
        self.framed = sum(len(cut.ids) for cut in cuts)
        for cut in cuts:
            for message in cut.ids:
                body = cut.block.frame(message)[FRAME_HEADER:]
                parts += self.begin(cut.block.topic, message, b"", len(body), 0).framed(body)
        return parts

    def sent(self, cuts: Sequence[Cut], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        for count, part in enumerate(parts):
            if octets < len(part):
                return count, octets
            octets -= len(part)
        return len(parts), octets

    def begin(self, topic: int, message: int, head: bytes, size: int, deliveries: int) -> CutBegun:
        return CutBegun(message, size)


class SingleMessageForm(CutForm):
    """Frames the first message only."""

    def __init__(self, when_framed: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._when_framed = when_framed

    def whole(self, cuts: Sequence[Cut]) -> Sequence[Octets]:
        if self._when_framed is not None:
            self._when_framed()
        return super().whole([msgspec.structs.replace(cuts[0], ids=cuts[0].ids[:1])])


class Bodies:
    """The other side of it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def next(self) -> tuple[int, bytes]:
        message, size = _OPENING.unpack(await said(self._stream, _OPENING.size))
        body = b""
        while len(body) < size:
            kind, count = _HEAD.unpack(await said(self._stream, _HEAD.size))
            assert kind == 3
            body += await said(self._stream, count)
            assert await said(self._stream, 1) == _END
        return message, body


class WakeUpRecorder:
    """A subscriber that notes its wake-ups."""

    def __init__(self) -> None:
        self.woken = trio.Event()

    def wake(self) -> None:
        self.woken.set()

    def replaced(self, channel: Channel) -> None:
        raise AssertionError("the topic has messages")

    def ended(self, end: EndReason) -> None:
        raise AssertionError("nobody deletes it")


def open_channel(host: InProcess, taker: WakeUpRecorder) -> Channel:
    """Open a channel of the topic t, for messages from now on."""
    driver = host.server.catalogue.lookup(b"t")
    assert driver is not None
    return driver.open(taker, FromCurrent())


@pytest.mark.parametrize("form", [CutForm, SingleMessageForm])
@pytest.mark.parametrize("types", [b"Transient", b"(Persistent Weak)"])
async def test_a_message_in_frames_goes_on_where_its_client_stalled(
    store: Path, clock: MockClock, types: bytes, form: type[CutForm]
) -> None:
    """Also in the middle of a frame, whether the rest is in hand or given again."""
    sent = [b"".join(b"%d %06d " % (each, place) for place in range(40_000)) for each in range(2)]
    sent.insert(0, b"short")
    async with serving(store, memory_bytes=64 << 20) as host, connected() as (transport, stream):
        client = await declared(host, b"Broadcast " + types)
        taker = WakeUpRecorder()
        channel = open_channel(host, taker)
        forwarder = Forwarder(transport, host.server.memory.stalled, trio.CancelScope())
        forwarder.channels = lambda: (channel,)
        await client.send(publish(b"t", sent))
        await client.confirm()

        async def forward() -> None:
            while True:
                await forwarder.forward(b"t", channel, form(), lambda: True)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward)
            await eventually(lambda: forwarder.is_sending)
            clock.jump(SLOW_SECONDS)
            await eventually(lambda: forwarder.is_stalled)
            bodies = Bodies(stream)
            assert [await bodies.next() for _ in sent] == list(enumerate(sent, 1))
            nursery.cancel_scope.cancel()
        channel.close()


@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_channel_keeps_messages_that_are_not_framed_yet(
    store: Path, delivery: bytes, is_cancelled: bool
) -> None:
    async with serving(store) as host, connected() as (transport, stream):
        client = await declared(host, delivery + b" Transient")
        channel = open_channel(host, WakeUpRecorder())
        forwarder = Forwarder(transport, host.server.memory.stalled, trio.CancelScope())
        sent = [b"one", b"two", b"three"]
        await client.send(publish(b"t", sent))
        await client.confirm()
        await eventually(channel.ready)
        unwanted = trio.Event()
        with trio.CancelScope() as scope:
            form = SingleMessageForm(scope.cancel if is_cancelled else unwanted.set)
            await forwarder.forward(b"t", channel, form, lambda: not unwanted.is_set())
        assert scope.cancelled_caught == is_cancelled
        assert forwarder.delivered == channel.traffic.messages_out == 1
        await forwarder.forward(b"t", channel, SingleMessageForm(), lambda: True)
        bodies = Bodies(stream)
        assert [await bodies.next() for _ in sent] == list(enumerate(sent, 1))
        assert forwarder.delivered == channel.traffic.messages_out == 3
        channel.close()


async def test_a_channel_gives_small_messages_in_memory_at_once(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin Transient")
        channel = open_channel(host, WakeUpRecorder())
        await client.send(publish(b"t", [b"one", b"two", b"three"]))
        await client.confirm()
        await eventually(channel.ready)
        assert not channel.take_at_once(10)
        assert [*chain(*(cut.ids for cut in channel.take_at_once(1000)))] == [1, 2, 3]
        channel.written(1)
        assert [*chain(*(cut.ids for cut in channel.take_at_once(1000)))] == [2, 3]
        channel.written(2)
        assert not channel.ready()
        channel.close()


async def test_a_channel_does_not_give_a_message_of_the_store_at_once(store: Path) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin (Persistent Weak)")
        producer = await sink(host, client)
        await producer.send(envelopes([b"x" * (READ_OCTETS + 1)]))
        assert await stored(producer) == 1
        channel = open_channel(host, WakeUpRecorder())
        await eventually(channel.ready)
        assert not channel.take_at_once(1 << 30)
        assert isinstance(await channel.take(), Piece)
        channel.close()


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_message_is_done_when_its_opening_and_body_have_left(size: int) -> None:
    """An empty one, too: it is not sent as long as its opening is not."""
    body = b"x" * size
    for first in range(3 + size):
        opened = ContiguousMessage(b"abc", size)
        parts = b"".join(opened.framed(body))
        opened.sent(first)
        assert opened.is_begun == (first > 0)
        assert not opened.is_done
        rest = b"".join(opened.framed(body[opened.body :]))
        assert parts[:first] + rest == b"abc" + body
        opened.sent(len(rest))
        assert opened.is_done
        assert opened.body == size
