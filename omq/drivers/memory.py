"""The division of the server's memory into shares.

See docs/ARCHITECTURE.md, "Memory"; terminal-driver RFC, section 3.5.4.

Each purpose has a share of its own, so that none can starve another. For example, messages that wait for a
subscriber must not keep other messages from being written to the store.
"""

from msgspec import Struct

from omq.drivers.budget import Budget
from omq.drivers.publisher_queue import PublisherQueues
from omq.drivers.sequences import RecentSequences
from omq.drivers.stalled import Stalled
from omq.drivers.tail import TailMemory
from omq.drivers.unconfirmed import Unconfirmed
from omq.drivers.unfinished import UnfinishedMemory
from omq.drivers.wait_graph import WaitGraph

SEQUENCES_KEPT = 1 << 15
"""The number of producers of transient topics whose last sequence number is remembered: at most 16 MiB."""


class MemoryStatistics(Struct, frozen=True):
    """The number of octets that each share holds now. `Memory` describes the shares."""

    tails: int
    waiting: int
    posted: int
    reading: int
    replayed: int
    fetched: int
    listed: int
    stalled: int
    unconfirmed: int
    unfinished: int
    uploaded: int
    waiting_tasks: int
    """The number of tasks that wait until a share has room. Publishers of persistent topics are among them.
    """


class Memory:
    """The shares of `limit` octets. One message larger than a share may hold all of it."""

    def __init__(self, limit: int) -> None:
        self.tails = TailMemory(7 * limit // 32)
        """Recent blocks, for subscribers that are slightly behind."""
        self.tail_octets = 7 * limit // 32
        """The limit of one topic within that share."""
        self.waiting = Budget(3 * limit // 16)
        """Messages of transient round-robin topics that are not done."""
        self.waiting_octets = limit // 16
        """The limit of one topic within that share; a single larger message is allowed."""
        self.spooled_publisher_queues = PublisherQueues()
        """The topics whose publishers wait until tails have moved to the spool."""
        self.publisher_queues = PublisherQueues()
        """The topics whose publishers wait for a part of `waiting`."""
        self.waits = WaitGraph()
        """The waits of connections for room in those topics."""
        self.posted = Budget(limit // 8)
        """Messages on their way into a store."""
        self.reading = Budget(3 * limit // 32)
        """Input that connections have read and not processed yet, beyond the first 16 KiB of each."""
        self.replayed = Budget(limit // 16)
        """Messages read from a store for subscribers that are far behind, until they are sent."""
        self.fetched = Budget(limit // 16)
        """Blocks read from a store for Fetch commands, until they are sent."""
        self.listed = Budget(limit // 32)
        """Answers to Topics and Blocks commands, until they are sent."""
        self.stalled = Stalled(limit // 16)
        """Messages held for clients that stopped reading in the middle of them."""
        self.unconfirmed = Unconfirmed(limit // 32)
        """The ids of unconfirmed messages of round-robin topics."""
        self.unfinished = UnfinishedMemory(3 * limit // 32)
        """Incomplete long lines and envelopes."""
        self.uploaded = Budget(limit // 32)
        """Parts of large messages that are collected for the store, beyond a fragment of each."""
        self.sequences = RecentSequences(SEQUENCES_KEPT)
        """Last sequence numbers of producers of transient topics. Not a share: their number is limited."""

    def statistics(self) -> MemoryStatistics:
        """Return the octets that each share holds now. All are 0 when no message is queued anywhere."""
        return MemoryStatistics(
            tails=self.tails.used,
            waiting=self.waiting.used,
            posted=self.posted.used,
            reading=self.reading.used,
            replayed=self.replayed.used,
            fetched=self.fetched.used,
            listed=self.listed.used,
            stalled=self.stalled.used,
            unconfirmed=self.unconfirmed.used,
            unfinished=self.unfinished.used,
            uploaded=self.uploaded.used,
            waiting_tasks=self.unfinished.waiting
            + sum(
                share.waiting
                for share in (
                    self.waiting,
                    self.posted,
                    self.reading,
                    self.replayed,
                    self.fetched,
                    self.listed,
                )
            ),
        )
