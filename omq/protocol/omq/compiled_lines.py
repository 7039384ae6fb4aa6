"""Lets the compiled codec read lines in the quick forms, and reads the others here. Its twin is
omq.protocol.omq.plain_lines.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from omq.protocol.omq.atoms import BARE, atom_written
from omq.protocol.omq.commands import LONG_LINE
from omq.protocol.omq.event_collector import CONFIRM, EventCollector
from omq.protocol.omq.events import Event
from omq.protocol.omq.line_steps import SLOW_LINES, LineSteps, after_blank_lines
from omq.protocol.steps import Steps, finished
from omq_storage import codec
from omq_storage.batches import batch

if TYPE_CHECKING:
    from omq_storage._codec import Spans

# The reports of a worker, one a message, as clients print them: the lines of one topic.
_RECEIVED_LINES = re.compile(
    rb"\([Rr]eceived (" + BARE + rb") [0-9]{1,18}\)\r?+\n(?:\([Rr]eceived \1 [0-9]{1,18}\)\r?+\n)*+"
)
_RECEIVED_ID = re.compile(rb"([0-9]++)\)\r?+\n")

RECEIVED_OCTETS = 4 << 10
"""The most octets of Received lines that are read at once. They count as half of the lines of a step."""

DEALT_OCTETS = 512 << 10
"""The octets of lines in the quick forms that the compiled codec reads in one step: as a read has at most."""

TOPICS_IN_STEP = 256
"""The number of topics of Publish lines that are found, or whose messages are added to the events, in one
step: one or two microseconds for each.
"""

Undealt = tuple[list[tuple[bytes, "Spans"]], int, bool]
"""The messages that `Deal` leaves to the reader, by the topics as they are written, where it stopped, and
whether the step should end there.
"""

Deal = Callable[[bytes, int, int], Undealt | None]
"""Takes the Publish lines from a position on, at most about N octets. Returns what it leaves; or None, when
the reader must parse all lines.
"""


def reading_compiled(
    lines: bytes, position: int, deal: Deal | None = None, left: Undealt | None = None
) -> LineSteps:
    """Let the compiled codec parse lines in the quick forms, and parse each other line here. `left`: what
    `deal` returned for these lines, if it was called.
    """
    events = EventCollector()
    slow = topics = work = 0
    first = position
    if left is None and deal is not None:
        left = deal(lines, position, DEALT_OCTETS)
    if left is not None:
        dealt, position, is_over = left
        topics = len(dealt)
        work = yield from _publishing(events, dealt, work)
        if is_over:
            if topics >= codec.native.DEALT_TOPICS:
                yield
            return events.all(), position
    while position < len(lines) and slow < SLOW_LINES and position - first < DEALT_OCTETS:
        dealt, position = codec.native.deal_lines(lines, position, DEALT_OCTETS)
        topics += len(dealt)
        work = yield from _publishing(events, dealt, work)
        if topics >= codec.native.DEALT_TOPICS:
            yield  # one step for the events of as many topics
            return events.all(), position
        if dealt:
            continue
        if confirm := CONFIRM.match(lines, position):
            events.confirm(int(confirm[1]))
            slow += 1
            position = confirm.end()
            continue
        after = after_blank_lines(lines, position)
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


def _publishing(events: EventCollector, dealt: Sequence[tuple[bytes, "Spans"]], work: int) -> Steps[int]:
    """Add the messages of topics that were just found, in steps. `work`: the topics found or added since the
    last pause. Return this number when all are added.
    """
    work += len(dealt)
    for topic, spans in dealt:
        if work >= TOPICS_IN_STEP:
            yield
            work = 0
        work += 1
        events.publish(atom_written(topic), batch(spans))
    return work


def events_compiled(lines: bytes, position: int = 0) -> tuple[list[Event], int]:
    """Read lines as `reading_compiled` does, without a pause."""
    return finished(reading_compiled(lines, position))
