"""The performatives of AMQP 1.0, the commands of its peers: from octets and to octets.

Each is a composite type (`omq.protocol.amqp_1_0.composites`). Fields that the server only passes on, or looks
at later, stay octets.
Source: AMQP 1.0, part 2, section 2.7, "Performatives"; part 5, section 5.3.3, "SASL Frame".
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from omq.protocol.amqp_1_0 import decoding, encoding
from omq.protocol.amqp_1_0.composites import (
    BY_TYPE,
    BinaryField,
    BooleanField,
    EncodedField,
    StringField,
    SymbolField,
    SymbolsField,
    UByteField,
    UIntField,
    ULongField,
    UShortField,
    composite,
    layout_at,
    made_of,
    written,
)
from omq.protocol.amqp_1_0.types import NULL, DecodeError
from omq_storage import codec

MOST_UINT = 2**32 - 1


# -- open and close (sections 2.7.1 and 2.7.9) ---------------------------------------------------------------


@composite(0x10, "open")
@dataclass(frozen=True, slots=True)
class Open:
    """Negotiates a connection. `idle_time_out` is in milliseconds."""

    CODE: ClassVar[int]
    container_id: StringField
    hostname: StringField | None = None
    max_frame_size: UIntField = MOST_UINT
    channel_max: UShortField = 65535
    idle_time_out: UIntField | None = None
    outgoing_locales: EncodedField = NULL
    incoming_locales: EncodedField = NULL
    offered_capabilities: SymbolsField = ()
    desired_capabilities: SymbolsField = ()
    properties: EncodedField = NULL


@composite(0x18, "close")
@dataclass(frozen=True, slots=True)
class Close:
    """Ends a connection, with an Error or null."""

    CODE: ClassVar[int]
    error: EncodedField = NULL


# -- begin, flow and end (sections 2.7.2, 2.7.4 and 2.7.8) ---------------------------------------------------


@composite(0x11, "begin")
@dataclass(frozen=True, slots=True)
class Begin:
    """Begins a session on the channel of its frame."""

    CODE: ClassVar[int]
    remote_channel: UShortField | None
    next_outgoing_id: UIntField
    incoming_window: UIntField
    outgoing_window: UIntField
    handle_max: UIntField = MOST_UINT
    offered_capabilities: SymbolsField = ()
    desired_capabilities: SymbolsField = ()
    properties: EncodedField = NULL


@composite(0x13, "flow")
@dataclass(frozen=True, slots=True)
class Flow:
    """States the windows of a session, and, with a handle, the credit of a link."""

    CODE: ClassVar[int]
    next_incoming_id: UIntField | None
    incoming_window: UIntField
    next_outgoing_id: UIntField
    outgoing_window: UIntField
    handle: UIntField | None = None
    delivery_count: UIntField | None = None
    link_credit: UIntField | None = None
    available: UIntField | None = None
    drain: BooleanField = False
    echo: BooleanField = False
    properties: EncodedField = NULL


@composite(0x17, "end")
@dataclass(frozen=True, slots=True)
class End:
    """Ends a session, with an Error or null."""

    CODE: ClassVar[int]
    error: EncodedField = NULL


# -- attach and detach (sections 2.7.3 and 2.7.7) ------------------------------------------------------------


@composite(0x12, "attach")
@dataclass(frozen=True, slots=True)
class Attach:
    """Attaches a link to a session. `role` is that of the peer that says it: True is receiver."""

    CODE: ClassVar[int]
    name: StringField
    handle: UIntField
    role: BooleanField
    snd_settle_mode: UByteField = 2
    rcv_settle_mode: UByteField = 0
    source: EncodedField = NULL
    target: EncodedField = NULL
    unsettled: EncodedField = NULL
    incomplete_unsettled: BooleanField = False
    initial_delivery_count: UIntField | None = None
    max_message_size: ULongField | None = None
    offered_capabilities: SymbolsField = ()
    desired_capabilities: SymbolsField = ()
    properties: EncodedField = NULL


@composite(0x16, "detach")
@dataclass(frozen=True, slots=True)
class Detach:
    """Detaches a link, and closes it if it says so."""

    CODE: ClassVar[int]
    handle: UIntField
    closed: BooleanField = False
    error: EncodedField = NULL


# -- transfer and disposition (sections 2.7.5 and 2.7.6) -----------------------------------------------------


@composite(0x14, "transfer")
@dataclass(frozen=True, slots=True)
class Transfer:
    """Carries a message, or a part of one, in the payload of its frame."""

    CODE: ClassVar[int]
    handle: UIntField
    delivery_id: UIntField | None = None
    delivery_tag: BinaryField | None = None
    message_format: UIntField | None = None
    settled: BooleanField | None = None
    more: BooleanField = False
    rcv_settle_mode: UByteField | None = None
    state: EncodedField = NULL
    resume: BooleanField = False
    aborted: BooleanField = False
    batchable: BooleanField = False


@composite(0x15, "disposition")
@dataclass(frozen=True, slots=True)
class Disposition:
    """States the outcome of deliveries `first` to `last`. `role` is that of the peer that says it."""

    CODE: ClassVar[int]
    role: BooleanField
    first: UIntField
    last: UIntField | None = None
    settled: BooleanField = False
    state: EncodedField = NULL
    batchable: BooleanField = False


# -- SASL (part 5, section 5.3.3) ----------------------------------------------------------------------------


@composite(0x40, "sasl-mechanisms")
@dataclass(frozen=True, slots=True)
class SaslMechanisms:
    """The mechanisms that the server offers."""

    CODE: ClassVar[int]
    sasl_server_mechanisms: SymbolsField


@composite(0x41, "sasl-init")
@dataclass(frozen=True, slots=True)
class SaslInit:
    """The mechanism that the client chose."""

    CODE: ClassVar[int]
    mechanism: SymbolField
    initial_response: BinaryField | None = None
    hostname: StringField | None = None


@composite(0x42, "sasl-challenge")
@dataclass(frozen=True, slots=True)
class SaslChallenge:
    """A challenge of the mechanism."""

    CODE: ClassVar[int]
    challenge: BinaryField


@composite(0x43, "sasl-response")
@dataclass(frozen=True, slots=True)
class SaslResponse:
    """The response to a challenge."""

    CODE: ClassVar[int]
    response: BinaryField


@composite(0x44, "sasl-outcome")
@dataclass(frozen=True, slots=True)
class SaslOutcome:
    """0 for success; 1 when the credentials are wrong."""

    CODE: ClassVar[int]
    code: UByteField
    additional_data: BinaryField | None = None


# -- the values of fields -----------------------------------------------------------------------------------


@composite(0x1D, "error")
@dataclass(frozen=True, slots=True)
class Error:
    """The reason why a link, a session or a connection ended (section 2.8.14)."""

    CODE: ClassVar[int]
    condition: SymbolField
    description: StringField | None = None
    info: EncodedField = NULL


@composite(0x28, "source")
@dataclass(frozen=True, slots=True)
class Source:
    """The node that the messages of a link come from (part 3, section 3.5.3)."""

    CODE: ClassVar[int]
    address: EncodedField = NULL
    durable: UIntField = 0
    expiry_policy: SymbolField = "session-end"
    timeout: UIntField = 0
    dynamic: BooleanField = False
    dynamic_node_properties: EncodedField = NULL
    distribution_mode: SymbolField | None = None
    filter: EncodedField = NULL
    default_outcome: EncodedField = NULL
    outcomes: SymbolsField = ()
    capabilities: SymbolsField = ()


@composite(0x29, "target")
@dataclass(frozen=True, slots=True)
class Target:
    """The node that the messages of a link go to (part 3, section 3.5.4)."""

    CODE: ClassVar[int]
    address: EncodedField = NULL
    durable: UIntField = 0
    expiry_policy: SymbolField = "session-end"
    timeout: UIntField = 0
    dynamic: BooleanField = False
    dynamic_node_properties: EncodedField = NULL
    capabilities: SymbolsField = ()


@composite(0x30, "coordinator")
@dataclass(frozen=True, slots=True)
class Coordinator:
    """The target of a link that controls transactions (part 4, section 4.5.1)."""

    CODE: ClassVar[int]
    capabilities: SymbolsField = ()


@composite(0x23, "received")
@dataclass(frozen=True, slots=True)
class Received:
    """The point up to which a delivery was received: no outcome (part 3, section 3.4.1)."""

    CODE: ClassVar[int]
    section_number: UIntField
    section_offset: ULongField


@composite(0x24, "accepted")
@dataclass(frozen=True, slots=True)
class Accepted:
    """The message was processed (section 3.4.2)."""

    CODE: ClassVar[int]


@composite(0x25, "rejected")
@dataclass(frozen=True, slots=True)
class Rejected:
    """The message is invalid and cannot be processed (section 3.4.3)."""

    CODE: ClassVar[int]
    error: EncodedField = NULL


@composite(0x26, "released")
@dataclass(frozen=True, slots=True)
class Released:
    """The message was not processed, and never will be here (section 3.4.4)."""

    CODE: ClassVar[int]


@composite(0x27, "modified")
@dataclass(frozen=True, slots=True)
class Modified:
    """The message was not processed, and may have changed (section 3.4.5)."""

    CODE: ClassVar[int]
    delivery_failed: BooleanField = False
    undeliverable_here: BooleanField = False
    message_annotations: EncodedField = NULL


Sasl = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome
Frame = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
Terminus = Source | Target | Coordinator
DeliveryState = Received | Accepted | Rejected | Released | Modified
Performative = Sasl | Frame | Terminus | DeliveryState | Error


def read(octets: bytes, at: int, end: int) -> tuple[Performative, int]:
    """Read the performative at `octets[at]`; return it and where the payload after it begins.

    Raises `DecodeError` for anything else, for a field of another type, and for a field that is missing.
    Fields beyond those of this version of the protocol are an error: there is no later version.
    """
    if codec.COMPILED:
        if (told := codec.native.take_disposition(octets, at, end)) is not None:
            role, first, last, settled, state, batchable, after = told
            return Disposition(role, first, last, settled, state, batchable), after
        if (flow := codec.native.take_flow(octets, at, end)) is not None:
            return Flow(*flow[:10]), flow[10]
    return read_plain(octets, at, end)


def read_plain(octets: bytes, at: int, end: int) -> tuple[Performative, int]:
    """Read a performative as `read` does, in plain Python."""
    layout, at = layout_at(octets, at, end)
    found, after = decoding.fields(octets, at, end)
    return made_of(layout, found), after


def read_all(octets: bytes) -> Performative:
    """Return the performative that these octets are. Raises `DecodeError`."""
    made, after = read(octets, 0, len(octets))
    if after != len(octets):
        raise DecodeError(f"{len(octets) - after} octets follow a described list")
    return made


def read_state(octets: bytes) -> Performative:
    """Read the state of deliveries as `read_all` does, but faster: most of the states that a peer tells are
    equal.
    """
    return _read_short_state(octets) if len(octets) <= _SHORT_STATE else read_all(octets)


_SHORT_STATE = 64


@lru_cache(maxsize=64)
def _read_short_state(octets: bytes) -> Performative:
    return read_all(octets)


def write(performative: Performative) -> bytes:
    """Encode a performative in its shortest form."""
    layout = BY_TYPE[type(performative)]
    encoded = [written(field, performative) for field in layout.fields]
    return b"\x00\x53%c%s" % (layout.code, encoding.write_fields(encoded))


def write_outcome(first: int, last: int, state: bytes) -> bytes:
    """Encode the disposition with which a receiver settles the deliveries `first` to `last`, as `write` does.

    Most of what the server says to a client that sends one message after another is this.
    """
    to = NULL if last == first else encoding.uint(last)
    fields = b"\x41%s%s\x41%s" % (encoding.uint(first), to, state)
    if len(fields) > _LONGEST_SHORT:
        return write(Disposition(True, first, None if last == first else last, True, state))
    return b"\x00\x53%c\xc0%c\x05%s" % (Disposition.CODE, len(fields) + 1, fields)


def write_credit(
    windows: tuple[int, int, int, int],
    handle: int,
    delivery_count: int,
    credit: int,
    available: int | None,
    *,
    drain: bool,
) -> bytes:
    """Encode the flow with the state of a session (`windows`) and that of a link, as `write` does.

    A client that sends without a pause gets one for each of its transfers, or for some of them together.
    """
    uint = encoding.uint
    next_in, window, next_out, peer_window = windows
    shown = NULL if available is None else uint(available)
    last = b"%s\x41" % shown if drain else b"" if available is None else shown
    fields = b"%s%s%s%s%s%s%s%s" % (
        uint(next_in), uint(window), uint(next_out), uint(peer_window),
        uint(handle), uint(delivery_count), uint(credit), last,
    )  # fmt: skip
    count = 9 if drain else 7 if available is None else 8
    return b"\x00\x53%c\xc0%c%c%s" % (Flow.CODE, len(fields) + 1, count, fields)


_LONGEST_SHORT = 254
"""The octets of the fields of a list whose size is one octet, which counts the octet of their number, too."""
