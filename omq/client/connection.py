"""One connection to a server, after its handshake: octets out, frames in, replies in order.

Two tasks run it. The writer sends the output that has collected since its last send, so publishes close
together share a system call. The reader passes received octets to a `ClientSession`, and dispatches messages
to subscriptions and answers to waiting tasks.
"""

import logging
from collections.abc import Callable
from typing import Self, assert_never

import anyio

from omq.client.errors import (
    MOST_REFUSALS,
    ConnectionLost,
    Gap,
    OmqError,
    ProtocolError,
    ReplyBlocked,
    ServerError,
)
from omq.client.ledger import Ledger
from omq.client.network import Stream
from omq.client.parking import ParkingLot
from omq.client.reasons import CLOSED, broke, no_frame, shown
from omq.client.receiving import Receiver
from omq.client.replies import Pending
from omq.client.send_queue import SendQueue
from omq.client.silence import ServerSilent, receive
from omq.client.stream import open_greeted
from omq.model import FromCurrent, Replay
from omq.protocol.omq.client import (
    Answered,
    AnsweredCommand,
    AnswerFrame,
    BlockFetched,
    ClientSession,
    Declined,
    Ended,
    Event,
    MessagesGone,
    Reported,
    UnsolicitedError,
    UnsolicitedFrame,
    argument,
    constructor,
)
from omq.protocol.omq.commands import sexp_of_command
from omq.protocol.omq.frames import DroppedMessage, FrameError, MessageRun
from omq.protocol.omq.sentences import sentence, shortened
from omq.protocol.omq.types import Confirm, Request, Subscribe, Subscribed, Unsubscribe, Unsubscribed
from omq.server_address import Security

log = logging.getLogger("omq.client")

READ_OCTETS = 256 << 10
"""The most octets that one read takes from the socket."""

OVERRUN_OCTETS = 64 << 20
"""The most octets of messages that a subscription may buffer while a task waits for a reply."""

SIGN_OF_LIFE_SECONDS = 1.0
"""The number of seconds between two Acks while the reader waits for room and cannot read the server's pings.
"""


class Connection:
    """A connection after its handshake. Call the other methods while `run` runs."""

    def __init__(self, stream: Stream, id: bytes, ledger: Ledger, news: Callable[[bytes], None]) -> None:
        """Create a connection. `news` receives the server's notices about sinks and feeds with leases from
        this connection.
        """
        self._stream = stream
        self._ledger = ledger
        self._news = news
        self._session: ClientSession[Pending] = ClientSession(id)
        self._failure: tuple[type[ConnectionLost], str] | None = None
        self._server_error: str | None = None
        self._send_queue = SendQueue(stream, self._refuse, self._wake_reader)
        self._routes: dict[int, Receiver] = {}
        self._names: set[bytes] = set()
        """The topics to which the connection is subscribed, or has asked to be."""
        self._taken = ParkingLot()
        self._ended = anyio.Event()
        self.heard_from = False
        """Whether the server has sent anything after its half of the handshake."""
        self.silent = False
        """Whether the connection ended because the server fell silent."""
        self._refusals: list[str] = []  # refused Publishes since the last answer to a Confirm

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        security: Security | None,
        id: bytes,
        seconds: float,
        ledger: Ledger,
        news: Callable[[bytes], None],
    ) -> Self:
        """Connect, exchange the version, and queue Connect, within `seconds`. Record the outcome of published
        messages in `ledger`.

        Raises ConnectionFailed and HandshakeRefused.
        """
        stream = await open_greeted(host, port, seconds, security)
        connection = cls(stream, id, ledger, news)
        connection._flush()
        return connection

    async def run(self) -> None:
        """Serve the connection until it ends; `failure` then gives the reason. Raises no OmqError."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._send_queue.run)
                await self._read()
                group.cancel_scope.cancel()
        finally:
            self._fail(ConnectionLost, "the connection was closed")
            self._stream.close()
            self._ended.set()

    def peer(self) -> tuple[str, int]:
        """Return the server's address and port. If a host name has several addresses, the lease of a sink or
        a feed is valid at this one. Raise ConnectionLost when the connection has ended.
        """
        self._refuse()
        try:
            return self._stream.peer()
        except OSError as error:
            raise ConnectionLost(broke(error)) from error

    # -- the end -------------------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        """End the connection for this reason. The caller then cancels `run`."""
        self._fail(ConnectionLost, why)

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def failure(self) -> ConnectionLost:
        """Return the reason why the connection ended, as an exception to raise."""
        if self._failure is None:
            raise RuntimeError("the connection has not ended")
        kind, text = self._failure
        return kind(text, self._last_words)

    @property
    def _last_words(self) -> str | None:
        """The server's Error before it closed, if any; the refusal of an oversized Publish also closes."""
        return self._server_error or (self._refusals[-1] if self._refusals else None)

    def _fail(self, kind: type[ConnectionLost], text: str) -> None:
        if self._failure is not None:
            return
        self._failure = (kind, text)
        self._settle_all()
        for pending in self._session.waiting:
            pending.answer = self.failure()
            pending.answered.set()
        self._session.abandon()
        self._send_queue.close()

    def _settle_all(self) -> None:
        """Record the outcome of the messages without a confirmation when the connection has ended."""
        if self._send_queue.is_finished and self._failure == (ConnectionLost, CLOSED):
            # Not lost: the server has read everything before it closed.
            if self._refusals:
                first, *others = self._refusals
                end = self._ledger.published
                self._ledger.refused(end, first, "Publish", b"", others, private=False)
            self._ledger.settle(self._ledger.published)
            return
        confirms = [pending for pending in self._session.waiting if isinstance(pending.command, Confirm)]
        private = any(confirm.awaited and confirm.own for confirm in confirms)
        what = f"messages that were not confirmed may be lost: {self.failure()}"
        self._ledger.lost(what, private=private)

    def _refuse(self) -> None:
        if self._failure is not None:
            raise self.failure()

    def _wake_reader(self) -> None:
        self._taken.unpark_all()

    async def finish(self) -> None:
        """Send the queue, and wait until the server has read it.

        Closing a socket with unread octets resets the connection, and the reset may discard octets that the
        server has not read. So close only the sending direction, and let the server close when it is done.

        Raises ConnectionLost when the connection ends in another way.
        """
        await self._send_queue.finish()
        await self._ended.wait()
        if self._failure != (ConnectionLost, CLOSED):
            raise self.failure()

    async def send(self, octets: bytes, messages: int = 0) -> None:
        """Wait while the queue is full, then queue octets that publish `messages` messages.

        Raises ConnectionLost, and then has queued nothing.
        """
        await self.queue(octets, messages)
        await self._send_queue.pause()

    async def queue(self, octets: bytes, messages: int) -> None:
        """Queue octets as `send` does, but without a checkpoint at the end: the caller's next command follows
        directly, before any command of another task.
        """
        await self._room()
        self._send_queue.post(octets)
        self._ledger.published += messages

    async def send_made(self, make: Callable[[], bytes]) -> None:
        """Wait for room, then `send` the result of `make`. If this is cancelled or raises while it waits, it
        does not call `make`.
        """
        await self._room()
        self._send_queue.post(make())
        await self._send_queue.pause()

    async def _room(self) -> None:
        """Wait while the queue is full. Raises ConnectionLost, also when the client leaves: the server would
        not get what is queued behind the end.
        """
        await self._send_queue.room()
        if self._send_queue.finishing:
            raise ConnectionLost("the client was closed")

    # -- commands and their answers ------------------------------------------------------------------------

    async def call(
        self, command: AnsweredCommand, sink: Receiver | None = None, *, own: bool = False
    ) -> AnswerFrame:
        """Send a command and wait for its answer. Set `own` for a Confirm that directly follows a message of
        the same caller.

        Raises ServerError when the answer is an Error, ConnectionLost, and ReplyBlocked.
        """
        self._refuse()
        pending = self._expect(command, sink, awaited=True, own=own)
        self._taken.unpark_all()  # a reader that waits for room must continue reading, up to the answer
        try:
            await pending.answered.wait()
        finally:
            pending.awaited = False
        match pending.answer:
            case None:
                raise RuntimeError("answered without an answer")
            case OmqError() as error:
                raise error
            case answer:
                return answer

    async def subscribe(self, sink: Receiver, replay: Replay) -> None:
        """Subscribe, with credit if the sink has it. Raises as `call` does."""
        if sink.name in self._names:
            # The server would refuse this Subscribe, but would apply its Request to the other subscription,
            # as well as the Unsubscribe of a caller that is cancelled before the answer.
            text = sentence("Subscribe", sink.name, "this connection is subscribed already").decode()
            raise ServerError(text, "Subscribe", sink.name)
        if sink.credit is not None:
            self._send_queue.post(sexp_of_command(Request(sink.name, sink.credit)) + b"\n")
            replay = FromCurrent()
        self._names.add(sink.name)
        try:
            await self.call(Subscribe(sink.name, replay), sink)
        except ServerError:
            self._names.discard(sink.name)
            raise

    def leave(self, name: bytes) -> None:
        """Unsubscribe without waiting; the closed sink drops messages that still arrive."""
        self._names.discard(name)
        if not self.failed:
            self._expect(Unsubscribe(name), None, awaited=False)
        self._taken.unpark_all()

    def _expect(
        self, command: AnsweredCommand, sink: Receiver | None, *, awaited: bool, own: bool = False
    ) -> Pending:
        pending = Pending(command, sink, awaited, own, self._ledger.published)
        self._session.ask(command, pending)
        self._flush()
        return pending

    def _flush(self) -> None:
        """Queue the session's output."""
        if octets := self._session.take_output():
            self._send_queue.post(octets)

    def taken(self) -> None:
        """Wake the reader: a subscription has room again."""
        self._taken.unpark_all()

    # -- receiving -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                data = await receive(self._stream, READ_OCTETS)
                if not data:
                    self._fail(ConnectionLost, _CUT if self._session.is_within_a_frame else CLOSED)
                    return
                self.heard_from = True
                for event in self._session.feed(data):
                    await self._take(event)
                self._flush()
        except FrameError as error:
            self._fail(ProtocolError, no_frame(error))
        except ServerSilent as error:
            self.silent = True
            self._fail(ConnectionLost, f"the connection is lost: {error}")
        except anyio.BrokenResourceError as error:
            self._fail(ConnectionLost, broke(error))
        except UnsolicitedFrame as error:
            self._fail(ProtocolError, str(error))

    async def _take(self, event: Event[Pending]) -> None:
        match event:
            case MessageRun(topic):
                sink = self._routes.get(topic)
                if sink is not None:
                    sink.put(event)
                    if sink.full:
                        self._flush()  # an Ack that is due must not wait for room
                        await self._wait_for_room(sink)
            case DroppedMessage(topic):
                sink = self._routes.get(topic)
                if sink is not None:
                    sink.put_dropped(event)
            case Answered(_, pending, frame):
                self._answered(pending, frame)
            case Declined(_, pending, octets):
                text = shown(octets)
                if isinstance(pending.command, Confirm):
                    self._settle(pending, text)
                named = argument(pending.command) or b""
                pending.settle(ServerError(text, constructor(pending.command), named))
            case MessagesGone(_, topic, first, last, why):
                for sink in self._routes.values():
                    if shortened(sink.name) == topic:
                        sink.put_gap(Gap(sink.name, first, last, why))
            case Ended(topic):
                sink = self._routes.pop(topic.id, None)
                if sink is not None:
                    self._names.discard(sink.name)
                    sink.end()
            case UnsolicitedError():
                self._told(event)
            case BlockFetched():
                raise AssertionError("nothing is fetched on this connection")
            case Reported():
                raise AssertionError("nothing is watched on this connection")
            case _:
                assert_never(event)

    async def _wait_for_room(self, sink: Receiver) -> None:
        """Stop reading while a subscription is full, unless a task waits for an answer."""
        while sink.full and self._send_queue.broken is None:
            awaited = [pending for pending in self._session.waiting if pending.awaited]
            if awaited and sink.buffered <= OVERRUN_OCTETS:
                return
            for pending in awaited:
                pending.awaited = False
                asked = constructor(pending.command)
                pending.answer = ReplyBlocked(
                    f"no answer to {asked}: {sink.buffered} octets of messages stand before it"
                )
                pending.answered.set()
            with anyio.move_on_after(SIGN_OF_LIFE_SECONDS) as limit:
                await self._taken.park()
            if limit.cancelled_caught:
                self._session.acknowledge()
                self._flush()

    def _answered(self, pending: Pending, answer: AnswerFrame) -> None:
        match answer:
            case Subscribed(topic) if pending.sink is not None:
                self._routes[topic.id] = pending.sink
                pending.sink.subscribed(self, topic)
            case Unsubscribed(topic):
                self._routes.pop(topic.id, None)
            case _ if isinstance(pending.command, Confirm):
                self._settle(pending, None)
            case _:
                pass
        pending.settle(answer)

    def _settle(self, confirm: Pending, refused: str | None) -> None:
        """Record the answer to a Confirm, also when no task waits for it any more."""
        refusals, self._refusals = self._refusals, []
        if refused is not None or refusals:
            self._ledger.refused(
                confirm.published,
                refused or "messages were refused",
                constructor(confirm.command),
                argument(confirm.command) or b"",
                refusals,
                private=confirm.own and confirm.awaited,
            )
        self._ledger.settle(confirm.published)

    def _told(self, told: UnsolicitedError) -> None:
        """Handle an Error that answers no waiting command."""
        text = shown(told.text)
        match told.sentence.constructor if told.sentence is not None else None:
            case "Sink" | "Feed":
                self._news(told.text)
                return
            case "Publish":
                if len(self._refusals) < MOST_REFUSALS:
                    self._refusals.append(text)
                return
            case "Request" | "Received" as refused:
                waiting = [pending.sink for pending in self._session.waiting if pending.sink is not None]
                for sink in (*self._routes.values(), *waiting):
                    if told.sentence is not None and told.sentence.argument == shortened(sink.name):
                        sink.fail(ServerError(text, refused, sink.name))
                        return
            case "Unsubscribe":
                log.debug("unsubscribed from a topic that was deleted meanwhile: %s", text)
                return
            case _:
                pass
        self._server_error = text
        log.warning("the server said: %s", text)


_CUT = f"{CLOSED} in the middle of a frame"
