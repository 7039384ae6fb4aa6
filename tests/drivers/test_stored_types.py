"""The types that a repair gives to topics whose records are lost."""

import shutil
from pathlib import Path

import pytest
from served_drivers import Client, Kind, of_kinds, opened, post

from omq.drivers.reasons import Refused
from omq.drivers.stored_types import StoredTypes
from omq.model import FromBeginning, Transient
from omq_storage.repair import repair
from omq_storage.store import lock_store


@of_kinds(lambda kind: kind.is_persistent)
async def test_a_topic_without_a_record_keeps_its_types(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "store"
    async with opened(path) as drivers:
        topic = await drivers.topic(kind, b"lost")
        await post(topic, b"a", b"b")
        client = Client(topic)
        await post(topic, b"c")
        await client.read()  # only deliveries show that messages were dealt
        client.close()
        id = topic.topic.id
    shutil.rmtree(path / "catalogue")
    with lock_store(path):
        told = repair(path, StoredTypes(), "first", lambda _: None)
    name = b"recovered-%d" % id
    assert f"The name of topic {id} could not be saved; now it is called '{name.decode()}'." in told
    async with opened(path) as drivers:
        assert drivers.store.catalogue.topics()[id].declared
        found = await drivers.topic(kind, name)  # it exists with these types
        assert (found.topic.id, found.delivery, found.persistence) == (id, kind.delivery, kind.persistence)
        with pytest.raises(Refused, match="exists as"):
            await drivers.catalogue.declare(name, kind.delivery, Transient())
        if kind.is_broadcast:
            assert (await Client(found, FromBeginning()).read()).bodies == [b"a", b"b", b"c"]
        await post(found, b"d")
