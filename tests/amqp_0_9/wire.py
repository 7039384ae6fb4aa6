"""The output of a client of AMQP 0-9-1: frames and methods, whose octets are made by hand.

It uses nothing of the server, so that a mistake in the server's codec cannot hide itself.
"""

import struct
from collections.abc import Mapping
from typing import Any

Properties = Mapping[str, Any]


class Timestamp(int):
    """A value of type `T`."""


class Long(int):
    """A value of type `l`."""


# -- writing ------------------------------------------------------------------------------------------------


def octets(text: str | bytes) -> bytes:
    """Return text as octets."""
    return text.encode() if isinstance(text, str) else text


def short(text: str | bytes) -> bytes:
    """Return a short string."""
    data = octets(text)
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    """Return a long string."""
    return struct.pack(">I", len(data)) + data


def value(of: Any) -> bytes:
    """Return a value of a field table, behind its type."""
    match of:
        case bool():
            return b"t" + bytes([of])
        case Timestamp():
            return b"T" + struct.pack(">Q", of)
        case Long():
            return b"l" + struct.pack(">q", of)
        case int():
            return b"I" + struct.pack(">i", of)
        case float():
            return b"d" + struct.pack(">d", of)
        case str() | bytes():
            return b"S" + long(octets(of))
        case dict():
            return b"F" + table(of)
        case list():
            return b"A" + long(b"".join(map(value, of)))
        case None:
            return b"V"
        case _:
            raise TypeError(of)


def table(entries: Mapping[str, Any]) -> bytes:
    """Return a field table."""
    return long(b"".join(short(name) + value(of) for name, of in entries.items()))


def arguments(named: Mapping[str, Any]) -> bytes:
    """Return a field table of arguments, whose names have underscores for hyphens."""
    return table({name.replace("_", "-"): of for name, of in named.items()})


PROPERTIES = {
    "content_type": "short",
    "content_encoding": "short",
    "headers": "table",
    "delivery_mode": "octet",
    "priority": "octet",
    "correlation_id": "short",
    "reply_to": "short",
    "expiration": "short",
    "message_id": "short",
    "timestamp": "long",
    "type": "short",
    "user_id": "short",
    "app_id": "short",
    "cluster_id": "short",
}
"""The properties of a message in their order on the wire, and their types."""

NO_PROPERTIES = b"\0\0"


def properties(**given: Any) -> bytes:
    """Return the flags and values of properties."""
    flags = 0
    written = b""
    for index, (name, kind) in enumerate(PROPERTIES.items()):
        if name in given:
            flags |= 0x8000 >> index
            match kind:
                case "short":
                    written += short(given[name])
                case "table":
                    written += table(given[name])
                case "octet":
                    written += bytes([given[name]])
                case _:
                    written += struct.pack(">Q", given[name])
    return struct.pack(">H", flags) + written


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, class_id: int, method_id: int, args: bytes = b"") -> bytes:
    """Return a method frame."""
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + args)


def header(channel: int, size: int, props: bytes = NO_PROPERTIES) -> bytes:
    """Return a content header frame of class Basic."""
    return frame(2, channel, struct.pack(">HHQ", 60, 0, size) + props)


def body(channel: int, data: bytes) -> bytes:
    """Return a body frame."""
    return frame(3, channel, data)


# -- methods, as the cases use them --------------------------------------------------------------------------


def bits(*flags: int) -> bytes:
    """Return an octet of bits, the lowest first."""
    return bytes([sum(bool(flag) << place for place, flag in enumerate(flags))])


def publish(
    channel: int,
    exchange: str,
    key: str,
    data: bytes,
    props: bytes = NO_PROPERTIES,
    mandatory: int = 0,
    immediate: int = 0,
) -> bytes:
    """Return a whole message."""
    published = publishing(channel, exchange, key, mandatory, immediate) + header(channel, len(data), props)
    return published + (body(channel, data) if data else b"")


def publishing(channel: int, exchange: str, key: str, mandatory: int = 0, immediate: int = 0) -> bytes:
    """Return the method alone: the content must follow."""
    return method(channel, 60, 40, b"\0\0" + short(exchange) + short(key) + bits(mandatory, immediate))


def declare_queue(
    channel: int,
    queue: str,
    durable: int = 0,
    exclusive: int = 0,
    auto_delete: int = 0,
    passive: int = 0,
    **args: Any,
) -> bytes:
    flags = bits(passive, durable, exclusive, auto_delete)
    return method(channel, 50, 10, b"\0\0" + short(queue) + flags + arguments(args))


def declare_exchange(
    channel: int,
    exchange: str,
    kind: str = "direct",
    durable: int = 0,
    auto_delete: int = 0,
    internal: int = 0,
    passive: int = 0,
    **args: Any,
) -> bytes:
    flags = bits(passive, durable, auto_delete, internal)
    return method(channel, 40, 10, b"\0\0" + short(exchange) + short(kind) + flags + arguments(args))


def bind(channel: int, queue: str, exchange: str, key: str = "", **args: Any) -> bytes:
    names = short(queue) + short(exchange) + short(key)
    return method(channel, 50, 20, b"\0\0" + names + b"\0" + arguments(args))


def bind_by(channel: int, queue: str, exchange: str, headers: Mapping[str, Any]) -> bytes:
    """Return a binding whose arguments are these, with their names as they are."""
    names = short(queue) + short(exchange) + short("")
    return method(channel, 50, 20, b"\0\0" + names + b"\0" + table(headers))


def unbind(channel: int, queue: str, exchange: str, key: str = "", **args: Any) -> bytes:
    return method(channel, 50, 50, b"\0\0" + short(queue) + short(exchange) + short(key) + arguments(args))


def bind_exchange(channel: int, destination: str, source: str, key: str) -> bytes:
    names = short(destination) + short(source) + short(key)
    return method(channel, 40, 30, b"\0\0" + names + b"\0" + table({}))


def unbind_exchange(channel: int, destination: str, source: str, key: str) -> bytes:
    names = short(destination) + short(source) + short(key)
    return method(channel, 40, 40, b"\0\0" + names + b"\0" + table({}))


def consume(
    channel: int,
    queue: str,
    tag: str = "",
    no_ack: int = 0,
    exclusive: int = 0,
    no_local: int = 0,
    **args: Any,
) -> bytes:
    flags = bits(no_local, no_ack, exclusive)
    return method(channel, 60, 20, b"\0\0" + short(queue) + short(tag) + flags + arguments(args))


def cancel(channel: int, tag: str) -> bytes:
    return method(channel, 60, 30, short(tag) + b"\0")


def get(channel: int, queue: str, no_ack: int = 0) -> bytes:
    return method(channel, 60, 70, b"\0\0" + short(queue) + bytes([no_ack]))


def ack(channel: int, tag: int, multiple: int = 0) -> bytes:
    return method(channel, 60, 80, struct.pack(">QB", tag, multiple))


def nack(channel: int, tag: int, multiple: int = 0, requeue: int = 1) -> bytes:
    return method(channel, 60, 120, struct.pack(">Q", tag) + bits(multiple, requeue))


def reject(channel: int, tag: int, requeue: int = 1) -> bytes:
    return method(channel, 60, 90, struct.pack(">QB", tag, requeue))


def recover(channel: int, requeue: int) -> bytes:
    return method(channel, 60, 110, bytes([requeue]))


def qos(channel: int, count: int, size: int = 0, is_global: int = 0) -> bytes:
    return method(channel, 60, 10, struct.pack(">IHB", size, count, is_global))


def delete_queue(channel: int, queue: str, if_unused: int = 0, if_empty: int = 0) -> bytes:
    return method(channel, 50, 40, b"\0\0" + short(queue) + bits(if_unused, if_empty))


def delete_exchange(channel: int, exchange: str, if_unused: int = 0) -> bytes:
    return method(channel, 40, 20, b"\0\0" + short(exchange) + bytes([if_unused]))


def purge(channel: int, queue: str) -> bytes:
    return method(channel, 50, 30, b"\0\0" + short(queue) + b"\0")


def open_channel(channel: int) -> bytes:
    return method(channel, 20, 10, b"\0")


def close_channel(channel: int) -> bytes:
    return method(channel, 20, 40, b"\0\xc8\0\0\0\0\0")


def select_confirms(channel: int) -> bytes:
    return method(channel, 85, 10, b"\0")


def select_tx(channel: int) -> bytes:
    return method(channel, 90, 10)


def commit(channel: int) -> bytes:
    return method(channel, 90, 20)


def rollback(channel: int) -> bytes:
    return method(channel, 90, 30)
