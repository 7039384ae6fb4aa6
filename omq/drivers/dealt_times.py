"""The times at which messages of a queue were first assigned to consumers, to about a second.

Messages are assigned by ascending ids, so a time for each second in which some were is enough.
"""

from collections import deque

MOST_MARKS = 512
"""The greatest number of times that are kept. When it is reached, every second one of them is dropped."""

SECONDS = 1.0
"""The shortest time between two of them."""


class DealtTimes:
    """The times of one queue."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()
        """When messages were assigned, and the id after the last of those until the next time."""

    def note(self, cursor: int, now: float) -> None:
        """Note that the messages below `cursor` have been assigned by the time `now`."""
        marks = self._marks
        if marks and now - marks[-1][0] < SECONDS:
            marks[-1] = (marks[-1][0], cursor)
            return
        if len(marks) >= MOST_MARKS:
            # Of two times the earlier one stands for the messages of both.
            pairs = list(zip(list(marks)[::2], list(marks)[1::2], strict=False))
            marks.clear()
            marks.extend((first[0], second[1]) for first, second in pairs)
        marks.append((now, cursor))

    def forget_below(self, message: int) -> None:
        """Forget the times of messages below this id."""
        while self._marks and self._marks[0][1] <= message:
            self._marks.popleft()

    def since(self, message: int) -> float | None:
        """Return the time of the first assignment of this message; None if it is not known."""
        return next((time for time, cursor in self._marks if message < cursor), None)
