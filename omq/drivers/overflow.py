"""Posts to a queue that refuses the messages that exceed its length.

It takes only the first messages of a post if it has no room for the others, and counts those that are on
their way into it.
"""

from collections.abc import Callable

from omq.drivers.confirmation import Confirmation, Outcomes
from omq.drivers.offer import Offered, PendingOffer
from omq.drivers.reasons import Failure, Refused


def followed_by(offered: Offered, count: int, refused: int, failure: Failure) -> Offered:
    """Return the offer of a post whose first `count` messages were offered, and the others refused."""
    if isinstance(offered, PendingOffer):
        return _Part(offered, count, refused, failure)
    part, whole = offered, Confirmation()
    whole.refused = failure

    def settle() -> None:
        outcomes: Outcomes = (*part.outcomes(count), (refused, failure))
        whole.settle_each(outcomes)

    part.listen(settle)
    return whole


class _Part(PendingOffer):
    """The pending offer of the first messages."""

    __slots__ = ("_count", "_failure", "_pending", "_refused")

    def __init__(self, pending: PendingOffer, count: int, refused: int, failure: Failure) -> None:
        super().__init__(pending.room)
        self._pending = pending
        self._count = count
        self._refused = refused
        self._failure = failure
        pending.call_when_free(self.woken)

    def again(self) -> Offered:
        """See `PendingOffer`."""
        offered = self._pending.again()
        if isinstance(offered, PendingOffer):
            self._pending = offered
            offered.call_when_free(self.woken)
            return self
        return followed_by(offered, self._count, self._refused, self._failure)

    def leave(self) -> None:
        """See `PendingOffer`."""
        self._pending.leave()


def counted(offered: Offered, left: Callable[[], None]) -> Offered:
    """Return the offer of a post that the queue counts until this calls `left`, once: when it is settled,
    refused or given up.
    """
    if isinstance(offered, PendingOffer):
        return _Counted(offered, left)
    offered.listen(left)
    return offered


class _Counted(PendingOffer):
    """The pending offer of messages that are counted while they wait for room, too."""

    __slots__ = ("_left", "_pending")

    def __init__(self, pending: PendingOffer, left: Callable[[], None]) -> None:
        super().__init__(pending.room)
        self._left: Callable[[], None] | None = left
        self._pending = pending
        pending.call_when_free(self.woken)

    def again(self) -> Offered:
        """See `PendingOffer`."""
        try:
            offered = self._pending.again()
        except Refused:
            self._leave()
            raise
        if isinstance(offered, PendingOffer):
            self._pending = offered
            offered.call_when_free(self.woken)
            return self
        offered.listen(self._leave)
        return offered

    def leave(self) -> None:
        """See `PendingOffer`."""
        self._pending.leave()
        self._leave()

    def _leave(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left()
