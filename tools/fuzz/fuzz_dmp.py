"""Targets: the dialogue of a DMP connection, its envelopes, and the heads and tables in them."""

from fuzz_checks import TWINS, Target, check_sentence, in_pieces, twin

from omq.protocol import handshake
from omq.protocol.amqp import fields as amqp_fields
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import producer as dmp_producer
from omq.protocol.amqp import properties
from omq.protocol.amqp.fields import (
    Array,
    Boolean,
    ByteArray,
    Decimal,
    LongString,
    Number,
    NumberType,
    Table,
    Void,
)
from omq.protocol.amqp.head import MAX_HEAD, PLAIN_HEAD, Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.client import ClientDialogue, DialogueError, FeedOctets, Purpose
from omq.protocol.dmp.envelopes import Envelope, EnvelopeBatch, EnvelopeError, EnvelopeRun
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.dmp.server import (
    CloseConnection,
    EnvelopeOctets,
    FeedReady,
    LeaseAnswer,
    LeaseReceived,
    LeaseRefused,
    Send,
    ServerDialogue,
    ServerEvent,
    SinkReady,
)

# -- the dialogue -------------------------------------------------------------------------------------------


def check_dialogue(data: bytes) -> None:
    """Check that both sides hear the same whether it comes in pieces or at once."""
    choice, pieces = in_pieces(data)
    whole = b"".join(pieces)
    outcome: LeaseAnswer
    match choice % 3:
        case 0:
            outcome = SinkReady(whole[-255:])
        case 1:
            outcome = FeedReady(b"prices")
        case _:
            outcome = LeaseRefused(dmp_responses.LEASE_NOT_VALID)
    assert _serve(pieces, outcome) == _serve([whole], outcome)
    purpose = Purpose.SINK if choice & 4 else Purpose.FEED
    assert _hear(pieces, purpose) == _hear([whole], purpose)


def _serve(pieces: list[bytes], outcome: LeaseAnswer) -> tuple[bytes, list[bytes], bytes, bool]:
    """Return the octets that a server sends, the leases it was shown, the octets it takes for envelopes, and
    whether it closes.
    """
    dialogue = ServerDialogue()
    sent, leases, messages, closed = b"", [], b"", False
    waiting: list[ServerEvent] = []
    for piece in pieces:
        waiting += dialogue.feed(piece)
        while waiting:
            assert not closed, "an event follows Close"
            match waiting.pop(0):
                case Send(octets):
                    sent += octets
                case LeaseReceived(lease):
                    assert 1 <= len(lease) <= 255
                    leases.append(lease)
                    waiting += dialogue.decide(outcome)
                case EnvelopeOctets(octets):
                    assert octets
                    messages += octets
                case CloseConnection():
                    closed = True
    assert len(leases) <= 1
    return sent, leases, messages, closed


def _hear(pieces: list[bytes], purpose: Purpose) -> tuple[list[object], bytes, str | None]:
    """Return the events of a client, the octets it takes for envelopes, and the error that ends it."""
    dialogue = ClientDialogue(b"lease", purpose)
    heard: list[object] = []
    messages, problem = b"", None
    for piece in pieces:
        try:
            events = dialogue.feed(piece)
        except DialogueError as error:
            check_sentence(str(error))
            events, problem = error.before, str(error)
        for event in events:
            if isinstance(event, FeedOctets):
                messages += event.octets
            else:
                heard.append(event)
        if problem is not None:
            break
    return heard, messages, problem


# -- envelopes ----------------------------------------------------------------------------------------------

_LIMITS = (100, 0, 1 << 26, 1 << 34)


def check_envelopes(data: bytes) -> None:
    """Check that runs and batches are the same, compiled and plain, in pieces and at once."""
    choice, pieces = in_pieces(data)
    whole = b"".join(pieces)
    limit = _LIMITS[choice % len(_LIMITS)]
    expected = _read_envelopes([whole], limit, batches=False)
    for compiled in TWINS:
        with twin(compiled):
            for batches in (False, True):
                found = _read_envelopes(pieces, limit, batches)
                assert found == expected, (found, expected)
    bodies, heads, options, _ = expected
    for head in heads:
        stored_head.decode(head)
        dmp_producer.origin(head)
    wire = dmp_writer.for_sink(bodies, heads, options)
    nulls = len(whole) - len(wire)
    assert nulls >= 0
    for compiled in TWINS:
        with twin(compiled):
            assert dmp_writer.for_sink(bodies, heads, options) == wire
            assert len(dmp_writer.for_feed(bodies, heads)) >= 16 * len(bodies)


def _read_envelopes(
    pieces: list[bytes], limit: int, batches: bool
) -> tuple[list[bytes], list[bytes], list[int], str | None]:
    """Return bodies, and for each its head and its options; and the error at the end."""
    reader = EnvelopeReader(limit)
    bodies: list[bytes] = []
    heads: list[bytes] = []
    options: list[int] = []
    problem = None
    fed = 0
    for piece in pieces:
        fed += len(piece)
        found: EnvelopeRun | EnvelopeBatch | None
        try:
            found = reader.feed_batch(piece) if batches else reader.feed(piece)
        except EnvelopeError as error:
            problem = str(error)
            check_sentence(problem)
            found = error.batch if batches else error.before
        assert found is not None
        new = list(found.batch.bodies()) if isinstance(found, EnvelopeBatch) else found.bodies
        assert len(found) == len(new)
        bodies += new
        heads += found.heads or [PLAIN_HEAD] * len(new)
        options += found.options or [0] * len(new)
        if problem is not None:
            break
        assert reader.unfinished <= min(fed, limit + MAX_HEAD + 8)
        assert reader.expected <= limit + MAX_HEAD + 8
    return bodies, heads, options, problem


# -- heads and tables ---------------------------------------------------------------------------------------


def check_tables(data: bytes) -> None:
    """Check that skipping and reading agree, and that a value that was read and written is read as the same
    value.
    """
    end = len(data)
    try:
        head = stored_head.decode(data)
    except FieldError as error:
        check_sentence(str(error))
        try:
            assert stored_head.skip(data, 0, end) < end, "skipping accepts what decoding refuses"
        except FieldError as refusal:
            check_sentence(str(refusal))
    else:
        assert stored_head.skip(data, 0, end) == end
        dmp_producer.origin(data)
        # Not compared as values: a NaN is not equal to itself.
        written = stored_head.encode(head)
        assert repr(stored_head.decode(written)) == repr(head)
        assert len(written) == end
    for read in (amqp_fields.read_table, properties.read):
        try:
            _, after = read(data, 0, end)
        except FieldError as error:
            check_sentence(str(error))
        else:
            assert after <= end


_TABLE = Table(
    (
        (b"text", LongString(b"red\0")),
        *((kind.value.encode(), Number(kind, 1)) for kind in NumberType),
        (b"", Boolean(True)),
        (b"d", Decimal(2, 314)),
        (b"x", ByteArray(b"\0\xff")),
        (b"v", Void()),
        (b"a", Array((Void(), Table((((b"deep"), Boolean(False)),)), Array(())))),
    )
)


def _nested(depth: int) -> bytes:
    """Return a head with tables in tables, of which the innermost is cut."""
    contents = b"\x01k"
    for _ in range(depth):
        contents = b"\x28" + b"\xff" * 40 + b"F" + len(contents).to_bytes(4, "big") + contents
    return b"\0\0\x20\0" + len(contents).to_bytes(4, "big") + contents


_HEADS = (
    Head(),
    Head(b"x", b"key"),
    Head(b"x", b"key", Properties(message_id=b"7", app_id=b"me")),
    Head(b"", b"", Properties(headers=_TABLE)),
    Head(
        b"x",
        b"k",
        Properties(
            b"text/plain",
            b"",
            Table(),
            2,
            9,
            b"c",
            b"reply",
            b"60",
            b"18446744073709551615",
            1 << 63,
            b"t",
            b"u",
            b"a",
            b"s",
        ),
    ),
)

_ENVELOPES = (
    dmp_writer.encode(Envelope(b"body")) * 3,
    bytes(8).join(dmp_writer.encode(Envelope(b"body", head)) for head in _HEADS),
    dmp_writer.encode(Envelope(b"b", mandatory=True)) + dmp_writer.encode(Envelope(b"", immediate=True)),
)

_RESPONSES = b"".join(
    dmp_responses.encode(said)
    for said in (dmp_responses.GREETING, dmp_responses.sink_ready(b"prices"), dmp_responses.stored(7))
)

TARGETS = (
    Target(
        "dialogue",
        "header, lease and responses of DMP, in pieces",
        check_dialogue,
        (
            b"\0" + handshake.DMP_HEADER + b"\x05lease" + _ENVELOPES[0],
            b"\x05\x30" + handshake.DMP_HEADER + b"\x05lease",
            b"\x0a\x30\x60" + handshake.DMP_HEADER + b"\x00",
            b"\x11\x90" + _RESPONSES,
            b"\0" + b"\x0d402 BAD-LEASE",
            b"\0AMQP\0\0\x09\x01",
        ),
        (b"AMQP", b"\x0a\x01\x00\x01", b"\x06200 OK", b"\x03402"),
        longest=300,
    ),
    Target(
        "envelopes",
        "DMP envelopes, in pieces",
        check_envelopes,
        tuple(b"\0" + wire for wire in _ENVELOPES) + tuple(b"\x0a\x40\x90" + wire for wire in _ENVELOPES),
        (
            b"\0\0\0\x08",
            b"\0\0\0\0",
            b"\x01x\x03key\0\0",
            b"\x20\0",
            b"\xff\xfc",
            b"\0\0\0\x0c",
            b"\x03\0\0\0",
            b"\xff\xff\xff\xff",
        ),
    ),
    Target(
        "tables",
        "heads of envelopes: names, properties, tables",
        check_tables,
        (*map(stored_head.encode, _HEADS), _nested(20), amqp_fields.table_octets(_TABLE)),
        (
            b"\0\0\x20\0",
            b"\xff\xfc",
            b"\0\0\0\x05\0F\0\0\0\0",
            b"A\0\0\0\x01",
            b"F\0\0\0",
            b"S\0\0\0",
            b"\0D",
            b"\0T",
            b"\x7f\xc0\0\0",
        ),
        longest=4096,
    ),
)
