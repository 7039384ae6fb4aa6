"""The answer to a post (terminal-driver RFC: channel_confirm and channel_failure)."""

from collections.abc import Callable

from omq.drivers.reasons import Failure


class Confirmation:
    """Settled once: with success (`failure` is None) or with the reason of the failure."""

    __slots__ = ("_listener", "failure", "settled")

    def __init__(self) -> None:
        self.settled = False
        self.failure: Failure | None = None
        self._listener: Callable[[], None] | None = None

    def settle(self, failure: Failure | None = None) -> None:
        self.settled = True
        self.failure = failure
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when it is settled, at once if it is already."""
        if self.settled:
            listener()
        else:
            self._listener = listener


def confirmed() -> Confirmation:
    """One that is a success already."""
    done = Confirmation()
    done.settle()
    return done
