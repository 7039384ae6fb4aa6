"""How the server's bounded memory is shared out.

See docs/ARCHITECTURE.md, "Memory"; terminal-driver RFC, section 3.5.4.

Each purpose has a share of its own, so that none can starve another: what waits for a subscriber to come must
not keep what is being written from being finished.
"""

from dataclasses import dataclass

from omq.drivers.budget import Budget
from omq.drivers.entrance import Entrances
from omq.drivers.sequences import RecentSequences
from omq.drivers.stalled import Stalled
from omq.drivers.tail import TailMemory
from omq.drivers.unconfirmed import Unconfirmed
from omq.drivers.unfinished import Unfinished
from omq.drivers.waits import Waits

SEQUENCES_KEPT = 1 << 15
"""Producers of transient topics whose last sequence is remembered: 16 MiB at the very most."""


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """How many octets each share holds now. `Memory` says what each share is for."""

    tails: int
    waiting: int
    posted: int
    reading: int
    replayed: int
    fetched: int
    stalled: int
    unconfirmed: int
    unfinished: int
    waiting_tasks: int
    """How many tasks wait until a share has room. Publishers of persistent topics are among them."""


class Memory:
    """The shares of `limit` octets. One message larger than a share may hold all of it."""

    def __init__(self, limit: int) -> None:
        self.tails = TailMemory(7 * limit // 32)
        """Recent blocks, for subscribers that are a little behind."""
        self.tail_octets = 7 * limit // 32
        """The most that one topic keeps of them."""
        self.waiting = Budget(3 * limit // 16)
        """Messages of transient round-robin topics that are not done."""
        self.waiting_octets = limit // 16
        """The most that one topic keeps of them, unless it has nothing else."""
        self.entrances = Entrances()
        """The topics whose publishers wait for a part of `waiting`."""
        self.waits = Waits()
        """Who waits for room in those topics."""
        self.posted = Budget(limit // 8)
        """Messages on their way into a store."""
        self.reading = Budget(3 * limit // 32)
        """What connections have read and not yet acted on, beyond a little for each."""
        self.replayed = Budget(limit // 16)
        """What was read from a store for subscribers that are far behind, and is not sent yet."""
        self.fetched = Budget(limit // 16)
        """What was read from a store for Fetch commands, and is not sent yet."""
        self.listed = Budget(limit // 32)
        """Answers to Topics and Blocks commands that are being made or sent."""
        self.stalled = Stalled(limit // 16)
        """What is held for clients that stopped reading in the middle of a message."""
        self.unconfirmed = Unconfirmed(limit // 32)
        """Which messages of round-robin topics are not confirmed."""
        self.unfinished = Unfinished(limit // 8)
        """Long lines and envelopes that are not complete yet."""
        self.sequences = RecentSequences(SEQUENCES_KEPT)
        """What idempotent producers of transient topics have sent; not a share, its number is bounded."""

    def statistics(self) -> MemoryStatistics:
        """Count the octets that each share holds now. All are 0 when nothing is waiting or on its way."""
        return MemoryStatistics(
            tails=self.tails.used,
            waiting=self.waiting.used,
            posted=self.posted.used,
            reading=self.reading.used,
            replayed=self.replayed.used,
            fetched=self.fetched.used,
            stalled=self.stalled.used,
            unconfirmed=self.unconfirmed.used,
            unfinished=self.unfinished.used,
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
