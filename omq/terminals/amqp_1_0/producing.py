"""The common part of all links on which the client sends: messages from their parts, and outcomes in runs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from omq.drivers.sequences import Origin
from omq.protocol.amqp_1_0 import annotations
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.events import Part
from omq.protocol.amqp_1_0.link import ReceivingLink
from omq.protocol.amqp_1_0.long_messages import Beginning, LongMessage, LongOpening, read_beginning
from omq.protocol.amqp_1_0.runs import TransferRun
from omq.protocol.amqp_1_0.types import DecodeError
from omq.terminals.amqp_1_0.posted import Told
from omq.terminals.amqp_1_0.uploading import UploadedMessage
from omq.terminals.connection.statistics import LinkStatistics


class Producing(ABC):
    """One link on which the client sends."""

    knows_producers = True
    """Whether it sends to a topic, which knows idempotent producers."""

    def __init__(self, link: ReceivingLink, max_message_bytes: int, credit: int) -> None:
        """Create a producer whose client may have `credit` at most."""
        self.link = link
        self._most = max_message_bytes
        self._credit = credit
        self._parts: bytearray | LongMessage = bytearray()
        self._uploaded: UploadedMessage | None = None
        """The message that is not complete, if its body goes to a disk."""
        self._given_up: str | None = None
        """The reason why the incomplete message is given up: its parts are dropped. None if it is not."""
        self._is_numbered = False
        """Whether these parts may be of an idempotent producer."""
        self.unconfirmed = 0
        """The number of messages without an outcome."""
        self._stalls = 0
        self._is_stalled = False
        self.undelivered = 0
        """The number of messages that were not accepted."""

    @property
    @abstractmethod
    def address(self) -> bytes | None:
        """The name of its topic or node; None if each message has an address of its own."""

    def statistics(self) -> LinkStatistics:
        """Return a snapshot of the link."""
        return LinkStatistics(
            name=self.link.name,
            address=self.address,
            credit=self.link.credit,
            unconfirmed=self.unconfirmed,
            stalls=self._stalls,
            undelivered=self.undelivered,
        )

    def has_stalled(self) -> bool:
        """Return whether the client has used up its credit since the last call, and has got none."""
        was, self._is_stalled = self._is_stalled, self.link.is_attached and not self.link.credit
        begins = self._is_stalled and not was
        self._stalls += begins
        return begins

    def counts_stall(self) -> bool:
        """Count a stall for the node to which the client sends. Return False if it sends to no node."""
        return False

    @property
    def held(self) -> int:
        """The octets of memory for a message that is not complete."""
        return self._parts.octets if isinstance(self._parts, LongMessage) else len(self._parts)

    def add(self, part: Part) -> None:
        """Take a message, or a part of one. Raises LinkProblem."""
        if self._given_up is not None and not part.begins:
            if part.ends:
                text, self._given_up = self._given_up, None
                self._refuse(part.delivery, Condition.RESOURCE_LIMIT_EXCEEDED, text, settled=part.settled)
                if self._is_numbered:  # later numbers must not be stored without this one
                    raise LinkProblem(Condition.RESOURCE_LIMIT_EXCEEDED, text)
            return
        if part.is_whole:
            self._look_size(len(part.octets))
            self._take(part.delivery, part.octets, settled=part.settled)
            return
        if part.begins and (beginning := read_beginning(part.octets)) is not None:
            self._look_size(beginning.octets)
            self._parts = LongMessage(beginning, part.octets)
        elif isinstance(self._parts, LongMessage):
            self._parts.add(part.octets)
        else:
            self._parts += part.octets
        self._look_size(self.held)
        if part.ends:
            message = self._parts
            self.abort()
            if isinstance(message, LongMessage):
                self._take_long(part.delivery, message, settled=part.settled)
            else:
                self._take(part.delivery, bytes(message), settled=part.settled)

    async def take_uploaded(self, part: Part, *, is_alone: bool) -> Part | None:
        """Take a part of a message whose body goes to a disk. Return the part that `add` must take: if it is
        not, or cannot be, such a message. `is_alone`: whether the connection has begun no other message.
        Raises LinkProblem.
        """
        octets = part.octets
        if part.begins:
            if (beginning := read_beginning(octets)) is None:
                return part
            message = await self._begin_upload(beginning, LongOpening(beginning, octets), is_alone=is_alone)
            if message is None:
                return part
            if not self.link.is_attached:  # its link ended meanwhile
                message.close()
                return None
            self._uploaded = message
            octets = octets[beginning.content :]
        if (message := self._uploaded) is None:
            return part
        await message.add(octets)
        if self._uploaded is not message:  # its link ended meanwhile
            return None
        if message.must_be_held:
            self._look_size(message.octets)
            whole = await message.whole()
            if whole is not None and self._uploaded is message:
                self.abort()
                self._parts = bytearray(whole)
                return msgspec.structs.replace(part, octets=b"", begins=False)
        if part.ends and self._uploaded is message:
            await self._end_upload(part, message)
            self.abort()
        return None

    async def _begin_upload(
        self, beginning: Beginning, opening: LongOpening, *, is_alone: bool
    ) -> UploadedMessage | None:
        """Begin a message, after those before it are posted; None if it must be held in memory. Raise
        LinkProblem.
        """
        return None

    async def _end_upload(self, part: Part, message: UploadedMessage) -> None:
        """Post a message, which is complete with this part. Raise LinkProblem."""
        try:
            head = message.head()
        except DecodeError as problem:
            self._refuse(part.delivery, Condition.DECODE_ERROR, str(problem), settled=part.settled)
            return
        try:
            origin = annotations.origin(head)
        except DecodeError as problem:
            self._refuse(part.delivery, Condition.INVALID_FIELD, str(problem), settled=part.settled)
            return
        await self._post_uploaded(None if part.settled else part.delivery, message, head, origin)

    async def _post_uploaded(
        self, delivery: int | None, message: UploadedMessage, head: bytes, origin: Origin | None
    ) -> None:
        """Post a message, and listen to its confirmation. Raise LinkProblem."""
        raise AssertionError("it uploads nothing")

    def _look_size(self, octets: int) -> None:
        if octets > self._most:
            raise LinkProblem(Condition.MESSAGE_SIZE_EXCEEDED, f"a message has at most {self._most} octets")

    def abort(self) -> None:
        """Forget the message that is not complete."""
        self._parts = bytearray()
        uploaded, self._uploaded = self._uploaded, None
        if uploaded is not None:
            uploaded.close()
        self._given_up = None

    def give_up(self, why: str) -> None:
        """Drop the message that is not complete, and reject it with this reason when its last part comes."""
        opening = self._parts.opening if isinstance(self._parts, LongMessage) else self._parts
        self._is_numbered = self.knows_producers and annotations.may_have_origins([bytes(opening)])
        self._parts = bytearray()
        self._given_up = why

    @abstractmethod
    def renew(self) -> None:
        """Renew the credit of the client: an aborted or rejected message uses none of it any more, or the
        client has used some of it up itself.
        """

    @abstractmethod
    def _take(self, delivery: int, message: bytes, *, settled: bool) -> None:
        """Take a complete message."""

    @abstractmethod
    def _take_long(self, delivery: int, message: LongMessage, *, settled: bool) -> None:
        """Take a complete message that came in long parts."""

    @abstractmethod
    def _refuse(self, delivery: int, condition: Condition, text: str, *, settled: bool) -> None:
        """Reject a message that cannot be taken."""

    @abstractmethod
    def take_run(self, run: TransferRun) -> None:
        """Take complete messages."""

    @abstractmethod
    async def flush(self) -> None:
        """Post the messages that were taken, and wait while there is no room for them. Raises LinkProblem."""

    @abstractmethod
    def tell_outcomes(self) -> None:
        """Tell the client the outcomes that are known."""

    @abstractmethod
    def tell(self) -> None:
        """Tell the client the outcomes that are known, and renew its credit. Raises LinkProblem."""

    @property
    @abstractmethod
    def is_storing(self) -> bool:
        """Whether messages are on their way to a store."""

    @abstractmethod
    async def stored(self) -> None:
        """Wait until no messages are on their way to a store."""

    def retire(self) -> None:  # noqa: B027 - no producer has anything to do
        """Do nothing: it takes no messages that others could get (`omq.drivers.seam.Channel.retire`)."""

    @abstractmethod
    def close(self) -> None:
        """Tell the link nothing more: it is over."""

    def _settle(self, told: Iterable[Told]) -> None:
        """Tell outcomes, equal neighbours in one disposition."""
        first = last = -1
        state = b""
        for begin, end, outcome in told:
            if first >= 0 and (begin != last + 1 or end < begin or outcome != state):
                self.link.session.settle(first, last, state)
                first = -1
            if first < 0:
                first, state = begin, outcome
            last = end
        if first >= 0:
            self.link.session.settle(first, last, state)
