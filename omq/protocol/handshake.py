"""The first eight octets of a connection, which identify its protocol, and the octets that answer them.

One port serves every protocol, since each begins with different octets. The types here are the rows of the
table in docs/PROTOCOL.md, "The first eight octets"; the server decides which of them it serves.
"""

import re
from struct import Struct

import msgspec

VERSION_ONE = 1
"""The one version of the omq protocol."""

LENGTH = 8
"""The number of octets that identify a protocol."""

_VERSION = Struct(">q")

AMQP = b"AMQP"
DMP_HEADER = AMQP + b"\x0a\x01\x00\x01"
"""The first octets of a DMP client, and the answer to one of another version."""

_AMQP_0_9 = (AMQP + b"\x00\x00\x09\x01", AMQP + b"\x01\x01\x00\x09")
_AMQP_1_0 = (AMQP + b"\x00\x01\x00\x00", AMQP + b"\x03\x01\x00\x00")
_TLS_HANDSHAKE = b"\x16\x03"
_HTTP_METHODS = (
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
)


class Omq(msgspec.Struct, frozen=True):
    """An omq client of a supported version."""

    version: int


class Dmp(msgspec.Struct, frozen=True):
    """The Direct Message Protocol."""


class Amqp0_9(msgspec.Struct, frozen=True):
    """AMQP 0-9 or 0-9-1; `header` is the eight octets that identify which."""

    header: bytes


class Amqp1_0(msgspec.Struct, frozen=True):
    """AMQP 1.0 or its SASL layer; `header` is the eight octets that identify which."""

    header: bytes


class OtherAmqp(msgspec.Struct, frozen=True):
    """An unsupported version of AMQP."""

    header: bytes


class Tls(msgspec.Struct, frozen=True):
    """The start of a TLS handshake; the eight octets belong to it and must not be dropped."""


class Http(msgspec.Struct, frozen=True):
    """HTTP/1.1; the eight octets belong to the first request and must not be dropped."""

    octets: bytes


class UnknownVersion(msgspec.Struct, frozen=True):
    """An omq client of an unsupported version, or any other client: all octets are some number."""

    version: int


Protocol = Omq | Dmp | Amqp0_9 | Amqp1_0 | OtherAmqp | Tls | Http | UnknownVersion


def recognise(octets: bytes) -> Protocol:
    """Identify the protocol of a connection from its first eight octets.

    Raises `ValueError` for another number of octets.
    """
    if len(octets) != LENGTH:
        raise ValueError(f"a handshake has {LENGTH} octets, not {len(octets)}")
    if octets.startswith(AMQP):
        if octets == DMP_HEADER:
            return Dmp()
        if octets in _AMQP_0_9:
            return Amqp0_9(octets)
        if octets in _AMQP_1_0:
            return Amqp1_0(octets)
        return OtherAmqp(octets)
    if octets.startswith(_TLS_HANDSHAKE):
        return Tls()
    if octets.startswith(_HTTP_METHODS):
        return Http(octets)
    version: int = _VERSION.unpack(octets)[0]
    if version == VERSION_ONE:
        return Omq(version)
    return UnknownVersion(version)


_STRANGERS = (
    *((method, "HTTP") for method in _HTTP_METHODS),
    (b"PRI * HT", "HTTP/2"),
    (b"SSH-", "SSH"),
    (_TLS_HANDSHAKE, "TLS"),
    (b"AMQP\x00\x00\x09\x01", "AMQP 0-9-1"),
    (b"AMQP\x01\x01\x00\x09", "AMQP 0-9"),
    (b"AMQP\x01\x01\x00\x0a", "AMQP 0-10"),
    (b"AMQP\x01\x01\x08\x00", "AMQP 0-8"),
    (b"AMQP\x00\x01\x00\x00", "AMQP 1.0"),
    (b"AMQP\x02\x01\x00\x00", "AMQP 1.0 with TLS"),
    (b"AMQP\x03\x01\x00\x00", "AMQP 1.0 with SASL"),
    (AMQP, "AMQP"),
    (b"*1\r\n$", "Redis"),
)
_MQTT = re.compile(rb"\x10[\x00-\xff]{1,2}\x00(?:\x04MQT|\x06MQI)")
_VERSIONS_TO_COME = 1 << 16


def shown(octets: bytes) -> str:
    """Return the beginning of a connection, for the log: the octets, and the protocol's name where it is
    known.
    """
    head = octets[:LENGTH]
    text = "".join(chr(octet) if 0x20 <= octet < 0x7F else "." for octet in head)
    name = _name_of(head)
    return f"{head.hex(' ')} ({text})" + (f", which is {name}" if name else "")


def _name_of(head: bytes) -> str | None:
    for beginning, name in _STRANGERS:
        if head.startswith(beginning):
            return name
    if _MQTT.match(head):  # after its first octet a length of one or two
        return "MQTT"
    if len(head) == LENGTH and 0 < int.from_bytes(head, "big") < _VERSIONS_TO_COME:
        return f"omq of version {int.from_bytes(head, 'big')}"
    return None


def hello(version: int = VERSION_ONE) -> bytes:
    """Return the client's first octets, and the answer of a server that accepts: a signed 64-bit version."""
    return _VERSION.pack(version)


ACCEPTED = hello(VERSION_ONE)
"""The answer to `Omq(1)`: the same number."""

REFUSED = _VERSION.pack(-1)
"""The answer to `UnknownVersion`: -1; then both sides close (docs/PROTOCOL.md, "The first eight octets")."""


def answer_to_other(other: OtherAmqp) -> bytes:
    """Return the answer to `OtherAmqp`: the header of the supported version, of DMP or else of AMQP 0-9-1;
    then the server closes.
    """
    is_dmp = other.header[len(AMQP)] == DMP_HEADER[len(AMQP)]
    return DMP_HEADER if is_dmp else _AMQP_0_9[0]
