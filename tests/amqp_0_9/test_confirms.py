"""The confirms of a channel whose client does not read them."""

import pytest
from measuring import takes_linear_time

from omq.drivers.confirmation import CONFIRMED, Confirmation
from omq.drivers.reasons import Failure, Reason
from omq.protocol.amqp_0_9.frames import ack_frame, method_frame
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.methods import BasicAck, BasicNack
from omq.terminals.amqp_0_9.confirms import Confirms
from omq.terminals.amqp_0_9.posts import ChannelPost, Group


def posted(confirmation: Confirmation, count: int = 1) -> ChannelPost:
    group = Group()
    group.count = count
    group.confirmation = confirmation
    run = ChannelPost(count)
    run.add(group, 0, count, None)
    return run


def frames(*methods: Method) -> bytes:
    return b"".join(method_frame(7, each) for each in methods)


def test_confirms_that_are_not_collected_are_held_as_one() -> None:
    confirms = Confirms(7)
    for _ in range(10_000):
        confirms.add(posted(CONFIRMED, 2))
    assert len(confirms.waiting()) <= 100
    assert confirms.unconfirmed == 20_000
    waiting = len(confirms.waiting())
    assert confirms.collect(100) == (frames(BasicAck(20_000, multiple=True)), waiting)
    assert confirms.unconfirmed == 0


def test_the_parts_of_a_message_for_many_queues_are_looked_at_in_portions() -> None:
    confirms, parts = Confirms(7), 1000
    for _ in range(2):
        run = ChannelPost(1)
        for _ in range(parts):
            group = Group()
            group.confirmation = CONFIRMED
            run.add(group, 0, 1, None)
        confirms.add(run)
    looks = 0
    while (collected := confirms.collect(100))[0] == b"":
        looks += 1
        assert collected == (b"", 100)
    assert looks >= parts // 100 - 1
    assert confirms.unconfirmed == 1


def test_confirms_are_collected_in_portions() -> None:
    confirms = Confirms(7)
    for _ in range(5):
        confirms.add(posted(CONFIRMED, 2))
    assert confirms.collect(3) == (frames(BasicAck(6, multiple=True)), 3)
    assert confirms.unconfirmed == 4
    assert confirms.collect(3) == (frames(BasicAck(10, multiple=True)), 2)


@pytest.mark.parametrize("channel", [1, 2047])
@pytest.mark.parametrize("tag", [1, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("multiple", [False, True])
def test_a_confirm_is_the_frame_of_its_method(channel: int, tag: int, multiple: bool) -> None:
    assert ack_frame(channel, tag, multiple=multiple) == method_frame(channel, BasicAck(tag, multiple))


@pytest.mark.parametrize("place", [0, 1, 150, 299])
def test_a_refused_message_keeps_its_tag(place: int) -> None:
    confirms = Confirms(7)
    refused = Confirmation()
    for index in range(300):
        confirms.add(posted(refused if index == place else CONFIRMED))
    refused.settle(Failure(Reason.OVERFLOW, "full"))
    confirms.add(posted(CONFIRMED))
    acks = [BasicAck(place, multiple=place > 1)] if place else []
    nack = BasicNack(place + 1, multiple=True, requeue=True)
    rest = BasicAck(301, multiple=place < 299)
    told, _ = confirms.collect(1000)
    assert told == frames(*acks, nack, rest)


def test_many_refused_messages_of_a_read_are_told_in_linear_time() -> None:
    failure = Failure(Reason.OVERFLOW, "full")

    def tell(count: int) -> None:
        group = Group()
        confirms = Confirms(7)
        for begin in range(count):
            group.count += 1
            run = ChannelPost(1)
            run.add(group, begin, 1, None)
            confirms.add(run)
        group.confirmation = Confirmation()
        group.confirmation.settle_each([(1, None), (count - 1, failure)])
        told, collected = confirms.collect(2 * count)
        assert collected < 2 * count
        assert len(told) == len(frames(BasicAck(1, multiple=False))) + (count - 1) * len(
            frames(BasicNack(2, multiple=True, requeue=True))
        )

    assert takes_linear_time(tell, 2000)


def failed(outcomes: list[Failure | None]) -> ChannelPost:
    """Return a post with these outcomes of its messages."""
    confirmation = Confirmation()
    confirmation.settle_each([(1, outcome) for outcome in outcomes])
    return posted(confirmation, len(outcomes))


def test_neighbours_that_are_refused_are_told_together() -> None:
    confirms, full = Confirms(7), Failure(Reason.OVERFLOW, "full")
    confirms.add(failed([None, full, full, full, None, full]))
    confirms.add(failed([full] * 1000))
    told, _ = confirms.collect(1000)
    assert told == frames(
        BasicAck(1, multiple=False),
        BasicNack(4, multiple=True, requeue=True),
        BasicAck(5, multiple=False),
        BasicNack(6, multiple=True, requeue=True),
        BasicNack(1006, multiple=True, requeue=True),
    )
    assert confirms.unconfirmed == 0


def test_the_failures_of_a_post_are_told_in_portions() -> None:
    confirms, pairs, most = Confirms(7), 1000, 100
    confirms.add(failed([None, Failure(Reason.OVERFLOW, "full")] * pairs))
    confirms.add(posted(CONFIRMED))
    told: list[bytes] = []
    while confirms.unconfirmed:
        portion, parts = confirms.collect(most)
        told.append(portion)
        assert parts == most or not confirms.unconfirmed
    assert len(told) >= pairs // most
    assert b"".join(told) == frames(
        *(
            each
            for tag in range(1, 2 * pairs, 2)
            for each in (BasicAck(tag, multiple=False), BasicNack(tag + 1, multiple=True, requeue=True))
        ),
        BasicAck(2 * pairs + 1, multiple=False),
    )
