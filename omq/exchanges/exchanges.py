"""All exchanges and bindings of a server: declares, deletes and binds them, and routes messages.

The queue of a binding may be any topic. A binding ends with its source, or with its destination.
"""

from collections.abc import Iterator, Sequence

import trio

from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.reasons import Inequivalent, Reason, Refused
from omq.exchanges.dead_letters import DeadLetterExchange
from omq.exchanges.matching import index_of
from omq.exchanges.routes import Declared, Part, Route, Router, TopicIsReplaced, missing_exchange
from omq.exchanges.types import (
    DEFAULT,
    PREDECLARED,
    RESERVED,
    Binding,
    Destination,
    Exchange,
    Kind,
    alternate_exchange,
    binding,
    exchange_type,
)
from omq.logs import quoted
from omq.protocol.amqp.fields import Table

NO_ARGUMENTS = Table()


class Exchanges:
    """The exchanges of a server. There is one for each catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._declared = Declared()
        self._from: dict[bytes, dict[Binding, None]] = {}
        """The bindings of each exchange that is their source."""
        self._to: dict[Destination, dict[Binding, None]] = {}
        self._router = Router(self._declared, self._topic)
        self._changing = trio.Lock()
        catalogue.deleted = self._topic_deleted
        catalogue.replaced = self._router.forget
        catalogue.dead_letters.deliver = DeadLetterExchange(self).deliver
        for exchange in PREDECLARED:
            self._add(exchange)

    # -- routing -------------------------------------------------------------------------------------------

    def route(self, exchange: bytes, key: bytes, head: bytes = b"") -> Route:
        """See `Router.route`."""
        return self._router.route(exchange, key, head)

    def parts(self, exchange: bytes, key: bytes, run: Sequence[bytes]) -> Sequence[Part]:
        """See `Router.parts`."""
        return self._router.parts(exchange, key, run)

    async def settled(self) -> None:
        """Wait until no topic is being given other types: see `TopicIsReplaced`."""
        await self._catalogue.settled()

    def _topic(self, name: bytes) -> Driver | None:
        driver = self._catalogue.lookup(name)
        if driver is None and self._catalogue.is_replacing(name):
            raise TopicIsReplaced
        return driver

    # -- what there is -------------------------------------------------------------------------------------

    def declared(self) -> list[Exchange]:
        """Return all exchanges except the default one, the predeclared ones first."""
        return list(self._declared.exchanges.values())

    def find(self, name: bytes) -> Exchange:
        """Return the exchange with this name. Raises Refused."""
        _check_is_not_default(name)
        exchange = self._declared.exchanges.get(name)
        if exchange is None:
            raise missing_exchange(name)
        return exchange

    def bindings(self, source: bytes | None = None, destination: Destination | None = None) -> list[Binding]:
        """Return the bindings with this source and this destination; None for any."""
        if destination is not None:
            found: Iterator[Binding] = iter(self._to.get(destination, ()))
        elif source is not None:
            found = iter(self._from.get(source, ()))
        else:
            found = (each for bound in self._from.values() for each in bound)
        return [each for each in found if source is None or each.source == source]

    # -- changes -------------------------------------------------------------------------------------------

    async def declare(
        self,
        name: bytes,
        type_name: bytes,
        arguments: Table = NO_ARGUMENTS,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
    ) -> Exchange:
        """Return the exchange with this name and these properties; make it if there is none.

        Raises Refused.
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
        async with self._changing:
            existing = self._declared.exchanges.get(name)
            if existing is not None:
                _check_equivalent(wanted, existing)
                return existing
            if name.startswith(RESERVED):
                raise Refused(
                    Reason.FORBIDDEN, f"exchange name {quoted(name)} contains reserved prefix 'amq.*'"
                )
            self._add(wanted)
            return wanted

    async def delete(self, name: bytes, *, if_unused: bool = False) -> bool:
        """Delete an exchange with its bindings; return False if there is none. Raises Refused."""
        _check_is_not_default(name)
        if name.startswith(RESERVED):
            raise Refused(Reason.FORBIDDEN, f"exchange name {quoted(name)} contains reserved prefix 'amq.*'")
        async with self._changing:
            exchange = self._declared.exchanges.get(name)
            if exchange is None:
                return False
            if if_unused and self._from[name]:
                raise Refused(Reason.INVALID, f"exchange {quoted(name)} in use")
            self._remove(exchange)
            return True

    async def bind(
        self, source: bytes, destination: Destination, key: bytes, arguments: Table = NO_ARGUMENTS
    ) -> None:
        """Bind a queue or an exchange to an exchange, unless it is bound so already. Raises Refused."""
        async with self._changing:
            wanted = self._checked(source, destination, key, arguments)
            if wanted not in self._from[source]:
                self._bind(wanted)

    async def unbind(
        self, source: bytes, destination: Destination, key: bytes, arguments: Table = NO_ARGUMENTS
    ) -> None:
        """Remove a binding if there is one. Raises Refused if one of its ends does not exist."""
        async with self._changing:
            unwanted = self._checked(source, destination, key, arguments)
            if unwanted in self._from[source]:
                self._unbind(unwanted)

    def _checked(self, source: bytes, destination: Destination, key: bytes, arguments: Table) -> Binding:
        """Return the binding if both its ends exist. Raises Refused."""
        self.find(source)
        match destination.kind:
            case Kind.EXCHANGE:
                self.find(destination.name)
            case Kind.QUEUE:
                if self._catalogue.lookup(destination.name) is None:
                    raise Refused(Reason.NOT_FOUND, f"no queue {quoted(destination.name)}")
        return binding(source, destination, key, arguments)

    def _topic_deleted(self, driver: Driver) -> None:
        for each in list(self._to.get(Destination(Kind.QUEUE, driver.topic.topic), ())):
            self._unbind(each)

    # -- the values in memory ------------------------------------------------------------------------------

    def _add(self, exchange: Exchange) -> None:
        self._declared.exchanges[exchange.name] = exchange
        self._declared.indexes[exchange.name] = index_of(exchange.type)
        self._from[exchange.name] = {}
        self._router.forget()  # it may be the alternate exchange of another one

    def _remove(self, exchange: Exchange) -> None:
        """Remove an exchange and its bindings, and the auto-delete exchanges that lose their last one so."""
        del self._declared.exchanges[exchange.name]
        for each in list(self._from.pop(exchange.name)):
            self._leave(each)
        del self._declared.indexes[exchange.name]
        for each in list(self._to.get(Destination(Kind.EXCHANGE, exchange.name), ())):
            self._unbind(each)
        self._router.forget()

    def _bind(self, wanted: Binding) -> None:
        self._declared.indexes[wanted.source].add(wanted)
        self._from[wanted.source][wanted] = None
        self._to.setdefault(wanted.destination, {})[wanted] = None
        self._router.forget()

    def _unbind(self, unwanted: Binding) -> None:
        bound = self._from[unwanted.source]
        del bound[unwanted]
        self._declared.indexes[unwanted.source].remove(unwanted)
        self._leave(unwanted)
        self._router.forget()
        source = self._declared.exchanges[unwanted.source]
        if source.auto_delete and not bound:
            self._remove(source)

    def _leave(self, unwanted: Binding) -> None:
        """Take a binding away from its destination."""
        bound = self._to[unwanted.destination]
        del bound[unwanted]
        if not bound:
            del self._to[unwanted.destination]


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
