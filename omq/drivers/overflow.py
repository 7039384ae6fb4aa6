"""A post of which a queue takes only the first messages, because it has no room for the others."""

from omq.drivers.confirmation import Confirmation, Outcomes
from omq.drivers.offer import NoRoom, Offered
from omq.drivers.reasons import Failure


def followed_by(offered: Offered, count: int, refused: int, failure: Failure) -> Offered:
    """Return the offer of a post whose first `count` messages were offered, and the others refused."""
    if isinstance(offered, NoRoom):
        return _Part(offered, count, refused, failure)
    part, whole = offered, Confirmation()

    def settle() -> None:
        outcomes: Outcomes = (*part.outcomes(count), (refused, failure))
        whole.settle_each(outcomes)

    part.listen(settle)
    return whole


class _Part(NoRoom):
    """The place of the first messages in the queue for room."""

    __slots__ = ("_count", "_failure", "_place", "_refused")

    def __init__(self, place: NoRoom, count: int, refused: int, failure: Failure) -> None:
        super().__init__(place.room)
        self._place = place
        self._count = count
        self._refused = refused
        self._failure = failure
        place.call_when_free(self.woken)

    def again(self) -> Offered:
        """See `NoRoom`."""
        offered = self._place.again()
        if isinstance(offered, NoRoom):
            self._place = offered
            offered.call_when_free(self.woken)
            return self
        return followed_by(offered, self._count, self._refused, self._failure)

    def leave(self) -> None:
        """See `NoRoom`."""
        self._place.leave()
