"""Parse the lines that a client sends after the handshake into commands and runs of messages.

Source: docs/PROTOCOL.md, "What the client sends: lines".

Most lines are Publish commands. For the forms of Publish that clients print, the fast path parses all lines
of a read at once: with the compiled codec, or in plain Python. Other lines go to the parser of commands. That
parser accepts the quick forms too, with the same meaning.
"""

from collections.abc import Generator, Iterable, Iterator

from omq.protocol.omq.beginnings import is_publish, topic_of_publish
from omq.protocol.omq.commands import LONG_LINE
from omq.protocol.omq.compiled_lines import DEALT_OCTETS, Deal, Undealt, reading_compiled
from omq.protocol.omq.events import Event, TooLong
from omq.protocol.omq.line_steps import LineSteps
from omq.protocol.omq.plain_lines import reading_plain
from omq.protocol.omq.sentences import sentence
from omq_storage import codec

PART_OCTETS = 16 << 10
"""The octets of an incomplete line that are collected in one part. More at once are a part of their own."""

DEALT: tuple[list[Event], ...] = ()
"""The steps of a read of which nothing is left."""


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

    def reads(self, data: bytes, deal: Deal | None = None) -> Iterable[list[Event]]:
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

    def _reading(self, data: bytes, deal: Deal | None, left: Undealt | None = None) -> Iterator[list[Event]]:
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
        if not is_publish(head):
            return [TooLong(f"Line too long: {what}".encode())]
        return [TooLong(sentence("Publish", topic_of_publish(head), what))]


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
