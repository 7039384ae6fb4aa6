"""AMQP 1.0 clients in the load: producers whose messages are accepted, consumers that accept and release.

They publish to the topics of the omq clients: ACCEPTED promises as much there as Confirmed.
"""

import itertools
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

import trio
from coming_and_going import come_and_go
from history import ClientObservations, History

from omq.protocol.amqp_1_0 import encoding, frames, performatives, stored
from omq.protocol.amqp_1_0.connection import HEADER
from omq.protocol.amqp_1_0.frames import FrameReader
from omq.protocol.amqp_1_0.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    Flow,
    Open,
    Performative,
    Released,
    Source,
    Target,
    Transfer,
)

TOPICS = ("strong", "weak", "strong-work", "weak-work")
"""The topics of the producers: each publishes to one of them."""

WORK = ("strong-work", "weak-work")
"""The topics of the consumers."""

CREDIT = 8
LARGEST = 65536
WINDOW = 1 << 30
ACCEPTED = performatives.write(Accepted())
RELEASED = performatives.write(Released())

_numbers = itertools.count(1)


class LinkEnded(Exception):
    """The server closed the connection or the link, or is gone."""


class LinkClient:
    """One connection with one session and one link. One task uses it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._reader = FrameReader()
        self._reader.max_frame = LARGEST
        self._said: deque[tuple[Performative, bytes]] = deque()
        self._delivery = 0
        self._credit = 0

    async def open(self) -> None:
        await self._send(HEADER)
        while self._reader.header() is None:
            await self._receive()
        await self.say(Open(f"torture-{uuid4()}", max_frame_size=LARGEST), Begin(None, 0, WINDOW, WINDOW))

    async def say(self, *said: Performative) -> None:
        await self._send(b"".join(frames.write(0, performatives.write(one)) for one in said))

    async def attach_producer(self, topic: str) -> None:
        target = performatives.write(Target(encoding.write(topic)))
        await self.say(Attach("producer", 0, False, target=target, initial_delivery_count=0))

    async def attach_consumer(self, topic: str, credit: int) -> None:
        source = performatives.write(Source(encoding.write(topic)))
        await self.say(Attach("consumer", 0, True, source=source))
        await self.say(Flow(0, WINDOW, 0, WINDOW, 0, 0, credit))

    async def publish(self, bodies: Sequence[bytes]) -> bool:
        """Publish messages, and wait for their outcomes. Return whether all were accepted. Raises Over."""
        first, are_accepted = self._delivery, True
        waiting = set(range(first, first + len(bodies)))
        left = deque(enumerate(bodies, first))
        while waiting:
            sent = []
            while left and self._credit:
                number, body = left.popleft()
                self._credit -= 1
                transfer = performatives.write(Transfer(0, number, b"%d" % number, 0, False))
                sent.append(frames.write(0, transfer, stored.message(stored.PLAIN, body)))
                self._delivery = number + 1
            await self._send(b"".join(sent))
            match await self._next():
                case Disposition(_, begin, end, state=state), _:
                    told = range(begin, (begin if end is None else end) + 1)
                    are_accepted = are_accepted and state == ACCEPTED
                    waiting.difference_update(told)
                case _:
                    pass
        return are_accepted

    async def delivered(self) -> tuple[int, int, bytes]:
        """Return delivery-id, message id and body of the next message of a consumer. Raises Over."""
        transfer, octets = await self._transfer()
        assert transfer.delivery_id is not None
        assert transfer.delivery_tag is not None
        more = transfer.more
        while more:
            rest, part = await self._transfer()
            octets, more = octets + part, rest.more
        return transfer.delivery_id, int(transfer.delivery_tag), stored.store(octets).body

    async def _transfer(self) -> tuple[Transfer, bytes]:
        while True:
            said, payload = await self._next()
            if isinstance(said, Transfer):
                return said, payload

    async def _next(self) -> tuple[Performative, bytes]:
        while not self._said:
            for frame in self._reader.frames():
                if not frame.is_heartbeat:
                    said, at = performatives.read(frame.octets, frame.begin, frame.end)
                    self._said.append((said, frame.octets[at : frame.end]))
            if not self._said:
                await self._receive()
        said, payload = self._said.popleft()
        match said:
            case Flow(handle=0, delivery_count=count, link_credit=int(credit)):
                self._credit = (count or 0) + credit - self._delivery
            case Detach() | Close():
                raise LinkEnded
            case _:
                pass
        return said, payload

    async def _receive(self) -> None:
        try:
            octets = await self._stream.receive_some()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise LinkEnded from None
        if not octets:
            raise LinkEnded
        self._reader.add(octets)

    async def _send(self, octets: bytes) -> None:
        try:
            await self._stream.send_all(octets)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise LinkEnded from None


@asynccontextmanager
async def linked(port: int) -> AsyncIterator[LinkClient]:
    """Connect and open a session. Raises Over and OSError."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = LinkClient(stream)
        await client.open()
        yield client


async def load_links(port: int, history: History, chance: random.Random) -> None:
    """Run until the server ends, or until cancelled."""
    async with trio.open_nursery() as nursery:
        for topic in TOPICS:
            nursery.start_soon(_publish, port, topic, history.topics[topic], chance)
        for topic in WORK:
            work = partial(_work, topic=topic, told=history.topics[topic], chance=chance)
            nursery.start_soon(come_and_go, partial(linked, port), work, (LinkEnded, OSError), chance)


async def _publish(port: int, topic: str, told: ClientObservations, chance: random.Random) -> None:
    name = b"l%d" % next(_numbers)
    numbers = itertools.count()
    try:
        async with linked(port) as client:
            await client.attach_producer(topic)
            while True:
                count = chance.choice((1, 1, 3, 20, 300))
                bodies = [b"%b:%d" % (name, number) for number in itertools.islice(numbers, count)]
                filling = b" " + b"." * chance.choice((0, 10, 100, 5000 if count < 20 else 200))
                told.published.update(bodies)
                if await client.publish([body + filling for body in bodies]):
                    told.confirmed.update(dict.fromkeys(bodies, time.monotonic_ns()))
                await trio.sleep(chance.random() * 0.02)
    except (LinkEnded, OSError):
        pass  # the server is gone


async def _work(client: LinkClient, topic: str, told: ClientObservations, chance: random.Random) -> None:
    await client.attach_consumer(topic, CREDIT)
    count = 0
    while True:
        delivery, id, octets = await client.delivered()
        body = octets.partition(b" ")[0]
        told.see(id, body, time.monotonic_ns())
        count += 1
        is_done = chance.random() < 0.9
        if is_done:
            told.done[body] = time.monotonic_ns()
        await client.say(
            Disposition(True, delivery, None, True, ACCEPTED if is_done else RELEASED),
            Flow(0, WINDOW, 0, WINDOW, 0, count, CREDIT),
        )
