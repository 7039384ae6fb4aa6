"""Queues have limits of messages and of octets: the oldest make room, or new ones are refused."""

import pytest
from queue_cases import EITHER, FAILED, queue_of, rest, small_posts, worker
from served_drivers import Drivers, post, quiet, settled

from omq.drivers.confirmation import Confirmation
from omq.drivers.holdings import RELEASED_BLOCKS
from omq.drivers.limited import MOST_DROPPED
from omq.drivers.offer import PendingOffer
from omq.drivers.queue_options import Overflow, QueueOptions
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import ACCEPTED
from omq.drivers.settling import SETTLED_AT_ONCE
from omq_storage.batches import Bodies


@EITHER
async def test_the_oldest_messages_make_room(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_length=2)
    await post(queue, *(b"%d" % number for number in range(5)))
    assert (queue.ready, queue.info().messages) == (2, 2)
    await post(queue, b"5")
    assert await rest(queue) == [b"4", b"5"]
    # Messages that consumers have do not count, until they come back.
    client = worker(queue, 2)
    await client.read()
    await post(queue, b"6", b"7", b"8")
    assert queue.ready == 2
    client.close()
    await quiet()
    assert await rest(queue) == [b"7", b"8"]


@EITHER
async def test_the_length_in_octets(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_octets=10)
    for body in (b"1234", b"5678", b"9"):
        await post(queue, body)
    assert queue.ready == 3
    await post(queue, b"ab")
    assert await rest(queue) == [b"5678", b"9", b"ab"]
    client = worker(queue, 1)
    assert (await client.read()).bodies == [b"5678"]
    await post(queue, b"cdefg")
    assert queue.ready == 3
    client.settle(4 - 2, outcome=FAILED)
    client.close()
    await quiet()
    assert await rest(queue) == [b"9", b"ab", b"cdefg"]
    assert queue.purge() == 3
    await post(queue, b"0123456789")
    assert await rest(queue) == [b"0123456789"]
    await post(queue, b"0123456789x")
    assert queue.ready == 0


@EITHER
async def test_a_queue_takes_exactly_its_length_in_octets(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_octets=10)
    await post(queue, b"01234")
    await post(queue, b"56789")
    assert queue.ready == 2
    await post(queue, b"0")
    assert await rest(queue) == [b"56789", b"0"]


@pytest.mark.parametrize("how", ["purge", "length", "octets", "settle", "release"])
async def test_many_messages_leave_memory_in_portions(drivers: Drivers, how: str) -> None:
    """To free a hundred thousand of them at once would take a tenth of a second."""
    queue = await queue_of(drivers)
    count = 3 * RELEASED_BLOCKS
    await small_posts(queue, count)
    used, ids = drivers.memory.waiting.used, range(1, count + 1)
    client = worker(queue, count)
    if how in ("settle", "release"):
        await client.read()
    else:
        client.close()
        await quiet()
    match how:
        case "purge":
            assert queue.purge() == count
        case "length":
            await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_length=1))
        case "octets":
            await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=5))
        case "settle":
            assert client.channel.settle(ids, ACCEPTED) == count
        case "release":
            client.close()
            assert queue.ready == count
            assert queue.purge() == count
        case _:
            raise AssertionError(how)
    left = {"length": 1, "octets": 5}.get(how, 0)
    assert (queue.ready, queue.info().messages) == (left, left)
    freed = used - drivers.memory.waiting.used
    assert 0 < freed <= used // 2
    await post(queue, b"later")
    assert drivers.memory.waiting.used < 120
    client.close()
    assert await rest(queue) == [b"later"]


@pytest.mark.parametrize("how", ["purge", "settle"])
async def test_done_messages_do_not_count_before_they_are_freed(drivers: Drivers, how: str) -> None:
    queue = await queue_of(drivers)
    count = 200 * SETTLED_AT_ONCE
    client = worker(queue, count)
    await post(queue, *[b"x"] * count)
    await client.read()
    for message in range(1, count + 1, 2):
        client.settle(message)
    match how:
        case "purge":
            client.close()
            assert queue.purge() == count // 2
        case "settle":
            assert client.channel.settle(range(1, count + 1), ACCEPTED) == count // 2
        case _:
            raise AssertionError(how)
    assert queue.info().messages == 0
    await post(queue, b"later")
    await quiet()
    assert queue.info().messages == 1
    client.close()
    assert await rest(queue) == [b"later"]


@pytest.mark.parametrize("limit", [{"max_length": 10}, {"max_octets": 10}])
async def test_many_returned_messages_are_dropped_in_portions(
    drivers: Drivers, limit: dict[str, int]
) -> None:
    queue = await queue_of(drivers, **limit)
    count = 5 * MOST_DROPPED
    client = worker(queue, count)
    for _ in range(count // 10):
        await small_posts(queue, 10)
        await client.read()
    client.close()
    assert queue.ready == count - MOST_DROPPED
    await quiet()
    assert queue.ready == 10
    assert len(await rest(queue)) == 10


@EITHER
async def test_the_least_messages_are_refused_by_their_octets(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_octets=4, overflow=Overflow.REJECT_PUBLISH)
    offered = queue.offer(Bodies([b"1", b"2", b"3", b"4", b"5"]))
    assert isinstance(offered, Confirmation)
    await settled(offered)
    await quiet()
    assert queue.ready == 4


@EITHER
async def test_a_full_queue_refuses_posts(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_length=3, overflow=Overflow.REJECT_PUBLISH)
    offered = queue.offer(Bodies([b"a", b"b"]))
    assert isinstance(offered, Confirmation)
    # The two count before they are stored.
    part = queue.offer(Bodies([b"c", b"d"]))
    assert isinstance(part, Confirmation)
    assert part.refused is not None  # its publisher knows before the rest is stored
    with pytest.raises(Refused) as refused:
        queue.offer(Bodies([b"e"]))
    assert refused.value.reason is Reason.OVERFLOW
    assert await settled(offered) is None
    assert await settled(part) is not None
    assert [(count, failure and failure.reason) for count, failure in part.outcomes(2)] == [
        (1, None),
        (1, Reason.OVERFLOW),
    ]
    await quiet()
    assert queue.ready == 3
    client = worker(queue, 5)
    assert (await client.read()).bodies == [b"a", b"b", b"c"]
    # A consumer with room takes more than the queue may have.
    assert isinstance(queue.offer(Bodies([b"%d" % number for number in range(5)])), Confirmation)
    await quiet()
    await drivers.drain()
    assert (await client.read()).bodies == [b"a", b"b", b"c", b"0", b"1"]
    assert queue.ready == 3
    client.close()


@EITHER
async def test_a_queue_full_of_octets_refuses_posts(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_octets=10, overflow=Overflow.REJECT_PUBLISH)
    await post(queue, b"123456")
    for body in (b"7890a", b"x" * 11):
        with pytest.raises(Refused):
            queue.offer(Bodies([body]))
    await post(queue, b"7890")
    with pytest.raises(Refused):
        queue.offer(Bodies([b"b"]))
    assert queue.purge() == 2
    # The first ones that it can have, whatever the mean is.
    offered = queue.offer(Bodies([b"1", b"2345678", b"9", b"ab", b"c" * 20]))
    assert isinstance(offered, Confirmation)
    # Those on their way count.
    with pytest.raises(Refused):
        queue.offer(Bodies([b"de"]))
    await settled(offered)
    assert [count for count, _ in offered.outcomes(5)] == [3, 2]
    await quiet()
    assert queue.purge() == 3
    # A consumer with room takes what the queue could have alone, and nothing longer.
    client = worker(queue, 3)
    offered = queue.offer(Bodies([b"x" * 10, b"y" * 9, b"z" * 11]))
    assert isinstance(offered, Confirmation)
    await settled(offered)
    assert [count for count, _ in offered.outcomes(3)] == [2, 1]
    await drivers.drain()
    assert (await client.read()).bodies == [b"x" * 10, b"y" * 9]
    client.close()


async def test_a_post_that_waits_is_refused_in_part(drivers: Drivers) -> None:
    """The queue takes what it has room for when the memory has, too."""
    queue = await queue_of(drivers, durable=True, max_length=1, overflow=Overflow.REJECT_PUBLISH)
    drivers.memory.posted.force(drivers.memory.posted.limit)
    offered = queue.offer(Bodies([b"a", b"b"]))
    assert not isinstance(offered, Confirmation)
    woken: list[None] = []
    offered.call_when_free(lambda: woken.append(None))
    drivers.memory.posted.give(drivers.memory.posted.limit)
    assert woken
    again = offered.again()
    assert isinstance(again, Confirmation)
    assert await settled(again) is not None
    assert [count for count, _ in again.outcomes(2)] == [1, 1]
    await quiet()
    assert queue.purge() == 1
    drivers.memory.posted.force(drivers.memory.posted.limit)
    offered = queue.offer(Bodies([b"a", b"b"]))
    assert not isinstance(offered, Confirmation)
    offered.leave()
    drivers.memory.posted.give(drivers.memory.posted.limit)


async def test_posts_that_wait_count(drivers: Drivers) -> None:
    """Several publishers may wait for memory at once: the queue takes no more than its length of them all."""
    queue = await queue_of(drivers, durable=True, max_length=3, overflow=Overflow.REJECT_PUBLISH)
    drivers.memory.posted.force(drivers.memory.posted.limit)
    first = queue.offer(Bodies([b"a", b"b"]))
    given_up = queue.offer(Bodies([b"c"]))
    assert isinstance(first, PendingOffer)
    assert isinstance(given_up, PendingOffer)
    with pytest.raises(Refused) as refused:
        queue.offer(Bodies([b"d"]))
    assert refused.value.reason is Reason.OVERFLOW
    given_up.leave()
    given_up.leave()
    last = queue.offer(Bodies([b"e", b"f"]))
    assert isinstance(last, PendingOffer)
    assert last.again() is last  # there is no room yet
    drivers.memory.posted.give(drivers.memory.posted.limit)
    assert await settled(await first.taken()) is None
    taken = await last.taken()
    assert await settled(taken) is not None
    assert [count for count, _ in taken.outcomes(2)] == [1, 1]
    await quiet()
    assert await rest(queue) == [b"a", b"b", b"e"]
    assert queue.purge() == 3
    await post(queue, b"g", b"h", b"i")
    with pytest.raises(Refused):
        queue.offer(Bodies([b"j"]))
