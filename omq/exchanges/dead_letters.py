"""Sends dead letters to their exchange, with RabbitMQ's headers that say what became of them."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import trio

from omq.drivers.confirmation import Confirmation, all_of
from omq.drivers.dead_letters import Death, Letter
from omq.drivers.driver import Driver
from omq.drivers.offer import NoRoom
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Failure, Reason, Refused
from omq.exchanges.routes import Route, TopicIsReplaced
from omq.exchanges.types import argument
from omq.logs import LogThrottle, quoted
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import Array, LongString, Number, NumberType, Table, Value
from omq.protocol.amqp.head import Head
from omq_storage.batches import Bodies

log = logging.getLogger("omq.dead_letters")

DEATHS = b"x-death"
FIRST_DEATH = b"x-first-death-"
CC = b"CC"


class Routing(Protocol):
    """What this needs of the exchanges."""

    def route(self, exchange: bytes, key: bytes, head: bytes = b"") -> Route:
        """Raises Refused, and TopicIsReplaced."""

    async def settled(self) -> None:
        """Wait until no topic is being given other types."""


@dataclass(frozen=True, slots=True)
class Addressed:
    """A dead letter on its way: the topics that get it, and its new head."""

    route: Route
    head: bytes
    body: bytes


class DeadLetterExchange:
    """Sends the dead letters of all queues."""

    def __init__(self, exchanges: Routing, now: Callable[[], float] = time.time) -> None:
        self._exchanges = exchanges
        self._now = now
        self._dropped = LogThrottle(log, logging.WARNING, "dead letters dropped")

    async def deliver(
        self, queue: bytes, options: QueueOptions, death: Death, letters: Sequence[Letter]
    ) -> Failure | None:
        """Send letters to their new queues. Return when these have them, or why some have not."""
        while True:
            try:
                addressed = list(self._addressed(queue, options, death, letters))
                break
            except TopicIsReplaced:
                await self._exchanges.settled()
        confirmations: list[Confirmation] = []
        try:
            for route, group in groupby(addressed, key=lambda letter: letter.route):
                some = list(group)
                batch, their_heads = Bodies([letter.body for letter in some]), [each.head for each in some]
                for driver in route:
                    offered = driver.offer(batch, their_heads)
                    confirmations.append(await offered.taken() if isinstance(offered, NoRoom) else offered)
        except Refused as refused:
            if refused.reason is not Reason.DELETED:  # a deleted queue is not routed to the next time
                return refused.failure
            return Failure(Reason.DELETED, "a queue that they were sent to was deleted")
        return await _failure_of(all_of(confirmations))

    def _addressed(
        self, queue: bytes, options: QueueOptions, death: Death, letters: Sequence[Letter]
    ) -> Iterator[Addressed]:
        """Yield the letters that have a new queue. Raises TopicIsReplaced."""
        exchange = options.dead_letter_exchange
        assert exchange is not None
        now = int(self._now())
        for letter in letters:
            old = heads.decode(letter.head) if letter.head else Head(routing_key=queue)
            key = old.routing_key if options.dead_letter_key is None else options.dead_letter_key
            new, deaths = _buried(old, queue, options, death, now)
            encoded = heads.encode(replace(new, exchange=exchange, routing_key=key))
            try:
                route = self._exchanges.route(exchange, key, encoded)
            except Refused as refused:
                self._dropped.add(f"{quoted(queue)}: {quoted(exchange)}: {refused}")
                continue
            kept = tuple(driver for driver in route if not self._is_cycle(driver, deaths))
            if kept:
                yield Addressed(kept, encoded, letter.body)

    def _is_cycle(self, driver: Driver, deaths: Sequence[Table]) -> bool:
        """Whether a message came from this queue before, and no consumer has rejected it since: nothing
        would ever end that.
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


async def _failure_of(confirmation: Confirmation) -> Failure | None:
    settled = trio.Event()
    confirmation.listen(settled.set)
    await settled.wait()
    return confirmation.failure


def _buried(
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
    before = count.value if isinstance(count, Number) else 0
    return Table(
        tuple((name, _long(int(before) + 1) if name == b"count" else value) for name, value in record.entries)
    )


def _long(number: int) -> Value:
    return Number(NumberType.INT64, number)
