"""Messages in frames, as AMQP sends them: a channel and a forwarder go on where a client stalled."""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from omq.drivers.seam import SLOW_SECONDS, Channel, EndReason, MessageOutline, Octets, Piece, Selection
from omq.drivers.stored_reads import READ_OCTETS
from omq.model import FromCurrent
from omq.terminals.connection.forms import ContiguousMessage
from omq.terminals.connection.forwarding import Forwarder
from omq_storage.blocks import FRAME_HEADER

from .conversation import InProcess, declared, eventually, publish, serving
from .dmp_conversation import envelopes, sink, stored
from .transports import connected, said

FRAME = 1000
_OPENING = struct.Struct(">QI")
_HEAD = struct.Struct(">BH")
_END = b"\xce"


class FramedMessage:
    """A message as an opening and frames of at most FRAME octets, each with a head and an end."""

    def __init__(self, message: int, size: int) -> None:
        self._opening = _OPENING.pack(message, size)
        self._size = size
        self._at = 0  # octets that have left

    def _wire(self, start: int, octets: Octets) -> bytes:
        """Return the frames up to the end of these octets of the body, from the position on the wire on."""
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

    def given_up(self, *, is_done: bool) -> None:
        return None


class FrameForm:
    def __init__(self) -> None:
        self.framed = 0

    def whole(self, selections: Sequence[Selection]) -> Sequence[Octets]:
        parts: list[Octets] = []
        self.framed = sum(len(selection.ids) for selection in selections)
        for selection in selections:
            for message in selection.ids:
                body = selection.block.frame(message)[FRAME_HEADER:]
                parts += FramedMessage(message, len(body)).framed(body)
        return parts

    def sent(self, selections: Sequence[Selection], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        for count, part in enumerate(parts):
            if octets < len(part):
                return count, octets
            octets -= len(part)
        return len(parts), octets

    def begin(self, message: MessageOutline) -> FramedMessage:
        return FramedMessage(message.message, message.size)


class SingleMessageForm(FrameForm):
    """Frames the first message only."""

    def __init__(self, when_framed: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._when_framed = when_framed

    def whole(self, selections: Sequence[Selection]) -> Sequence[Octets]:
        if self._when_framed is not None:
            self._when_framed()
        return super().whole([msgspec.structs.replace(selections[0], ids=selections[0].ids[:1])])


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

    direct = None

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


class OwnerOf:
    """A connection that has one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def channels(self) -> Iterable[Channel]:
        return (self._channel,)


@pytest.mark.parametrize("form", [FrameForm, SingleMessageForm])
@pytest.mark.parametrize("types", [b"Transient", b"(Persistent Weak)"])
async def test_a_message_in_frames_goes_on_where_its_client_stalled(
    store: Path, clock: MockClock, types: bytes, form: type[FrameForm]
) -> None:
    """Also in the middle of a frame, whether the rest is in hand or given again."""
    sent = [b"".join(b"%d %06d " % (each, place) for place in range(40_000)) for each in range(2)]
    sent.insert(0, b"short")
    async with serving(store, memory_bytes=64 << 20) as host, connected() as (transport, stream):
        client = await declared(host, b"Broadcast " + types)
        taker = WakeUpRecorder()
        channel = open_channel(host, taker)
        forwarder = Forwarder(transport, host.server.memory.stalled, trio.CancelScope())
        await client.send(publish(b"t", sent))
        await client.confirm()

        async def forward() -> None:
            while True:
                await forwarder.forward(b"t", channel, form(), lambda: True)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            forwarder.attach(OwnerOf(channel), nursery, lambda: False)
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
        assert [*chain(*(selection.ids for selection in channel.take_at_once(1000)))] == [1, 2, 3]
        channel.written(1)
        assert [*chain(*(selection.ids for selection in channel.take_at_once(1000)))] == [2, 3]
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
