"""A subscription as its owner sees it: messages to iterate over, one by one or in runs."""

from collections import deque
from collections.abc import Callable

import trio

from omq.client.connection import Connection
from omq.client.errors import ConnectionLost, Gap, OmqError
from omq.model import Delivery, FromCurrent, FromMessage, Persistent, Replay, Topic, TopicInfo, Transient
from omq.protocol.omq.commands import sexp_of_command
from omq.protocol.omq.frames import MESSAGE_OVERHEAD, MessageRun
from omq.protocol.omq.types import Message, Received

DEFAULT_CAPACITY = 1 << 20
"""Octets of messages that wait here before the connection stops reading."""


class Subscription:
    """Messages of one topic, in order. Made by `Client.subscribe`.

    `async for message in subscription` gives `Message` objects; `async for run in subscription.runs()` gives
    `MessageRun`s, as many messages at a time as came together, for those who want speed. Use one of the two.

    With credit, a message counts as done when the iterator is advanced to the next one, or when it is given
    to `received`. One whose handler raised, and the last one before leaving the loop, stays unconfirmed and
    goes to another worker.

    Iteration ends when the topic is deleted. It raises ConnectionLost when the connection ends for good,
    after the messages that had come before; with credit those are dropped, because others get them.
    """

    def __init__(
        self,
        name: bytes,
        replay: Replay,
        credit: int | None,
        capacity: int,
        on_gap: Callable[[Gap], None],
    ) -> None:
        self.name = name
        self.replay = replay
        self.credit = credit
        self.topic: Topic | None = None
        """Set as soon as the server has accepted the subscription."""
        self.buffered = 0
        """Octets of messages that have come and were not taken yet, frames and all."""
        self.last: int | None = None
        """The id of the last message that has come, or of the last one known to be gone."""
        self.floor: int | None = None
        """For FromCurrent: no message with an id up to this one was asked for."""
        self._capacity = capacity
        self._on_gap = on_gap
        self._connection: Connection | None = None
        self._buffer: deque[tuple[MessageRun, int] | Gap] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self._expected: int | None = None  # the id that would follow without a gap, after reconnecting
        self._messages: list[Message] = []  # the run being iterated over, and where in it we are
        self._position = 0
        self._owed: list[int] = []  # given out and not confirmed
        self._closed = False
        self._ended = False
        self._error: OmqError | None = None

    # -- for its owner -------------------------------------------------------------------------------------

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        if self._owed:
            await self._confirm()
        if self._position >= len(self._messages):
            run = await self._next_run()
            if run is None:
                raise StopAsyncIteration
            self._messages = run.messages()
            self._position = 0
        message = self._messages[self._position]
        self._position += 1
        if self.credit is not None:
            self._owed.append(message.id)
        return message

    def runs(self) -> "Runs":
        """The same messages, in runs."""
        return Runs(self)

    async def next_run(self) -> MessageRun | None:
        """The next run of messages, None when the topic was deleted. With credit, those of the last run are
        done. Raises as iterating does.
        """
        if self._owed:
            await self._confirm()
        run = await self._next_run()
        if run is not None and self.credit is not None:
            self._owed += run.ids
        return run

    async def received(self, message: Message | int) -> None:
        """Confirm a message now, instead of when the iterator is advanced. Only with credit.

        One that came before the connection was lost and made again is no longer ours: then this does nothing.
        """
        id = message if isinstance(message, int) else message.id
        if self.credit is None:
            raise ValueError("only a subscription with credit confirms messages")
        if id in self._owed:
            await self._confirm(id)

    # -- taking --------------------------------------------------------------------------------------------

    async def _next_run(self) -> MessageRun | None:
        while True:
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
            if self._error is not None:
                raise self._error
            if self._ended or self._closed:
                return None
            await self._arrived.park()

    async def _confirm(self, only: int | None = None) -> None:
        """Confirm what we owe. It stays owed until the moment when it is queued, so that nothing is forgotten
        when this is cancelled, and nothing confirmed twice.
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
            pass  # then others get what we owed; who asks for messages is told of the loss

    # -- for its connection --------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self.buffered >= self._capacity and not self._closed

    def subscribed(self, connection: Connection, topic: Topic) -> None:
        self._connection = connection
        self.topic = topic

    def put(self, run: MessageRun) -> None:
        if self._closed:
            return
        if self._expected is not None and run.ids[0] > self._expected:
            self.put_gap(Gap(self.name, self._expected, run.ids[0] - 1, _WHILE_AWAY))
        self._expected = None
        self.last = run.ids[-1]
        octets = sum(map(len, run.bodies)) + (4 + MESSAGE_OVERHEAD) * len(run.ids)
        self.buffered += octets
        self._buffer.append((run, octets))
        self._arrived.unpark()

    def put_gap(self, gap: Gap) -> None:
        self.last = gap.last if self.last is None else max(self.last, gap.last)
        self._buffer.append(gap)
        self._arrived.unpark()

    def end(self) -> None:
        """The topic is gone."""
        self._ended = True
        self._arrived.unpark_all()

    def fail(self, error: OmqError) -> None:
        """There will be no more messages, because of `error`."""
        if self._error is None:
            self._error = error
        self._arrived.unpark_all()

    # -- for its client ------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._ended or self._error is not None

    @property
    def finished_by_server(self) -> bool:
        """Whether there is nothing left to unsubscribe from."""
        return self._ended

    @property
    def error(self) -> OmqError | None:
        return self._error

    def close(self) -> None:
        """Its owner has left."""
        self._closed = True
        self._drop()
        self._arrived.unpark_all()

    def disconnected(self) -> None:
        """The connection is lost. What was dealt to us with credit goes to others: we must not touch it."""
        self._connection = None
        self._owed.clear()
        if self.credit is not None:
            self._drop()
            self._messages = []
            self._position = 0

    def _drop(self) -> None:
        self._buffer.clear()
        self.buffered = 0

    def resume(self, info: TopicInfo) -> Replay:
        """Where to go on in a topic after the connection was lost; notes what was missed meanwhile."""
        seen = self.floor if self.last is None else self.last
        match info.delivery, info.persistence:
            case Delivery.ROUND_ROBIN, _:
                return FromCurrent()  # what went to others is not missing
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


class Runs:
    """Iterates over a subscription in runs of messages."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> "Runs":
        return self

    async def __anext__(self) -> MessageRun:
        run = await self._subscription.next_run()
        if run is None:
            raise StopAsyncIteration
        return run


_WHILE_AWAY = "they passed while the connection was lost"
