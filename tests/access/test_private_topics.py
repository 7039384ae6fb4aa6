"""Topics that only one connection can find take the rights, quotas and sizes of its client."""

from pathlib import Path

import pytest
from served_control import Subscriber, connected, control, known

from omq.access.session import TooLarge
from omq.drivers.confirmation import Confirmation
from omq.drivers.lifetime import Private
from omq.drivers.reasons import Reason, Refused
from omq.model import Delivery, FromCurrent
from omq_storage.batches import Bodies

RIGHTS = ["declare", "publish", "subscribe"]


async def test_a_private_topic_has_several_subscribers_unless_one_wants_to_be_alone(tmp_path: Path) -> None:
    async with control(tmp_path) as access:
        client = await connected(access)
        topic = access.make_private(client, b"reply", Delivery.BROADCAST, Private())
        for _ in range(2):
            topic.open(FromCurrent(), Subscriber)
        with pytest.raises(Refused):
            topic.open(FromCurrent(), Subscriber, exclusive=True)
        client.close()


async def test_a_private_topic_takes_quotas_and_sizes_and_gives_its_quota_back(tmp_path: Path) -> None:
    settings = {"max_topics": 2, "max_subscriptions": 1, "client_share": 1, "max_message_bytes": 100}
    async with control(tmp_path, **settings) as access:
        client = await connected(access)
        for _ in range(3):
            one, other = [
                access.make_private(client, b"reply", Delivery.ROUND_ROBIN, Private()) for _ in range(2)
            ]
            with pytest.raises(Refused) as refused:
                access.make_private(client, b"reply", Delivery.ROUND_ROBIN, Private())
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
        client.close()


@pytest.mark.parametrize("missing", RIGHTS)
async def test_each_use_of_a_private_topic_takes_its_right(tmp_path: Path, missing: str) -> None:
    rights = {right: [] if right == missing else ["*"] for right in RIGHTS}
    async with control(tmp_path, clients=[known("known", **rights)]) as access:
        client = await connected(access, b"known:s")

        def use() -> None:
            topic = access.make_private(client, b"reply", Delivery.BROADCAST, Private())
            topic.offer(Bodies([b"x"]))
            topic.open(FromCurrent(), Subscriber)

        with pytest.raises(Refused) as refused:
            use()
        assert refused.value.reason is Reason.FORBIDDEN
        assert str(refused.value).startswith(f"this client may not {missing}")
        client.close()
