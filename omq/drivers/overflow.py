"""Posts to a queue that refuses the messages that exceed its length.

It takes only the first messages of a post if it has no room for the others, and counts those that are on
their way into it.
"""

from collections.abc import Callable

from omq.drivers.budget import Budget, Turn
from omq.drivers.confirmation import Confirmation, joined
from omq.drivers.offer import Offered, PendingOffer, QueuedOffer
from omq.drivers.reasons import Failure, Refused


def refusal(failure: Failure) -> Confirmation:
    """Return the confirmation of messages that are refused."""
    refused = Confirmation()
    refused.refused = failure
    refused.settle(failure)
    return refused


def followed_by(offered: Offered, count: int, refused: int, refusal: Confirmation) -> Offered:
    """Return the offer of a post whose first `count` messages were offered, and the others refused."""
    if isinstance(offered, PendingOffer):
        return _Part(offered, count, refused, refusal)
    return joined(((count, offered), (refused, refusal)))


class _Part(PendingOffer):
    """The pending offer of the first messages."""

    __slots__ = ("_count", "_pending", "_refusal", "_refused")

    def __init__(self, pending: PendingOffer, count: int, refused: int, refusal: Confirmation) -> None:
        super().__init__(pending.room)
        self._pending = pending
        self._count = count
        self._refused = refused
        self._refusal = refusal

    def call_when_free(self, wake: Callable[[], None]) -> None:
        """See `PendingOffer`."""
        self._pending.call_when_free(wake)

    def again(self) -> Offered:
        """See `PendingOffer`."""
        offered = self._pending.again()
        if isinstance(offered, PendingOffer):
            self._pending = offered
            return self
        return followed_by(offered, self._count, self._refused, self._refusal)

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

    def call_when_free(self, wake: Callable[[], None]) -> None:
        """See `PendingOffer`."""
        self._pending.call_when_free(wake)

    def again(self) -> Offered:
        """See `PendingOffer`."""
        try:
            offered = self._pending.again()
        except Refused:
            self._leave()
            raise
        if isinstance(offered, PendingOffer):
            self._pending = offered
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


class PendingRefusal(QueuedOffer):
    """The pending offer of messages that a full queue refuses, but sends to its dead-letter exchange: it
    waits while too many are on their way there.
    """

    __slots__ = ("_budget", "_offer", "_pending", "_turn")

    def __init__(self, offer: Callable[[], Offered], budget: Budget, octets: int) -> None:
        """Wait for octets of the budget, with which `offer` is called."""
        super().__init__()
        self._offer = offer
        self._budget = budget
        self._pending: PendingOffer | None = None
        """The offer of those messages that the queue can have."""
        self._turn: Turn | None = budget.enqueue(octets, self.woken)

    def call_when_free(self, wake: Callable[[], None]) -> None:
        """See `PendingOffer`."""
        if self._pending is None:
            super().call_when_free(wake)
        else:
            self._pending.call_when_free(wake)

    def again(self) -> Offered:
        """See `PendingOffer`."""
        if self._pending is not None:
            offered = self._pending.again()
        else:
            assert self._turn is not None, "the offer is finished"
            if not self._turn.is_granted:
                return self
            self._turn = None
            offered = self._offer()
        if isinstance(offered, PendingOffer):
            self._pending = offered
            return self
        return offered

    def leave(self) -> None:
        """See `PendingOffer`."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._budget.leave(turn)
        if self._pending is not None:
            self._pending.leave()
