"""The order in which channels of one connection give the messages of a queue."""

import random
from collections.abc import Iterator

import pytest

from omq.drivers.delivery_order import DeliveryOrder


class Turn:
    """A channel that counts how often it was told that it is its turn."""

    def __init__(self) -> None:
        self.told = 0

    def in_turn(self) -> None:
        self.told += 1


class PlainOrder:
    """The same order as a list."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def keep(self, channel: Turn, count: int) -> None:
        of_it = [place for place, each in enumerate(self.turns) if each is channel]
        for place in reversed(of_it[count:]):
            del self.turns[place]


def taken(order: DeliveryOrder, channels: list[Turn]) -> Iterator[Turn]:
    """Take everything, and yield whose it is."""
    while following := [channel for channel in channels if order.is_next(channel)]:
        (channel,) = following
        order.take()
        yield channel


@pytest.mark.parametrize("seed", range(20))
def test_selections_are_given_in_the_order_in_which_they_were_assigned(seed: int) -> None:
    chance = random.Random(seed)
    channels = [Turn() for _ in range(5)]
    order, plain = DeliveryOrder(), PlainOrder()
    for _ in range(300):
        channel = chance.choice(channels)
        match chance.randrange(5):
            case 0 | 1:
                count = chance.randrange(4)
                order.add(channel, count)
                plain.turns += [channel] * count
            case 2:
                order.keep(channel, 0)
                plain.keep(channel, 0)
            case 3:
                count = chance.randrange(1, 3)
                order.keep(channel, count)
                plain.keep(channel, count)
            case _:
                if plain.turns:
                    first = plain.turns[0]
                    assert [each for each in channels if order.is_next(each)] == [first]
                    order.take()
                    if chance.randrange(2):
                        order.give_back(first, 1)
                    else:
                        del plain.turns[0]
    assert list(taken(order, channels)) == plain.turns


def test_a_channel_that_loses_its_selections_passes_its_turn_on() -> None:
    one, two = Turn(), Turn()
    order = DeliveryOrder()
    order.add(one, 3)
    order.add(two)
    order.keep(one, 1)
    assert (one.told, two.told) == (0, 0)
    order.keep(one, 0)
    assert (one.told, two.told) == (0, 1)
    order.keep(one, 0)  # again: it has none
    assert two.told == 2
    order.keep(two, 0)
    assert not order.is_next(one)
    assert not order.is_next(two)
