"""When a server that sends nothing is taken for gone.

The protocol promises a Ping at least every 50 seconds on every omq connection, and a null message at least as
often on every feed. A network or a server that is gone without a word sends nothing, and the operating system
does not find that out: it looks only at what it sends itself, and repeats that for 15 minutes.
"""

import trio

from omq.client.network import Stream

PROMISED_SECONDS = 50.0
"""A server sends something at least this often (docs/PROTOCOL.md, "Pings and silence")."""

SILENCE_SECONDS = 2 * PROMISED_SECONDS


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
