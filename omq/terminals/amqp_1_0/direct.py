"""Links to nodes without queues, which pass on each message at once, and its outcome back."""

from collections.abc import Callable, Sequence
from functools import partial

from omq.access.direct import Direct
from omq.drivers.direct import DirectNode
from omq.drivers.direct_channel import DirectChannel, TellOutcome
from omq.drivers.direct_memory import SHORT_OUTCOME
from omq.drivers.reasons import Refused
from omq.drivers.seam import Accepted, Octets, Outcome, Rejected
from omq.protocol.amqp_1_0 import events, serials, stored
from omq.protocol.amqp_1_0.conditions import Condition
from omq.protocol.amqp_1_0.link import ReceivingLink
from omq.protocol.amqp_1_0.long_messages import LongMessage
from omq.protocol.amqp_1_0.runs import TransferRun
from omq.protocol.amqp_1_0.types import DecodeError
from omq.terminals.amqp_1_0.outgoing import Outgoing, outcome_of
from omq.terminals.amqp_1_0.posted import Told
from omq.terminals.amqp_1_0.producing import Producing
from omq.terminals.amqp_1_0.refusals import condition_of, rejection
from omq.terminals.amqp_1_0.told_outcomes import OutcomeMemory
from omq_storage.batches import Batch, Bodies


class DirectOutgoing(Outgoing[DirectChannel]):
    """A consumer of a node."""

    made: DirectNode | None = None
    """The node, if it was made for this link."""
    end_node: Callable[[DirectNode], None]
    """Ends that node."""
    woken: Callable[["DirectOutgoing"], None]
    """Called when there may be messages: `send_soon` or `frames_at_once` follows."""

    def wake(self) -> None:
        if self._is_wanted():
            self.woken(self)

    def send_soon(self) -> None:
        """Let the sending task send the messages."""
        super().wake()

    def frames_at_once(self, octets: int) -> Sequence[Octets]:
        """Return the frames of messages with at most about N `octets`. They count as sent. Other messages
        wait for the sending task.
        """
        channel = self.channel
        if channel is None or not self._may_send():
            return ()
        if self._begun is not None:
            self.send_soon()
            return ()
        parts: Sequence[Octets] = ()
        if selections := channel.take_at_once(octets):
            parts = self._form.whole(selections)
            count = self._form.framed
            self._sender.delivered += count
            channel.written(count)
            channel.traffic.octets_out += sum(map(len, parts))
            self._sent(channel)
        if channel.ready() and self._may_send():
            self.send_soon()
        return parts

    def settle(self, ids: range, told: events.SettledByPeer) -> None:
        if self.channel is not None:
            self.channel.settle_as(ids, outcome_of(told.state), told.told)

    def close(self) -> None:
        if self.made is not None:
            self.made.retire()
        super().close()
        if self.made is not None:
            self.end_node(self.made)


class DirectIncoming(Producing):
    """A producer of a node (`omq.drivers.direct.NodeProducer`)."""

    knows_producers = False

    def __init__(
        self,
        link: ReceivingLink,
        direct: Direct,
        max_message_bytes: int,
        credit: int,
        wake: Callable[["DirectIncoming"], None],
        ended: Callable[["DirectIncoming"], None],
    ) -> None:
        """Create a producer without a node. `wake` is called when there are outcomes to send, `ended` when
        the node is gone.
        """
        super().__init__(link, max_message_bytes, credit)
        link.keeps_lifetimes = False  # a node keeps no messages
        self._direct = direct
        self._wake = wake
        self._ended = ended
        self._node: DirectNode | None = None
        self._end_node: Callable[[DirectNode], None] | None = None
        """Ends the node, if it was made for this link."""
        self._told: list[Told] = []
        """Outcomes that were not sent to the client yet."""
        self._outcomes = OutcomeMemory(link, direct.outcomes)
        self._must_renew = False

    @property
    def address(self) -> bytes | None:
        return None if self._node is None else self._node.name

    def counts_stall(self) -> bool:
        if self._node is None:
            return False
        self._node.count_stall()
        return True

    def accept(self, name: bytes, target: bytes) -> None:
        """Attach it to its node, and answer the attach. Raises Refused."""
        self._begin(self._direct.produce(name, self), target)

    def make(self, answer: Callable[[DirectNode], bytes]) -> None:
        """Attach it to a new node, which ends with it. `answer` returns the target, which has its name."""
        node = self._direct.make(self)
        self._end_node = self._direct.end
        self._begin(node, answer(node))

    def _begin(self, node: DirectNode, target: bytes) -> None:
        self._node = node
        self.link.accept(target, self._most)
        self.link.grant(node.room(self, self._credit))

    def close(self) -> None:
        """Leave the node, or end it if it was made for this link."""
        node, self._node = self._node, None
        if node is not None:
            node.detach(self)
            if self._end_node is not None:
                self._end_node(node)
        self._told.clear()
        self._outcomes.free()

    # -- messages ------------------------------------------------------------------------------------------

    def _take(self, delivery: int, message: bytes, *, settled: bool) -> None:
        wanted = None if settled else delivery
        try:
            made = stored.store(message)
        except DecodeError as problem:
            self._refuse(delivery, Condition.DECODE_ERROR, str(problem), settled=settled)
        else:
            self._offer(Bodies([made.body]), made.head, wanted)

    def _take_long(self, delivery: int, message: LongMessage, *, settled: bool) -> None:
        wanted = None if settled else delivery
        try:
            made = message.stored()
        except DecodeError as problem:
            self._refuse(delivery, Condition.DECODE_ERROR, str(problem), settled=settled)
        else:
            self._offer(made.batch, made.head, wanted)

    def _refuse(self, delivery: int, condition: Condition, text: str, *, settled: bool) -> None:
        self._reject(self._begun(None if settled else delivery), condition, text)

    def take_run(self, run: TransferRun) -> None:
        for number in range(run.batch.count):
            one = run.batch.part(number, number + 1)
            head = b"" if run.heads is None else run.heads[number]
            self._offer(one, head, None if run.settled else serials.add(run.delivery, number))

    def _offer(self, one: Batch, head: bytes, delivery: int | None) -> None:
        node, done = self._node, self._begun(delivery)
        if node is None:
            return  # its link is detached
        try:
            self._direct.offer(node, one, head, done, settled=delivery is None)
        except Refused as refused:
            self._reject(done, condition_of(refused.reason), str(refused))

    def _begun(self, delivery: int | None) -> TellOutcome:
        """Count a message that came, and return the object that receives its outcome. The client wants to
        know it if the message has a delivery-id here.
        """
        node, credit = self._node, self.link.credit
        # The last condition is for consumers that give less than half of it: each message gets there.
        if credit <= self._credit // 2 and node is not None and node.room(self, self._credit) > credit:
            self.renew()
        self.unconfirmed += 1
        return partial(self._done, delivery)

    def _reject(self, done: TellOutcome, condition: Condition, text: str) -> None:
        done(Rejected(), rejection(condition, text))

    async def flush(self) -> None:
        """Do nothing: each message is offered at once."""

    is_storing = False

    async def stored(self) -> None:
        """Do nothing: a node has no store."""

    # -- outcomes ------------------------------------------------------------------------------------------

    def _done(self, delivery: int | None, outcome: Outcome, told: bytes) -> None:
        self.unconfirmed -= 1
        self.undelivered += not isinstance(outcome, Accepted)
        if delivery is not None:
            is_short = 0 < len(told) <= SHORT_OUTCOME
            self._told.append((delivery, delivery, told if is_short else self._outcomes.keep(outcome, told)))
            self._wake(self)

    def renew(self) -> None:
        self._must_renew = True
        self._wake(self)

    def credited(self) -> None:
        self.renew()

    def node_ended(self) -> None:
        self._node = None
        self._ended(self)

    def tell_outcomes(self) -> None:
        told, self._told = self._told, []
        self._outcomes.free()
        if self.link.is_attached:
            self._settle(told)

    def tell(self) -> None:
        """Send the client the outcomes that are known, and renew its credit."""
        self.tell_outcomes()
        if self._must_renew and self._node is not None and self.link.is_attached:
            self._must_renew = False
            room = self._node.room(self, self._credit)
            if self.link.credit < room and self.link.credit <= self._credit // 2:
                self.link.grant(room)
