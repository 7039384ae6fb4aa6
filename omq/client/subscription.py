"""A subscription: an iterator over messages, one by one or in runs."""

from collections import deque
from collections.abc import Callable

from omq.client.arguments import check_positive, check_replay
from omq.client.errors import BodyTooLong, ConnectionLost, Gap, OmqError
from omq.client.parking import ParkingLot
from omq.client.reasons import named
from omq.client.receiving import SubscribedConnection
from omq.client.run_iterator import RunIterator
from omq.model import (
    DEFAULT_MAX_BODY,
    Delivery,
    FromCurrent,
    FromMessage,
    Persistent,
    Replay,
    Topic,
    TopicInfo,
    Transient,
)
from omq.protocol.omq.commands import sexp_of_command
from omq.protocol.omq.frames import MESSAGE_OVERHEAD, DroppedMessage, MessageRun
from omq.protocol.omq.types import Message, Received

DEFAULT_CAPACITY = 1 << 20
"""The size of the receive buffer, in octets of messages, from which on the connection stops reading."""


class Subscription:
    """Messages of one topic, in order. `Client.subscribe` creates it.

    `async for message in subscription` gives `Message` objects; `async for run in subscription.runs()` gives
    `MessageRun`s of messages that arrived together, which is faster. Use one of the two. Several tasks may
    iterate over the same subscription if it has no credit: each message goes to one of them.

    With credit, the subscription confirms a message when the caller advances the iterator to the next one, or
    passes the message to `received`. A message whose handler raised, and the last one before the end of the
    loop, stays unconfirmed and goes to another worker.

    A body of more than 64 MiB is not held: its message is a gap. With credit the iteration raises BodyTooLong
    after the messages before it, and another worker gets it.

    Iteration ends when the topic is deleted. It raises ConnectionLost when the connection ends for good,
    after the messages that arrived before; with credit it drops those, because other workers get them.
    """

    def __init__(
        self,
        name: bytes,
        replay: Replay,
        credit: int | None,
        capacity: int,
        on_gap: Callable[[Gap], None],
    ) -> None:
        """Prepare to subscribe. Raises TypeError and ValueError for arguments that cannot be."""
        check_replay(replay)
        check_positive("capacity", capacity)
        if credit is not None:
            check_positive("credit", credit)
        self.name = name
        self.replay = replay
        self.credit = credit
        self.topic: Topic | None = None
        """Set when the server has accepted the subscription."""
        self.buffered = 0
        """Octets of received messages that the caller has not taken yet, frame headers included."""
        self.last: int | None = None
        """The id of the last received message, or the last id of a gap."""
        self.floor: int | None = None
        """The last id before the start of a subscription FromCurrent; None for others."""
        self._capacity = capacity
        self._on_gap = on_gap
        self._connection: SubscribedConnection | None = None
        self._buffer: deque[tuple[MessageRun, int] | Gap] = deque()
        self._arrived = ParkingLot()
        self._expected: int | None = None  # the id that would follow without a gap, after reconnecting
        self._messages: deque[Message] = deque()  # taken from the buffer to iterate over
        self._owed: list[int] = []  # given to the caller and not confirmed
        self._closed = False
        self._ended = False
        self._error: OmqError | None = None

    # -- for its owner -------------------------------------------------------------------------------------

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        if self._owed:
            await self._confirm()
        while not self._messages:
            run = self._taken()
            if run is not None:
                self._messages += run.messages()
                if len(self._messages) > 1:
                    self._arrived.unpark()  # another task may take the next one
            elif await self._has_ended():
                raise StopAsyncIteration
        message = self._messages.popleft()
        if self.credit is not None:
            self._owed.append(message.id)
        return message

    def runs(self) -> "Runs":
        """Iterate over the messages in runs."""
        return Runs(self.next_run)

    async def next_run(self) -> MessageRun | None:
        """Return the next run of messages, or None when the topic was deleted. With credit, this confirms the
        last run. Raises as iteration does.
        """
        if self._owed:
            await self._confirm()
        while (run := self._taken()) is None:
            if await self._has_ended():
                return None
        if self.credit is not None:
            self._owed += run.ids
        return run

    async def received(self, message: Message | int) -> None:
        """Confirm a message now, before the iterator advances. Only with credit.

        Does nothing for a message that arrived before a reconnect: it belongs to another worker now.
        """
        id = message if isinstance(message, int) else message.id
        if self.credit is None:
            raise ValueError("only a subscription with credit confirms messages")
        if id in self._owed:
            await self._confirm(id)

    # -- taking --------------------------------------------------------------------------------------------

    def _taken(self) -> MessageRun | None:
        """Take the next run from the buffer, if there is one."""
        while self._buffer:
            item = self._buffer.popleft()
            if isinstance(item, Gap):
                self._on_gap(item)
                continue
            run, octets = item
            was_full = self.full
            self.buffered -= octets
            if was_full and not self.full and self._connection is not None:
                self._connection.taken()
            return run
        return None

    async def _has_ended(self) -> bool:
        """Return whether no more messages will come. If they may, wait until some have arrived for this or
        another task.
        """
        if self._error is not None:
            raise self._error
        if self._ended or self._closed:
            return True
        await self._arrived.park()
        return False

    async def _confirm(self, only: int | None = None) -> None:
        """Confirm the messages in `_owed`. They stay there until the command is queued, so that a
        cancellation neither loses a confirmation nor repeats one.
        """

        def take() -> bytes:
            taken = [id for id in self._owed if only is None or id == only]
            self._owed = [] if only is None else [id for id in self._owed if id != only]
            return b"".join([sexp_of_command(Received(self.name, id)) + b"\n" for id in taken])

        connection = self._connection
        if connection is None:
            return
        try:
            await connection.send_made(take)
        except ConnectionLost:
            pass  # other workers get these messages; iteration reports the loss

    # -- for its connection --------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the buffer has reached its capacity, so that the client does not read the connection."""
        return self.buffered >= self._capacity and not self._closed

    def subscribed(self, connection: SubscribedConnection, topic: Topic) -> None:
        """Note that the server has accepted the subscription on this connection."""
        self._connection = connection
        self.topic = topic

    def put(self, run: MessageRun) -> None:
        """Buffer messages that have arrived."""
        if self._closed or self._error is not None:
            return
        if self._expected is not None:
            self._note_first(run.ids[0])
        self.last = run.ids[-1]
        octets = sum(map(len, run.bodies)) + (4 + MESSAGE_OVERHEAD) * len(run.ids)
        self.buffered += octets
        self._buffer.append((run, octets))
        self._arrived.unpark()

    def put_dropped(self, message: DroppedMessage) -> None:
        """Report a message whose body is too long to be held: as a gap, or, with credit, as the end of the
        subscription, so that another worker gets the message.
        """
        if self._closed or self._error is not None:
            return
        why = f"its body of {message.octets} octets is longer than {DEFAULT_MAX_BODY}: receive it by a feed"
        if self.credit is not None:
            self.fail(BodyTooLong(f"message {message.id} of {named(self.name)}: {why}"))
            return
        if self._expected is not None:
            self._note_first(message.id)
        self.put_gap(Gap(self.name, message.id, message.id, why))

    def _note_first(self, id: int) -> None:
        """Note the first message after a reconnect, and the gap before it."""
        if self._expected is not None and id > self._expected:
            self.put_gap(Gap(self.name, self._expected, id - 1, _WHILE_AWAY))
        self._expected = None

    def put_gap(self, gap: Gap) -> None:
        """Buffer a gap, which the iterating task reports when it reaches it."""
        self.last = gap.last if self.last is None else max(self.last, gap.last)
        self._buffer.append(gap)
        self._arrived.unpark()

    def end(self) -> None:
        """End the subscription: the topic was deleted."""
        self._ended = True
        self._arrived.unpark_all()

    def fail(self, error: OmqError) -> None:
        """End the subscription with `error`."""
        if self._error is None:
            self._error = error
        self._arrived.unpark_all()

    # -- for its client ------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether no further message will arrive: the topic was deleted, or the subscription failed."""
        return self._ended or self._error is not None

    @property
    def finished_by_server(self) -> bool:
        """Whether the server has ended the subscription, so that no Unsubscribe is needed."""
        return self._ended

    @property
    def error(self) -> OmqError | None:
        """The reason why the subscription failed; None if it did not."""
        return self._error

    def close(self) -> None:
        """Close the subscription at the end of its block."""
        self._closed = True
        self._drop()
        self._arrived.unpark_all()

    def disconnected(self) -> None:
        """Drop messages received with credit, as the connection is lost: other workers get them."""
        self._connection = None
        self._owed.clear()
        if self.credit is not None:
            self._drop()
            self._messages.clear()

    def _drop(self) -> None:
        self._buffer.clear()
        self.buffered = 0

    def resume(self, info: TopicInfo) -> Replay:
        """Return the position at which to resume a topic after a reconnect; record the gap of messages missed
        meanwhile.
        """
        seen = self.floor if self.last is None else self.last
        match info.delivery, info.persistence:
            case Delivery.ROUND_ROBIN, _:
                return FromCurrent()  # other workers got the messages meanwhile
            case Delivery.BROADCAST, Persistent():
                return self.replay if seen is None else FromMessage(seen + 1)
            case Delivery.BROADCAST, Transient():
                if seen is not None:
                    if info.last > seen:
                        self.put_gap(Gap(self.name, seen + 1, info.last, _WHILE_AWAY))
                    self._expected = max(seen, info.last) + 1
                return FromCurrent()
            case _:
                raise RuntimeError("a delivery without a meaning")


class Runs(RunIterator[MessageRun]):
    """Iterates over a subscription in runs of messages."""


_WHILE_AWAY = "they passed while the connection was lost"
