"""Sends dead letters to their exchange, with RabbitMQ's headers about their history."""

import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import trio

from omq.drivers.confirmation import Confirmation
from omq.drivers.dead_letters import DeadLetter, Death, Undelivered
from omq.drivers.driver import Driver
from omq.drivers.overflow import PendingRefusal
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.slices import Slices
from omq.drivers.spilling import offer_or_spill, taken_or_spilled
from omq.exchanges.deaths import DeadMessage, DeathRecord, add_death
from omq.exchanges.routes import Route, TopicIsReplaced
from omq.logs import LogThrottle, quoted
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_1_0.expansion import expanded
from omq.protocol.amqp_1_0.stored import is_head
from omq.protocol.steps import Steps
from omq_storage.batches import Bodies

ROUTED_A_STEP = 512
"""The number of topics of a route that are looked at in one step."""

log = logging.getLogger("omq.dead_letters")


class Routing(Protocol):
    """The interface of the exchanges for dead letters."""

    def route_in_steps(self, exchange: bytes, key: bytes, head: bytes = b"") -> Steps[Route]:
        """Return the route of a message. Raise Refused, and TopicIsReplaced."""

    async def settled(self) -> None:
        """Wait until no topic is being given other types."""


@dataclass(frozen=True, slots=True)
class Addressed:
    """A dead letter on its way: the topics that get it, and its new head."""

    route: Route
    head: bytes
    letter: DeadLetter


class DeadLetterExchange:
    """Sends the dead letters of all queues."""

    def __init__(self, exchanges: Routing, now: Callable[[], float] = time.time) -> None:
        self._exchanges = exchanges
        self._now = now
        dropped = "dead letters dropped"
        self._dropped = LogThrottle(log, logging.WARNING, dropped, prefix=f"{dropped}: ")
        self._defects = LogThrottle.of_problem(log, "a dead letter dropped by a defect of the server")

    async def deliver(
        self, queue: bytes, options: QueueOptions, death: Death, letters: Sequence[DeadLetter]
    ) -> Undelivered:
        """Send letters to those of their new queues that are not done with them: see
        `omq.drivers.dead_letters.Deliver`.
        """
        sent: list[tuple[Driver, list[DeadLetter], Confirmation]] = []
        waiting = deque(letters)
        slices = Slices()
        while waiting:
            portion = Portion()
            dead: list[tuple[DeadLetter, DeadMessage]] = []
            for _ in self._record_deaths(queue, options, death, waiting, portion, dead):
                await slices.step()
            addressed: list[Addressed] = []
            while True:
                try:
                    for _ in self._address(queue, options, dead, portion, addressed):
                        await slices.step()
                    break
                except TopicIsReplaced:
                    await self._exchanges.settled()
            for route, group in groupby(addressed, key=lambda each: each.route):
                some = list(group)
                batch, their_heads = Bodies([each.letter.body for each in some]), [each.head for each in some]
                those = [each.letter for each in some]
                for driver in route:  # a fanout exchange may lead to thousands
                    await slices.step()
                    try:
                        offered = offer_or_spill(driver, batch, their_heads)
                        if isinstance(offered, PendingRefusal):
                            # It waits for other dead letters. Those may wait for these.
                            offered.leave()
                            raise Refused(
                                Reason.TOPIC_FULL, "the queue refuses messages faster than they leave"
                            )
                        confirmation = await taken_or_spilled(driver, batch, their_heads, offered)
                    except Refused as refused:
                        # If the queue was deleted meanwhile, or got other types, it is not routed to the next
                        # time, or found again.
                        confirmation = Confirmation()
                        confirmation.settle(refused.failure)
                    sent.append((driver, those, confirmation))
            await trio.lowlevel.checkpoint()
        for _, _, confirmation in sent:
            await slices.step()
            if not confirmation.settled:
                await _settled(confirmation)
        undelivered: dict[int, Failure] = {}
        with trio.CancelScope(shield=True):  # otherwise letters that have arrived would be sent again
            await self._look_at_outcomes(queue, sent, undelivered, slices)
        return undelivered

    async def _look_at_outcomes(
        self,
        queue: bytes,
        sent: Sequence[tuple[Driver, Sequence[DeadLetter], Confirmation]],
        undelivered: dict[int, Failure],
        slices: Slices,
    ) -> None:
        """Add the letters that must be sent again, and note which topics are done with each of them."""
        for driver, letters, confirmation in sent:
            await slices.step()
            for run, failure in _outcomes(letters, confirmation):
                if failure is None:
                    continue
                if failure.reason is Reason.OVERFLOW:
                    what = f"{len(run)} from {quoted(queue)} to {quoted(driver.topic.topic)}"
                    self._dropped.add(f"{what}: {failure}", topic=queue)
                else:
                    undelivered.update((letter.id, failure) for letter in run)
        if not undelivered:
            return
        for driver, letters, confirmation in sent:
            await slices.step()
            for run, failure in _outcomes(letters, confirmation):
                if failure is None or failure.reason is Reason.OVERFLOW:
                    for letter in run:
                        if letter.id in undelivered:  # the others are done: thousands of topics may have each
                            letter.done.add(driver.topic.id)

    def _record_deaths(
        self,
        queue: bytes,
        options: QueueOptions,
        death: Death,
        letters: deque[DeadLetter],
        portion: Portion,
        dead: list[tuple[DeadLetter, DeadMessage]],
    ) -> Steps[None]:
        """Move the first letters, which are the portion of a step, with their new heads to `dead`."""
        now = int(self._now())
        while letters and not portion.is_spent:
            letter = letters.popleft()
            portion.spend(letter.head)
            with self._dropping(queue, options):
                head = _named(letter.head, queue, portion)
                exchange, key = _exchange_of(options), options.dead_letter_key
                dead.append((letter, (yield from add_death(head, queue, exchange, key, death, now))))
            yield

    def _address(
        self,
        queue: bytes,
        options: QueueOptions,
        dead: Sequence[tuple[DeadLetter, DeadMessage]],
        portion: Portion,
        addressed: list[Addressed],
    ) -> Steps[None]:
        """Put those of these letters into `addressed` that have a new queue. Raises TopicIsReplaced."""
        addressed.clear()
        for letter, (key, head, records) in dead:
            with self._dropping(queue, options):
                looked_at = expanded(head, key, portion)
                route = yield from self._exchanges.route_in_steps(_exchange_of(options), key, looked_at)
                kept: list[Driver] = []
                for number, driver in enumerate(route, 1):
                    if not number % ROUTED_A_STEP:
                        yield
                    if driver.topic.id not in letter.done and not self._is_cycle(driver, records):
                        kept.append(driver)
                if kept:
                    to = route if len(kept) == len(route) else tuple(kept)
                    if addressed and addressed[-1].route == to:
                        to = addressed[-1].route  # the same one: to compare it again takes no time
                    addressed.append(Addressed(to, head, letter))
            yield

    @contextmanager
    def _dropping(self, queue: bytes, options: QueueOptions) -> Iterator[None]:
        """Log the reason why a letter is dropped. The other letters are sent."""
        try:
            yield
        except Refused as refused:
            self._dropped.add(f"{quoted(queue)}: {quoted(options.dead_letter_exchange or b'')}: {refused}")
        except TopicIsReplaced:
            raise
        except Exception:  # noqa: BLE001 - a defect, which the log shows; the other letters are sent
            self._defects.add(f"{quoted(queue)}\n{traceback.format_exc()}", topic=queue)

    def _is_cycle(self, driver: Driver, records: Sequence[DeathRecord]) -> bool:
        """Return whether a message came from this queue before, and no consumer has rejected it since:
        nothing would ever end that.
        """
        name = driver.topic.topic
        for record in records:
            if record.reason == Death.REJECTED.value.encode():
                return False
            if record.queue == name:
                self._dropped.add(f"{quoted(name)}: messages would return to it for ever")
                return True
        return False


def _outcomes(
    letters: Sequence[DeadLetter], confirmation: Confirmation
) -> Iterator[tuple[Sequence[DeadLetter], Failure | None]]:
    """Yield runs of letters that were posted together, with the failure of each run, if it has one."""
    first = 0
    for count, failure in confirmation.outcomes(len(letters)):
        yield letters[first : first + count], failure
        first += count


def _exchange_of(options: QueueOptions) -> bytes:
    """Return the dead-letter exchange of a queue. Raise Refused if it has none any more."""
    if options.dead_letter_exchange is None:  # the queue was changed meanwhile
        raise Refused(Reason.NOT_FOUND, "the queue has no dead-letter exchange any more")
    return options.dead_letter_exchange


def _named(octets: bytes, queue: bytes, portion: Portion) -> bytes:
    """Return the head of a message, with the routing key that a consumer of the queue sees."""
    if not octets:
        return heads.encode(Head(routing_key=queue))
    if any(heads.names(octets)) or not is_head(octets):
        return octets
    key = heads.names(expanded(octets, queue, portion))[1] or queue
    return heads.joined(b"", key, octets[heads.names_end(octets) :])


async def _settled(confirmation: Confirmation) -> None:
    settled = trio.Event()
    confirmation.listen(settled.set)
    await settled.wait()
