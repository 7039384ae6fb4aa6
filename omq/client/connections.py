"""The successive connections of a client: reconnect after a loss, and resume the subscriptions."""

import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from omq.client.connection import Connection
from omq.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    Gap,
    HandshakeRefused,
    OmqError,
    ProtocolError,
    ReplyBlocked,
    ServerError,
)
from omq.client.fast import OpenStreams
from omq.client.ledger import Ledger
from omq.client.parking import ParkingLot
from omq.client.reasons import named
from omq.client.replies import unexpected
from omq.client.subscription import Subscription
from omq.protocol.omq.sentences import RefusalKind, read_sentence
from omq.protocol.omq.types import Confirm, TopicList, Topics
from omq.server_address import Security

log = logging.getLogger("omq.client")

SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds between attempts to reconnect; each pause is about twice the one before, until the server answers.
"""

FINISH_SECONDS = 10.0
"""The number of seconds to wait at the end until the server has read everything and closed."""

BREAK_OFF_SECONDS = 0.5
"""The same wait when an exception leaves the client's block."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client's connections; `connect` documents the fields."""

    host: str
    port: int
    security: Security | None
    id: bytes = field(repr=False)  # may contain a secret
    reconnect: bool
    on_gap: Callable[[Gap], None]
    connect_seconds: float
    max_line_bytes: int


class ClientConnections:
    """The connections of one client, and the state that outlives each: the ledger and the subscriptions."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings = settings
        self.current: Connection | None = None
        """The present connection, which may have failed already."""
        self.ledger = ledger
        self.subscriptions: dict[Subscription, None] = {}
        self.opened = OpenStreams(settings.on_gap, settings.connect_seconds, settings.security)
        self._changed = ParkingLot()  # wakes tasks at a new connection, and at the end
        self._failure: OmqError | None = None
        self._numbers = itertools.count(1)
        self._leaving = False

    async def live(self) -> Connection:
        """Return the present connection, or wait for the next one. Raises the failure if there is no next
        one.
        """
        while (connection := self.live_now()) is None:
            if self._failure is not None:
                raise self._failure
            await self._changed.park()
        return connection

    @property
    def ended(self) -> bool:
        """Whether the last connection has ended."""
        return self._failure is not None

    @property
    def continues(self) -> bool:
        """Whether a next connection follows when the present one is lost."""
        return self.settings.reconnect and not self._leaving

    def live_now(self) -> Connection | None:
        """Return the present connection; None while disconnected."""
        return None if self.current is None or self.current.failed else self.current

    async def ask(self, connection: Connection, *, own: bool) -> None:
        """Send a Confirm and wait for its answer, which the connection records in the ledger."""
        try:
            await connection.call(Confirm(next(self._numbers)), own=own)
        except ServerError as error:
            log.debug("%s", error)

    async def open(self) -> Connection:
        """Open a connection. Raises ConnectionFailed and HandshakeRefused."""
        settings = self.settings
        return await Connection.open(
            settings.host,
            settings.port,
            settings.security,
            settings.id,
            settings.connect_seconds,
            self.ledger,
            self.opened.news,
        )

    async def run(self, connection: Connection) -> None:
        """Serve `connection`, and with `reconnect` its successors, until the client gives up or ends."""
        try:
            await self._serve(connection)
        finally:
            # Tasks may use the client after its block, or wait for it beside the block. The server may have
            # closed its side first, as it does for a client that leaves.
            if self._failure is None or self._leaving:
                self._give_up(ConnectionLost("the client was closed"))

    async def _serve(self, connection: Connection) -> None:
        pause = SHORTEST_PAUSE
        resuming = False
        while True:
            async with anyio.create_task_group() as group:
                group.start_soon(connection.run)
                is_ready = not resuming or await self._resume(connection)
                if is_ready:
                    self.current = connection
                    self._changed.unpark_all()
                else:
                    group.cancel_scope.cancel()
            self.current = None
            for subscription in self.subscriptions:
                subscription.disconnected()
            failure = connection.failure()
            if connection.silent:
                self.opened.server_silent(failure)
            said = read_sentence((failure.server_error or "").encode())
            is_unknown = said is not None and said.refusal is RefusalKind.UNKNOWN_CLIENT
            final = isinstance(failure, ProtocolError) or is_unknown
            if not self.settings.reconnect or self._leaving or final:
                self._give_up(failure)
                return
            log.warning("%s; reconnecting", failure)
            # An Error about Connect denies this client admission, temporarily or permanently.
            was_let_in = said is None or said.constructor != "Connect"
            if is_ready and connection.heard_from and was_let_in:
                pause = SHORTEST_PAUSE
            while True:
                await anyio.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, LONGEST_PAUSE)
                try:
                    connection = await self.open()
                    break
                except ConnectionFailed as error:
                    log.info("%s", error)
                except HandshakeRefused as error:
                    self._give_up(error)
                    return
            resuming = True

    def _give_up(self, failure: OmqError) -> None:
        self._failure = failure
        for subscription in self.subscriptions:
            subscription.fail(failure)
        self._changed.unpark_all()

    async def _resume(self, connection: Connection) -> bool:
        """Wait for an answer of the server, and resume each subscription after its last message.

        Return False when this connection ended too, or cannot be used because the server does not tell where
        its topics are.
        """
        subscriptions = [one for one in self.subscriptions if one.topic is not None and not one.finished]
        try:
            if not subscriptions:
                await self.ask(connection, own=False)
                return True
            try:
                answer = await connection.call(Topics())
            except (ServerError, ReplyBlocked) as error:
                connection.give_up(f"the subscriptions cannot be resumed: {error}")
                return False
            if not isinstance(answer, TopicList):
                raise unexpected(answer)
            infos = {info.id: info for info in answer.topics}
            resumed: list[Subscription] = []
            for subscription in subscriptions:
                info = infos.get(subscription.topic.id) if subscription.topic is not None else None
                if info is None or info.topic != subscription.name:
                    log.warning("%s was deleted while the connection was lost", named(subscription.name))
                    subscription.end()
                    continue
                if subscription not in self.subscriptions:
                    continue  # its owner left its block meanwhile
                try:
                    await connection.subscribe(subscription, subscription.resume(info))
                except (ServerError, ReplyBlocked) as error:
                    subscription.fail(error)
                resumed.append(subscription)
            # An owner that leaves its block during the loop has no present connection to unsubscribe on.
            for subscription in resumed:
                if subscription not in self.subscriptions and not subscription.finished_by_server:
                    connection.leave(subscription.name)
        except ConnectionLost:
            return False
        return True

    async def finish(self) -> None:
        """End cleanly: send the queue, and wait until the server has read it.

        Raises ConnectionLost when published messages may not have arrived, and PublishRefused when the
        server refused messages and no task was told.
        """
        self._leaving = True
        connection = self.current
        if connection is not None:
            in_doubt = self.ledger.unsettled
            try:
                with anyio.move_on_after(FINISH_SECONDS) as limit:
                    await connection.finish()
                if limit.cancelled_caught:
                    if in_doubt:
                        late = f"the server did not finish within {FINISH_SECONDS:g} s after the last message"
                        raise ConnectionLost(late)
                    log.warning("the server did not close within %g s", FINISH_SECONDS)
            except ConnectionLost as error:
                if in_doubt:
                    raise
                log.debug("at the end: %s", error)
        self.ledger.report_unreported()

    async def break_off(self) -> None:
        """End after an exception: send the queue if that takes less than BREAK_OFF_SECONDS."""
        self._leaving = True
        connection = self.current
        if connection is not None:
            with anyio.move_on_after(BREAK_OFF_SECONDS, shield=True):
                try:
                    await connection.finish()
                except ConnectionLost as error:
                    log.debug("after an exception: %s", error)
