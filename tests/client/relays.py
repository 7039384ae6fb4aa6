"""A network between a client and its server that can fail silently."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Relay:
    """Passes on what comes, both ways, until it is told to swallow everything.

    Connections stay open then, and new ones are accepted: the operating systems at both ends see nothing.
    """

    def __init__(self, port: int, target: int) -> None:
        self.url = f"omq://127.0.0.1:{port}"
        self.connections = 0
        self._swallowing = False
        self._target = target
        self._links: list[_Link] = []

    def swallow(self) -> None:
        """From now on nothing passes."""
        self._swallowing = True
        for link in self._links:
            link.swallowing = True

    def mend(self) -> None:
        """Later connections pass again; the others never do."""
        self._swallowing = False

    async def carry(self, client: trio.SocketStream) -> None:
        """Serve one connection."""
        self.connections += 1
        async with client, await trio.open_tcp_stream("127.0.0.1", self._target) as server:
            link = _Link(self._swallowing)
            self._links.append(link)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.pump, client, server)
                    nursery.start_soon(link.pump, server, client)
            except* trio.BrokenResourceError:
                pass  # one end was closed with something unread, as it may


class _Link:
    def __init__(self, swallowing: bool) -> None:
        self.swallowing = swallowing

    async def pump(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        async for data in source:
            if not self.swallowing:
                await target.send_all(data)
        if self.swallowing:
            await trio.sleep_forever()
        await target.send_eof()


@asynccontextmanager
async def relayed(target: int) -> AsyncIterator[Relay]:
    """A relay to a port of this machine."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        relay = Relay(listener.socket.getsockname()[1], target)
        nursery.start_soon(trio.serve_listeners, relay.carry, [listener])
        yield relay
        nursery.cancel_scope.cancel()
