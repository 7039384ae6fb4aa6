"""A link on which the client sends. Its messages of one read are one post; credit follows the posts."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress

import msgspec

from omq.access.session import Session
from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Refused
from omq.drivers.sequences import Origin
from omq.protocol.amqp_1_0 import annotations, stored
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.link import ReceivingLink
from omq.protocol.amqp_1_0.long_messages import LONG_OCTETS, Beginning, LongMessage, LongOpening
from omq.protocol.amqp_1_0.runs import TransferRun
from omq.protocol.amqp_1_0.types import DecodeError
from omq.terminals.amqp_1_0.idempotent import read_origins
from omq.terminals.amqp_1_0.posted import Posted, PostedDeliveries, failed
from omq.terminals.amqp_1_0.producing import Producing
from omq.terminals.amqp_1_0.refusals import problem_of, rejection
from omq.terminals.amqp_1_0.uploading import UploadedMessage, begun
from omq.terminals.connection.held import HeldPublishes
from omq.terminals.connection.last_outcomes import settled
from omq_storage.batches import Batch, Bodies, joined


class _Run(msgspec.Struct, frozen=True):
    """Messages of one read that are posted together."""

    batch: Batch
    heads: Sequence[bytes]
    deliveries: list[PostedDeliveries]


def _joined(runs: Sequence[_Run]) -> _Run:
    """Return the messages of all runs as one run."""
    if len(runs) == 1:
        return runs[0]
    heads: list[bytes] = []
    if any(run.heads for run in runs):
        for run in runs:
            heads += run.heads or [b""] * run.batch.count
    deliveries = [each for run in runs for each in run.deliveries]
    return _Run(joined([run.batch for run in runs]), heads, deliveries)


def _together(runs: Sequence[_Run]) -> int:
    """Return the number of these runs that are posted together: a long message alone, because joining copies
    it.
    """
    longs = (number for number, run in enumerate(runs) if run.batch.longest >= LONG_OCTETS)
    return max(1, next(longs, len(runs)))


class Incoming(Producing):
    """One link, and the messages that came on it."""

    def __init__(
        self,
        link: ReceivingLink,
        session: Session,
        name: bytes,
        credit: int,
        wake: Callable[["Incoming"], None],
        held: HeldPublishes,
    ) -> None:
        """Create a producer that has sent nothing. `wake` is called when there may be outcomes to tell.
        Messages without room may be `held`.
        """
        super().__init__(link, session.max_message_bytes, credit)
        self._session = session
        self._name = name
        self._wake = wake
        self._held = held
        self._bodies: list[bytes] = []
        self._heads: list[bytes] = []
        self._deliveries: list[PostedDeliveries] = []
        """The deliveries of `_bodies`."""
        self._runs: list[_Run] = []
        """The messages before `_bodies` in this read."""
        self._posted: deque[Posted] = deque()
        self._failure: Failure | None = None
        """The reason why a post of idempotent producers failed, or will fail."""

    @property
    def address(self) -> bytes:
        return self._name

    def accept(self, target: bytes) -> None:
        """Answer the attach, and let the client begin."""
        self.link.accept(target, self._session.longest_to(self._name))
        self.link.grant(self._credit)

    # -- messages of a read --------------------------------------------------------------------------------

    def _take(self, delivery: int, message: bytes, *, settled: bool) -> None:
        try:
            made = stored.store(message)
        except DecodeError as problem:
            self._refuse(delivery, Condition.DECODE_ERROR, str(problem), settled=settled)
            return
        self._bodies.append(made.body)
        self._heads.append(made.head)
        self._deliveries.append(PostedDeliveries(None if settled else delivery, 1))

    def _take_long(self, delivery: int, message: LongMessage, *, settled: bool) -> None:
        try:
            made = message.stored()
        except DecodeError as problem:
            self._refuse(delivery, Condition.DECODE_ERROR, str(problem), settled=settled)
            return
        self._end_bodies()
        deliveries = [PostedDeliveries(None if settled else delivery, 1)]
        self._runs.append(_Run(made.batch, [made.head] if made.head else (), deliveries))

    def _refuse(self, delivery: int, condition: Condition, text: str, *, settled: bool) -> None:
        self.undelivered += 1
        if not settled:
            self._reject(delivery, condition, text)
        self.renew()

    def take_run(self, run: TransferRun) -> None:
        self._end_bodies()
        heads: Sequence[bytes] = () if run.heads is None else run.heads
        first = None if run.settled else run.delivery
        self._runs.append(_Run(run.batch, heads, [PostedDeliveries(first, run.batch.count)]))

    def _end_bodies(self) -> None:
        """End the run of whole messages: the next frame is a part of a message."""
        if self._bodies:
            heads = self._heads if any(self._heads) else ()
            self._runs.append(_Run(Bodies(self._bodies), heads, self._deliveries))
            self._bodies, self._heads, self._deliveries = [], [], []

    async def flush(self) -> None:
        """Post the messages that were taken. Wait while there is no room for them, or hold them if the client
        consumes from queues. Raises LinkProblem.
        """
        self._end_bodies()
        while self._runs:
            together = _together(self._runs)
            run = _joined(self._runs[:together])
            origins: Sequence[Origin | None] = ()
            if run.heads and annotations.may_have_origins(run.heads):
                run, origins = await self._read_origins(run)
            del self._runs[:together]
            self._look_failed()
            if run.batch.count:
                await self._post(run, origins)

    async def _post(self, run: _Run, origins: Sequence[Origin | None]) -> None:
        batch, heads = run.batch, run.heads
        try:
            offered = await self._held.post(self._name, batch, heads, origins)
            if offered is None:
                raise LinkProblem(Condition.RESOURCE_DELETED, "the topic was deleted")
        except Refused as refused:
            offered = failed(refused.failure)
        self._listen(Posted(run.deliveries, batch.count, offered), has_origins=bool(origins))

    def _listen(self, posted: Posted, *, has_origins: bool) -> None:
        """Tell the outcomes of a post when they are known."""
        offered = posted.confirmation
        self._posted.append(posted)
        self.unconfirmed += posted.count
        if has_origins:
            self._note_failure(offered)
            offered.listen(partial(self._note_failure, offered))
        if offered.settled:
            self.tell()
        else:
            offered.listen(partial(self._wake, self))

    async def _begin_upload(
        self, beginning: Beginning, opening: LongOpening, *, is_alone: bool
    ) -> UploadedMessage | None:
        await self.flush()
        return await begun(self._session, self._held, self._name, beginning, opening, is_alone=is_alone)

    async def _post_uploaded(
        self, delivery: int | None, message: UploadedMessage, head: bytes, origin: Origin | None
    ) -> None:
        self._look_failed()
        confirmation = await message.post(head, origin)
        posted = Posted([PostedDeliveries(delivery, 1)], 1, confirmation)
        self._listen(posted, has_origins=origin is not None)

    async def _read_origins(self, run: _Run) -> tuple[_Run, Sequence[Origin | None]]:
        """Reject the messages whose annotations of a producer make no sense. Return the others, and their
        origins.
        """
        origins, problems = await read_origins(run.heads)
        if problems:
            deliveries = [one for each in run.deliveries for one in each.singly()]
            if self.link.is_attached:
                for index, text in problems.items():
                    self.undelivered += 1
                    if (delivery := deliveries[index].first) is not None:
                        self._reject(delivery, Condition.INVALID_FIELD, text)
            good = [index not in problems for index in range(run.batch.count)]
            bodies = list(compress(run.batch.bodies(), good))
            heads = list(compress(run.heads, good))
            run = _Run(Bodies(bodies), heads, list(compress(deliveries, good)))
            origins = list(compress(origins, good))
        return run, origins if any(origins) else ()

    def _note_failure(self, confirmation: Confirmation) -> None:
        self._failure = self._failure or confirmation.failure or confirmation.refused

    def _look_failed(self) -> None:
        """Raise LinkProblem if a post of idempotent producers has failed. If later messages were stored, the
        failed ones would be taken for repeated when the client sends them again.
        """
        if self._failure is not None:
            raise problem_of(self._failure)

    # -- outcomes ------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Tell the client the outcomes that are known, and renew its credit. Raises LinkProblem."""
        self.tell_outcomes()
        if self.link.is_attached:
            self._look_failed()
            self.renew()

    def tell_outcomes(self) -> None:
        if not self.link.is_attached:
            self._posted.clear()
            self.unconfirmed = 0
            return
        # Outcomes may be told in any order, and each post of a topic is settled after the ones before.
        while self._posted and self._posted[0].confirmation.settled:
            posted = self._posted.popleft()
            self.unconfirmed -= posted.count
            self.undelivered += posted.failures()
            self._settle(posted.told())

    @property
    def is_storing(self) -> bool:
        return bool(self._posted)

    async def stored(self) -> None:
        for posted in list(self._posted):
            await settled(posted.confirmation)

    def _reject(self, delivery: int, condition: Condition, text: str) -> None:
        self.link.session.settle(delivery, delivery, rejection(condition, text))

    def close(self) -> None:
        """Tell the link nothing more."""
        self.abort()
        self._bodies, self._heads, self._deliveries, self._runs = [], [], [], []
        self._posted.clear()
        self.unconfirmed = 0

    def renew(self) -> None:
        """Grant the client the credit of the configuration minus its unsettled messages."""
        unposted = len(self._bodies) + sum(run.batch.count for run in self._runs)
        room = self._credit - self.unconfirmed - unposted
        if self.link.credit <= self._credit // 2 and room > self.link.credit:
            self.link.grant(room)
