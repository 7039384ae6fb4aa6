"""One connection of HTTP: it reads requests and answers them one by one, until one opens the WebSocket."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import assert_never

import trio

from omq.access.session import Session
from omq.drivers.seam import Channel
from omq.model import Topic
from omq.protocol.http import websocket
from omq.protocol.http.requests import BadRequest, HttpAnswer, HttpRequest, Requests
from omq.terminals.connection.closing_deadline import set_closing_deadline
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.statistics import (
    ConnectionStatistics,
    Kind,
    SubscriptionStatistics,
)
from omq.terminals.connection.transport import Transport
from omq.terminals.http.site import FIELDS, Site, WebSocketRequest
from omq.terminals.http.websocket_transport import WebSocketTransport

IDLE_SECONDS = 60.0
"""The number of seconds that a connection may wait for its next request."""

TAKE_SECONDS = 30.0
"""The number of seconds that a client may take to read an answer."""

PIECE_OCTETS = 64 << 10
"""The number of octets that are sent before other connections have their turn."""


@dataclass(frozen=True, slots=True)
class _Late:
    """No whole request came in time."""


class HttpTerminal:
    """One connection. When `serve` returns, either the connection is over, or `upgraded` is set."""

    def __init__(self, arrival: Arrival, context: Context, site: Site) -> None:
        self._transport: Transport = arrival.transport
        self._context = context
        self._site = site
        self._requests = Requests(FIELDS)
        self._requests.feed(arrival.received)
        self._scope = trio.CancelScope()
        self._reading: trio.CancelScope | None = None  # while it waits for a request
        self._is_stopping = False
        self._is_sending = False
        self.upgraded: WebSocketTransport | None = None
        """The WebSocket that a request has opened: another protocol continues on it."""

    async def serve(self) -> None:
        """Answer requests until the client is done, or something ends the connection."""
        try:
            with self._scope:
                while await self._answer_next():
                    await trio.lowlevel.checkpoint()  # many requests may have come at once
        except trio.BrokenResourceError:
            pass  # the client closed the connection, which it may do at any time

    async def close(self) -> None:
        """Close the socket, unless another protocol continues on it."""
        if self.upgraded is None:
            self._transport.close()

    async def _answer_next(self) -> bool:
        """Return whether a further request may follow."""
        match request := await self._next():
            case None:
                await self._transport.finish()
                return False
            case _Late():
                answer = HttpAnswer.text(408, "no whole request came in time", ends=True)
                return await self._send(answer)
            case BadRequest(status, why):
                return await self._send(HttpAnswer.text(status, why, ends=True))
            case HttpRequest():
                async with AsyncExitStack() as held:
                    answered = await self._site.answer(request, self._transport, held)
                    if isinstance(answered, WebSocketRequest):
                        return await self._open_websocket(request)
                    return await self._send(answered)
            case _:
                assert_never(request)

    async def _next(self) -> HttpRequest | BadRequest | _Late | None:
        """Return the next request; None if none will come."""
        begun = trio.current_time()
        while (request := self._requests.next()) is None:
            has_begun = self._requests.has_begun
            if self._is_stopping and not has_begun:
                return None
            patience = self._context.config.handshake_seconds if has_begun else IDLE_SECONDS
            received = b""
            with trio.move_on_at(begun + patience) as self._reading:
                received = await self._transport.receive()
            if self._reading.cancelled_caught:
                return _Late() if has_begun else None
            if not received:
                return None
            if not has_begun:
                begun = trio.current_time()
            self._requests.feed(received)
        return request

    async def _send(self, answer: HttpAnswer) -> bool:
        """Send an answer. Return whether a further request may follow."""
        parts = self._requests.answer(answer)
        with trio.move_on_after(TAKE_SECONDS) as limit:
            self._is_sending = True
            try:
                for part in parts:
                    for start in range(0, len(part), PIECE_OCTETS):
                        await self._transport.send(memoryview(part)[start : start + PIECE_OCTETS])
                        await trio.lowlevel.checkpoint()
            finally:
                self._is_sending = False
        if limit.cancelled_caught:
            return False
        if self._requests.is_over or self._is_stopping:
            await self._transport.finish()
            return False
        return True

    async def _open_websocket(self, request: HttpRequest) -> bool:
        try:
            octets = websocket.accept(request.method, request.target, request.fields)
        except websocket.NoUpgrade as problem:
            fields = (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"))
            return await self._send(HttpAnswer.text(426, str(problem), fields, ends=True))
        opened = websocket.WebSocket()
        opened.feed(self._requests.rest())
        with trio.move_on_after(TAKE_SECONDS):
            await self._transport.send(octets)
            self.upgraded = WebSocketTransport(self._transport, opened)
        return False

    # -- for the server ------------------------------------------------------------------------------------

    def statistics(self) -> ConnectionStatistics:
        """Return the statistics of the connection."""
        return ConnectionStatistics.of(self._transport, Kind.HTTP, None, is_sending=self._is_sending)

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return nothing: a connection of HTTP has no subscriptions."""
        return []

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield nothing: a connection of HTTP has no subscriptions."""
        return iter(())

    @property
    def is_limited(self) -> bool:
        """No rate limit applies to it."""
        return False

    def sweep(self, now: float) -> None:
        """Do nothing: the waits of the connection have limits of their own."""

    @property
    def session(self) -> Session | None:
        """None: each request has credentials of its own."""
        return None

    def disconnect(self, why: str) -> None:
        """Do as `shut_down`: HTTP has no place for a reason outside of an answer."""
        self.shut_down()

    def shut_down(self) -> None:
        """End the connection after the answer that is being made or sent."""
        self._is_stopping = True
        if self._reading is not None:
            self._reading.cancel()
        set_closing_deadline(self._scope)
