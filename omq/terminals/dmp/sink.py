"""A sink: a DMP connection on which a client publishes messages.

See 6-DMP, "Sending messages", and docs/PROTOCOL.md, "Sinks".

One task reads envelopes and posts their messages. While a topic has no room, the task waits and does not
read: this is the backpressure. When the client has closed its sending side, the task waits until all posts
are settled, and sends the response.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, assert_never

import trio

from omq.access.control import LeasedSession
from omq.access.leases import DmpEnd
from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.sequences import Origin
from omq.drivers.signal import Signal
from omq.logs import quoted
from omq.protocol.amqp import openamq
from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.amqp.producer import origin
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp.envelopes import AFTER_HEAD, NUMBER, EnvelopeBatch, EnvelopeError, LongEnvelope
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.dmp.responses import ResponseCode, response
from omq.terminals.connection.admission import ReadAdmission
from omq.terminals.connection.context import Context
from omq.terminals.connection.statistics import HeldOctets
from omq.terminals.connection.transport import Transport
from omq.terminals.connection.turns import in_turns
from omq_storage.batches import LARGE_OCTETS, Assembly

if TYPE_CHECKING:
    from omq_storage._codec import Spans


FEW_ENVELOPES = 16
"""The most envelopes of a read that are sent one by one. The frames of more are made together, which takes
less time for each.
"""


@dataclass(frozen=True, slots=True)
class SinkProblem:
    """The reason why a sink ends before its client has finished, for the response instead of 200."""

    code: ResponseCode
    why: str


TOO_SLOW = SinkProblem(
    ResponseCode.NOT_ALLOWED, "an envelope took too long to complete while others wait for its memory"
)


class Posts:
    """The posts of a sink, with the number of messages that are as safe as the topic promises."""

    def __init__(self) -> None:
        self.stored = 0
        self.unconfirmed = 0
        """The number of messages that are posted and not settled yet."""
        self._open = 0
        self._signal = Signal()

    def settle(self, count: int, confirmation: Confirmation) -> SinkProblem | None:
        """Count a post of `count` messages that is settled. Return the problem if it failed."""
        self._open -= 1
        self.unconfirmed -= count
        self._signal.set()
        self.stored += sum(part for part, failure in confirmation.outcomes(count) if failure is None)
        return None if confirmation.failure is None else problem_of(confirmation.failure)

    def begin(self, count: int) -> None:
        """Count a post of `count` messages that begins."""
        self._open += 1
        self.unconfirmed += count

    async def settled(self) -> None:
        """Wait until all posts are settled."""
        while self._open:
            await self._signal.wait()


def problem_of(failure: Failure) -> SinkProblem:
    """Return the DMP response for a failure."""
    match failure.reason:
        case Reason.DELETED | Reason.NOT_FOUND:
            return SinkProblem(ResponseCode.NOT_FOUND, failure.text)
        case Reason.FORBIDDEN | Reason.QUOTA | Reason.IN_USE | Reason.LOCKED:
            return SinkProblem(ResponseCode.NOT_ALLOWED, failure.text)
        case Reason.TOO_LARGE:
            return SinkProblem(ResponseCode.SYNTAX_ERROR, failure.text)
        case Reason.INVALID | Reason.NO_REPLAY | Reason.DIFFERS:
            return SinkProblem(ResponseCode.INVALID, failure.text)
        case (
            Reason.NO_ROOM
            | Reason.OVERFLOW
            | Reason.TOPIC_FULL
            | Reason.STORE_FAILED
            | Reason.EARLIER
            | Reason.DEFECT
        ):
            return SinkProblem(ResponseCode.INTERNAL_ERROR, failure.text)
        case other:
            assert_never(other)


class BodyUpload(Protocol):
    """Takes the body of one message as it arrives."""

    async def add(self, octets: bytes) -> None:
        """Take the next octets of the body. Raises Refused."""

    async def post(self, head: bytes, origin: Origin | None) -> Confirmation:
        """Post the message, whose body is complete. Raises Refused."""

    def close(self) -> None:
        """End it; a post that was made stays."""


class SinkTarget(Protocol):
    """The destination of the messages of a sink."""

    name: bytes
    """The name by which reports call the sink."""
    shown: bytes
    """Its name in the response to the lease."""

    async def uploads_from(self) -> int | None:
        """Return the length from which on the body of a message is uploaded; None if it is always held in
        memory. Raise Refused.
        """

    def push(self, found: "Spans") -> int:
        """Send the first of these messages at once to subscribers that have everything before them; return
        their number. The others are posted.
        """

    async def post(self, batch: EnvelopeBatch, sink: "SinkService") -> None:
        """Post these messages: tell `sink.posted` their number and their confirmation. Raises Refused."""

    async def upload(self, long: LongEnvelope, sink: "SinkService") -> BodyUpload | None:
        """Return the upload of a message that is as long as `uploads_from` said; None if it must be held in
        memory nevertheless. Raises Refused.
        """


class SinkService:
    """Serves one sink, from its ready response to the end of its connection."""

    def __init__(
        self, transport: Transport, context: Context, leased: LeasedSession, target: SinkTarget
    ) -> None:
        self._transport = transport
        self._context = context
        self._session = leased.session
        self._principal = leased.principal
        self.target = target
        self._from_openamq = leased.principal.is_openamq
        self._envelopes = EnvelopeReader(
            leased.session.max_message_bytes, from_openamq=leased.principal.is_openamq
        )
        self._posts = Posts()
        self._problem: SinkProblem | None = None
        self._finished = False
        self._reading = trio.CancelScope()
        self._admission = ReadAdmission(transport, context.memory, self._reading)
        self._uploads_from: float = math.inf
        """The octets of a body that is uploaded."""
        self._long_octets = LARGE_OCTETS
        """The octets of an envelope whose body is taken part by part."""
        self.published = 0
        """The number of messages that the client has sent so far."""

    @property
    def held(self) -> HeldOctets:
        """The memory that the connection holds, by purpose."""
        return HeldOctets(reading=self._admission.reading, unfinished=self._admission.unfinished)

    async def serve(self, received: bytes) -> None:
        """Post the messages that the client sends, `received` first; then respond with the outcome.

        Raises trio.BrokenResourceError if the connection breaks: then nothing is confirmed.
        """
        try:
            with self._reading:
                await self._read(received)
        finally:
            self._admission.close()
        if self._admission.is_evicted:
            self.fail(TOO_SLOW)
            self._context.log_eviction(self._transport, self._session.name, "to complete an envelope")
        # Give the memory of an incomplete envelope back before the posts settle: others may wait for it.
        self._envelopes.drop()
        # Wait for all posts, also for those before a problem.
        await self._posts.settled()
        problem = self._problem
        if problem is None:
            await self._transport.send(dmp_responses.encode(dmp_responses.stored(self._posts.stored)))
            return
        stored = dmp_responses.words_of_stored(self._posts.stored).decode()
        words = f"{stored}; {problem.why}"
        try:
            await self._transport.send(dmp_responses.encode(response(problem.code, words.encode())))
            await self._transport.finish_sending()  # the principal may read nothing for long
        finally:
            await self.report(f"{problem.code:d} {problem.code.indicator.decode()} {words}")

    @property
    def unconfirmed(self) -> int:
        """The number of messages that are posted and neither stored nor refused yet."""
        return self._posts.unconfirmed

    def fail(self, problem: SinkProblem) -> None:
        """Stop reading, and respond with this problem, unless there was one before.

        A failure to store replaces a problem that only ended the reading: after it, the stored messages may
        not be the first ones that the client sent.
        """
        before = self._problem
        lost = problem.code is ResponseCode.INTERNAL_ERROR
        if before is None or (lost and before.code in (ResponseCode.SYNTAX_ERROR, ResponseCode.NOT_ALLOWED)):
            self._problem = problem
        self._transport.ends(problem.why)
        self._reading.cancel()

    def shut_down(self, why: str) -> None:
        """Fail because the server ends the connection. If the client has finished, only wait for its
        posts.
        """
        if not self._finished:
            self.fail(SinkProblem(ResponseCode.NOT_ALLOWED, why))

    # -- reading -------------------------------------------------------------------------------------------

    async def _read(self, received: bytes) -> None:
        """Read envelopes until the client has finished, or there is a problem."""
        await self._admission.limit(self._session.rates.received, len(received))
        try:
            uploads_from = await self.target.uploads_from()
        except Refused as refused:
            self.fail(problem_of(refused.failure))
            return
        if uploads_from is not None:
            self._uploads_from = uploads_from
            self._long_octets = min(LARGE_OCTETS, uploads_from)
            self._envelopes.max_message = self._session.max_uploaded_bytes
        while True:
            if received:
                await self._take(received)
            received = self._admission.completed(await self._admission.receive())
            if not received:
                break
        self._finished = True
        if self._envelopes.unfinished:
            why = f"the connection ended {self._envelopes.unfinished} octets into an envelope"
            self.fail(SinkProblem(ResponseCode.SYNTAX_ERROR, why))

    async def _take(self, received: bytes) -> None:
        while received:
            received = await self._take_envelopes(received)

    async def _take_envelopes(self, received: bytes) -> bytes:
        """Post the messages of whole envelopes, and one long envelope. Return the octets received after
        it.
        """
        long: LongEnvelope | None = None
        published = self.published
        try:
            batch = await in_turns(self._envelopes.reading(received, self._push))
        except EnvelopeError as error:
            if error.batch is not None:
                await self._post(error.batch)
            self.fail(SinkProblem(ResponseCode.SYNTAX_ERROR, str(error)))
        else:
            await self._post(batch)
            if self.published > published:
                self._admission.finished()
            long = await self._take_long()
        self._admission.done()
        if long is not None:
            return await self._post_long(long)
        if self._envelopes.expected < self._uploads_from:
            await self._admission.hold(self._envelopes.expected)
        return b""

    # -- long envelopes ------------------------------------------------------------------------------------

    async def _take_long(self) -> LongEnvelope | None:
        """Return the unfinished envelope if it is long, and the fields before its body are there."""
        if self._envelopes.expected < self._long_octets:
            return None
        try:
            long = await in_turns(self._envelopes.taking_long(self._long_octets))
        except EnvelopeError as error:
            self.fail(SinkProblem(ResponseCode.SYNTAX_ERROR, str(error)))
            return None
        if long is None or not self._from_openamq:
            return long
        return replace(long, head=await in_turns(openamq.widening_head(long.head)))

    async def _post_long(self, long: LongEnvelope) -> bytes:
        """Take the body of a long envelope as it arrives, and post its message. Return the octets received
        after it.
        """
        if long.size < self._uploads_from:
            return await self._assemble(long)
        try:
            upload = await self.target.upload(long, self)
        except Refused as refused:
            self.fail(problem_of(refused.failure))
            return b""
        if upload is None:
            return await self._assemble(long)
        try:
            return await self._upload(upload, long)
        except Refused as refused:
            self.fail(problem_of(refused.failure))
            return b""
        finally:
            upload.close()

    async def _upload(self, upload: BodyUpload, long: LongEnvelope) -> bytes:
        """Upload the body, and post the message. Return the octets received after it. Raises Refused."""
        behind = await self._read_body(long, upload.add)
        if behind is None:
            return b""
        head = b"" if long.head == PLAIN_HEAD else long.head
        self.published += 1
        self.posted(1, await upload.post(head, origin(long.head)))
        return behind

    async def _assemble(self, long: LongEnvelope) -> bytes:
        """Hold the body in memory, and post the message. Return the octets received after it."""
        most = self._session.max_message_bytes
        if long.size > most:
            why = f"a body of {long.size} octets is above the limit of {most} of its topics"
            self.fail(SinkProblem(ResponseCode.SYNTAX_ERROR, why))
            return b""
        await self._admission.hold(NUMBER.size + len(long.head) + AFTER_HEAD + long.size)
        body = Assembly(long.size)

        async def add(octets: bytes) -> None:
            body.add(octets)

        behind = await self._read_body(long, add)
        if behind is None:
            return b""
        heads = [] if long.head == PLAIN_HEAD else [long.head]
        options = [long.options] if long.options else []
        await self._post_translated(EnvelopeBatch(body.batch(), heads, options))
        self._admission.finished()
        return behind

    async def _read_body(self, long: LongEnvelope, add: Callable[[bytes], Awaitable[None]]) -> bytes | None:
        """Add the octets of a body as they arrive. Return the octets received after it; None if the message
        must not be posted.
        """
        left = long.size
        received = long.body
        while True:
            await add(received[:left])
            behind = received[left:]
            left = max(0, left - len(received))
            self._admission.done()
            if not left:
                break
            received = self._admission.completed(await self._admission.receive())
            if not received:
                self._finished = True
                why = f"the connection ended {long.size - left} octets into the body of an envelope"
                self.fail(SinkProblem(ResponseCode.SYNTAX_ERROR, why))
                return None
        # After a post that failed, later messages must not be stored.
        return behind if self._problem is None else None

    # -- posts ---------------------------------------------------------------------------------------------

    def _push(self, found: "Spans") -> int:
        if self._problem is not None or found.count > FEW_ENVELOPES:
            return 0
        count = self.target.push(found)
        self.published += count
        self._posts.stored += count
        return count

    async def _post(self, batch: EnvelopeBatch) -> None:
        if not len(batch):
            return
        if self._from_openamq:
            batch = replace(batch, heads=await in_turns(openamq.widening_heads(batch.heads)))
        await self._post_translated(batch)

    async def _post_translated(self, batch: EnvelopeBatch) -> None:
        """Post messages whose heads are as the server keeps them."""
        self.published += len(batch)
        try:
            await self.target.post(batch, self)
        except Refused as refused:
            self.fail(problem_of(refused.failure))

    @property
    def has_failed(self) -> bool:
        """Whether there is a problem: then nothing more is posted."""
        return self._problem is not None

    def posted(self, count: int, confirmation: Confirmation) -> None:
        """Count `count` posted messages, and listen to their confirmation. After messages that were refused
        nothing more is posted.
        """
        self._posts.begin(count)
        if confirmation.refused is not None:
            self.fail(problem_of(confirmation.refused))

        def settle() -> None:
            problem = self._posts.settle(count, confirmation)
            if problem is not None:
                self.fail(problem)

        confirmation.listen(settle)

    async def report(self, what: str) -> None:
        """Tell the principal what happened here; the log, if the principal cannot be told."""
        if not await self._principal.report(DmpEnd.SINK, self.target.name, what):
            peer, topic = self._transport.peer(), self.target.name
            self._context.undelivered_reports.add(
                f"{peer}: sink {quoted(topic)}: {what}", peer=peer, topic=topic
            )
