"""Collects the events of lines: messages of one topic become one run, and so do reports of one topic."""

import re
from collections.abc import Iterable

from omq.protocol.omq.atoms import BARE
from omq.protocol.omq.beginnings import is_publish
from omq.protocol.omq.commands import CommandError, parsing
from omq.protocol.omq.events import BadLine, Event, Parsed, PublishRun, ReceivedRun
from omq.protocol.omq.types import Confirm, Publish
from omq.protocol.steps import Steps
from omq_storage.batches import Batch, Bodies, joined

# The report of a worker, one a message, as clients print it.
_RECEIVED = re.compile(rb"\([Rr]eceived (" + BARE + rb") ([0-9]{1,18})\)\r?+\Z")

# Behind a message whose publisher waits for its outcome. The commit begins after this line.
CONFIRM = re.compile(rb"\([Cc]onfirm ([0-9]{1,18})\)\r?+(?:\n|\Z)")


class EventCollector:
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
        """Add messages of one topic."""
        self._close_received()
        self._runs.setdefault(topic, []).append(part)

    def received(self, topic: bytes, ids: Iterable[int]) -> None:
        """Add messages of one topic that the client has received."""
        self._close_publishes()
        if topic != self._received_topic:
            self._close_received()
            self._received_topic = topic
        self._received_ids += ids

    def confirm(self, n: int) -> None:
        """Add a Confirm."""
        self._close()
        self._events.append(Parsed(Confirm(n)))

    def adding(self, line: bytes) -> Steps[None]:
        """Add a line that is no Publish in one of the quick forms."""
        if received := _RECEIVED.match(line):
            self.received(received[1], [int(received[2])])
            return
        if confirm := CONFIRM.match(line):
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
        """Return all events. Nothing is added after that."""
        self._close()
        return self._events


def _event_of_line(line: bytes) -> Steps[Publish | Parsed | BadLine | None]:
    try:
        command = yield from parsing(line)
    except CommandError as error:
        constructor = error.constructor
        return BadLine(error.sentence, constructor == "Publish" or (constructor is None and is_publish(line)))
    match command:
        case None | Publish():
            return command
        case _:
            return Parsed(command)
