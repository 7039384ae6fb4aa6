"""A link on which the client sends. Its messages of one read are one post; credit follows the posts."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from omq.access.session import Session
from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Reason, Refused
from omq.protocol.amqp_1_0 import performatives, stored
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.events import Part, Run
from omq.protocol.amqp_1_0.link import ReceivingLink
from omq.protocol.amqp_1_0.types import DecodeError
from omq.terminals.amqp_1_0.refusals import condition_of
from omq.terminals.connection.liveness import Excuse
from omq_storage.batches import Bodies

ACCEPTED = performatives.write(performatives.Accepted())
RELEASED = performatives.write(performatives.Released())


@dataclass(frozen=True, slots=True)
class _Posted:
    """Messages of one post, whose outcomes are not told yet."""

    deliveries: Sequence[range]
    """The delivery-ids of the messages, in their order; nothing of those that came settled."""
    count: int
    confirmation: Confirmation


class Incoming:
    """One link, and what came on it."""

    def __init__(
        self,
        link: ReceivingLink,
        session: Session,
        name: bytes,
        credit: int,
        wake: Callable[["Incoming"], None],
        excused: Excuse,
    ) -> None:
        """`wake` is called when there may be outcomes to tell. Within `excused` the silence of the client
        does not count.
        """
        self.link = link
        self._session = session
        self._name = name
        self._credit = credit
        self._wake = wake
        self._excused = excused
        self._bodies: list[bytes] = []
        self._heads: list[bytes] = []
        self._deliveries: list[range] = []
        self._settled: list[bool] = []
        self._posted: deque[_Posted] = deque()
        self._parts = bytearray()
        self._size = 0
        self.unconfirmed = 0
        """The messages whose posts are not settled."""

    @property
    def held(self) -> int:
        """The octets of a message that is not complete."""
        return self._size

    def accept(self, target: bytes) -> None:
        """Answer the attach, and let the client begin."""
        self.link.accept(target, self._session.max_message_bytes)
        self.link.grant(self._credit)

    # -- messages of a read --------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        """Take whole messages. Raises LinkProblem."""
        for index, message in enumerate(run.messages):
            self._take(run.first + index, message, settled=run.settled)

    def add_part(self, part: Part) -> None:
        """Take a part of a message. Raises LinkProblem."""
        self._size += len(part.octets)
        self._check(self._size)
        self._parts += part.octets
        if part.ends:
            message = bytes(self._parts)
            self.abort()
            self._take(part.delivery, message, settled=part.settled)

    def abort(self) -> None:
        """Forget the message that is not complete."""
        self._parts = bytearray()
        self._size = 0

    def _check(self, size: int) -> None:
        most = self._session.max_message_bytes
        if size > most:
            raise LinkProblem(Condition.MESSAGE_SIZE_EXCEEDED, f"a message has at most {most} octets")

    def _take(self, delivery: int, message: bytes, *, settled: bool) -> None:
        self._check(len(message))
        try:
            made = stored.store(message)
        except DecodeError as problem:
            if not settled:
                self._reject(delivery, Condition.DECODE_ERROR, str(problem))
            self._renew()
            return
        self._bodies.append(made.body)
        self._heads.append(made.head)
        self._deliveries.append(range(delivery, delivery + 1))
        self._settled.append(settled)

    async def flush(self) -> None:
        """Post what was taken, and wait while there is no room for it. Raises LinkProblem."""
        if not self._bodies:
            return
        bodies, self._bodies = self._bodies, []
        heads, self._heads = self._heads, []
        ids, self._deliveries = self._deliveries, []
        settled, self._settled = self._settled, []
        try:
            offered = self._session.offer(self._name, Bodies(bodies), heads if any(heads) else ())
            if offered is None:
                raise LinkProblem(Condition.RESOURCE_DELETED, "the topic was deleted")
            if not isinstance(offered, Confirmation):
                with self._excused:
                    offered = await offered.taken()
        except Refused as refused:
            confirmation = Confirmation()
            confirmation.settle(refused.failure)
            offered = confirmation
        unsettled = [
            each if not is_settled else range(0) for each, is_settled in zip(ids, settled, strict=True)
        ]
        self._posted.append(_Posted(unsettled, len(bodies), offered))
        self.unconfirmed += len(bodies)
        if offered.settled:
            self.tell()
        else:
            offered.listen(partial(self._wake, self))

    # -- outcomes ------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Tell the client the outcomes that are known, and renew its credit."""
        if not self.link.is_attached:
            self._posted.clear()
            self.unconfirmed = 0
            return
        # Outcomes may be told in any order, and each post of a topic is settled after the ones before.
        while self._posted and self._posted[0].confirmation.settled:
            posted = self._posted.popleft()
            self.unconfirmed -= posted.count
            at = 0
            for count, failure in posted.confirmation.outcomes(posted.count):
                self._tell(posted.deliveries[at : at + count], failure)
                at += count
        self._renew()

    def _tell(self, deliveries: Sequence[range], failure: Failure | None) -> None:
        state = ACCEPTED if failure is None else _state_of(failure)
        first = last = -1
        for each in deliveries:
            if not each:
                continue
            if first >= 0 and each.start != last + 1:
                self.link.session.settle(first, last, state)
                first = -1
            first, last = (each.start if first < 0 else first), each.start
        if first >= 0:
            self.link.session.settle(first, last, state)

    def _reject(self, delivery: int, condition: Condition, text: str) -> None:
        self.link.session.settle(delivery, delivery, rejection(condition, text))

    def close(self) -> None:
        """Nothing is to be told any more."""
        self._posted.clear()
        self.unconfirmed = 0

    def _renew(self) -> None:
        """The client may send what the configured credit leaves beside what is not settled."""
        room = self._credit - self.unconfirmed - len(self._bodies)
        if self.link.credit <= self._credit // 2 and room > self.link.credit:
            self.link.grant(room)


def _state_of(failure: Failure) -> bytes:
    """A message for a topic that was deleted may be sent again, to one of the same name; another failure is
    about this message.
    """
    if failure.reason is Reason.DELETED:
        return RELEASED
    return rejection(condition_of(failure.reason), failure.text)


def rejection(condition: Condition, text: str) -> bytes:
    """Return the state that rejects a message."""
    error = performatives.write(performatives.Error(condition.value, text))
    return performatives.write(performatives.Rejected(error))
