"""Queues, exchanges and bindings as the answers to Manage have them, and what its requests say of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from omq import management
from omq.drivers.lifetime import Durable
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import CHANGEABLE, DEFAULT, Overflow, QueueOptions
from omq.drivers.reasons import Reason, Refused
from omq.exchanges.types import Binding, DestinationKind, Exchange
from omq.protocol.amqp.fields import Boolean, LongString, Number, NumberType, Table, Value, Void


def queue_info(driver: QueueDriver, oldest_ms: int | None) -> management.QueueInfo:
    """Return the record of a queue. `oldest_ms` is as `QueueDriver.oldest_ms` returns it."""
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
        oldest_ms=oldest_ms,
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


def exchange_info(exchange: Exchange) -> management.ExchangeInfo:
    """Return the record of an exchange."""
    return management.ExchangeInfo(
        exchange.name,
        exchange.type.value.encode(),
        exchange.durable,
        exchange.auto_delete,
        exchange.internal,
        exchange.alternate,
    )


def binding_info(binding: Binding) -> management.BindingInfo:
    """Return the record of a binding."""
    name = binding.destination.name
    is_queue = binding.destination.kind is DestinationKind.QUEUE
    return management.BindingInfo(
        binding.source,
        management.Queue(name) if is_queue else management.Exchange(name),
        binding.key,
        tuple(management.Argument(name, _shown(value)) for name, value in binding.arguments.entries),
    )


def octets_of_arguments(info: management.BindingInfo) -> int:
    """Return the octets of the arguments of a binding, as an answer has them before they are printed."""
    return sum(len(each.name) + _octets(each.value) for each in info.arguments)


def _octets(value: management.Value) -> int:
    match value:
        case management.String(octets) | management.Other(octets):
            return len(octets)
        case management.Int() | management.Bool() | management.Void():
            return 1
        case _:
            assert_never(value)


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


def table(arguments: Sequence[management.Argument]) -> Table:
    """Return these arguments as a table. Raise Refused for a value that a table cannot have."""
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


def changed(options: QueueOptions, changes: Sequence[management.Change]) -> QueueOptions:
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
