"""A client of AMQP 0-9-1 on a raw socket, for any broker. Shares no code with the server that it measures."""

import socket
import struct
from collections.abc import Mapping

from systems import SOCKET_SECONDS
from workers import BenchFailure

_FRAME = struct.Struct(">BHI")
_IDS = struct.Struct(">HH")
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_OVERHEAD = 8

CHANNEL = 1
TAG = b"c"
"""The tag of every consumer."""

PERSISTENT = b"\x10\x00\x02"
TRANSIENT = b"\x00\x00"
"""Property flags and properties of messages."""

ACK = struct.Struct(">BHIHHQBB")
"""The frame of Basic.Ack, in both directions."""

ACK_IDS = (60, 80)


def short(octets: bytes) -> bytes:
    return bytes((len(octets),)) + octets


def table(entries: Mapping[str, str | bool | Mapping[str, bool]]) -> bytes:
    """Return a field table of texts, flags and tables of flags."""
    parts = []
    for name, value in entries.items():
        parts.append(short(name.encode()))
        match value:
            case bool():
                parts.append(b"t%c" % value)
            case str():
                parts.append(b"S" + struct.pack(">I", len(value)) + value.encode())
            case _:
                parts.append(b"F" + table(dict(value)))
    octets = b"".join(parts)
    return struct.pack(">I", len(octets)) + octets


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    return frame(_METHOD, channel, _IDS.pack(class_id, method_id) + arguments)


def publish(exchange: bytes, key: bytes, body: bytes, properties: bytes) -> bytes:
    """Return the frames of one message, whose body fits into one frame."""
    return b"".join(
        (
            method(60, 40, b"\0\0" + short(exchange) + short(key) + b"\0"),
            frame(_HEADER, CHANNEL, struct.pack(">HHQ", 60, 0, len(body)) + properties),
            frame(_BODY, CHANNEL, body) if body else b"",
        )
    )


def ack(tag: int, *, multiple: bool) -> bytes:
    return ACK.pack(_METHOD, CHANNEL, ACK.size - _OVERHEAD, *ACK_IDS, tag, multiple, 0xCE)


class Connection:
    """A connection with one open channel."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SOCKET_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        """Octets that were received and belong to no answer yet."""
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect(10, 10)
        properties = table(
            {"product": "bench", "capabilities": {"publisher_confirms": True, "basic.nack": True}}
        )
        response = b"\0guest\0guest"
        login = short(b"PLAIN") + struct.pack(">I", len(response)) + response + short(b"en_US")
        self.call(method(10, 11, properties + login, 0), 10, 30)
        tuned = method(10, 31, struct.pack(">HIH", 2047, 131072, 0), 0)
        self.call(tuned + method(10, 40, short(b"/") + b"\0\0", 0), 10, 41)
        self.call(method(20, 10, b"\0"), 20, 11)

    def close(self) -> None:
        """Close the connection in order: a broker keeps exclusive queues of others for a while."""
        self.socket.sendall(method(10, 50, struct.pack(">H", 200) + b"\0" + bytes(4), 0))
        self._expect(10, 51)
        self.socket.close()

    def call(self, octets: bytes, class_id: int, method_id: int) -> bytes:
        """Send octets, and return the arguments of the answer."""
        self.socket.sendall(octets)
        return self._expect(class_id, method_id)

    def next_frame(self) -> bytes:
        """Return the next frame that is no heartbeat."""
        while True:
            if len(self.rest) >= _FRAME.size:
                kind, _, size = _FRAME.unpack_from(self.rest)
                if len(self.rest) >= size + _OVERHEAD:
                    found, self.rest = self.rest[: size + _OVERHEAD], self.rest[size + _OVERHEAD :]
                    if kind != _HEARTBEAT:
                        return found
                    continue
            try:
                received = self.socket.recv(65536)
            except TimeoutError:
                raise BenchFailure("the broker did not answer") from None
            if not received:
                raise BenchFailure("the broker closed the connection")
            self.rest += received

    def _expect(self, class_id: int, method_id: int) -> bytes:
        octets = self.next_frame()
        found = _IDS.unpack_from(octets, _FRAME.size)
        if found != (class_id, method_id):
            raise BenchFailure(
                f"the broker answered {octets[:200]!r} instead of method {class_id}.{method_id}"
            )
        return octets[_FRAME.size + _IDS.size : -1]

    # -- for the cases -------------------------------------------------------------------------------------

    def declare_queue(self, name: bytes, *, durable: bool, kind: str) -> None:
        arguments = table({} if kind == "classic" else {"x-queue-type": kind})
        flags = b"\x02" if durable else b"\0"
        self.call(method(50, 10, b"\0\0" + short(name) + flags + arguments), 50, 11)

    def declare_exchange(self, name: bytes, kind: bytes) -> None:
        arguments = b"\0\0" + short(name) + short(kind) + b"\0" + table({})
        self.call(method(40, 10, arguments), 40, 11)

    def bind(self, queue: bytes, exchange: bytes, key: bytes) -> None:
        arguments = b"\0\0" + short(queue) + short(exchange) + short(key) + b"\0" + table({})
        self.call(method(50, 20, arguments), 50, 21)

    def consume(self, queue: bytes, *, prefetch: int, no_ack: bool, is_stream: bool) -> None:
        if prefetch:
            self.call(method(60, 10, struct.pack(">IHB", 0, prefetch, 0)), 60, 11)
        arguments = table({"x-stream-offset": "next"} if is_stream else {})
        flags = b"\x02" if no_ack else b"\0"
        self.call(method(60, 20, b"\0\0" + short(queue) + short(TAG) + flags + arguments), 60, 21)

    def delete_queue(self, name: bytes) -> None:
        self.call(method(50, 40, b"\0\0" + short(name) + b"\0"), 50, 41)

    def delete_exchange(self, name: bytes) -> None:
        self.call(method(40, 20, b"\0\0" + short(name) + b"\0"), 40, 21)

    def confirm(self) -> None:
        """Send Confirm.Select."""
        self.call(method(85, 10, b"\0"), 85, 11)

    def first_delivery(self) -> int:
        """Wait for a delivery whose body is in one frame, and return its size, but leave it in `rest`.

        All deliveries of a case are equally long; how long depends on the headers that a broker adds.
        """
        size: int = 0
        while True:
            if len(self.rest) - size >= _FRAME.size:
                kind, _, length = _FRAME.unpack_from(self.rest, size)
                size += int(length) + _OVERHEAD
                if kind == _BODY:
                    return size
                continue
            received = self.socket.recv(65536)
            if not received:
                raise BenchFailure("the broker closed the connection")
            self.rest += received
