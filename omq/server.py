"""The server: one store, its drivers, and listeners whose connections choose their terminal.

See docs/PROTOCOL.md, "The first eight octets".
"""

import logging
import socket
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, assert_never

import trio

from omq.access.control import AccessControl
from omq.access.limits import Quota
from omq.access.rights import Right
from omq.access.session import Session
from omq.config import Config, parse_address
from omq.drivers.catalogue import Catalogue
from omq.drivers.histogram import Distribution, Histogram
from omq.drivers.housekeeping import (
    keep_deleting,
    keep_flushing,
    keep_positions,
    keep_tidy,
    look_at_disk,
    save_positions,
    watch_disk,
)
from omq.drivers.memory import Memory
from omq.drivers.reasons import Refused
from omq.drivers.rounds import repeat
from omq.drivers.seam import Channel
from omq.drivers.statistics import NodeStatistics
from omq.logs import LogThrottle, quoted, report_suppressed
from omq.metrics.slices import Slices
from omq.model import Topic
from omq.overview import Overview, RecentLines, recent_lines
from omq.printable import printable
from omq.protocol import handshake
from omq.protocol.tls import TlsError
from omq.statistics import ServerStatistics
from omq.systemd import PassedSockets
from omq.terminals.connection.accepting import accept_all
from omq.terminals.connection.certificates import Certificates, certificates
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.liveness import look_seconds
from omq.terminals.connection.statistics import ConnectionStatistics, Ended, Kind, SubscriptionStatistics
from omq.terminals.connection.tls_transport import TlsTransport
from omq.terminals.connection.transport import BY_CLIENT, Transport
from omq.terminals.omq.long_answers import LongAnswers
from omq.terminals.omq.terminal import OmqTerminal
from omq.threads import in_thread
from omq_storage.errors import StoreError
from omq_storage.levels import Level
from omq_storage.store import Store

if TYPE_CHECKING:
    from omq.terminals.http.site import Site

SHUTDOWN_SECONDS = 3.0
"""The time limit for connections to end when the server stops; with the stores it stays within 5 seconds."""

MOST_ENDS, ENDS_SECONDS = 100, 10.0
"""The log has a line for the end of each connection, but at most so many in so many seconds."""

log = logging.getLogger("omq.server")
connections_log = logging.getLogger("omq.connections")


class ListenError(Exception):
    """An address cannot be listened on; the message is one line."""


class NotClosed(Exception):
    """The server stopped, but could not close its stores properly; the message is one line."""


class Terminal(Protocol):
    """What the server needs of a connection after its handshake."""

    async def serve(self) -> None:
        """Run the connection, and return when it has ended for any reason."""

    def statistics(self) -> ConnectionStatistics:
        """Return a snapshot of the connection."""

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return snapshots of its subscriptions."""

    def open_channels(self) -> list[tuple[Topic, Channel]]:
        """Return the topics and channels of its subscriptions."""

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""

    def sweep(self, now: float) -> None:
        """Called about every second."""

    @property
    def session(self) -> Session | None:
        """The session of the client; None while the client is not known."""

    def shut_down(self) -> None:
        """End the connection in order, within a short time."""

    def disconnect(self, why: str) -> None:
        """Do as `shut_down`, and tell the client this sentence as far as the protocol can."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What is spoken at an address."""

    tls_only: bool = False
    """Whether every connection must begin with TLS."""
    http: bool = True
    others: bool = True
    """Every protocol but HTTP."""


class Server:
    """A running server."""

    def __init__(
        self,
        config: Config,
        catalogue: Catalogue,
        memory: Memory,
        certificates: Certificates | None,
        lines: RecentLines,
    ) -> None:
        self.config = config
        self.certificates = certificates
        self.addresses: list[tuple[str, int]] = []
        """The addresses on which it listens: host and actual port."""
        self.tls_addresses: list[tuple[str, int]] = []
        """The addresses at which it accepts TLS only."""
        self.http_addresses: list[tuple[str, int]] = []
        """The addresses at which it accepts HTTP only."""
        self.catalogue = catalogue
        self.memory = memory
        self._access = AccessControl(config, catalogue, memory, Overview(self, lines))
        self.watches = self._access.watches
        self.long_answers = LongAnswers(self._access, memory.listed)
        self._connections = Quota(config.max_connections)
        self._turned_away = LogThrottle(log, logging.WARNING, "connections were turned away")
        self._strangers = LogThrottle(log, logging.INFO, "connections did not begin as they must")
        self._withdrawn = LogThrottle(log, logging.INFO, "connections were closed after a reload")
        self._ends = LogThrottle(
            connections_log, logging.INFO, "connections ended", lines=MOST_ENDS, seconds=ENDS_SECONDS
        )
        self._defects = LogThrottle(log, logging.ERROR, "connections ended by a defect of the server")
        self._context = Context.of(config, self._access, memory)
        self.pace = self._context.pace
        # The connections after their handshake, with their ids, the oldest first.
        self._terminals: dict[Terminal, int] = {}
        self._next_connection = 1
        self._handshakes: set[trio.CancelScope] = set()
        # The connections whose client is not known yet, the oldest first.
        self._newcomers: dict[trio.CancelScope, None] = {}
        self.is_stopping = False
        self._since = trio.current_time()
        self._served: Counter[Kind] = Counter()
        self.ended: defaultdict[Kind, Ended] = defaultdict(Ended)
        """The sums of the connections that have ended."""
        self._lag = Histogram()
        self._imported: set[str] = set()
        """The modules of terminals that are imported: see `_import`."""
        self._importing = trio.Lock()
        self._site: Site | None = None
        self._site_lock = trio.Lock()
        self._turned_away_count = self._strangers_count = self._defects_count = 0

    @property
    def port(self) -> int:
        """The port of the first address."""
        return (self.addresses or self.tls_addresses or self.http_addresses)[0][1]

    @property
    def connections(self) -> int:
        """The number of open connections, including those before their handshake."""
        return self._connections.used

    def terminals(self) -> list[Terminal]:
        """The connections after their handshake, the oldest first."""
        return list(self._terminals)

    def nodes(self) -> list[NodeStatistics]:
        """Return the statistics of the nodes of AMQP 1.0 without a queue."""
        return self._access.nodes.statistics()

    def numbered(self) -> list[tuple[Terminal, int]]:
        """The connections after their handshake with their ids, the oldest first."""
        return list(self._terminals.items())

    def statistics(self) -> ServerStatistics:
        """Return a snapshot of the server."""
        config = self.config
        return ServerStatistics(
            seconds=trio.current_time() - self._since,
            connections=self._connections.used,
            max_connections=config.max_connections,
            handshakes=len(self._handshakes),
            omq=self._served[Kind.OMQ],
            dmp=self._served[Kind.DMP],
            amqp_0_9=self._served[Kind.AMQP_0_9],
            amqp_1_0=self._served[Kind.AMQP_1_0],
            http=self._served[Kind.HTTP],
            newcomers=len(self._newcomers),
            dmp_leased=self._access.leased_connections.used,
            max_dmp_leased=config.max_dmp_connections,
            subscriptions=self._access.subscriptions.used,
            max_subscriptions=config.max_subscriptions,
            leases=len(self._access.leases),
            max_leases=config.max_leases,
            direct_nodes=len(self._access.nodes),
            undelivered=self._access.nodes.totals.undelivered,
            stalls=self._access.nodes.totals.stalls,
            topics=self.catalogue.topic_count,
            max_topics=config.max_topics,
            turned_away=self._turned_away_count,
            strangers=self._strangers_count,
            defects=self._defects_count,
            memory=self.memory.statistics(),
            writers=tuple(writer.statistics() for writer in self.catalogue.writers.values()),
        )

    async def listen(self, passed: PassedSockets | None) -> "Listeners":
        """Open the configured addresses, or use the sockets that were passed. Raises ListenError."""
        if passed is None:
            listeners = await self._open_addresses()
        else:
            listeners = Listeners(
                _listeners(passed.listen), _listeners(passed.listen_tls), _listeners(passed.listen_http)
            )
        self.addresses = _addresses(listeners.any)
        self.tls_addresses = _addresses(listeners.tls)
        self.http_addresses = _addresses(listeners.http)
        return listeners

    async def _open_addresses(self) -> "Listeners":
        """Raises ListenError."""
        listeners = Listeners([], [], [])
        try:
            for address in self.config.listen:
                listeners.any.extend(await _open(address))
            for address in self.config.listen_tls:
                listeners.tls.extend(await _open(address))
            for address in self.config.listen_http:
                listeners.http.extend(await _open(address))
        except ListenError:
            for listener in (*listeners.any, *listeners.tls, *listeners.http):
                listener.socket.close()
            raise
        return listeners

    async def serve_connection(self, spoken: Spoken, stream: trio.SocketStream) -> None:
        """Serve one connection from its first octet to its end. Its errors do not affect others."""
        transport = Transport(stream)
        if not self._connections.take() and not self._make_room():
            most = self._connections.most
            peer = transport.peer()
            self._turned_away_count += 1
            self._turned_away.add(f"{peer}: there are {most} connections, the most there may be", peer=peer)
            transport.close()
            return
        newcomer = trio.CancelScope()
        self._newcomers[newcomer] = None
        known = partial(self._newcomers.pop, newcomer, None)
        try:
            with newcomer:
                await self._choose_terminal(stream, transport, known, spoken)
        except trio.BrokenResourceError:
            pass  # the client went away during the handshake
        except Exception:  # noqa: BLE001 - it is logged, and the other connections continue
            self._defects_count += 1
            what = f"a connection ended by a defect of the server\n{traceback.format_exc()}"
            self._defects.add(what, peer=transport.peer())
        finally:
            known()
            self._connections.give()
            transport.close()

    def _make_room(self) -> bool:
        """If the quota is used up, end the oldest connection whose client is not known yet, for a new one.

        A client is known when its Connect is accepted, or its lease. So nobody keeps others out with
        connections that say nothing, or that say which protocol they speak and nothing else.
        """
        for oldest in self._newcomers:
            oldest.cancel()
            del self._newcomers[oldest]
            self._connections.used += 1
            return True
        return False

    async def _choose_terminal(
        self, stream: trio.SocketStream, transport: Transport, known: Callable[[], None], spoken: Spoken
    ) -> None:
        """Read the first eight octets and hand the connection to the protocol that they name.

        `known` is called once it is known whose connection it is.
        """
        received = bytearray()
        with self._handshake() as limit:
            try:
                await _first_octets(transport, received)
                if isinstance(_protocol(received), handshake.Tls) and self.certificates is not None:
                    engine = self.certificates.engine()
                    transport = await TlsTransport.accept(stream, engine, bytes(received))
                    received.clear()
                    await _first_octets(transport, received)
                elif spoken.tls_only:
                    self._stranger(transport, "nothing but TLS is spoken at this address", received)
                    return
            except TlsError as error:
                self._stranger(transport, f"TLS: {error}")
                return
            except _Ended:
                if received:  # a client that sends nothing only tests whether the port is open
                    self._stranger(transport, "it ended in its first octets", received)
                return
        if limit.cancelled_caught:
            self._late(transport, limit, received)
            return
        protocol = _protocol(received)
        arrival = Arrival(transport, bytes(received[handshake.LENGTH :]), known)
        if isinstance(protocol, handshake.Http):
            if spoken.http:
                await self._serve_http(Arrival(transport, bytes(received), known))
                return
            protocol = handshake.UnknownVersion(0)
        if not spoken.others:
            self._stranger(transport, "nothing but HTTP is spoken at this address", received)
            return
        match protocol:
            case handshake.Omq():
                await self._serve_omq(arrival)
            case handshake.Dmp():
                await self._import("omq.terminals.dmp.terminal")
                from omq.terminals.dmp.terminal import DmpTerminal

                await self._serve(Kind.DMP, DmpTerminal(arrival, self._context))
            case handshake.Amqp0_9():
                await self._import("omq.terminals.amqp_0_9.terminal")
                from omq.terminals.amqp_0_9.terminal import AmqpTerminal

                await self._serve(Kind.AMQP_0_9, AmqpTerminal(arrival, self._context))
            case handshake.UnknownVersion():
                await self._refuse(transport, received)
            case handshake.Amqp1_0(header):
                await self._import("omq.terminals.amqp_1_0.terminal")
                from omq.terminals.amqp_1_0.terminal import Amqp1Terminal

                await self._serve(Kind.AMQP_1_0, Amqp1Terminal(arrival, header, self._context))
            case handshake.OtherAmqp() as other:
                self._stranger(transport, "what it speaks is not served here", received)
                await transport.send(handshake.answer_to_other(other))
                await transport.finish()
            case handshake.Tls():
                self._stranger(transport, "what it speaks is not served here", received)
            case never:
                assert_never(never)

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
        """The time for the first eight octets; it ends early when the server stops."""
        with trio.move_on_after(self.config.handshake_seconds) as limit:
            self._handshakes.add(limit)
            try:
                yield limit
            finally:
                self._handshakes.remove(limit)

    def _late(self, transport: Transport, limit: trio.CancelScope, received: bytearray) -> None:
        """The first eight octets did not come in time, or the server stops."""
        if trio.current_time() >= limit.deadline:
            self._stranger(transport, f"no handshake within {self.config.handshake_seconds:g} s", received)

    async def _serve_omq(self, arrival: Arrival) -> None:
        await arrival.transport.send(handshake.ACCEPTED)
        await self._serve(Kind.OMQ, OmqTerminal(arrival, self._context, self.long_answers))

    async def _refuse(self, transport: Transport, received: bytearray) -> None:
        self._stranger(transport, "what it speaks is not served here", received)
        await transport.send(handshake.REFUSED)
        await transport.finish()

    async def _serve_http(self, arrival: Arrival) -> None:
        """Answer requests, and serve omq if one of them opens a WebSocket."""
        site = await self._load_site()
        from omq.terminals.http.terminal import HttpTerminal

        terminal = HttpTerminal(arrival, self._context, site)
        await self._serve(Kind.HTTP, terminal)
        if terminal.upgraded is not None and not self.is_stopping:
            await self._serve_websocket(terminal.upgraded, arrival.known)

    async def _load_site(self) -> "Site":
        """Return what HTTP answers."""
        async with self._site_lock:
            if self._site is None:
                for module in ("omq.terminals.http.terminal", "omq.metrics.metrics"):
                    await self._import(module)
                from omq.metrics.metrics import Metrics
                from omq.metrics.readiness import Readiness
                from omq.terminals.http.site import Resource, Site

                watched = {
                    "/metrics": Resource(Metrics(self).answer, is_large=True),
                    "/readyz": Resource(Readiness(self).answer),
                }
                self._site = await Site.load(self._context, watched)
            return self._site

    async def _serve_websocket(self, transport: Transport, known: Callable[[], None]) -> None:
        """Serve the omq protocol on a WebSocket. Its first eight octets are those of the table, too."""
        received = bytearray()
        with self._handshake() as limit:
            try:
                await _first_octets(transport, received)
            except _Ended:
                if received:
                    self._stranger(transport, "it ended in its first octets", received)
                await transport.finish()
                return
        if limit.cancelled_caught:
            self._late(transport, limit, received)
        elif isinstance(_protocol(received), handshake.Omq):
            await self._serve_omq(Arrival(transport, bytes(received[handshake.LENGTH :]), known))
        else:
            await self._refuse(transport, received)

    def _stranger(self, transport: Transport, why: str, received: bytearray | None = None) -> None:
        """Log why a connection ends before it has a terminal, and its first octets."""
        self._strangers_count += 1
        peer = transport.peer()
        if received is not None:
            inside = " inside TLS" if transport.is_encrypted else ""
            began = f"it began with {handshake.shown(bytes(received))}" if received else "it sent nothing"
            why = f"{why}; {began}{inside}"
        self._strangers.add(f"{peer}: {why}", peer=peer)

    async def _serve(self, kind: Kind, terminal: Terminal) -> None:
        self._terminals[terminal] = self._next_connection
        self._next_connection += 1
        self._served[kind] += 1
        peer = terminal.statistics().peer
        try:
            if self.is_stopping:
                return
            await terminal.serve()
        finally:
            del self._terminals[terminal]
            self._served[kind] -= 1
            found = terminal.statistics()
            self.ended[found.kind] = self.ended[found.kind].plus(found)
            if found.client is not None:  # strangers cannot fill the log
                self._tell_end(found, found.client, peer)

    def _tell_end(self, seen: ConnectionStatistics, client: bytes, peer: str) -> None:
        """Log the end of a connection."""
        line = (
            f"{peer}: {quoted(client)} ({seen.kind.value}) disconnected after {seen.seconds:.1f} s: "
            f"{printable(seen.ending or BY_CLIENT)}; {seen.octets_in} octets in, {seen.octets_out} out"
        )
        self._ends.add(line, peer=peer, client=client)

    async def sweep(self) -> None:
        """Send Pings and expire unused leases, until cancelled."""
        await repeat(
            log, "looking after the connections", look_seconds(self.config.ping_seconds), self._sweep_once
        )

    @property
    def loop_lag(self) -> Distribution:
        """How long a task that could run had to wait for its turn, about once a second."""
        return self._lag.snapshot()

    async def _sweep_once(self) -> None:
        began = time.perf_counter()
        await trio.lowlevel.checkpoint()
        self._lag.observe(time.perf_counter() - began)
        now = trio.current_time()
        for terminal in list(self._terminals):
            terminal.sweep(now)
        self._access.look()
        report_suppressed()

    async def reload(self, config: Config) -> None:
        """Apply a configuration, in which only keys that need no restart may differ: see
        `omq.reloading.applied`. Disconnect clients that may not have their connection any more.
        """
        self.config = config
        self._connections.most = config.max_connections
        self._access.reload(config)
        slices = Slices()
        for terminal in list(self._terminals):
            session = terminal.session
            if (
                session is not None
                and (why := session.withdrawn or _forbidden(terminal, session)) is not None
            ):
                peer = terminal.statistics().peer
                self._withdrawn.add(f"{peer}: closed: {why}", peer=peer, client=session.name)
                terminal.disconnect(why)
            await slices.step()
        await self.catalogue.reload(config)

    def stop(self) -> None:
        """End every connection after its outstanding answers."""
        self.is_stopping = True
        for limit in list(self._handshakes):
            limit.cancel()
        for terminal in list(self._terminals):
            terminal.shut_down()


def _forbidden(terminal: Terminal, session: Session) -> str | None:
    """Return why a connection may not have one of its subscriptions any more, after the rights of its client
    have changed; None if it may have all.
    """
    before, now = session.renew_rights().subscribe, session.rights.subscribe
    if before == now:
        return None
    for topic, _ in terminal.open_channels():
        name = topic.topic
        if name in before and name not in now and name not in session.made_names:
            return f"this client may not {Right.SUBSCRIBE.value} {quoted(name)} any more"
    return None


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


@dataclass(frozen=True, slots=True)
class Listeners:
    """The open addresses."""

    any: list[trio.SocketListener]
    """Accepts TLS if it is configured and the client begins with it."""
    tls: list[trio.SocketListener]
    """Accepts TLS only."""
    http: list[trio.SocketListener]
    """Accepts HTTP only, and TLS as the first ones do."""


async def _open(address: str) -> list[trio.SocketListener]:
    """Raises ListenError."""
    host, port = parse_address(address)
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as problem:
        raise ListenError(f"cannot listen on {address}: {problem.strerror or problem}") from problem
    except UnicodeError as problem:
        raise ListenError(f"cannot listen on {address}: that is no host name") from problem


def _listeners(sockets: Iterable[socket.socket]) -> list[trio.SocketListener]:
    return [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets]


def _addresses(listeners: list[trio.SocketListener]) -> list[tuple[str, int]]:
    return [listener.socket.getsockname()[:2] for listener in listeners]


def check_files(config: Config) -> None:
    """Raises ConfigError when a file that the configuration names cannot be used."""
    certificates(config)


@asynccontextmanager
async def open_server(config: Config, passed: PassedSockets | None = None) -> AsyncIterator[Server]:
    """Run a server within the block; at its end, stop it: confirm what is posted, flush, close the stores.
    It listens on the sockets that are `passed`, or else at the configured addresses.

    Raises StoreError when the store cannot be used (StoreInUse when another server has it), ListenError,
    omq.config.ConfigError when a certificate cannot be used, and omq.drivers.reasons.Refused when a
    configured topic exists with other types. Raises NotClosed at the end of the block when the stores could
    not be closed as they should, after a disk refused to make them durable, say.
    """
    with recent_lines() as lines:
        async with _open_server(config, lines, passed) as server:
            yield server


@asynccontextmanager
async def _open_server(
    config: Config, lines: RecentLines, passed: PassedSockets | None
) -> AsyncIterator[Server]:
    shown = certificates(config)
    store = await in_thread(partial(Store.open, config.store, map_size=config.map_bytes))
    problem: ListenError | Refused | StoreError | None = None
    unclosed: StoreError | None = None
    try:
        for recovery in store.recoveries:
            level = logging.WARNING if recovery.rolled_back else logging.INFO
            log.log(level, "%s: %s", recovery.level.value, recovery.what)
        async with trio.open_nursery() as background:
            memory = Memory(config.memory_bytes)
            catalogue = Catalogue(config, store, memory, background)
            server = Server(config, catalogue, memory, shown, lines)
            for writer in catalogue.writers.values():
                background.start_soon(writer.run)
            try:
                await catalogue.open_stored()
                listeners = await server.listen(passed)
            except (ListenError, Refused, StoreError) as refusal:
                problem = refusal  # raised outside of the nursery, which would wrap it
            else:
                await look_at_disk(catalogue, config)
                _start_housekeeping(background, config, catalogue)
                background.start_soon(server.sweep)
                background.start_soon(server.long_answers.run)
                background.start_soon(server.watches.run)
                background.start_soon(server.pace.run)
                if shown is not None:
                    background.start_soon(shown.keep_warning)
                async with trio.open_nursery() as connections:
                    accepting = await connections.start(_accept, server, listeners, connections)
                    try:
                        yield server
                    finally:
                        accepting.cancel()
                        server.stop()
                        # Connections get their time to end, whatever ends the block.
                        connections.cancel_scope.deadline = trio.current_time() + SHUTDOWN_SECONDS
                        connections.cancel_scope.shield = True
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + SHUTDOWN_SECONDS):
                    await _settle(catalogue, store)
                background.cancel_scope.cancel()
    finally:
        unclosed = await _close(store)
        report_suppressed(early=True)
    if problem is not None:
        raise problem
    if unclosed is not None:
        raise NotClosed(str(unclosed)) from unclosed


async def _close(store: Store) -> StoreError | None:
    """Close the stores in any case. Return the problem, if any; the log has it, too."""
    try:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SHUTDOWN_SECONDS) as limit:
            await in_thread(store.close)
        if limit.cancelled_caught:
            store.close()  # no thread could be started; blocking this one delays no connection any more
    except StoreError as problem:
        log.error("the stores could not be closed as they should: %s", problem)
        return problem
    return None


def _start_housekeeping(nursery: trio.Nursery, config: Config, catalogue: Catalogue) -> None:
    nursery.start_soon(keep_flushing, catalogue.writers[Level.WEAK], config.weak_flush_seconds)
    nursery.start_soon(keep_flushing, catalogue.writers[Level.ASYNC], config.async_flush_seconds)
    nursery.start_soon(watch_disk, catalogue, config)
    nursery.start_soon(keep_deleting, catalogue)
    for level in Level:
        nursery.start_soon(keep_tidy, catalogue, level)
        nursery.start_soon(keep_positions, catalogue, level)


async def _accept(
    server: Server,
    listeners: Listeners,
    connections: trio.Nursery,
    task_status: "trio.TaskStatus[trio.CancelScope]" = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        async with trio.open_nursery() as nursery:
            http = server.config.http and not listeners.http
            for group, spoken in (
                (listeners.any, Spoken(http=http)),
                (listeners.tls, Spoken(tls_only=True, http=http)),
                (listeners.http, Spoken(others=False)),
            ):
                nursery.start_soon(accept_all, group, partial(server.serve_connection, spoken), connections)


async def _settle(catalogue: Catalogue, store: Store) -> None:
    """After the last connection: store all posts, and the position of each topic."""
    for writer in catalogue.writers.values():
        await writer.drain()
        try:
            await save_positions(writer)
        except StoreError as problem:
            log.error("%s: positions are not saved: %s", writer.environment.level.value, problem)
    await catalogue.settled()  # the last consumers have gone, and some topics with them
    try:
        await in_thread(partial(store.catalogue.release, catalogue.release_ids()))
    except StoreError as problem:
        log.error("reserved ids are not released: %s", problem)
