"""Targets: a client's side of AMQP 1.0, its values and performatives, and messages as they are stored."""

from fuzz_checks import TWINS, Target, check_pieces, check_sentence, twin

from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_1_0 import decoding, encoding, frames, performatives, stored, transfers
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.connection import HEADER, SASL_HEADER, AmqpConnection, Offer
from omq.protocol.amqp_1_0.events import (
    Aborted,
    Attaching,
    Authenticating,
    Closed,
    Credit,
    Detached,
    Event,
    Opening,
    Part,
    Pause,
    SessionEnded,
    SettledByPeer,
    StoredRun,
    WindowOpened,
)
from omq.protocol.amqp_1_0.frames import FrameType
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    Source,
    Transfer,
)
from omq.protocol.amqp_1_0.performatives import (
    Target as TargetTerminus,
)
from omq.protocol.amqp_1_0.types import NULL, Binary, DecodeError, Described, List, Map, Symbol
from omq_storage.batches import Bodies

_CREDIT = 20
_LONGEST = 400
"""The longest message."""

# -- the connection -----------------------------------------------------------------------------------------


def check_amqp_1_0(data: bytes) -> None:
    """Check that a client's octets have the same events in pieces and at once, compiled and plain."""
    check_pieces(data, _events)


def _events(pieces: list[bytes], choice: int) -> list[object]:
    """Return the events, with runs and parts taken apart."""
    connection = AmqpConnection(Offer("omq", needs_sasl=False))
    found: list[object] = []
    if choice & 1:
        _feed(connection, _OPENING, found)
    for piece in pieces:
        _feed(connection, piece, found)
        assert connection.pending <= 1 << 16
    connection.lost()
    _check_output(connection.take())
    return found


def _feed(connection: AmqpConnection, octets: bytes, found: list[object]) -> None:
    more = True
    while more:
        more = False
        for event in connection.feed(octets):
            found += _apart(event)
            match event:
                case Authenticating(mechanism, _):
                    connection.authenticated(accepted=mechanism == "ANONYMOUS")
                    more = True
                case Opening():
                    connection.open()
                    more = True
                case Attaching(SendingLink() as link):
                    link.accept(link.attach.source, settles=False)
                case Attaching(ReceivingLink() as link) if link.name.startswith("no"):
                    link.refuse(LinkProblem(Condition.NOT_FOUND, "there is no such node"))
                case Attaching(ReceivingLink() as link):
                    link.accept(link.attach.target, _LONGEST)
                    link.grant(_CREDIT)
                case Credit(link) if link.credit > 0 and link.session.outgoing.may_transfer:
                    ids = range(1, 1 + min(link.credit, 3))
                    link.session.begin(link, ids, settled=False)
                case Part(link) | StoredRun(link) if link.credit == 0:
                    link.grant(_CREDIT)
                case Closed(_, problem) if problem is not None:
                    check_sentence(problem.text)
                case _:
                    pass
        octets = b""


def _apart(event: Event) -> list[object]:
    match event:
        case StoredRun(link, run):
            bodies, heads = run.batch.bodies(), run.heads or [b""] * run.batch.count
            assert len(bodies) == len(heads) > 0
            return [
                (link.name, (run.delivery + number) % 2**32, run.settled, stored.Stored(head, body))
                for number, (body, head) in enumerate(zip(bodies, heads, strict=True))
            ]
        case Part(link, delivery, settled, octets, True, True):
            return [(link.name, delivery, settled, _stored(octets))]
        case Part(link, delivery, settled, octets, begins, ends):
            return [(link.name, delivery, settled, octets, begins, ends)]
        case Attaching(link) | Aborted(link) | Detached(link) | Credit(link):
            return [(type(event), link.name, link.is_sender, link.credit if link.is_sender else None)]
        case SessionEnded(links):
            return [(type(event), [(link.name, link.is_sender) for link in links])]
        case SettledByPeer(sent, state):
            return [(each.link.name, each.ids, state) for each in sent]
        case WindowOpened(links):
            return [sorted(link.name for link in links)]
        case Closed(error, problem):
            return [(error, None if problem is None else problem.text)]
        case Pause():
            return []
        case _:
            return [event]


def _stored(octets: bytes) -> stored.Stored | str:
    try:
        return stored.store(octets)
    except DecodeError as problem:
        check_sentence(str(problem))
        return str(problem)


def _check_output(octets: bytes) -> None:
    """Check that a client can read the frames that the server sends."""
    reader = frames.FrameReader()
    reader.max_frame = 1 << 20
    reader.add(octets)
    while octets.startswith(b"AMQP"):
        reader.header()
        octets = octets[8:]
        for frame in reader.frames():
            if not frame.is_heartbeat:
                performatives.read(frame.octets, frame.begin, frame.end)
            octets = frame.octets[frame.end :]
            if octets.startswith(b"AMQP"):
                break


# -- values, performatives and messages ---------------------------------------------------------------------


def check_types(data: bytes) -> None:
    """Check that a value that was read is written so that it is read as the same, and ends where skipping
    ends.
    """
    try:
        value, end = decoding.read(data)
    except DecodeError as problem:
        check_sentence(str(problem))
        return
    assert decoding.skip(data, 0, len(data)) == end
    written_value = encoding.write(value)  # a number that is none is not equal to itself
    assert encoding.write(decoding.read_all(written_value)) == written_value
    try:
        said, _ = performatives.read(data, 0, len(data))
    except DecodeError as problem:
        check_sentence(str(problem))
    else:
        written = performatives.write(said)
        assert performatives.write(performatives.read_all(written)) == written


def check_messages(data: bytes) -> None:
    """Check that a message comes out as it came in, with the same transfers compiled and plain."""
    made = _stored(data)
    if isinstance(made, str):
        return
    around = transfers.head_around(made.head, Portion())
    out = stored.message(around, made.body)
    again = stored.store(out)
    assert (again.body, transfers.head_around(again.head, Portion())) == (made.body, around)
    assert len(out) <= len(data)
    stored.redelivered(around, 3)
    block = Bodies([made.body]).encode(1, 9, 0, (made.head,) if made.head else ())
    framing = transfers.Framing(1, 2, 512)
    expected = framing.run_plain(block, range(9, 10), 7, Portion(), settled=False)
    for compiled in TWINS:
        with twin(compiled):
            assert framing.run(block, range(9, 10), 7, Portion(), settled=False) == expected


def check_heads(data: bytes) -> None:
    """Check that any octets that are stored as a head give a message, the same compiled and plain."""
    size = data[0] if data else 0
    head, body = data[1 : 1 + size], data[1 + size :]
    block = Bodies([body]).encode(1, 9, 0, (head,) if head else ())
    framing = transfers.Framing(1, 2, 512)
    expected = framing.run_plain(block, range(9, 10), 7, Portion(), settled=True)
    stored.redelivered(transfers.head_around(head, Portion()), 1)
    for compiled in TWINS:
        with twin(compiled):
            assert framing.run(block, range(9, 10), 7, Portion(), settled=True) == expected


def _frame(said: performatives.Performative, payload: bytes = b"", channel: int = 0) -> bytes:
    return frames.write(channel, performatives.write(said), payload)


def _message(number: int, payload: bytes, handle: int = 0, *, settled: bool = False) -> bytes:
    return _frame(Transfer(handle, number, b"%d" % number, 0, settled), payload)


_DATA = b"\x00\x53\x75\xa0\x03abc"
_TEXT = b"\x00\x53\x70\x45\x00\x53\x73\xc0\x04\x01\xa1\x01i\x00\x53\x77\xa1\x01x"
_LIMITED = b"\x00\x53\x70\xc0\x05\x03\x40\x40\x52\x09"
_VALUE = b"\x00\x53\x77" + encoding.write(Map((("sequence", None),)))
_SEVERAL = _DATA + _DATA + b"\x00\x53\x78\xc1\x01\x00"
_HEADER_FRAMES = HEADER + _frame(Open("client", max_frame_size=512))
_SENDER = Attach("s", 0, False, target=performatives.write(TargetTerminus(encoding.write("q"))),
                 initial_delivery_count=0)  # fmt: skip
_RECEIVER = Attach("r", 1, True, source=performatives.write(Source(encoding.write("q"))))
_LINKS = _frame(Begin(None, 0, 9, 9)) + _frame(_SENDER) + _frame(_RECEIVER)
_OPENING = _HEADER_FRAMES + _LINKS

_CONVERSATIONS = (
    b"".join(_message(number, _DATA) for number in range(4)) + _message(4, _TEXT) + frames.HEARTBEAT,
    b"".join(_message(number, _TEXT, settled=True) for number in range(3)) + _message(9, _VALUE),
    _message(2**32 - 1, _DATA) + _message(0, _VALUE) + _message(1, _SEVERAL) + _message(1, _DATA),
    _frame(Transfer(0, 0, b"t", 0, None, True), _DATA[:3]) + _frame(Transfer(0), _DATA[3:])
    + _frame(Transfer(0, 1, b"t", more=True), b"x") + _frame(Transfer(0, aborted=True)),
    _frame(Flow(0, 9, 0, 9, 1, 0, 5)) + _frame(Disposition(True, 0, 1, True, performatives.write(Accepted())))
    + _frame(Disposition(True, 2, None, False, performatives.write(Accepted()))),
    b"".join(_message(number, _DATA) for number in range(_CREDIT + 3)),
    _message(0, b"x" * (_LONGEST + 1)) + _frame(_SENDER),
    _frame(Detach(0, closed=True)) + _message(0, _DATA) + _frame(Flow(None, 9, 0, 9, echo=True)),
    _frame(End()) + _LINKS + _message(0, _DATA) + _frame(Close()),
    _frame(Attach("no", 5, False, initial_delivery_count=0)) + _message(0, _DATA, 5) + _message(1, _DATA),
)  # fmt: skip

_VALUES = (
    encoding.write(List((None, True, "text", Binary(b"x"), Symbol("s")))),
    encoding.write(Map(((Symbol("a"), List((1 > 0,))), ("b", None)))),
    encoding.write(Described(Symbol("omq:from"), Symbol("first"))),
    performatives.write(_SENDER),
    performatives.write(Open("client", idle_time_out=8000)),
    performatives.write(Flow(0, 9, 0, 9, 1, 0, 5)),
    performatives.write(Transfer(0, 1, b"tag", 0, True, state=performatives.write(Accepted()))),
    b"\xe0\x05\x02\x52\x01\x02\x03",
    NULL,
)

_SASL = SASL_HEADER + frames.write(0, performatives.write(SaslInit("ANONYMOUS", None)), kind=FrameType.SASL)

TARGETS = (
    Target(
        "amqp10",
        "what a client of AMQP 1.0 sends, in pieces",
        check_amqp_1_0,
        (
            *(b"\x04" + octets for octets in _CONVERSATIONS),
            *(b"\x05\x80" + octets for octets in _CONVERSATIONS),
            b"\0" + _OPENING,
            b"\0" + _SASL + _OPENING,
        ),
        (
            b"\x00\x53\x14\xc0", b"\x00\x53\x12", b"\x00\x53\x13", b"\x02\x00\x00\x00", b"\x00\x53\x75\xa0",
            b"\x00\x53\x77", b"\xd0\x00\x00\x00", b"\x41", b"\x42", b"\x43", b"\x56\x01",
        ),
        longest=1000,
    ),
    Target(
        "amqp10-types",
        "values and performatives of AMQP 1.0",
        check_types,
        _VALUES,
        (b"\x00\x53\x12", b"\xe0\x05\x02\x52", b"\xc0\x05\x02", b"\x00\x80", b"\xa3\x03", b"\x83"),
    ),
    Target(
        "amqp10-messages",
        "messages of AMQP 1.0, as they are stored and come out again",
        check_messages,
        (_DATA, _TEXT, _VALUE, _SEVERAL, b"\x00\x53\x71\xc1\x01\x00" + _DATA),
        (b"\x00\x53\x70\x45", _LIMITED, b"\x00\x53\x75\xb0\x00\x00\x00\x01", b"\x00\x53\x78\xc1\x01\x00",
         b"\x00\x80"),
    ),
    Target(
        "amqp10-heads",
        "stored heads, as AMQP 1.0 sees them",
        check_heads,
        tuple(bytes((len(head),)) + head + b"body" for head in (
            stored.store(_TEXT).head, stored.store(_SEVERAL).head, b"\x01e\x01k\x00\x00",
            b"\x00\x00\x90\x00\x04text\x01\x31", b"", stored.store(_LIMITED + _DATA).head,
        )),
        (b"\x00\x00\x20\x00", b"\x08amqp-1.0x", b"\x00\x00\x00\x05"),
    ),
)  # fmt: skip
