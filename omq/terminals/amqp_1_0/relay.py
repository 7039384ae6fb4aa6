"""The anonymous relay: a link on which each message has its own address, in its field `to`.

Source: AMQP Anonymous Terminus.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, repeat

import trio

from omq.access.direct import Direct
from omq.access.rights import Right
from omq.access.session import Session
from omq.drivers.confirmation import Confirmation
from omq.drivers.direct_memory import SHORT_OUTCOME
from omq.drivers.reasons import DELETED, Failure, Refused
from omq.drivers.seam import Accepted, Outcome
from omq.drivers.sequences import Origin
from omq.protocol.amqp_1_0 import annotations, sections, serials, stored
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.link import ReceivingLink
from omq.protocol.amqp_1_0.long_messages import Beginning, LongMessage, LongOpening
from omq.protocol.amqp_1_0.performatives import Target
from omq.protocol.amqp_1_0.runs import TransferRun
from omq.protocol.amqp_1_0.types import DecodeError
from omq.terminals.amqp_1_0.address_resolver import AddressResolver
from omq.terminals.amqp_1_0.addresses import DirectAddress
from omq.terminals.amqp_1_0.idempotent import read_origins
from omq.terminals.amqp_1_0.posted import Posted, PostedDeliveries, Told, failed
from omq.terminals.amqp_1_0.producing import Producing
from omq.terminals.amqp_1_0.refusals import condition_of, problem_of, rejection
from omq.terminals.amqp_1_0.told_outcomes import OutcomeMemory
from omq.terminals.amqp_1_0.uploading import UploadedMessage, begun
from omq.terminals.connection.held import HeldPublishes
from omq.terminals.connection.last_outcomes import settled
from omq_storage.batches import Batch, Bodies

RUNS_IN_TURN = 16
"""The number of posts of one read after which the other connections have their turn."""


@dataclass(slots=True)
class _Run:
    """Consecutive messages of one read for one address, which are posted together."""

    bodies: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    deliveries: list[int | None] = field(default_factory=list)
    long: Batch | None = None
    """A long message by itself, because joining copies it. Then `bodies` is empty."""

    def batch(self) -> Batch:
        """Return the bodies."""
        return Bodies(self.bodies) if self.long is None else self.long

    def keep(self, good: Sequence[bool]) -> None:
        """Remove the messages that are not `good`."""
        if self.long is None:
            self.bodies = list(compress(self.bodies, good))
        self.heads = list(compress(self.heads, good))
        self.deliveries = list(compress(self.deliveries, good))


class Relay(Producing):
    """One such link. The rights of the client are checked for the address of each message.

    Every message uses credit until its outcome is known, even one that the client sent as settled. So a slow
    receiver delays this link, and one link cannot fill the memory, which would make the server drop messages.
    """

    def __init__(
        self,
        link: ReceivingLink,
        session: Session,
        direct: Direct,
        finder: AddressResolver,
        credit: int,
        wake: Callable[["Relay"], None],
        held: HeldPublishes,
    ) -> None:
        """Create a relay that has received nothing. `wake` is called when there are outcomes to send.
        Messages without room may be `held`.
        """
        super().__init__(link, session.max_message_bytes, credit)
        self._session = session
        self._direct = direct
        self._finder = finder
        self._wake = wake
        self._held = held
        self._runs: dict[bytes, list[_Run]] = {}
        """The keys are encoded addresses."""
        self._told: list[Told] = []
        """Outcomes that were not sent to the client yet."""
        self._outcomes = OutcomeMemory(link, direct.outcomes)
        self._failure: Failure | None = None
        """The reason why messages of idempotent producers were not stored."""
        self._storing: dict[Confirmation, None] = {}
        """The posts that are on their way to a store."""

    @property
    def address(self) -> None:
        return None

    def accept(self, target: bytes) -> None:
        """Answer the attach, and let the client begin."""
        self.link.accept(target, self._session.max_uploaded_bytes)
        self.link.grant(self._credit)

    def close(self) -> None:
        self.abort()
        self._runs.clear()
        self._storing.clear()
        self._told.clear()
        self._outcomes.free()

    # -- messages ------------------------------------------------------------------------------------------

    def _take(self, delivery: int, message: bytes, *, settled: bool) -> None:
        wanted = None if settled else delivery
        try:
            places = sections.find(message)
            made = stored.store_sections(message, places)
            to = sections.to(message, places)
        except DecodeError as problem:
            self._refuse(delivery, Condition.DECODE_ERROR, str(problem), settled=settled)
        else:
            self._add(to, made, wanted)

    def _take_long(self, delivery: int, message: LongMessage, *, settled: bool) -> None:
        wanted = None if settled else delivery
        try:
            made, to = message.stored(), message.to()
        except DecodeError as problem:
            self._refuse(delivery, Condition.DECODE_ERROR, str(problem), settled=settled)
        else:
            self.unconfirmed += 1
            self._runs.setdefault(to, []).append(_Run([], [made.head], [wanted], made.batch))

    def _refuse(self, delivery: int, condition: Condition, text: str, *, settled: bool) -> None:
        self.unconfirmed += 1
        self._end(None if settled else delivery, rejection(condition, text))

    def take_run(self, run: TransferRun) -> None:
        heads = repeat(b"") if run.heads is None else run.heads
        for number, (body, head) in enumerate(zip(run.batch.bodies(), heads, strict=False)):
            delivery = None if run.settled else serials.add(run.delivery, number)
            around = stored.around(head) or stored.PLAIN
            try:
                to = sections.to(around.before, sections.find(around.before))
            except DecodeError as problem:
                self.unconfirmed += 1
                self._end(delivery, rejection(Condition.DECODE_ERROR, str(problem)))
            else:
                self._add(to, stored.Stored(head, body), delivery)

    def _add(self, to: bytes, made: stored.Stored, wanted: int | None) -> None:
        self.unconfirmed += 1
        runs = self._runs.setdefault(to, [])
        if not runs or runs[-1].long is not None:
            runs.append(_Run())
        run = runs[-1]
        run.bodies.append(made.body)
        run.heads.append(made.head)
        run.deliveries.append(wanted)

    async def flush(self) -> None:
        """Post the messages that were taken from the protocol, and wait while there is no room for them.

        Raises LinkProblem.
        """
        taken, self._runs = self._runs, {}
        for number, (to, run) in enumerate(((to, run) for to, runs in taken.items() for run in runs), 1):
            self._look_failed()
            try:
                await self._send(to, run)
            except Refused as refused:
                self._reject(run, condition_of(refused.reason), str(refused))
            except LinkProblem as problem:
                self._reject(run, problem.condition, problem.text)
            if not number % RUNS_IN_TURN:
                await trio.lowlevel.checkpoint()

    async def _send(self, to: bytes, run: _Run) -> None:
        found = await self._finder.find(Right.PUBLISH, Target(to))
        if isinstance(found, DirectAddress):
            assert found.name is not None, "only a dynamic terminus has no name"
            self._relay(found.name, run)
            return
        origins: Sequence[Origin | None] = ()
        if annotations.may_have_origins(run.heads):
            origins = await self._read_origins(run)
            if not run.deliveries:
                return
            if origins:
                self._look_failed()  # a post may have failed since this run began
        heads = run.heads if any(run.heads) else ()
        try:
            offered = await self._held.post(found.name, run.batch(), heads, origins)
        except Refused as refused:
            offered = failed(refused.failure)
        if offered is None:
            offered = failed(DELETED)
        if origins:
            self._note_failure(offered)
            offered.listen(partial(self._note_failure, offered))
        deliveries = [PostedDeliveries(delivery, 1) for delivery in run.deliveries]
        self._listen(Posted(deliveries, len(deliveries), offered))

    async def _begin_upload(
        self, beginning: Beginning, opening: LongOpening, *, is_alone: bool
    ) -> UploadedMessage | None:
        await self.flush()
        try:
            found = await self._finder.find(Right.PUBLISH, Target(opening.to()))
        except (DecodeError, LinkProblem, Refused):
            return None  # it is rejected when it is complete
        if isinstance(found, DirectAddress):
            return None
        return await begun(self._session, self._held, found.name, beginning, opening, is_alone=is_alone)

    async def _post_uploaded(
        self, delivery: int | None, message: UploadedMessage, head: bytes, origin: Origin | None
    ) -> None:
        self._look_failed()
        self.unconfirmed += 1
        confirmation = await message.post(head, origin)
        if origin is not None:
            confirmation.listen(partial(self._note_failure, confirmation))
        self._listen(Posted([PostedDeliveries(delivery, 1)], 1, confirmation))

    async def _read_origins(self, run: _Run) -> Sequence[Origin | None]:
        """Reject the messages of a run whose annotations of a producer make no sense, and remove them. Return
        the origins of the others.
        """
        origins, problems = await read_origins(run.heads)
        if problems:
            for index, text in problems.items():
                self._end(run.deliveries[index], rejection(Condition.INVALID_FIELD, text))
            good = [index not in problems for index in range(len(run.deliveries))]
            run.keep(good)
            origins = list(compress(origins, good))
        return origins if any(origins) else ()

    def _note_failure(self, confirmation: Confirmation) -> None:
        self._failure = self._failure or confirmation.failure or confirmation.refused

    def _look_failed(self) -> None:
        """Raise LinkProblem if messages of idempotent producers were not stored. If later ones were stored,
        these would be taken for repeated when the client sends them again.
        """
        if self._failure is not None:
            raise problem_of(self._failure)

    def _relay(self, name: bytes, run: _Run) -> None:
        ones = [Bodies([body]) for body in run.bodies] if run.long is None else [run.long]
        for one, head, delivery in zip(ones, run.heads, run.deliveries, strict=True):
            try:
                done = partial(self._done, delivery)
                self._direct.relay(name, one, head, done, settled=delivery is None)
            except Refused as refused:
                self._end(delivery, rejection(condition_of(refused.reason), str(refused)))

    # -- outcomes ------------------------------------------------------------------------------------------

    def _reject(self, run: _Run, condition: Condition, text: str) -> None:
        state = rejection(condition, text)
        for delivery in run.deliveries:
            self._end(delivery, state)

    def _listen(self, posted: Posted) -> None:
        """Tell the outcomes of a post when they are known."""
        self._storing[posted.confirmation] = None
        posted.confirmation.listen(partial(self._stored, posted))

    def _stored(self, posted: Posted) -> None:
        self._storing.pop(posted.confirmation, None)
        self.unconfirmed -= posted.count
        self.undelivered += posted.failures()
        self._told.extend(posted.told())
        self._wake(self)

    def _done(self, delivery: int | None, outcome: Outcome, told: bytes) -> None:
        is_short = delivery is None or 0 < len(told) <= SHORT_OUTCOME
        state = told if is_short else self._outcomes.keep(outcome, told)
        self._end(delivery, state, is_accepted=isinstance(outcome, Accepted))

    def _end(self, delivery: int | None, state: bytes, *, is_accepted: bool = False) -> None:
        """Count the outcome of a message, and send it to the client if the message has a delivery-id."""
        self.unconfirmed -= 1
        self.undelivered += not is_accepted
        if delivery is not None:
            self._told.append((delivery, delivery, state))
        self._wake(self)

    @property
    def is_storing(self) -> bool:
        return bool(self._storing)

    async def stored(self) -> None:
        for confirmation in list(self._storing):
            await settled(confirmation)

    def tell(self) -> None:
        """Send the client the outcomes that are known, and renew its credit. Raises LinkProblem."""
        self.tell_outcomes()
        if self.link.is_attached:
            self._look_failed()
            self.renew()

    def tell_outcomes(self) -> None:
        told, self._told = self._told, []
        self._outcomes.free()
        if told and self.link.is_attached:
            first = told[0][0]
            told.sort(key=lambda each: serials.difference(each[0], first))
            self._settle(told)

    def renew(self) -> None:
        """Grant the client the configured credit, less the messages without an outcome."""
        room = self._credit - self.unconfirmed
        if self.link.credit <= self._credit // 2 and room > self.link.credit:
            self.link.grant(room)
