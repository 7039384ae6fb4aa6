"""Subscribers of transient topics that pause while others go on: what they miss in memory is on the spool."""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from omq.drivers.spool import SpoolStatistics
from omq.drivers.spool_pages import PAGE_OCTETS
from omq.protocol.omq.types import Confirmed, Error, Message, Subscribed, Unsubscribed

from .conversation import PATIENCE, Conversation, InProcess, eventually, publish, serving

MIB = 1 << 20
SETTINGS: dict[str, Any] = {
    "memory_bytes": 4 * MIB,
    "ping_seconds": 1000,
    "stall_seconds": PATIENCE,
    "spool_seconds": PATIENCE,
}
COUNT = 2000
SIZE = 4000
"""All of it is far more than the sockets and the memory take."""

TOO_SLOW = b"are gone: the subscriber was too slow"


def name(number: int) -> bytes:
    return b"t%d" % number


def body(number: int, size: int = SIZE) -> bytes:
    return b"%d-" % number + b"." * size


async def declared(host: InProcess, topics: int = 1) -> Conversation:
    """Return a publisher of new transient topics."""
    client = await host.connect()
    await client.ask_all(b"(Declare %s Broadcast Transient)" % name(number) for number in range(topics))
    return client


async def subscribed(host: InProcess, topics: int = 1, **options: int) -> tuple[Conversation, dict[int, int]]:
    """Return a subscriber of all these topics, and their numbers by their ids."""
    client = await host.connect(**options)
    numbers: dict[int, int] = {}
    for number, answer in enumerate(
        await client.ask_all(b"(Subscribe %s From_current)" % name(number) for number in range(topics))
    ):
        assert isinstance(answer, Subscribed)
        numbers[answer.topic.id] = number
    return client, numbers


async def read_all(
    client: Conversation, numbers: dict[int, int], bodies: Sequence[bytes], first: int = 1
) -> None:
    """Read these bodies, dealt round the topics, each once and in the order of its topic."""
    following = dict.fromkeys(numbers.values(), 0)
    for _ in bodies:
        message = await client.message()
        number = numbers[message.topic]
        turn = following[number]
        assert message.id == turn + first
        assert message.body == bodies[turn * len(numbers) + number]
        following[number] += 1


async def publish_all(publisher: Conversation, bodies: Sequence[bytes], topics: int = 1) -> None:
    lines = (publish(name(number % topics), [each]) for number, each in enumerate(bodies))
    await publisher.stream.send_all(b"".join(lines))


@dataclass
class Clients:
    """A publisher, and its subscribers: the late one has read nothing, the quick ones have everything."""

    publisher: Conversation
    late: Conversation
    numbers: dict[int, int]
    """The numbers of its topics, by their ids."""
    quick: list[Conversation]


async def published(host: InProcess, bodies: Sequence[bytes], topics: int = 1, quick: int = 1) -> Clients:
    """Publish these bodies to a late subscriber and some quick ones."""
    publisher = await declared(host, topics)
    late, numbers = await subscribed(host, topics, receive_octets=4096)
    clients = Clients(publisher, late, numbers, [])
    async with trio.open_nursery() as nursery:
        for _ in range(quick):
            client, own = await subscribed(host, topics)
            clients.quick.append(client)
            nursery.start_soon(read_all, client, own, bodies)
        nursery.start_soon(publish_all, publisher, bodies, topics)
    return clients


def spool(host: InProcess) -> SpoolStatistics:
    return host.server.statistics().spool


def is_empty(host: InProcess) -> bool:
    return spool(host).used == 0


@pytest.fixture
def nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be in the page cache."""
    preadv = os.preadv

    def read(file: int, parts: Any, place: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        return preadv(file, parts, place)

    monkeypatch.setattr(os, "preadv", read)


async def test_a_subscriber_that_pauses_gets_everything_in_order(store: Path) -> None:
    await pause_among_eight(store, 1)


async def test_a_subscriber_of_many_topics_that_pauses_gets_everything_in_order(store: Path) -> None:
    await pause_among_eight(store, 50)


async def test_the_spool_may_have_to_be_read_from_the_disk(store: Path, nothing_cached: None) -> None:
    await pause_among_eight(store, 50)


async def pause_among_eight(store: Path, topics: int) -> None:
    """Publish to eight subscribers, one of which reads when the seven others have everything."""
    bodies = [body(number) for number in range(COUNT)]
    async with serving(store, **SETTINGS) as host:
        clients = await published(host, bodies, topics, quick=7)
        assert spool(host).used > 0
        tails = host.server.memory.tails
        assert tails.used <= tails.limit
        first = (await clients.publisher.topics())[name(0)].first
        assert first < COUNT // topics * 3 // 4  # what is on the spool counts as kept
        await read_all(clients.late, clients.numbers, bodies)
        await eventually(lambda: is_empty(host))
        # It follows again.
        await publish_all(clients.publisher, [b"next"])
        assert (await clients.late.message()).body == b"next"


@pytest.mark.parametrize("publishers", [1, 60])
async def test_a_little_of_each_of_very_many_topics_fits_into_the_spool(
    store: Path, publishers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Although the memory has no room for one message of each topic. The index of the spool is smaller."""
    topics = 1200
    bodies = [body(number) for number in range(2 * topics)]
    async with serving(store, **SETTINGS) as host:
        await declared(host, topics)
        late, numbers = await subscribed(host, topics, receive_octets=4096)
        quick, own = await subscribed(host, topics)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, quick, own, bodies)
            for publisher in range(publishers):
                lines = (
                    publish(name(number % topics), [each])
                    for number, each in enumerate(bodies)
                    if number % topics % publishers == publisher
                )
                nursery.start_soon((await host.connect()).stream.send_all, b"".join(lines))
        assert spool(host).used > topics * PAGE_OCTETS
        await read_all(late, numbers, bodies)
        await eventually(lambda: is_empty(host))
    assert not caplog.messages


async def test_large_messages_are_read_from_the_spool_in_pieces(store: Path) -> None:
    """Some of them are larger than all the memory for reading, or than that of the tails."""
    sizes = [100, 3 * MIB, 70_000, 700_000, 5 * MIB, 10, 1_500_000] * 3
    bodies = [b"%d-" % number + b"." * size for number, size in enumerate(sizes)]
    async with serving(
        store,
        **{**SETTINGS, "memory_bytes": 16 * MIB, "max_line_bytes": 8 * MIB, "max_message_bytes": 8 * MIB},
    ) as host:
        clients = await published(host, bodies)
        assert spool(host).used > 10 * MIB
        await read_all(clients.late, clients.numbers, bodies)
        await eventually(lambda: is_empty(host))


async def test_who_takes_nothing_for_too_long_is_left_behind(store: Path) -> None:
    bodies = [body(number) for number in range(COUNT)]
    async with serving(store, **{**SETTINGS, "spool_seconds": 0.5}) as host:
        publisher = await declared(host)
        stalled, _ = await subscribed(host, receive_octets=4096)
        quick, numbers = await subscribed(host)
        for turn in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_all, quick, numbers, bodies, turn * COUNT + 1)
                nursery.start_soon(publish_all, publisher, bodies)
            await eventually(lambda: is_empty(host))
            if turn == 0:
                written = spool(host).written
        # From then on the spool has kept nothing for it.
        assert spool(host).written == written > 0
        ids, gaps = await read_with_gaps(stalled, 2 * COUNT)
        assert len(gaps) >= 1
        assert len(ids) + sum(map(len, gaps)) == 2 * COUNT


async def read_with_gaps(client: Conversation, last: int) -> tuple[list[int], list[range]]:
    """Return the ids of the messages up to the last one, and the gaps that were told between them."""
    ids: list[int] = []
    gaps: list[range] = []
    expected = 1
    while expected <= last:
        match await client.frame():
            case Message(id=id):
                assert id == expected
                ids.append(id)
                expected += 1
            case Error(text=text):
                assert text.endswith(TOO_SLOW)
                begin, _, end = text.split()[3:6]
                assert int(begin) == expected
                gaps.append(range(int(begin), int(end) + 1))
                expected = int(end) + 1
            case other:
                raise AssertionError(other)
    return ids, gaps


async def overflow(host: InProcess) -> None:
    """Publish more than the spool takes for a subscriber that pauses. It is told what it does not get."""
    clients = await published(host, [body(number) for number in range(COUNT)])
    tails = host.server.memory.tails
    assert tails.used <= tails.limit
    ids, gaps = await read_with_gaps(clients.late, COUNT)
    assert gaps
    assert len(ids) + sum(map(len, gaps)) == COUNT
    await eventually(lambda: is_empty(host))


FULL = "no more messages are spooled for slow subscribers: "


async def test_a_full_spool_delays_publishers_for_a_while_and_then_the_oldest_are_lost(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store, **{**SETTINGS, "spool_bytes": MIB, "spool_seconds": 1.0}) as host:
        await overflow(host)
        assert spool(host).written > 0
        assert spool(host).limit == MIB
    assert FULL + "it has reached its limit" in caplog.messages


async def test_a_full_spool_delays_publishers_as_long_as_a_slower_subscriber_reads(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets everything, although the others could have it long before."""
    bodies, part = [body(number) for number in range(COUNT)], COUNT // 80
    async with serving(store, **{**SETTINGS, "spool_bytes": MIB}) as host, trio.open_nursery() as nursery:
        publisher = await declared(host)
        slower, slower_numbers = await subscribed(host, receive_octets=4096)
        quick, numbers = await subscribed(host)
        nursery.start_soon(read_all, quick, numbers, bodies)
        nursery.start_soon(publish_all, publisher, bodies)
        for begin in range(0, COUNT, part):
            await trio.sleep(0.01)  # it is slow
            await read_all(slower, slower_numbers, bodies[begin : begin + part], begin + 1)
    assert FULL + "it has reached its limit" in caplog.messages


async def test_a_full_spool_delays_nobody_for_a_stalled_subscriber(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Although it is not left behind yet, publishers go on without it."""
    settings = {**SETTINGS, "spool_bytes": MIB, "stall_seconds": 0.05, "spool_seconds": 10 * PATIENCE}
    async with serving(store, **settings) as host:
        await overflow(host)
        assert spool(host).written > 0
    assert all(message.startswith(FULL) for message in caplog.messages)  # and no defect


async def test_the_spool_leaves_the_reserve_of_the_disk_free(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store, **{**SETTINGS, "disk_reserve_bytes": 1 << 50, "spool_seconds": 1.0}) as host:
        await overflow(host)
        assert spool(host).written == 0
    assert FULL + "the disk has only its reserve free" in caplog.messages


async def test_a_disk_that_becomes_full_in_the_middle_takes_nothing_with_it(
    store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def write(file: int, octets: Any, place: int) -> int:
        if place > MIB:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(file, octets[: len(octets) // 2 + 1], place)  # and not everything at once

    monkeypatch.setattr(os, "pwrite", write)
    async with serving(store, **{**SETTINGS, "spool_seconds": 1.0}) as host:
        await overflow(host)
        assert spool(host).written > 0
    assert FULL + os.strerror(errno.ENOSPC) in caplog.messages


async def test_without_a_spool_the_oldest_are_lost(store: Path) -> None:
    async with serving(store, **{**SETTINGS, "spool_bytes": 0}) as host:
        await overflow(host)
        assert spool(host) == SpoolStatistics(0, 0, 0)


async def spooled(host: InProcess) -> tuple[Conversation, Conversation, Conversation]:
    """Return a publisher, a subscriber with messages on the spool, and one that has everything."""
    clients = await published(host, [body(number) for number in range(COUNT)])
    assert spool(host).used > 0
    return clients.publisher, clients.late, clients.quick[0]


async def test_a_topic_is_deleted_while_its_messages_are_on_the_spool(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        publisher, late, quick = await spooled(host)
        await late.messages(COUNT // 4)
        await publisher.say(b"(Delete t0)")
        assert isinstance(await quick.frame(), Unsubscribed)
        expected = COUNT // 4 + 1
        while isinstance(frame := await late.frame(), Message):
            assert frame.id == expected
            expected += 1
        assert isinstance(frame, Unsubscribed)
        assert expected <= COUNT
        await eventually(lambda: is_empty(host))


@pytest.mark.parametrize("how", ["unsubscribes", "leaves"])
async def test_a_subscriber_ends_that_has_messages_on_the_spool(store: Path, how: str) -> None:
    async with serving(store, **SETTINGS) as host:
        publisher, late, quick = await spooled(host)
        if how == "leaves":
            late.close()
        else:
            await late.say(b"(Unsubscribe t0)")
            while isinstance(frame := await late.frame(), Message):
                pass
            assert isinstance(frame, Unsubscribed)
        await eventually(lambda: is_empty(host))
        await publish_all(publisher, [b"next"])
        assert (await quick.message()).body == b"next"


async def test_nothing_of_the_spool_is_left_when_the_server_ends(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        _, late, _ = await spooled(host)
        await late.messages(10)
        assert not list(spool_names(store))
        spool_file(store)
    assert not list(spool_names(store))
    with pytest.raises(AssertionError, match="there is no spool"):
        spool_file(store)


def spool_names(store: Path) -> Iterator[Path]:
    return store.glob("spool-*")


async def test_damage_of_the_spool_is_told_as_a_gap(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        _, late, _ = await spooled(host)
        file = spool_file(store)
        os.pwrite(file, bytes(os.fstat(file).st_size), 0)
        expected, gaps = 1, 0
        while expected <= COUNT:
            frame = await late.frame()
            if isinstance(frame, Message):
                assert frame.id == expected
                expected += 1
            else:
                assert isinstance(frame, Error)
                assert b"are gone: the store is damaged there (it does not begin as a block" in frame.text
                begin, _, end = frame.text.split()[3:6]
                assert int(begin) == expected
                expected = int(end) + 1
                gaps += 1
        assert gaps >= 1
        await eventually(lambda: is_empty(host))


def spool_file(store: Path) -> int:
    """Return the descriptor of the file without a name below this directory."""
    for number in Path("/proc/self/fd").iterdir():
        try:
            target = str(number.readlink())
        except OSError:
            continue  # that of the directory that was listed
        if target.startswith(str(store)) and target.endswith(" (deleted)"):
            return int(number.name)
    raise AssertionError("there is no spool")


async def test_one_stalled_subscriber_of_many_topics_delays_nobody_else(store: Path) -> None:
    """It has what its socket takes, and is told of the rest."""
    topics, rounds = 200, 8
    bodies = [body(number) for number in range(topics * rounds)]
    async with serving(store, **{**SETTINGS, "stall_seconds": 0.05, "spool_seconds": 0.5}) as host:
        publisher = await declared(host, topics)
        stalled, _ = await subscribed(host, topics, receive_octets=4096)
        quick, numbers = await subscribed(host, topics)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, quick, numbers, bodies)
            nursery.start_soon(publish_all, publisher, bodies, topics)
        assert await publisher.ask(b"(Confirm 1)") == Confirmed(1)
        await eventually(lambda: is_empty(host))
        stalled.close()


@pytest.mark.parametrize("spool_bytes", [256 * MIB, 0], ids=["spool", "no spool"])
async def test_topics_of_a_subscriber_that_is_left_behind_are_as_quick_as_without_it(
    store: Path, spool_bytes: int
) -> None:
    """Neither memory nor the spool keeps anything for it, until it reads again."""
    topics = 200
    bodies = [body(number, 1000) for number in range(5 * topics)]
    little = [b"%d" % number for number in range(5 * topics)]
    settings = {**SETTINGS, "stall_seconds": 0.05, "spool_seconds": 0.5, "spool_bytes": spool_bytes}
    async with serving(store, **settings) as host:
        publisher = await declared(host, topics)
        late, late_numbers = await subscribed(host, topics, receive_octets=4096)
        quick, numbers = await subscribed(host, topics)
        first = 1

        async def publish_and_read(published: Sequence[bytes]) -> None:
            nonlocal first
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish_all, publisher, published, topics)
                nursery.start_soon(read_all, quick, numbers, published, first)
            first += len(published) // topics

        memory = host.server.memory
        unchanged = 0
        with trio.fail_after(PATIENCE):
            while unchanged < 5:
                if not unchanged:
                    await publish_and_read(bodies)
                    await eventually(lambda: is_empty(host))
                before = memory.tails.used
                await publish_and_read(little)
                unchanged = unchanged + 1 if memory.tails.used == before else 0
        # It is told what is gone, and follows again.
        following = dict.fromkeys(late_numbers.values(), 1)
        await publisher.say(*(b"(Publish %s last)" % name(number) for number in range(topics)))
        while any(expected <= first for expected in following.values()):
            match await late.frame():
                case Message(topic=topic, id=id):
                    assert id == following[late_numbers[topic]]
                    following[late_numbers[topic]] += 1
                case Error(text=text):
                    assert text.endswith(TOO_SLOW)
                    _, topic_name, _, begin, _, end = text.split()[:6]
                    number = int(topic_name[1:-1])
                    assert int(begin) == following[number]
                    following[number] = int(end) + 1
                case other:
                    raise AssertionError(other)
        await publisher.say(*(b"(Publish %s again)" % name(number) for number in range(topics)))
        assert set(await late.bodies(topics)) == {b"again"}
        assert memory.tails.used < MIB
