"""Open a DMP connection for a sink or a feed: connect, send the lease, and wait for the answer."""

from dataclasses import dataclass
from typing import assert_never

import anyio

from omq.addresses import format_address
from omq.client.errors import ConnectionFailed, ConnectionLost, ProtocolError
from omq.client.network import Stream, open_within
from omq.client.reasons import reason
from omq.protocol.dmp.client import (
    ClientDialogue,
    ClientEvent,
    ConnectionDeclined,
    DialogueError,
    FeedOctets,
    Greeted,
    HeaderDeclined,
    Purpose,
    Ready,
    SinkResponse,
)
from omq.protocol.dmp.responses import Response
from omq.server_address import Security

READ_OCTETS = 256 << 10
"""The most octets that one read takes from the socket."""


class LeaseDeclined(Exception):
    """The server declined the lease."""

    def __init__(self, response: Response) -> None:
        super().__init__(str(response))
        self.response = response


@dataclass(frozen=True, slots=True)
class DmpStream:
    """A connection whose lease the server accepted, and the events that followed that answer."""

    stream: Stream
    dialogue: ClientDialogue
    following: tuple[ClientEvent, ...]


async def open_dmp(
    host: str, port: int, security: Security | None, lease: bytes, purpose: Purpose, seconds: float
) -> DmpStream:
    """Connect and send the lease, within `seconds`.

    Raises LeaseDeclined, ConnectionFailed, ConnectionLost and ProtocolError.
    """
    try:
        return await open_within(
            seconds, host, port, security, lambda stream: _show(stream, lease, purpose), "a lease"
        )
    except OSError as error:
        raise ConnectionFailed(f"cannot connect to {format_address(host, port)}: {reason(error)}") from error
    except anyio.BrokenResourceError as error:
        raise ConnectionLost(f"the {purpose.value}'s connection broke: {reason(error)}") from error


async def _show(stream: Stream, lease: bytes, purpose: Purpose) -> DmpStream:
    dialogue = ClientDialogue(lease, purpose)
    await stream.send_all(dialogue.start())
    while True:
        data = await stream.receive_some(READ_OCTETS)
        if not data:
            raise ConnectionLost(f"the server closed the {purpose.value}'s connection without an answer")
        events = understood(dialogue, data)
        for number, event in enumerate(events, 1):
            match event:
                case Greeted():
                    pass
                case Ready():
                    return DmpStream(stream, dialogue, tuple(events[number:]))
                case ConnectionDeclined(response):
                    raise LeaseDeclined(response)
                case HeaderDeclined(header):
                    raise ProtocolError(f"the server does not speak DMP: it answered {header!r}")
                case SinkResponse() | FeedOctets():
                    raise ProtocolError("the server sent messages before it accepted the lease")
                case _:
                    assert_never(event)


def understood(dialogue: ClientDialogue, data: bytes) -> list[ClientEvent]:
    """Parse received octets into events. Raises ProtocolError."""
    try:
        return dialogue.feed(data)
    except DialogueError as error:
        raise ProtocolError(f"the server does not speak DMP: {error}") from error
