"""The messages that a full queue refused and sends to its dead-letter exchange all the same.

They are in memory only, as nobody else has them: RabbitMQ gives no promise for them, either. The publisher is
told that they were refused when they have arrived, so one that waits for that has few of them on their way.
"""

import logging
import traceback
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from omq.drivers.confirmation import Confirmation
from omq.drivers.dead_letters import (
    LETTERS_OCTETS,
    MOST_LETTERS,
    DeadLetter,
    DeadLetterDelivery,
    DeadLetterSource,
    Death,
)
from omq.drivers.reasons import Failure
from omq.drivers.slices import Slices
from omq.logs import LogThrottle, quoted
from omq_storage.batches import Batch

log = logging.getLogger("omq.dead_letters")


class _Refused(Struct, frozen=True):
    """Messages of one post."""

    batch: Batch
    heads: Sequence[bytes]
    octets: int
    confirmation: Confirmation
    failure: Failure


class TurnedAway:
    """The refused messages of one queue that are on their way. A task sends them as long as there are any."""

    def __init__(self, source: DeadLetterSource, delivery: DeadLetterDelivery) -> None:
        self._source = source
        self._delivery = delivery
        self._waiting: deque[_Refused] = deque()
        self._is_running = False
        name = source.topic.topic
        self._dropped = LogThrottle.of_problem(
            log, f"{quoted(name)}: refused messages are no dead letters", topic=name
        )

    def add(self, batch: Batch, heads: Sequence[bytes], octets: int, failure: Failure) -> Confirmation:
        """Send messages that the queue refused with this failure, for which N octets of those that may be on
        their way are taken. Return the confirmation with which they fail.
        """
        confirmation = Confirmation()
        confirmation.refused = failure
        self._waiting.append(_Refused(batch, heads, octets, confirmation, failure))
        if not self._is_running:
            self._is_running = True
            self._delivery.start(self._run)
        return confirmation

    async def _run(self) -> None:
        try:
            while self._waiting:
                refused = self._waiting.popleft()
                try:
                    await self._send(refused.batch, refused.heads)
                except Exception:  # noqa: BLE001 - a defect, which the log shows; the queue continues
                    self._dropped.add(traceback.format_exc())
                finally:
                    self._delivery.turned_away.give(refused.octets)
                    refused.confirmation.settle(refused.failure)
        finally:
            self._is_running = False

    async def _send(self, batch: Batch, heads: Sequence[bytes]) -> None:
        """Send messages once: what fails is dropped."""
        name = self._source.topic.topic
        slices = Slices()
        begin = 0
        while begin < batch.count:
            end = _portion_end(batch, begin)
            bodies = batch.part(begin, end).bodies()
            await slices.step()
            some = heads[begin:end] or [b""] * len(bodies)
            letters = [
                DeadLetter(id, body, head, set())
                for id, (body, head) in enumerate(zip(bodies, some, strict=True), begin)
            ]
            undelivered = await self._delivery.deliver(name, self._source.options, Death.MAXLEN, letters)
            if undelivered:
                self._dropped.add(next(iter(undelivered.values())))
            begin = end


def _portion_end(batch: Batch, begin: int) -> int:
    """Return the end of a portion: about as many as the dead letters that are sent together."""
    mean = max(1, batch.octets // batch.count)
    return min(batch.count, begin + max(1, min(MOST_LETTERS, LETTERS_OCTETS // mean)))
