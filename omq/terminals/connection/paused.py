"""Messages that have begun to leave, and whose next pieces wait while others have their turns.

The octets of such a message that are in hand meanwhile must not stay for long: its next piece may come late,
or never. Then the channel gives them again, or they take a share of the memory for stalled clients.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import assert_never

import trio
from msgspec import Struct

from omq.drivers.seam import SLOW_SECONDS, Channel, RemainderHolder
from omq.drivers.stalled import Stalled
from omq.terminals.connection.remainders import GivenAgain, InTurns, Unfinished
from omq_storage.blocks import Block


class _Paused(Struct):
    """The source of an unfinished message that is in hand, while it waits for its next piece."""

    topic: bytes
    channel: Channel
    since: float
    share: ExitStack | None = None
    """Gives back the share of the memory for stalled clients that the message takes, if it takes one."""

    def end(self) -> Channel:
        """Take no share any more, and return the channel."""
        if self.share is not None:
            self.share.close()
        return self.channel


class PausedMessages:
    """The paused messages of one connection."""

    __slots__ = ("_cut_off", "_held", "_is_over", "_scope", "_stalled")

    def __init__(
        self, stalled: Stalled, scope: trio.CancelScope, cut_off: Callable[[bytes, str], None]
    ) -> None:
        """Begin with none. `cut_off` ends the connection within a message of a topic, with the reason; it is
        cancelled by `scope` then.
        """
        self._stalled = stalled
        self._scope = scope
        self._cut_off = cut_off
        self._held: dict[Unfinished, _Paused] = {}
        self._is_over = False

    def add(self, topic: bytes, channel: Channel, unfinished: Unfinished) -> None:
        """Add a message if anything of it is in hand."""
        if isinstance(unfinished.left, InTurns):
            self._held[unfinished] = _Paused(topic, channel, trio.current_time())

    def go_on(self, unfinished: Unfinished) -> None:
        """Remove a message: its next piece leaves now."""
        if (paused := self._held.pop(unfinished, None)) is not None:
            paused.end()

    def look(self, now: float) -> None:
        """Leave the messages that have waited for SLOW_SECONDS: while a rate limit holds them back, for
        example.
        """
        for unfinished, paused in list(self._held.items()):
            if now - paused.since >= SLOW_SECONDS:
                self.leave(unfinished)

    def close(self) -> None:
        """Take no share any more for any of them: the connection is over, and their sources may be, too."""
        self._is_over = True
        for paused in self._held.values():
            paused.end()
            paused.share = None

    def leave_all(self) -> None:
        """Leave all messages."""
        for unfinished in list(self._held):
            self.leave(unfinished)

    def leave(self, unfinished: Unfinished) -> None:
        """Hold nothing of a message that its channel gives again, and count one that nobody else has: its
        next piece may come late, or never.
        """
        paused = self._held.get(unfinished)
        if paused is None:
            return
        match paused.channel.rest:
            case RemainderHolder.GIVEN_AGAIN:
                self.drop(unfinished)
            case RemainderHolder.COUNTED:
                if _block(unfinished) is None:  # of a long one: see `omq.drivers.spooled_work`
                    self.drop(unfinished)
            case RemainderHolder.HELD:
                self._count(paused, unfinished)
            case other:
                assert_never(other)

    def _count(self, paused: _Paused, unfinished: Unfinished) -> None:
        block = _block(unfinished)
        if paused.share is None and block is not None and not self._is_over:
            paused.share = ExitStack()
            cut_off = partial(self._cut_off, paused.topic)
            paused.share.enter_context(
                self._stalled.holding(block.topic, block.first, block.held, cut_off, self._scope)
            )

    def drop(self, unfinished: Unfinished) -> None:
        """Hold nothing of a message that does not go on, or that its channel gives again."""
        paused, left = self._held.pop(unfinished, None), unfinished.left
        if paused is not None and isinstance(left, InTurns):
            paused.end().written(0, left.begun.body)
            unfinished.left = GivenAgain(left.begun)


def _block(unfinished: Unfinished) -> Block | None:
    """Return the block of a message in memory; None for a piece that the channel gave."""
    left = unfinished.left
    return left.block if isinstance(left, InTurns) else None
