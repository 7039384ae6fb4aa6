"""A damaged key can name ids that were never given: nobody may be sent there."""

from pathlib import Path

import lmdb
import pytest

from omq_storage.batches import Bodies
from omq_storage.levels import Level
from omq_storage.records import INDEX, block_key
from omq_storage.store import Store

from .conversation import serving


@pytest.mark.parametrize("delivery", ["Broadcast", "Round_robin"])
async def test_readers_of_a_damaged_key_go_on_with_later_messages(store: Path, delivery: str) -> None:
    with Store.open(store) as opened:
        topic = opened.catalogue.create(b"t", delivery, "Strong", True, reserved=100).id
        environment = opened.level(Level.STRONG)
        environment.append([Bodies([b"%d" % id]).encode(topic, id, 1, []) for id in (1, 2, 3)], {})
    with lmdb.open(str(store / "strong"), max_dbs=1) as opened_file:
        index = opened_file.open_db(INDEX)
        with opened_file.begin(index, write=True) as transaction:
            value = transaction.pop(block_key(topic, 3))
            assert value is not None
            transaction.put(block_key(topic, 4099), value)
    async with serving(store) as host:
        client = await host.connect()
        replay = b"From_beginning" if delivery == "Broadcast" else b"From_current"
        await client.ask(b"(Subscribe t %b)" % replay)
        assert await client.ids(2) == [1, 2]
        assert (await client.error()).startswith(b"Subscribe t: messages 3 to 3 are gone: ")
        await client.say(b"(Publish t next)")
        assert (await client.message()).body == b"next"
