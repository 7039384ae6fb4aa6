"""A small raw client of AMQP 0-9-1 that shows brokers as they are: every octet is read by hand.

It uses nothing of the server, so that a mistake in the server's codec cannot hide itself.
"""

import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from .wire import (
    PROPERTIES,
    Properties,
    long,
    method,
    open_channel,
    short,
    table,
)

PROBE_CAPABILITIES = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "authentication_failure_close": True,
    "connection.blocked": True,
    "exchange_exchange_bindings": True,
}


NUMBERS = {
    "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I",
    "l": "q", "L": "q", "f": "f", "d": "d", "T": "Q", "t": "?",
}  # fmt: skip


def read_table(data: bytes, at: int = 0) -> tuple[dict[str, Any], int]:
    """Return a field table, with each value behind its type as text, and its end."""
    (length,) = struct.unpack_from(">I", data, at)
    at += 4
    end = at + length
    found: dict[str, Any] = {}
    while at < end:
        name = data[at + 1 : at + 1 + data[at]].decode()
        found[name], at = read_value(data, at + 1 + data[at])
    return found, end


def read_value(data: bytes, at: int) -> tuple[Any, int]:
    kind = chr(data[at])
    at += 1
    if kind in NUMBERS:
        shape = struct.Struct(">" + NUMBERS[kind])
        return f"{kind}:{shape.unpack_from(data, at)[0]}", at + shape.size
    if kind in "Sx":
        (length,) = struct.unpack_from(">I", data, at)
        return f"{kind}:{data[at + 4 : at + 4 + length].decode('latin1')}", at + 4 + length
    if kind == "F":
        return read_table(data, at)
    if kind == "V":
        return "V", at
    if kind == "D":
        return f"D:{data[at]},{struct.unpack_from('>I', data, at + 1)[0]}", at + 5
    if kind == "A":
        (length,) = struct.unpack_from(">I", data, at)
        at += 4
        end = at + length
        values = []
        while at < end:
            found, at = read_value(data, at)
            values.append(found)
        return values, at
    raise ValueError(kind)


def read_properties(data: bytes) -> dict[str, Any]:
    (flags,) = struct.unpack_from(">H", data)
    at = 2
    found: dict[str, Any] = {}
    for index, (name, kind) in enumerate(PROPERTIES.items()):
        if not flags & (0x8000 >> index):
            continue
        match kind:
            case "short":
                found[name] = data[at + 1 : at + 1 + data[at]].decode("latin1")
                at += 1 + data[at]
            case "table":
                found[name], at = read_table(data, at)
            case "octet":
                found[name] = data[at]
                at += 1
            case _:
                found[name] = struct.unpack_from(">Q", data, at)[0]
                at += 8
    return found


METHODS = {
    (10, 10): "start",
    (10, 30): "tune",
    (10, 41): "open-ok",
    (10, 50): "connection.close",
    (10, 51): "close-ok",
    (10, 71): "update-secret-ok",
    (20, 11): "channel.open-ok",
    (20, 20): "channel.flow",
    (20, 21): "flow-ok",
    (20, 40): "channel.close",
    (20, 41): "channel.close-ok",
    (30, 11): "access.request-ok",
    (40, 11): "exchange.declare-ok",
    (40, 21): "exchange.delete-ok",
    (40, 31): "exchange.bind-ok",
    (40, 51): "exchange.unbind-ok",
    (50, 11): "queue.declare-ok",
    (50, 21): "bind-ok",
    (50, 31): "purge-ok",
    (50, 41): "delete-ok",
    (50, 51): "unbind-ok",
    (60, 11): "qos-ok",
    (60, 21): "consume-ok",
    (60, 30): "basic.cancel",
    (60, 31): "cancel-ok",
    (60, 50): "return",
    (60, 60): "deliver",
    (60, 71): "get-ok",
    (60, 72): "get-empty",
    (60, 80): "ack",
    (60, 111): "recover-ok",
    (60, 120): "nack",
    (85, 11): "confirm-ok",
    (90, 11): "tx.select-ok",
    (90, 21): "commit-ok",
    (90, 31): "rollback-ok",
    (61500, 11): "put-ok",
    (61500, 21): "get-ok(direct)",
}


@dataclass(frozen=True)
class Reply:
    """A method that a broker sent, with its content if it has one."""

    name: str
    """The name of the method; `EOF` where the connection ended, and `nothing` where nothing came in time."""
    channel: int = 0
    args: bytes = b""
    properties: Properties = field(default_factory=dict)
    raw_properties: bytes = b""
    body: bytes = b""

    @property
    def tag(self) -> int:
        """The delivery tag of an ack, a nack or a get-ok; that of a deliver follows its consumer tag."""
        at = 1 + self.args[0] if self.name == "deliver" else 0
        return int(struct.unpack_from(">Q", self.args, at)[0])

    @property
    def text(self) -> str:
        """The short string at the beginning: a queue, or a consumer tag."""
        return self.args[1 : 1 + self.args[0]].decode()

    def told(self) -> str:
        """Return a description of the method by which two brokers can be compared."""
        match self.name:
            case "connection.close" | "channel.close":
                (code,) = struct.unpack_from(">H", self.args)
                text = self.args[3 : 3 + self.args[2]].decode("latin1")
                class_id, method_id = struct.unpack_from(">HH", self.args, 3 + self.args[2])
                return f"{self.name} {code} {text.split(' - ')[0]} ({class_id},{method_id})"
            case "return":
                (code,) = struct.unpack_from(">H", self.args)
                return f"return {code} {self.args[3 : 3 + self.args[2]].decode()}"
            case "ack" | "nack":
                return f"{self.name} tag={self.tag} bits={self.args[8]}"
            case "deliver":
                redelivered = self.args[1 + self.args[0] + 8]
                return f"deliver {self.tag} redelivered={redelivered} {self.body[:20]!r}"
            case "get-ok":
                (left,) = struct.unpack(">I", self.args[-4:])
                return f"get-ok {self.tag} redelivered={self.args[8]} left={left} {self.body[:20]!r}"
            case "queue.declare-ok":
                messages, consumers = struct.unpack_from(">II", self.args, 1 + self.args[0])
                return f"queue.declare-ok messages={messages} consumers={consumers}"
            case "purge-ok" | "delete-ok":
                return f"{self.name} {struct.unpack('>I', self.args)[0]}"
            case _:
                return self.name


PATIENCE = 60.0
"""Seconds after which what a broker should send, or do on its own time, must have come."""


class Client:
    """One connection to a broker."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.has_ended = False
        self.frame_max = 0
        self.start = self.tune = self.opened = Reply("nothing")
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shake_hands(
        self,
        user: str,
        secret: str,
        vhost: str = "/",
        heartbeat: int = 0,
        capabilities: Mapping[str, bool] | None = None,
        octets: bytes = b"AMQP\0\0\x09\x01",
        frame_max: int | None = None,
        channel_max: int | None = None,
        product: str = "probe",
    ) -> None:
        """Do everything up to Open; what the broker says is in `start`, `tune` and `opened`."""
        self.send(octets)
        self.start = self.wait()
        known = PROBE_CAPABILITIES if capabilities is None else capabilities
        client_properties = table({"product": product, "capabilities": dict(known)})
        response = b"\0" + user.encode() + b"\0" + secret.encode()
        self.send(method(0, 10, 11, client_properties + short("PLAIN") + long(response) + short("en_US")))
        self.tune = self.wait()
        if self.tune.name != "tune":
            return
        offered_channels, offered_frame, _ = self.tuned
        self.frame_max = frame_max or offered_frame
        channels = offered_channels if channel_max is None else channel_max
        self.send(
            method(0, 10, 31, struct.pack(">HIH", channels, self.frame_max, heartbeat)),
            method(0, 10, 40, short(vhost) + b"\0\0"),
        )
        self.opened = self.wait()

    @property
    def tuned(self) -> tuple[int, int, int]:
        """The broker's offer: the most channels, the longest frame, the seconds of a heartbeat."""
        channels, octets, seconds = struct.unpack(">HIH", self.tune.args)
        return channels, octets, seconds

    def send(self, *frames: bytes) -> None:
        try:
            self.socket.sendall(b"".join(frames))
        except OSError:
            self.has_ended = True

    def call(self, *frames: bytes) -> Reply:
        """Send, and return the next method."""
        self.send(*frames)
        return self.wait()

    def said(self, *steps: bytes) -> str:
        """Send these one after another, and tell what the broker answered to each."""
        return " | ".join(self.call(step).told() for step in steps)

    def open(self, channel: int = 1) -> Reply:
        return self.call(open_channel(channel))

    def frame(self, seconds: float | None = None) -> bytes | None:
        """Return the next frame; None if none came in time, or the connection ended."""
        deadline = time.monotonic() + (PATIENCE if seconds is None else seconds)
        while True:
            if len(self._received) >= 7:
                size = struct.unpack_from(">I", self._received, 3)[0] + 8
                if len(self._received) >= size:
                    found, self._received = self._received[:size], self._received[size:]
                    return found
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                return None
            except OSError:
                data = b""
            if not data:
                self.has_ended = True
                return None
            self._received += data

    def wait(self, seconds: float | None = None) -> Reply:
        """Return the next method, with its content; heartbeats are passed over."""
        while True:
            found = self.frame(seconds)
            if found is None:
                return Reply("EOF" if self.has_ended else "nothing")
            if found[0] == 8:
                continue
            channel, _, class_id, method_id = struct.unpack_from(">HIHH", found, 1)
            name = METHODS.get((class_id, method_id), str((class_id, method_id)))
            args = found[11:-1]
            if name not in ("deliver", "get-ok", "return"):
                return Reply(name, channel, args)
            content_header = self.frame()
            assert content_header is not None, "a content without its header"
            (size,) = struct.unpack_from(">Q", content_header, 11)
            raw = content_header[19:-1]
            parts: list[bytes] = []
            while size > 0:
                part = self.frame()
                assert part is not None, "a content without all of its body"
                parts.append(part[7:-1])
                size -= len(part) - 8
            return Reply(name, channel, args, read_properties(raw), raw, b"".join(parts))

    def deliveries(self, count: int = 0, quiet: float = 0.6) -> list[Reply]:
        """Return all messages that are delivered until something else comes, or nothing for `quiet` seconds.

        The first `count` may take as long as they want.
        """
        found: list[Reply] = []
        while (reply := self.wait(None if len(found) < count else quiet)).name == "deliver":
            found.append(reply)
        return found

    def bodies(self, count: int = 0, quiet: float = 0.6) -> list[bytes]:
        """Return the bodies of `deliveries`."""
        return [reply.body for reply in self.deliveries(count, quiet)]

    def close(self) -> None:
        self.socket.close()


def until(awaited: str, ask: Callable[[], Reply]) -> Reply:
    """Ask again and again until the answer, as it is told, begins with what is awaited.

    If it never does, the last answer is returned, so that the comparison shows it. The question must change
    nothing as long as the answer is another one.
    """
    deadline = time.monotonic() + PATIENCE
    while not (reply := ask()).told().startswith(awaited) and time.monotonic() < deadline:
        time.sleep(0.02)  # between two questions: brokers do not tell when they have done it
    return reply
