"""A post of which a queue takes only the first messages, because it has no room for the others."""

from omq.drivers.confirmation import Confirmation, Outcomes
from omq.drivers.offer import Offered, PendingOffer
from omq.drivers.reasons import Failure


def followed_by(offered: Offered, count: int, refused: int, failure: Failure) -> Offered:
    """Return the offer of a post whose first `count` messages were offered, and the others refused."""
    if isinstance(offered, PendingOffer):
        return _Part(offered, count, refused, failure)
    part, whole = offered, Confirmation()

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
