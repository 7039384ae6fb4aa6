"""Receive with a timeout, to detect a server that has fallen silent."""

import anyio

from omq.client.network import Stream
from omq.protocol.silence import SILENCE_SECONDS


class ServerSilent(anyio.BrokenResourceError):
    """The server sent nothing for SILENCE_SECONDS."""

    def __init__(self) -> None:
        super().__init__(f"the server sent nothing for {SILENCE_SECONDS:g} s")


async def receive(stream: Stream, octets: int) -> bytes:
    """Receive as `stream.receive_some` does, but raise ServerSilent when the server sends nothing for
    SILENCE_SECONDS.

    Only the time of this call counts, not the time in which the caller does not read.
    """
    try:
        return await stream.receive_some(octets, SILENCE_SECONDS)
    except TimeoutError as error:
        raise ServerSilent from error
