"""Topics that one read declares or publishes to first: they are made in few commits, as if one by one."""

from pathlib import Path

import pytest

from omq.config import ClientConfig
from omq.protocol.omq.types import Confirmed, Declared, Error
from omq_storage.catalogue import StoreCatalogue
from omq_storage.errors import Limit, StoreFull

from .conversation import Conversation, publish, serving
from .test_quotas import SECRET, enter
from .test_reservations import commits

TOPICS = [b"t%d" % number for number in range(300)]
DECLARED_AT_ONCE = 16
"""The number of Declares that the server reads in one step."""


async def errors_of(client: Conversation, topics: list[bytes]) -> list[bytes]:
    """Return the Errors of publishing to each of these topics, of which some are refused."""
    await client.send(b"".join(publish(topic, [b"first"]) for topic in topics) + b"(Confirm 1)\n")
    errors = []
    while True:
        answer = await client.frame()
        assert isinstance(answer, Error)
        if answer.text.startswith(b"Confirm"):
            return errors
        errors.append(answer.text)


async def test_new_topics_that_are_published_to_share_their_commits(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        before = commits(host)
        await client.send(b"".join(publish(topic, [b"first"]) for topic in TOPICS) + b"(Confirm 1)\n")
        assert await client.frame() == Confirmed(1)
        # One each would be three hundred. What was sent may arrive in pieces.
        assert commits(host) - before <= 20
        topics = await client.topics()
        assert [topics[name].last for name in TOPICS] == [1] * len(TOPICS)
    async with serving(store) as host:
        assert sorted(await (await host.connect()).topics()) == sorted(TOPICS)


async def test_new_topics_that_are_declared_share_their_commits(store: Path) -> None:
    async with serving(store) as host:
        client = await host.connect()
        before = commits(host)
        lines = [b"(Declare %s Broadcast Transient)\n" % topic for topic in TOPICS]
        lines.insert(7, lines[3])  # declared twice
        lines.insert(40, b"(Declare odd Round_robin (Persistent Strong))\n")
        lines.insert(60, b'(Declare "" Broadcast Transient)\n')
        lines.insert(90, b"(Declare t3 Round_robin Transient)\n")
        await client.send(b"".join(lines))
        answers = [await client.frame() for _ in lines]
        assert commits(host) - before <= 3 * len(lines) // DECLARED_AT_ONCE
        errors = {place: each.text for place, each in enumerate(answers) if isinstance(each, Error)}
        assert errors == {
            60: b'Declare "": the topic\'s name is empty',
            90: b"Declare t3: the topic exists as Broadcast Transient",
        }
        names = [each.topic.topic for each in answers if isinstance(each, Declared)]
        assert names == [*TOPICS[:7], TOPICS[3], *TOPICS[7:39], b"odd", *TOPICS[39:]]
        assert len(await client.topics()) == len(TOPICS) + 1


@pytest.mark.parametrize("most", [5, 20])
async def test_a_quota_that_some_new_topics_exceed_refuses_the_last_ones(store: Path, most: int) -> None:
    async with serving(store, max_topics=most, client_share=1) as host:
        client = await host.connect()
        errors = await errors_of(client, TOPICS[:40])
        assert [error.split(b":")[0] for error in errors] == [b"Publish " + each for each in TOPICS[most:40]]
        assert sorted(await client.topics()) == sorted(TOPICS[:most])
        # The quota for topics that were not made is free again.
        await client.ask(b"(Delete %s)" % TOPICS[0])
        assert isinstance(await client.ask(b"(Declare other Broadcast Transient)"), Declared)


async def test_no_topic_is_made_for_a_message_that_is_refused(store: Path) -> None:
    mine = ClientConfig(name="a", secret=SECRET, publish=["*"], declare=["t1*"], subscribe=["*"])
    async with serving(store, clients=[mine], max_message_bytes=1000) as host:
        client = await enter(host, "a")
        large = publish(b"t19", [bytes(1001)])
        await client.send(large)
        errors = await errors_of(client, TOPICS[:19])
        assert errors[0].startswith(b"Publish t19:")
        assert [error.split(b":")[0] for error in errors[1:]] == [
            b"Publish t0",
            *(b"Publish t%d" % number for number in range(2, 10)),
        ]
        assert sorted(await client.topics()) == sorted([b"t1", *(b"t%d" % each for each in range(10, 19))])


async def test_publishing_makes_no_topic_where_topics_must_be_declared(store: Path) -> None:
    async with serving(store, allow_undeclared=False) as host:
        client = await host.connect()
        assert len(await errors_of(client, TOPICS[:30])) == 30
        assert await client.topics() == {}


async def test_topics_that_cannot_be_made_together_are_made_one_by_one(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*of_topics: object, **options: object) -> None:
        raise StoreFull(Limit.DISK, "There is no room on disk.")

    async with serving(store, max_topics=31, client_share=1) as host:
        client = await host.connect()
        monkeypatch.setattr(StoreCatalogue, "create_many", refuse)
        await client.send(b"".join(publish(topic, [b"first"]) for topic in TOPICS[:30]) + b"(Confirm 1)\n")
        assert await client.frame() == Confirmed(1)
        assert sorted(await client.topics()) == sorted(TOPICS[:30])
