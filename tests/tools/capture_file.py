"""Writes captures: the octets of connections become TCP segments in a file that Wireshark reads.

So a test needs no right to capture, and decides where each segment ends.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from pathlib import Path
from random import Random
from struct import Struct

SERVER_PORT = 7730
_FIRST_CLIENT_PORT = 40_000

_FILE_HEADER = Struct("<IHHiIII")
_PACKET_HEADER = Struct("<IIII")
_IP_HEADER = Struct(">BBHHHBBH4s4s")
_TCP_HEADER = Struct(">HHIIBBHHH")
_MAGIC = 0xA1B2C3D4
_RAW_IP = 101
_LONGEST_PACKET = 262_144
_LONGEST_SEGMENT = 65_000  # the length of an IP packet has 16 bits
_FIN, _SYN, _PUSH, _ACK = 1, 2, 8, 16
_HOST = bytes((127, 0, 0, 1))


class Endpoint(Enum):
    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> "Endpoint":
        return Endpoint.SERVER if self is Endpoint.CLIENT else Endpoint.CLIENT


@dataclass(frozen=True)
class SentOctets:
    """The octets that one side of a connection sent at once; none if it said that no more will come."""

    connection: int
    side: Endpoint
    octets: bytes


@dataclass(frozen=True)
class Packet:
    """An IP packet, and of how many octets it was when there were more."""

    octets: bytes
    original: int | None = None

    def cut(self, longest: int) -> "Packet":
        """Return the packet as a capture with a snapshot length has it."""
        return Packet(self.octets[:longest], len(self.octets))


@dataclass
class _Stream:
    """One TCP connection: the next sequence number of each side."""

    number: int
    sequence: dict[Endpoint, int] = field(
        default_factory=lambda: {Endpoint.CLIENT: 1000, Endpoint.SERVER: 5000}
    )

    def packet(self, side: Endpoint, flags: int, octets: bytes = b"") -> Packet:
        ports = {Endpoint.CLIENT: _FIRST_CLIENT_PORT + self.number, Endpoint.SERVER: SERVER_PORT}
        sequence, acknowledged = self.sequence[side], self.sequence[side.other]
        self.sequence[side] = (sequence + len(octets) + bool(flags & (_FIN | _SYN))) % 2**32
        header = _TCP_HEADER.pack(
            ports[side],
            ports[side.other],
            sequence,
            acknowledged if flags & _ACK else 0,
            5 << 4,
            flags,
            65_535,
            0,
            0,
        )
        length = _IP_HEADER.size + len(header) + len(octets)
        return Packet(_IP_HEADER.pack(0x45, 0, length, 0, 0x4000, 64, 6, 0, _HOST, _HOST) + header + octets)

    def opening(self) -> Iterator[Packet]:
        yield self.packet(Endpoint.CLIENT, _SYN)
        yield self.packet(Endpoint.SERVER, _SYN | _ACK)
        yield self.packet(Endpoint.CLIENT, _ACK)


Cut = Callable[[bytes], Iterable[bytes]]
"""Cuts the octets that one side says in a row into segments."""


def whole(octets: bytes) -> Iterable[bytes]:
    """Use as few segments as possible."""
    return every(_LONGEST_SEGMENT)(octets)


def every(size: int) -> Cut:
    """Use segments of this size."""

    def cut(octets: bytes) -> Iterator[bytes]:
        for start in range(0, len(octets), size):
            yield octets[start : start + size]

    return cut


def ragged(seed: int) -> Cut:
    """Use segments of 1 to 40 octets."""
    random = Random(seed)

    def cut(octets: bytes) -> Iterator[bytes]:
        start = 0
        while start < len(octets):
            end = start + random.randint(1, 40)
            yield octets[start:end]
            start = end

    return cut


def packets(said: Iterable[SentOctets], cut: Cut = whole, first: int = 1000) -> list[Packet]:
    """Return the packets of these connections. Octets that a side sends without interruption are segmented
    again.

    `first` is the sequence number with which each client begins.
    """
    streams: dict[int, _Stream] = {}
    made: list[Packet] = []
    for (connection, side), run in groupby(said, lambda part: (part.connection, part.side)):
        if connection not in streams:
            streams[connection] = _Stream(connection)
            streams[connection].sequence[Endpoint.CLIENT] = first
            made += streams[connection].opening()
        stream = streams[connection]
        parts = list(run)
        made += [
            stream.packet(side, _PUSH | _ACK, octets)
            for octets in cut(b"".join(part.octets for part in parts))
        ]
        if not parts[-1].octets:
            made.append(stream.packet(side, _FIN | _ACK))
    return made


def write(path: Path, captured: Iterable[Packet]) -> Path:
    """Return a capture file with these packets, a microsecond apart."""
    with path.open("wb") as file:
        file.write(_FILE_HEADER.pack(_MAGIC, 2, 4, 0, 0, _LONGEST_PACKET, _RAW_IP))
        for number, packet in enumerate(captured):
            octets = packet.octets
            original = len(octets) if packet.original is None else packet.original
            seconds, microseconds = divmod(number, 1_000_000)
            file.write(
                _PACKET_HEADER.pack(1_700_000_000 + seconds, microseconds, len(octets), original) + octets
            )
    return path
