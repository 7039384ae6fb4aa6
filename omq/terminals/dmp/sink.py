"""A sink: messages in, on a DMP connection (6-DMP, "Sending messages"; docs/PROTOCOL.md, "Sinks").

One task: it reads envelopes and posts their messages, and waits for room where there is none, which stops the
reading of its socket. When the client has closed its sending side everything is seen through, and answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import assert_never

import trio

from omq.access.control import LeasedSession
from omq.access.leases import DmpEnd, LeasedSink
from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.sequences import Origin, Origins, producers_of
from omq.drivers.signal import Signal
from omq.logs import quoted
from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.amqp.producer import origin
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp.envelopes import IMMEDIATE, MANDATORY, EnvelopeBatch, EnvelopeError
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.dmp.responses import ResponseCode, response
from omq.protocol.steps import Steps
from omq.terminals.connection.admission import ReadAdmission
from omq.terminals.connection.context import Context
from omq.terminals.connection.statistics import HeldOctets
from omq.terminals.connection.transport import Transport
from omq.terminals.connection.turns import in_turns
from omq_storage.batches import Batch


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a sink ends before its client has finished: what is answered instead of 200."""

    code: ResponseCode
    why: str


HEADS_A_STEP = 512
"""Of how many messages the producer is looked for in one step."""

POST_PRODUCERS = 512
POST_MESSAGES = 4096
"""Where a post of idempotent producers ends, at the next whole step: their messages are more work for a store
than others, and one post is stored in one commit.
"""

STOPPING = Problem(ResponseCode.NOT_ALLOWED, "the server is stopping")
TOO_SLOW = Problem(
    ResponseCode.NOT_ALLOWED, "an envelope took too long to complete while others wait for its memory"
)


class Posts:
    """The messages that a sink has posted: how many are as safe as their topic asks."""

    def __init__(self) -> None:
        self.stored = 0
        self.unconfirmed = 0
        """How many messages are posted and not settled."""
        self._open = 0
        self._signal = Signal()

    def settle(self, count: int, confirmation: Confirmation) -> Problem | None:
        """A post is settled; the problem if it failed."""
        self._open -= 1
        self.unconfirmed -= count
        self._signal.set()
        self.stored += sum(part for part, failure in confirmation.outcomes(count) if failure is None)
        return None if confirmation.failure is None else problem_of(confirmation.failure)

    def begin(self, count: int) -> None:
        """A post of so many messages is on its way."""
        self._open += 1
        self.unconfirmed += count

    async def settled(self) -> None:
        """Wait until no post is open."""
        while self._open:
            await self._signal.wait()


@dataclass(frozen=True, slots=True)
class Portion:
    """Messages that become one post, and what goes beside them: nothing at all, or something for each."""

    batch: Batch
    heads: Sequence[bytes]
    origins: Origins


def _portions(batch: Batch, heads: list[bytes]) -> Steps[list[Portion]]:
    """The messages with their heads, and which producer sent each; more than one portion only when there are
    many with producers.
    """
    origins: list[Origin | None] = []
    ends: list[int] = []
    producers: set[bytes] = set()
    begin = 0
    for start in range(0, len(heads), HEADS_A_STEP):
        if len(producers) >= POST_PRODUCERS or (producers and start - begin >= POST_MESSAGES):
            ends.append(start)
            begin = start
            producers = set()
        step = list(map(origin, heads[start : start + HEADS_A_STEP]))
        producers |= producers_of(step)
        origins += step
        yield
    kept = [b"" if head == PLAIN_HEAD else head for head in heads]
    if not any(origins):
        return [Portion(batch, kept, ())]
    portions = []
    for begin, end in pairwise((0, *ends, batch.count)):
        portions.append(Portion(batch.part(begin, end), kept[begin:end], origins[begin:end]))
        yield
    return portions


def problem_of(failure: Failure) -> Problem:
    """What DMP says of a post that failed."""
    match failure.reason:
        case Reason.DELETED | Reason.NOT_FOUND:
            return Problem(ResponseCode.NOT_FOUND, failure.text)
        case Reason.FORBIDDEN | Reason.QUOTA | Reason.IN_USE:
            return Problem(ResponseCode.NOT_ALLOWED, failure.text)
        case Reason.TOO_LARGE:
            return Problem(ResponseCode.SYNTAX_ERROR, failure.text)
        case Reason.INVALID | Reason.NO_REPLAY | Reason.DIFFERS:
            return Problem(ResponseCode.INVALID, failure.text)
        case Reason.NO_ROOM | Reason.TOPIC_FULL | Reason.STORE_FAILED | Reason.EARLIER | Reason.DEFECT:
            return Problem(ResponseCode.INTERNAL_ERROR, failure.text)
        case other:
            assert_never(other)


class SinkService:
    """Serves one sink, from its ready response to the end of its connection."""

    def __init__(
        self, transport: Transport, context: Context, leased: LeasedSession, sink: LeasedSink
    ) -> None:
        self._transport = transport
        self._context = context
        self._session = leased.session
        self._principal = leased.principal
        self._topic = sink.topic
        self._envelopes = EnvelopeReader(leased.session.max_message_bytes)
        self._posts = Posts()
        self._problem: Problem | None = None
        self._finished = False
        self._reading = trio.CancelScope()
        self._admission = ReadAdmission(transport, context.memory, self._reading)

    @property
    def held(self) -> HeldOctets:
        """The memory that the connection holds."""
        return HeldOctets(reading=self._admission.reading, unfinished=self._admission.unfinished)

    async def serve(self, received: bytes) -> None:
        """Take what the client sends, `received` first; then answer what became of it.

        Raises trio.BrokenResourceError when the connection broke: nothing is confirmed then.
        """
        try:
            with self._reading:
                await self._read(received)
        finally:
            self._admission.close()
        if self._admission.gave_way:
            self.fail(TOO_SLOW)
            self._context.tell_gave_way(self._transport, self._session.name, "an envelope")
        # Others may wait for the memory of an envelope that nobody completes: it is free before the posts.
        self._envelopes.drop()
        # Everything that was taken over is seen through, also what came before a problem.
        await self._posts.settled()
        problem = self._problem
        if problem is None:
            await self._transport.send(dmp_responses.encode(dmp_responses.stored(self._posts.stored)))
            return
        words = f"{self._posts.stored} messages stored; {problem.why}"
        try:
            await self._transport.send(dmp_responses.encode(response(problem.code, words.encode())))
        finally:
            await self._report(f"{problem.code:d} {problem.code.indicator.decode()} {words}")

    @property
    def unconfirmed(self) -> int:
        """How many messages it has posted that are neither stored nor refused."""
        return self._posts.unconfirmed

    def fail(self, problem: Problem) -> None:
        """Read no more, and answer with this problem, unless there was one before.

        That a message could not be stored outweighs what merely ended the reading: the messages that are
        stored may then not be the first ones that came.
        """
        before = self._problem
        lost = problem.code is ResponseCode.INTERNAL_ERROR
        if before is None or (lost and before.code in (ResponseCode.SYNTAX_ERROR, ResponseCode.NOT_ALLOWED)):
            self._problem = problem
        self._reading.cancel()

    def shut_down(self) -> None:
        """The server stops. A client that has finished is only waited for."""
        if not self._finished:
            self.fail(STOPPING)

    # -- reading -------------------------------------------------------------------------------------------

    async def _read(self, received: bytes) -> None:
        """Until the client has finished; or until a problem, which is noted."""
        self._admission.limit(self._session.rates.received, len(received))
        while True:
            if received:
                await self._take(received)
            received = await self._admission.receive()
            if not received:
                break
        self._finished = True
        if self._envelopes.unfinished:
            why = f"the connection ended {self._envelopes.unfinished} octets into an envelope"
            self.fail(Problem(ResponseCode.SYNTAX_ERROR, why))

    async def _take(self, received: bytes) -> None:
        try:
            batch = await in_turns(self._envelopes.reading(received))
        except EnvelopeError as error:
            if error.batch is not None:
                await self._post(error.batch)
            self.fail(Problem(ResponseCode.SYNTAX_ERROR, str(error)))
        else:
            await self._post(batch)
            if len(batch):
                self._admission.finished()
        self._admission.done()
        await self._admission.hold(self._envelopes.expected)

    async def _post(self, batch: EnvelopeBatch) -> None:
        count = len(batch)
        if not count:
            return
        try:
            if batch.options:
                await self._look_for_takers(batch.options)
            for portion in await in_turns(_portions(batch.batch, batch.heads)):
                if self._problem is not None:
                    return  # a post failed meanwhile: what came behind it must not be stored
                await self._post_portion(portion)
        except Refused as refused:
            self.fail(problem_of(refused.failure))

    async def _post_portion(self, portion: Portion) -> None:
        """Raises Refused."""
        confirmation = await self._session.post_leased(
            self._topic, portion.batch, portion.heads, portion.origins
        )
        self._posts.begin(portion.batch.count)

        def settle() -> None:
            problem = self._posts.settle(portion.batch.count, confirmation)
            if problem is not None:
                self.fail(problem)

        confirmation.listen(settle)

    async def _look_for_takers(self, options: list[int]) -> None:
        """Tell the principal of messages that must have a taker and have none. They are posted all the same.
        Raises Refused when the topic was deleted.

        `mandatory` asks that a message is not lost: that there is a subscriber, or a store to keep it.
        `immediate` asks for a subscriber who can take it now (6-DMP: "Basic.Publish flags").
        """
        missed: list[str] = []
        takers = await self._session.takers(self._topic)
        mandatory = sum(1 for octet in options if octet & MANDATORY)
        if mandatory and not takers.is_kept and not takers.is_subscribed:
            missed.append(f"mandatory messages without a subscriber or a store: {mandatory}")
        immediate = sum(1 for octet in options if octet & IMMEDIATE)
        if immediate and not takers.is_ready:
            missed.append(f"immediate messages that no subscriber could take: {immediate}")
        if missed:
            await self._report(", ".join(missed))

    async def _report(self, what: str) -> None:
        if not await self._principal.report(DmpEnd.SINK, self._topic.topic, what):
            peer, topic = self._transport.peer(), self._topic.topic
            self._context.untold.add(f"{peer}: sink {quoted(topic)}: {what}", peer=peer, topic=topic)
