"""Exchanges and bindings as the store keeps them.

The store keeps durable exchanges, and the bindings between durable ends. A binding of a topic refers to its
id, so it never becomes one of another topic with the same name.
"""

import logging
from collections.abc import Iterator

from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.lifetime import Durable
from omq.exchanges.types import Binding, Destination, DestinationKind, Exchange, ExchangeType
from omq.logs import quoted
from omq.protocol.amqp.fields import Table, read_table, table_octets
from omq.protocol.amqp.shortstr import FieldError
from omq_storage.topology import BindingRecord, ExchangeRecord

log = logging.getLogger("omq.exchanges")


def is_recorded(driver: Driver) -> bool:
    """Return whether a topic has a record in the store, so that its bindings can have one."""
    return isinstance(driver.lifetime, Durable)


def exchange_record(exchange: Exchange) -> ExchangeRecord:
    """Return the record of a durable exchange."""
    return ExchangeRecord(
        exchange.name, exchange.type.value, exchange.auto_delete, exchange.internal, exchange.alternate
    )


def binding_record(binding: Binding, topic: int | None) -> BindingRecord:
    """Return the record of a binding, of the topic with this id if its destination is a queue."""
    destination = binding.destination.name if topic is None else topic
    arguments = table_octets(binding.arguments) if binding.arguments.entries else b""
    return BindingRecord(binding.source, destination, binding.key, arguments)


def stored_exchanges(catalogue: Catalogue) -> Iterator[Exchange]:
    """Yield the exchanges of the store. Report those that this version cannot read."""
    for record in catalogue.stored_exchanges():
        try:
            kind = ExchangeType(record.type)
        except ValueError:
            log.error("exchange %s has the unknown type %r", quoted(record.name), record.type)
            continue
        yield Exchange(
            record.name,
            kind,
            durable=True,
            auto_delete=record.auto_delete,
            internal=record.internal,
            alternate=record.alternate,
        )


def stored_bindings(catalogue: Catalogue) -> Iterator[Binding]:
    """Yield the bindings of the store. Report those that this version cannot read."""
    names = {driver.topic.id: driver.topic.topic for driver in catalogue}
    for record in catalogue.stored_bindings():
        if isinstance(record.destination, int):
            destination = Destination(DestinationKind.QUEUE, names[record.destination])
        else:
            destination = Destination(DestinationKind.EXCHANGE, record.destination)
        try:
            arguments = (
                read_table(record.arguments, 0, len(record.arguments))[0] if record.arguments else Table()
            )
        except FieldError as problem:
            log.error("a binding of %s cannot be read: %s", quoted(record.source), problem)
            continue
        yield Binding(record.source, destination, record.key, arguments)
