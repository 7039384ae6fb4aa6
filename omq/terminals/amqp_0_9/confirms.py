"""The confirms of one channel: which published messages the client is told to be safe, in their order."""

from collections import deque
from collections.abc import Iterable, Iterator

from omq.protocol.amqp_0_9.frames import ack_frame, method_frame
from omq.protocol.amqp_0_9.methods import BasicNack
from omq.terminals.amqp_0_9.posts import ChannelPost

MOST_APART = 64
"""The number of runs of messages that may wait before those at the beginning that succeeded are held as one.
"""


FAILURES_A_PART = 32
"""The number of failures of a post that are as much work as one of its parts."""


class Confirms:
    """The messages that were published on a channel since Confirm.Select, and are not confirmed yet."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._waiting: deque[ChannelPost] = deque()
        self._next = 1  # the tag of the first message that waits
        self._begin = 1  # the first tag that the client was not told: another one amid failures of a post
        self._failed: Iterator[range] | None = None  # the other failures of this post
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
        begin = self._begin
        taken = 0
        while taken < most and self._waiting:
            taken += max(1, self._waiting[0].look(most - taken))
            if not self._waiting[0].is_known:
                break
            posted, first = self._waiting[0], self._next
            if self._failed is None:
                failures = posted.failures()
                taken = min(most, taken + len(failures) // FAILURES_A_PART)
                self._failed = _together(failures)
            while (failed := next(self._failed, None)) is not None:
                self._acked(frames, begin, first + failed.start)
                begin = first + failed.stop
                # All messages before these are confirmed, so one frame tells of them, as RabbitMQ has it.
                nack = BasicNack(begin - 1, multiple=True, requeue=True)
                frames.append(method_frame(self._channel, nack))
                taken = min(most, taken + 1)
                if taken == most:
                    break
            if failed is not None:
                break  # others may follow
            self._failed = None
            self._waiting.popleft()
            self._next = first + posted.count
            self.unconfirmed -= posted.count
        self._acked(frames, begin, self._next)
        self._begin = max(begin, self._next)
        return b"".join(frames), taken

    def _acked(self, frames: list[bytes], begin: int, end: int) -> None:
        """Add the Ack for the messages from `begin` to before `end`, which are safe."""
        if begin < end:
            frames.append(ack_frame(self._channel, end - 1, multiple=end - begin > 1))


def _together(failures: Iterable[int]) -> Iterator[range]:
    """Yield the indexes of messages that failed, in order, neighbours together."""
    begin = end = 0
    for index in sorted(failures):
        if index > end:
            if begin < end:
                yield range(begin, end)
            begin = index
        end = index + 1
    if begin < end:
        yield range(begin, end)


def _succeeded(posted: ChannelPost) -> bool:
    return posted.is_settled and not posted.failures()
