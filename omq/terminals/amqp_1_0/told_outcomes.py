"""The outcomes of direct messages, as their producers are told them, in limited memory.

A consumer may write tens of thousands of octets into each outcome, for example the description of an error.
Its producer may read nothing meanwhile.
"""

from typing import assert_never

from omq.drivers.budget import Budget
from omq.drivers.seam import Accepted, Modified, Outcome, Rejected, Released
from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.link import ReceivingLink


class OutcomeMemory:
    """The octets of the outcomes that one producer was not told yet, apart from short ones
    (`omq.drivers.direct_memory.SHORT_OUTCOME`).
    """

    def __init__(self, link: ReceivingLink, shared: Budget) -> None:
        """Create it for the producer of a link, without outcomes. `shared` is the memory of all producers."""
        self._link = link
        self._shared = shared
        self._octets = 0

    def keep(self, outcome: Outcome, told: bytes) -> bytes:
        """Return the delivery state of an outcome that a consumer told in these many octets, if there is
        memory for them; otherwise, or without octets, the outcome alone, without an error or annotations.
        """
        if not told or not self._link.is_attached or not self._shared.try_take(len(told)):
            return state_for(outcome)
        self._octets += len(told)
        return told

    def free(self) -> None:
        """Note that the producer is told all outcomes now, or never."""
        if self._octets:
            self._shared.give(self._octets)
            self._octets = 0


def state_for(outcome: Outcome) -> bytes:
    """Return the delivery state for an outcome that the server determined."""
    match outcome:
        case Accepted():
            return performatives.write(performatives.Accepted())
        case Rejected():
            return performatives.write(performatives.Rejected())
        case Released():
            return performatives.write(performatives.Released())
        case Modified(failed, undeliverable):
            return performatives.write(performatives.Modified(failed, undeliverable))
        case _:
            assert_never(outcome)
