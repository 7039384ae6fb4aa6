"""The requests of the command Manage: what a client may list and change of queues, exchanges and bindings.

The rights are those of `omq.access.topology`. To declare or delete an exchange takes the right to declare or
delete its name; to bind, the rights to publish to the destination and to subscribe to the source; to purge
and peek, the right to subscribe to the queue; to move messages, also that to publish to where they go; to
declare a queue or change its options, the right to declare it. An alternate exchange and a dead-letter
exchange take the right to publish there. Lists have the names to which the client has a right.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from itertools import chain, islice
from typing import TypeVar, assert_never

import trio

from omq import management
from omq.access.rights import Right
from omq.access.session import Session
from omq.access.topology import check_forwarding
from omq.drivers.catalogue import Catalogue
from omq.drivers.confirmation import Confirmation, all_of
from omq.drivers.driver import Driver
from omq.drivers.lifetime import Durable, check_user
from omq.drivers.offer import NoRoom
from omq.drivers.problems import for_clients
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import CHANGEABLE, DEFAULT, Overflow, QueueOptions
from omq.drivers.reasons import Reason, Refused
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import ACCEPTED, RELEASED, Channel, CreditKind, EndReason, Messages, Piece
from omq.exchanges.exchanges import Exchanges
from omq.exchanges.types import ALTERNATE, RESERVED, Binding, Destination, DestinationKind, Exchange, argument
from omq.logs import quoted
from omq.model import PERSISTENCES, Persistent
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import Array, Boolean, LongString, Number, NumberType, Table, Value, Void
from omq.protocol.amqp.head import Head
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.errors import StoreError
from omq_storage.runs import Run

T = TypeVar("T")
R = TypeVar("R")

MOST_RECORDS = 100
"""The most records in one answer: a list takes several."""

ITEMS_A_STEP = 64
"""After how many items of a list the other connections have their turn."""

MOST_SHOWN = 4096
"""The most octets of a body that Peek shows."""

MOST_MOVED = 10_000
"""The most messages that one Move moves."""

MOVED_AT_ONCE = 64
"""How many messages are on their way to their new queue before Move waits for them."""

DEATHS = (b"x-death", b"x-first-death-exchange", b"x-first-death-queue", b"x-first-death-reason")
"""The headers of dead letters, which a message that is moved back loses: it may become one again."""

_PERSISTENCES = {name.encode(): persistence for name, persistence in PERSISTENCES.items()}
"""By the octets of their names in a request."""


class Management:
    """The requests of one connection."""

    __slots__ = ("_catalogue", "_exchanges", "_session")

    def __init__(self, session: Session, catalogue: Catalogue, exchanges: Exchanges) -> None:
        self._session = session
        self._catalogue = catalogue
        self._exchanges = exchanges

    async def perform(self, request: management.Request) -> management.Answer:
        """Do what is requested. Raises Refused."""
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
                await self._exchanges.bind(source, end, key, _table(arguments))
                return management.Done(1)
            case management.Unbind(source, destination, key, arguments):
                end = self._checked_end(source, destination)
                await self._exchanges.unbind(source, end, key, _table(arguments))
                return management.Done(1)
            case management.Purge(queue):
                return management.Done(self._queue(Right.SUBSCRIBE, queue).purge())
            case management.Peek(queue, first, count):
                found = self._queue(Right.SUBSCRIBE, queue)
                return management.Messages(await _peeked(found, _index(first), _index(count)))
            case management.ChangeQueue(queue, changes):
                driver = self._queue(Right.DECLARE, queue)
                options = _changed(driver.options, changes)
                if any(change.option.decode() in management.NAMES for change in changes):
                    check_forwarding(
                        self._session.check, options.dead_letter_exchange, options.dead_letter_key
                    )
                await self._catalogue.change_queue(queue, options)
                return management.Done(len(changes))
            case management.DeclareQueue():
                return await self._declare_queue(request)
            case management.Move(queue, to, count):
                return management.Done(await self._move(queue, to, min(_index(count), MOST_MOVED)))
            case _:
                assert_never(request)

    # -- lists ---------------------------------------------------------------------------------------------

    async def _queues(self, first: int) -> tuple[management.QueueInfo, ...]:
        queues = (driver for driver in self._catalogue.drivers() if isinstance(driver, QueueDriver))
        return await self._page(queues, first, lambda driver: (driver.topic.topic,), _queue_info)

    async def _list_exchanges(self, first: int) -> tuple[management.ExchangeInfo, ...]:
        exchanges = iter(self._exchanges.declared())
        return await self._page(exchanges, first, lambda exchange: (exchange.name,), _exchange_info)

    async def _bindings(self, first: int) -> tuple[management.BindingInfo, ...]:
        bindings = self._exchanges.each_binding()
        return await self._page(
            bindings, first, lambda binding: (binding.source, binding.destination.name), _binding_info
        )

    async def _page(
        self, items: Iterator[T], first: int, names: Callable[[T], tuple[bytes, ...]], info: Callable[[T], R]
    ) -> tuple[R, ...]:
        """Return the records of items from this index on, of those whose names the client may know. The other
        connections have their turns meanwhile.
        """
        sees = self._session.rights.sees
        found: list[R] = []
        for number, item in enumerate(items):
            if not number % ITEMS_A_STEP:
                await trio.lowlevel.checkpoint()
            if not all(map(sees, names(item))):
                continue
            if first:
                first -= 1
            elif len(found) < MOST_RECORDS:
                found.append(info(item))
            else:
                break
        return tuple(found)

    # -- exchanges -----------------------------------------------------------------------------------------

    async def _declare(self, wanted: management.DeclareExchange) -> management.Done:
        if not wanted.name.startswith(RESERVED):  # which exist, or are refused to everybody
            self._session.check(Right.DECLARE, wanted.name)
            check_forwarding(self._session.check, wanted.alternate, None)
        arguments = Table()
        if wanted.alternate is not None:
            arguments = Table(((ALTERNATE, LongString(wanted.alternate)),))
        await self._exchanges.declare(
            wanted.name,
            wanted.type,
            arguments,
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
                    check_user(driver.lifetime, self._session.owner)
                return Destination(DestinationKind.QUEUE, name)
            case _:
                assert_never(destination)

    # -- queues --------------------------------------------------------------------------------------------

    def _queue(self, right: Right, name: bytes) -> QueueDriver:
        """Return the queue with this name. Raises Refused."""
        self._session.check(right, name)
        driver = self._catalogue.lookup(name)
        if driver is None:
            raise Refused(Reason.NOT_FOUND, f"no queue {quoted(name)}")
        check_user(driver.lifetime, self._session.owner)
        if not isinstance(driver, QueueDriver):
            raise Refused(Reason.DIFFERS, "it is a broadcast topic, and no queue")
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
        options = _changed(replace(DEFAULT, durable=isinstance(persistence, Persistent)), wanted.options)
        check_forwarding(self._session.check, options.dead_letter_exchange, options.dead_letter_key)
        existing = self._catalogue.lookup(name)
        if existing is not None:
            check_user(existing.lifetime, self._session.owner)
        named = frozenset(change.option.decode() for change in wanted.options)
        await self._catalogue.declare_changeable(
            name, persistence, options, named, partial(self._session.admit, name)
        )
        return management.Done(1)

    async def _move(self, queue: bytes, to: bytes | None, count: int) -> int:
        """Move messages, each of which is stored in its new queue before it is done in this one."""
        driver = self._queue(Right.SUBSCRIBE, queue)
        if to is not None:
            self._target(to)
        getter = driver.open_getter(_Mover())
        getter.grant(MOST_MOVED, CreditKind.WINDOW)
        moved = 0
        waiting: list[tuple[Confirmation, range]] = []
        kept: list[range] = []
        try:
            # Each message is looked at once; those that stay return to their places at the end.
            for number in range(min(count, driver.ready)):
                if not number % ITEMS_A_STEP:
                    await trio.lowlevel.checkpoint()
                found = await _next(driver, getter)
                if found is None:
                    break
                _add(kept, found.id)
                target = self._target_of(found, to, driver)
                if target is None:
                    continue
                offered = target.offer(Bodies([found.body]), [found.head])
                confirmation = await offered.taken() if isinstance(offered, NoRoom) else offered
                _drop_last(kept)
                waiting.append((confirmation, range(found.id, found.id + 1)))
                if len(waiting) >= MOVED_AT_ONCE:
                    moved += await _settle(waiting, getter)
            return moved + await _settle(waiting, getter)
        except Refused:
            await _settle(waiting, getter)  # those before it are in their new queues
            raise
        finally:
            for ids in kept:  # which does not count as a delivery
                getter.settle(ids, RELEASED)
            getter.close()

    def _target(self, name: bytes) -> Driver:
        self._session.check(Right.PUBLISH, name)
        driver = self._catalogue.lookup(name)
        if driver is None:
            raise Refused(Reason.NOT_FOUND, f"no queue {quoted(name)}")
        check_user(driver.lifetime, self._session.owner)
        return driver

    def _target_of(self, message: "_Message", to: bytes | None, source: Driver) -> Driver | None:
        """Return where to move a message; None if it came from nowhere that is known and exists."""
        name = message.died_in if to is None else to
        if name is None or (to is None and self._catalogue.lookup(name) is None):
            return None
        target = self._target(name)
        return None if target is source else target


def _index(number: int) -> int:
    """Return a number of the client. Raise Refused if it is negative."""
    if number < 0:
        raise Refused(Reason.INVALID, "a number cannot be negative")
    return number


# -- records ------------------------------------------------------------------------------------------------


def _queue_info(driver: QueueDriver) -> management.QueueInfo:
    options = driver.options
    values = ((name, getattr(options, name)) for name in (*CHANGEABLE, "max_priority", "single_active"))
    return management.QueueInfo(
        id=driver.topic.id,
        name=driver.topic.topic,
        durable=isinstance(driver.lifetime, Durable),
        exclusive=options.exclusive,
        auto_delete=driver.lifetime.with_last_consumer,
        ready=driver.ready,
        unacknowledged=driver.unacknowledged,
        consumers=driver.subscriber_count(),
        oldest_ms=driver.oldest_ms(),
        options=tuple(
            management.Change(name.encode(), _text(value))
            for name, value in values
            if value != getattr(DEFAULT, name)
        ),
    )


def _text(value: object) -> bytes:
    match value:
        case bytes():
            return value
        case Overflow():
            return value.value.encode()
        case bool():
            return b"true"
        case _:
            return str(value).encode()


def _exchange_info(exchange: Exchange) -> management.ExchangeInfo:
    return management.ExchangeInfo(
        exchange.name,
        exchange.type.value.encode(),
        exchange.durable,
        exchange.auto_delete,
        exchange.internal,
        exchange.alternate,
    )


def _binding_info(binding: Binding) -> management.BindingInfo:
    name = binding.destination.name
    is_queue = binding.destination.kind is DestinationKind.QUEUE
    return management.BindingInfo(
        binding.source,
        management.Queue(name) if is_queue else management.Exchange(name),
        binding.key,
        tuple(management.Argument(name, _shown(value)) for name, value in binding.arguments.entries),
    )


def _shown(value: Value) -> management.Value:
    match value:
        case LongString(octets):
            return management.String(octets)
        case Boolean(truth):
            return management.Bool(truth)
        case Void():
            return management.Void()
        case Number(NumberType.INT64, int() as number):
            return management.Int(number)
        case _:
            return management.Other(repr(value).encode())


def _table(arguments: Sequence[management.Argument]) -> Table:
    """Return these arguments as a table. Raise Refused for an argument that cannot be made."""
    return Table(tuple((each.name, _value(each.value)) for each in arguments))


def _value(value: management.Value) -> Value:
    match value:
        case management.String(octets):
            return LongString(octets)
        case management.Int(number):
            return Number(NumberType.INT64, number)
        case management.Bool(truth):
            return Boolean(truth)
        case management.Void():
            return Void()
        case management.Other():
            raise Refused(Reason.INVALID, "an argument of the type Other can only be shown")
        case _:
            assert_never(value)


# -- options of queues --------------------------------------------------------------------------------------


def _changed(options: QueueOptions, changes: Sequence[management.Change]) -> QueueOptions:
    """Return options with these changes. Raises Refused."""
    values: dict[str, object] = {}
    for change in changes:
        problem = management.problem_of(change)
        if problem is not None:
            raise Refused(Reason.INVALID, problem)
        name = change.option.decode()
        values[name] = _option(name, change.value)
    return replace(options, **values)  # type: ignore[arg-type]  # as `_option` returns them


def _option(name: str, value: bytes | None) -> object:
    if value is None or name in management.NAMES:
        return value
    return Overflow(value.decode()) if name == "overflow" else int(value)


# -- messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Message:
    """A message to move."""

    id: int
    body: bytes
    head: bytes
    died_in: bytes | None
    """The queue in which it became a dead letter last."""


class _Mover:
    """The subscriber of a channel that moves messages: it asks for them."""

    def wake(self) -> None:
        """Do nothing: no task waits."""

    def replaced(self, channel: Channel) -> None:
        """Do nothing: a queue with messages is not given other types."""

    def ended(self, end: EndReason) -> None:
        """Do nothing: the next Get of a message finds none."""


async def _next(driver: QueueDriver, getter: RoundRobinChannel) -> _Message | None:
    """Take the next message that is ready; None if there is none, or it is too large to be moved."""
    try:
        while await driver.deal_one(getter):
            taken = await getter.take()
            if isinstance(taken, Messages):
                (cut,) = taken.cuts
                (id,) = cut.ids
                getter.written(1)
                return _message(cut.block, id)
            if isinstance(taken, Piece):
                getter.written(0)  # so it does not count as delivered
                raise Refused(Reason.TOO_LARGE, f"message {taken.message} is too large to be moved")
            # Otherwise it is lost: the next one.
    except StoreError as problem:
        raise Refused.of(for_clients(problem)) from problem
    return None


def _message(block: Block, id: int) -> _Message:
    octets = block.head(id)
    body = bytes(block.frame(id)[FRAME_HEADER:])
    head = heads.decode(octets) if octets else Head()
    table = head.properties.headers
    if table is None:
        return _Message(id, body, octets, None)
    died_in: bytes | None = None
    match argument(table, b"x-death"):
        case Array((Table() as latest, *_)):
            queue = argument(latest, b"queue")
            died_in = queue.octets if isinstance(queue, LongString) else None
        case _:
            pass
    kept = Table(tuple(entry for entry in table.entries if entry[0] not in DEATHS))
    if died_in is not None:
        octets = heads.encode(replace(head, properties=replace(head.properties, headers=kept)))
    return _Message(id, body, octets, died_in)


async def _settle(waiting: list[tuple[Confirmation, range]], getter: RoundRobinChannel) -> int:
    """Wait until messages are stored in their new queues, and settle them in the old one. Raises Refused."""
    settled = trio.Event()
    all_of([confirmation for confirmation, _ in waiting]).listen(settled.set)
    await settled.wait()
    failed: Refused | None = None
    count = 0
    for confirmation, ids in waiting:
        if confirmation.failure is None:
            count += getter.settle(ids, ACCEPTED)
        else:
            getter.settle(ids, RELEASED)
            failed = Refused.of(confirmation.failure)
    waiting.clear()
    if failed is not None:
        raise failed
    return count


def _add(ids: list[range], id: int) -> None:
    """Add an id to ranges of ids."""
    if ids and ids[-1].stop == id:
        ids[-1] = range(ids[-1].start, id + 1)
    else:
        ids.append(range(id, id + 1))


def _drop_last(ids: list[range]) -> None:
    """Remove the id that was added last."""
    last = ids.pop()
    if len(last) > 1:
        ids.append(last[:-1])


async def _peeked(driver: QueueDriver, first: int, count: int) -> tuple[management.MessageInfo, ...]:
    """Return messages from an id on that are not done, and stay where they are. Raises Refused."""
    shown: list[management.MessageInfo] = []
    block: Block | None = None
    for id in islice(_not_done(driver, first), min(count, MOST_RECORDS)):
        if block is None or not block.first <= id < block.next:
            try:
                block = await driver.peek(id)
            except StoreError as problem:
                raise Refused.of(for_clients(problem)) from problem
        if block is None:
            continue  # it was done meanwhile, is lost, or is too large
        frame, octets = block.frame(id), block.head(id)
        head = heads.decode(octets) if octets else Head(routing_key=driver.topic.topic)
        body = bytes(frame[FRAME_HEADER : FRAME_HEADER + MOST_SHOWN])
        shown.append(
            management.MessageInfo(id, len(frame) - FRAME_HEADER, body, head.exchange, head.routing_key)
        )
    return tuple(shown)


def _not_done(driver: QueueDriver, first: int) -> Iterator[int]:
    position = driver.position()
    undone: Sequence[Run] = position.undone
    # Of each run no more than can be shown: together they may have very many.
    runs = (run for run in undone if run.last >= first)
    later = (islice((id for id in run.ids() if id >= first), MOST_RECORDS) for run in runs)
    yield from nsmallest(MOST_RECORDS, set(chain.from_iterable(later)))
    yield from range(max(first, position.cursor), driver.next_id)
