"""Parse the lines that a client sends after the handshake into commands and runs of messages.

Source: docs/PROTOCOL.md, "What the client sends: lines".

Most lines are Publish commands. For the forms of Publish that clients print, the fast path parses all lines
of a read at once: with the compiled codec, or with one regular expression whose last alternative is any other
line. Other lines go to the parser of commands. That parser accepts the quick forms too, with the same
meaning.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from omq.protocol.omq.atoms import BARE, QUOTED, unescape, unquote
from omq.protocol.omq.commands import LONG_LINE, CommandError, parsing
from omq.protocol.omq.sentences import sentence
from omq.protocol.omq.types import Command, Confirm, Publish
from omq.protocol.steps import Steps, finished
from omq_storage import codec
from omq_storage.batches import Batch, Bodies, batch, joined

if TYPE_CHECKING:
    from omq_storage._codec import Spans


class PublishRun(Struct, frozen=True):
    """Publish commands of one topic, with only Publish commands of other topics between them."""

    topic: bytes
    batch: Batch


class ReceivedRun(Struct, frozen=True):
    """Received commands of one topic that follow one another, as clients print them."""

    topic: bytes
    ids: Sequence[int]


class Parsed(Struct, frozen=True):
    """Any other command."""

    command: Command


class BadLine(Struct, frozen=True):
    """A line that is not a command, and the sentence that answers it.

    `publish`: whether the line begins like a Publish: then the next Confirm must fail.
    """

    error: bytes
    publish: bool


class TooLong(Struct, frozen=True):
    """A line longer than allowed, and the sentence to send before the close. No event follows."""

    error: bytes


Event = PublishRun | ReceivedRun | Parsed | BadLine | TooLong


# -- the quick forms ----------------------------------------------------------------------------------------

# Escapes as sexplib prints them, and \'. Others are rare, and left to the parser.
_ESCAPE = rb"\\(?:[\"\\ntrb']|[01][0-9]{2}|2[0-4][0-9]|25[0-5])"
_CONTENT = rb'[^"\\\n]*+(?:' + _ESCAPE + rb'[^"\\\n]*+)*+'

# Groups: the topic as written, a bare body, the content of a quoted body; or a whole line of another form.
# Between two bare atoms stands a space; before and after a quoted one there may be none.
_LINES = re.compile(
    rb"\([Pp]ublish(?: |(?=\"))(" + BARE + rb'|"' + _CONTENT + rb'")'
    rb'(?: ?"(' + _CONTENT + rb')"|(?: |(?<="))(' + BARE + rb"))\)\r?+\n"
    rb"|([^\n]*+\n)"
)  # fmt: skip

# All of such a line before its body's octets; the second group is the quote that begins a quoted body.
_HEAD = re.compile(rb"\([Pp]ublish(?: |(?=\"))(" + BARE + rb'|"' + _CONTENT + rb'")(?: ?(")| |(?<="))')

# The reports of a worker, one a message, as clients print them: a line, and the lines of one topic.
_RECEIVED = re.compile(rb"\([Rr]eceived (" + BARE + rb") ([0-9]{1,18})\)\r?+\Z")
_RECEIVED_LINES = re.compile(
    rb"\([Rr]eceived (" + BARE + rb") [0-9]{1,18}\)\r?+\n(?:\([Rr]eceived \1 [0-9]{1,18}\)\r?+\n)*+"
)
_RECEIVED_ID = re.compile(rb"([0-9]++)\)\r?+\n")

# Behind a message whose publisher waits for its outcome. The commit begins after this line.
_CONFIRM = re.compile(rb"\([Cc]onfirm ([0-9]{1,18})\)\r?+(?:\n|\Z)")

# The beginning of a Publish line, and its topic if that can be recognised.
_PUBLISH = re.compile(rb'[ \t\f]*+\([ \t\f]*+(?:"[Pp]ublish"|"?[Pp]ublish(?=[ \t\f\r\n"();]|\Z))[ \t\f]*+')
_TOPIC = re.compile(rb"(" + QUOTED + rb"|" + BARE + rb'(?=[ \t\f"]))')


PART_OCTETS = 16 << 10
"""The octets of an incomplete line that are collected in one part. More at once are a part of their own."""


class LineReader:
    """Splits received octets into lines, and parses them. A line has at most `max_line` octets and a line
    feed.
    """

    __slots__ = ("_closed", "_max_line", "_parts", "buffered")

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._parts: list[bytes | bytearray] = []
        self.buffered = 0
        """The number of held octets of an incomplete line."""
        self._closed = False

    def drop(self) -> None:
        """Drop the incomplete line. Do not feed the reader after that."""
        self._taken()
        self._closed = True

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of the lines that `data` completes, in order.

        Blank lines make no event. After TooLong there are no more events.
        """
        return [event for events in self.reads(data) for event in events]

    def reads(self, data: bytes, deal: "Deal | None" = None) -> Iterable[list[Event]]:
        """Read lines as `feed` does, in steps of less than a millisecond, so that other connections can have
        their turn: one read may contain very many lines, and a line may be long.

        Some of the lists may be empty. Do not feed the reader before the iterable is exhausted.

        With the compiled codec, `deal` is called at the beginning of each step, when the events of all lines
        before it were yielded. If it takes everything in its first call, there are no steps at all: DEALT.
        """
        if self._closed:
            return ()
        is_whole = deal is not None and codec.COMPILED and not self.buffered and data.endswith(b"\n")
        if not is_whole or len(data) > min(self._max_line, DEALT_OCTETS):
            return self._reading(data, deal)
        # So it is with nearly every message that is published alone: its subscriber waits for it.
        assert deal is not None
        left = deal(data, 0, DEALT_OCTETS)
        if left is not None and not left[0] and left[1] == len(data):
            return DEALT
        return self._reading(data, deal, left)

    def _reading(
        self, data: bytes, deal: "Deal | None", left: "Undealt | None" = None
    ) -> Iterator[list[Event]]:
        """Read lines as `reads` does. `left`: what the first call of `deal` returned, if it was called."""
        # Only the new octets are searched, and the held ones joined once, when their line is complete.
        end = data.rfind(b"\n") + 1
        if not end:
            self._hold(data)
        else:
            held = self.buffered
            if held > LONG_LINE:
                yield []  # to receive the octets took the first step
            lines = b"".join((*self._taken(), memoryview(data)[:end])) if held else data[:end]
            self._hold(data[end:])
            if held > LONG_LINE:
                yield []  # to copy it takes most of a step
            start = _find_longer(lines, self._max_line) if len(lines) > self._max_line else None
            if start is not None:
                self._taken()
                self._hold(lines[start:])
                lines = lines[:start]
            position = 0
            while position < len(lines):
                events, position = yield from _pausing(_events(lines, position, deal, left))
                left = None
                yield events
        if self.buffered > self._max_line:
            yield self._refuse_held()

    def _hold(self, data: bytes) -> None:
        """Hold octets of an incomplete line. Large parts are not copied before the line is complete; small
        ones are collected, because each object takes memory.
        """
        self.buffered += len(data)
        if len(data) >= PART_OCTETS:
            self._parts.append(data)
        elif self._parts and isinstance(last := self._parts[-1], bytearray) and len(last) < PART_OCTETS:
            last += data
        elif data:
            self._parts.append(bytearray(data))

    def _taken(self) -> list[bytes | bytearray]:
        """Take the parts of the incomplete line."""
        parts, self._parts, self.buffered = self._parts, [], 0
        return parts

    def _refuse_held(self) -> list[Event]:
        # The longest name is there, however it is written; and no more than when the octets come one by one,
        # so that the sentence is the same.
        most = min(2048, self._max_line + 1)
        head = b"".join(part[:most] for part in self._taken())[:most]
        self._closed = True
        what = f"the line has more than {self._max_line} octets"
        publish = _PUBLISH.match(head)
        if publish is None:
            return [TooLong(f"Line too long: {what}".encode())]
        return [TooLong(sentence("Publish", _topic_after(head, publish.end()), what))]


def _find_longer(lines: bytes, limit: int) -> int | None:
    """Return the position of the first line longer than `limit`. Every step but the last skips complete
    lines.
    """
    start = 0
    while start < len(lines):
        end = lines.rfind(b"\n", start, start + limit + 1)
        if end < 0:
            return start
        start = end + 1
    return None


def _topic_after(head: bytes, position: int) -> bytes | None:
    match = _TOPIC.match(head, position)
    return None if match is None else _atom(match[1])


def _atom(written: bytes) -> bytes:
    return unquote(written) if written.startswith(b'"') else written


# -- from lines to events -----------------------------------------------------------------------------------


SLOW_LINES = 16
"""The most lines of one step that are not in the quick forms."""

RECEIVED_OCTETS = 4 << 10
"""The most octets of Received lines that are read at once. They count as half of the lines of a step."""

SLOW_OCTETS = 4 << 10
"""The most octets of mixed lines of one step, in plain Python."""

ALIKE_OCTETS = 64 << 10
"""The most octets of uniform lines of one step, in plain Python."""

BLANK_OCTETS = 16 << 10
"""The most octets of blank lines that one step skips."""

DEALT_OCTETS = 512 << 10
"""The octets of lines in the quick forms that the compiled codec reads in one step: as a read has at most."""

Undealt = tuple[list[tuple[bytes, "Spans"]], int, bool]
"""The messages that `Deal` leaves to the reader, by the topics as they are written, where it stopped, and
whether the step should end there.
"""

Deal = Callable[[bytes, int, int], Undealt | None]
"""Takes the Publish lines from a position on, at most about N octets. Returns what it leaves; or None, when
the reader must parse all lines.
"""

DEALT: tuple[list[Event], ...] = ()
"""The steps of a read of which nothing is left."""

LineSteps = Steps[tuple[list[Event], int]]
"""Returns the events of some complete lines from a position on, and the position of the next line."""


def _events(lines: bytes, position: int, deal: Deal | None, left: Undealt | None) -> LineSteps:
    return reading_compiled(lines, position, deal, left) if codec.COMPILED else reading_plain(lines, position)


def _pausing(turn: LineSteps) -> Generator[list[Event], None, tuple[list[Event], int]]:
    """Take the steps of a turn, with an empty list for each pause."""
    while True:
        try:
            next(turn)
        except StopIteration as stop:
            result: tuple[list[Event], int] = stop.value
            return result
        yield []


class _Events:
    """Collects events: messages of one topic become one run, up to the next event other than a Publish. So do
    Received commands of one topic, up to the next event of another kind or topic.
    """

    __slots__ = ("_events", "_received_ids", "_received_topic", "_runs")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._runs: dict[bytes, list[Batch]] = {}
        self._received_topic = b""
        self._received_ids: list[int] = []

    def publish(self, topic: bytes, part: Batch) -> None:
        self._close_received()
        self._runs.setdefault(topic, []).append(part)

    def received(self, topic: bytes, ids: Iterable[int]) -> None:
        self._close_publishes()
        if topic != self._received_topic:
            self._close_received()
            self._received_topic = topic
        self._received_ids += ids

    def confirm(self, n: int) -> None:
        self._close()
        self._events.append(Parsed(Confirm(n)))

    def adding(self, line: bytes) -> Steps[None]:
        """Add a line that is no Publish in one of the quick forms."""
        if received := _RECEIVED.match(line):
            self.received(received[1], [int(received[2])])
            return
        if confirm := _CONFIRM.match(line):
            self.confirm(int(confirm[1]))
            return
        match event := (yield from _event_of_line(line)):
            case None:
                pass
            case Publish(topic, body):
                self.publish(topic, Bodies([body]))
            case _:
                self._close()
                self._events.append(event)

    def _close(self) -> None:
        self._close_publishes()
        self._close_received()

    def _close_publishes(self) -> None:
        if self._runs:
            self._events += [PublishRun(topic, joined(parts)) for topic, parts in self._runs.items()]
            self._runs.clear()

    def _close_received(self) -> None:
        if self._received_ids:
            self._events.append(ReceivedRun(self._received_topic, self._received_ids))
            self._received_ids = []

    def all(self) -> list[Event]:
        self._close()
        return self._events


# Also those that hold comments and nothing else.
_BLANK_LINES = re.compile(rb"(?:[ \t\f]*+(?:#\|[^#|\"\n]*+\|#[ \t\f]*+)*+(?:;[^\r\n]*+)?+\r?+\n)++")


def _after_blank_lines(lines: bytes, position: int) -> int:
    """Return the end of blank lines, or of some of them."""
    blank = _BLANK_LINES.match(lines, position, min(len(lines), position + BLANK_OCTETS))
    return position if blank is None else blank.end()


def events_compiled(lines: bytes, position: int = 0) -> tuple[list[Event], int]:
    """Read lines as `reading_compiled` does, without a pause."""
    return finished(reading_compiled(lines, position))


def events_plain(lines: bytes, position: int = 0) -> tuple[list[Event], int]:
    """Read lines as `reading_plain` does, without a pause."""
    return finished(reading_plain(lines, position))


def reading_compiled(
    lines: bytes, position: int, deal: Deal | None = None, left: Undealt | None = None
) -> LineSteps:
    """Let the compiled codec parse lines in the quick forms, and parse each other line here. `left`: what
    `deal` returned for these lines, if it was called.
    """
    events = _Events()
    slow = 0
    first = position
    if left is None and deal is not None:
        left = deal(lines, position, DEALT_OCTETS)
    if left is not None:
        dealt, position, is_over = left
        for topic, spans in dealt:
            events.publish(_atom(topic), batch(spans))
        if is_over:
            if len(dealt) >= codec.native.DEALT_TOPICS:
                yield
            return events.all(), position
    while position < len(lines) and slow < SLOW_LINES and position - first < DEALT_OCTETS:
        dealt, position = codec.native.deal_lines(lines, position, DEALT_OCTETS)
        for topic, spans in dealt:
            events.publish(_atom(topic), batch(spans))
        if len(dealt) >= codec.native.DEALT_TOPICS:
            yield  # one step for as many topics, and one for their events
            return events.all(), position
        if dealt:
            continue
        if confirm := _CONFIRM.match(lines, position):
            events.confirm(int(confirm[1]))
            slow += 1
            position = confirm.end()
            continue
        after = _after_blank_lines(lines, position)
        if after > position:
            position = after
            yield
            continue
        if received := _RECEIVED_LINES.match(lines, position, position + RECEIVED_OCTETS):
            events.received(received[1], map(int, _RECEIVED_ID.findall(received[0])))
            slow += 1 + SLOW_LINES * len(received[0]) // (2 * RECEIVED_OCTETS)
            position = received.end()
            continue
        end = lines.index(b"\n", position)
        if end - position > LONG_LINE:
            yield  # to search and to copy it takes most of a step
        yield from events.adding(lines[position:end])
        position = end + 1
        slow += 1
    return events.all(), position


def reading_plain(lines: bytes, position: int) -> LineSteps:
    """Read lines in plain Python."""
    events = _Events()
    if not position:
        # Lines that are all alike make one run, as far as they go.
        while (end := lines.rfind(b"\n", position, position + ALIKE_OCTETS) + 1) > position:
            run = _uniform(lines[position:end])
            if run is None:
                break
            events.publish(run.topic, run.batch)
            position = end
            yield
        if position:
            return events.all(), position
    after = _after_blank_lines(lines, position)
    if after > position:
        return [], after
    end = lines.rfind(b"\n", position, position + SLOW_OCTETS) + 1
    if end <= position:
        end = lines.index(b"\n", position) + 1
        yield from events.adding(lines[position : end - 1])
        return events.all(), end
    part = lines[position:end]
    rows: list[tuple[bytes, bytes, bytes, bytes]] = _LINES.findall(part)
    topics, quoted, bare, _ = zip(*rows, strict=True)
    if topics[0] and topics.count(topics[0]) == len(rows):
        return [_run(_atom(topics[0]), _bodies(quoted, bare, b"\\" in part))], end
    return (yield from _mixed(rows)), end


def _uniform(lines: bytes) -> PublishRun | None:
    """Return the run of lines that differ only in bodies without escapes; None for other lines.

    A fast publisher sends only such lines. This splits them at the octets between two bodies, and then
    searches all bodies at once for each octet with a special meaning.
    """
    match = _HEAD.match(lines)
    if match is None:
        return None
    head = match[0]
    tail = b'")\n' if match[2] else b")\n"
    if len(lines) < len(head) + len(tail) or not lines.endswith(tail):
        return None  # head and tail must not share a quote
    split = lines[len(head) : -len(tail)].split(tail + head)
    bodies = _plain_quoted(split) if match[2] else _plain_bare(split)
    return None if bodies is None else _run(_atom(match[1]), bodies)


def _plain_bare(bodies: list[bytes]) -> list[bytes] | None:
    """Return the bodies if each is a bare atom for certain."""
    together = b"".join(bodies)
    if any(octet in together for octet in b'\n() ";\t\f\r') or not all(bodies):
        return None
    if ord("|") in together and ord("#") in together:
        return None  # there may be a #| or |#
    return bodies


def _plain_quoted(contents: list[bytes]) -> list[bytes] | None:
    r"""Return the bodies if each is the content of a quoted atom for certain, with no escapes, or none but
    `\"`.
    """
    together = b"".join(contents)
    if ord("\n") in together:
        return None
    if ord("\\") not in together:
        return None if ord('"') in together else contents
    divided = b"\n".join(contents)
    others = divided.replace(b'\\"', b"")
    if ord('"') in others or ord("\\") in others:
        return None
    return divided.replace(b'\\"', b'"').split(b"\n")


def _bodies(quoted: tuple[bytes, ...], bare: tuple[bytes, ...], escaped: bool) -> list[bytes]:
    """Return the bodies of rows of which each has either a quoted or a bare one. A bare one is never
    empty.
    """
    if not any(bare):
        return [unescape(body) if b"\\" in body else body for body in quoted] if escaped else list(quoted)
    if all(bare):
        return list(bare)
    return [body or unescape(content) for content, body in zip(quoted, bare, strict=True)]


def _run(topic: bytes, bodies: list[bytes]) -> PublishRun:
    return PublishRun(topic, Bodies(bodies))


def _mixed(rows: list[tuple[bytes, bytes, bytes, bytes]]) -> Steps[list[Event]]:
    """Return the events of rows of several topics, or of other commands too."""
    events = _Events()
    topics: dict[bytes, bytes] = {}  # the name for each written form
    waiting: dict[bytes, list[bytes]] = {}
    slow = 0
    for written, quoted, bare, other in rows:
        if other == b"\n":
            continue
        if written:
            topic = topics.get(written) or topics.setdefault(written, _atom(written))
            waiting.setdefault(topic, []).append(bare or unescape(quoted))
            continue
        for topic, bodies in waiting.items():
            events.publish(topic, Bodies(bodies))
        waiting = {}
        yield from events.adding(other[:-1])
        slow += 1
        if not slow % SLOW_LINES:
            yield
    for topic, bodies in waiting.items():
        events.publish(topic, Bodies(bodies))
    return events.all()


def _event_of_line(line: bytes) -> Steps[Publish | Parsed | BadLine | None]:
    try:
        command = yield from parsing(line)
    except CommandError as error:
        publish = error.constructor == "Publish" or (error.constructor is None and _PUBLISH.match(line))
        return BadLine(error.sentence, bool(publish))
    match command:
        case None | Publish():
            return command
        case _:
            return Parsed(command)
