"""The requests of the command Manage, with which a client lists and changes queues, exchanges and bindings.

The rights are those of `omq.access.topology`. A client needs

- to declare or delete an exchange, the right to declare or delete its name;
- to bind, the rights to publish to the destination and to subscribe to the source;
- to purge or peek, the right to subscribe to the queue;
- to move messages, also the right to publish to their destination;
- to declare a queue or change its options, the right to declare it;
- for an alternate exchange or a dead-letter exchange, the right to publish to it.

Lists have the names to which the client has a right.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar, assert_never

from omq import management
from omq.access.management_records import (
    binding_info,
    changed,
    exchange_info,
    octets_of_arguments,
    queue_info,
    table,
)
from omq.access.moving import move
from omq.access.peeking import peeked
from omq.access.rights import Right
from omq.access.session import Session
from omq.access.topology import check_forwarding
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.lifetime import check_user
from omq.drivers.purging import purge
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import DEFAULT
from omq.drivers.reasons import NO_QUEUE, Reason, Refused, missing
from omq.drivers.slices import Slices
from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.types import ALTERNATE, RESERVED, Destination, DestinationKind
from omq.logs import quoted
from omq.model import PERSISTENCES, Persistent, Transient
from omq.protocol.amqp.fields import LongString, Table

T = TypeVar("T")
R = TypeVar("R")

MOST_RECORDS = 100
"""The most records in one answer: a list takes several."""

LISTED_OCTETS = 64 << 10
"""The octets of arguments of bindings with which an answer ends, before it has so many records."""

_PERSISTENCES = {name.encode(): persistence for name, persistence in PERSISTENCES.items()}
"""The persistences by the octets of their names in a request."""


class Management:
    """The requests of one connection."""

    __slots__ = ("_catalogue", "_exchanges", "_session")

    def __init__(self, session: Session, catalogue: Catalogue, exchanges: ExchangeRegistry) -> None:
        self._session = session
        self._catalogue = catalogue
        self._exchanges = exchanges

    async def perform(self, request: management.Request) -> management.Answer:
        """Perform the request and return its answer. Raises Refused."""
        match request:
            case management.ListQueues(first):
                return management.Queues(await self._queues(_index(first)))
            case management.ListExchanges(first):
                return management.Exchanges(await self._list_exchanges(_index(first)))
            case management.ListBindings(first):
                return management.Bindings(await self._bindings(_index(first)))
            case management.DeclareExchange():
                return await self._declare(request)
            case management.DeleteExchange(name):
                self._session.check(Right.DELETE, name)
                return management.Done(int(await self._exchanges.delete(name)))
            case management.Bind(source, destination, key, arguments):
                end = self._checked_end(source, destination)
                await self._exchanges.bind(source, end, key, table(arguments), self._session.admit_binding)
                return management.Done(1)
            case management.Unbind(source, destination, key, arguments):
                end = self._checked_end(source, destination)
                await self._exchanges.unbind(source, end, key, table(arguments))
                return management.Done(1)
            case management.Purge(queue):
                return management.Done(await purge(self._queue(Right.SUBSCRIBE, queue)))
            case management.Peek(queue, first, count):
                found = self._queue(Right.SUBSCRIBE, queue)
                return management.Messages(await peeked(found, _index(first), _index(count)))
            case management.ChangeQueue(queue, changes):
                driver = self._queue(Right.DECLARE, queue)
                options = changed(driver.options, changes)
                if any(change.option.decode() in management.NAMES for change in changes):
                    check_forwarding(
                        self._session.check, options.dead_letter_exchange, options.dead_letter_key
                    )
                await self._catalogue.changes.change_queue(queue, options)
                return management.Done(len(changes))
            case management.DeclareQueue():
                return await self._declare_queue(request)
            case management.Move(queue, to, count):
                return management.Done(await self._move(queue, to, _index(count)))
            case _:
                assert_never(request)

    # -- lists ---------------------------------------------------------------------------------------------

    async def _queues(self, first: int) -> tuple[management.QueueInfo, ...]:
        queues = (driver for driver in self._catalogue.in_turn() if isinstance(driver, QueueDriver))
        found = await self._page(queues, first, lambda driver: (driver.topic.topic,), lambda driver: driver)
        slices = Slices()
        infos = []
        for driver in found:
            await slices.step()
            infos.append(queue_info(driver, await driver.oldest_ms(slices)))
        return tuple(infos)

    async def _list_exchanges(self, first: int) -> tuple[management.ExchangeInfo, ...]:
        exchanges = iter(self._exchanges.declared())
        return await self._page(exchanges, first, lambda exchange: (exchange.name,), exchange_info)

    async def _bindings(self, first: int) -> tuple[management.BindingInfo, ...]:
        return await self._page(
            self._exchanges.each_binding(),
            first,
            lambda binding: (binding.source, binding.destination.name),
            binding_info,
            octets_of_arguments,
        )

    async def _page(
        self,
        items: Iterator[T],
        first: int,
        names: Callable[[T], tuple[bytes, ...]],
        info: Callable[[T], R],
        octets: Callable[[R], int] | None = None,
    ) -> tuple[R, ...]:
        """Return the records of items from this index on, of those whose names the client may know. The other
        connections have their turns meanwhile. `octets` says how long a record is, if it can be long.
        """
        sees = self._session.rights.sees
        found: list[R] = []
        left = LISTED_OCTETS
        slices = Slices()
        for item in items:
            await slices.step()
            if not all(map(sees, names(item))):
                continue
            if first:
                first -= 1
            elif len(found) < MOST_RECORDS and left > 0:
                found.append(info(item))
                left -= 0 if octets is None else octets(found[-1])
            else:
                break
        return tuple(found)

    # -- exchanges -----------------------------------------------------------------------------------------

    async def _declare(self, wanted: management.DeclareExchange) -> management.Done:
        if not wanted.name.startswith(RESERVED):  # which exist, or are refused to every client
            self._session.check(Right.DECLARE, wanted.name)
            check_forwarding(self._session.check, wanted.alternate, None)
        arguments = Table()
        if wanted.alternate is not None:
            arguments = Table(((ALTERNATE, LongString(wanted.alternate)),))
        await self._exchanges.declare(
            wanted.name,
            wanted.type,
            arguments,
            self._session.admit_exchange,
            durable=wanted.durable,
            auto_delete=wanted.auto_delete,
            internal=wanted.internal,
        )
        return management.Done(1)

    def _checked_end(self, source: bytes, destination: management.Destination) -> Destination:
        """Return the destination of a binding that the client may make and remove. Raises Refused."""
        self._session.check(Right.PUBLISH, destination.name)
        self._session.check(Right.SUBSCRIBE, source)
        match destination:
            case management.Exchange(name):
                return Destination(DestinationKind.EXCHANGE, name)
            case management.Queue(name):
                driver = self._catalogue.lookup(name)
                if driver is not None:
                    check_user(driver.topic.topic, driver.lifetime, self._session.owner)
                return Destination(DestinationKind.QUEUE, name)
            case _:
                assert_never(destination)

    # -- queues --------------------------------------------------------------------------------------------

    def _queue(self, right: Right, name: bytes) -> QueueDriver:
        """Return the queue with this name. Raises Refused."""
        self._session.check(right, name)
        driver = self._catalogue.lookup(name)
        if driver is None:
            raise missing("queue", name)
        check_user(driver.topic.topic, driver.lifetime, self._session.owner)
        if not isinstance(driver, QueueDriver):
            raise Refused.of(NO_QUEUE)
        return driver

    async def _declare_queue(self, wanted: management.DeclareQueue) -> management.Done:
        """Make a queue with its options, or check them. A queue that exists keeps its options, and what the
        request does not name may have any value.
        """
        name = wanted.queue
        self._session.check(Right.DECLARE, name)
        persistence = _PERSISTENCES.get(wanted.persistence)
        if persistence is None:
            raise Refused(Reason.INVALID, f"persistence must be one of {', '.join(PERSISTENCES)}")
        options = changed(replace(DEFAULT, durable=isinstance(persistence, Persistent)), wanted.options)
        check_forwarding(self._session.check, options.dead_letter_exchange, options.dead_letter_key)
        existing = self._catalogue.lookup(name)
        if existing is not None:
            check_user(existing.topic.topic, existing.lifetime, self._session.owner)
        named = frozenset(change.option.decode() for change in wanted.options)
        await self._catalogue.declare_changeable(
            name, persistence, options, named, partial(self._session.admit, name)
        )
        return management.Done(1)

    async def _move(self, queue: bytes, to: bytes | None, count: int) -> int:
        driver = self._queue(Right.SUBSCRIBE, queue)
        if to is not None:
            self._target(to)
        return await move(driver, partial(self._target_of, driver, to), count)

    def _target(self, name: bytes) -> Driver:
        self._session.check(Right.PUBLISH, name)
        driver = self._catalogue.lookup(name)
        if driver is None:
            raise missing("queue", name)
        check_user(driver.topic.topic, driver.lifetime, self._session.owner)
        if not isinstance(driver, QueueDriver) and isinstance(driver.persistence, Transient):
            what = f"{quoted(name)} is a transient broadcast topic, and would keep none of the messages"
            raise Refused(Reason.DIFFERS, what)
        return driver

    def _target_of(self, source: Driver, to: bytes | None, died_in: bytes | None) -> Driver | None:
        """Return the topic to move a message to; None if it came from no queue that is known and exists."""
        name = died_in if to is None else to
        if name is None or (to is None and not isinstance(self._catalogue.lookup(name), QueueDriver)):
            return None
        target = self._target(name)
        return None if target is source else target


def _index(number: int) -> int:
    """Return a number of the client. Raise Refused if it is negative."""
    if number < 0:
        raise Refused(Reason.INVALID, "a number cannot be negative")
    return number
