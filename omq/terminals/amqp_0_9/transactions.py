"""A transaction of one channel (class Tx): publishes and acknowledgements take effect at its commit."""

from collections import deque
from collections.abc import Iterator

from omq.drivers.budget import Budget
from omq.drivers.seam import Outcome
from omq.protocol.amqp_0_9.events import PublishRun
from omq.terminals.amqp_0_9.posts import ChannelPost
from omq.terminals.amqp_0_9.unacknowledged import Settled


class Transaction:
    """Publishes and acknowledgements that wait for the commit. Their memory is a part of that for input."""

    def __init__(self, share: Budget) -> None:
        self._share = share
        self._held = 0
        self.runs: deque[PublishRun] = deque()
        self.settled: deque[tuple[Settled, Outcome]] = deque()
        self.posted: deque[ChannelPost] = deque()
        """The messages that the commit under way has published, and whose outcome it does not know."""

    def hold(self, run: PublishRun) -> bool:
        """Hold published messages; return False if there is no memory for it."""
        octets = run.batch.octets + sum(map(len, run.heads))
        if not self._share.try_take(octets):
            return False
        self._held += octets
        self.runs.append(run)
        return True

    def roll_back(self) -> Iterator[Settled | None]:
        """Drop everything, in steps. Yield the messages that were acknowledged, and are not any more, in
        their order, and None for other work.
        """
        runs, settled = self.take()
        while settled:
            taken, _ = settled.popleft()
            yield taken
        while runs:
            runs.popleft()
            yield None
        while self.posted:
            self.posted.popleft()
            yield None

    def take(self) -> tuple[deque[PublishRun], deque[tuple[Settled, Outcome]]]:
        """Return the waiting publishes and acknowledgements, in order, and begin again."""
        runs, self.runs = self.runs, deque()
        settled, self.settled = self.settled, deque()
        self._give()
        return runs, settled

    def _give(self) -> None:
        if self._held:
            self._share.give(self._held)
            self._held = 0
