"""A transaction of one channel (class Tx): publishes and acknowledgements take effect at its commit."""

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
        self.runs: list[PublishRun] = []
        self.settled: list[tuple[Settled, Outcome]] = []
        self.posted: list[ChannelPost] = []
        """The messages that the commit that is under way has published."""

    def hold(self, run: PublishRun) -> bool:
        """Hold published messages; return False if there is no memory for it."""
        octets = run.batch.octets + sum(map(len, run.heads))
        if not self._share.try_take(octets):
            return False
        self._held += octets
        self.runs.append(run)
        return True

    def roll_back(self) -> list[Settled]:
        """Drop the published messages; return the messages that were acknowledged, and are not any more."""
        settled = [each for each, _ in self.settled]
        self.close()
        return settled

    def take(self) -> tuple[list[PublishRun], list[tuple[Settled, Outcome]]]:
        """Return the waiting publishes and acknowledgements, in order, and begin again."""
        runs, self.runs = self.runs, []
        settled, self.settled = self.settled, []
        self.posted = []
        self._give()
        return runs, settled

    def close(self) -> None:
        """Drop everything."""
        self.runs.clear()
        self.settled.clear()
        self._give()

    def _give(self) -> None:
        if self._held:
            self._share.give(self._held)
            self._held = 0
