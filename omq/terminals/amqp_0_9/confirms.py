"""The confirms of one channel: which published messages the client is told to be safe, in their order."""

from collections import deque

from omq.protocol.amqp_0_9.frames import ack_frame, method_frame
from omq.protocol.amqp_0_9.methods import BasicNack
from omq.terminals.amqp_0_9.posts import ChannelPost

MOST_APART = 64
"""The number of runs of messages that may wait before those at the beginning that succeeded are held as one.
"""


class Confirms:
    """The messages that were published on a channel since Confirm.Select, and are not confirmed yet."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._waiting: deque[ChannelPost] = deque()
        self._next = 1  # the tag of the first message that waits
        self.unconfirmed = 0
        """The number of waiting messages."""

    def add(self, posted: ChannelPost) -> None:
        """Add messages that were published."""
        self._waiting.append(posted)
        self.unconfirmed += posted.count
        if len(self._waiting) > MOST_APART:
            self._merge()

    def _merge(self) -> None:
        """Hold the messages at the beginning that succeeded as one run: a client that does not read
        its confirms may publish on.
        """
        waiting = self._waiting
        while len(waiting) > 1 and _succeeded(waiting[0]) and _succeeded(waiting[1]):
            first = waiting.popleft()
            waiting[0] = ChannelPost(first.count + waiting[0].count)

    def waiting(self) -> list[ChannelPost]:
        """Return the posts that are not confirmed yet."""
        return list(self._waiting)

    def collect(self, most: int) -> tuple[bytes, int]:
        """Return the acknowledgements of the messages that are settled, up to the first one that is not, and
        the number of their parts: about as many as `most`.
        """
        frames: list[bytes] = []
        begin = self._next
        taken = 0
        while taken < most and self._waiting:
            taken += max(1, self._waiting[0].look(most - taken))
            if not self._waiting[0].is_known:
                break
            posted = self._waiting.popleft()
            first = self._next
            for index in sorted(posted.failures()):
                self._acked(frames, begin, first + index)
                begin = first + index + 1
                # All messages before it are confirmed, so this can be one of several, as RabbitMQ has it.
                nack = BasicNack(first + index, multiple=True, requeue=True)
                frames.append(method_frame(self._channel, nack))
            self._next = first + posted.count
            self.unconfirmed -= posted.count
        self._acked(frames, begin, self._next)
        return b"".join(frames), taken

    def _acked(self, frames: list[bytes], begin: int, end: int) -> None:
        """Add the Ack for the messages from `begin` to before `end`, which are safe."""
        if begin < end:
            frames.append(ack_frame(self._channel, end - 1, multiple=end - begin > 1))


def _succeeded(posted: ChannelPost) -> bool:
    return posted.is_settled and not posted.failures()
