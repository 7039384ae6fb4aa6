"""The load generators without a server between them, to measure their own speed."""

import socket
from collections.abc import Sequence
from pathlib import Path

from systems import Kind, Publisher, Sink, System, Taken
from workers import BenchFailure


class NoServer(System):
    """The publisher is connected to the subscriber directly; its messages have the size of omq's frames."""

    name = "none"
    stray_octets = 1 << 62

    def __init__(self) -> None:
        super().__init__()
        self._listener: socket.socket | None = None

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return "the generators without a server"

    def guarantee(self, kind: Kind) -> str:
        return "publisher connected to subscriber, no server"

    def lacks(self, case: str) -> str | None:
        return None if case == "live-1-1" else "one publisher and one subscriber only"

    def start(self, directory: Path, kind: Kind) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def cpu_seconds(self) -> float:
        return 0.0

    def declare(self, kind: Kind, topics: Sequence[bytes]) -> None:
        pass

    def encode(self, kind: Kind, topic: bytes, body: bytes) -> bytes:
        return b"-" * 17 + body

    def publisher(self, kind: Kind, topic: bytes, place: int = 0) -> Publisher:
        return Publisher(self.connect_socket())

    def acknowledge(self, connected: socket.socket, topic: bytes, data: bytes) -> Taken:
        raise BenchFailure("there is no server to acknowledge messages to")

    def unacknowledged(self, topic: bytes) -> int:
        raise BenchFailure("there is no server to ask")

    def idle(self) -> socket.socket:
        raise BenchFailure("there is no server to connect to")

    def subscribe(self, kind: Kind, topics: Sequence[bytes]) -> socket.socket:
        assert self._listener is not None
        connected, _ = self._listener.accept()
        return connected

    def held(self, topic: bytes) -> int:
        raise BenchFailure("there is no server to hold anything")

    def delivered(self, kind: Kind, topic: bytes, body: bytes, number: int) -> bytes:
        return self.encode(kind, topic, body)

    def replay(self, topic: bytes, count: int, last: bytes, sink: Sink | None) -> tuple[int, int]:
        raise BenchFailure("there is no server to replay from")

    def decode(self, kind: Kind, data: bytes) -> tuple[list[bytes], int]:
        raise BenchFailure("there is no server to read from")
