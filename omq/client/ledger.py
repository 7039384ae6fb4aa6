"""The outcomes of published messages: which are safe, which were refused, which may be lost.

The ledger numbers messages as they are queued, over all connections of a client. Every answered Confirm
settles the messages before it, no matter which task sent it and whether that task still waits; so does the
loss of a connection. The ledger keeps each failure as a `PublishFailure`, and reports it once to every
caller that it may concern. A caller is a task; for `omq.blocking` it is a thread.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakSet

from omq.client.errors import MOST_REFUSALS, ConnectionLost, PublishRefused

MOST_FAILURES = 64
"""The most failures that are kept separately. Beyond that the ledger merges the oldest two: then a task may
get the report of a failure that does not concern it, but no task misses one that does.
"""


@dataclass(slots=True, eq=False)
class PublishFailure:
    """A failure: of the messages after number `start`, up to and including `end`, some were refused or may be
    lost.
    """

    start: int
    end: int
    text: str
    command: str = ""
    argument: bytes = b""
    refusals: tuple[str, ...] = ()
    lost: bool = False
    private: bool = False
    """Whether it concerns a single message, and the task that published it waits for the report."""
    unreported: int = field(init=False)
    """The number of messages whose failure was reported to no task that can act on it."""
    reported_to: WeakSet[object] = field(default_factory=WeakSet)
    """The callers to which it was reported."""
    reported_with_own: WeakSet[object] = field(default_factory=WeakSet)
    """The callers that were told of the loss of their own message, and not of the others that were lost with
    it: `confirm` reports those.
    """

    def __post_init__(self) -> None:
        self.unreported = self.end - self.start


class Ledger:
    """The published messages of a client, by number, and their failures."""

    def __init__(self, caller: Callable[[], object]) -> None:
        """Create an empty ledger. `caller` returns the present caller: an object with an identity of its own,
        such as a task.
        """
        self.caller = caller
        self.published = 0
        """The number of the last message that was queued."""
        self.settled = 0
        """Messages up to this number have an outcome: safe, refused, or possibly lost."""
        self.publisher: object = None
        """The caller that published last, which saves a lookup."""
        self._failures: list[PublishFailure] = []
        self._seen: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    # -- the callers that publish and confirm --------------------------------------------------------------

    def see(self) -> None:
        """Note that the caller is about to publish: failures from here on concern it."""
        self.publisher = self.caller()
        self._seen.setdefault(self.publisher, self.published)

    def see_asking(self) -> None:
        """Note that the caller calls `confirm`. If it has not published, all unreported failures
        concern it.
        """
        caller = self.caller()
        if caller not in self._seen:
            unreported = (failure.start for failure in self._failures if failure.unreported)
            self._seen[caller] = min(unreported, default=self.settled)

    # -- outcomes ------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> bool:
        return self.published > self.settled

    def settle(self, end: int) -> None:
        """Settle messages up to number `end`: they are safe, except those with a failure."""
        self.settled = max(self.settled, end)

    def refused(
        self, end: int, text: str, command: str, argument: bytes, refusals: Iterable[str], *, private: bool
    ) -> None:
        """Record that some of the unsettled messages up to number `end` were refused."""
        failure = PublishFailure(self._start(end), end, text, command, argument, tuple(refusals))
        self._add(failure, private=private)

    def lost(self, text: str, *, private: bool) -> None:
        """Record that the connection ended and all unsettled messages may be lost."""
        if self.unsettled:
            self._add(PublishFailure(self.settled, self.published, text, lost=True), private=private)

    def _start(self, end: int) -> int:
        return min(self.settled, end - 1)

    def _add(self, failure: PublishFailure, *, private: bool) -> None:
        if private and failure.unreported == 1:
            failure.private = True
            failure.unreported = 0
        self.settle(failure.end)
        self._failures.append(failure)
        if len(self._failures) > MOST_FAILURES:
            first, second = self._failures[:2]
            self._failures[:2] = [_merged(first, second)]

    # -- reports -------------------------------------------------------------------------------------------

    def report(self, end: int) -> None:
        """Raise the failures of messages up to number `end` that were not reported to the caller."""
        caller = self.caller()
        since = self._seen.get(caller, 0)
        found = [
            failure
            for failure in self._failures
            if failure.end > since and failure.start < end and caller not in failure.reported_to
        ]
        for failure in found:
            failure.unreported = 0
        self._raise(found)

    def report_to_publisher(self, number: int) -> None:
        """Raise as `report` does, for a task that waits for its message `number`: without failures of single
        messages whose publishers wait for their own report.
        """
        caller = self.caller()
        since = self._seen.get(caller, 0)
        self._raise(
            [
                failure
                for failure in self._failures
                if failure.start < number
                and failure.end > since
                and caller not in failure.reported_to
                and caller not in failure.reported_with_own
                and (failure.end >= number or not failure.private)
            ]
        )

    def report_unreported(self) -> None:
        """Raise the failures that were reported to no task."""
        found = [failure for failure in self._failures if failure.unreported]
        for failure in found:
            failure.unreported = 0
        self._raise(found)

    def loss_reported(self) -> None:
        """Note that the caller, which had asked about the messages of all tasks, was told of the loss of a
        connection.
        """
        caller = self.caller()
        for failure in self._failures:
            if failure.lost:
                failure.reported_to.add(caller)
                failure.unreported = 0

    def loss_of_one_reported(self, number: int) -> None:
        """Note that the caller was told of the loss of its message `number`. It was not told of the loss of
        other messages, which it may have published before.
        """
        caller = self.caller()
        for failure in self._failures:
            if failure.lost and failure.start < number <= failure.end:
                callers = (
                    failure.reported_to if failure.end - failure.start == 1 else failure.reported_with_own
                )
                callers.add(caller)
                failure.unreported = max(failure.unreported - 1, 0)

    def _raise(self, found: list[PublishFailure]) -> None:
        if not found:
            return
        caller = self.caller()
        for failure in found:
            failure.reported_to.add(caller)
        refusals = tuple(refusal for failure in found for refusal in failure.refusals)[:MOST_REFUSALS]
        for failure in found:
            if failure.lost:
                raise ConnectionLost("; ".join((failure.text, *refusals)))
        last = found[-1]
        raise PublishRefused(last.text, last.command, last.argument, refusals)


def _merged(first: PublishFailure, second: PublishFailure) -> PublishFailure:
    both = PublishFailure(
        first.start,
        second.end,
        first.text if first.lost else second.text,
        second.command or first.command,
        second.argument or first.argument,
        (*first.refusals, *second.refusals)[:MOST_REFUSALS],
        lost=first.lost or second.lost,
        private=first.private and second.private,
    )
    both.unreported = first.unreported + second.unreported
    both.reported_to.update(first.reported_to & second.reported_to)
    both.reported_with_own.update(first.reported_with_own & second.reported_with_own)
    return both
