"""Sends dead letters to their exchange, with RabbitMQ's headers that say what became of them."""

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Protocol

import trio

from omq.drivers.confirmation import Confirmation, all_of
from omq.drivers.dead_letters import Death, Letter, Undelivered
from omq.drivers.driver import Driver
from omq.drivers.offer import NoRoom
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Failure, Reason, Refused
from omq.exchanges.routes import Route, TopicIsReplaced
from omq.exchanges.types import argument
from omq.logs import LogThrottle, quoted
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import Array, LongString, Number, NumberType, Table, Value, table_octets
from omq.protocol.amqp.head import MAX_HEAD, Head
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_1_0.expansion import expanded
from omq.protocol.amqp_1_0.stored import is_head
from omq_storage.batches import Bodies

log = logging.getLogger("omq.dead_letters")

DEATHS = b"x-death"
FIRST_DEATH = b"x-first-death-"
CC = b"CC"

MOST_COUNTED = 2**63 - 1
"""The greatest count of a death that the header can have."""


class Routing(Protocol):
    """What this needs of the exchanges."""

    def route(self, exchange: bytes, key: bytes, head: bytes = b"") -> Route:
        """Return the route of a message. Raise Refused, and TopicIsReplaced."""

    async def settled(self) -> None:
        """Wait until no topic is being given other types."""


@dataclass(frozen=True, slots=True)
class Addressed:
    """A dead letter on its way: the topics that get it, and its new head."""

    route: Route
    head: bytes
    letter: Letter


class DeadLetterExchange:
    """Sends the dead letters of all queues."""

    def __init__(self, exchanges: Routing, now: Callable[[], float] = time.time) -> None:
        self._exchanges = exchanges
        self._now = now
        self._dropped = LogThrottle(log, logging.WARNING, "dead letters dropped")
        self._defects = LogThrottle.of_problem(log, "a dead letter dropped by a defect of the server")

    async def deliver(
        self, queue: bytes, options: QueueOptions, death: Death, letters: Sequence[Letter]
    ) -> Undelivered:
        """Send letters to those of their new queues that are not done with them: see
        `omq.drivers.dead_letters.Deliver`.
        """
        sent: list[tuple[Driver, list[Letter], Confirmation]] = []
        begun = 0
        while begun < len(letters):
            try:
                addressed, count = self._addressed(queue, options, death, letters[begun:])
            except TopicIsReplaced:
                await self._exchanges.settled()
                continue
            begun += count
            # In the same step, so none of these topics is being replaced.
            for route, group in groupby(addressed, key=lambda each: each.route):
                some = list(group)
                batch, their_heads = Bodies([each.letter.body for each in some]), [each.head for each in some]
                for driver in route:
                    try:
                        offered = driver.offer(batch, their_heads)
                        confirmation = await offered.taken() if isinstance(offered, NoRoom) else offered
                    except Refused as refused:  # a deleted queue is not routed to the next time
                        confirmation = Confirmation()
                        confirmation.settle(refused.failure)
                    sent.append((driver, [each.letter for each in some], confirmation))
            await trio.lowlevel.checkpoint()
        await _settled(all_of(confirmation for _, _, confirmation in sent))
        undelivered: dict[int, Failure] = {}
        for driver, those, confirmation in sent:
            following = iter(those)
            for count, failure in confirmation.outcomes(len(those)):
                run = islice(following, count)
                if failure is None or failure.reason is Reason.OVERFLOW:
                    for letter in run:
                        letter.done.add(driver.topic.id)
                    if failure is not None:
                        self._dropped.add(f"{quoted(queue)}: {quoted(driver.topic.topic)}: {failure}")
                else:
                    undelivered.update((letter.id, failure) for letter in run)
        return undelivered

    def _addressed(
        self, queue: bytes, options: QueueOptions, death: Death, letters: Sequence[Letter]
    ) -> tuple[list[Addressed], int]:
        """Return those of the first letters, which are the portion of a step, that have a new queue; and how
        many letters the portion is. Raises TopicIsReplaced.
        """
        now = int(self._now())
        portion = Portion()
        found: list[Addressed] = []
        for count, letter in enumerate(letters):
            if portion.is_spent:
                return found, count
            portion.spend(letter.head)
            try:
                addressed = self._address(queue, options, death, letter, now, portion)
            except Refused as refused:
                self._dropped.add(
                    f"{quoted(queue)}: {quoted(options.dead_letter_exchange or b'')}: {refused}"
                )
            except TopicIsReplaced:
                raise
            except Exception:  # noqa: BLE001 - a defect, which the log shows; the other letters are sent
                self._defects.add(f"{quoted(queue)}\n{traceback.format_exc()}", topic=queue)
            else:
                if addressed.route:
                    found.append(addressed)
        return found, len(letters)

    def _address(
        self, queue: bytes, options: QueueOptions, death: Death, letter: Letter, now: int, portion: Portion
    ) -> Addressed:
        """Return a dead letter with its new queues. Raise Refused, and TopicIsReplaced."""
        exchange = options.dead_letter_exchange
        if exchange is None:  # the queue was changed meanwhile
            raise Refused(Reason.NOT_FOUND, "the queue has no dead-letter exchange any more")
        old = _read(letter.head, queue, portion)
        key = old.routing_key if options.dead_letter_key is None else options.dead_letter_key
        new, deaths = _with_death(old, queue, options, death, now)
        encoded = _encoded(replace(new, exchange=exchange, routing_key=key), deaths)
        route = self._exchanges.route(exchange, key, expanded(encoded, key, portion))
        kept = (
            driver
            for driver in route
            if driver.topic.id not in letter.done and not self._is_cycle(driver, deaths)
        )
        return Addressed(tuple(kept), encoded, letter)

    def _is_cycle(self, driver: Driver, deaths: Sequence[Table]) -> bool:
        """Return whether a message came from this queue before, and no consumer has rejected it since:
        nothing would ever end that.
        """
        name = driver.topic.topic
        for index, table in enumerate(deaths):
            if argument(table, b"queue") == LongString(name):
                reasons = [argument(each, b"reason") for each in deaths[: index + 1]]
                if LongString(Death.REJECTED.value.encode()) in reasons:
                    return False
                self._dropped.add(f"{quoted(name)}: messages would return to it for ever")
                return True
        return False


def _read(octets: bytes, queue: bytes, portion: Portion) -> Head:
    """Return the head of a message, with the routing key that a consumer of the queue sees."""
    if not octets:
        return Head(routing_key=queue)
    head = heads.decode(octets)
    if head.exchange or head.routing_key or not is_head(octets):
        return head
    return replace(head, routing_key=heads.decode(expanded(octets, queue, portion)).routing_key or queue)


async def _settled(confirmation: Confirmation) -> None:
    settled = trio.Event()
    confirmation.listen(settled.set)
    await settled.wait()


def _encoded(head: Head, deaths: Sequence[Table]) -> bytes:
    """Encode a head with these records of deaths, without the oldest ones if it is too long with them."""
    encoded = heads.encode(head)
    excess = len(encoded) - MAX_HEAD
    if excess <= 0:
        return encoded
    kept = list(deaths)
    while excess > 0 and kept:
        excess -= 1 + len(table_octets(kept.pop()))
    headers = head.properties.headers or Table()
    entries = [(name, Array(tuple(kept)) if name == DEATHS else value) for name, value in headers.entries]
    if not kept:
        entries = [entry for entry in entries if entry[0] != DEATHS]
    if excess > 0:  # the first death alone is too much: the message stays as it was published
        entries = [entry for entry in entries if not entry[0].startswith(FIRST_DEATH)]
    return heads.encode(replace(head, properties=replace(head.properties, headers=Table(tuple(entries)))))


def _with_death(
    head: Head, queue: bytes, options: QueueOptions, death: Death, now: int
) -> tuple[Head, Sequence[Table]]:
    """Return the head with a record of this death, and all records, the latest first.

    The message does not expire again: its expiration is kept in the record only.
    """
    properties = head.properties
    table = properties.headers or Table()
    entries = dict(table.entries)
    keys = [head.routing_key]
    copies = entries.get(CC)
    if isinstance(copies, Array):
        keys += [value.octets for value in copies.values if isinstance(value, LongString)]
        if options.dead_letter_key is not None:
            del entries[CC]
    why = LongString(death.value.encode())
    known = entries.get(DEATHS)
    records = [each for each in known.values if isinstance(each, Table)] if isinstance(known, Array) else []
    same = [
        each
        for each in records
        if argument(each, b"queue") == LongString(queue) and argument(each, b"reason") == why
    ]
    if same:
        latest = _counted(same[0])
    else:
        latest = Table(
            (
                (b"count", _long(1)),
                (b"reason", why),
                (b"queue", LongString(queue)),
                (b"time", Number(NumberType.TIMESTAMP, now)),
                (b"exchange", LongString(head.exchange)),
                (b"routing-keys", Array(tuple(map(LongString, keys)))),
            )
            + (
                ()
                if properties.expiration is None
                else ((b"original-expiration", LongString(properties.expiration)),)
            )
        )
    deaths = [latest, *(each for each in records if each not in same)]
    if not records:
        for what, value in ((b"reason", why), (b"queue", LongString(queue))):
            entries.setdefault(FIRST_DEATH + what, value)
        entries.setdefault(FIRST_DEATH + b"exchange", LongString(head.exchange))
    entries[DEATHS] = Array(tuple(deaths))
    headers = Table(tuple(entries.items()))
    return replace(head, properties=replace(properties, headers=headers, expiration=None)), deaths


def _counted(record: Table) -> Table:
    """Return the record of a death that happened once more."""
    count = argument(record, b"count")
    # Clients can publish any record.
    before = count.value if isinstance(count, Number) and isinstance(count.value, int) else 0
    following = _long(min(before + 1, MOST_COUNTED))
    return Table(tuple((name, following if name == b"count" else value) for name, value in record.entries))


def _long(number: int) -> Value:
    return Number(NumberType.INT64, number)
