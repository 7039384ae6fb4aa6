"""The server: one store, its drivers, and its connections; its start and its end."""

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import chain
from threading import Lock

import trio

from omq.access.control import AccessControl
from omq.access.session import Session
from omq.config import Config
from omq.connections import ConnectionRegistry, Terminal
from omq.drivers.catalogue import Catalogue
from omq.drivers.histogram import Distribution, Histogram
from omq.drivers.housekeeping import (
    keep_deleting,
    keep_flushing,
    keep_journal_free,
    keep_positions,
    keep_tidy,
    save_positions,
    watch_disk,
)
from omq.drivers.memory import Memory
from omq.drivers.reasons import Refused
from omq.drivers.rounds import repeat
from omq.drivers.slices import Slices, in_slices, let_go
from omq.drivers.spooler import Spooler
from omq.drivers.statistics import NodeStatistics
from omq.drivers.unspooled import Unspooled
from omq.listening import ListenError, Sockets, addresses
from omq.logs import LogThrottle, report_suppressed
from omq.overview import Overview, RecentLines, recent_lines
from omq.reception import Reception
from omq.statistics import ServerStatistics
from omq.systemd import PassedSockets
from omq.terminals.connection.accepting import accept_all
from omq.terminals.connection.certificates import Certificates, certificates
from omq.terminals.connection.context import Context
from omq.terminals.connection.liveness import look_seconds
from omq.terminals.connection.statistics import EndedConnections, Kind
from omq.terminals.omq.long_answers import LongAnswers
from omq.threads import in_thread
from omq_storage.errors import StoreError
from omq_storage.levels import Level
from omq_storage.store import Store

SWEEP_SECONDS = 0.00005
"""The seconds for which the connections are looked after at a time: each takes some 3 microseconds, once a
second. So few messages wait for it, and not long.
"""

SHUTDOWN_SECONDS = 3.0
"""The number of seconds for connections to end when the server stops. With the stores, a stop usually takes
less than five.
"""

log = logging.getLogger("omq.server")


class NotClosed(Exception):
    """The server stopped, but could not close its stores properly; the message is one line."""


class Server:
    """A running server."""

    def __init__(
        self,
        config: Config,
        catalogue: Catalogue,
        memory: Memory,
        certificates: Certificates | None,
        lines: RecentLines,
        sockets: Sockets,
    ) -> None:
        self.config = config
        self.certificates = certificates
        self.addresses = addresses(sockets.any)
        """The addresses on which it listens: host and actual port."""
        self.tls_addresses = addresses(sockets.tls)
        """The addresses at which it accepts TLS only."""
        self.http_addresses = addresses(sockets.http)
        """The addresses at which it accepts HTTP only."""
        self.catalogue = catalogue
        self.memory = memory
        self._access = AccessControl(config, catalogue, memory, Overview(self, lines))
        self.watches = self._access.watches
        self.long_answers = LongAnswers(self._access, memory.listed)
        self._withdrawn = LogThrottle(log, logging.INFO, "connections were closed after a reload")
        context = Context.of(config, self._access, memory, catalogue.at_once, catalogue.begin)
        self.pace = context.pace
        self._connections = ConnectionRegistry()
        self.reception = Reception(context, certificates, self._connections, self.long_answers, self)
        self._since = trio.current_time()
        self._lag = Histogram()

    @property
    def port(self) -> int:
        """The port of the first address."""
        return (self.addresses or self.tls_addresses or self.http_addresses)[0][1]

    @property
    def connections(self) -> int:
        """The number of open connections, including those before their handshake."""
        return self.reception.quota.used

    @property
    def ended(self) -> Mapping[Kind, EndedConnections]:
        """The sums of the connections that have ended."""
        return self._connections.ended

    @property
    def is_stopping(self) -> bool:
        """Whether it ends its connections."""
        return self._connections.is_stopping

    def terminals(self) -> list[Terminal]:
        """Return the connections after their handshake, the oldest first."""
        return self._connections.terminals()

    def nodes(self) -> list[NodeStatistics]:
        """Return the statistics of the nodes of AMQP 1.0 without a queue."""
        return self._access.nodes.statistics()

    def named_nodes(self) -> Iterator[NodeStatistics]:
        """Yield the statistics of those among them that have a name of their client's, the oldest first."""
        return self._access.nodes.named()

    def numbered(self) -> list[tuple[Terminal, int]]:
        """Return the connections after their handshake with their ids, the oldest first."""
        return self._connections.numbered()

    def statistics(self) -> ServerStatistics:
        """Return a snapshot of the server."""
        config, reception = self.config, self.reception
        return ServerStatistics(
            seconds=trio.current_time() - self._since,
            connections=reception.quota.used,
            max_connections=config.max_connections,
            handshakes=reception.handshakes,
            served=self._connections.served.copy(),
            newcomers=reception.newcomers,
            dmp_leased=self._access.leased_connections.used,
            subscriptions=self._access.subscriptions.used,
            max_subscriptions=config.max_subscriptions,
            leases=len(self._access.leases),
            max_leases=config.max_leases,
            direct_nodes=len(self._access.nodes),
            undelivered=self._access.nodes.totals.undelivered,
            stalls=self._access.nodes.totals.stalls,
            topics=self.catalogue.topic_count,
            max_topics=config.max_topics,
            turned_away=reception.turned_away,
            unrecognized=reception.unrecognized,
            defects=reception.defects,
            memory=self.memory.statistics(),
            spool=self.catalogue.spool.statistics(),
            writers=tuple(writer.statistics() for writer in self.catalogue.writers.values()),
        )

    async def sweep(self) -> None:
        """Send Pings and expire unused leases, until cancelled."""
        await repeat(
            log, "looking after the connections", look_seconds(self.config.ping_seconds), self._sweep_once
        )

    @property
    def loop_lag(self) -> Distribution:
        """The times for which a task that could run waited for its turn, measured about once a second."""
        return self._lag.snapshot()

    async def _sweep_once(self) -> None:
        began = time.perf_counter()
        await trio.lowlevel.checkpoint()
        self._lag.observe(time.perf_counter() - began)
        now = trio.current_time()
        slices = Slices(SWEEP_SECONDS)
        for terminal in let_go(self.terminals()):
            terminal.sweep(now)
            await slices.step()
        await self._access.look()
        report_suppressed()

    async def reload(self, config: Config) -> None:
        """Apply a configuration, in which only keys that need no restart may differ: see
        `omq.reloading.applied`. Disconnect clients that may not have their connection any more.
        """
        self.config = config
        self.reception.quota.most = config.max_connections
        await self._access.reload(config)
        slices = Slices()
        for terminal in let_go(self.terminals()):
            session = terminal.session
            if (
                session is not None
                and (why := session.withdrawn or await _forbidden(terminal, session, slices)) is not None
            ):
                peer = terminal.statistics().peer
                self._withdrawn.add(f"{peer}: closed: {why}", peer=peer, client=session.name)
                terminal.disconnect(why)
            await slices.step()
        await self.catalogue.reload(config)

    async def stop(self) -> None:
        """End every connection after its outstanding answers, in slices. A cancellation has no effect."""
        self.catalogue.stop_assigning()
        steps = chain(
            self.reception.stop(),
            self._access.nodes.stop(),  # first of the two, because their producers are told the outcomes
            self._connections.stop(),
        )
        with trio.CancelScope(shield=True):
            await in_slices(steps)


async def _forbidden(terminal: Terminal, session: Session, slices: Slices) -> str | None:
    """Return the reason why a connection may not have one of its subscriptions any more, after the rights of
    its client have changed; None if it may have all.
    """
    reason_to_end = session.renew_rights()
    if reason_to_end is None:
        return None
    for topic, _ in terminal.open_channels():
        await slices.step()
        if (why := reason_to_end(topic.topic)) is not None:
            return why
    return None


def check_files(config: Config) -> None:
    """Raise ConfigError when a file that the configuration names cannot be used. Log a warning for each file
    with a certificate that has expired or soon will.
    """
    if (shown := certificates(config)) is not None:
        shown.warn_of_expiry()


@asynccontextmanager
async def open_server(config: Config, passed: PassedSockets | None = None) -> AsyncIterator[Server]:
    """Run a server within the block; at its end, stop it: confirm the posts, flush, close the stores. It
    listens on the sockets that are `passed`, or else at the configured addresses.

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
    # Before the store, so that no new store is left behind if an address is taken.
    with closing(await Sockets.bind(config, passed)) as sockets:
        async with _open_store(config, lines, shown, sockets) as server:
            yield server


@asynccontextmanager
async def _open_store(
    config: Config, lines: RecentLines, shown: Certificates | None, sockets: Sockets
) -> AsyncIterator[Server]:
    store = await _open_in_thread(config)
    problem: Refused | StoreError | ListenError | None = None
    unclosed: StoreError | None = None
    try:
        for recovery in store.recoveries:
            level = logging.WARNING if recovery.rolled_back else logging.INFO
            log.log(level, "the store of level %s: %s", recovery.level.value, recovery.what)
        async with trio.open_nursery() as background:
            memory = Memory(config.memory_bytes)
            catalogue = Catalogue(config, store, memory, background)
            server = Server(config, catalogue, memory, shown, lines, sockets)
            for writer in catalogue.writers.values():
                background.start_soon(writer.run)
            try:
                await catalogue.open_stored()
                sockets.listen()
            except (Refused, StoreError, ListenError) as refusal:
                problem = refusal  # raised outside of the nursery, which would wrap it
            else:
                await background.start(watch_disk, catalogue, config)
                _start_housekeeping(background, config, catalogue)
                background.start_soon(_relief(config, catalogue, memory).run)
                background.start_soon(server.sweep)
                background.start_soon(server.long_answers.run)
                background.start_soon(server.watches.run)
                background.start_soon(server.pace.run)
                if shown is not None:
                    background.start_soon(shown.keep_warning)
                async with trio.open_nursery() as connections:
                    accepting = await connections.start(_accept, server, sockets, connections)
                    try:
                        yield server
                    finally:
                        accepting.cancel()
                        # Connections get their time to end, also after an exception in the block.
                        connections.cancel_scope.deadline = trio.current_time() + SHUTDOWN_SECONDS
                        connections.cancel_scope.shield = True
                        await server.stop()
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


def _relief(config: Config, catalogue: Catalogue, memory: Memory) -> Spooler | Unspooled:
    """Return the part that acts when the memory is short of room for transient broadcast topics."""
    if not config.spool_bytes:
        return Unspooled(memory.tails, config.spool_seconds)
    publisher_queues = memory.spooled_publisher_queues
    return Spooler(memory.tails, publisher_queues, catalogue.spool, config.spool_seconds)


async def _open_in_thread(config: Config) -> Store:
    """Open the store. If this is cancelled it returns at once, although the thread may need minutes to verify
    large files, and cannot be stopped. The thread closes the store then.
    """
    opened: list[Store] = []
    first_to_end = Lock()
    """Acquired by the thread or by this task, whichever ends first."""

    def open_store() -> None:
        opened.append(Store.open(config.store, map_size=config.map_bytes))
        if not first_to_end.acquire(blocking=False):
            opened[0].close(clean=False)

    try:
        await in_thread(open_store, abandon_on_cancel=True)
    except trio.Cancelled:
        if first_to_end.acquire(blocking=False):
            raise
        # It was open already: the caller is cancelled at its next checkpoint, and closes it.
    return opened[0]


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
    nursery.start_soon(keep_journal_free, catalogue.writers[Level.STRONG])
    nursery.start_soon(keep_flushing, catalogue.writers[Level.WEAK], config.weak_flush_seconds)
    nursery.start_soon(keep_flushing, catalogue.writers[Level.ASYNC], config.async_flush_seconds)
    nursery.start_soon(keep_deleting, catalogue)
    for level in Level:
        nursery.start_soon(keep_tidy, catalogue, level)
        nursery.start_soon(keep_positions, catalogue, level)


async def _accept(
    server: Server,
    sockets: Sockets,
    connections: trio.Nursery,
    task_status: "trio.TaskStatus[trio.CancelScope]" = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        async with trio.open_nursery() as nursery:
            for group, spoken in sockets.spoken(server.config):
                handler = partial(server.reception.receive, spoken)
                nursery.start_soon(accept_all, group, handler, connections)


async def _settle(catalogue: Catalogue, store: Store) -> None:
    """Store all posts, and the position of each topic, after the last connection."""
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
