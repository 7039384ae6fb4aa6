"""Copy stored blocks to sinks at full speed, without Spark.

A copy sends each topic in portions, with one sink for each portion, and waits for the confirmation of each.
It holds only a few blocks in memory.
"""

import threading
import time
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from omq.bulk.access import Gap, StoredTopic
from omq.bulk.errors import Unreachable
from omq.bulk.network import ConnectionLost
from omq.bulk.ranges import Range
from omq.bulk.remote import Server
from omq.bulk.sinks import SinkConnection
from omq.replay.ahead import Ahead
from omq.replay.envelopes import Producer, bodies_size, envelopes
from omq.replay.gaps import pass_over
from omq.replay.meter import Meter
from omq.replay.plan import Plan
from omq.replay.request import ToServer
from omq_storage.blocks import Block

PORTION_OCTETS = 256 << 20
"""About the size of a portion. When the connection is lost, the outcome of at most one portion is unknown."""


def producers(destination: ToServer) -> "ProducerNames":
    """The names under which a replay publishes its topics."""
    return ProducerNames(
        destination.producer or f"replay-{uuid.uuid4().hex}", destination.producer is not None
    )


@dataclass(frozen=True, slots=True)
class ProducerNames:
    """Names one producer for each topic, since their sequence numbers are independent."""

    name: str
    all: bool

    def of(self, topic: StoredTopic) -> Producer:
        """The producer for messages of this source topic."""
        return Producer(f"{self.name}-{topic.id}".encode(), self.all)


def copy(plan: Plan, destination: ToServer, meter: Meter, stop: threading.Event) -> None:
    """Copy all of a plan, topic by topic, until `stop` is set; count confirmed messages in the meter.

    Raises DataLoss, Unreachable, ServerRefused, and omq_storage.errors.StoreError.
    """
    names = producers(destination)
    with destination.place.open() as server:
        for part in plan.parts:
            if len(part) and not stop.is_set():
                _Copy(server, plan, destination, part, names.of(part.topic), meter, stop).run()


@dataclass(frozen=True, slots=True)
class _Piece:
    end: int
    """The id after the last message."""
    count: int
    octets: int
    envelopes: bytes


class _Copy:
    """The copy of one topic."""

    def __init__(
        self,
        server: Server,
        plan: Plan,
        destination: ToServer,
        part: Range,
        producer: Producer,
        meter: Meter,
        stop: threading.Event,
    ) -> None:
        self._source = plan.request.source
        self._server = server
        self._skip_lost = plan.request.skip_lost
        self._patience = destination.place.patience
        self._part = part
        self._target = (destination.topic or part.topic.name).encode()
        self._producer = producer
        self._meter = meter
        self._stop = stop
        self._confirmed = part.start
        self._sent = part.start
        """The id after the last sent message: the outcome is unknown between `_confirmed` and this."""

    def run(self) -> None:
        failures = 0
        while True:
            before = self._confirmed
            try:
                self._go_on()
            except ConnectionLost as lost:
                self._server.close()
                failures = failures + 1 if self._confirmed == before else 1
                if self._sent > self._confirmed and not self._producer.all:
                    raise Unreachable(f"{lost}. {self._doubt()}") from lost
                if failures > self._patience.retries:
                    raise Unreachable(f"{lost} ({failures} attempts). {self._doubt()}") from lost
                begun = self._sent > self._part.start
                again = f"continuing at message {self._confirmed}" if begun else "trying again"
                self._meter.say(f"{lost}; {again}")
                time.sleep(self._patience.seconds)
            else:
                break
        if self._stop.is_set():
            self._meter.say(
                f"{self._part.topic.name}: {self._published()}; --first {self._confirmed} continues there"
            )

    def _published(self) -> str:
        if self._confirmed == self._part.start:
            return "nothing is published"
        return f"messages up to {self._confirmed - 1} are published"

    def _doubt(self) -> str:
        known = f"Of {self._part.topic.name!r}, {self._published()}"
        if self._sent <= self._confirmed:
            return f"{known}."
        return (
            f"{known} for certain, and some of {self._confirmed} to {self._sent - 1} may be. A replay with "
            "--producer can be repeated without publishing twice."
        )

    def _go_on(self) -> None:
        """Copy from the last confirmed message to the end. Raises ConnectionLost for the sink."""
        with Ahead(self._pieces(self._confirmed)) as ahead:
            pieces = iter(ahead)
            while not self._stop.is_set() and self._portion(pieces):
                pass

    def _portion(self, pieces: Iterator[_Piece]) -> bool:
        """Send one portion. Return whether messages are left."""
        piece = next(pieces, None)
        if piece is None:
            return False
        end = messages = octets = sent_octets = 0
        with SinkConnection(self._server, self._target) as sink:
            while piece is not None:
                end = piece.end
                self._sent = max(self._sent, end)
                sink.send(piece.envelopes)
                messages += piece.count
                octets += piece.octets
                sent_octets += len(piece.envelopes)
                self._meter.show(self._meter.messages.total() + messages)
                if sink.is_cut or sent_octets >= PORTION_OCTETS or self._stop.is_set():
                    break
                piece = next(pieces, None)
            sink.finish(messages)
        self._confirmed = end
        self._meter.add(self._part.topic.name, messages, octets)
        return piece is not None

    def _pieces(self, start: int) -> Generator[_Piece, None, None]:
        part = self._part
        # Use a separate connection: an aborted Fetch leaves unread frames, which the next one must not read.
        with self._source.open() as access:
            for found in access.fetch(part.topic, start, part.end, self._piece):
                if isinstance(found, Gap):
                    pass_over(part.topic.name, found, self._meter, self._skip_lost)
                else:
                    yield found

    def _piece(self, block: Block, messages: range) -> _Piece:
        made = envelopes(block, messages, self._producer)
        return _Piece(messages.stop, len(messages), bodies_size(block, messages), made)
