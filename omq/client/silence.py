"""Reading from a server that may have fallen silent."""

import trio

from omq.client.network import Stream
from omq.protocol.silence import SILENCE_SECONDS


class ServerSilent(trio.BrokenResourceError):
    """Nothing came from the server for SILENCE_SECONDS."""

    def __init__(self) -> None:
        super().__init__(f"the server sent nothing for {SILENCE_SECONDS:g} s")


async def receive(stream: Stream, octets: int) -> bytes:
    """`stream.receive_some`, but raises ServerSilent when nothing comes.

    Only the time in here counts: while the caller does not read, silence is its own.
    """
    with trio.move_on_after(SILENCE_SECONDS):
        return await stream.receive_some(octets)
    raise ServerSilent
