"""A lease for a sink: it gives this very topic, with the right of the client to it."""

from pathlib import Path

import pytest
from served_control import connected, control, known

from omq.access.session import TooLarge
from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Reason, Refused
from omq.model import Delivery, Persistent, Sync
from omq_storage.batches import Bodies

WEAK = Persistent(Sync.WEAK)

MIB = 1 << 20


async def test_a_message_that_is_too_large_is_refused_with_all_of_its_batch(tmp_path: Path) -> None:
    async with control(tmp_path, max_message_bytes=1000) as access:
        client = await connected(access)
        topic = access.leased_topic(client, await client.declare(b"t", Delivery.BROADCAST, WEAK))
        with pytest.raises(TooLarge):
            await topic.post(Bodies([b"small", b"x" * 1001]), [b"", b""], ())
        assert (await client.look_up(b"t")).messages == 0
        assert isinstance(await topic.post(Bodies([b"x" * 1000]), [b""], ()), Confirmation)
        client.close()


async def test_each_use_takes_the_right_to_publish(tmp_path: Path) -> None:
    async with control(tmp_path, clients=[known("known", declare=["*"])]) as access:
        client = await connected(access, b"known:s")
        topic = access.leased_topic(client, await client.declare(b"t", Delivery.BROADCAST, WEAK))
        posts = (lambda: topic.post(Bodies([b"x"]), (), ()), lambda: topic.upload(MIB))
        for use in (topic.check, topic.uploads_from, topic.takers, *posts):
            with pytest.raises(Refused) as refused:
                await use()
            assert refused.value.reason is Reason.FORBIDDEN
        client.close()


async def test_a_lease_is_void_for_a_later_topic_of_the_same_name(tmp_path: Path) -> None:
    async with control(tmp_path) as access:
        client = await connected(access)
        topic = access.leased_topic(client, await client.declare(b"t", Delivery.BROADCAST, WEAK))
        await topic.check()
        await client.delete(b"t")
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await topic.post(Bodies([b"x"]), (), ())
            assert refused.value.reason is Reason.DELETED
            later = await client.declare(b"t", Delivery.BROADCAST, WEAK)
        assert later.id != topic.topic.id
        assert (await client.look_up(b"t")).messages == 0
        client.close()
