"""The common part of tests of the seam between terminals and drivers: drivers with a real store behind them,
and the terminal's side of their channels.
"""

import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
import trio.testing
from quietness import quiet

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.housekeeping import save_positions
from omq.drivers.memory import Memory, MemoryStatistics
from omq.drivers.queue import QueueDriver
from omq.drivers.reasons import Failure
from omq.drivers.seam import (
    ACCEPTED,
    Channel,
    CreditKind,
    DirectSender,
    EndReason,
    Outcome,
    Piece,
    Selection,
    Taken,
    TakenMessages,
    Unavailable,
    hand_over,
)
from omq.drivers.sequences import Origins
from omq.model import Delivery, FromCurrent, Persistence, Persistent, Replay, Sync, Transient
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER
from omq_storage.store import Store

KIB, MIB = 1 << 10, 1 << 20
STRONG, WEAK, ASYNC = Persistent(Sync.STRONG), Persistent(Sync.WEAK), Persistent(Sync.ASYNC)
PERSISTENCES: list[Persistence] = [Transient(), STRONG, WEAK, ASYNC]
NOTHING = MemoryStatistics(*(0 for _ in MemoryStatistics.__struct_fields__))

_FRAME = struct.Struct(">IBQI")


@dataclass(frozen=True)
class Kind:
    """The types of a topic."""

    delivery: Delivery
    persistence: Persistence

    def __str__(self) -> str:
        match self.persistence:
            case Transient():
                return f"{self.delivery.name}-TRANSIENT"
            case Persistent(sync):
                return f"{self.delivery.name}-{sync.name}"

    @property
    def is_persistent(self) -> bool:
        return isinstance(self.persistence, Persistent)

    @property
    def is_broadcast(self) -> bool:
        return self.delivery is Delivery.BROADCAST


ALL_KINDS = [Kind(delivery, persistence) for delivery in Delivery for persistence in PERSISTENCES]


def of_kinds(wanted: Callable[[Kind], bool] = lambda kind: True) -> pytest.MarkDecorator:
    """Run a test with each kind of topic that is wanted: by default with all eight."""
    return pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if wanted(kind)], ids=str)


BROADCAST = of_kinds(lambda kind: kind.is_broadcast)
ROUND_ROBIN = of_kinds(lambda kind: not kind.is_broadcast)


class Drivers:
    """A catalogue and its writers, as a server has them."""

    def __init__(self, catalogue: Catalogue, memory: Memory, store: Store) -> None:
        self.catalogue = catalogue
        self.memory = memory
        self.store = store

    async def declare(
        self, persistence: Persistence, delivery: Delivery = Delivery.BROADCAST, name: bytes = b"t"
    ) -> Driver:
        return await self.catalogue.declare(name, delivery, persistence)

    async def topic(self, kind: Kind, name: bytes = b"t") -> Driver:
        """Return the topic of this name and kind."""
        return await self.catalogue.declare(name, kind.delivery, kind.persistence)

    async def drain(self) -> None:
        """Wait until all posts are settled."""
        for writer in self.catalogue.writers.values():
            await writer.drain()

    async def save_positions(self) -> None:
        """Save the positions of the round-robin topics, as housekeeping does."""
        for writer in self.catalogue.writers.values():
            await save_positions(writer)


@asynccontextmanager
async def opened(
    path: Path, boot_id: str = "first", *, memory: int = 64 * MIB, killed: bool = False, **config: object
) -> AsyncIterator[Drivers]:
    """Yield the drivers of a store, ended as a server ends: or, when it is killed, without any of that."""
    store = Store.open(path, map_size=1 << 28, boot_id=boot_id)
    try:
        async with serving(store, memory=memory, **config) as drivers:
            yield drivers
            if not killed:
                await drivers.save_positions()
                await drivers.catalogue.settled()
                unused = drivers.catalogue.release_ids()
                await trio.to_thread.run_sync(partial(store.catalogue.release, unused))
    finally:
        store.close(clean=not killed)


@asynccontextmanager
async def opened_for_an_example(
    factory: pytest.TempPathFactory, *, killed: bool = False
) -> AsyncIterator[Drivers]:
    """Yield the drivers of a new store as `opened` does, and delete its files: a property has hundreds of
    examples, and the files of each are 5 MB, which would stay until all tests have ended.
    """
    with TemporaryDirectory(dir=factory.getbasetemp()) as folder:
        async with opened(Path(folder) / "store", killed=killed) as drivers:
            yield drivers


@asynccontextmanager
async def serving(store: Store, *, memory: int = 64 * MIB, **config: object) -> AsyncIterator[Drivers]:
    """Yield the drivers of an open store. What was posted is settled at the end."""
    settings = Config(store=str(store.path), **config)  # type: ignore[arg-type]  # the names decide the types
    async with trio.open_nursery() as nursery:
        shares = Memory(memory)
        catalogue = Catalogue(settings, store, shares, nursery)
        for writer in catalogue.writers.values():
            nursery.start_soon(writer.run)
        await catalogue.open_stored()
        drivers = Drivers(catalogue, shares, store)
        try:
            yield drivers
            await drivers.drain()
        finally:
            catalogue.spool.close()  # there is no spooler, which does it in a server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def emptied(store: Store, **config: object) -> AsyncIterator[Drivers]:
    """Yield the drivers of an open store, without topics, for one test, which must give back all memory."""
    async with serving(store, **config) as drivers:  # type: ignore[arg-type]  # the names decide the types
        for driver in list(drivers.catalogue):
            await drivers.catalogue.delete(driver.topic.topic)
        yield drivers
        assert drivers.memory.statistics() == NOTHING


async def settled(confirmation: Confirmation) -> Failure | None:
    """Return the failure of a post, None when it is confirmed."""
    event = trio.Event()
    confirmation.listen(event.set)
    with trio.fail_after(60):
        await event.wait()
    return confirmation.failure


async def post(driver: Driver, *bodies: bytes, heads: Sequence[bytes] = (), origins: Origins = ()) -> None:
    """Post messages, and wait until they are confirmed and nothing more happens."""
    assert await settled(await driver.post(Bodies(bodies), heads, origins)) is None
    await quiet()


def kept(driver: Driver) -> list[bytes]:
    """Return the bodies of all stored messages of a persistent topic, whose ids must have no gap."""
    blocks = driver.environment.read(driver.topic.id, 0)
    assert [block.first for block in blocks] == [1, *(block.next for block in blocks)][: len(blocks)]
    assert driver.next_id == (blocks[-1].next if blocks else 1)
    return [bytes(frame[FRAME_HEADER:]) for block in blocks for frame in block.slices(block.first)]


@dataclass(frozen=True)
class ReceivedMessage:
    """A message as a client gets it."""

    id: int
    body: bytes
    head: bytes = b""
    deliveries: int = field(default=0, compare=False)
    """The number of times that it was delivered before."""


def messages_of(taken: TakenMessages, topic: int) -> list[ReceivedMessage]:
    """Return the messages that were taken, read from their octets as a client of this topic does."""
    return [got for selection in taken.selections for got in _read(selection, topic)]


def _read(selection: Selection, topic: int) -> Iterator[ReceivedMessage]:
    frames = bytes(selection.frames())
    at = 0
    for expected in selection.ids:
        length, kind, id, of_topic = _FRAME.unpack_from(frames, at)
        assert (kind, id, of_topic) == (2, expected, topic)
        yield ReceivedMessage(
            id, frames[at + _FRAME.size : at + 4 + length], selection.block.head(id), selection.deliveries
        )
        at += 4 + length
    assert at == len(frames)


class Listener:
    """A subscriber that only wants to keep its channel."""

    direct = None

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: EndReason) -> None: ...


class Client:
    """The terminal's side of one channel, for a client that reads what it is sent."""

    def __init__(
        self,
        driver: Driver,
        replay: Replay = FromCurrent(),
        *,
        exclusive: bool = False,
        priority: int | None = None,
    ) -> None:
        """Open a channel; with a priority, as a consumer of a queue."""
        self.topic = driver.topic.id
        self.wakes = 0
        self.ends: list[EndReason] = []
        self.got: list[ReceivedMessage] = []
        self.gaps: list[Unavailable] = []
        if priority is None:
            self.channel: Channel = driver.open(self, replay, exclusive=exclusive)
        else:
            assert isinstance(driver, QueueDriver)
            self.channel = driver.open(self, replay, exclusive=exclusive, priority=priority)

    # -- for the driver ------------------------------------------------------------------------------------

    @property
    def direct(self) -> DirectSender | None:
        return None

    def wake(self) -> None:
        self.wakes += 1

    def replaced(self, channel: Channel) -> None:
        hand_over(self.channel, channel)
        self.channel = channel

    def ended(self, end: EndReason) -> None:
        self.ends.append(end)

    # -- for the test --------------------------------------------------------------------------------------

    def request(self, n: int) -> None:
        """Grant a window, as a Request does."""
        self.channel.grant(n, CreditKind.WINDOW)

    def settle(self, *messages: int, outcome: Outcome = ACCEPTED) -> None:
        """Settle messages, all of which must be unsettled here, one by one."""
        for message in messages:
            assert self.channel.settle(range(message, message + 1), outcome) == 1

    @property
    def ids(self) -> list[int]:
        return [got.id for got in self.got]

    @property
    def bodies(self) -> list[bytes]:
        return [got.body for got in self.got]

    async def take(self) -> list[ReceivedMessage]:
        """Return the messages that the channel has ready, without settling them. It must have no news of
        gaps.
        """
        taken = await self.channel.take()
        assert isinstance(taken, TakenMessages)
        return messages_of(taken, self.topic)

    async def read(self) -> "Client":
        """Take all there is, and have it written: until nothing more comes."""
        await quiet()
        while self.channel.ready():
            await self.read_once()
            await quiet()
        return self

    async def read_once(self) -> None:
        """Take once, and have all of it written, to the end of the message that is begun if one is."""
        taken: Taken | None = await self.channel.take()
        match taken:
            case None:
                pass
            case Unavailable():
                self.gaps.append(taken)
            case TakenMessages():
                got = messages_of(taken, self.topic)
                self.got += got
                self.channel.written(len(got))
            case Piece():
                await self.read_pieces(taken)

    async def read_pieces(self, piece: Piece | None = None, begin: int = 0) -> list[Piece]:
        """Read one message to its end, piece by piece, from octet `begin` on."""
        pieces = []
        while True:
            if piece is None:
                taken = await self.channel.take()
                assert isinstance(taken, Piece)
                piece = taken
            assert piece.topic == self.topic
            assert piece.begin == begin
            begin += len(piece.octets)
            pieces.append(piece)
            if begin == piece.size:
                self.channel.written(1)
                body = b"".join(each.octets for each in pieces)
                self.got.append(ReceivedMessage(piece.message, body, piece.head))
                return pieces
            assert piece.octets
            self.channel.written(0, begin)
            piece = None

    def close(self) -> None:
        self.channel.close()
