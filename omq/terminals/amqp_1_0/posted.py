"""Messages that were posted to a topic, and their outcomes in the terms of AMQP 1.0."""

from collections.abc import Iterator, Sequence

import msgspec

from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Reason
from omq.protocol.amqp_1_0 import performatives, serials
from omq.terminals.amqp_1_0.refusals import condition_of, rejection
from omq.terminals.connection.held import ENDING

ACCEPTED = performatives.write(performatives.Accepted())
RELEASED = performatives.write(performatives.Released())


class PostedDeliveries(msgspec.Struct, frozen=True):
    """Consecutive messages of a post that came with consecutive delivery-ids."""

    first: int | None
    """The delivery-id of the first one; None if they came settled."""
    count: int

    def singly(self) -> Iterator["PostedDeliveries"]:
        """Yield the messages one by one."""
        for number in range(self.count):
            yield PostedDeliveries(None if self.first is None else serials.add(self.first, number), 1)


Told = tuple[int, int, bytes]
"""The first and the last delivery-id of messages, and their outcome."""


class Posted(msgspec.Struct, frozen=True):
    """Messages of one post, whose outcomes are not told yet."""

    deliveries: Sequence[PostedDeliveries]
    """The deliveries in the order of the messages."""
    count: int
    confirmation: Confirmation

    def failures(self) -> int:
        """Return the number of the messages that were not stored."""
        outcomes = self.confirmation.outcomes(self.count)
        return sum(count for count, failure in outcomes if failure is not None)

    def told(self) -> Iterator[Told]:
        """Yield the outcomes of the messages whose client wants to know."""
        runs = iter(self.deliveries)
        run, at = PostedDeliveries(None, 0), 0
        for count, failure in self.confirmation.outcomes(self.count):
            state = ACCEPTED if failure is None else state_of(failure)
            left = count
            while left:
                if at == run.count:
                    run, at = next(runs), 0
                some = min(left, run.count - at)
                if run.first is not None:
                    first = serials.add(run.first, at)
                    yield first, serials.add(first, some - 1), state
                at += some
                left -= some


def state_of(failure: Failure) -> bytes:
    """Return the outcome of a message that was not stored.

    A message for a topic that was deleted may be sent again, to one of the same name, and one that waited for
    room until the server ended its connection, on another connection. Another failure is about this message.
    """
    if failure.reason is Reason.DELETED or failure == ENDING:
        return RELEASED
    return rejection(condition_of(failure.reason), failure.text)


def failed(failure: Failure) -> Confirmation:
    """Return the confirmation of a post that was refused."""
    confirmation = Confirmation()
    confirmation.settle(failure)
    return confirmation
