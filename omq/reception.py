"""Receive connections: the first eight octets of each say which terminal serves it.

See docs/PROTOCOL.md, "The first eight octets".
"""

import logging
import traceback
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, assert_never

import trio

from omq.access.limits import Quota
from omq.connections import ConnectionRegistry
from omq.listening import SpokenProtocols
from omq.logs import LogThrottle
from omq.metrics.source import MetricsSource
from omq.protocol import handshake
from omq.protocol.tls import TlsError
from omq.terminals.connection.certificates import Certificates
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.statistics import Kind
from omq.terminals.connection.tls_transport import TlsTransport
from omq.terminals.connection.transport import Transport
from omq.terminals.omq.long_answers import LongAnswers
from omq.terminals.omq.terminal import OmqTerminal
from omq.threads import in_thread

if TYPE_CHECKING:
    from omq.terminals.http.site import Site

log = logging.getLogger("omq.server")


class Reception:
    """Receives the connections of a server, and hands each to the terminal of its protocol."""

    def __init__(
        self,
        context: Context,
        certificates: Certificates | None,
        connections: ConnectionRegistry,
        long_answers: LongAnswers,
        source: MetricsSource,
    ) -> None:
        """Create a reception without connections. `source` is the server, for its metrics."""
        self._context = context
        self._certificates = certificates
        self._connections = connections
        self._long_answers = long_answers
        self._source = source
        self.quota = Quota(context.config.max_connections)
        """The open connections, including those before their handshake."""
        self._turned_away = LogThrottle(log, logging.WARNING, "connections were turned away")
        self._unrecognized = LogThrottle(log, logging.INFO, "connections did not begin as they must")
        self._defects = LogThrottle(log, logging.ERROR, "connections ended by a defect of the server")
        self.turned_away = self.unrecognized = self.defects = 0
        """The numbers of connections that were turned away, had no terminal, and were ended by a defect."""
        self._handshakes: set[trio.CancelScope] = set()
        # The connections whose client is not known yet, the oldest first.
        self._newcomers: dict[trio.CancelScope, Transport] = {}
        self._imported: set[str] = set()
        """The modules of terminals that are imported: see `_import`."""
        self._importing = trio.Lock()
        self._site: Site | None = None
        self._site_lock = trio.Lock()

    @property
    def handshakes(self) -> int:
        """The number of connections that have not completed their first eight octets."""
        return len(self._handshakes)

    @property
    def newcomers(self) -> int:
        """The number of connections without a known client."""
        return len(self._newcomers)

    def stop(self) -> Iterator[None]:
        """End the connections before their handshake, in steps."""
        for limit in list(self._handshakes):
            limit.cancel()
            yield

    async def receive(self, spoken: SpokenProtocols, stream: trio.SocketStream) -> None:
        """Serve one connection from its first octet to its end. Its errors do not affect others."""
        transport = Transport(stream)
        if not self.quota.take() and not self._make_room():
            self._report_turned_away(transport, "there are as many connections as max_connections allows")
            transport.close()
            return
        try:
            try:
                # The scope of this nursery is that of the connection: another one would take 640 octets.
                async with trio.open_nursery() as nursery:
                    scope = nursery.cancel_scope
                    self._newcomers[scope] = transport
                    try:
                        serving = await self._choose_terminal(stream, transport, nursery, spoken)
                        if serving is not None:
                            await serving
                    except trio.BrokenResourceError:
                        pass  # the client went away during the handshake
                    finally:
                        self._newcomers.pop(scope, None)
            finally:
                await self._connections.end(scope)
        except Exception:  # noqa: BLE001 - it is logged, and the other connections continue
            self.defects += 1
            what = f"a connection ended by a defect of the server\n{traceback.format_exc()}"
            self._defects.add(what, peer=transport.peer())
        finally:
            self.quota.give()
            transport.close()

    def _make_room(self) -> bool:
        """End the oldest connection whose client is not known yet, for a new one, if the quota is used up.
        Return whether there was one.

        A client is known when its Connect is accepted, or its lease. So nobody keeps others out with
        connections that say nothing, or that say which protocol they speak and nothing else.
        """
        for oldest, transport in self._newcomers.items():
            why = "closed for a newer connection: there are as many as max_connections allows"
            self._report_turned_away(transport, why)
            oldest.cancel()
            del self._newcomers[oldest]
            self.quota.used += 1
            return True
        return False

    async def _choose_terminal(
        self,
        stream: trio.SocketStream,
        transport: Transport,
        nursery: trio.Nursery,
        spoken: SpokenProtocols,
    ) -> Awaitable[object] | None:
        """Read the first eight octets, and begin with the terminal for the protocol that they name, in this
        nursery. Return what serves the connection, to be awaited at once; None if the connection is over.
        What was needed to find that takes no memory while the connection is served.
        """
        received = bytearray()
        with self._handshake() as limit:
            try:
                await _first_octets(transport, received)
                if isinstance(_protocol(received), handshake.Tls) and self._certificates is not None:
                    engine = self._certificates.engine()
                    transport = await TlsTransport.accept(stream, engine, bytes(received))
                    received.clear()
                    await _first_octets(transport, received)
                elif spoken.tls_only:
                    self._report_unrecognized(
                        transport, "nothing but TLS is spoken at this address", received
                    )
                    return None
            except TlsError as error:
                self._report_unrecognized(transport, f"TLS: {error}")
                return None
            except _Ended:
                if received:  # a client that sends nothing only tests whether the port is open
                    self._report_unrecognized(transport, "it ended in its first octets", received)
                return None
        if limit.cancelled_caught:
            self._late(transport, limit, received)
            return None
        protocol = _protocol(received)
        arrival = Arrival(transport, bytes(received[handshake.LENGTH :]), nursery, self._newcomers)
        if isinstance(protocol, handshake.Http):
            if spoken.http:
                return self._serve_http(Arrival(transport, bytes(received), nursery, self._newcomers))
            protocol = handshake.UnknownVersion(0)
        if not spoken.others:
            self._report_unrecognized(transport, "nothing but HTTP is spoken at this address", received)
            return None
        begin = partial(self._connections.begin, nursery.cancel_scope)
        match protocol:
            case handshake.Omq():
                return begin(Kind.OMQ, await self._accept_omq(arrival))
            case handshake.Dmp():
                await self._import("omq.terminals.dmp.terminal")
                from omq.terminals.dmp.terminal import DmpTerminal

                return begin(Kind.DMP, DmpTerminal(arrival, self._context))
            case handshake.Amqp0_9():
                await self._import("omq.terminals.amqp_0_9.terminal")
                from omq.terminals.amqp_0_9.terminal import AmqpTerminal

                return begin(Kind.AMQP_0_9, AmqpTerminal(arrival, self._context))
            case handshake.UnknownVersion():
                await self._refuse(transport, received)
            case handshake.Amqp1_0(header):
                await self._import("omq.terminals.amqp_1_0.terminal")
                from omq.terminals.amqp_1_0.terminal import Amqp1Terminal

                return begin(Kind.AMQP_1_0, Amqp1Terminal(arrival, header, self._context))
            case handshake.OtherAmqp() as other:
                self._report_unrecognized(transport, "what it speaks is not served here", received)
                await transport.send(handshake.answer_to_other(other))
                await transport.finish()
            case handshake.Tls():
                self._report_unrecognized(transport, "what it speaks is not served here", received)
            case never:
                assert_never(never)
        return None

    async def _import(self, module: str) -> None:
        """Import a module in a thread, when the first client comes that needs it: servers without such
        clients start sooner, and the other connections do not wait for the import. Of many such clients at
        the same time one takes a thread: the store needs threads, too.
        """
        if module in self._imported:
            return
        async with self._importing:
            if module not in self._imported:
                await in_thread(partial(import_module, module))
                self._imported.add(module)

    @contextmanager
    def _handshake(self) -> Iterator[trio.CancelScope]:
        """Give the block the time in which the first eight octets must come; end it early when the server
        stops.
        """
        with trio.move_on_after(self._context.config.handshake_seconds) as limit:
            self._handshakes.add(limit)
            try:
                yield limit
            finally:
                self._handshakes.remove(limit)

    def _late(self, transport: Transport, limit: trio.CancelScope, received: bytearray) -> None:
        """Report a client whose first eight octets did not come in time, unless the server stops."""
        if trio.current_time() >= limit.deadline:
            seconds = self._context.config.handshake_seconds
            self._report_unrecognized(transport, f"no handshake within {seconds:g} s", received)

    async def _accept_omq(self, arrival: Arrival) -> OmqTerminal:
        await arrival.transport.send(handshake.ACCEPTED)
        return OmqTerminal(arrival, self._context, self._long_answers)

    async def _refuse(self, transport: Transport, received: bytearray) -> None:
        self._report_unrecognized(transport, "what it speaks is not served here", received)
        await transport.send(handshake.REFUSED)
        await transport.finish()

    async def _serve_http(self, arrival: Arrival) -> None:
        """Answer requests, and serve omq if one of them opens a WebSocket."""
        site = await self._load_site()
        from omq.terminals.http.terminal import HttpTerminal

        terminal = HttpTerminal(arrival, self._context, site)
        await self._connections.begin(arrival.scope, Kind.HTTP, terminal)
        await self._connections.end(arrival.scope)
        if terminal.upgraded is not None and not self._connections.is_stopping:
            await self._serve_websocket(terminal.upgraded, arrival.nursery)

    async def _load_site(self) -> "Site":
        """Return the answer of HTTP."""
        async with self._site_lock:
            if self._site is None:
                for module in ("omq.terminals.http.terminal", "omq.metrics.resources"):
                    await self._import(module)
                from omq.metrics.resources import watched_resources
                from omq.terminals.http.site import Site

                self._site = await Site.load(self._context, watched_resources(self._source))
            return self._site

    async def _serve_websocket(self, transport: Transport, nursery: trio.Nursery) -> None:
        """Serve the omq protocol on a WebSocket. Its first eight octets are those of the table, too."""
        received = bytearray()
        with self._handshake() as limit:
            try:
                await _first_octets(transport, received)
            except _Ended:
                if received:
                    self._report_unrecognized(transport, "it ended in its first octets", received)
                await transport.finish()
                return
        if limit.cancelled_caught:
            self._late(transport, limit, received)
        elif isinstance(_protocol(received), handshake.Omq):
            arrival = Arrival(transport, bytes(received[handshake.LENGTH :]), nursery, self._newcomers)
            await self._connections.begin(nursery.cancel_scope, Kind.OMQ, await self._accept_omq(arrival))
        else:
            await self._refuse(transport, received)

    def _report_turned_away(self, transport: Transport, why: str) -> None:
        """Count and log a connection that ends because of max_connections."""
        self.turned_away += 1
        peer = transport.peer()
        self._turned_away.add(f"{peer}: {why}: {self.quota.most}", peer=peer)

    def _report_unrecognized(self, transport: Transport, why: str, received: bytearray | None = None) -> None:
        """Log the reason why a connection ends before it has a terminal, and its first octets."""
        self.unrecognized += 1
        peer = transport.peer()
        if received is not None:
            inside = " inside TLS" if transport.is_encrypted else ""
            began = f"it began with {handshake.shown(bytes(received))}" if received else "it sent nothing"
            why = f"{why}; {began}{inside}"
        self._unrecognized.add(f"{peer}: {why}", peer=peer)


class _Ended(Exception):
    """The client closed the connection before its handshake was complete."""


async def _first_octets(transport: Transport, received: bytearray) -> None:
    """Receive at least the octets that identify the protocol. Raises _Ended.

    What came is in `received` also when it is not enough.
    """
    while len(received) < handshake.LENGTH:
        data = await transport.receive()
        if not data:
            raise _Ended
        received += data


def _protocol(received: bytearray) -> handshake.Protocol:
    return handshake.recognise(bytes(received[: handshake.LENGTH]))
