"""All topics of a server, one after another, while topics come and go."""

import gc
import weakref

from served_drivers import Drivers

from omq.drivers.drivers_by_name import CHUNK_IDS
from omq.model import Delivery, Transient


async def test_topics_come_in_the_order_of_their_ids_while_some_come_and_go(drivers: Drivers) -> None:
    catalogue = drivers.catalogue
    names = [b"t%d" % number for number in range(CHUNK_IDS + 8)]
    await catalogue.make(names, Delivery.ROUND_ROBIN, Transient(), None)
    assert catalogue.size() == (len(names), sum(map(len, names)))
    in_turn = catalogue.in_turn()
    assert next(in_turn).topic.topic == names[0]
    for name in (names[0], names[2], names[-1]):
        await catalogue.delete(name)
    new = await catalogue.declare(b"new", Delivery.ROUND_ROBIN, Transient())
    found = [driver.topic for driver in in_turn]
    assert found == sorted(found, key=lambda topic: topic.id)
    assert [topic.topic for topic in found] in ([names[1], *names[3:-1]], [names[1], *names[3:-1], b"new"])
    for driver in catalogue.in_turn():
        if driver is not new:
            await catalogue.delete(driver.topic.topic)
    assert list(catalogue.in_turn()) == [new]
    assert catalogue.size() == (1, len(b"new"))


async def test_a_topic_that_goes_before_its_turn_is_freed_at_once(drivers: Drivers) -> None:
    catalogue = drivers.catalogue
    await catalogue.make([b"first", b"last"], Delivery.BROADCAST, Transient(), None)
    in_turn = catalogue.in_turn()
    assert next(in_turn).topic.topic == b"first"
    gc.collect()
    gc.disable()
    try:
        (last,) = (weakref.ref(driver) for driver in catalogue if driver.topic.topic == b"last")
        await catalogue.delete(b"last")
        assert last() is None
    finally:
        gc.enable()
    assert list(in_turn) == []
