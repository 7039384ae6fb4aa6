"""Topics that one read deletes: they are deleted in few commits, as if one by one."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from omq.config import ClientConfig
from omq.protocol.omq.types import Confirmed, Declared, Deleted, Error
from omq_storage.catalogue import StoreCatalogue
from omq_storage.environment import Environment
from omq_storage.errors import Limit, StoreFull
from omq_storage.levels import Level

from .conversation import STORED, Conversation, InProcess, publish, serving
from .test_quotas import SECRET, enter
from .test_reservations import commits

TOPICS = [b"t%d" % number for number in range(300)]
DELETED_AT_ONCE = 16
"""The number of Deletes that the server reads in one step."""


async def make(host: InProcess, persistence: bytes = b"Transient") -> Conversation:
    """Return a client that has declared the topics, and published a message to each."""
    client = await host.connect()
    await client.send(b"".join(b"(Declare %s Broadcast %s)\n" % (topic, persistence) for topic in TOPICS))
    for _ in TOPICS:
        await client.frame()
    await client.send(b"".join(publish(topic, [b"first"]) for topic in TOPICS))
    assert await client.ask(b"(Confirm 1)") == Confirmed(1)
    return client


async def test_deletes_in_a_row_share_their_commits(store: Path) -> None:
    async with serving(store) as host:
        client = await make(host)
        before = commits(host)
        lines = [b"(Delete %s)\n" % topic for topic in TOPICS]
        lines.insert(7, lines[3])  # deleted twice
        lines.insert(40, b"(Delete odd)\n")
        await client.send(b"".join(lines))
        answers = [await client.frame() for _ in lines]
        # The lines may arrive in pieces.
        assert commits(host) - before <= 3 * len(lines) // DELETED_AT_ONCE
        errors = {place: each.text for place, each in enumerate(answers) if isinstance(each, Error)}
        assert errors == {7: b"Delete t3: there is no such topic", 40: b"Delete odd: there is no such topic"}
        assert [each.topic.topic for each in answers if isinstance(each, Deleted)] == TOPICS
        assert await client.topics() == {}
    async with serving(store) as host:
        assert await (await host.connect()).topics() == {}


def block_commits(host: InProcess) -> int:
    """Return the number of times that the levels, which have the blocks, were written."""
    writers = host.server.catalogue.writers.values()
    return sum(writer.environment.usage().transaction for writer in writers)


@STORED
async def test_the_blocks_of_topics_that_are_deleted_in_a_row_share_their_commits(
    store: Path, persistence: bytes
) -> None:
    async with serving(store) as host:
        client = await make(host, persistence)
        before = block_commits(host)
        await client.send(b"".join(b"(Delete %s)\n" % topic for topic in TOPICS))
        for topic in TOPICS:
            deleted = await client.frame()
            assert isinstance(deleted, Deleted)
            assert deleted.topic.topic == topic
        assert block_commits(host) - before <= 3 * len(TOPICS) // DELETED_AT_ONCE
        environments = [writer.environment for writer in host.server.catalogue.writers.values()]
        assert [environment.extents() for environment in environments] == [{}, {}, {}]


async def test_only_topics_that_the_client_may_delete_are_deleted(store: Path) -> None:
    mine = ClientConfig(name="a", secret=SECRET, declare=["*"], delete=["t1*"], subscribe=["*"])
    async with serving(store, clients=[mine]) as host:
        client = await enter(host, "a")
        topics = TOPICS[:20]
        await client.send(b"".join(b"(Declare %s Broadcast Transient)\n" % topic for topic in topics))
        assert all([isinstance(await client.frame(), Declared) for _ in topics])
        await client.send(b"".join(b"(Delete %s)\n" % topic for topic in topics))
        answers = dict(zip(topics, [await client.frame() for _ in topics], strict=True))
        refused = [topic for topic, answer in answers.items() if isinstance(answer, Error)]
        assert refused == [topic for topic in topics if not topic.startswith(b"t1")]
        assert sorted(await client.topics()) == sorted(refused)


async def test_topics_that_cannot_be_deleted_together_are_deleted_one_by_one(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_many = StoreCatalogue.delete_many

    def refuse_many(catalogue: StoreCatalogue, topics: Sequence[int]) -> None:
        if len(topics) > 1:
            raise StoreFull(Limit.MAP, "There is no room in the map.")
        delete_many(catalogue, topics)

    async with serving(store) as host:
        client = await make(host)
        monkeypatch.setattr(StoreCatalogue, "delete_many", refuse_many)
        await client.send(b"".join(b"(Delete %s)\n" % topic for topic in TOPICS))
        answers = [await client.frame() for _ in TOPICS]
        assert [each.topic.topic for each in answers if isinstance(each, Deleted)] == TOPICS
        assert await client.topics() == {}


async def test_blocks_that_cannot_be_deleted_hold_up_no_others(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_some = Environment.drop_some
    kept = list[int]()

    def refuse_one(environment: Environment, topics: Sequence[int]) -> list[int]:
        if kept[0] in topics:
            raise StoreFull(Limit.MAP, "There is no room in the map.")
        return drop_some(environment, topics)

    async with serving(store) as host:
        client = await make(host, b"(Persistent Strong)")
        kept.append((await client.topics())[TOPICS[5]].id)
        monkeypatch.setattr(Environment, "drop_some", refuse_one)
        await client.send(b"".join(b"(Delete %s)\n" % topic for topic in TOPICS))
        assert all([isinstance(await client.frame(), Deleted) for _ in TOPICS])
        extents = host.server.catalogue.writers[Level.STRONG].environment.extents
        assert extents().keys() == set(kept)
        monkeypatch.setattr(Environment, "drop_some", drop_some)
        await host.server.catalogue.orphaned_blocks.drop()
        assert extents() == {}
