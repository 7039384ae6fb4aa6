"""Fetch and Blocks: whole stored blocks, for those who want much of what there is.

See docs/PROTOCOL.md, "Fetch and Blocks".
"""

from pathlib import Path

import pytest
import trio
import trio.testing
from quietness import pass_time, pass_until, stopped
from trio.testing import MockClock

from omq.bulk.errors import Unreachable
from omq.bulk.remote import RemoteServer, RetryPolicy
from omq.drivers.seam import SLOW_SECONDS
from omq.logs import LINES
from omq.model import BlockInfo
from omq.protocol.omq.sentences import RefusalKind, refusal_in
from omq.protocol.omq.types import (
    BlockList,
    Confirmed,
    Declared,
    Deleted,
    Error,
    Frame,
    Message,
    StoredBlock,
    Subscribed,
)
from omq.server_address import Address
from omq_storage.blocks import FRAME_HEADER, Block, encode, unpack_sent
from omq_storage.levels import Level
from omq_storage.store import Store

from .conversation import (
    PATIENCE,
    Conversation,
    InProcess,
    eventually,
    numbered,
    publish,
    serving,
    tidied,
)
from .stalled_readers import sending_little, stalled

NOON = 1_700_000_000_000_000
HOUR = 3_600_000_000


def fill(path: Path, *counts: int, size: int = 10, topic: bytes = b"t", delivery: str = "Broadcast") -> None:
    """Make a store with a topic whose blocks have these numbers of messages, each with its id in the body."""
    with Store.open(path) as store:
        record = store.catalogue.create(topic, delivery, "Weak", declared=True, reserved=1)
        first = 1
        for count in counts:
            bodies = [b"%d" % message for message in range(first, first + count)]
            block = encode(record.id, first, [body.ljust(size, b".") for body in bodies], NOON + first)
            store.level(Level.WEAK).append([block])
            first += count


async def fetched(client: Conversation) -> tuple[list[Block], list[bytes], int]:
    """Return the answer to a Fetch: its blocks, the sentences between them, and the id to go on at."""
    blocks: list[Block] = []
    errors: list[bytes] = []
    while True:
        match await client.frame():
            case StoredBlock(value):
                block = unpack_sent(value)
                if not block.count:
                    return blocks, errors, block.first
                blocks.append(block)
            case Error(text):
                errors.append(text)
            case other:
                raise AssertionError(other)


def messages(blocks: list[Block]) -> dict[int, bytes]:
    return {
        message: bytes(block.frame(message))[FRAME_HEADER:]
        for block in blocks
        for message in range(block.first, block.next)
    }


def expected(first: int, last: int, size: int = 10) -> dict[int, bytes]:
    return {message: (b"%d" % message).ljust(size, b".") for message in range(first, last + 1)}


@pytest.mark.parametrize(
    ("first", "count", "begins", "ends", "go_on"),
    [
        (1, 30, 1, 30, 31),
        (1, 9223372036854775807, 1, 30, 31),
        (11, 10, 11, 20, 21),
        (5, 1, 1, 10, 11),
        (10, 2, 1, 20, 21),
        (30, 1, 21, 30, 31),
    ],
)
async def test_whole_blocks_that_overlap_the_range(
    store: Path, first: int, count: int, begins: int, ends: int, go_on: int
) -> None:
    fill(store, 10, 10, 10)
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Fetch t %d %d)" % (first, count))
        blocks, errors, end = await fetched(client)
        assert (messages(blocks), errors, end) == (expected(begins, ends), [], go_on)
        assert [block.topic for block in blocks] == [0] * len(blocks)
        answer = await client.ask(b"(Blocks t %d %d)" % (first, count))
        assert isinstance(answer, BlockList)
        assert [(info.first, info.count, info.time) for info in answer.blocks] == [
            (block.first, block.count, NOON + block.first) for block in blocks
        ]


async def test_small_blocks_and_large_ones(store: Path) -> None:
    """Small blocks share a turn of the sender, up to a size and a number; larger ones go alone."""
    sizes = [1] * 1200 + [90] * 5 + [1, 2000, 1] + [40] * 30
    fill(store, *sizes, size=5000)
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Fetch t 1 %d)" % sum(sizes))
        blocks, errors, following = await fetched(client)
        assert ([block.count for block in blocks], errors) == (sizes, [])
        assert messages(blocks) == expected(1, sum(sizes), 5000)
        assert following == sum(sizes) + 1


@pytest.mark.parametrize(("first", "count"), [(7, 0), (31, 5), (31, 0)])
async def test_an_empty_range_ends_at_once(store: Path, first: int, count: int) -> None:
    fill(store, 10, 10, 10)
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Fetch t %d %d)" % (first, count))
        assert await fetched(client) == ([], [], first)
        assert await client.ask(b"(Blocks t %d %d)" % (first, count)) == BlockList(())


async def test_the_list_tells_the_octets_of_the_frames_that_follow(store: Path) -> None:
    fill(store, 10, 10)
    async with serving(store) as host:
        client = await host.connect()
        listed = await client.ask(b"(Blocks t 1 20)")
        assert isinstance(listed, BlockList)
        await client.say(b"(Fetch t 1 20)")
        values = [await client.frame() for _ in listed.blocks]
        assert [info.bytes for info in listed.blocks] == [
            len(value.value) for value in values if isinstance(value, StoredBlock)
        ]
        await fetched(client)


async def test_a_long_list_goes_on_where_it_was_cut(store: Path) -> None:
    with Store.open(store) as opened:
        opened.catalogue.create(b"t", "Broadcast", "Weak", declared=True, reserved=1)
        for first in range(1, 5001, 500):
            blocks = [encode(0, message, [b"x"], NOON) for message in range(first, first + 500)]
            opened.level(Level.WEAK).append(blocks)
    async with serving(store) as host:
        client = await host.connect()
        found: list[BlockInfo] = []
        sizes = []
        while not found or found[-1].first < 5000:
            answer = await client.ask(b"(Blocks t %d 5000)" % (found[-1].first + 1 if found else 1))
            assert isinstance(answer, BlockList)
            sizes.append(len(answer.blocks))
            found += answer.blocks
        assert sizes == [4096, 904]
        assert [info.first for info in found] == list(range(1, 5001))


async def test_gaps_stand_in_their_places(store: Path) -> None:
    with Store.open(store) as opened:
        opened.catalogue.create(b"t", "Broadcast", "Weak", declared=True, reserved=1)
        environment = opened.level(Level.WEAK)
        environment.append([encode(0, first, [b"x"] * 5, NOON) for first in (1, 6, 21, 26)])
        environment.trim(0, 6)
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Fetch t 1 30)")
        frames: list[Frame] = [await client.frame() for _ in range(6)]
        shown = [
            frame.text if isinstance(frame, Error) else unpack_sent(frame.value).first
            for frame in frames
            if isinstance(frame, Error | StoredBlock)
        ]
        assert shown == [
            b"Fetch t: messages 1 to 5 are gone: they are no longer kept",
            6,
            b"Fetch t: messages 11 to 20 are gone: they were lost before they were durable",
            21,
            26,
            31,
        ]
        # A gap is told as far as the range goes, and not beyond.
        await client.say(b"(Fetch t 3 1)")
        blocks, errors, end = await fetched(client)
        assert (blocks, errors, end) == (
            [],
            [b"Fetch t: messages 3 to 3 are gone: they are no longer kept"],
            4,
        )


async def test_a_fetch_finds_messages_confirmed_before_it(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        for round_ in range(1, 20):
            await client.say(b"(Publish t x)", b"(Confirm 1)", b"(Fetch t %d 1)" % round_)
            assert await client.frame() == Confirmed(1)
            blocks, errors, _ = await fetched(client)
            assert blocks[-1].last == round_
            assert errors == []


async def test_fetches_are_answered_in_turn_and_hold_nothing_back(store: Path) -> None:
    """Commands behind a large Fetch are answered, and subscriptions go on, while it is under way."""
    fill(store, *[100] * 100, size=10_000)
    async with serving(store) as host:
        client = await host.connect(receive_octets=64 << 10)
        other = await host.connect()
        await client.say(b"(Subscribe live From_current)")
        assert isinstance(await client.frame(), Subscribed)
        await client.say(b"(Fetch t 1 10000)", b"(Fetch t 101 1)", b"(Fetch u 1 1)")
        # Nothing is read yet: most of it is still in the store.
        await other.say(b"(Publish live now)", b"(Confirm 1)")
        assert await other.frame() == Confirmed(1)
        await client.say(b"(Confirm 7)", b"(Declare t Broadcast (Persistent Weak))")
        order: list[str] = []
        ends = []
        while len(ends) < 3:
            match await client.frame():
                case StoredBlock(value):
                    block = unpack_sent(value)
                    if not block.count:
                        ends.append(block.first)
                    order.append("block")
                case Error(text):
                    assert text == b"Fetch u: there is no such topic"
                    assert refusal_in(text) is RefusalKind.NO_TOPIC
                    ends.append(0)
                case Message(_, _, body):
                    order.append(body.decode())
                case Confirmed() | Declared() as answer:
                    order.append(type(answer).__name__)
                case unexpected:
                    raise AssertionError(unexpected)
        assert ends == [10_001, 201, 0]
        assert order.count("block") == 103
        for soon in ("now", "Confirmed", "Declared"):
            assert order.index(soon) < 50, order
        assert order.index("Confirmed") < order.index("Declared")


async def test_a_client_that_reads_slowly_costs_one_piece(store: Path) -> None:
    fill(store, *[100] * 300, size=10_000)
    async with serving(store) as host:
        budget = host.server.memory.fetched
        clients = [await host.connect(), *[await host.connect(receive_octets=4096) for _ in range(9)]]
        for client in clients:
            await client.say(b"(Fetch t 1 30000)", b"(Fetch t 1 30000)")
        await eventually(lambda: budget.is_wanted)
        assert budget.used <= budget.limit
        # One that reads gets everything all the same, when the others are gone.
        for client in clients[1:]:
            client.close()
        for _ in range(2):
            blocks, errors, _ = await fetched(clients[0])
            assert (len(messages(blocks)), errors) == (30_000, [])
        await eventually(lambda: budget.used == 0)


@pytest.mark.parametrize("finished", [False, True], ids=["open", "half-closed"])
async def test_a_client_that_reads_nothing_is_ended_for_waiting_ones(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, *, finished: bool
) -> None:
    caplog.set_level("INFO")
    fill(store, *[100] * 200, size=10_000)
    async with serving(store, missed_pings=0) as host:
        budget = host.server.memory.fetched
        idle = [await host.connect(receive_octets=4096) for _ in range(4)]
        for client in idle:
            await client.say(b"(Fetch t 1 20000)")
            if finished:
                await client.done()
        await eventually(lambda: budget.used + (1 << 20) > budget.limit)
        eager = await host.connect()
        await eager.say(b"(Fetch t 1 20000)")
        await eventually(lambda: budget.is_wanted)
        began = trio.current_time()
        await pass_until(lambda: not budget.is_wanted, clock, 0.5)
        assert trio.current_time() - began < 30
        ended = 1 + len(idle) - host.connections
        assert ended > 0
        why = "it took too long to read a stored block while others wait for its memory"
        told = [line for line in caplog.messages if line.endswith(f": closed: {why}")]
        assert len(told) >= min(LINES, ended)
        blocks, errors, _ = await fetched(eager)
        assert (len(messages(blocks)), errors) == (20_000, [])


async def test_a_client_that_finishes_gets_all_that_it_asked_for(store: Path) -> None:
    fill(store, *[100] * 50, size=10_000)
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Fetch t 1 5000)", b"(Fetch t 4901 100)")
        await client.done()
        ids = []
        for frame in await client.rest():
            assert isinstance(frame, StoredBlock)
            ids.append(unpack_sent(frame.value).first)
        assert ids == [*range(1, 5001, 100), 5001, 4901, 5001]
        await eventually(lambda: host.connections == 0)
        assert host.server.memory.fetched.used == 0


async def test_a_stop_does_not_wait_for_a_fetch(store: Path) -> None:
    fill(store, *[100] * 300, size=10_000)
    with trio.fail_after(PATIENCE):
        async with serving(store) as host:
            client = await host.connect(receive_octets=4096)
            await client.say(b"(Fetch t 1 30000)")
            await client.frame()
            budget = host.server.memory.fetched
        assert budget.used == 0


async def test_more_fetches_than_wait_for_an_answer_stop_the_reading(store: Path) -> None:
    fill(store, 1)
    async with serving(store) as host:
        client = await host.connect()
        await client.send(b"(Fetch t 1 1)\n" * 5000)
        for _ in range(5000):
            blocks, errors, end = await fetched(client)
            assert (len(blocks), errors, end) == (1, [], 2)


async def test_a_bulk_reader_tries_again_while_its_address_has_all_its_connections(
    store: Path,
) -> None:
    fill(store, 1)
    async with serving(store, max_connections=4) as host:
        policy = RetryPolicy(retries=0)
        reader = RemoteServer((Address("127.0.0.1", host.port),), policy)
        first, second = await host.connect(), await host.connect()
        for client in (first, second):
            await client.confirm(1)
        # A refusal that a retry cannot change is ServerRefused.
        with pytest.raises(Unreachable, match="Connect: this address has its 2 connections"):
            await trio.to_thread.run_sync(reader.topics)
        second.close()
        assert set(await trio.to_thread.run_sync(reader.topics)) == {"t"}
        await trio.to_thread.run_sync(reader.close)


async def test_a_topic_that_is_deleted_ends_its_fetch(store: Path) -> None:
    fill(store, *[100] * 300, size=10_000)
    async with serving(store) as host:
        client = await host.connect(receive_octets=4096)
        await client.say(b"(Fetch t 1 30000)", b"(Confirm 1)")
        other = await host.connect()
        assert isinstance(await other.ask(b"(Delete t)"), Deleted)
        blocks = 0
        while isinstance(frame := await client.frame(), StoredBlock | Confirmed):
            blocks += isinstance(frame, StoredBlock)
        assert isinstance(frame, Error)
        assert frame.text in (b"Fetch t: the topic was deleted", b"Fetch t: there is no such topic")
        assert refusal_in(frame.text) is RefusalKind.NO_TOPIC
        assert blocks < 300
        await client.confirm(2)


async def test_retention_that_overtakes_a_fetch_is_told(store: Path, clock: MockClock) -> None:
    fill(store, *[100] * 100, size=10_000)
    async with serving(store, retention_bytes=1 << 20, missed_pings=0) as host:
        client = await host.connect(receive_octets=4096)
        await client.say(b"(Fetch t 1 10000)")
        assert isinstance(await client.frame(), StoredBlock)
        other = await host.connect()
        await tidied(other, clock, b"t", lambda info: info.first > 9_000)
        blocks, errors, end = await fetched(client)
        (gap,) = errors
        assert gap.startswith(b"Fetch t: messages ")
        assert gap.endswith(b" are gone: they are no longer kept")
        first, last = int(gap.split()[3]), int(gap.split()[5])
        got = set(messages(blocks)) | set(range(1, 101)) | set(range(first, last + 1))
        assert (got, end) == (set(range(1, 10_001)), 10_001)


async def test_times_go_up_though_the_clock_was_set_back(store: Path) -> None:
    late = NOON + 1_000_000 * HOUR  # a server whose clock was far ahead stored this
    with Store.open(store) as opened:
        opened.catalogue.create(b"t", "Broadcast", "Weak", declared=True, reserved=1)
        opened.level(Level.WEAK).append([encode(0, 1, [b"x"], late)])
    async with serving(store) as host:
        client = await host.connect()
        await client.send(publish(b"t", numbered(2, 3)))
        await client.confirm()
        listed = await client.ask(b"(Blocks t 1 3)")
        assert isinstance(listed, BlockList)
        assert {info.time for info in listed.blocks} == {late}


async def test_an_older_client_never_sees_these_frames(store: Path) -> None:
    fill(store, 10)
    async with serving(store) as host:
        await _reads_plainly(host)


async def _reads_plainly(host: InProcess) -> None:
    client = await host.connect()
    other = await host.connect()
    await other.say(b"(Fetch t 1 10)")
    await fetched(other)
    await client.say(b"(Subscribe t From_beginning)")
    assert isinstance(await client.frame(), Subscribed)
    assert await client.ids(10) == list(range(1, 11))


async def test_a_client_stalls_when_it_stops_reading_blocks_and_not_while_it_reads_slowly(
    store: Path, clock: MockClock
) -> None:
    """A megabyte of blocks leaves in one turn, and the client needs several seconds for it."""
    async with sending_little(store) as host:
        client = await host.connect(receive_octets=4096)
        for _ in range(10):
            await client.say(b'(Publish t "%s")' % (b"x" * 200_000))
            await client.confirm()
        with stopped(clock):
            await client.say(b"(Fetch t 1 10)")
            for _ in range(5):
                await client.octets(300 << 10)
                await pass_time(clock, SLOW_SECONDS, SLOW_SECONDS / 2)
                assert not stalled(host)
            await pass_until(lambda: stalled(host) == 1, clock, SLOW_SECONDS / 2)
