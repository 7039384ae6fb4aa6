"""The exchanges of a server and their bindings in memory.

An exchange or a queue that ends may have tens of thousands of bindings. No message takes them from then on,
but they are removed in steps, between which other connections have their turn.
"""

from collections.abc import Callable, Iterator

from omq.drivers.topic_quota import Release
from omq.exchanges.matching import index_of
from omq.exchanges.routes import Declarations
from omq.exchanges.types import Binding, Destination, DestinationKind, Exchange
from omq.protocol.steps import Steps

STEP = 64
"""The work that is done in one step, as `_work` counts it: this takes a few tenths of a millisecond."""

KEY_OCTETS = 16
"""The octets of a key, as many as several words, that take about as much work as one more binding."""


class BoundExchanges:
    """All exchanges and bindings.

    After an end, call `sweep` before anything is added: an exchange or a queue with the name of one that has
    gone would get the bindings of that one.
    """

    def __init__(
        self,
        declared: Declarations,
        changed: Callable[[], None],
        ended: Callable[[Exchange], None],
        unfinished: Callable[[], None],
    ) -> None:
        """Create empty ones, and keep `declared` up to date. `changed` is called when routes may have
        changed, `ended` when an exchange has ended with its last binding, and `unfinished` when there are
        bindings to `sweep`.
        """
        self._declared = declared
        self._changed = changed
        self._ended = ended
        self._unfinished = unfinished
        self._from: dict[bytes, dict[Binding, None]] = {}
        """The bindings of each exchange that is their source."""
        self._to: dict[Destination, dict[Binding, None]] = {}
        self.count = 0
        self._exchanges_released: dict[bytes, Release] = {}
        """Calls for exchanges that have gone, by the names of those that clients declared since the start."""
        self._bindings_released: dict[Binding, Release] = {}
        """Calls for bindings that have gone, for those that clients made since the start."""

    def add_exchange(self, exchange: Exchange, released: Release | None = None) -> None:
        """Add an exchange without bindings. `released` is called when it has gone."""
        self._declared.exchanges[exchange.name] = exchange
        self._declared.indexes[exchange.name] = index_of(exchange.type)
        self._from[exchange.name] = {}
        if released is not None:
            self._exchanges_released[exchange.name] = released
        self._changed()  # it may be the alternate exchange of another one

    def add(self, wanted: Binding, released: Release | None = None) -> None:
        """Add a binding. `released` is called when it has gone. Raises Refused for arguments without a
        meaning.
        """
        self._declared.indexes[wanted.source].add(wanted)
        self._from[wanted.source][wanted] = None
        self._to.setdefault(wanted.destination, {})[wanted] = None
        self.count += 1
        if released is not None:
            self._bindings_released[wanted] = released
        self._changed()

    def has(self, binding: Binding) -> bool:
        """Return whether there is this binding."""
        return binding in self._from.get(binding.source, ())

    def is_source(self, exchange: bytes) -> bool:
        """Return whether any binding has this exchange as its source."""
        return bool(self._from[exchange])

    def bindings(self, source: bytes | None, destination: Destination | None) -> Iterator[Binding]:
        """Yield the bindings with this source and this destination; None for any."""
        if destination is not None:
            found = iter(self._to.get(destination, ()))
        elif source is not None:
            found = iter(self._from.get(source, ()))
        else:
            found = (each for bound in self._from.values() for each in bound)
        return (each for each in found if source in (None, each.source) and self._is_live(each))

    def each(self) -> Iterator[Binding]:
        """Yield the bindings of all exchanges; they may change meanwhile."""
        for source in list(self._from):
            for each in list(self._from.get(source, ())):
                if self._is_live(each):
                    yield each

    def _is_live(self, binding: Binding) -> bool:
        declared = self._declared
        return binding.source in declared.exchanges and binding.destination not in declared.leaving

    # -- ends ----------------------------------------------------------------------------------------------

    def remove(self, unwanted: Binding) -> None:
        """Remove a binding, and its source if that ends with it."""
        self._take(unwanted)
        self._begin()

    def end_exchange(self, exchange: Exchange) -> None:
        """Remove an exchange and its bindings, and the auto-delete exchanges that lose their last one so."""
        self._leave(exchange)
        self._begin()

    def end_queue(self, queue: Destination) -> None:
        """Remove the bindings of a queue that has gone, and the auto-delete exchanges that lose their last
        one so.
        """
        if queue in self._to and queue not in self._declared.leaving:
            self._declared.leaving[queue] = self._removing(queue)
            self._changed()
            self._begin()

    def sweep(self) -> Steps[None]:
        """Remove the bindings of exchanges and queues that have gone. Others may do so meanwhile."""
        leaving = self._declared.leaving
        work = 0
        while leaving:
            end, steps = next(iter(leaving.items()))
            for done in steps:
                work += done
                if work >= STEP:
                    work = 0
                    yield
            if leaving.get(end) is steps:
                del leaving[end]

    def _begin(self) -> None:
        """Do the first step of a sweep, which is mostly all of it."""
        for _ in self.sweep():
            self._unfinished()
            return

    def _leave(self, exchange: Exchange) -> None:
        name = exchange.name
        del self._declared.exchanges[name]
        self._declared.leaving[Destination(DestinationKind.EXCHANGE, name)] = self._removing_exchange(name)
        _call(self._exchanges_released.pop(name, None))
        self._changed()

    def _removing_exchange(self, name: bytes) -> Iterator[int]:
        """Remove the bindings of an exchange, and yield the work after each."""
        bound, index = self._from[name], self._declared.indexes[name]
        while bound:
            unwanted, _ = bound.popitem()
            index.remove(unwanted)
            self._leave_destination(unwanted)
            self._gone(unwanted)
            yield _work(unwanted)
        del self._from[name], self._declared.indexes[name]
        yield from self._removing(Destination(DestinationKind.EXCHANGE, name))

    def _removing(self, destination: Destination) -> Iterator[int]:
        """Remove the bindings of a destination, and yield the work after each."""
        bound = self._to.get(destination, {})
        while bound:
            unwanted, _ = bound.popitem()
            self._leave_source(unwanted)
            yield _work(unwanted)
        self._to.pop(destination, None)

    def _take(self, unwanted: Binding) -> None:
        self._leave_destination(unwanted)
        self._leave_source(unwanted)

    def _leave_source(self, unwanted: Binding) -> None:
        """Take a binding away from its source. It is gone then."""
        bound = self._from[unwanted.source]
        del bound[unwanted]
        self._declared.indexes[unwanted.source].remove(unwanted)
        self._gone(unwanted)
        self._changed()
        source = self._declared.exchanges.get(unwanted.source)
        if source is not None and source.auto_delete and not bound:
            self._ended(source)
            self._leave(source)

    def _leave_destination(self, unwanted: Binding) -> None:
        """Take a binding away from its destination."""
        bound = self._to[unwanted.destination]
        del bound[unwanted]
        if not bound:
            del self._to[unwanted.destination]

    def _gone(self, binding: Binding) -> None:
        self.count -= 1
        _call(self._bindings_released.pop(binding, None))


def _work(binding: Binding) -> int:
    """Return the approximate work of removing a binding: 1 for most."""
    return 1 + len(binding.arguments.entries) + len(binding.key) // KEY_OCTETS


def _call(released: Release | None) -> None:
    if released is not None:
        released()
