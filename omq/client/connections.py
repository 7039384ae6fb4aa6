"""One connection after another: those that a client talks over, made again when one is lost."""

import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

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
from omq.client.fast import Opened
from omq.client.ledger import Ledger
from omq.client.network import Security
from omq.client.replies import unexpected
from omq.client.subscription import Subscription
from omq.protocol.omq.sentences import UNKNOWN_CLIENT
from omq.protocol.omq.types import Confirm, TopicList, Topics

log = logging.getLogger("omq.client")

SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds between attempts to connect again; until a server answers, each is about twice the one before."""

FINISH_SECONDS = 10.0
"""How long the server has to read what was sent last, and to close."""

BREAK_OFF_SECONDS = 0.5
"""The same when the client is left by an exception."""

NOT_LET_IN = "Connect: "
"""How an Error begins that says why the server does not let this client in: not now, or not at all."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a client connects; see `connect` for their meaning."""

    host: str
    port: int
    security: Security | None
    id: bytes = field(repr=False)  # there may be a secret in it
    reconnect: bool
    on_gap: Callable[[Gap], None]
    connect_seconds: float
    max_line_bytes: int


class Connections:
    """The connections of one client, and what outlives each: what was published, and who subscribed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.current: Connection | None = None
        """The one there is, which may have failed already."""
        self.ledger = Ledger()
        self.subscriptions: dict[Subscription, None] = {}
        self.opened = Opened(settings.on_gap, settings.connect_seconds, settings.security)
        self._changed = trio.lowlevel.ParkingLot()  # a connection has come, or none will
        self._failure: OmqError | None = None
        self._numbers = itertools.count(1)
        self._leaving = False

    async def live(self) -> Connection:
        """The connection there is, or the next one. Raises the reason when there will be none."""
        while (connection := self.live_now()) is None:
            if self._failure is not None:
                raise self._failure
            await self._changed.park()
        return connection

    @property
    def ended(self) -> bool:
        """Whether the last connection is gone."""
        return self._failure is not None

    def live_now(self) -> Connection | None:
        """The connection there is; None while there is none."""
        return None if self.current is None or self.current.failed else self.current

    async def ask(self, connection: Connection, *, own: bool) -> None:
        """Wait for the answer to a Confirm; what it says is in the ledger."""
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
        """Serve `connection`, and if so asked those that follow it, until there will be no other."""
        pause = SHORTEST_PAUSE
        resuming = False
        while True:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                if not resuming or await self._resume(connection):
                    self.current = connection
                    self._changed.unpark_all()
            self.current = None
            for subscription in self.subscriptions:
                subscription.disconnected()
            failure = connection.failure()
            if connection.silent:
                self.opened.server_silent(failure)
            said = failure.server_error or ""
            final = isinstance(failure, ProtocolError) or said == UNKNOWN_CLIENT.decode()
            if not self.settings.reconnect or self._leaving or final:
                self._give_up(failure)
                return
            log.warning("%s; connecting again", failure)
            if connection.heard_from and not said.startswith(NOT_LET_IN):
                pause = SHORTEST_PAUSE
            while True:
                await trio.sleep(random.uniform(pause / 2, pause))
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
        """See that the server answers, and subscribe again where each subscription had got to.

        False when this connection ended too.
        """
        subscriptions = [one for one in self.subscriptions if one.topic is not None and not one.finished]
        try:
            if not subscriptions:
                await self.ask(connection, own=False)
                return True
            answer = await connection.call(Topics())
            if not isinstance(answer, TopicList):
                raise unexpected(answer)
            infos = {info.id: info for info in answer.topics}
            for subscription in subscriptions:
                info = infos.get(subscription.topic.id) if subscription.topic is not None else None
                if info is None or info.topic != subscription.name:
                    log.warning("%r was deleted while the connection was lost", subscription.name)
                    subscription.end()
                    continue
                if subscription not in self.subscriptions:
                    continue  # its owner left meanwhile
                try:
                    await connection.subscribe(subscription, subscription.resume(info))
                except (ServerError, ReplyBlocked) as error:
                    subscription.fail(error)
                if subscription not in self.subscriptions:
                    connection.leave(subscription.name)
        except ConnectionLost:
            return False
        return True

    async def finish(self) -> None:
        """The proper end: what was sent leaves, and is read by the server.

        Raises ConnectionLost when published messages may not have arrived, and PublishRefused when the
        server refused some and nobody was told.
        """
        self._leaving = True
        connection = self.current
        if connection is not None:
            in_doubt = self.ledger.unsettled
            try:
                with trio.fail_after(FINISH_SECONDS):
                    await connection.finish()
            except trio.TooSlowError as error:
                if in_doubt:
                    late = f"the server did not finish within {FINISH_SECONDS:g} s after the last message"
                    raise ConnectionLost(late) from error
                log.warning("the server did not close within %g s", FINISH_SECONDS)
            except ConnectionLost as error:
                if in_doubt:
                    raise
                log.debug("at the end: %s", error)
        self.ledger.tell_untold()

    async def break_off(self) -> None:
        """The end after an exception: what was sent still leaves if that takes no time to speak of."""
        self._leaving = True
        connection = self.current
        if connection is not None:
            with trio.move_on_after(BREAK_OFF_SECONDS, shield=True):
                try:
                    await connection.finish()
                except ConnectionLost as error:
                    log.debug("after an exception: %s", error)
