"""The refusals of a session by itself, also to a terminal that checks nothing."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from quietness import quiet
from served_control import Subscriber, connected, control, known, session

from omq.access.control import AccessControl
from omq.access.leases import Principal
from omq.access.rights import Right
from omq.access.session import MOST_REMEMBERED, Session, TooLarge
from omq.drivers.confirmation import Confirmation
from omq.drivers.lifetime import Durable
from omq.drivers.push import MOST_WORK
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Reason, Refused
from omq.drivers.reservations import IDS_RESERVED
from omq.model import Delivery, FromCurrent, Persistent, Sync, Transient
from omq_storage.batches import Batch, Bodies

WEAK = Persistent(Sync.WEAK)


async def test_a_message_that_is_too_large_is_refused_with_all_of_its_batch(tmp_path: Path) -> None:
    async with session(tmp_path, max_message_bytes=1000) as client:
        await client.declare(b"t", Delivery.BROADCAST, WEAK)
        batch = Bodies([b"small", b"x" * 1001])
        with pytest.raises(TooLarge, match="a message has at most 1000 octets, this one 1001") as refused:
            client.offer(b"t", batch)
        assert (refused.value.reason, refused.value.limit) == (Reason.TOO_LARGE, 1000)
        assert (await client.look_up(b"t")).messages == 0
        assert isinstance(client.offer(b"t", Bodies([b"x" * 1000])), Confirmation)


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


async def test_a_place_is_given_back_once(tmp_path: Path) -> None:
    async with session(tmp_path, max_subscriptions=2, client_share=1) as client:
        for _ in range(3):
            held = [client.hold_subscription() for _ in range(2)]
            with pytest.raises(Refused):
                client.hold_subscription()
            for release in held + held:
                release()


async def test_a_place_that_was_held_for_a_refused_subscription_is_still_held(tmp_path: Path) -> None:
    async with session(tmp_path, max_subscriptions=2, client_share=1) as client:
        held = client.hold_subscription()
        await client.open(b"t", FromCurrent(), Subscriber)
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await client.open(b"t", FromCurrent(), Subscriber, held, exclusive=True)
            assert refused.value.reason is not Reason.QUOTA
            with pytest.raises(Refused) as refused:
                client.hold_subscription()
            assert refused.value.reason is Reason.QUOTA
        _, channel = await client.open(b"t", FromCurrent(), Subscriber, held)
        channel.close()
        held()
        client.hold_subscription()


async def test_stored_messages_are_found_in_any_number_that_is_not_negative(tmp_path: Path) -> None:
    async with session(tmp_path) as client:
        topic = await client.declare(b"t", Delivery.BROADCAST, WEAK)
        archive = client.archive(b"t")
        for count in (0, 1, 1 << 62):
            assert archive.find(1, count).topic == topic
        with pytest.raises(Refused, match="count cannot be negative"):
            archive.find(1, -1)
        with pytest.raises(Refused) as refused:
            client.archive(b"other").find(1, 1)
        assert refused.value.reason is Reason.NOT_FOUND


async def test_without_the_right_to_publish_no_topic_is_made_for_a_message(tmp_path: Path) -> None:
    rights = {"declare": ["*"], "publish": ["own"], "subscribe": ["*"]}
    async with session(tmp_path, b"known:s", clients=[known("known", **rights)]) as client:
        with pytest.raises(Refused) as refused:
            await client.find_or_make(b"t")
        assert refused.value.reason is Reason.FORBIDDEN
        assert await client.find(b"t", Right.SUBSCRIBE) is None
        await client.find_or_make(b"own")
        assert await client.find(b"own", Right.SUBSCRIBE) is not None
        assert isinstance(client.offer(b"own", Bodies([b"x"])), Confirmation)


async def test_a_topic_that_goes_with_its_last_consumer_gives_its_quota_back(tmp_path: Path) -> None:
    async with session(tmp_path, max_topics=1) as client:
        await client.declare(b"t", Delivery.BROADCAST, WEAK, Durable(with_last_consumer=True))
        with pytest.raises(Refused) as refused:
            await client.declare(b"other", Delivery.BROADCAST, WEAK)
        assert refused.value.reason is Reason.QUOTA
        subscriber, channel = await client.open(b"t", FromCurrent(), Subscriber)
        channel.close()
        subscriber.closed()
        with trio.fail_after(60):
            while True:
                with suppress(Refused):
                    await client.declare(b"other", Delivery.BROADCAST, WEAK)
                    break
                await quiet()


async def test_the_sessions_of_a_client_share_four_large_answers(tmp_path: Path) -> None:
    async with control(tmp_path) as access:
        one, other = [await connected(access) for _ in range(2)]
        for session in (one, other, one, other):
            session.large_answers.acquire_on_behalf_of_nowait(object())
        with pytest.raises(trio.WouldBlock):
            one.large_answers.acquire_on_behalf_of_nowait(object())
        elsewhere = await access.connect(b"tester", "127.0.0.2", "127.0.0.2:1")
        elsewhere.large_answers.acquire_on_behalf_of_nowait(object())


async def _declare(access: AccessControl, client: Session, name: bytes) -> None:
    await client.declare(name, Delivery.BROADCAST, WEAK)


async def _find_or_make(access: AccessControl, client: Session, name: bytes) -> None:
    await client.find_or_make(name)


async def _lease(access: AccessControl, client: Session, name: bytes) -> None:
    await access.leasing(client, Principal("here", b"known", None)).lease_sink(name)


@pytest.mark.parametrize("make", [_find_or_make, _lease, _declare])
async def test_a_topic_is_made_only_with_the_right_to_declare_it(
    tmp_path: Path, make: Callable[[AccessControl, Session, bytes], Awaitable[None]]
) -> None:
    rights = {"declare": ["own"], "publish": ["*"], "subscribe": ["*"]}
    async with control(tmp_path, clients=[known("known", **rights)]) as access:
        client = await connected(access, b"known:s")
        with pytest.raises(Refused, match="may not declare it") as refused:
            await make(access, client, b"t")
        assert refused.value.reason is Reason.FORBIDDEN
        assert await client.find(b"t", Right.SUBSCRIBE) is None
        await make(access, client, b"own")
        assert await client.find(b"own", Right.SUBSCRIBE) is not None
        client.close()


async def test_a_push_to_very_many_topics_lets_others_have_their_turn(tmp_path: Path) -> None:
    async with session(tmp_path) as client:
        names = [b"%d" % number for number in range(2 * MOST_WORK + 1)]
        rest: dict[bytes, Sequence[Batch]] = {}
        waiting = iter([(name, [Bodies([b"x"])]) for name in names])
        for turn in (1, 2):
            assert not client.push(waiting, rest)
            assert list(rest) == names[: turn * MOST_WORK]
        assert client.push(waiting, rest)
        assert list(rest) == names


async def test_ids_are_reserved_for_transient_topics_that_lack_them_only(tmp_path: Path) -> None:
    clients = [known("known", declare=["*"], publish=["may"])]
    async with control(tmp_path, clients=clients) as access:
        client = await connected(access, b"known:s")
        for name in (b"may", b"may not"):
            await client.declare(name, Delivery.BROADCAST, Transient())
        few, many = Bodies([b""]), Bodies([b""] * (IDS_RESERVED + 1))
        provisioning = access.provisioning(client)
        assert not await provisioning.reserve_ids({b"may": [few], b"missing": [many], b"may not": [many]})
        assert await provisioning.reserve_ids({b"may": [many, few]})
        assert not await provisioning.reserve_ids({b"may": [many, few]})
        client.close()


async def test_deleting_a_topic_takes_a_right_or_ownership(tmp_path: Path) -> None:
    clients = [known("known", declare=["*"], delete=["*"]), known("other", declare=["*"])]
    async with control(tmp_path, clients=clients) as access:
        owner, same_client, other = [
            await connected(access, id) for id in (b"known:s", b"known:s", b"other:s")
        ]
        topology = access.topology(owner)
        await topology.declare_queue(b"exclusive", QueueOptions(exclusive=True))
        await other.declare(b"t", Delivery.BROADCAST, WEAK)
        for client, name, reason in (
            (other, b"t", Reason.FORBIDDEN),
            (same_client, b"none", Reason.NOT_FOUND),
            (same_client, b"exclusive", Reason.LOCKED),
        ):
            with pytest.raises(Refused) as refused:
                await client.delete(name)
            assert refused.value.reason is reason
        assert (await same_client.delete(b"t")).topic == b"t"
        topology.close()
        for client in (owner, same_client, other):
            client.close()
