"""A relay between clients and a server that records what passes, in order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from capture_file import Endpoint, SentOctets

_READ = 65_536


class Relay:
    """The address for clients, and what has passed so far."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.said: list[SentOctets] = []


@asynccontextmanager
async def relaying(server_port: int) -> AsyncIterator[Relay]:
    """Yield a relay to a server on this machine. Connections that are open when the block is left are
    closed.
    """
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    relay = Relay(listener.socket.getsockname()[1])
    connections = 0

    async def pump(number: int, side: Endpoint, source: trio.SocketStream, target: trio.SocketStream) -> None:
        async for octets in source:
            relay.said.append(SentOctets(number, side, bytes(octets)))
            await target.send_all(octets)
        relay.said.append(SentOctets(number, side, b""))
        await target.send_eof()

    async def handle(client: trio.SocketStream) -> None:
        nonlocal connections
        number, connections = connections, connections + 1
        async with (
            await trio.open_tcp_stream("127.0.0.1", server_port) as server,
            trio.open_nursery() as both,
        ):
            both.start_soon(pump, number, Endpoint.CLIENT, client, server)
            both.start_soon(pump, number, Endpoint.SERVER, server, client)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        try:
            yield relay
        finally:
            nursery.cancel_scope.cancel()
