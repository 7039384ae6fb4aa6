"""Targets: the lines of an omq client, and those of an omq server."""

from fuzz_checks import Target, check_pieces, check_sentence

from omq.model import Delivery, Persistent, Sync, Topic, TopicInfo
from omq.protocol import handshake
from omq.protocol.omq import frames, sexp, times, topics
from omq.protocol.omq.commands import CommandError, parse, sexp_of_command
from omq.protocol.omq.converters import ConversionError
from omq.protocol.omq.events import BadLine, Parsed, PublishRun, ReceivedRun, TooLong
from omq.protocol.omq.frames import Decoded, DroppedMessage, FrameDecoder, FrameError, MessageRun
from omq.protocol.omq.lines import LineReader
from omq.protocol.omq.sexp import Sexp, SexpError
from omq.protocol.omq.types import (
    Ack,
    Command,
    Confirmed,
    Declared,
    Deleted,
    Error,
    Leased,
    Ping,
    Received,
    Subscribed,
    TopicList,
    Unsubscribed,
)
from omq_storage.blocks import encode

MAX_LINE = 120
MAX_FRAME = 150


# -- the handshake ------------------------------------------------------------------------------------------


def check_handshake(data: bytes) -> None:
    if len(data) != handshake.LENGTH:
        try:
            handshake.recognise(data)
        except ValueError as error:
            check_sentence(str(error))
            return
        raise AssertionError(f"{len(data)} octets are taken for a handshake")
    match handshake.recognise(data):
        case handshake.Omq(version) | handshake.UnknownVersion(version):
            assert handshake.hello(version) == data
        case handshake.Amqp0_9(header) | handshake.Amqp1_0(header) | handshake.OtherAmqp(header):
            assert header == data
        case handshake.Dmp():
            assert data == handshake.DMP_HEADER
        case handshake.Tls():
            assert data.startswith(b"\x16\x03")
        case handshake.Http(octets):
            assert octets == data
            assert b" " in data


# -- lines --------------------------------------------------------------------------------------------------


def check_lines(data: bytes) -> None:
    """Check that the twins agree, and that lines that are cut anywhere give the same events as whole
    lines.
    """
    check_pieces(data, _read_lines)


def _read_lines(pieces: list[bytes], _: int) -> tuple[list[object], int]:
    """Return the events of the lines, with messages between other commands by topic, and the number of octets
    that are held at the end.
    """
    reader = LineReader(MAX_LINE)
    said: list[object] = []
    messages: dict[bytes, list[bytes]] = {}
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, PublishRun):
                messages.setdefault(event.topic, []).extend(_bodies(event))
                continue
            if isinstance(event, ReceivedRun):
                assert event.ids
                for id in event.ids:
                    said += [messages, Parsed(Received(event.topic, id))]
                    messages = {}
                continue
            said += [messages, event]
            messages = {}
            _judge(event)
        assert reader.buffered <= MAX_LINE
    return [*said, messages], reader.buffered


def _bodies(run: PublishRun) -> list[bytes]:
    bodies = list(run.batch.bodies())
    assert bodies
    assert (run.batch.count, run.batch.longest) == (len(bodies), max(map(len, bodies)))
    return bodies


def _judge(event: Parsed | BadLine | TooLong) -> None:
    match event:
        case Parsed(command):
            _check_command(command)
        case BadLine(error) | TooLong(error):
            check_sentence(error)


def _check_command(command: Command) -> None:
    """Check that a written command is read as the same command; times are floating-point numbers."""
    try:
        written = sexp_of_command(command)
    except OverflowError:
        assert isinstance(command, Ack)
        return
    again = parse(written)
    assert again == command or isinstance(command, Ack), (again, command)


# -- sexps --------------------------------------------------------------------------------------------------


def check_sexp(data: bytes) -> None:
    """Check that anything is read or refused, by every reader of sexps that a socket reaches."""
    try:
        command = parse(data)
    except CommandError as error:
        check_sentence(error.sentence)
    else:
        if command is not None:
            _check_command(command)
    for read in (topics.topic_of_sexp, topics.topic_list_of_sexp):
        try:
            read(data)
        except SexpError as error:
            check_sentence(str(error))
    try:
        tree = sexp.read(data)
    except SexpError as error:
        check_sentence(str(error))
    else:
        assert tree is None or sexp.read(sexp.write(tree)) == tree


def check_times(data: bytes) -> None:
    """Read a time as one atom, and, cut at octets 0, as a list of atoms."""
    forms: list[Sexp] = [data, list(data.split(b"\0"))]
    for form in forms:
        try:
            moment = times.time_of_sexp(form)
        except ConversionError as error:
            check_sentence(str(error))
        else:
            assert abs(moment) < 1 << 60


# -- frames -------------------------------------------------------------------------------------------------


def check_frames(data: bytes) -> None:
    """Check that the twins agree, and so does the reading of pieces and the whole."""
    check_pieces(data, _read_frames)


def _read_frames(pieces: list[bytes], _: int) -> tuple[list[object], str | None]:
    decoder = FrameDecoder(MAX_FRAME)
    said: list[object] = []
    for piece in pieces:
        try:
            found = decoder.feed(piece)
        except FrameError as error:
            check_sentence(str(error))
            return said + _one_by_one(error.before), str(error)
        said += _one_by_one(found)
        assert decoder.unfinished < MAX_FRAME + 4
    return said, None


def _one_by_one(found: list[Decoded]) -> list[object]:
    said: list[object] = []
    for item in found:
        if isinstance(item, MessageRun):
            assert len(item.ids) == len(item.bodies) > 0
            said += item.messages()
        elif isinstance(item, DroppedMessage):
            assert item.octets + frames.MESSAGE_OVERHEAD > MAX_FRAME
            said.append(item)
        else:
            again = FrameDecoder().feed(frames.encode(item))
            assert again == [item], (again, item)
            said.append(item)
    return said


_LINES = (
    b"(Connect 1 me)\n",
    b"(Subscribe prices From_beginning)\n(Subscribe prices (From_message 5))\n",
    b'(Publish a b)\n(Publish a c)\n(Publish b "c d")\n',
    b'(Publish a "\\"x\\" \\010\\x41\\\n  y")\n',
    b"(Declare a Round_robin (Persistent Weak))\n(Confirm 7)\nTopics\n",
    b"(Ack (2013-08-07 10:01:02.123456Z))\n",
    b"(Request a 5)\n(Received a 7)\n(Unsubscribe a)(Delete a)\n",
    b"(Put a)\n(Get a From_current)\n(Fetch a 1 2)\n(Blocks a 1 2)\n",
    b"; nothing\n#| nothing |#\n#;(Publish a b)\n\r\n",
)

_WORDS = (
    b"(Publish ", b"(Subscribe ", b"(Connect ", b"(Declare ", b"(Ack ", b"(Request ", b"(Received ", b"(Get ",
    b"(Put ", b"(Delete ", b"(Confirm ", b"(Fetch ", b"(Blocks ", b"Topics", b"(From_message ",
    b"From_beginning", b"(Persistent ", b"Transient", b"Broadcast", b"Round_robin", b"#|", b"|#", b"#;",
    b")\n", b'"', b'")\n', b"\\x41", b"\\255", b"\\n", b"\\\n", b"0x7fffffffffffffff",
    b"-9223372036854775808", b"((id ", b")(topic ", b"\r\n",
)  # fmt: skip

_INFO = TopicInfo(3, b"a b", Delivery.BROADCAST, Persistent(Sync.WEAK), 4, 500, 1, 4, 0)

_FRAMES = (
    bytes(encode(3, 5, [b"one", b"two"], 0).frames),
    *(
        frames.encode(frame)
        for frame in (
            Error(b"Publish a: no"),
            Ping(7),
            Subscribed(Topic(3, b"prices")),
            Unsubscribed(Topic(3, b"a b")),
            Declared(Topic(3, b"prices")),
            Confirmed(-1),
            Leased(b"lease"),
            TopicList((_INFO,)),
            Deleted(Topic(1 << 40, b"\xff")),
        )
    ),
)

_TIMES = (
    b"2013-08-07\x0010:01:02.123456Z", b"2013-08-07 10:01:02.5+05:30", b"2013-08-07T10:01Z",
    b"08/07/13 1001", b"07 Aug 2013 24:00", b"2013 Aug 07 10:01:60-5",
    b"2013-08-07\x0010:01\x00Europe/Amsterdam", b"20130807 10:01 nyc",
)  # fmt: skip

TARGETS = (
    Target(
        "handshake",
        "the first eight octets of a connection",
        check_handshake,
        (
            bytes(7) + b"\x01",
            handshake.DMP_HEADER,
            b"AMQP\0\0\x09\x01",
            b"\x16\x03\x01\x02\x00\x01\x00\x01",
            b"GET / HT",
        ),
        (b"AMQP", b"\x0a\x01\x00\x01", b"\x01\x01\x00\x09", b"\x03\x01\x00\x00"),
        longest=16,
    ),
    Target(
        "lines",
        "lines of commands, in pieces",
        check_lines,
        tuple(b"\0" + line for line in _LINES) + tuple(b"\x02\x40\xa0" + line for line in _LINES),
        _WORDS,
    ),
    Target(
        "sexp",
        "one command, one topic, a list of topics",
        check_sexp,
        (*_LINES, b"((id 7)(topic prices))", topics.topic_list_sexp((_INFO, _INFO))),
        _WORDS,
    ),
    Target(
        "times",
        "the time of an Ack",
        check_times,
        _TIMES,
        (
            b"Europe/Amsterdam",
            b"UTC",
            b"nyc",
            b"posix/",
            b"Etc/GMT+5",
            b":60",
            b"24:00",
            b"0000",
            b"9999",
            b"Aug",
            b"/",
        ),
        longest=96,
    ),
    Target(
        "frames",
        "what a server sends, in pieces",
        check_frames,
        (*(b"\0" + frame for frame in _FRAMES), b"\x01\x80" + b"".join(_FRAMES)),
        (
            b"\0\0\0\x0d\x02",
            b"((id ",
            b")(topic ",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x05\x01",
            b"(persistence(Persistent Weak))",
        ),
    ),
)
