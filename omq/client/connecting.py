"""`connect`, and the `async with` block in which a client is connected."""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from omq.client.callers import current_task_here
from omq.client.client import Client, Name, octets_of
from omq.client.connections import ClientConnections, Settings
from omq.client.errors import Gap
from omq.client.ledger import Ledger
from omq.client.reasons import named
from omq.credentials import File, client_context
from omq.server_address import Security, parse_url

log = logging.getLogger("omq.client")


def warn_of_gap(gap: Gap) -> None:
    """Log a gap as a warning: the default of `on_gap`."""
    topic = named(gap.topic)
    if gap.first == gap.last:
        log.warning("%s: message %d is missing: %s", topic, gap.first, gap.reason)
    else:
        log.warning("%s: messages %d to %d are missing: %s", topic, gap.first, gap.last, gap.reason)


class Connecting(AbstractAsyncContextManager[Client]):
    """The `async with` block in which a client is connected; it owns the client's tasks."""

    # Not an async generator with a task group, which would wrap the block's exceptions in a group: the user
    # could not write `except ServerError` around the block.

    def __init__(self, settings: Settings, caller: Callable[[], object] | None = None) -> None:
        """Create the block without connecting. `caller` returns on whose behalf a method is called; by
        default the current task.
        """
        self._settings = settings
        self._caller = caller
        self._is_entered = False
        self._entered: tuple[ClientConnections, TaskGroup] | None = None

    async def __aenter__(self) -> Client:
        if self._is_entered:
            raise RuntimeError("this client is connected already: call `connect` for each client")
        self._is_entered = True
        connections = ClientConnections(self._settings, Ledger(self._caller or current_task_here()))
        connections.ledger.see()
        try:
            connection = await connections.open()
        except BaseException:  # cancelled, too
            self._is_entered = False
            raise
        group = await anyio.create_task_group().__aenter__()
        self._entered = connections, group
        group.start_soon(connections.run, connection)
        connections.current = connection
        return Client(connections)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is None:
            raise RuntimeError("left without being entered")
        connections, group = self._entered
        try:
            if error is None:
                await connections.finish()
            else:
                await connections.break_off()
        finally:
            group.cancel_scope.cancel()
            try:
                await group.__aexit__(None, None, None)
            finally:
                self._is_entered = False


def connect(
    url: str = "omq://127.0.0.1:7730",
    *,
    id: Name = b"omq.client",
    reconnect: bool = False,
    on_gap: Callable[[Gap], None] = warn_of_gap,
    connect_seconds: float = 10.0,
    max_line_bytes: int = 1 << 20,
    ca: File | None = None,
    certificate: File | None = None,
    key: File | None = None,
) -> Connecting:
    """Connect to a server: `async with connect("omq://host:port", id="prices-feed") as client:`.

    `id` is the client's id; the server logs it, up to the first colon. A server with configured clients
    requires an id of the form `NAME:SECRET`. If the server rejects the id, the client does not try again,
    even with `reconnect`. Connecting, handshake included, takes at most `connect_seconds`.

    With `omqs://host:port` the client uses TLS, and the server must present a certificate for this host,
    issued by a certificate authority in the file `ca`, or by default by one that the system trusts. If the
    server requires a client certificate, the client presents the one in the file `certificate`, whose private
    key is in the file `key`, or else in the same file.

    A connection is lost when it breaks, or when the server sends nothing for 100 s: the protocol promises
    at least one frame every 50 s. The time in which the program takes no messages does not count.

    With `reconnect`, the client reconnects after it loses the connection, any number of times (but it tries
    the first connection once); commands that wait for an answer still raise ConnectionLost, and so does the
    `confirm` after publishes with an unknown outcome. Subscriptions continue: those of persistent broadcast
    topics after the last received message, without loss or repetition; the others with new messages, and the
    client calls `on_gap` with the messages that a transient broadcast topic sent meanwhile. With credit, the
    server delivers unconfirmed messages again, to this or another client.

    The client also calls `on_gap` when the server itself has lost messages of a subscription. The iterating
    task calls it when it reaches the gap. By default it logs a warning.

    `max_line_bytes` is the longest line that the server accepts, the same as the server's configuration key
    of this name. `publish` raises MessageTooLong for a longer line, since the server would close the
    connection.

    Leaving the block without an exception sends all published messages and waits until the server has read
    them. Entering raises ConnectionFailed and HandshakeRefused, leaving raises ConnectionLost and
    PublishRefused, and the call itself raises ValueError for a bad `url` and for files that cannot be used.
    """
    settings = settings_for(url, id, reconnect, on_gap, connect_seconds, max_line_bytes, ca, certificate, key)
    return Connecting(settings)


def settings_for(
    url: str,
    id: Name,
    reconnect: bool,
    on_gap: Callable[[Gap], None],
    connect_seconds: float,
    max_line_bytes: int,
    ca: File | None,
    certificate: File | None,
    key: File | None,
) -> Settings:
    """Check the arguments of `connect`. Raises ValueError."""
    address = parse_url(url)
    host, port, security = address.host, address.port, None
    if address.tls:
        security = Security(client_context(ca, certificate, key), host)
    elif ca is not None or certificate is not None or key is not None:
        raise ValueError("certificates are for omqs://, and this address begins with omq://")
    return Settings(host, port, security, octets_of(id), reconnect, on_gap, connect_seconds, max_line_bytes)
