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
from omq.bulk.errors import ConnectionLost, OmqError, Unreachable
from omq.bulk.ranges import Range
from omq.bulk.remote import RemoteServer
from omq.bulk.sinks import SinkConnection
from omq.counted import counted
from omq.replay.declaring import TargetTopics
from omq.replay.envelopes import ReplayProducer, bodies_size, envelopes
from omq.replay.gaps import LostMessages, pass_over, published
from omq.replay.meter import Meter
from omq.replay.plan import Plan
from omq.replay.read_ahead import ReadAhead
from omq.replay.request import ToServer
from omq_storage.blocks import Block
from omq_storage.errors import StoreError

PORTION_OCTETS = 256 << 20
"""About the size of a portion. When the connection is lost, the outcome of at most one portion is unknown."""

PORTION_SECONDS = 10.0
"""About the time that a portion takes at most: over a slow connection it is smaller."""


def producers(destination: ToServer) -> "ProducerNames":
    """Return the names under which a replay publishes its topics."""
    return ProducerNames(
        destination.producer or f"replay-{uuid.uuid4().hex}", destination.producer is not None
    )


@dataclass(frozen=True, slots=True)
class ProducerNames:
    """Names one producer for each topic, since their sequence numbers are independent."""

    name: str
    all: bool

    def of(self, topic: StoredTopic) -> ReplayProducer:
        """Return the producer for messages of this source topic."""
        return ReplayProducer(f"{self.name}-{topic.id}".encode(), self.all)


def copy(plan: Plan, destination: ToServer, meter: Meter, stop: threading.Event) -> None:
    """Copy all of a plan, topic by topic, until `stop` is set; count confirmed messages in the meter. If that
    fails, report for each topic how far it is published.

    Raises DataLoss, Unreachable, ServerRefused, and omq_storage.errors.StoreError.
    """
    names = producers(destination)
    topics = TargetTopics(plan, destination)
    parts = [part for part in plan.parts if len(part)]
    with destination.place.open() as server:
        for number, part in enumerate(parts):
            if stop.is_set():
                break
            one = _Copy(server, topics, plan, destination, part, names.of(part.topic), meter, stop)
            try:
                one.run()
            except (OmqError, StoreError) as error:
                # A replay that fails before its first message has nothing to report.
                if number or one.has_begun or isinstance(error, LostMessages):
                    for earlier in parts[:number]:
                        meter.say(f"{earlier.topic.name}: {published(earlier, earlier.end)}")
                    for later in parts[number + 1 :]:
                        meter.say(f"{later.topic.name}: {published(later, later.start)}")
                raise


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
        server: RemoteServer,
        topics: TargetTopics,
        plan: Plan,
        destination: ToServer,
        part: Range,
        producer: ReplayProducer,
        meter: Meter,
        stop: threading.Event,
    ) -> None:
        self._source = plan.request.source
        self._server = server
        self._topics = topics
        self._skip_lost = plan.request.skip_lost
        self._retry_policy = destination.place.retry_policy
        self._part = part
        self._target = (destination.topic or part.topic.name).encode()
        self._producer = producer
        self._meter = meter
        self._stop = stop
        self._confirmed = part.start
        self._sent = part.start
        """The id after the last sent message: the outcome is unknown between `_confirmed` and this."""

    @property
    def has_begun(self) -> bool:
        """Whether it has sent messages."""
        return self._sent > self._part.start

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
                if failures > self._retry_policy.retries:
                    raise Unreachable(f"{lost} ({counted(failures, 'attempt')}). {self._doubt()}") from lost
                again = f"continuing at message {self._confirmed}" if self.has_begun else "trying again"
                self._meter.say(f"{lost}; {again}")
                time.sleep(self._retry_policy.seconds)
            except (OmqError, StoreError) as error:
                if self.has_begun or isinstance(error, LostMessages):
                    self._meter.say(f"{self._part.topic.name}: {self._so_far()}")
                raise
            else:
                break
        if self._stop.is_set():
            self._meter.say(
                f"{self._part.topic.name}: {published(self._part, self._confirmed)}; "
                f"--first {self._confirmed} continues there"
            )

    def _so_far(self) -> str:
        return published(self._part, self._confirmed, self._sent)

    def _doubt(self) -> str:
        known = f"Of {self._part.topic.name!r}, {self._so_far()}."
        if self._sent <= self._confirmed:
            return known
        return f"{known} A replay with --producer can be repeated without publishing twice."

    def _go_on(self) -> None:
        """Copy from the last confirmed message to the end. Raises ConnectionLost for the target."""
        self._topics.declare(self._server.connected(), self._target)
        with ReadAhead(self._pieces(self._confirmed)) as ahead:
            pieces = iter(ahead)
            while not self._stop.is_set() and self._portion(pieces):
                pass

    def _portion(self, pieces: Iterator[_Piece]) -> bool:
        """Send one portion. Return whether messages are left. Raises what `pieces` raises, when all messages
        before are confirmed.
        """
        failed: OmqError | StoreError | None = None
        piece = next(pieces, None)
        if piece is None:
            return False
        end = messages = octets = sent_octets = 0
        until = time.monotonic() + PORTION_SECONDS
        with SinkConnection(self._server, self._target) as sink:
            while piece is not None:
                end = piece.end
                self._sent = max(self._sent, end)
                sink.send(piece.envelopes)
                messages += piece.count
                octets += piece.octets
                sent_octets += len(piece.envelopes)
                self._meter.show(self._meter.messages.total() + messages)
                is_full = sent_octets >= PORTION_OCTETS or time.monotonic() >= until
                if sink.is_cut or is_full or self._stop.is_set():
                    break
                try:
                    piece = next(pieces, None)
                except (OmqError, StoreError) as error:
                    failed = error
                    break
            sink.finish(messages)
        self._confirmed = end
        self._meter.add(self._part.topic.name, messages, octets)
        if failed is not None:
            raise failed
        return piece is not None

    def _pieces(self, start: int) -> Generator[_Piece, None, None]:
        part = self._part
        # Use a separate connection: an aborted Fetch leaves unread frames, which the next one must not read.
        with self._source.open() as access:
            for found in access.fetch(part.topic, start, part.end, self._piece):
                if isinstance(found, Gap):
                    pass_over(part, found, self._meter, self._skip_lost)
                else:
                    yield found

    def _piece(self, block: Block, messages: range) -> _Piece:
        made = envelopes(block, messages, self._producer)
        return _Piece(messages.stop, len(messages), bodies_size(block, messages), made)
