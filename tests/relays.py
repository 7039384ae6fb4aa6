"""A network between a client and its server that can fail silently."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio


class HeldCommand:
    """A command that a relay does not pass on to the server before `released`, nor anything behind it."""

    def __init__(self, command: bytes) -> None:
        self.command = command
        self.arrived = trio.Event()
        self.released = trio.Event()


class Relay:
    """Passes octets on, both ways, until it is told to swallow everything.

    Connections stay open then, and new ones are accepted: the operating systems at both ends see nothing.
    """

    def __init__(self, port: int, target: int) -> None:
        self.url = f"omq://127.0.0.1:{port}"
        self.connections = 0
        self._swallowing = False
        self._held: HeldCommand | None = None
        self._target = target
        self._links: list[_Link] = []

    def swallow(self, after: int = 0) -> None:
        """Let nothing pass from now on, or after N (`after`) more octets have come to the client of a
        connection.
        """
        self._swallowing = not after
        for link in self._links:
            link.swallowing = not after
            link.left = after or None

    def mend(self) -> None:
        """Let later connections pass again; the others never do."""
        self._swallowing = False

    def hold(self, command: bytes) -> HeldCommand:
        """Hold this command on later connections."""
        self._held = HeldCommand(command)
        return self._held

    async def carry(self, client: trio.SocketStream) -> None:
        """Serve one connection."""
        self.connections += 1
        async with client, await trio.open_tcp_stream("127.0.0.1", self._target) as server:
            link = _Link(self._swallowing, self._held)
            self._links.append(link)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.pump, client, server)
                    nursery.start_soon(partial(link.pump, server, client, is_counted=True))
            except* trio.BrokenResourceError:
                pass  # one end was closed with something unread, as it may


class _Link:
    def __init__(self, swallowing: bool, held: HeldCommand | None) -> None:
        self.swallowing = swallowing
        self.held = held
        self.left: int | None = None
        """The number of octets that come to the client until everything is swallowed; None without such a
        bound.
        """

    async def pump(
        self, source: trio.SocketStream, target: trio.SocketStream, *, is_counted: bool = False
    ) -> None:
        async for data in source:
            if self.swallowing:
                continue
            if is_counted and self.left is not None:
                data = data[: self.left]
                self.left -= len(data)
                self.swallowing = not self.left
            if not is_counted and self.held is not None and self.held.command in data:
                self.held.arrived.set()
                await self.held.released.wait()
            await target.send_all(data)
        if self.swallowing:
            await trio.sleep_forever()
        await target.send_eof()


@asynccontextmanager
async def relayed(target: int) -> AsyncIterator[Relay]:
    """Yield a relay to a port of this machine."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        relay = Relay(listener.socket.getsockname()[1], target)
        nursery.start_soon(trio.serve_listeners, relay.carry, [listener])
        yield relay
        nursery.cancel_scope.cancel()
