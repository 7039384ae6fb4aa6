"""What a session refuses by itself, also to a terminal that checks nothing."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from quietness import quiet

from omq import watching
from omq.access.control import AccessControl
from omq.access.hashes import SecretHash
from omq.access.session import MOST_REMEMBERED, Session, TooLarge
from omq.config import ClientConfig, Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.confirmation import Confirmation
from omq.drivers.lifetime import Durable, Private
from omq.drivers.memory import Memory
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import Channel, End
from omq.model import Delivery, FromCurrent, Persistent, Sync, Topic
from omq_storage.batches import Bodies
from omq_storage.store import Store

WEAK = Persistent(Sync.WEAK)


class NoServer:
    """Nothing here watches or controls a server."""

    def totals(self, watchers: int) -> watching.Server:
        raise AssertionError

    def warnings(self, after: int) -> tuple[watching.Line, ...]:
        raise AssertionError

    def connections(self, first: int) -> Iterator[watching.ConnectionInfo | None]:
        raise AssertionError

    def subscribers(self, topic: int) -> Iterator[watching.SubscriberInfo | None]:
        raise AssertionError

    def disconnect(self, connection: int, by: bytes) -> bool:
        raise AssertionError


@asynccontextmanager
async def session(path: Path, id: bytes = b"tester", **settings: object) -> AsyncIterator[Session]:
    """A session of a server, by default of one without configured clients."""
    config = Config(store=str(path), **settings)  # type: ignore[arg-type]
    with Store.open(path, map_size=1 << 28) as store:
        async with trio.open_nursery() as nursery:
            memory = Memory(1 << 26)
            catalogue = Catalogue(config, store, memory, nursery)
            for writer in catalogue.writers.values():
                nursery.start_soon(writer.run)
            await catalogue.open_stored()
            control = AccessControl(config, catalogue, memory, NoServer())
            opened = await control.connect(id, "127.0.0.1", "127.0.0.1:1")
            yield opened
            opened.close()
            nursery.cancel_scope.cancel()


async def test_a_message_that_is_too_large_is_refused_with_all_of_its_batch(tmp_path: Path) -> None:
    async with session(tmp_path, max_message_bytes=1000) as client:
        topic = await client.declare(b"t", Delivery.BROADCAST, WEAK)
        batch = Bodies([b"small", b"x" * 1001])
        with pytest.raises(TooLarge, match="a message has at most 1000 octets, this one 1001") as refused:
            client.offer(b"t", batch)
        assert (refused.value.reason, refused.value.limit) == (Reason.TOO_LARGE, 1000)
        with pytest.raises(TooLarge):
            await client.post_leased(topic, batch, [b"", b""], ())
        assert (await client.look_up(b"t")).messages == 0
        assert isinstance(client.offer(b"t", Bodies([b"x" * 1000])), Confirmation)


async def test_what_is_leased_is_one_topic_and_no_later_one_of_its_name(tmp_path: Path) -> None:
    async with session(tmp_path) as client:
        topic = await client.declare(b"t", Delivery.BROADCAST, WEAK)
        await client.check_leased(topic)
        await client.delete(b"t")
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await client.post_leased(topic, Bodies([b"x"]), (), ())
            assert refused.value.reason is Reason.DELETED
            later = await client.declare(b"t", Delivery.BROADCAST, WEAK)
        assert later.id != topic.id
        assert (await client.look_up(b"t")).messages == 0


async def test_the_right_to_publish_is_remembered_for_topics_that_come_and_go(tmp_path: Path) -> None:
    async with session(tmp_path) as client:
        assert client.offer(b"t", Bodies([b"x"])) is None
        await client.declare(b"t", Delivery.BROADCAST, WEAK)
        assert isinstance(client.offer(b"t", Bodies([b"x"])), Confirmation)
        await client.delete(b"t")
        assert client.offer(b"t", Bodies([b"x"])) is None
        for number in range(2 * MOST_REMEMBERED + 1):
            assert client.offer(b"%d" % number, Bodies([b"x"])) is None
        await client.declare(b"t", Delivery.ROUND_ROBIN, WEAK)
        assert isinstance(client.offer(b"t", Bodies([b"x"])), Confirmation)


class Subscriber:
    """The terminal's side of a channel."""

    def __init__(self, topic: Topic, closed: Callable[[], None]) -> None:
        self.topic = topic
        self.closed = closed
        self.has_ended = False

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: End) -> None:
        self.has_ended = True


async def test_an_exclusive_subscriber_is_refused_or_alone_and_takes_a_subscription_only_if_it_is_open(
    tmp_path: Path,
) -> None:
    async with session(tmp_path, max_subscriptions=2, client_share=1) as client:
        first, channel = await client.open(b"t", FromCurrent(), Subscriber)
        for _ in range(3):
            with pytest.raises(Refused):
                await client.open(b"t", FromCurrent(), Subscriber, exclusive=True)
        channel.close()
        first.closed()
        only, alone = await client.open(b"t", FromCurrent(), Subscriber, exclusive=True)
        for _ in range(3):
            with pytest.raises(Refused) as refused:
                await client.open(b"t", FromCurrent(), Subscriber)
            assert refused.value.reason is not Reason.QUOTA
        alone.close()
        only.closed()
        await client.open(b"t", FromCurrent(), Subscriber)
        await client.open(b"other", FromCurrent(), Subscriber)
        with pytest.raises(Refused) as refused:
            await client.open(b"third", FromCurrent(), Subscriber)
        assert refused.value.reason is Reason.QUOTA


async def test_a_topic_that_goes_with_its_last_consumer_gives_its_quota_back(tmp_path: Path) -> None:
    async with session(tmp_path, max_topics=1) as client:
        await client.declare(b"t", Delivery.BROADCAST, WEAK, Durable(with_last_consumer=True))
        with pytest.raises(Refused) as refused:
            await client.declare(b"other", Delivery.BROADCAST, WEAK)
        assert refused.value.reason is Reason.QUOTA
        subscriber, channel = await client.open(b"t", FromCurrent(), Subscriber)
        channel.close()
        subscriber.closed()
        with trio.fail_after(20):
            while True:
                with suppress(Refused):
                    await client.declare(b"other", Delivery.BROADCAST, WEAK)
                    break
                await quiet()


async def test_a_private_topic_takes_quotas_and_sizes_and_gives_its_quota_back(tmp_path: Path) -> None:
    settings = {"max_topics": 2, "max_subscriptions": 1, "client_share": 1, "max_message_bytes": 100}
    async with session(tmp_path, **settings) as client:
        for _ in range(3):
            one, other = [client.make_private(b"reply", Delivery.ROUND_ROBIN, Private()) for _ in range(2)]
            with pytest.raises(Refused) as refused:
                client.make_private(b"reply", Delivery.ROUND_ROBIN, Private())
            assert refused.value.reason is Reason.QUOTA
            with pytest.raises(TooLarge):
                one.offer(Bodies([b"x" * 101]))
            assert isinstance(one.offer(Bodies([b"x" * 100])), Confirmation)
            subscriber, channel = one.open(FromCurrent(), Subscriber)
            with pytest.raises(Refused) as refused:
                other.open(FromCurrent(), Subscriber)
            assert refused.value.reason is Reason.QUOTA
            channel.close()
            subscriber.closed()
            for topic in (one, other, one):
                topic.delete()


RIGHTS = ["declare", "publish", "subscribe"]


@pytest.mark.parametrize("missing", RIGHTS)
async def test_each_use_of_a_private_topic_takes_its_right(tmp_path: Path, missing: str) -> None:
    secret = SecretHash(1, 1, 1, bytes(16), hashlib.scrypt(b"s", salt=bytes(16), n=2, r=1, p=1, dklen=32))
    rights: dict[str, Any] = {right: [] if right == missing else ["*"] for right in RIGHTS}
    known = ClientConfig(name="known", secret=str(secret), **rights)
    async with session(tmp_path, b"known:s", clients=[known]) as client:

        def use() -> None:
            topic = client.make_private(b"reply", Delivery.BROADCAST, Private())
            topic.offer(Bodies([b"x"]))
            topic.open(FromCurrent(), Subscriber)

        with pytest.raises(Refused) as refused:
            use()
        assert refused.value.reason is Reason.FORBIDDEN
        assert str(refused.value).startswith(f"this client may not {missing}")
