"""Messages that were posted to a topic, and their outcomes in the terms of AMQP 1.0."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Reason
from omq.protocol.amqp_1_0 import performatives
from omq.terminals.amqp_1_0.refusals import condition_of, rejection

ACCEPTED = performatives.write(performatives.Accepted())
RELEASED = performatives.write(performatives.Released())


@dataclass(frozen=True, slots=True)
class Posted:
    """Messages of one post, whose outcomes are not told yet."""

    deliveries: Sequence[int | None]
    """The delivery-ids of the messages, in their order; None for those that came settled."""
    confirmation: Confirmation

    def told(self) -> Iterator[tuple[int, bytes]]:
        """Yield the delivery-ids and outcomes of the messages whose client wants to know."""
        deliveries = iter(self.deliveries)
        for count, failure in self.confirmation.outcomes(len(self.deliveries)):
            state = ACCEPTED if failure is None else state_of(failure)
            for delivery in islice(deliveries, count):
                if delivery is not None:
                    yield delivery, state


def state_of(failure: Failure) -> bytes:
    """Return the outcome of a message that was not stored.

    A message for a topic that was deleted may be sent again, to one of the same name; another failure is
    about this message.
    """
    if failure.reason is Reason.DELETED:
        return RELEASED
    return rejection(condition_of(failure.reason), failure.text)


def failed(failure: Failure) -> Confirmation:
    """Return the confirmation of a post that was refused."""
    confirmation = Confirmation()
    confirmation.settle(failure)
    return confirmation
