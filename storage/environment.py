"""One LMDB environment with the blocks of all the topics of one sync level (design, section 6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.blocks import Block
from storage.levels import Level


@dataclass(frozen=True, slots=True)
class Extent:
    """What is stored of one topic.

    ``last`` stays when everything was deleted; ``first`` is then ``last + 1``.  All are 0 for a topic that
    never had a message.
    """

    first: int = 0
    last: int = 0
    messages: int = 0
    bytes: int = 0
    """Octets of the stored values: frames, offsets and headers."""

    @property
    def next(self) -> int:
        """The id after the last one that was ever stored; 0 when none was."""
        return self.last + 1 if self.messages or self.first > self.last else 0


@dataclass(frozen=True, slots=True)
class Position:
    """How far a round-robin topic was dealt.

    ``cursor`` is the next id to deal; ``undone`` are the ids below it that were dealt but are not done.
    """

    cursor: int
    undone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One stored block, without its messages."""

    first: int
    count: int
    time: int
    """Microseconds since the epoch, of the first message."""
    span: int
    """Microseconds from the first message to the last."""
    bytes: int
    """Octets of the stored value."""

    @property
    def last(self) -> int:
        """Id of the last message."""
        return self.first + self.count - 1

    @property
    def next(self) -> int:
        """Id after that of the last message."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of its room an environment uses, and how much of it is safe from a power failure."""

    map_size: int
    used: int
    """Octets of the map that were ever used; free pages inside are used again before it grows."""
    readers: int
    transaction: int
    """Number of the last transaction that was written."""
    durable: int
    """Number of the last transaction that would survive a power failure."""


class Environment:
    """The stored blocks of one level.  Any call may come from any thread; writing calls queue for one lock."""

    level: Level

    def append(self, blocks: Sequence[Block]) -> None:
        """Stores blocks, of any topics, in one transaction: all of them or, when it raises, none.

        Durable on return for Level.STRONG, else after the next ``checkpoint``.  In each topic the ids must
        increase from block to block; gaps are allowed.

        Raises StoreFull, StoreFailed, and StoreError when a block does not lie after what is stored.
        """
        raise NotImplementedError

    def read(self, topic: int, first: int, max_bytes: int = 1 << 20, max_blocks: int = 64) -> list[Block]:
        """The block that contains message ``first``, or else the next after it, and those that follow, in
        order.

        Whole blocks, not trimmed; at least one if there is any, and more as long as their stored values stay
        within ``max_bytes`` together.  They are copies, verified, and stay good for ever.

        Raises DamagedBlock (with its ``last``; reading goes on at ``last + 1``) or NewerFormat for the first
        of them; a damaged one further on only ends the list before it.
        """
        raise NotImplementedError

    def blocks(self, topic: int, first: int, limit: int = 1024) -> list[BlockInfo]:
        """What ``read`` would find, as a list of up to ``limit``, without touching the messages."""
        raise NotImplementedError

    def extent(self, topic: int) -> Extent:
        """What is stored of this topic."""
        raise NotImplementedError

    def extents(self) -> dict[int, Extent]:
        """What is stored of every topic that has, or had, messages here."""
        raise NotImplementedError

    def trim(self, topic: int, before: int) -> Extent:
        """Deletes the blocks that lie wholly below message ``before``, in bounded transactions."""
        raise NotImplementedError

    def retain(self, topic: int, max_bytes: int | None, oldest: int | None, keep_from: int | None) -> Extent:
        """Deletes the oldest blocks until what is left keeps to the limits; None is no limit.

        ``max_bytes``: octets of stored values; the newest block is kept even when it alone has more.
        ``oldest``: microseconds since the epoch; blocks whose last message is older go, the newest block too.
        ``keep_from``: blocks with this message id or later ones are never deleted.

        At most 256 blocks a call, in one transaction: call again while the extent changes.
        """
        raise NotImplementedError

    def drop(self, topic: int) -> None:
        """Deletes everything of a topic, its extent and position too, in bounded transactions.

        One that was interrupted leaves a topic with fewer blocks; dropping it again completes it.
        """
        raise NotImplementedError

    def merge_small(self, topic: int, start: int) -> int | None:
        """Merges small blocks that follow one another, from message ``start`` on, in one bounded transaction.

        Merged blocks have up to 4,096 messages and 512 KiB.  Blocks are merged only when the result is at
        least twice its largest part, so that a growing topic is rewritten a few times at most.  Never across
        a gap of ids, nor over 71 minutes.

        Returns the message id to go on at, or None when nothing further can be merged now; remember the last
        id returned as the place to begin next time.
        """
        raise NotImplementedError

    def positions(self) -> dict[int, Position]:
        """The position of every topic that has one."""
        raise NotImplementedError

    def set_positions(self, positions: Mapping[int, Position]) -> None:
        """Keeps these positions, in one transaction; as durable as ``append``."""
        raise NotImplementedError

    def checkpoint(self) -> None:
        """Makes everything stored until now survive a power failure; nothing to do for Level.STRONG.

        Appending goes on meanwhile.  Raises StoreFailed when the disk refuses.
        """
        raise NotImplementedError

    def reader_check(self) -> int:
        """Clears the readers of processes that died, whose snapshots hold room; how many there were."""
        raise NotImplementedError

    def usage(self) -> Usage:
        """How much room is used, and how much of it is durable."""
        raise NotImplementedError

    def close(self, clean: bool = True) -> None:
        """Waits for the calls under way, makes a last checkpoint, and closes.

        Without ``clean`` nothing is made durable: what a killed process would leave.
        """
        raise NotImplementedError
