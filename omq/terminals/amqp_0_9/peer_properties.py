"""The properties of the server in Connection.Start, and those of the client in its answer.

OpenAMQ's client library ignores the table unless all its entries have the types S, I, D, T, F and V. It does
not read nested tables.
"""

import platform
import sys

from omq.protocol.amqp.fields import Boolean, LongString, Number, NumberType, Table, Value
from omq.version import VERSION

CAPABILITIES = (
    b"publisher_confirms",
    b"exchange_exchange_bindings",
    b"basic.nack",
    b"consumer_cancel_notify",
    b"authentication_failure_close",
    b"per_consumer_qos",
    b"consumer_priorities",
    b"direct_reply_to",
)

PLATFORM = f"Python {platform.python_version()} on {sys.platform}".encode()


def server_properties(connection: str, *, direct: bool) -> Table:
    """Return the server's properties. `connection` identifies the connection; `direct` offers DMP."""
    entries: list[tuple[bytes, Value]] = [
        (b"product", LongString(b"omq")),
        (b"version", LongString(VERSION.encode())),
        (b"platform", LongString(PLATFORM)),
        (b"connection", LongString(connection.encode())),
        (b"capabilities", Table(tuple((name, Boolean(True)) for name in CAPABILITIES))),
    ]
    if direct:
        entries.append((b"direct", Number(NumberType.INT32, 1)))
    return Table(tuple(entries))


def has_capability(client_properties: Table, name: bytes) -> bool:
    """Return whether a client states this capability."""
    for known, value in client_properties.entries:
        if known == b"capabilities" and isinstance(value, Table):
            return any(entry == name and _is_true(of) for entry, of in value.entries)
    return False


def _is_true(value: Value) -> bool:
    return isinstance(value, Boolean) and value.value
