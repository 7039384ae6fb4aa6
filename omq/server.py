"""The server: one store, its drivers, and listeners whose connections choose their terminal (design, 2)."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, assert_never

import trio

from omq.config import Config, parse_address
from omq.drivers.catalogue import Catalogue
from omq.drivers.channel import Refused
from omq.drivers.housekeeping import (
    keep_flushing,
    keep_tidy,
    look_at_disk,
    save_positions,
    watch_disk,
)
from omq.drivers.leases import Leases
from omq.drivers.memory import Memory
from omq.protocol import handshake
from omq.terminals.accepting import accept_all
from omq.terminals.dmp import DmpTerminal, Places, Shared
from omq.terminals.liveness import look_seconds
from omq.terminals.omq import OmqTerminal
from omq.terminals.transport import Transport
from storage.errors import StoreError
from storage.levels import Level
from storage.store import Store

SHUTDOWN_SECONDS = 3.0
"""How long connections may take to end when the server stops; with the stores it stays within 5 seconds."""

log = logging.getLogger("omq.server")


class ListenError(Exception):
    """An address cannot be listened on; the message is one line."""


class Terminal(Protocol):
    """What the server needs of a connection after its handshake."""

    async def serve(self) -> None:
        """Return when the connection is over, whatever the reason."""

    def sweep(self, now: float) -> None:
        """Called about every second."""

    def shut_down(self) -> None:
        """End the connection properly, and soon."""


class Server:
    """A running server. `addresses` are those it listens on, host and real port."""

    def __init__(self, config: Config, catalogue: Catalogue, memory: Memory) -> None:
        self.config = config
        self.addresses: list[tuple[str, int]] = []
        self._catalogue = catalogue
        self.memory = memory
        self._leases = Leases(config.lease_seconds, config.max_leases, same_host=config.lease_same_host)
        self._dmp = Shared(catalogue, self._leases, memory, config, Places(config.max_dmp_connections))
        self._terminals: dict[Terminal, None] = {}
        self._handshakes: set[trio.CancelScope] = set()
        self._stopping = False

    @property
    def port(self) -> int:
        """The port of the first address."""
        return self.addresses[0][1]

    async def listen(self) -> list[trio.SocketListener]:
        """Open the configured addresses. Raises ListenError."""
        listeners: list[trio.SocketListener] = []
        try:
            for address in self.config.listen:
                host, port = parse_address(address)
                try:
                    opened = await trio.open_tcp_listeners(port, host=host)
                except OSError as problem:
                    reason = problem.strerror or problem
                    raise ListenError(f"cannot listen on {address}: {reason}") from problem
                except UnicodeError as problem:
                    raise ListenError(f"cannot listen on {address}: that is no host name") from problem
                listeners += opened
                self.addresses += [listener.socket.getsockname()[:2] for listener in opened]
        except ListenError:
            for listener in listeners:
                listener.socket.close()
            raise
        return listeners

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """One connection from its first octet to its end. What goes wrong in it stays in it."""
        transport = Transport(stream)
        try:
            await self._choose_terminal(transport)
        except trio.BrokenResourceError:
            pass  # the client went away during the handshake
        except Exception:
            log.exception("a connection ended by a defect of the server")
        finally:
            transport.close()

    async def _choose_terminal(self, transport: Transport) -> None:
        """Read the first eight octets and hand the connection to the protocol that they name."""
        received = b""
        with trio.move_on_after(self.config.handshake_seconds) as limit:
            self._handshakes.add(limit)
            try:
                while len(received) < handshake.LENGTH:
                    data = await transport.receive()
                    if not data:
                        return
                    received += data
            finally:
                self._handshakes.discard(limit)
        if limit.cancelled_caught:
            log.info("%s: no handshake within %g s", transport.peer(), self.config.handshake_seconds)
            return
        match handshake.recognise(received[: handshake.LENGTH]):
            case handshake.Omq():
                await transport.send(handshake.ACCEPTED)
                rest = received[handshake.LENGTH :]
                await self._serve(
                    OmqTerminal(transport, self._catalogue, self._leases, self.memory, self.config, rest)
                )
            case handshake.Dmp():
                await self._serve(DmpTerminal(transport, self._dmp, received[handshake.LENGTH :]))
            case handshake.UnknownVersion(version):
                log.info("%s: version %d is not spoken here", transport.peer(), version)
                await transport.send(handshake.REFUSED)
                await transport.finish()
            case handshake.OtherAmqp():
                await transport.send(handshake.OTHER_AMQP_ANSWER)
                await transport.finish()
            case handshake.Amqp0_9() | handshake.Amqp1_0() | handshake.Tls() as other:
                log.info("%s: %s is not served yet", transport.peer(), type(other).__name__)
            case never:
                assert_never(never)

    async def _serve(self, terminal: Terminal) -> None:
        self._terminals[terminal] = None
        try:
            if self._stopping:
                return
            await terminal.serve()
        finally:
            del self._terminals[terminal]

    async def sweep(self) -> None:
        """Look after the connections' pings, and the leases that nobody uses, until cancelled."""
        while True:
            await trio.sleep(look_seconds(self.config.ping_seconds))
            now = trio.current_time()
            for terminal in list(self._terminals):
                terminal.sweep(now)
            self._leases.expire()

    def stop(self) -> None:
        """Tell every connection to end when its answers are out."""
        self._stopping = True
        for limit in list(self._handshakes):
            limit.cancel()
        for terminal in list(self._terminals):
            terminal.shut_down()


@asynccontextmanager
async def open_server(config: Config) -> AsyncIterator[Server]:
    """Run a server within the block; at its end, stop it: confirm what is posted, flush, close the stores.

    Raises StoreError when the store cannot be used (StoreInUse when another server has it), ListenError, and
    omq.drivers.channel.Refused when a configured topic exists with other types.
    """
    store = await trio.to_thread.run_sync(partial(Store.open, config.store, map_size=config.map_bytes))
    problem: ListenError | Refused | StoreError | None = None
    try:
        for recovery in store.recoveries:
            level = logging.WARNING if recovery.rolled_back else logging.INFO
            log.log(level, "%s: %s", recovery.level.value, recovery.what)
        async with trio.open_nursery() as background:
            memory = Memory(config.memory_bytes)
            catalogue = Catalogue(config, store, memory, background)
            server = Server(config, catalogue, memory)
            for writer in catalogue.writers.values():
                background.start_soon(writer.run)
            try:
                await catalogue.open_stored()
                listeners = await server.listen()
            except (ListenError, Refused, StoreError) as refusal:
                problem = refusal  # raised outside of the nursery, which would wrap it
            else:
                await look_at_disk(catalogue, config)
                _start_housekeeping(background, config, catalogue)
                background.start_soon(server.sweep)
                async with trio.open_nursery() as connections:
                    accepting = await connections.start(_accept, server, listeners, connections)
                    try:
                        yield server
                    finally:
                        accepting.cancel()
                        server.stop()
                        # Whatever ends the block, connections get their time to end properly.
                        connections.cancel_scope.deadline = trio.current_time() + SHUTDOWN_SECONDS
                        connections.cancel_scope.shield = True
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + SHUTDOWN_SECONDS):
                    await _settle(catalogue, store)
                background.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)
    if problem is not None:
        raise problem


def _start_housekeeping(nursery: trio.Nursery, config: Config, catalogue: Catalogue) -> None:
    nursery.start_soon(keep_flushing, catalogue.writers[Level.WEAK], config.weak_flush_seconds)
    nursery.start_soon(keep_flushing, catalogue.writers[Level.ASYNC], config.async_flush_seconds)
    nursery.start_soon(watch_disk, catalogue, config)
    for level in Level:
        nursery.start_soon(keep_tidy, catalogue, level)


async def _accept(
    server: Server,
    listeners: list[trio.SocketListener],
    connections: trio.Nursery,
    task_status: "trio.TaskStatus[trio.CancelScope]" = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await accept_all(listeners, server.serve_connection, connections)


async def _settle(catalogue: Catalogue, store: Store) -> None:
    """After the last connection: see that what was posted is stored, and where each topic stands."""
    for writer in catalogue.writers.values():
        await writer.drain()
        try:
            await save_positions(writer, [driver for driver in catalogue if driver.writer is writer])
        except StoreError as problem:
            log.error("%s: positions are not saved: %s", writer.environment.level.value, problem)
    try:
        await trio.to_thread.run_sync(store.catalogue.release, catalogue.release_ids())
    except StoreError as problem:
        log.error("reserved ids are not released: %s", problem)
