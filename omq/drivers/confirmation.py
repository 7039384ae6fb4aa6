"""The answer to a post (terminal-driver RFC: channel_confirm and channel_failure)."""

from collections.abc import Callable, Iterable, Sequence

from omq.drivers.reasons import Failure

Outcomes = Sequence[tuple[int, Failure | None]]
"""The outcomes of the messages of a post, in order: runs of N messages, each with the failure,
or with None where they succeeded.
"""


class Confirmation:
    """Settled once: with success (`failure` is None), with the reason of a failure, or message by message."""

    __slots__ = ("_listeners", "_outcomes", "failure", "refused", "settled")

    def __init__(self) -> None:
        self.settled = False
        self.refused: Failure | None = None
        """The failure of some messages that were refused at once, while others are on their way: it will be
        one of the outcomes. A publisher whose messages must be stored in order posts nothing more.
        """
        self.failure: Failure | None = None
        """The reason why the post failed; if its messages have outcomes of their own, that of the first one
        that failed.
        """
        self._outcomes: Outcomes | None = None
        self._listeners: tuple[Callable[[], None], ...] = ()

    def settle(self, failure: Failure | None = None) -> None:
        """Settle the post: all its messages succeeded, or all of them failed with `failure`."""
        assert not self.settled, "a post is settled once"
        self.settled = True
        self.failure = failure
        listeners, self._listeners = self._listeners, ()
        for listener in listeners:
            listener()

    def settle_each(self, outcomes: Outcomes) -> None:
        """Settle the post with an outcome for each of its messages."""
        self._outcomes = outcomes
        self.settle(next((failure for _, failure in outcomes if failure is not None), None))

    def settle_as(self, other: "Confirmation") -> None:
        """Settle this confirmation as another one for the same messages, now or when that is settled."""

        def settle() -> None:
            self._outcomes = other._outcomes
            self.settle(other.failure)

        other.listen(settle)

    def outcomes(self, count: int) -> Outcomes:
        """Return the outcome of each of the `count` messages of a settled post."""
        return ((count, self.failure),) if self._outcomes is None else self._outcomes

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when it is settled, after earlier listeners; at once if it is settled already."""
        if self.settled:
            listener()
        else:
            self._listeners += (listener,)


CONFIRMED = Confirmation()
"""The confirmation of every post that succeeds at once; it never changes."""
CONFIRMED.settle()


def all_of(confirmations: Iterable[Confirmation]) -> Confirmation:
    """Return a confirmation that is settled when all of these are, and fails with the first failure in their
    order.

    Its parts may be posts of different messages, so it has no outcomes of single messages: ask the parts.
    """
    parts = tuple(confirmations)
    pending = [part for part in parts if not part.settled]
    whole = Confirmation()
    whole.refused = _refused(parts)
    left = len(pending)

    def settle() -> None:
        whole.settle(next((part.failure for part in parts if part.failure is not None), None))

    def part_is_settled() -> None:
        nonlocal left
        left -= 1
        if not left:
            settle()

    for part in pending:
        part.listen(part_is_settled)
    if not pending:
        settle()
    return whole


def joined(parts: Sequence[tuple[int, Confirmation]]) -> Confirmation:
    """Return the confirmation of a post that was divided into parts, each with its number of messages."""
    if all(part is CONFIRMED for _, part in parts):
        return CONFIRMED
    if len(parts) == 1:
        return parts[0][1]
    whole = Confirmation()
    whole.refused = _refused(part for _, part in parts)

    def settle() -> None:
        outcomes: list[tuple[int, Failure | None]] = []
        for number, part in parts:
            for count, failure in part.outcomes(number):
                if outcomes and outcomes[-1][1] == failure:
                    outcomes[-1] = outcomes[-1][0] + count, failure
                else:
                    outcomes.append((count, failure))
        whole.settle_each(outcomes)

    all_of([part for _, part in parts]).listen(settle)
    return whole


def _refused(parts: Iterable[Confirmation]) -> Failure | None:
    return next((part.refused for part in parts if part.refused is not None), None)
