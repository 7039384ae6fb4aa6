"""Ids are reserved on disk before the first message of a topic: for many topics at once."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from quietness import pass_time
from trio.testing import MockClock

from omq.protocol.omq.types import Confirmed, Declared
from omq_storage.catalogue import StoreCatalogue
from omq_storage.errors import Limit, StoreFull
from omq_storage.metas import read_meta

from .conversation import EVERY, InProcess, publish, serving

PAGE = 4096
TOPICS = [b"t%d" % number for number in range(40)]


def commits(host: InProcess) -> int:
    """Return the number of times that the catalogue was written."""
    with (Path(host.server.config.store) / "catalogue" / "data.mdb").open("rb") as file:
        metas = [read_meta(file.read(PAGE)) for _ in range(2)]
    return max(meta.transaction for meta in metas if meta is not None)


async def declare_before(store: Path, persistence: bytes = b"Transient") -> None:
    """Declare the topics on a server that is stopped then, which gives the ids that it did not use back."""
    async with serving(store) as host:
        client = await host.connect()
        for topic in TOPICS:
            await client.ask(b"(Declare %b Broadcast %b)" % (topic, persistence))


@EVERY
async def test_first_messages_of_many_topics_share_their_commits(store: Path, persistence: bytes) -> None:
    await declare_before(store, persistence)
    async with serving(store) as host:
        client = await host.connect()
        before = commits(host)
        await client.send(b"".join(publish(topic, [b"first"]) for topic in TOPICS) + b"(Confirm 1)\n")
        assert await client.frame() == Confirmed(1)
        # One each would be forty. What was sent may arrive in pieces, and the writer begins with the first.
        assert 0 < commits(host) - before <= 5
        again = commits(host)
        await client.send(b"".join(publish(topic, [b"second"]) for topic in TOPICS) + b"(Confirm 2)\n")
        assert await client.frame() == Confirmed(2)
        assert commits(host) == again
        assert [info.last for info in (await client.topics()).values()] == [2] * len(TOPICS)


def refuse_ids_of(unlucky: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store reserve no ids of this topic."""
    reserve = StoreCatalogue.reserve

    def refuse(self: StoreCatalogue, bounds: Mapping[int, int]) -> None:
        if unlucky in bounds:
            raise StoreFull(Limit.DISK, "There is no room on disk.")
        reserve(self, bounds)

    monkeypatch.setattr(StoreCatalogue, "reserve", refuse)


@EVERY
async def test_a_topic_whose_ids_cannot_be_reserved_fails_alone(
    store: Path, persistence: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = StoreCatalogue.reserve
    await declare_before(store, persistence)
    async with serving(store) as host:
        client = await host.connect()
        unlucky = (await client.topics())[TOPICS[7]].id
        refuse_ids_of(unlucky, monkeypatch)
        await client.send(b"".join(publish(topic, [b"first"]) for topic in TOPICS) + b"(Confirm 1)\n")
        assert (await client.error()).startswith(b"Publish t7: ")
        assert (await client.error()).startswith(b"Confirm 1: ")
        infos = await client.topics()
        assert {name for name, info in infos.items() if info.last == 0} == {TOPICS[7]}
        monkeypatch.setattr(StoreCatalogue, "reserve", reserve)
        await client.send(publish(TOPICS[7], [b"again"]) + b"(Confirm 2)\n")
        assert await client.frame() == Confirmed(2)


TWO = b"(Publish %b first)\n(Publish 2%b first)\n(Confirm 1)\n"
"""The first message to two topics: their ids are reserved together."""


async def declare_pairs(store: Path) -> None:
    """Declare two transient topics for each publisher, as `declare_before` does."""
    async with serving(store) as host:
        client = await host.connect()
        for topic in TOPICS:
            for name in (topic, b"2" + topic):
                await client.ask(b"(Declare %b Broadcast Transient)" % name)


async def test_publishers_that_come_at_once_share_their_commits(store: Path) -> None:
    await declare_pairs(store)
    async with serving(store) as host:
        clients = [await host.connect() for _ in TOPICS]
        before = commits(host)
        for client, topic in zip(clients, TOPICS, strict=True):
            await client.send(TWO % (topic, topic))
        for client in clients:
            assert await client.frame() == Confirmed(1)
        # The first one does not wait; all others come during its commit, or in a few more on a busy machine.
        assert 0 < commits(host) - before <= 10


async def test_a_topic_whose_ids_cannot_be_reserved_fails_no_other_publisher(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare_pairs(store)
    async with serving(store) as host:
        clients = [await host.connect() for _ in TOPICS]
        unlucky = (await clients[0].topics())[TOPICS[7]].id
        refuse_ids_of(unlucky, monkeypatch)
        for client, topic in zip(clients, TOPICS, strict=True):
            await client.send(TWO % (topic, topic))
        for client, topic in zip(clients, TOPICS, strict=True):
            if topic == TOPICS[7]:
                assert (await client.error()).startswith(b"Publish t7: ")
                assert (await client.error()).startswith(b"Confirm 1: ")
            else:
                assert await client.frame() == Confirmed(1)


async def test_the_catalogue_gets_free_pages_once_when_ids_could_not_be_reserved(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two commits (`StoreCatalogue.recycle_pages`), and by none while nothing fails."""
    reserve = StoreCatalogue.reserve
    await declare_before(store)
    async with serving(store, missed_pings=0) as host:
        client = await host.connect()
        before = commits(host)
        await pass_time(clock, 10)
        assert commits(host) == before

        def refuse(self: StoreCatalogue, bounds: Mapping[int, int]) -> None:
            raise StoreFull(Limit.DISK, "There is no room on disk.")

        monkeypatch.setattr(StoreCatalogue, "reserve", refuse)
        await client.send(publish(TOPICS[0], [b"first"]) + b"(Confirm 1)\n")
        assert (await client.error()).startswith(b"Publish t0: ")
        assert (await client.error()).startswith(b"Confirm 1: ")
        monkeypatch.setattr(StoreCatalogue, "reserve", reserve)
        assert commits(host) == before
        await pass_time(clock, 10)
        assert commits(host) == before + 2


async def test_ids_of_a_new_transient_topic_are_reserved_with_its_record(store: Path) -> None:
    async with serving(store, default_persistence="transient") as host:
        client = await host.connect()
        await client.ask(b"(Declare declared Broadcast Transient)")
        await client.ask(b"(Declare queue Round_robin Transient)")
        await client.ask(b"(Subscribe subscribed From_current)")
        await client.ask(b"(Declare subscribed Broadcast Transient)")
        before = commits(host)
        for topic in (b"declared", b"queue", b"subscribed"):
            await client.send(publish(topic, [b"first"]))
        assert await client.bodies(1) == [b"first"]
        await client.confirm()
        assert commits(host) == before
        await client.send(publish(b"published", [b"first"]))
        await client.confirm()
        assert commits(host) == before + 1
    # A clean shutdown gives the others back.
    async with serving(store) as host:
        infos = await host.topics()
        assert {name: info.last for name, info in infos.items()} == {
            b"declared": 1, b"queue": 1, b"subscribed": 1, b"published": 1
        }  # fmt: skip


async def test_an_undeclared_topic_without_messages_takes_other_types_after_a_kill(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with serving(store, default_persistence="transient") as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_current)")
        shutil.copytree(store, tmp_path / "killed")
    async with serving(tmp_path / "killed", default_persistence="transient") as host:
        client = await host.connect()
        declared = await client.ask(b"(Declare t Round_robin (Persistent Strong))")
        assert isinstance(declared, Declared)
