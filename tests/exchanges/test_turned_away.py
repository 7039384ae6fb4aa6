"""Queues with `reject-publish-dlx`: the messages that they refuse are dead letters."""

import pytest
import trio
from queue_cases import EITHER, queue_of, rest, worker
from served_drivers import Drivers, post, quiet, settled

from omq.drivers.confirmation import Confirmation
from omq.drivers.offer import PendingOffer
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import Overflow
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.seam import REJECTED
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import LongString
from omq_storage.batches import Bodies

MAX_LENGTH = 2


async def full_queue(drivers: Drivers, *, durable: bool = False) -> QueueDriver:
    """Return a queue with its greatest length, whose dead letters go to `dl`."""
    queue = await queue_of(
        drivers,
        durable=durable,
        max_length=MAX_LENGTH,
        overflow=Overflow.REJECT_PUBLISH_DLX,
        dead_letter_exchange=b"",
        dead_letter_key=b"dl",
    )
    await post(queue, b"a", b"b")
    return queue


def occupy(drivers: Drivers) -> None:
    """Let as many refused messages be on their way as may be."""
    on_the_way = drivers.catalogue.dead_letters.turned_away
    on_the_way.force(on_the_way.limit)


def vacate(drivers: Drivers) -> None:
    """Let none of them be on their way any more."""
    on_the_way = drivers.catalogue.dead_letters.turned_away
    on_the_way.give(on_the_way.limit)


async def done(drivers: Drivers, offered: object) -> list[tuple[int, Reason | None]]:
    """Wait for the outcomes of an offer of 3 messages."""
    assert isinstance(offered, Confirmation)
    while not offered.settled:
        await quiet()
        await drivers.drain()
    return [(count, failure and failure.reason) for count, failure in offered.outcomes(3)]


@EITHER
async def test_what_a_full_queue_refuses_is_a_dead_letter(drivers: Drivers, durable: bool) -> None:
    dead = await queue_of(drivers, b"dl", durable=durable)
    queue = await full_queue(drivers, durable=durable)
    all_of_them = queue.offer(Bodies([b"c", b"d", b"e"]))
    assert isinstance(all_of_them, Confirmation)
    assert all_of_them.refused is not None  # its publisher knows at once
    assert await done(drivers, all_of_them) == [(3, Reason.OVERFLOW)]
    assert dead.ready == 3  # they are there when the publisher is told
    assert queue.purge() == MAX_LENGTH
    assert await done(drivers, queue.offer(Bodies([b"f", b"g", b"h"]))) == [(2, None), (1, Reason.OVERFLOW)]
    assert (queue.ready, dead.ready) == (2, 4)
    heir = worker(dead)
    assert (await heir.read()).bodies == [b"c", b"d", b"e", b"h"]
    told = heads.decode(heir.got[-1].head).properties.headers
    assert told is not None
    assert dict(told.entries)[b"x-first-death-reason"] == LongString(b"maxlen")
    heir.close()


async def test_without_an_exchange_they_are_refused(drivers: Drivers) -> None:
    queue = await queue_of(drivers, max_length=1, overflow=Overflow.REJECT_PUBLISH_DLX)
    await post(queue, b"a")
    with pytest.raises(Refused):
        queue.offer(Bodies([b"b"]))


async def test_publishers_wait_while_many_are_on_their_way(drivers: Drivers) -> None:
    dead = await queue_of(drivers, b"dl")
    queue = await full_queue(drivers)
    occupy(drivers)
    waiting, given_up = queue.offer(Bodies([b"c", b"d", b"e"])), queue.offer(Bodies([b"f"]))
    assert isinstance(waiting, PendingOffer)
    assert isinstance(given_up, PendingOffer)
    given_up.leave()
    given_up.leave()
    assert waiting.again() is waiting
    assert queue.purge() == MAX_LENGTH  # so there is room for some of them when it is their turn
    vacate(drivers)
    assert await done(drivers, await waiting.taken()) == [(2, None), (1, Reason.OVERFLOW)]
    assert await rest(dead) == [b"e"]
    occupy(drivers)
    waiting = queue.offer(Bodies([b"g", b"h"]))
    assert isinstance(waiting, PendingOffer)
    assert queue.purge() == MAX_LENGTH
    vacate(drivers)
    assert await settled(await waiting.taken()) is None
    assert drivers.catalogue.dead_letters.turned_away.used == 0


async def test_those_that_the_queue_can_have_wait_for_memory(drivers: Drivers) -> None:
    dead = await queue_of(drivers, b"dl")
    queue = await full_queue(drivers, durable=True)
    occupy(drivers)
    for is_given_up in (False, True):
        waiting = queue.offer(Bodies([b"c", b"d", b"e"]))
        assert isinstance(waiting, PendingOffer)
        assert queue.purge() == MAX_LENGTH
        drivers.memory.posted.force(drivers.memory.posted.limit)
        vacate(drivers)
        assert waiting.again() is waiting
        assert waiting.again() is waiting
        if is_given_up:
            waiting.leave()
        drivers.memory.posted.give(drivers.memory.posted.limit)
        if not is_given_up:
            assert await done(drivers, await waiting.taken()) == [(2, None), (1, Reason.OVERFLOW)]
            occupy(drivers)
    await quiet()
    assert (queue.ready, dead.ready) == (0, 2)


async def test_the_queue_may_be_deleted_while_publishers_wait(drivers: Drivers) -> None:
    queue = await full_queue(drivers)
    occupy(drivers)
    waiting = queue.offer(Bodies([b"c"]))
    assert isinstance(waiting, PendingOffer)
    assert queue.purge() == MAX_LENGTH
    await drivers.catalogue.delete(b"q")
    vacate(drivers)
    with pytest.raises(Refused):
        await waiting.taken()
    with pytest.raises(Refused):
        queue.offer(Bodies([b"d", b"e", b"f"]))
    assert drivers.catalogue.dead_letters.turned_away.used == 0


async def test_dead_letters_do_not_wait_for_others(
    drivers: Drivers, mock_clock: trio.testing.MockClock
) -> None:
    """Otherwise those of two queues could wait for each other. They stay in their queue and try again."""
    dead = await queue_of(drivers, b"dl")
    await full_queue(drivers)
    source = await queue_of(drivers, b"source", dead_letter_exchange=b"", dead_letter_key=b"q")
    client = worker(source)
    await post(source, b"c")
    await client.read()
    occupy(drivers)
    client.settle(1, outcome=REJECTED)
    await quiet()
    assert (source.info().messages, dead.ready) == (1, 0)
    vacate(drivers)
    mock_clock.jump(1.5)
    await quiet()
    assert (source.info().messages, dead.ready) == (0, 1)
    client.close()


async def test_those_that_cannot_be_stored_are_dropped(
    drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    dead = await queue_of(drivers, b"dl", durable=True)
    queue = await full_queue(drivers)
    assert dead.writer is not None
    dead.writer.refusal = Failure(Reason.NO_ROOM, "the disk is full")
    assert await done(drivers, queue.offer(Bodies([b"c", b"d", b"e"]))) == [(3, Reason.OVERFLOW)]
    assert caplog.messages == ["'q': refused messages are no dead letters: the disk is full"]
    dead.writer.refusal = None
    assert await done(drivers, queue.offer(Bodies([b"f", b"g", b"h"]))) == [(3, Reason.OVERFLOW)]
    assert dead.ready == 3


async def test_many_are_sent_in_portions(drivers: Drivers) -> None:
    dead = await queue_of(drivers, b"dl")
    queue = await full_queue(drivers)
    offered = queue.offer(Bodies([b"%d" % number for number in range(3000)]))
    await done(drivers, offered)
    heir = worker(dead, 5000)
    assert (await heir.read()).bodies == [b"%d" % number for number in range(3000)]
    heir.close()
