"""All exchanges and bindings of a server: declares, deletes and binds them, and routes messages.

The queue of a binding may be any topic. A binding ends with its source, or with its destination. The store
keeps durable exchanges, and bindings whose two ends it keeps. Every change is stored before it has an effect,
except where the end of a topic ends an exchange (see `_ended`).
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, assert_never

import trio

from omq.counted import counted
from omq.drivers.catalogue import Catalogue
from omq.drivers.dead_letters import DeadLetter, Death, Undelivered
from omq.drivers.driver import Driver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Inequivalent, Reason, Refused, in_use, missing
from omq.drivers.topic_quota import Admit, Release
from omq.exchanges.bindings import BoundExchanges
from omq.exchanges.matching import index_of
from omq.exchanges.records import (
    binding_record,
    exchange_record,
    is_recorded,
    stored_bindings,
    stored_exchanges,
)
from omq.exchanges.routes import Declarations, Route, RoutedPart, Router, TopicIsReplaced, missing_exchange
from omq.exchanges.types import (
    DEFAULT,
    PREDECLARED,
    RESERVED,
    Binding,
    Destination,
    DestinationKind,
    Exchange,
    alternate_exchange,
    binding,
    exchange_type,
    refusal_of_reserved,
    refusal_to_delete,
)
from omq.logs import quoted
from omq.protocol.amqp.fields import Table, table_octets
from omq.protocol.steps import Steps
from omq.threads import in_thread
from omq_storage.catalogue import StoreCatalogue
from omq_storage.topology import BindingRecord

if TYPE_CHECKING:
    from omq.exchanges.dead_letters import DeadLetterExchange

NO_ARGUMENTS = Table()

MOST_ARGUMENTS = 4096
"""The longest arguments of a binding, in octets."""

log = logging.getLogger("omq.exchanges")


class ExchangeRegistry:
    """The exchanges of a server. There is one for each catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._declared = Declarations()
        self._router = Router(self._declared, self._topic)
        self._bound = BoundExchanges(
            self._declared, self._router.forget, self._ended, lambda: catalogue.start(self._sweep_later)
        )
        self._changing = trio.Lock()
        self._erasing: set[bytes] = set()
        """Exchanges that are deleted, but not yet in the store."""
        catalogue.deletion.deleted = self._topic_deleted
        catalogue.changes.replaced = self._router.forget
        for exchange in PREDECLARED:
            self._bound.add_exchange(exchange)
        catalogue.when_open(self._restore_all)
        self._dead_letters: DeadLetterExchange | None = None
        catalogue.when_open(partial(catalogue.dead_letters.open, self._deliver))

    # -- routing -------------------------------------------------------------------------------------------

    def route_in_steps(self, exchange: bytes, key: bytes, head: bytes = b"") -> Steps[Route]:
        """See `Router.route_in_steps`."""
        return self._router.route_in_steps(exchange, key, head)

    def parts(
        self, exchange: bytes, key: bytes, run: Sequence[bytes], *, may_copy: bool = True
    ) -> Sequence[RoutedPart]:
        """See `Router.parts`."""
        return self._router.parts(exchange, key, run, may_copy=may_copy)

    def parts_in_steps(
        self, exchange: bytes, key: bytes, run: Sequence[bytes], *, may_copy: bool = True
    ) -> Steps[Sequence[RoutedPart]]:
        """See `Router.parts_in_steps`."""
        return self._router.parts_in_steps(exchange, key, run, may_copy=may_copy)

    async def _deliver(
        self, queue: bytes, options: QueueOptions, death: Death, letters: Sequence[DeadLetter]
    ) -> Undelivered:
        """See `omq.drivers.dead_letters.Deliver`. The first letters load the code for them, in a thread, so
        that the server starts sooner.
        """
        if self._dead_letters is None:
            module = await in_thread(partial(import_module, "omq.exchanges.dead_letters"))
            self._dead_letters = self._dead_letters or module.DeadLetterExchange(self)
        return await self._dead_letters.deliver(queue, options, death, letters)

    async def settled(self) -> None:
        """Wait until no topic is being given other types: see `TopicIsReplaced`."""
        await self._catalogue.settled()

    def _topic(self, name: bytes) -> Driver | None:
        driver = self._catalogue.lookup(name)
        if driver is None and self._catalogue.is_replacing(name):
            raise TopicIsReplaced
        return driver

    # -- lists ---------------------------------------------------------------------------------------------

    def declared(self) -> list[Exchange]:
        """Return all exchanges except the default one, the predeclared ones first."""
        return list(self._declared.exchanges.values())

    def has(self, name: bytes) -> bool:
        """Return whether an exchange with this name is declared, besides the default one."""
        return name in self._declared.exchanges

    def find(self, name: bytes) -> Exchange:
        """Return the exchange with this name. Raises Refused."""
        _check_is_not_default(name)
        exchange = self._declared.exchanges.get(name)
        if exchange is None:
            raise missing_exchange(name)
        return exchange

    def bindings(self, source: bytes | None = None, destination: Destination | None = None) -> list[Binding]:
        """Return the bindings with this source and this destination; None for any."""
        return list(self._bound.bindings(source, destination))

    def each_binding(self) -> Iterator[Binding]:
        """Yield the bindings of all exchanges; they may change meanwhile."""
        return self._bound.each()

    # -- changes -------------------------------------------------------------------------------------------

    async def declare(
        self,
        name: bytes,
        type_name: bytes,
        arguments: Table = NO_ARGUMENTS,
        admit: Admit | None = None,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
    ) -> Exchange:
        """Return the exchange with this name and these properties; make it if there is none.

        `admit` counts one that is made against the quota of a client. Raises Refused.
        """
        _check_is_not_default(name)
        wanted = Exchange(
            name,
            exchange_type(type_name),
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            alternate=alternate_exchange(name, arguments),
        )
        async with self._change():
            existing = self._declared.exchanges.get(name)
            if existing is not None:
                _check_equivalent(wanted, existing)
                return existing
            if name.startswith(RESERVED):
                raise refusal_of_reserved("exchange", name)
            if len(self._declared.exchanges) - len(PREDECLARED) >= self._catalogue.most_exchanges:
                most = self._catalogue.most_exchanges
                what = f"the server has its {counted(most, 'exchange')}, the most it is configured for"
                raise Refused(Reason.QUOTA, what)
            # The scope keeps the store and the memory the same.
            with _counted(admit) as released, trio.CancelScope(shield=True):
                await self._erase(name)
                if durable:
                    await self._change_store(partial(_put, wanted))
                self._bound.add_exchange(wanted, released)
            return wanted

    async def delete(self, name: bytes, *, if_unused: bool = False) -> bool:
        """Delete an exchange with its bindings; return False if there is none. Raises Refused."""
        _check_is_not_default(name)
        if name.startswith(RESERVED):
            raise refusal_to_delete(name)
        async with self._change():
            exchange = self._declared.exchanges.get(name)
            if exchange is None:
                return False
            if if_unused and self._bound.is_source(name):
                raise in_use("exchange", name)
            with trio.CancelScope(shield=True):
                if exchange.durable:
                    await self._change_store(partial(_delete, name))
                if name in self._declared.exchanges:  # it may have ended meanwhile, with its last binding
                    self._bound.end_exchange(exchange)
                await self._sweep()
            return True

    async def bind(
        self,
        source: bytes,
        destination: Destination,
        key: bytes,
        arguments: Table = NO_ARGUMENTS,
        admit: Admit | None = None,
    ) -> None:
        """Bind a queue or an exchange to an exchange, unless it is bound so already. `admit` counts a binding
        that is made against the quota of a client. Raises Refused.
        """
        async with self._change():
            wanted = self._checked(source, destination, key, arguments)
            if self._bound.has(wanted):
                return
            if len(table_octets(wanted.arguments)) > MOST_ARGUMENTS:
                raise Refused(
                    Reason.INVALID, f"the arguments of a binding have at most {MOST_ARGUMENTS} octets"
                )
            if self._bound.count >= self._catalogue.most_bindings:
                most = self._catalogue.most_bindings
                what = f"the server has its {counted(most, 'binding')}, the most it is configured for"
                raise Refused(Reason.QUOTA, what)
            index_of(self._declared.exchanges[source].type).add(wanted)  # raises Refused for a bad one
            with _counted(admit) as released, trio.CancelScope(shield=True):
                record = self._record(wanted)
                if record is not None:
                    await self._store_binding(wanted, record)
                self._bound.add(wanted, released)

    async def unbind(
        self, source: bytes, destination: Destination, key: bytes, arguments: Table = NO_ARGUMENTS
    ) -> None:
        """Remove a binding if there is one; its ends need not exist. Raises Refused."""
        _check_is_not_default(source)
        if destination.kind is DestinationKind.EXCHANGE:
            _check_is_not_default(destination.name)
        async with self._change():
            unwanted = binding(source, destination, key, arguments)
            if self._bound.has(unwanted):
                with trio.CancelScope(shield=True):
                    record = self._record(unwanted)
                    if record is not None:
                        await self._change_store(partial(_unbind, record))
                    if self._bound.has(unwanted):
                        self._bound.remove(unwanted)
                    await self._sweep()

    def _checked(self, source: bytes, destination: Destination, key: bytes, arguments: Table) -> Binding:
        """Return the binding if both its ends exist. Raises Refused."""
        self._check_ends(source, destination)
        return binding(source, destination, key, arguments)

    def _check_ends(self, source: bytes, destination: Destination) -> None:
        self.find(source)
        match destination.kind:
            case DestinationKind.EXCHANGE:
                self.find(destination.name)
            case DestinationKind.QUEUE:
                if self._catalogue.lookup(destination.name) is None:
                    raise _missing_queue(destination.name)
            case other:
                assert_never(other)

    def _topic_deleted(self, driver: Driver) -> None:
        self._bound.end_queue(Destination(DestinationKind.QUEUE, driver.topic.topic))

    async def swept(self) -> None:
        """Wait until the bindings of exchanges and queues that have gone are removed."""
        if self._declared.leaving:
            await self._sweep_later()

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """Make one change at a time, after the bindings of deleted queues and exchanges are removed."""
        async with self._changing:
            await self._sweep()
            yield

    async def _sweep(self) -> None:
        if self._declared.leaving:
            await trio.lowlevel.checkpoint()
            for _ in self._bound.sweep():
                await trio.lowlevel.checkpoint()

    async def _sweep_later(self) -> None:
        async with self._change():
            pass

    # -- the store -----------------------------------------------------------------------------------------

    def _record(self, binding: Binding) -> BindingRecord | None:
        """Return the record of a binding; None if the store does not keep it."""
        if not self._declared.exchanges[binding.source].durable:
            return None
        name = binding.destination.name
        match binding.destination.kind:
            case DestinationKind.EXCHANGE:
                return binding_record(binding, None) if self._declared.exchanges[name].durable else None
            case DestinationKind.QUEUE:
                driver = self._catalogue.lookup(name)
                if driver is None or not is_recorded(driver):
                    return None
                return binding_record(binding, driver.topic.id)
            case other:
                assert_never(other)

    async def _change_store(self, change: Callable[[StoreCatalogue], None]) -> None:
        await self._catalogue.change_store(change)

    async def _store_binding(self, wanted: Binding, record: BindingRecord) -> None:
        """Store a binding. Raises Refused, also if one of its ends was deleted meanwhile: then the store
        deletes the binding with it.
        """
        topic = self._catalogue.lookup(wanted.destination.name)
        try:
            await self._change_store(partial(_bind, record))
        except Refused as refused:
            if refused.reason is Reason.NOT_FOUND:
                raise _missing_queue(wanted.destination.name) from refused
            raise
        finally:
            self._check_ends(wanted.source, wanted.destination)
            found = self._catalogue.lookup(wanted.destination.name)
            if wanted.destination.kind is DestinationKind.QUEUE and found is not topic:
                raise _missing_queue(wanted.destination.name)

    def _ended(self, exchange: Exchange) -> None:
        """Delete an exchange in the store that ends with its last binding.

        The deletion of a topic cannot wait here for the store. So a task does it later; if the server is
        killed before, the exchange exists again, without a binding.
        """
        if exchange.durable:
            self._erasing.add(exchange.name)
            self._catalogue.start(partial(self._erase_later, exchange.name))

    async def _erase(self, name: bytes) -> None:
        """Delete an exchange in the store that ended with its last binding. Raises Refused."""
        if name in self._erasing:
            await self._change_store(partial(_delete, name))
            self._erasing.discard(name)

    async def _erase_later(self, name: bytes) -> None:
        async with self._changing:
            try:
                await self._erase(name)
            except Refused as refused:
                log.error("exchange %s, which has ended, stays in the store: %s", quoted(name), refused)

    def _restore_all(self) -> None:
        """Add the exchanges and bindings of the store."""
        for exchange in stored_exchanges(self._catalogue):
            self._bound.add_exchange(exchange)
        for each in stored_bindings(self._catalogue):
            self._restore(each)

    def _restore(self, stored: Binding) -> None:
        """Add a binding that the store has."""
        try:
            self._check_ends(stored.source, stored.destination)
            self._bound.add(stored)
        except Refused as refused:
            log.error("a binding of exchange %s has no effect: %s", quoted(stored.source), refused)


@contextmanager
def _counted(admit: Admit | None) -> Iterator[Release | None]:
    """Count an exchange or a binding that the block makes against a quota, unless the block fails. Yield the
    function to call when it has gone. Raises Refused.
    """
    released = None if admit is None else admit()
    try:
        yield released
    except BaseException:
        if released is not None:
            released()
        raise


def _put(exchange: Exchange, store: StoreCatalogue) -> None:
    store.put_exchange(exchange_record(exchange))


def _delete(name: bytes, store: StoreCatalogue) -> None:
    store.delete_exchange(name)


def _bind(record: BindingRecord, store: StoreCatalogue) -> None:
    store.bind(record)


def _unbind(record: BindingRecord, store: StoreCatalogue) -> None:
    store.unbind(record)


def _missing_queue(name: bytes) -> Refused:
    return missing("queue", name)


def _check_is_not_default(name: bytes) -> None:
    if name == DEFAULT:
        raise Refused(Reason.FORBIDDEN, "operation not permitted on the default exchange")


def _check_equivalent(wanted: Exchange, existing: Exchange) -> None:
    """Raise Inequivalent unless an exchange is as wanted."""
    what = f"exchange {quoted(existing.name)}"
    if wanted.type is not existing.type:
        raise Inequivalent(what, "type", f"'{wanted.type.value}'", f"'{existing.type.value}'")
    if existing.name.startswith(RESERVED):
        # OpenAMQ's clients declare amq.direct as auto-delete.
        return
    for argument, received, current in (
        ("durable", wanted.durable, existing.durable),
        ("auto_delete", wanted.auto_delete, existing.auto_delete),
        ("internal", wanted.internal, existing.internal),
    ):
        if received is not current:
            raise Inequivalent(what, argument, _shown(received), _shown(current))
    if wanted.alternate != existing.alternate:
        raise Inequivalent(what, "alternate-exchange", _named(wanted.alternate), _named(existing.alternate))


def _shown(flag: bool) -> str:
    return "'true'" if flag else "'false'"


def _named(exchange: bytes | None) -> str:
    return "none" if exchange is None else quoted(exchange)
