"""Computes routes, and keeps them: which topics get a message, by exchange and routing key.

A route stays valid until a binding, an exchange or a topic in it changes; then all routes are dropped. To
compute one again takes some microseconds. Where many bindings match a message, or nearly match it, it takes
long: then the route is computed in steps, between which other connections have their turn.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from omq.drivers.driver import Driver
from omq.drivers.reasons import Refused, missing
from omq.drivers.routed_topic import RoutedTopic
from omq.exchanges.copies import check_headers, copies_of
from omq.exchanges.matching import NO_HEADERS, Headers, Index, headers_of
from omq.exchanges.types import DEFAULT, Destination, DestinationKind, Exchange, refusal_of_internal
from omq.protocol.amqp.fields import read_table
from omq.protocol.amqp.head import headers_table
from omq.protocol.steps import Steps

MOST_KEPT = 8 << 20
"""The approximate number of octets that the kept routes may take."""

OCTETS_OF_ROUTE = 300
"""The approximate octets of memory for a route, besides its names and topics."""

STEP = 256
"""The number of bindings, or nodes of patterns, that are examined in one step: this takes a few tenths of a
millisecond.
"""

OF_EXCHANGE = 8
"""The number of bindings whose examination takes as long as that of an exchange, besides its bindings."""

HEADERS_OF_ONE = 4
"""The number of headers that are looked up in an exchange while one binding is examined."""

MOST_HEADERS = 1024
"""The longest headers table in octets for which a route is kept."""

Route = tuple[Driver, ...]
"""The topics that get a message, each once. Empty if the message is unroutable."""


class TopicIsReplaced(Exception):
    """A topic of the route is being given other types: await `ExchangeRegistry.settled`, then route again."""


class RouteIsLong(Exception):
    """The route takes more than a step to compute: use `Router.parts_in_steps`."""


class RoutedPart(NamedTuple):
    """Messages of a run with the same route."""  # a tuple, because one is made for each run

    route: Sequence[RoutedTopic]
    indexes: Sequence[int] | None
    """The indexes of the messages within the run; None for all of them."""
    heads: Sequence[bytes]
    """Their heads, in the form in which they are stored."""


class Declarations:
    """The declared exchanges, and the bindings of each of them."""

    __slots__ = ("exchanges", "indexes", "leaving")

    def __init__(self) -> None:
        self.exchanges: dict[bytes, Exchange] = {}
        self.indexes: dict[bytes, Index] = {}
        self.leaving: dict[Destination, Iterator[int]] = {}
        """The exchanges and queues that have gone, with the steps that remove their bindings. What has such a
        name meanwhile is new, and has none of these.
        """


class Router:
    """Finds the topics of a message."""

    def __init__(self, declared: Declarations, topic: Callable[[bytes], Driver | None]) -> None:
        """Create the routes of these exchanges. `topic` returns the topic with a name, and may raise
        TopicIsReplaced.
        """
        self._exchanges: Mapping[bytes, Exchange] = declared.exchanges
        self._indexes: Mapping[bytes, Index] = declared.indexes
        self._leaving = declared.leaving
        self._topic = topic
        self._routes: dict[tuple[bytes, bytes], Route | None] = {}
        """None where the route depends on the headers."""
        self._routes_by_headers: dict[tuple[bytes, bytes, bytes], Route] = {}
        self._kept = 0
        self._changes = 0
        """The number of changes of the declarations so far."""

    def forget(self) -> None:
        """Drop all routes, because something that is declared has changed."""
        self._changes += 1
        self._drop()

    def _drop(self) -> None:
        self._routes.clear()
        self._routes_by_headers.clear()
        self._kept = 0

    def route_in_steps(self, exchange: bytes, key: bytes, head: bytes = b"") -> Steps[Route]:
        """Return the topics of a message, without regard to its headers CC and BCC.

        Raises Refused for a missing exchange, and TopicIsReplaced.
        """
        if exchange == DEFAULT:
            # A look at the catalogue costs no more than one at the routes, and is never out of date.
            driver = self._topic(key)
            return () if driver is None else (driver,)
        route = yield from self._without_headers(exchange, key)
        if route is None:
            route = yield from self._route_by_headers(exchange, key, head)
        return route

    def _without_headers(self, exchange: bytes, key: bytes) -> Steps[Route | None]:
        """Return the topics of a message; None where they depend on its headers."""
        try:
            return self._routes[exchange, key]
        except KeyError:
            pass
        changes = self._changes
        found = yield from self._find(exchange, (key,), NO_HEADERS)
        route = None if found.reads_headers else found.route
        if changes == self._changes:
            self._make_room(len(exchange) + len(key), found.route)
            self._routes[exchange, key] = route
        return route

    def parts(
        self, exchange: bytes, key: bytes, run: Sequence[bytes], *, may_copy: bool = True
    ) -> Sequence[RoutedPart]:
        """Divide a run of messages that a client publishes by their routes. See `route_in_steps`.

        `run` has the heads of the messages, and `may_copy` says whether any of them may have the headers CC
        and BCC. Raises Refused also for an internal exchange, and where these headers are not arrays of
        strings; and RouteIsLong.
        """
        if exchange == DEFAULT and not may_copy:
            driver = self._topic(key)
            return (RoutedPart(() if driver is None else (driver,), None, run),)
        steps = self.parts_in_steps(exchange, key, run, may_copy=may_copy)
        try:
            next(steps)
        except StopIteration as stop:
            parts: Sequence[RoutedPart] = stop.value
            return parts
        steps.close()
        raise RouteIsLong

    def parts_in_steps(
        self, exchange: bytes, key: bytes, run: Sequence[bytes], *, may_copy: bool = True
    ) -> Steps[Sequence[RoutedPart]]:
        """Do as `parts`, however long it takes. A binding that changes meanwhile counts or not."""
        declared = self._exchanges.get(exchange)
        if declared is not None and declared.internal:
            raise refusal_of_internal(exchange)
        depends = False
        if exchange != DEFAULT:
            route = yield from self._without_headers(exchange, key)
            if route is not None and not may_copy:
                return (RoutedPart(route, None, run),)
            depends = route is None
        return (yield from self._parts(exchange, key, run, depends))

    def _parts(
        self, exchange: bytes, key: bytes, run: Sequence[bytes], depends: bool
    ) -> Steps[Sequence[RoutedPart]]:
        parts: dict[Route, tuple[list[int], list[bytes]]] = {}
        for index, head in enumerate(run):
            if depends:
                check_headers(head)
            copies = copies_of(head)
            if copies.keys:
                route = (yield from self._find(exchange, (key, *copies.keys), headers_of_head(head))).route
            else:
                route = yield from self.route_in_steps(exchange, key, head)
            indexes, stored = parts.setdefault(route, ([], []))
            indexes.append(index)
            stored.append(copies.head)
        return [
            RoutedPart(route, None if len(parts) == 1 else indexes, stored)
            for route, (indexes, stored) in parts.items()
        ]

    def _route_by_headers(self, exchange: bytes, key: bytes, head: bytes) -> Steps[Route]:
        table = headers_table(head)
        try:
            return self._routes_by_headers[exchange, key, table]
        except KeyError:
            pass
        headers = headers_of(read_table(table, 0, len(table))[0]) if table else NO_HEADERS
        changes = self._changes
        route = (yield from self._find(exchange, (key,), headers)).route
        if len(table) <= MOST_HEADERS and changes == self._changes:
            self._make_room(len(exchange) + len(key) + len(table), route)
            self._routes_by_headers[exchange, key, table] = route
        return route

    def _make_room(self, octets: int, route: Route) -> None:
        octets += OCTETS_OF_ROUTE + 8 * len(route)
        if self._kept + octets > MOST_KEPT:
            self._drop()
        self._kept += octets

    def _find(self, first: bytes, keys: Sequence[bytes], headers: Headers) -> Steps["_Found"]:
        if first != DEFAULT and first not in self._exchanges:
            raise missing_exchange(first)
        reads_headers = False
        left = STEP
        drivers: dict[Driver, None] = {}
        ahead = [first]
        passed = {first}  # bindings between exchanges may form a cycle
        while ahead:
            name = ahead.pop()
            if name == DEFAULT:
                drivers.update(dict.fromkeys(filter(None, map(self._topic, keys))))
                continue
            left -= OF_EXCHANGE + len(keys) + len(headers) // HEADERS_OF_ONE
            if left <= 0:
                left = STEP
                yield
            exchange = self._exchanges.get(name)
            if exchange is None:
                continue  # it was deleted after a pause
            index = self._indexes[name]
            reads_headers |= index.reads_headers
            matches: dict[Destination, None] = {}
            for each in index.destinations(keys, headers):
                left -= 1
                if not left:
                    left = STEP
                    yield
                if each is None or each in matches:
                    continue
                if self._leaving and each in self._leaving:
                    continue
                matches[each] = None
                if each.kind is DestinationKind.QUEUE:
                    driver = self._topic(each.name)
                    if driver is not None:
                        drivers[driver] = None
                elif each.name not in passed:
                    ahead.append(each.name)
                    passed.add(each.name)
            alternate = exchange.alternate
            if matches or alternate is None or alternate in passed:
                continue
            if not alternate or alternate in self._exchanges:
                ahead.append(alternate)
                passed.add(alternate)
        return _Found(tuple(drivers), reads_headers)


class _Found(Struct, frozen=True):
    route: Route
    reads_headers: bool


def headers_of_head(head: bytes) -> Headers:
    """Return the headers of a message with this head."""
    table = headers_table(head)
    return headers_of(read_table(table, 0, len(table))[0]) if table else NO_HEADERS


def missing_exchange(name: bytes) -> Refused:
    """Return the error for an exchange that is not declared."""
    return missing("exchange", name)
