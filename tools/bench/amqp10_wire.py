"""A client of AMQP 1.0 on a raw socket, for any server. Shares no code with the server that it measures."""

import socket
import struct
from typing import Any

from systems import RECEIVE_OCTETS, SOCKET_SECONDS
from workers import BenchFailure

_HEADER = b"AMQP\x00\x01\x00\x00"
_FRAME = struct.Struct(">IBBH")
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16
_ACCEPTED = b"\x00\x53\x24\x45"
_NULL, _TRUE, _FALSE = b"\x40", b"\x41", b"\x42"
_SIZES = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
"""The octets of a value of fixed width, by the first half of its constructor."""


def uint(value: int) -> bytes:
    return b"\x70" + struct.pack(">I", value)


def text(value: str) -> bytes:
    return b"\xa1%c%s" % (len(value.encode()), value.encode())


def described(code: int, *fields: bytes) -> bytes:
    body = b"".join(fields)
    return b"\x00\x53%c\xd0%s%s%s" % (
        code, struct.pack(">I", len(body) + 4), struct.pack(">I", len(fields)), body,
    )  # fmt: skip


def frame(code: int, *fields: bytes, payload: bytes = b"") -> bytes:
    performative = described(code, *fields)
    return _FRAME.pack(_FRAME.size + len(performative) + len(payload), 2, 0, 0) + performative + payload


def message(body: bytes, reply_to: str | None = None) -> bytes:
    """Return a message of one data section, and perhaps properties that say where to answer."""
    properties = b""
    if reply_to is not None:
        properties = described(0x73, _NULL, _NULL, _NULL, _NULL, text(reply_to))
    return properties + b"\x00\x53\x75\xb0" + struct.pack(">I", len(body)) + body


def transfer(handle: int, delivery: int, payload: bytes, *, settled: bool, more: bool = False) -> bytes:
    tag = b"\xa0\x04" + struct.pack(">I", delivery)
    return frame(
        TRANSFER, uint(handle), uint(delivery), tag, uint(0), _flag(settled), _flag(more), payload=payload
    )


def _flag(value: bool) -> bytes:
    return _TRUE if value else _FALSE


class Client:
    """A connection with one session."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SOCKET_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._said: list[tuple[int, list[Any], bytes]] = []
        """The frames that arrived and were not asked for yet."""
        self.incoming = 0
        """Transfers that arrived."""
        self._outgoing = 0
        self.send(_HEADER + frame(OPEN, text("bench"), text("127.0.0.1"), uint(65536)))
        self.send(frame(BEGIN, _NULL, uint(0), uint(1 << 30), uint(1 << 30)))
        while len(self._received) < len(_HEADER):
            self._receive()
        self._received = self._received[len(_HEADER) :]
        self._window: int = self.until(BEGIN)[0][2]
        """The number of the transfer that the server does not take yet."""

    def close(self) -> None:
        self.socket.close()

    def send(self, octets: bytes) -> None:
        self.socket.sendall(octets)

    def attach_sender(self, handle: int, address: str) -> None:
        terminus = described(0x29, text(address))
        self._attach(handle, _FALSE, described(0x28, text(address)), terminus, _NULL, _FALSE, uint(0))

    def attach_receiver(self, handle: int, address: str | None) -> str:
        """Attach a link on which the server sends; return its address, which the server chooses for None."""
        terminus = described(0x28, text(address)) if address is not None else _DYNAMIC
        fields = self._attach(handle, _TRUE, terminus, described(0x29, text("here")))
        source = fields[5]
        return str(source[0])

    def _attach(self, handle: int, role: bytes, source: bytes, target: bytes, *rest: bytes) -> list[Any]:
        name = text(f"bench-{handle}-{self.socket.getsockname()[1]}")
        self.send(frame(ATTACH, name, uint(handle), role, b"\x50\x02", _NULL, source, target, *rest))
        return self.until(ATTACH)[0]

    def grant(self, handle: int, count: int, credit: int) -> None:
        """State the credit of a link of which N (`count`) messages arrived."""
        self.send(
            frame(
                FLOW, uint(self.incoming), uint(1 << 30), uint(self._outgoing), uint(1 << 30),
                uint(handle), uint(count), uint(credit),
            )
        )  # fmt: skip

    def transfers(self, handle: int, first: int, count: int, payload: bytes, *, settled: bool) -> None:
        """Send the same message N (`count`) times."""
        self._outgoing += count
        self.send(b"".join(transfer(handle, first + n, payload, settled=settled) for n in range(count)))

    def long_transfer(self, handle: int, delivery: int, payload: bytes, octets: int) -> None:
        """Send a long message in transfers of N (`octets`), as the window of the session allows."""
        for begin in range(0, len(payload), octets):
            while self._outgoing >= self._window:
                (expected, window, *_), _ = self.until(FLOW)
                self._window = (expected or 0) + window
            part, is_last = payload[begin : begin + octets], begin + octets >= len(payload)
            self.send(transfer(handle, delivery, part, settled=False, more=not is_last))
            self._outgoing += 1

    def accept(self, first: int, last: int) -> None:
        self.send(frame(DISPOSITION, _TRUE, uint(first), uint(last), _TRUE, _ACCEPTED))

    def until(self, *codes: int) -> tuple[list[Any], bytes]:
        """Return the server's next performative with one of these codes; the rest is dropped."""
        while True:
            code, fields, payload = self.next()
            if code in codes:
                return fields, payload

    def next(self) -> tuple[int, list[Any], bytes]:
        """Return the code, fields and payload of the next frame."""
        while not self._said:
            if self._frames():
                continue
            self._receive()
        said = self._said.pop(0)
        if said[0] == TRANSFER:
            self.incoming += 1
        return said

    def _receive(self) -> None:
        try:
            octets = self.socket.recv(RECEIVE_OCTETS)
        except TimeoutError:
            raise BenchFailure("the server did not answer") from None
        if not octets:
            raise BenchFailure("the server closed the connection")
        self._received += octets

    def _frames(self) -> bool:
        octets, at = self._received, 0
        while len(octets) - at >= _FRAME.size:
            size, offset, _, _ = _FRAME.unpack_from(octets, at)
            if len(octets) - at < size:
                break
            if size > offset * 4:
                (code, fields), payload_at = _value(octets, at + offset * 4)
                self._said.append((code, fields, octets[payload_at : at + size]))
            at += size
        self._received = octets[at:]
        return bool(self._said)


_DYNAMIC = described(0x28, _NULL, _NULL, _NULL, _NULL, _TRUE)


def _value(octets: bytes, at: int) -> tuple[Any, int]:
    """Read a value of a type that the cases use: numbers, strings, lists and described values."""
    kind = octets[at]
    if kind == 0:
        code, at = _value(octets, at + 1)
        inner, at = _value(octets, at)
        return ((code, inner) if code in range(0x10, 0x19) else inner), at
    if kind == 0x45:
        return [], at + 1
    width = kind >> 4
    if width in _SIZES:
        size = _SIZES[width]
        number = int.from_bytes(octets[at + 1 : at + 1 + size])
        return (kind == 0x41 if kind in (0x41, 0x42) else None if kind == 0x40 else number), at + 1 + size
    wide = 4 if width in (0xB, 0xD, 0xF) else 1
    size = int.from_bytes(octets[at + 1 : at + 1 + wide])
    begin = at + 1 + wide
    if width in (0xA, 0xB):
        content = octets[begin : begin + size]
        return (content.decode() if kind & 15 in (1, 3) else content), begin + size
    if kind in (0xC0, 0xD0):
        count = int.from_bytes(octets[begin : begin + wide])
        values, inner_at = [], begin + wide
        for _ in range(count):
            value, inner_at = _value(octets, inner_at)
            values.append(value)
        return values, begin + size
    return None, begin + size
