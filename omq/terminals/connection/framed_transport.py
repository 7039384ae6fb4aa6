"""A transport that sends frames, each of which must leave whole: records of TLS, or WebSocket messages."""

from collections import deque
from collections.abc import Sequence

import trio

from omq.drivers.seam import Octets
from omq.terminals.connection.transport import Transport


class FramedTransport(Transport):
    """One connected stream socket. `sent` counts the octets of the stream, when their frame has left."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._frames: deque[tuple[int, int]] = deque()
        """The frames in `pending`: where each ends, and its octets of the stream, which `sent` does not count
        yet.
        """

    async def send_unless_stalled(self, parts: Sequence[Octets]) -> bool:
        """Send as a plain connection does. What the socket has not taken of the frames that were begun is
        `pending`, and counts as sent.
        """
        if await super().send_unless_stalled(parts):
            return True
        self.sent += sum(octets for _, octets in self._frames)
        self._frames.clear()
        return False

    async def wait_taken(self) -> None:
        await self.send()
        await super().wait_taken()
